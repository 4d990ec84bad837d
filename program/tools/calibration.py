"""Raw tool values as scores 1..5: fitted maps by tool, with how sure they are and where they come from.

A map is the regression of the human score on the raw value, so it also says how much a tool knows: a tool that
tells little gets scores close to the mean, and a mean over tools is not dragged about by it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat, model_validator

from program.common.errors import ToolError
from program.tools.maps import MapParameters, apply_map
from program.tools.stored import Provenance, Stored, read_stored
from signatures.schemas import DistortionCategory, category_of

__all__ = (
    "Calibration",
    "CategoryMap",
    "Residual",
    "ToolCalibration",
    "least_variance",
    "mixed",
)

CATEGORY_WEIGHT = 0.5
"""Weight of the map fitted on one distortion category against the tool's general map. The general one (0) shifts
categories against each other, the category's own (1) rests on few kinds of distortion. Tool chosen by category,
SRCC at 0, 0.5, 1: 0.838, 0.889, 0.904 with each quickstart train photograph left out in turn (the same distortions
in both parts, so 1 is flattered)."""
ASSUMED_CORRELATION = 0.8
"""Of the errors of two tools that were not fitted on the same images; measured ones are 0.3 to 0.8."""
LEAST_RMSE = 0.1
"""No tool is surer than this: people's own mean scores are not."""


def least_variance(covariance: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return the weights (summing to 1, none negative) of the sum with the least variance, and that variance.

    `covariance` is n x n with a positive diagonal. Items whose best weight is negative leave, the most negative first.

    >>> weights, variance = least_variance(np.array([[1.0, 0.0], [0.0, 3.0]]))
    >>> weights.round(6).tolist(), round(variance, 6)
    ([0.75, 0.25], 0.75)
    """
    # A little independent error on each keeps two equal items apart.
    steady = covariance + 1e-9 * np.diag(np.diag(covariance))
    kept = np.arange(len(covariance))
    while True:
        best = np.linalg.solve(steady[np.ix_(kept, kept)], np.ones(len(kept)))
        if len(kept) == 1 or best.min() >= 0:
            break
        kept = np.delete(kept, int(best.argmin()))
    weights = np.zeros(len(covariance))
    weights[kept] = best / best.sum()
    return weights, float(weights @ covariance @ weights)


def mixed(own: Any, general: Any) -> Any:
    """Return the score for a category: its own map's and the general map's, in fixed shares."""
    return CATEGORY_WEIGHT * own + (1 - CATEGORY_WEIGHT) * general


class Residual(Stored):
    """How far a tool's scores lie from people's on some images, and how far those lie from their own mean."""

    n: int = Field(ge=1)
    rmse: FiniteFloat = Field(ge=0)
    """Root mean square of score - human score."""
    spread: FiniteFloat = Field(ge=0)
    """Standard deviation of the human scores: the residual of a tool that knows nothing."""
    label_sd: FiniteFloat = Field(0.0, ge=0)
    """Where the human score is a mean over other images (the quickstart's): how far one image lies from it."""

    @property
    def precision(self) -> float:
        """What a reading adds to knowing nothing of the image: 1 / variance - 1 / variance before, never below 0.

        >>> Residual(n=100, rmse=0.5, spread=1.0).precision, Residual(n=100, rmse=1.0, spread=1.0).precision
        (3.0, 0.0)
        """
        return self.precision_of(max(self.rmse, LEAST_RMSE) ** 2)

    def precision_of(self, variance: float) -> float:
        """Return the same for another error variance of the score, such as that of a mean of several."""
        apart = self.label_sd**2
        return max(0.0, 1 / (variance + apart) - 1 / (self.spread**2 + apart)) if self.spread > 0 else 0.0


class CategoryMap(Stored):
    """A tool's map for images with one category of distortion."""

    map: MapParameters
    residual: Residual
    """Of the score for that category, where the tool's general map has its share."""


class ToolCalibration(Stored):
    """One tool's maps and how well they fit."""

    sources: tuple[str, ...] = Field(min_length=1)
    """What it was fitted on: keys of the file's sources."""
    function: str
    """What measured: the tool's name in its library, with its options."""
    library: str
    """With its version, as "pyiqa 0.1.16"."""
    parameter_file_sha256: str | None = None
    residual: Residual
    """Over all readings it was fitted on, identities left out."""
    authentic: Residual | None = None
    """On photographs as they were taken, whose distortions nobody knows, where it was fitted on some."""
    srcc: FiniteFloat
    """Spearman correlation of raw values (in the tool's direction) with the human scores."""
    raw_range: tuple[FiniteFloat, FiniteFloat]
    """Lowest and highest raw value seen in the fit."""
    correlations: dict[str, float] = Field(default_factory=dict)
    """How its errors go with those of other tools on the same images: sum(e f) / sqrt(sum(e^2) sum(f^2)), by tool."""
    map: MapParameters
    """Over all distortions."""
    by_category: dict[DistortionCategory, CategoryMap] = Field(default_factory=dict)

    def score(self, raw: float, category: str | None = None) -> float:
        """Return the score 1..5 of a finite raw value, of an image whose distortion is of this category (if known)."""
        general = float(apply_map(self.map, raw))
        own = self._own(category)
        return general if own is None else mixed(float(apply_map(own.map, raw)), general)

    def error(self, category: str | None = None) -> Residual:
        """Return the residual that counts for a distortion category, if one is known.

        A tool that was also fitted on photographs as they were taken counts as where it knows least: what an image
        shows may be the category it was tried on or may not.
        """
        own = self._own(category)
        found = self.residual if own is None else own.residual
        if self.authentic is not None and self.authentic.precision < found.precision:
            return self.authentic
        return found

    def _own(self, category: str | None) -> CategoryMap | None:
        known = category_of(category) if category else None
        return self.by_category.get(known) if known else None


@dataclass(frozen=True, slots=True)
class Calibration:
    """The maps of tools by display name, and the data behind them by source name."""

    sources: Mapping[str, Provenance]
    tools: Mapping[str, ToolCalibration]
    origin: str = "memory"

    @classmethod
    def load(cls, path: Path | None = None) -> "Calibration":
        """Read a calibration file (default: the shipped one). Raises SettingsError naming the file and the key."""
        stored, origin = read_stored(_File, "calibration", path)
        return cls(stored.sources, stored.tools, origin)

    @classmethod
    def empty(cls) -> "Calibration":
        """Return a calibration without maps: every score is an error, every raw value still comes."""
        return cls({}, {})

    def score(self, tool_name: str, raw: float, category: str | None = None) -> float:
        """Return the score 1..5 of a raw value; `category` is the distortion the tool was taken for, if any.

        Rising in the tool's direction, 5 for an FR tool's identity. Raises ToolError for a tool without a map or a
        raw value that is not finite.
        """
        entry = self.tools.get(tool_name)
        if entry is None:
            raise ToolError(
                f"tool {tool_name!r}: has no map to 1..5 in {self.origin!r}; fit one with `python -m program.calibrate`"
            )
        if not math.isfinite(raw):
            raise ToolError(f"tool {tool_name!r}: raw value {raw} cannot be scored; use another tool")
        return entry.score(raw, category)

    def knows(self, tool_name: str) -> bool:
        """Return whether the tool's raw values become scores."""
        return tool_name in self.tools

    def precisions(self, readings: Sequence[tuple[str, str | None]]) -> list[float | None]:
        """Return what each reading (tool, distortion category) of one image adds, as 1 / variance on 1..5.

        The figures add up to the precision of the combination of scores with the least error variance: weights
        w = argmin w' C w with sum(w) = 1, w >= 0 (Bates and Granger 1969), where C are the tools' error covariances.
        A reading that the others make superfluous, or of a tool that knows nothing, adds 0; one of a tool without a
        map is None.
        """
        entries = [self.tools.get(tool) for tool, _ in readings]
        errors = [e.error(category) if e else None for e, (_, category) in zip(entries, readings, strict=True)]
        usable = [i for i, error in enumerate(errors) if error is not None and error.precision > 0]
        shares: list[float | None] = [None if error is None else 0.0 for error in errors]
        if not usable:
            return shares
        chosen = [error for i in usable if (error := errors[i]) is not None]
        rmse = np.array([max(error.rmse, LEAST_RMSE) for error in chosen])
        together = np.array([[self._correlation(readings[i][0], readings[j][0]) for j in usable] for i in usable])
        weights, variance = least_variance(together * np.outer(rmse, rmse))
        total = float(weights @ np.array([error.precision_of(variance) for error in chosen]))
        for i, weight in zip(usable, weights, strict=True):
            shares[i] = round(float(weight) * total, 6)
        return shares

    def _correlation(self, one: str, other: str) -> float:
        if one == other:
            return 1.0
        known = self.tools[one].correlations.get(other)
        return self.tools[other].correlations.get(one, ASSUMED_CORRELATION) if known is None else known

    def to_json(self) -> str:
        """Return the file's text; `load` gives back equal maps."""
        return (
            _File(sources=dict(self.sources), tools=dict(self.tools)).model_dump_json(indent=1, exclude_none=True)
            + "\n"
        )

    def updated(self, tools: Mapping[str, ToolCalibration], sources: Mapping[str, Provenance]) -> "Calibration":
        """Return this calibration with these maps in place of their namesakes; sources no map rests on are dropped."""
        merged = {**self.tools, **tools}
        used = {source for entry in merged.values() for source in entry.sources}
        sources = {name: kept for name, kept in {**self.sources, **sources}.items() if name in used}
        return replace(self, sources=sources, tools=merged)


class _File(Stored):
    schema_version: Literal[2] = 2
    sources: dict[str, Provenance]
    tools: dict[str, ToolCalibration]

    @model_validator(mode="after")
    def _sourced(self) -> "_File":
        missing = {source for entry in self.tools.values() for source in entry.sources} - set(self.sources)
        if missing:
            raise ValueError(f"no source {min(missing)!r}")
        return self
