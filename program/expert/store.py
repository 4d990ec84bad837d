"""The expert's fitted arrays and settings, as they ship: a plain npz without pickles, and a JSON file beside it."""

import functools
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

__all__ = (
    "MODEL_FILE",
    "PROVENANCE_FILE",
    "REVISION",
    "Matrix",
    "as_stored",
    "stored_arrays",
    "stored_settings",
    "stored_table",
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
    path = files("program.expert").joinpath(MODEL_FILE)
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        return {name: stored[name].astype(np.float64) for name in stored.files}


@functools.cache
def stored_settings() -> dict[str, Any]:
    """Return the settings that were fitted with the arrays."""
    text = files("program.expert").joinpath(PROVENANCE_FILE).read_text(encoding="utf-8")
    settings: dict[str, Any] = json.loads(text)["settings"]
    return settings


@functools.cache
def stored_table(name: str) -> dict[str, Any]:
    """Return what a YAML file of the expert holds."""
    text = files("program.expert").joinpath(name).read_text(encoding="utf-8")
    # The C loader is ten times as fast; not every build of PyYAML has it.
    table: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    return table
