"""The manifest: one JSON object a line, one image (with its question or score) an object.

Reading streams and opens no image; of a line it keeps the id only, to find duplicates: about 130 MB for a million
lines (`benchmarks/manifest_streaming.py` measures it).
"""

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from data.sample import Sample, Split, close_field, fault_of, shortened
from program.common.errors import DataError
from program.common.files import plain_file, whole_file

__all__ = ("Sample", "Split", "manifest_sha256", "read_manifest", "scan_manifest", "write_manifest")


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
    folder, ids = path.resolve().parent, set[str]()
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
            if sample.id not in ids:
                ids.add(sample.id)
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
    with whole_file(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
        for sample in samples:
            file.write(json.dumps(_row(sample, folder), ensure_ascii=False, allow_nan=False) + "\n")


def manifest_sha256(path: Path | str) -> str:
    """Return the SHA-256 of a manifest's bytes, in hex; DataError when it cannot be read."""
    try:
        with open(path, "rb", opener=plain_file) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(Path(path), error) from error


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


def _unreadable(path: Path, error: OSError) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"manifest {str(path)!r}: no such file; check the path")
    if isinstance(error, IsADirectoryError):
        return DataError(f"manifest {str(path)!r}: is a folder; give the .jsonl file in it")
    if error.errno == errno.EINVAL:
        return DataError(f"manifest {str(path)!r}: is {error.strerror}; write it to one first")
    return DataError(f"manifest {str(path)!r}: cannot be read ({error.strerror}); check its permissions")


def _sample(row: Any, folder: Path) -> Sample:
    if not isinstance(row, dict):
        raise ValueError(f"holds {shortened(row)}, not an object; write it as {{...}}")
    fields = {key: value for key, value in row.items() if key in Sample.model_fields}
    own = {key: value for key, value in row.items() if key not in fields}
    for key in own:
        meant = close_field(key)
        if meant is not None and meant not in row:
            raise ValueError(
                f'{shortened(key)} is no key; did you mean "{meant}"? (a key of your own goes in "metadata")'
            )
    metadata = fields.get("metadata", {})
    fields["metadata"] = metadata | own if isinstance(metadata, dict) else metadata
    for key in ("mos_range", "higher_is_better"):
        if fields.get(key, ...) is None:
            del fields[key]
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
