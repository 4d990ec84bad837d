"""Score fusion fitted on human scores: width of the tools' belief, weight of the model's, a monotone map. Pure."""

import bisect
from collections.abc import Mapping, Sequence
from typing import Any

from program.fusion.levels import finite
from program.fusion.scores import ScoreFusion

__all__ = ("FIELDS", "FittedFusion")

FIELDS = ("eta", "model_weight", "curve")
"""What a fitted fusion adds to a saved program, beside the kind of its map."""


class FittedFusion(ScoreFusion):
    """A score fusion with three fitted parts, each that of the fusion it is built on by default.

    `eta` is the width of the tools' belief; the model's level probabilities are raised to `model_weight` (0: the tools
    alone decide, 1: as they are, more: the model is trusted more); `curve` maps the fused score to the scale of the
    people who rated: increasing knots (x, y) on 1..5, straight lines between them, so the order of images stays;
    `kind` says what sort of fit they were taken from.

    >>> fitted = FittedFusion(ScoreFusion(), curve=[(1, 2), (5, 4)])
    >>> fitted.fuse_scores([3.0], None)
    3.0
    >>> fitted.fuse_scores([5.0], None)
    4.0
    """

    def __init__(
        self,
        base: ScoreFusion,
        *,
        eta: float | None = None,
        model_weight: float | None = None,
        curve: Sequence[tuple[float, float]] = (),
        kind: str = "knots",
    ) -> None:
        self.__dict__.update(base.__dict__)
        self.eta = self.eta if eta is None else finite("eta", eta)
        self.model_weight = self.model_weight if model_weight is None else finite("model_weight", model_weight)
        self.curve = tuple((float(x), float(y)) for x, y in curve)
        for (x0, y0), (x1, y1) in zip(self.curve, self.curve[1:], strict=False):
            if not (x0 < x1 and y0 < y1):
                raise ValueError(f"curve {self.curve}: the knots must increase in both coordinates")
        self.bends = len(self.curve) > 1
        self.kind = kind if self.bends else "none"

    def mapped(self, score: float) -> float:
        """Return a fused score on the scale of the fitted people, in [1, 5]."""
        if not self.bends:
            return score
        place = min(max(bisect.bisect_right([x for x, _ in self.curve], score), 1), len(self.curve) - 1)
        (x0, y0), (x1, y1) = self.curve[place - 1], self.curve[place]
        return min(5.0, max(1.0, y0 + (y1 - y0) * (score - x0) / (x1 - x0)))

    def to_json(self) -> dict[str, Any]:
        """Return what a saved program holds of it."""
        knots = [list(knot) for knot in self.curve]
        fitted = {"eta": self.eta, "model_weight": self.model_weight, "map": self.kind, "curve": knots}
        return {**fitted, "smoothing": self.smoothing} if self.smoothing else fitted

    @classmethod
    def from_json(cls, base: ScoreFusion, fitted: Mapping[str, Any]) -> "FittedFusion":
        """Make the fusion a saved program holds. Raises ValueError for other fields or values."""
        if set(fitted) - {"map", "smoothing"} != set(FIELDS):
            raise ValueError(f"fusion holds {', '.join(sorted(fitted))}; {', '.join(FIELDS)} are needed")
        curve, kind = [(float(x), float(y)) for x, y in fitted["curve"]], str(fitted.get("map", "knots"))
        fusion = cls(base, eta=float(fitted["eta"]), model_weight=float(fitted["model_weight"]), curve=curve, kind=kind)
        fusion.smoothing = finite("smoothing", float(fitted.get("smoothing", 0.0)))
        return fusion
