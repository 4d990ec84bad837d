"""Tables of one's own, and any Hugging Face dataset with an image column, as samples with images in files."""

import base64
import hashlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path

from data.manifest import SPLIT_WORDS, Sample, read_manifest
from data.releases import Release
from data.tables import HUB, check_card
from program.common.addresses import DATA
from program.common.errors import DataError, one_line
from program.common.files import Place, write_whole

SUFFIXES = {"JPEG": ".jpg", "PNG": ".png", "BMP": ".bmp", "WEBP": ".webp", "TIFF": ".tif", "GIF": ".gif"}


def table(release: Release) -> Iterator[Sample]:
    """Yield the samples of a table, each in the group of its reference or image where it names none."""
    if release.root.is_dir():
        raise DataError(f"table {str(release.root)!r}: is a folder; give the table's file with --root")
    for sample in read_manifest(release.root, release.layout):
        yield _with_files(release, sample, sample.id, copies=False)


def huggingface(release: Release) -> Iterator[Sample]:
    """Yield the samples of a Parquet file, or of each split of a dataset of this machine or the hub.

    Their images are copied: what is named may lie in a cache.
    """
    for split, source in _splits(release.root).items():
        for sample in read_manifest(source, release.layout):
            known = sample.model_copy(update={"split": sample.split or SPLIT_WORDS.get(split.casefold())})
            yield _with_files(release, known, f"{split}/{sample.id}", copies=True)


def _with_files(release: Release, sample: Sample, name: str, *, copies: bool) -> Sample:
    images: dict[str, Path] = {}
    for role in ("image", "reference"):
        place = getattr(sample, role)
        if place is not None:
            is_stored = copies or DATA.match(str(place)[:600])
            images[role] = _stored(place, release.images, sample.id) if is_stored else Path(place)
    content = images.get("reference", images["image"])
    folder = release.images.resolve() if content.is_relative_to(release.images.resolve()) else release.root.parent
    group = sample.group
    if group is None and content.is_relative_to(folder):
        group = str(content.relative_to(folder))
    return sample.model_copy(update={**images, "id": f"{release.entry.name}/{name}", "group": group})


def _stored(place: Place, folder: Path, name: str) -> Path:
    """Write an image that a row holds, or names, under a name made of its content and return the path."""
    from PIL import Image

    try:
        if DATA.match(str(place)[:600]):
            data = base64.b64decode(str(place).partition(",")[2])
        else:
            data = Path(place).read_bytes()
        with Image.open(io.BytesIO(data)) as opened:
            suffix = SUFFIXES.get(opened.format or "", ".img")
    except OSError as error:
        raise DataError(f"sample {name!r}: the image cannot be opened; correct or remove the row") from error
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.resolve() / f"{hashlib.sha256(data).hexdigest()}{suffix}"
    if not path.is_file():
        write_whole(path, data)
    return path


def _splits(root: Path) -> Mapping[str, Place]:
    """Return the table of each split of a dataset; "all" is one without splits."""
    import datasets

    if root.is_file():
        return {"all": root}
    # Relative names with one slash are names on the hub unless such a folder is there.
    name = str(root.resolve()) if root.is_dir() else root.as_posix()
    check_card(root)
    try:
        return {split: f"{HUB}{name}:{split}" for split in datasets.get_dataset_split_names(name)}
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        fault = f"cannot be loaded ({one_line(error)[:200]}); give a folder, a Parquet file or a name on the hub"
        raise DataError(f"dataset {str(root)!r}: {fault}") from error
