"""Images whose quality somebody has said, by where they come from: what quality without a reference is learnt from."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from program.lms.perceptual.quality import QualityModel
from program.lms.perceptual.regression import Matrix
from program.lms.perceptual.tables import Table
from program.lms.perceptual.teaching import Lessons

__all__ = ("NATURAL", "Judged", "judged_images", "without")

NATURAL = ("photographs", "live", "undistorted")
"""What the natural regression reads: photographs as people take them, LIVE's distorted ones, and what nobody distorted.

LIVE's and KADID-10k's people judged beside an original, CLIVE's alone; their scales are taken as one. Bringing LIVE's
down to where it hurts CLIVE's least changes agreement there by less than 0.003 and lowers it on BIQ2021's train and
validation images by 0.008. The 30 undistorted images raise it there by 0.02: CLIVE's photographs, by phones, show
little of how good a picture may be."""


@dataclass(frozen=True)
class Judged:
    """N images with features, qualities 1..5, and the photograph each shows."""

    vectors: Matrix
    labels: Matrix
    group: NDArray[np.str_]

    def only(self, chosen: NDArray[np.bool_]) -> "Judged":
        """Return the rows of a mask."""
        return Judged(self.vectors[chosen], self.labels[chosen], self.group[chosen])


def judged_images(
    clive: Table, live: Table, made: Table, lesson: Lessons, teacher: QualityModel
) -> dict[str, Judged]:  # fmt: skip
    """Return the train images by kind: `NATURAL`, "generated", and "taught" by the model with a reference."""
    scored = {"photographs": clive.only(clive.split == "train"), "live": live.only(live.split == "train")}
    plain = made.distortion == "none"
    scored |= {"undistorted": made.only(plain), "generated": made.only(~plain)}
    found = {kind: Judged(table.vectors, table.labels, table.group) for kind, table in scored.items()}
    return found | {"taught": Judged(*lesson.judged(teacher))}


def without(images: Mapping[str, Judged], photographs: NDArray[np.str_]) -> dict[str, Judged]:
    """Return the images that show none of some photographs."""
    return {kind: judged.only(~np.isin(judged.group, photographs)) for kind, judged in images.items()}
