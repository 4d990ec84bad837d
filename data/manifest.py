"""The manifest: a row (a line of JSON, a table's row) is one image with its question or score.

Reading streams and opens no image; ids are kept on disk, to find duplicates (`benchmarks/manifest_streaming.py`).
"""

import hashlib
import json
import math
import os
from argparse import Namespace
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from string import ascii_uppercase
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field, StrictBool, StrictStr, ValidationError, field_validator, model_validator

from data.ratings import TWICE
from data.tables import HUB, scan_rows, unreadable
from program.common.addresses import DATA
from program.common.errors import DataError
from program.common.files import IdSet, Place, folder_of, is_remote, named_in, open_file, place_of, whole_file
from program.common.request import Request
from program.common.text import fold_text

GENERATED: Mapping[str, str] = {"quickstart": "manifest.jsonl", "quickstart-fr": "manifest-fr.jsonl"}
"""Names that stand for a manifest which is made on first use, with its file."""

Split: TypeAlias = Literal["train", "validation", "test"]
SPLIT_WORDS: Mapping[str, Split] = {
    "train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation",
    "dev": "validation", "test": "test", "testing": "test",
}  # fmt: skip
"""Words for a split, in any case."""
Number: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Letter: TypeAlias = Annotated[StrictStr, Field(pattern="^[A-Z]$")]
Choice: TypeAlias = Annotated[StrictStr, Field(pattern=r"\S")]
Box: TypeAlias = tuple[Number, Number, Number, Number]
"""A region in pixels: left, top, right, bottom; right and bottom are outside the region."""

_FAR_OUTSIDE = 0.25
"""Part of its scale's width that a score may pass it by: realigned DMOS of LIVE pass 0..100 by 12."""
_USUAL_SCALES = ((0, 1), (1, 5), (0, 5), (0, 10), (0, 100))
"""What scores may be on that do not fit theirs, the likeliest first."""
_FEWEST = 3
"""Scores that say something of their scale."""
KEYS = (
    "id", "image", "reference", "query", "options", "answer", "mos", "mos_std", "mos_range", "higher_is_better",
    "preferred_over", "distortion", "group", "split", "regions", "metadata",
)  # fmt: skip
"""Of a manifest's lines, in the order in which they are written."""
_NO_LABELS = ("id", "image", "reference", "query", "options", "distortion", "group", "split", "regions", "metadata")
LABELS = (
    '"mos" (another column: --columns mos=NAME), or "options" with an "answer"; of several raters\' columns give '
    "--raters NAME,NAME"
)
"""What makes a row a labelled one, as errors say it."""


class Sample(Request):
    """One line of a manifest: an image with a question, a human score or both."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: StrictStr = Field(min_length=1)
    """Unique in its manifest."""
    image: Place
    """Absolute path or URI; nothing has checked that a file is there."""
    reference: Place | None = None
    """The undistorted image, where there is one."""
    query: StrictStr | None = None
    options: Annotated[dict[Letter, Choice], Field(min_length=2)] | None = None
    """Two or more choices by letter; makes the sample a multiple-choice question."""
    answer: StrictStr | None = None
    """The right option's letter (without options: the expected text)."""
    mos: Number | None = None
    """Mean opinion score on `mos_range`; a value may pass the range by a quarter of its width."""
    mos_std: Annotated[Number, Field(ge=0)] | None = None
    mos_range: tuple[Number, Number] = (1.0, 5.0)
    higher_is_better: StrictBool = True
    preferred_over: dict[StrictStr, Annotated[float, Field(ge=0, allow_inf_nan=False)]] | None = None
    """How many votes found this image better than another, by the other's `id`; a tie is half a vote for each."""
    distortion: StrictStr | None = None
    group: StrictStr | None = None
    """Image content; never split across train, validation and test."""
    split: Split | None = None
    regions: dict[StrictStr, Box] | None = None
    """Boxes of named regions, in pixels."""
    metadata: dict[str, Any] = Field(default_factory=dict)

    @property
    def quality(self) -> float | None:
        """The score mapped linearly to 1..5 with 5 the best; None without a score."""
        if self.mos is None:
            return None
        low, high = self.mos_range
        score = 1 + 4 * (self.mos - low) / (high - low)
        return score if self.higher_is_better else 6 - score

    @property
    def task(self) -> Literal["scoring", "mcq", "open"]:
        """What is asked: "mcq" with options, "scoring" with a score, else "open"."""
        if self.options:
            return "mcq"
        return "open" if self.mos is None else "scoring"

    @property
    def truth(self) -> float | str | None:
        """What is right: a score on 1..5 or a letter; None where nobody said."""
        if self.task == "mcq":
            return self.answer.strip().upper() if self.answer else None
        return self.quality if self.task == "scoring" else None

    @property
    def missing_file(self) -> Place | None:
        """The image or the reference where it is a local file that is not there, else None."""
        return next((p for p in (self.image, self.reference) if isinstance(p, Path) and not p.is_file()), None)

    @property
    def is_labelled(self) -> bool:
        """Whether it is said what is right: a score, or the answer of a question with options."""
        return self.answer is not None if self.options else self.mos is not None

    @property
    def is_made_up(self) -> bool:
        """Whether its label is by a rule, not by people, as the data says of itself."""
        return self.metadata.get("labels") == "made-up"

    @property
    def only_confirms(self) -> bool:
        """Whether its label is a suggestion of the program's that a person left standing: none to learn from."""
        return self.metadata.get("labels") == "suggestion"

    @property
    def given_twice(self) -> tuple[float, float] | None:
        """The scores that one person gave at two times, of which the label is the mean; None where nobody did."""
        match self.metadata.get(TWICE):
            case [int() | float() as first, int() | float() as second]:
                return float(first), float(second)
        return None

    @property
    def judge(self) -> str:
        """Whose label it is, as sentences, tables and charts say it."""
        if self.only_confirms:
            return "suggestions that were left standing"
        return "the house standard" if self.is_made_up else "people"

    @property
    def is_bare(self) -> bool:
        """Whether it is an image alone, with neither a label nor a question."""
        return not (self.is_labelled or self.options or self.query)

    @field_validator("image", "reference", mode="before")
    @classmethod
    def _place(cls, value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, str | os.PathLike):
            raise ValueError("Input is not a valid path")
        text = str(value)
        if not text.strip() or "\0" in text:
            raise ValueError("is empty; give the path of an image file")
        return place_of(text)

    @field_validator("split", mode="before")
    @classmethod
    def _split_word(cls, value: Any) -> Any:
        return SPLIT_WORDS.get(value.strip().casefold(), value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> "Sample":
        low, high = self.mos_range
        if self.answer is not None and self.options is not None and self.answer not in self.options:
            raise ValueError(f'"answer" is {_shortened(self.answer)}, not among the options {", ".join(self.options)}')
        if not low < high:
            raise ValueError(f'"mos_range" is {[low, high]}; give the lower end first')
        if self.mos is not None and max(low - self.mos, self.mos - high) > _FAR_OUTSIDE * (high - low):
            mend = 'correct it or "mos_range" (--mos-range LOW,HIGH)'
            raise ValueError(f'"mos" is {self.mos:g}, far outside {low:g}..{high:g}; {mend}')
        for name, (left, top, right, bottom) in (self.regions or {}).items():
            if not (left < right and top < bottom):
                raise ValueError(f'"regions" {name!r} is empty; give left < right and top < bottom')
        return self


@dataclass(frozen=True)
class Layout:
    """What a manifest's rows leave unsaid: columns, the scale of their scores, and which addresses may be opened."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """By field, the column that holds it."""
    mos_range: tuple[float, float] | None = None
    """Of every score, whatever its row says; None leaves it to the rows."""
    lower_is_better: bool = False
    """Of every score, likewise."""
    raters: Sequence[str] | None = None
    """Columns of several people's scores, which are averaged; of no names: the rows of an image are. None: neither."""
    remote: Collection[str] = ()
    """Kinds of address (s3, gs) that rows may name; without, they name files of this machine, or files below their
    manifest's own address."""
    labels: bool = True
    """Whether labels are read; else whatever stands in their place is passed over."""

    @classmethod
    def asked(cls, flags: Namespace) -> "Layout":
        """Return what `program.common.cli.add_layout_flags` read."""
        return cls(flags.columns, flags.mos_range, flags.lower_is_better, flags.raters)


_AS_WRITTEN = Layout()
_DIFFERENCE = "dmos"


def misnamed_key(row: Mapping[str, Any], question: str, keys: Collection[str] = KEYS) -> tuple[str, str] | None:
    """Return the first key that was probably meant to be one of `keys` which the row lacks, and what to do.

    `question` asks for a misspelt one, with `{meant}` and `{key}` in it. A `dmos` is no misspelt `mos`: of most
    datasets it says how much worse an image is, of some (KADID-10k) how good.
    """
    for key in row:
        meant = None if key in KEYS else _close_field(key)
        if meant in keys and meant not in row:
            return key, question.format(meant=meant, key=key)
        if key.strip().casefold() == _DIFFERENCE and "mos" in keys and "mos" not in row:
            mend = f'name the score "mos" (--columns mos={key})'
            return key, f'{mend}, with "higher_is_better": false (--lower-is-better) where low scores are the good ones'
    return None


@lru_cache(maxsize=1024)
def _close_field(key: str) -> str | None:
    """Return the manifest's key that an unknown one was probably meant to be, or None."""
    word = key.strip().casefold()
    close = get_close_matches(word, KEYS, n=1, cutoff=0.85)
    return next(iter(close), None) if _DIFFERENCE not in word else None


def fault_of(error: Exception) -> str:
    """Return what is wrong with a sample or its line in a few words."""
    if not isinstance(error, ValidationError):
        return f"is not JSON ({error})" if isinstance(error, json.JSONDecodeError) else str(error)
    first = error.errors(include_url=False)[0]
    message = str(first["ctx"]["error"] if first["type"] == "value_error" else first["msg"])
    if not first["loc"]:
        return message
    place = ".".join(map(str, first["loc"]))
    return f'"{place}": {message} (given: {_shortened(first["input"])})'


def check_scale(path: Place, layout: Layout = _AS_WRITTEN) -> str:
    """Return a warning where the scores of a manifest are hardly on their scale; empty where they may be.

    That is where all lie within a tenth of it, or some outside one that nobody stated. Raises DataError where most lie
    outside it, or all within a fiftieth of it. Of fewer than three scores, or of one value, nothing can be told.
    """
    warning = ""
    for (low, high, is_stated), scores in _scores_by_scale(path, layout).items():
        if len(scores) < _FEWEST:
            continue
        least, most, width = min(scores), max(scores), high - low
        used, passed = (most - least) / width, max(low - least, most - high) / width
        outside = sum(not low <= score <= high for score in scores)
        is_refused = False
        if 2 * outside > len(scores):
            where, is_refused, width = "most of them outside", True, math.inf
        elif not is_stated and 1 / 16 < passed <= _FAR_OUTSIDE:  # what passes it by more has a fault of its own
            where, width = "some of them outside", math.inf
        elif 0 < used < 1 / 50:
            where, is_refused = "all within a fiftieth of", True
        elif 0 < used < 1 / 10:
            where = "all within a tenth of"
        else:
            continue
        text = f"manifest {str(path)!r}: its {len(scores)} scores lie in {least:g}..{most:g}, {where} {low:g}..{high:g}"
        likely = _likely_scale(least, most, width)
        text += f'; name their scale with --mos-range {likely} ("mos_range" in the rows)'
        if is_refused:
            raise DataError(text)
        warning = text
    return warning


def _likely_scale(least: float, most: float, narrower_than: float) -> str:
    """Return the first usual scale that scores are on, as the flag takes it, or the names of its ends."""
    for low, high in _USUAL_SCALES:
        slack = (high - low) / 20
        if low - slack <= least and most <= high + slack and high - low < narrower_than:
            return f"{low},{high}"
    return "LOW,HIGH"


def _scores_by_scale(path: Place, layout: Layout) -> Mapping[tuple[float, float, bool], Sequence[float]]:
    """Return the scores on each scale, and whether it was stated."""
    by_scale: defaultdict[tuple[float, float, bool], array[float]] = defaultdict(lambda: array("d"))
    for _, row in scan_rows(path, layout.columns, layout.raters):
        if isinstance(row, dict) and row.get("mos") is not None:
            with suppress(TypeError, ValueError):  # the row is refused when it is read
                stated = layout.mos_range or row.get("mos_range")
                low, high = map(float, stated or (1, 5))
                if low < high and math.isfinite(row["mos"]):
                    by_scale[low, high, stated is not None].append(row["mos"])
    return by_scale


def left_out(count: int, of: int) -> str:
    """Say that so many rows have no label."""
    return f"{count} of {of} rows have no label and are left out"


def read_manifest(path: Place, layout: Layout = _AS_WRITTEN) -> Iterator[Sample]:
    """Yield a manifest's samples in order; paths become absolute. DataError names manifest, line, fault and mend."""
    for _, sample in scan_manifest(path, layout):
        if isinstance(sample, DataError):
            raise sample
        yield sample


def scan_manifest(path: Place, layout: Layout = _AS_WRITTEN) -> Iterator[tuple[int, Sample | DataError]]:
    """Yield line number and sample of each line (or row), or the DataError that says what is wrong with it.

    .jsonl, .json, .csv, .tsv, .xlsx or .parquet (a file, or a folder of such files), local or by URI; `layout` says
    which column is which field, and the scale. Without an "id" the image's name as it stands there is the sample's, of
    further questions about it with the row's number.
    Raises DataError when the file as a whole cannot be read or is empty.
    """
    folder: Place | None
    if str(path).startswith(HUB):
        of_this_machine = Path(str(path).removeprefix(HUB).partition(":")[0])
        folder = of_this_machine if of_this_machine.is_dir() else None
    else:
        path = place_of(path)
        folder = folder_of(path)
    number = 0
    with closing(IdSet()) as ids:
        for number, row in scan_rows(path, layout.columns, layout.raters, labels=layout.labels):
            try:
                if isinstance(row, Exception):
                    raise row
                sample = _sample(row, folder, layout)
                if "id" not in row and sample.mos is None and sample.id in ids:  # another question about an image
                    sample = sample.model_copy(update={"id": f"{sample.id}#{number}"})
                if not ids.add(sample.id):
                    mend = "" if "id" in row else ", or --raters to average the scores of an image"
                    raise ValueError(f'"id" {_shortened(sample.id)} was there before; give each line its own{mend}')
            except (ValueError, RecursionError) as error:
                yield number, DataError(f"manifest {str(path)!r} line {number}: {fault_of(error)}")
            else:
                yield number, sample
    if not number:
        raise DataError(f"manifest {str(path)!r}: is empty; give one JSON object a line")


def write_manifest(path: Path | str, samples: Iterable[Sample]) -> None:
    """Write samples, whole or not at all; paths inside the manifest's folder become relative."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = path.resolve().parent
    with whole_file(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
        for sample in samples:
            file.write(json.dumps(_row(sample, folder), ensure_ascii=False, allow_nan=False) + "\n")


def manifest_sha256(path: Place) -> str:
    """Return the SHA-256 of a manifest's bytes (of a folder's, file by file), in hex; DataError when it cannot be read.

    Of a streamed dataset it is that of its name.
    """
    if str(path).startswith(HUB):
        return hashlib.sha256(str(path).encode()).hexdigest()
    path, digest = place_of(path), hashlib.sha256()
    try:
        for file_path in sorted(path.iterdir()) if isinstance(path, Path) and path.is_dir() else [path]:
            with open_file(file_path) as file:
                while part := file.read(2**20):
                    digest.update(part)
        return digest.hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error


def _sample(row: Any, folder: Place | None, layout: Layout) -> Sample:
    """Return the sample of a row, its images seen from the manifest's folder; None: of a streamed dataset."""
    if not isinstance(row, dict):
        raise ValueError(f"holds {_shortened(row)}, not an object; write it as {{...}}")
    keys = KEYS if layout.labels else _NO_LABELS
    fields = {key: value for key, value in row.items() if key in keys and value is not None}
    if layout.mos_range is not None:
        fields["mos_range"] = layout.mos_range
    if layout.lower_is_better:
        fields["higher_is_better"] = False
    own = {key: value for key, value in row.items() if key not in KEYS and not _holds_image(value)}
    if {"other", "better"} <= own.keys():
        raise ValueError("is a pair; make a manifest of the pairs with python -m data.prepare pairs")
    if wrong := misnamed_key(row, 'did you mean "{meant}"? (a key of your own goes in "metadata")', keys):
        raise ValueError(f"{_shortened(wrong[0])} is no key; {wrong[1]}")
    if "question" in own and "query" not in fields:
        fields["query"] = own.pop("question")
    give_letters(fields, own)
    if own and isinstance(metadata := fields.get("metadata", {}), dict):
        fields["metadata"] = metadata | own
    if "image" not in fields:
        present = ", ".join(str(key) for key, value in row.items() if key != "id" and value is not None)
        but = f" but {present[:160]}" if present else ""
        raise ValueError(f'has no "image"{but}; give it, or name its column with --columns image=NAME')
    fields.setdefault("id", str(fields["image"]))
    sample = Sample.model_validate(fields)
    images = {key: _image(str(fields[key]), folder, layout) for key in ("image", "reference") if key in fields}
    return sample.model_copy(update=images)


def give_letters(fields: dict[str, Any], own: dict[str, Any]) -> None:
    """Give the options of a row their letters, and an answer the letter of the option that it names, in place.

    Options are an object, a list, texts with | between, or columns A, B, C, ... of `own`, which are taken out.
    """
    options = _lettered(fields.get("options"), own)
    if options is None:
        return
    fields["options"] = options
    answer = fields.get("answer")
    if isinstance(options, Mapping) and isinstance(answer, str) and answer not in options:
        fields["answer"] = _letter_of(answer, options)


def _lettered(options: Any, own: dict[str, Any]) -> Any:
    if options is None and {"A", "B"} <= own.keys():
        columns = {letter: own.pop(letter) for letter in ascii_uppercase if letter in own}
        return {letter: str(text) for letter, text in columns.items() if text is not None} or None
    if isinstance(options, str):
        with suppress(ValueError, RecursionError):
            options = json.loads(options)
    if isinstance(options, str) and "|" in options:
        options = [part.strip() for part in options.split("|")]
    if not isinstance(options, list):
        return options
    if len(options) > len(ascii_uppercase):
        raise ValueError(f"has {len(options)} options; give at most {len(ascii_uppercase)}")
    return dict(zip(ascii_uppercase, options, strict=False))


def _letter_of(answer: str, options: Mapping[str, Any]) -> str:
    """Return the letter of the one option with this text, or the letter that it is ("b)"), or the answer itself."""
    named = [letter for letter, text in options.items() if fold_text(str(text)) == fold_text(answer)]
    if len(named) == 1:
        return named[0]
    letter = answer.strip().upper().rstrip(".):")
    if letter in options:
        return letter
    return answer


def _holds_image(value: Any) -> bool:
    return isinstance(value, str) and DATA.match(value[:600]) is not None


def _image(name: str, folder: Place | None, layout: Layout) -> Place:
    """Return what a row names in a folder; None: of a streamed dataset, which holds its images. Raises ValueError."""
    if folder is None and not is_remote(name):
        mend = "name the column that holds images with --columns image=NAME"
        raise ValueError(f"image {_shortened(name)} is a name, and a streamed dataset has no folder; {mend}")
    return named_in(folder or Path(), name, layout.remote)


def _row(sample: Sample, folder: Path) -> dict[str, Any]:
    stated = sample.model_dump(mode="json", exclude_defaults=True, exclude={"metadata"})
    row = {key: stated[key] for key in KEYS if key in stated}
    for key in ("image", "reference"):
        if key in row and not is_remote(row[key]):
            path = Path(os.path.abspath(row[key]))
            row[key] = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)
    metadata = {key: value for key, value in sample.metadata.items() if _is_plain(value)}
    # What would be taken for a misspelt key when it is read again stays in an object of its own.
    apart = any(_close_field(key) not in {None, *row} for key in metadata)
    return {**row, "metadata": metadata} if apart else {**row, **metadata}


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):  # as a table's dates
        return False
    return True


def _shortened(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
