"""The manifest: one JSON object a line, one image (with its question or score) an object.

Reading streams and opens no image; of a line it keeps a hash of its id only, to find duplicates: 14 to 20 bytes a
line, so about 20 MB for a million (`benchmarks/manifest_streaming.py` measures it).
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictStr,
    ValidationError,
    field_validator,
    model_validator,
)

from data.errors import DataError
from data.faults import WANTED, close_field, fault_of, shortened
from data.keys import KeyTable

__all__ = (
    "Box", "Sample", "Split", "Task", "is_far_outside", "manifest_sha256", "read_manifest",
    "scan_manifest", "write_manifest",
)  # fmt: skip

Split: TypeAlias = Literal["train", "validation", "test"]
Task: TypeAlias = Literal["scoring", "mcq", "open"]
Number: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Box: TypeAlias = tuple[Number, Number, Number, Number]
"""A region in pixels: left, top, right, bottom; right and bottom are outside the region."""

_FAR_OUTSIDE = 0.25
"""Part of its scale's width that a score may pass it by: realigned DMOS of LIVE pass 0..100 by 12."""


class Sample(BaseModel):
    """One line of a manifest: an image with a question, a human score or both."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: StrictStr = Field(min_length=1)
    """Unique in its manifest."""
    image: Path
    """Absolute path; nothing has checked that a file is there."""
    reference: Path | None = None
    """The undistorted image, where there is one."""
    query: StrictStr | None = None
    options: dict[StrictStr, StrictStr] | None = None
    """Choices by letter; makes the sample a multiple-choice question."""
    answer: StrictStr | None = None
    """The right option's letter (without options: the expected text)."""
    mos: Number | None = None
    """Mean opinion score on `mos_range`; a value may pass the range by a quarter of its width."""
    mos_std: Annotated[Number, Field(ge=0)] | None = None
    mos_range: tuple[Number, Number] = (1.0, 5.0)
    """Lowest and highest score of the scale."""
    higher_is_better: StrictBool = True
    distortion: StrictStr | None = None
    group: StrictStr | None = None
    """Image content; never split across train, validation and test."""
    split: Split | None = None
    regions: dict[StrictStr, Box] | None = None
    """Boxes of named regions, in pixels."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Everything else that the line holds."""

    @property
    def quality(self) -> float | None:
        """The score mapped linearly to 1..5 with 5 the best; None without a score."""
        if self.mos is None:
            return None
        low, high = self.mos_range
        score = 1 + 4 * (self.mos - low) / (high - low)
        return score if self.higher_is_better else 6 - score

    @property
    def task(self) -> Task:
        """What is asked: "mcq" with options, "scoring" with a score, else "open"."""
        if self.options:
            return "mcq"
        return "open" if self.mos is None else "scoring"

    @property
    def is_labelled(self) -> bool:
        """Whether people have said what is right: a score, or the answer of a question with options."""
        return self.answer is not None if self.options else self.mos is not None

    @field_validator("image", "reference", mode="before")
    @classmethod
    def _path_as_text(cls, value: Any, info: Any) -> Any:
        if value is None and info.field_name == "reference":
            return None
        if not isinstance(value, str | Path):
            raise ValueError(f'"{info.field_name}" is {shortened(value)}, not {WANTED[info.field_name]}; correct it')
        if not str(value).strip() or "\0" in str(value):
            raise ValueError(f'"{info.field_name}" is empty; give the path of an image file')
        if "://" in str(value):
            raise ValueError(f'"{info.field_name}" is the URL {shortened(value)}; download it and give its path')
        return value

    @field_validator("options")
    @classmethod
    def _lettered(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        if value is None:
            return None
        if len(value) < 2:
            raise ValueError(f'"options" has {len(value)} choice(s); give at least two')
        for letter, text in value.items():
            if len(letter) != 1 or not "A" <= letter <= "Z":
                raise ValueError(f'"options" has the key {shortened(letter)}; use the letters A, B, C, ...')
            if not text.strip():
                raise ValueError(f'"options" {letter} is empty; give its text')
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "Sample":
        if self.answer is not None and self.options is not None and self.answer not in self.options:
            letters = ", ".join(self.options)
            raise ValueError(
                f'"answer" is {shortened(self.answer)}, not among the options {letters}; give one of these letters'
            )
        if not self.mos_range[0] < self.mos_range[1]:
            raise ValueError(f'"mos_range" is {list(self.mos_range)}; give the lower end first')
        if self.mos is not None and is_far_outside(self.mos, self.mos_range):
            low, high = self.mos_range
            raise ValueError(f'"mos" is {self.mos:g}, far outside {low:g}..{high:g}; correct it or "mos_range"')
        for name, (left, top, right, bottom) in (self.regions or {}).items():
            if not (left < right and top < bottom):
                raise ValueError(f'"regions" {name!r} is empty; give left < right and top < bottom')
        return self


def is_far_outside(score: float, scale: tuple[float, float]) -> bool:
    """Tell whether a score passes its scale by more than a quarter of its width, which no rounding or refit explains.

    >>> is_far_outside(112, (0, 100)), is_far_outside(99, (1, 5))
    (False, True)
    """
    low, high = scale
    return max(low - score, score - high) > _FAR_OUTSIDE * (high - low)


def read_manifest(path: Path | str) -> Iterator[Sample]:
    """Yield the samples of a manifest in order; paths become absolute.

    Raises DataError naming the manifest, the line, the fault and the mend.
    """
    for _, sample in scan_manifest(path):
        if isinstance(sample, DataError):
            raise sample
        yield sample


def scan_manifest(path: Path | str) -> Iterator[tuple[int, Sample | DataError]]:
    """Yield line number and sample of each line, or the DataError that says what is wrong with it.

    Raises DataError when the file as a whole cannot be read or is empty.
    """
    path = Path(path)
    if path.suffix.casefold() == ".csv":
        raise DataError(
            f"manifest {str(path)!r}: is a table; make a manifest of it with "
            f"`python -m data.prepare table --root {path} --out {path.with_suffix('.jsonl')}`"
        )
    folder, seen = path.resolve().parent, KeyTable()
    number = 0
    for number, line in _lines(path):
        try:
            sample = _sample(json.loads(line), folder)
        except json.JSONDecodeError as error:
            fault = f"is not JSON ({error.msg} at column {error.colno}); put one whole object on each line"
        except RecursionError:
            fault = "is nested too deeply; flatten it"
        except ValidationError as error:
            fault = fault_of(error)
        except ValueError as error:
            fault = str(error)
        else:
            if seen.number(sample.id)[1]:
                yield number, sample
                continue
            fault = f'"id" {shortened(sample.id)} was there before; give each line its own'
        yield number, DataError(f"manifest {str(path)!r} line {number}: {fault}")
    if not number:
        raise DataError(f"manifest {str(path)!r}: is empty; give one JSON object a line")


def write_manifest(path: Path | str, samples: Iterable[Sample]) -> None:
    """Write samples, whole or not at all; paths inside the manifest's folder become relative."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = path.resolve().parent
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            for sample in samples:
                file.write(json.dumps(_row(sample, folder), ensure_ascii=False, allow_nan=False) + "\n")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def manifest_sha256(path: Path | str) -> str:
    """Return the SHA-256 of a manifest's bytes, in hex; DataError when it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(Path(path), error) from error


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        # utf-8-sig: spreadsheets and Windows editors put a byte order mark in front.
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except UnicodeDecodeError as error:
        raise DataError(f"manifest {str(path)!r} near line {number + 1}: is not UTF-8; save it as UTF-8") from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"manifest {str(path)!r}: no such file; check the path")
    if isinstance(error, IsADirectoryError):
        return DataError(f"manifest {str(path)!r}: is a folder; give the .jsonl file in it")
    return DataError(f"manifest {str(path)!r}: cannot be read ({error.strerror}); check its permissions")


def _sample(row: Any, folder: Path) -> Sample:
    if not isinstance(row, dict):
        raise ValueError(f"holds {shortened(row)}, not an object; write it as {{...}}")
    known = {key: value for key, value in row.items() if key in Sample.model_fields and key != "metadata"}
    extra = row.get("metadata", {})
    if not isinstance(extra, dict):
        raise ValueError(f'"metadata" is {shortened(extra)}, not {WANTED["metadata"]}; correct or remove it')
    own = {key: value for key, value in row.items() if key not in Sample.model_fields}
    for key in own:
        meant = close_field(key)
        if meant is not None and meant not in row:
            raise ValueError(
                f'{shortened(key)} is no key; did you mean "{meant}"? (a key of your own goes in "metadata")'
            )
    extra = extra | own
    for key in ("mos_range", "higher_is_better"):
        if known.get(key, ...) is None:
            del known[key]
    sample = Sample.model_validate({**known, "metadata": extra})
    paths = {"image": _inside(sample.image, folder)}
    if sample.reference is not None:
        paths["reference"] = _inside(sample.reference, folder)
    return sample.model_copy(update=paths)


def _inside(path: Path, folder: Path) -> Path:
    return Path(os.path.normpath(folder / path))


def _row(sample: Sample, folder: Path) -> Mapping[str, Any]:
    row = sample.model_dump(mode="json", exclude_defaults=True, exclude={"metadata"})
    for key in ("image", "reference"):
        if key in row:
            path = Path(os.path.abspath(row[key]))
            row[key] = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)
    # What would be taken for a misspelt key when it is read again stays in an object of its own.
    apart = any(close_field(key) not in {None, *row} for key in sample.metadata)
    return {**row, "metadata": sample.metadata} if apart else {**row, **sample.metadata}
