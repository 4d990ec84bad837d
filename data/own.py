"""Tables of one's own, and any Hugging Face dataset with an image column, as samples."""

import base64
import hashlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from data.manifest import Sample, fault_of, misnamed_key
from data.releases import SPLIT_WORDS, Release, Row, sample_of
from data.tables import HUB, check_card, scan_rows, table_rows
from program.common.addresses import DATA
from program.common.errors import DataError, one_line
from program.common.files import Place, write_whole

SUFFIXES = {"JPEG": ".jpg", "PNG": ".png", "BMP": ".bmp", "WEBP": ".webp", "TIFF": ".tif", "GIF": ".gif"}
_IMAGES = frozenset({"image", "reference"})


def table(release: Release) -> Iterator[Sample]:
    """Yield the samples of a table, whose columns are named as the manifest's keys or by the release's `columns`."""
    if release.root.is_dir():
        raise DataError(f"table {str(release.root)!r}: is a folder; give the table's file with --root")
    for number, row in enumerate(rows_of(release.root, release.columns), start=1):
        yield _sample(release, replace(row, cells={"id": f"{number:06d}", **row.cells}), release.root.parent)


def huggingface(release: Release) -> Iterator[Sample]:
    """Yield the samples of a Parquet file, or of each split of a dataset of this machine or the hub.

    Their images are copied: what is named may lie in a cache.
    """
    folder = release.root.parent if release.root.is_file() else release.root
    for split, source in _splits(release.root).items():
        for number, row in enumerate(rows_of(source, _with_image(source, release.columns))):
            cells = {"split": SPLIT_WORDS.get(split.casefold()), **row.cells}
            if cells.get("id") in {None, f"{number + 1:08}"}:  # which such a row without an id is given
                cells["id"] = f"{split}/{number:07d}"
            row = Row(release.root, f"{split} {row.place}", cells)
            for name in _IMAGES & cells.keys():
                if cells[name]:
                    cells[name] = _stored(str(cells[name]), release.images, row, folder)
            yield _sample(release, row, release.images.resolve())


def rows_of(source: Place, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the rows of a table by the manifest's names; DataError where one is none."""
    noun = "line" if str(source).casefold().endswith((".jsonl", ".csv", ".tsv", ".xlsx")) else "row"
    for number, cells in scan_rows(source, columns):
        row = Row(Path(source), f"{noun} {number}", {})
        if not isinstance(cells, dict):
            raise row.error(fault_of(cells) if isinstance(cells, Exception) else "is not an object; write it as {...}")
        yield replace(row, cells=cells)


def _sample(release: Release, row: Row, folder: Path) -> Sample:
    """Return the sample of a row with columns of the manifest's names; paths in it are relative to `folder`.

    Images that it holds are written to the release's folder. Without a group its content is that of its reference or
    image. DataError names the row that cannot be used.
    """
    cells = {name: value for name, value in row.cells.items() if value is not None and str(value).strip()}
    if "question" in cells and "query" not in cells:
        cells["query"] = cells.pop("question")
    if wrong := misnamed_key(cells, "did you mean '{meant}'? (--columns {meant}={key})"):
        raise row.error(f"column {wrong[0]!r} is no field; {wrong[1]}")
    if "image" not in cells:
        present = ", ".join(name for name in row.cells if name != "id")
        raise row.error(f"has no image but {present}; fill it in, or name its column with --columns image=NAME")
    # Other images that a row holds are no metadata.
    cells = {name: value for name, value in cells.items() if name in _IMAGES or not DATA.match(str(value)[:600])}
    for name in cells.keys() & _IMAGES:
        if DATA.match(str(cells[name])):
            cells[name] = _stored(cells[name], release.images, row, folder)
        else:
            cells[name] = row.image(folder, cells[name])
    content = cells.get("reference", cells["image"])
    if content.is_relative_to(folder):
        cells.setdefault("group", str(content.relative_to(folder)))
    return sample_of(release, row, cells)


def _stored(image: str, folder: Path, row: Row, named_from: Path) -> Path:
    """Write an image that a row holds, or names, under a name made of its content and return the path."""
    from PIL import Image

    try:
        if DATA.match(image):
            data = base64.b64decode(image.partition(",")[2])
        else:
            data = row.image(named_from, image).read_bytes()
        with Image.open(io.BytesIO(data)) as opened:
            suffix = SUFFIXES.get(opened.format or "", ".img")
    except OSError as error:
        raise row.error("the image cannot be opened; correct or remove the row") from error
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


def _with_image(source: Place, columns: Mapping[str, str]) -> Mapping[str, str]:
    """Return the columns with the first that holds images, where none is said or called to be the image."""
    _, first = next(iter(table_rows(source)), (0, None))
    if isinstance(first, dict) and "image" not in {*first, *columns}:
        for name, value in first.items():
            if isinstance(value, bytes) or (isinstance(value, dict) and value.keys() == {"bytes", "path"}):
                return {**columns, "image": name}
    return columns
