"""The manifest: one JSON object a line, one image (with its question or score) an object.

Reading streams and opens no image; of a line it keeps the id only, to find duplicates: about 130 MB for a million
lines (`benchmarks/manifest_streaming.py` measures it).
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from functools import lru_cache
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

from program.common.errors import DataError
from program.common.files import plain_file, whole_file

__all__ = (
    "Sample", "Split", "close_field", "fault_of", "manifest_sha256", "read_manifest", "scan_manifest", "write_manifest",
)  # fmt: skip

Split: TypeAlias = Literal["train", "validation", "test"]
Number: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Letter: TypeAlias = Annotated[StrictStr, Field(pattern="^[A-Z]$")]
Choice: TypeAlias = Annotated[StrictStr, Field(pattern=r"\S")]
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
    options: Annotated[dict[Letter, Choice], Field(min_length=2)] | None = None
    """Two or more choices by letter; makes the sample a multiple-choice question."""
    answer: StrictStr | None = None
    """The right option's letter (without options: the expected text)."""
    mos: Number | None = None
    """Mean opinion score on `mos_range`; a value may pass the range by a quarter of its width."""
    mos_std: Annotated[Number, Field(ge=0)] | None = None
    mos_range: tuple[Number, Number] = (1.0, 5.0)
    higher_is_better: StrictBool = True
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
    def missing_file(self) -> Path | None:
        """The image or the reference where it is not there, else None."""
        return next((path for path in (self.image, self.reference) if path is not None and not path.is_file()), None)

    @property
    def is_labelled(self) -> bool:
        """Whether people have said what is right: a score, or the answer of a question with options."""
        return self.answer is not None if self.options else self.mos is not None

    @field_validator("image", "reference", mode="before")
    @classmethod
    def _names_a_file(cls, value: Any) -> Any:
        text = str(value)
        if not text.strip() or "\0" in text:
            raise ValueError("is empty; give the path of an image file")
        if "://" in text:
            raise ValueError("is a URL; download it and give its path")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "Sample":
        low, high = self.mos_range
        if self.answer is not None and self.options is not None and self.answer not in self.options:
            letters = ", ".join(self.options)
            raise ValueError(f'"answer" is {_shortened(self.answer)}, not among the options {letters}')
        if not low < high:
            raise ValueError(f'"mos_range" is {[low, high]}; give the lower end first')
        if self.mos is not None and max(low - self.mos, self.mos - high) > _FAR_OUTSIDE * (high - low):
            raise ValueError(f'"mos" is {self.mos:g}, far outside {low:g}..{high:g}; correct it or "mos_range"')
        for name, (left, top, right, bottom) in (self.regions or {}).items():
            if not (left < right and top < bottom):
                raise ValueError(f'"regions" {name!r} is empty; give left < right and top < bottom')
        return self


@lru_cache(maxsize=1024)
def close_field(key: str) -> str | None:
    """Return the manifest's key that an unknown one was probably meant to be, or None."""
    return next(iter(get_close_matches(key.strip().casefold(), Sample.model_fields, n=1, cutoff=0.85)), None)


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


def read_manifest(path: Path | str) -> Iterator[Sample]:
    """Yield a manifest's samples in order; paths become absolute. DataError names manifest, line, fault and mend."""
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
    folder, ids = path.resolve().parent, set[str]()
    number = 0
    for number, line in _lines(path):
        try:
            sample = _sample(json.loads(line), folder)
            if sample.id in ids:
                raise ValueError(f'"id" {_shortened(sample.id)} was there before; give each line its own')
        except (ValueError, RecursionError) as error:
            yield number, DataError(f"manifest {str(path)!r} line {number}: {fault_of(error)}")
        else:
            ids.add(sample.id)
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


def manifest_sha256(path: Path | str) -> str:
    """Return the SHA-256 of a manifest's bytes, in hex; DataError when it cannot be read."""
    try:
        with open(path, "rb", opener=plain_file) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        # utf-8-sig: spreadsheets and Windows editors put a byte order mark in front.
        with open(path, encoding="utf-8-sig", opener=plain_file) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except UnicodeDecodeError as error:
        raise DataError(f"manifest {str(path)!r} near line {number + 1}: is not UTF-8; save it as UTF-8") from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path | str, error: OSError) -> DataError:
    return DataError(f"manifest {str(path)!r}: cannot be read ({error.strerror}); give the path of a .jsonl file")


def _sample(row: Any, folder: Path) -> Sample:
    if not isinstance(row, dict):
        raise ValueError(f"holds {_shortened(row)}, not an object; write it as {{...}}")
    fields = {key: value for key, value in row.items() if key in Sample.model_fields and value is not None}
    own = {key: value for key, value in row.items() if key not in Sample.model_fields}
    for key in own:
        meant = close_field(key)
        if meant is not None and meant not in row:
            raise ValueError(
                f'{_shortened(key)} is no key; did you mean "{meant}"? (a key of your own goes in "metadata")'
            )
    if own and isinstance(metadata := fields.get("metadata", {}), dict):
        fields["metadata"] = metadata | own
    sample = Sample.model_validate(fields)
    paths = {key: path for key in ("image", "reference") if (path := getattr(sample, key)) is not None}
    return sample.model_copy(update={key: Path(os.path.normpath(folder / path)) for key, path in paths.items()})


def _row(sample: Sample, folder: Path) -> dict[str, Any]:
    row = sample.model_dump(mode="json", exclude_defaults=True, exclude={"metadata"})
    for key in ("image", "reference"):
        if key in row:
            path = Path(os.path.abspath(row[key]))
            row[key] = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)
    # What would be taken for a misspelt key when it is read again stays in an object of its own.
    apart = any(close_field(key) not in {None, *row} for key in sample.metadata)
    return {**row, "metadata": sample.metadata} if apart else {**row, **sample.metadata}


def _shortened(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
