"""The expert's fitted arrays and settings, as they ship: a plain npz without pickles, and a JSON file beside it."""

import functools
import io
import json
import zipfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = (
    "MODEL_FILE",
    "PROVENANCE_FILE",
    "REVISION",
    "Matrix",
    "as_stored",
    "save_arrays",
    "stored_arrays",
    "stored_settings",
)

REVISION = "r6"
MODEL_FILE = f"expert-{REVISION}.npz"
PROVENANCE_FILE = f"expert-{REVISION}.json"

Matrix = NDArray[np.float64]


def as_stored(vectors: Matrix) -> Matrix:
    """Return N x F features as training images are stored: in half precision, larger values cut to its largest."""
    limit = float(np.finfo(np.float16).max)
    return np.asarray(np.clip(vectors, -limit, limit).astype(np.float16), dtype=np.float64)


@functools.cache
def stored_arrays() -> Mapping[str, Matrix]:
    """Return the shipped arrays as float64, read once per process."""
    path = files("program.lms.perceptual").joinpath(MODEL_FILE)
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        return {name: stored[name].astype(np.float64) for name in stored.files}


@functools.cache
def stored_settings() -> dict[str, Any]:
    """Return the settings that were fitted with the arrays."""
    text = files("program.lms.perceptual").joinpath(PROVENANCE_FILE).read_text(encoding="utf-8")
    settings: dict[str, Any] = json.loads(text)["settings"]
    return settings


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a compressed npz whose bytes depend on the arrays alone (no time stamps)."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(arrays):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.ascontiguousarray(arrays[name]), allow_pickle=False)
            archive.writestr(
                zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), buffer.getvalue(), zipfile.ZIP_DEFLATED
            )
