"""Readers of multiple-choice questions: Q-Bench LLVisionQA, AgenticIQA-Eval and tables of one's own."""

import json
import math
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from data.errors import DataError
from data.faults import close_field, fault_of
from data.keys import KeyTable
from data.manifest import Sample, Split, is_far_outside
from data.release import Release, read_csv

__all__ = ("agenticiqa_eval", "qbench_dev", "qbench_test", "question_type", "sample_from_row", "table")

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
SPLIT_WORDS: Mapping[str, Split] = {
    "train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation",
    "dev": "validation", "test": "test", "testing": "test",
}  # fmt: skip
NUMBERS = ("mos", "mos_std")
TEXTS = ("query", "distortion", "group")


def qbench_dev(release: Release) -> Iterator[Sample]:
    """Read Q-Bench LLVisionQA's dev questions; they are for choosing, so they go to validation."""
    return _qbench(release, "dev", "validation")


def qbench_test(release: Release) -> Iterator[Sample]:
    """Read Q-Bench LLVisionQA's test questions; their answers are not public."""
    return _qbench(release, "test", "test")


def agenticiqa_eval(release: Release) -> Iterator[Sample]:
    """Read questions in the layout assumed for AgenticIQA-Eval, which is not published."""
    names = ("planner", "executor_distortion", "executor_tool", "summarizer")
    release.file(*(f"{name}.json" for name in names))
    for name in names:
        path = release.root / f"{name}.json"
        if not path.is_file():
            continue
        for number, row in enumerate(_records(path), start=1):
            fields = {"id": f"{name}/{number:04d}", "question_type": name, **row}
            yield sample_from_row(release, fields, path.parent, f"{str(path)!r}, question {number}")


def table(release: Release) -> Iterator[Sample]:
    """Read a JSON list, JSON lines or a CSV file with a header; --root names the file."""
    path = release.root
    if not path.is_file():
        raise DataError(f"table {str(path)!r}: is not a file; give the .json, .jsonl or .csv with --root")
    rows = read_csv(path) if path.suffix.casefold() == ".csv" else _records(path)
    column, scores = release.columns.get("mos", "mos"), _ScoresByImage()
    for number, row in enumerate(rows, start=1):
        where = f"{str(path)!r}, row {number}"
        sample = sample_from_row(release, {"id": f"{number:06d}", **row}, path.parent, where)
        if sample.mos is None and sample.query is None and sample.options is None and column in row:
            raise DataError(f"table {where}: column {column!r} is blank; give the score, or remove the row")
        scores.enter(number, sample, where)
        yield sample


class _ScoresByImage:
    """The score that each image (with its reference and question) got first, in a few bytes a row."""

    def __init__(self) -> None:
        self._images, self._scores, self._rows = KeyTable(), array("d"), array("I")

    def enter(self, row: int, sample: Sample, where: str) -> None:
        """Keep a sample's score; DataError where the same image has another one."""
        if sample.mos is None:
            return
        number, is_new = self._images.number(repr((str(sample.image), str(sample.reference), sample.query)))
        if is_new:
            self._scores.append(sample.mos)
            self._rows.append(row)
        elif self._scores[number] != sample.mos:
            raise DataError(
                f"table {where}: image {sample.image.name!r} has the score {sample.mos:g} and in row "
                f"{self._rows[number]} {self._scores[number]:g}; keep one, or give their mean"
            )


def question_type(question: str, options: Mapping[str, str]) -> str:
    """Return Q-Bench's type of a question by its wording: "yes-or-no", "how" or "what".

    >>> question_type("How bright is it?", {"A": "Dark"}), question_type("Is it sharp?", {"A": "Yes", "B": "No"})
    ('how', 'yes-or-no')
    """
    if {text.strip().casefold().rstrip(".") for text in options.values()} <= {"yes", "no"}:
        return "yes-or-no"
    return "how" if re.search(r"\bhow\b", question, re.IGNORECASE) else "what"


def sample_from_row(release: Release, row: Mapping[str, Any], folder: Path, where: str) -> Sample:
    """Return the sample that a row with columns of the manifest's names (or --columns) stands for.

    Raises DataError naming the row for a column that is not there and for anything that cannot be used.
    """
    absent = [name for name in release.columns.values() if name not in row]
    if absent:
        raise DataError(f"table {where}: has no column {absent[0]!r}; it has {', '.join(n for n in row if n != 'id')}")
    row = _renamed(row, release.columns)
    for name in row:
        meant = close_field(name) if name not in Sample.model_fields else None
        if meant is not None and meant not in row:
            raise DataError(
                f"table {where}: column {name!r} is no field; did you mean {meant!r}? (--columns {meant}={name})"
            )
    try:
        fields = _fields(release, row, folder, where)
        return Sample.model_validate(fields)
    except ValidationError as error:
        raise DataError(f"table {where}: {fault_of(error)}") from error


def _fields(release: Release, row: dict[str, Any], folder: Path, where: str) -> dict[str, Any]:
    if not isinstance(row.get("image"), str | Path) or not str(row["image"]).strip():
        raise DataError(
            f"table {where}: has no image but {', '.join(name for name in row if name != 'id')}; "
            "fill it in, or name its column with --columns image=NAME"
        )
    options = _options(row, where)
    fields: dict[str, Any] = {
        "id": f"{release.entry.name}/{row.pop('id')}", "image": folder / str(row.pop("image")), "options": options
    }  # fmt: skip
    if reference := row.pop("reference", None):
        fields["reference"] = folder / str(reference)
    fields["answer"] = _letter(row.pop("answer", None), options, where)
    if (word := str(row.pop("split", None) or "").strip().casefold()) in SPLIT_WORDS:
        fields["split"] = SPLIT_WORDS[word]
    elif word:
        raise DataError(f"table {where}: split {word!r} is none of {', '.join(SPLIT_WORDS)}; correct it")
    for name in NUMBERS:
        if not _is_empty(value := row.pop(name, None)):
            fields[name] = _number(value, where, name)
    if "mos" in fields:
        scale, higher = row.pop("mos_range", None), row.pop("higher_is_better", None)
        low, high = fields["mos_range"] = release.mos_range or scale or (1.0, 5.0)
        if is_far_outside(fields["mos"], (low, high)):
            column = release.columns.get("mos", "mos")
            raise DataError(f"table {where}: column {column!r} is {fields['mos']:g}, far outside {low:g}..{high:g}; "
                            "correct it, or give the scale with --mos-range LOW,HIGH")  # fmt: skip
        fields["higher_is_better"] = next((v for v in (release.higher_is_better, higher) if v is not None), True)
    fields |= {name: str(value) for name in TEXTS if not _is_empty(value := row.pop(name, None))}
    fields["regions"] = row.pop("regions", None) or None
    content = fields.get("reference", fields["image"])
    fields.setdefault("group", str(content.relative_to(folder)) if content.is_relative_to(folder) else None)
    fields["metadata"] = {key: value for key, value in row.items() if not _is_empty(value) and _is_plain(value)}
    return fields


def _qbench(release: Release, part: str, split: Split) -> Iterator[Sample]:
    path = release.file(f"llvisionqa_{part}.json", f"llvisionqa_qbench_{part}.json")
    images = release.folder("images", "images_llvisionqa", f"llvisionqa_qbench_{part}")
    for number, row in enumerate(_records(path), start=1):
        where = f"{str(path)!r}, question {number}"
        if missing := [key for key in ("img_path", "question", "candidates") if not row.get(key)]:
            raise DataError(f"table {where}: has no {missing[0]!r}; fetch the release again")
        options = dict(zip(LETTERS, (str(text) for text in row["candidates"]), strict=False))
        yield release.sample(
            f"{number:04d}",
            images / str(row["img_path"]),
            query=str(row["question"]),
            options=options,
            answer=_letter(row.get("correct_ans"), options, where),
            group=str(row["img_path"]),
            split=split,
            metadata={
                "question_type": question_type(str(row["question"]), options),
                **{key: row[key] for key in ("type", "concern") if key in row},
            },
        )


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON list or, one by one, of JSON lines."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            lines = path.suffix.casefold() == ".jsonl"
            rows = (json.loads(line) for line in file if line.strip()) if lines else json.load(file)
            if not lines and not isinstance(rows, list):
                raise DataError(f"table {str(path)!r}: holds no list; write the questions as [{{...}}, ...]")
            for number, row in enumerate(rows, start=1):
                if not isinstance(row, dict):
                    raise DataError(f"table {str(path)!r}, row {number}: is not an object; write it as {{...}}")
                yield row
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"table {str(path)!r}: is not JSON in UTF-8 ({error}); correct it") from error


def _renamed(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    renamed = dict(row)
    for target, column in {"query": "question", **columns}.items():
        if column in renamed and (target in columns or target not in renamed):
            renamed[target] = renamed.pop(column)
    return renamed


def _options(row: dict[str, Any], where: str) -> dict[str, str] | None:
    given = row.pop("options", None)
    if isinstance(given, str) and given.strip():
        try:
            given = json.loads(given)
        except ValueError:
            given = [part.strip() for part in given.split("|")]
    if isinstance(given, Mapping):
        return {str(letter): str(text) for letter, text in given.items()}
    if isinstance(given, Sequence) and not isinstance(given, str) and given:
        if len(given) > len(LETTERS):
            raise DataError(f"table {where}: has {len(given)} options; give at most {len(LETTERS)}")
        return dict(zip(LETTERS, map(str, given), strict=False))
    columns = {letter: str(row.pop(letter)) for letter in LETTERS if str(row.get(letter) or "").strip()}
    return columns or None


def _letter(answer: Any, options: Mapping[str, str] | None, where: str) -> str | None:
    if answer is None or (text := str(answer).strip()) == "":
        return None
    if options is None:
        return text
    matching = [letter for letter, choice in options.items() if choice.strip().casefold() == text.casefold()]
    if len(matching) == 1:
        return matching[0]
    if (letter := text.upper().rstrip(".):")) in options:
        return letter
    raise DataError(f"table {where}: the answer {text!r} is none of the options, or several; correct or remove the row")


def _number(value: Any, where: str, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"table {where}: {name} {value!r} is no number; correct or remove the row") from error


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _is_plain(value: Any) -> bool:
    """Tell whether JSON can hold a value."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | bool) or (isinstance(value, float) and math.isfinite(value))
