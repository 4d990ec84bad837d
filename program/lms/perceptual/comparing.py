"""Fit the quality with a reference: human scores of LIVE's train images and of what is generated for the expert."""

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from program.lms.perceptual.errors import error_scales
from program.lms.perceptual.reference import DIFFERENCE_NAMES
from program.lms.perceptual.regression import Group, Hyper, Matrix
from program.lms.perceptual.standards import Standard
from program.lms.perceptual.store import as_stored
from program.lms.perceptual.tables import Table

__all__ = ("COMPARED", "PAIRED", "paired_fit")

_COUNT = len(DIFFERENCE_NAMES)
PAIRED = Hyper(1.0, 0.1, 0.05, 4.0, (Group(0, _COUNT, 1.0, 0.5), Group(0, _COUNT, 0.1, 0.5)))
"""A wide kernel for what all distortions share, a narrow one for what sets kinds apart: how much people mind a change
depends on its kind. Chosen, as the differences were, on LIVE and quickstart validation images, by leaving out one of
the quickstart's train photographs at a time, and on distorted versions of the 80 CLIVE train images people liked best
(3,840 images of content that nothing here was fitted on)."""
COMPARED = 1500
"""How many generated images the regression keeps: all of them would raise agreement by 0.003 and cost start-up time."""
_SEED = 7


def paired_fit(live: Table, made: Table) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return arrays and settings of the regression."""
    vectors, labels, group = _rows(live, made)
    standard = Standard.of(vectors, PAIRED.clip)
    arrays: dict[str, NDArray[Any]] = {
        "fr_vectors": vectors.astype(np.float16), "fr_labels": labels,
        "fr_centre": standard.centre, "fr_spread": standard.spread,
    }  # fmt: skip
    photographs = (np.flatnonzero(group == photograph) for photograph in np.unique(group))
    scales = error_scales(vectors, labels, photographs, standard, PAIRED)
    return arrays, {"quality": asdict(PAIRED), "error_scales": scales}


def _rows(live: Table, made: Table) -> tuple[Matrix, Matrix, NDArray[np.str_]]:
    scored = live.only(live.split == "train")
    kept = made.only(np.sort(np.random.default_rng(_SEED).permutation(len(made.labels))[:COMPARED]))
    # Half precision is what ships, so the regression is fitted on it.
    vectors = as_stored(np.vstack([scored.differences, kept.differences]))
    return vectors, np.r_[scored.labels, kept.labels], np.r_[scored.group, kept.group]
