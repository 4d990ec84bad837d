"""Reader of any Hugging Face dataset with an image column: a local folder, a Parquet file or a name on the hub.

Rows stream, so no copy of the data goes into a cache. Images keep their bytes, in files named by their content.
"""

import hashlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from data.manifest import Sample
from data.readers_questions import SPLIT_WORDS, sample_from_row
from data.release import Release, Row
from program.common.errors import DataError, one_line
from program.common.files import write_whole

__all__ = ("huggingface",)

SUFFIXES = {"JPEG": ".jpg", "PNG": ".png", "BMP": ".bmp", "WEBP": ".webp", "TIFF": ".tif", "GIF": ".gif"}
BUILDERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".arrow": "arrow"}


def huggingface(release: Release) -> Iterator[Sample]:
    """Read a dataset of the `datasets` library; columns are named as manifest fields or by --columns FIELD=COLUMN."""
    folder = release.images.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in _splits(release.root):
        columns = _image_columns(rows, release)
        for number, row in enumerate(_undecoded(rows, columns, release)):
            place = f"{split} row {number + 1}"
            fields: dict[str, Any] = {"id": f"{split}/{number:07d}", "split": SPLIT_WORDS.get(split.casefold())}
            fields |= {name: value for name, value in row.items() if name not in columns.values()}
            for field, column in columns.items():
                if row[column] is not None:
                    fields[field] = str(_store(row[column], folder, f"{str(release.root)!r}, {place}"))
            others = {field: column for field, column in release.columns.items() if field not in columns}
            yield sample_from_row(replace(release, columns=others), Row(release.root, place, fields), folder)


def _splits(root: Path) -> Iterator[tuple[str, Any]]:
    """Yield the name and the rows of each split."""
    import datasets

    try:
        if (root / "dataset_dict.json").is_file() or (root / "state.json").is_file():
            loaded = datasets.load_from_disk(str(root))
        elif root.is_file():
            builder = BUILDERS.get(root.suffix.casefold(), "parquet")
            loaded = datasets.load_dataset(builder, data_files=str(root), streaming=True, split="train")
        else:
            # Relative names with one slash are names on the hub unless such a folder is there.
            loaded = datasets.load_dataset(str(root.resolve()) if root.is_dir() else root.as_posix(), streaming=True)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = one_line(error)[:200]
        raise DataError(
            f"dataset {str(root)!r}: cannot be loaded ({reason}); give a folder, a Parquet file or a name on the hub"
        ) from error
    if isinstance(loaded, Mapping):
        yield from loaded.items()
    else:
        yield "all", loaded


def _image_columns(rows: Any, release: Release) -> dict[str, str]:
    """Return the columns with the image and, where there is one, the reference."""
    import datasets

    features = rows.features or {}
    images = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
    columns = {}
    for field, names in (("image", ["image", *images]), ("reference", ["reference"] if "reference" in images else [])):
        if name := release.columns.get(field) or next((name for name in names if name in features), None):
            columns[field] = name
    if "image" not in columns or not set(columns.values()) <= set(features):
        raise DataError(
            f"dataset {str(release.root)!r}: has no image column {columns.get('image', '')!r} but "
            f"{', '.join(features) or 'no columns'}; name it with --columns image=NAME"
        )
    return columns


def _undecoded(rows: Any, columns: Mapping[str, str], release: Release) -> Iterator[Mapping[str, Any]]:
    import datasets

    for column, feature in dict(rows.features).items():
        if column in columns.values():
            rows = rows.cast_column(column, datasets.Image(decode=False))
        elif isinstance(feature, datasets.Image):  # it would only be decoded and thrown away
            rows = rows.remove_columns(column)
    try:
        yield from rows
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"dataset {str(release.root)!r}: stopped in the middle ({reason}); fetch it again") from error


def _store(image: Mapping[str, Any], folder: Path, where: str) -> Path:
    """Write an image's bytes, or those of its file, under a name made of its content and return the path."""
    from PIL import Image

    try:
        data = image["bytes"] or Path(image["path"]).read_bytes()
        with Image.open(io.BytesIO(data)) as opened:
            suffix = SUFFIXES.get(opened.format or "", ".img")
    except OSError as error:
        raise DataError(f"dataset {where}: the image cannot be opened; correct or remove the row") from error
    path = folder / f"{hashlib.sha256(data).hexdigest()}{suffix}"
    if not path.is_file():
        write_whole(path, data)
    return path
