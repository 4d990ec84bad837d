"""The expert's fitted arrays as they ship, a plain npz without pickles, and its tables."""

import functools
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

REVISION = "r15"
"""How the expert judges: its arrays, and the faults that it names."""
NAME = "perceptual/expert"
MODEL = f"{NAME}@{REVISION}"
"""The revision is part of the name: caches are keyed by it, so no answer comes from an older
expert's cache."""
MEASURED = "r9"
"""How it measures images; what a cache holds of them stays good for as long."""
MODEL_FILE = f"expert-{MEASURED}.npz"
PROVENANCE_FILE = f"expert-{MEASURED}.json"
POPULATION_FILE = "population.json"
FAULTS_FILE = "faults-r4.npz"

Matrix = NDArray[np.float64]


@functools.cache
def stored_arrays(name: str = MODEL_FILE) -> Mapping[str, Matrix]:
    """Return the arrays of a shipped file as float64, read once per process."""
    path = files("program.expert").joinpath(name)
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        return {each: stored[each].astype(np.float64) for each in stored.files}


@functools.cache
def stored_table(name: str) -> dict[str, Any]:
    """Return what a YAML or JSON file of the expert holds."""
    text = files("program.expert").joinpath(name).read_text(encoding="utf-8")
    # The C loader is ten times as fast; not every build of PyYAML has it.
    table: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    return table
