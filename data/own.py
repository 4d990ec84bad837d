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


def own_samples(release: Release) -> Iterator[Sample]:
    """Yield the samples of a table, or of each split of a dataset of Hugging Face's.

    Without a group they are in that of their reference or image. Images of a dataset are copied: what it names may lie
    in a cache.
    """
    for split, source in _splits(release).items():
        for sample in read_manifest(source, release.layout):
            known = sample.model_copy(update={"split": sample.split or SPLIT_WORDS.get(split.casefold())})
            yield _with_files(release, known, f"{split}/{sample.id}" if split else sample.id)


def _with_files(release: Release, sample: Sample, name: str) -> Sample:
    images: dict[str, Path] = {}
    copies = release.entry.read == "huggingface"
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


def _splits(release: Release) -> Mapping[str, Place]:
    """Return the table of each split; "" or "all" is one without splits."""
    root = release.root
    if release.entry.read == "table":
        if root.is_dir():
            raise DataError(f"table {str(root)!r}: is a folder; give the table's file with --root")
        return {"": root}
    if root.is_file():
        return {"all": root}
    import datasets

    # Relative names with one slash are names on the hub unless such a folder is there.
    name = str(root.resolve()) if root.is_dir() else root.as_posix()
    check_card(root)
    try:
        return {split: f"{HUB}{name}:{split}" for split in datasets.get_dataset_split_names(name)}
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        fault = f"cannot be loaded ({one_line(error)[:200]}); give a folder, a Parquet file or a name on the hub"
        raise DataError(f"dataset {str(root)!r}: {fault}") from error
