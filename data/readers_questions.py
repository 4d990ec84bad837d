"""Readers of multiple-choice questions, of one's own tables, and of any Hugging Face dataset with an image column."""

import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from pydantic import ValidationError

from data.catalogue import Release, TableRow, read_csv
from data.manifest import Sample, Split, fault_of, misnamed_key
from data.tables import as_stored, check_card, json_object
from program.common.errors import DataError, one_line
from program.common.files import named_in, write_whole

SPLIT_WORDS: Mapping[str, Split] = {
    "train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation",
    "dev": "validation", "test": "test", "testing": "test",
}  # fmt: skip


def qbench(release: Release, part: str, split: Split) -> Iterator[Sample]:
    """Read the "dev" or the "test" questions of Q-Bench LLVisionQA, whose test answers are not public."""
    path = release.file(f"llvisionqa_{part}.json", f"llvisionqa_qbench_{part}.json")
    images = release.file("images", "images_llvisionqa", f"llvisionqa_qbench_{part}")
    for number, row in enumerate(_records(path, "question"), start=1):
        if missing := [key for key in ("img_path", "question", "candidates") if not row.cells.get(key)]:
            raise row.error(f"has no {missing[0]!r}; fetch the release again")
        image, question = str(row["img_path"]), str(row["question"])
        options = dict(zip(ascii_uppercase, map(str, row["candidates"]), strict=False))
        facts = {key: row[key] for key in ("type", "concern") if key in row.cells}
        yield release.sample(
            f"{number:04d}",
            images / image,
            query=question,
            options=options,
            answer=_letter(row.cells.get("correct_ans"), options, row),
            group=image,
            split=split,
            metadata={"question_type": question_type(question, options), **facts},
        )


def agenticiqa_eval(release: Release) -> Iterator[Sample]:
    """Read questions in the layout assumed for AgenticIQA-Eval, which is not published.

    `question_type` is the component that a question is about; the whole program answers each.
    """
    names = ("planner", "executor_distortion", "executor_tool", "summarizer")
    release.file(*(f"{name}.json" for name in names))
    for name in names:
        path = release.root / f"{name}.json"
        for number, row in enumerate(_records(path, "question") if path.is_file() else (), start=1):
            cells = {"id": f"{name}/{number:04d}", "question_type": name, **row.cells}
            yield sample_from_row(release, replace(row, cells=cells), path.parent)


def table(release: Release) -> Iterator[Sample]:
    """Read a JSON list, JSON lines or a CSV file with a header; --root names the file."""
    path = release.root
    if path.is_dir():
        raise DataError(f"table {str(path)!r}: is a folder; give the .json, .jsonl or .csv with --root")
    rows = read_csv(path) if path.suffix.casefold() == ".csv" else _records(path, "row")
    for number, row in enumerate(rows, start=1):
        row = TableRow(path, f"row {number}", {"id": f"{number:06d}", **row.cells})
        sample = sample_from_row(release, row, path.parent)
        if sample.task == "open" and sample.query is None and release.columns.get("mos", "mos") in row.cells:
            raise row.error("its score is blank; give it, or remove the row")
        yield sample


def question_type(question: str, options: Mapping[str, str]) -> str:
    """Return Q-Bench's type of a question by its wording: "yes-or-no", "how" or "what"."""
    if {text.strip().casefold().rstrip(".") for text in options.values()} <= {"yes", "no"}:
        return "yes-or-no"
    return "how" if re.search(r"\bhow\b", question, re.IGNORECASE) else "what"


def sample_from_row(release: Release, row: TableRow, folder: Path) -> Sample:
    """Return the sample that a row with columns of the manifest's names (or --columns) stands for.

    Paths in it are relative to `folder`. Raises DataError naming the row for a column that is not there and for
    anything that cannot be used.
    """
    present = ", ".join(name for name in row.cells if name != "id")
    if absent := [name for name in release.columns.values() if name not in row.cells]:
        raise row.error(f"has no column {absent[0]!r}; it has {present}")
    cells = dict(row.cells)
    for field, column in {"query": "question", **release.columns}.items():
        if column in cells and (field in release.columns or field not in cells):
            cells[field] = cells.pop(column)
    if wrong := misnamed_key(cells, "did you mean '{meant}'? (--columns {meant}={key})"):
        raise row.error(f"column {wrong[0]!r} is no field; {wrong[1]}")
    cells = {name: value for name, value in cells.items() if value is not None and str(value).strip()}
    if "image" not in cells:
        raise row.error(f"has no image but {present}; fill it in, or name its column with --columns image=NAME")
    try:
        return Sample.model_validate(_fields(release, replace(row, cells=cells), folder))
    except ValidationError as error:
        raise row.error(fault_of(error)) from error


def _fields(release: Release, row: TableRow, folder: Path) -> dict[str, Any]:
    cells = dict(row.cells)
    options = _options(cells, row)
    word = str(cells.pop("split", "")).strip().casefold()
    if word and word not in SPLIT_WORDS:
        raise row.error(f"split {word!r} is none of {', '.join(SPLIT_WORDS)}; correct it")
    paths: dict[str, Path] = {
        name: row.image(folder, name) for name in ("image", "reference") if cells.pop(name, None) is not None
    }
    content = paths.get("reference", paths["image"])
    fields: dict[str, Any] = {
        **paths, "id": f"{release.entry.name}/{cells.pop('id')}", "options": options,
        "answer": _letter(cells.pop("answer", ""), options, row), "split": SPLIT_WORDS.get(word),
        "group": str(content.relative_to(folder)) if content.is_relative_to(folder) else None,
    }  # fmt: skip
    fields |= {name: row.number(name) for name in ("mos", "mos_std") if cells.pop(name, None) is not None}
    fields |= {name: str(cells.pop(name)) for name in ("query", "distortion", "group") if name in cells}
    fields |= {name: cells.pop(name) for name in ("regions", "mos_range", "higher_is_better") if name in cells}
    scale = {"mos_range": release.mos_range, "higher_is_better": release.higher_is_better}
    fields |= {name: value for name, value in scale.items() if value is not None}
    fields["metadata"] = {name: value for name, value in cells.items() if _is_plain(value)}
    return fields


def _records(path: Path, noun: str) -> Iterator[TableRow]:
    """Yield the objects of a JSON list or, one by one, of JSON lines; `noun` is what errors call one."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            lines = path.suffix.casefold() == ".jsonl"
            parsed = partial(json.loads, object_pairs_hook=json_object)
            records = (parsed(line) for line in file if line.strip()) if lines else parsed(file.read())
            if not lines and not isinstance(records, list):
                raise DataError(f"table {str(path)!r}: holds no list; write the questions as [{{...}}, ...]")
            for number, record in enumerate(records, start=1):
                row = TableRow(path, f"{noun} {number}", record)
                if not isinstance(record, dict):
                    raise row.error("is not an object; write it as {...}")
                yield row
    except DataError:
        raise
    except (ValueError, RecursionError) as error:
        raise DataError(f"table {str(path)!r}: is not JSON in UTF-8 ({error}); correct it") from error


def _options(cells: dict[str, Any], row: TableRow) -> dict[str, str] | None:
    """Take the options out of the cells: an object, a list, text with "|" between, or columns A, B, C, ..."""
    options = cells.pop("options", None)
    if isinstance(options, str):
        try:
            options = json.loads(options)
        except (ValueError, RecursionError):
            options = [part.strip() for part in options.split("|")]
    if options is None:
        options = {letter: cells.pop(letter) for letter in ascii_uppercase if letter in cells}
    elif isinstance(options, Sequence):
        if len(options) > len(ascii_uppercase):
            raise row.error(f"has {len(options)} options; give at most {len(ascii_uppercase)}")
        options = dict(zip(ascii_uppercase, options, strict=False))
    return {str(letter): str(text) for letter, text in dict(options).items()} or None


def _letter(answer: Any, options: Mapping[str, str] | None, row: TableRow) -> str | None:
    text = str(answer or "").strip()
    if not text:
        return None
    if options is None:
        return text
    matching = [letter for letter, choice in options.items() if choice.strip().casefold() == text.casefold()]
    if len(matching) == 1:
        return matching[0]
    if (letter := text.upper().rstrip(".):")) in options:
        return letter
    raise row.error(f"the answer {text!r} is none of the options, or several; correct or remove the row")


def _is_plain(value: Any) -> bool:
    """Tell whether JSON can hold a value."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


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
            yield sample_from_row(replace(release, columns=others), TableRow(release.root, place, fields), folder)


def _splits(root: Path) -> Iterator[tuple[str, Any]]:
    import datasets

    check_card(root)
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

    try:
        yield from as_stored(rows, columns.values())
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = one_line(error)[:200]
        raise DataError(f"dataset {str(release.root)!r}: stopped in the middle ({reason}); fetch it again") from error


def _store(image: Mapping[str, Any], folder: Path, where: str) -> Path:
    """Write an image's bytes, or those of its file, under a name made of its content and return the path."""
    from PIL import Image

    try:
        data = image["bytes"] or Path(named_in(Path(), image["path"], None)).read_bytes()
        with Image.open(io.BytesIO(data)) as opened:
            suffix = SUFFIXES.get(opened.format or "", ".img")
    except OSError as error:
        raise DataError(f"dataset {where}: the image cannot be opened; correct or remove the row") from error
    path = folder / f"{hashlib.sha256(data).hexdigest()}{suffix}"
    if not path.is_file():
        write_whole(path, data)
    return path
