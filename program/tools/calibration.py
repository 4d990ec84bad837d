"""Raw tool values as scores 1..5: monotone maps fitted on human scores, with where they come from.

A map is the regression of the human score on the raw value, so it also says how much a tool knows: a tool that
tells little gets scores close to the mean, and a mean over tools is not dragged about by it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from program.errors import SettingsError, ToolError
from signatures.schemas import DistortionCategory, category_of

__all__ = (
    "PAPER",
    "Calibration",
    "CategoryMap",
    "MapParameters",
    "MonotoneMap",
    "Provenance",
    "Residual",
    "ToolCalibration",
    "apply_map",
    "least_variance",
    "mixed",
)  # fmt: skip

LOWEST, HIGHEST = 1.0, 5.0
_FARTHEST = 1e6
"""Standardised raw values are cut here, so that no finite raw value overflows."""
RAMP_QUANTILE = 0.95
"""Where the rise to the identity's 5 begins, among the readings of images that differ from their reference."""
ISOTONIC_GAIN = 0.15
"""The logistic is kept unless an isotonic fit's residual is smaller by this much (of 4, the scale's length): steps
follow the levels of generated distortions, and tie what a tool tells apart."""
CATEGORY_WEIGHT = 0.5
"""Weight of the map fitted on one distortion category against the tool's general map. The general one (0) shifts
categories against each other, the category's own (1) rests on few kinds of distortion. Tool chosen by category,
SRCC at 0, 0.5, 1: 0.838, 0.889, 0.904 with each quickstart train photograph left out in turn (the same distortions
in both parts, so 1 is flattered)."""
FEWEST = 8
"""Fewer pairs than this fit nothing."""
ASSUMED_CORRELATION = 0.8
"""Of the errors of two tools that were not fitted on the same images; measured ones are 0.3 to 0.8."""
PAPER = "paper"
"""In the place of a file: the maps that the paper prints."""
LEAST_RMSE = 0.1
"""No tool is surer than this: people's own mean scores are not."""
IDENTITY_SLACK = 1e-5
"""A raw value this close to the identity's (times it, where that is above 1) is it: piq's HaarPSI is up to 6e-6 off."""


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MapParameters(_Stored):
    """A fitted map in numbers; z = sign (raw - centre) / scale."""

    kind: Literal["logistic", "isotonic"]
    sign: Literal[-1, 1]
    centre: FiniteFloat
    scale: FiniteFloat = Field(gt=0)
    logistic: tuple[FiniteFloat, FiniteFloat, FiniteFloat, FiniteFloat, FiniteFloat] | None = None
    """a, b, s, m, c of a + b / (1 + exp(-s (z - m))) + c z, with b, s, c >= 0."""
    knots: tuple[tuple[FiniteFloat, FiniteFloat], ...] | None = None
    """Isotonic: (z, score), linear between them."""
    ramp: tuple[FiniteFloat, FiniteFloat] | None = None
    """FR: the z where the rise to 5 begins and the z of the identity."""

    @model_validator(mode="after")
    def _monotone(self) -> "MapParameters":
        if self.kind == "logistic" and (
            self.logistic is None or min(self.logistic[1], self.logistic[2], self.logistic[4]) < 0
        ):
            raise ValueError("a logistic map needs its five numbers, with b, s and c not below 0")
        if self.kind == "isotonic":
            z, scores = np.asarray(self.knots or [], float).reshape(-1, 2).T
            if len(z) < 2 or np.any(np.diff(z) <= 0) or np.any(np.diff(scores) < 0):
                raise ValueError("an isotonic map needs two or more rising knots")
        if self.ramp is not None and not self.ramp[0] < self.ramp[1]:
            raise ValueError("the ramp must end above its start")
        return self


class MonotoneMap:
    """A monotone map from a tool's raw value to a score 1..5, fitted by least squares.

    The map is the 5-parameter logistic of VQEG (a logistic plus a line) with slopes bound to the tool's direction,
    or an isotonic regression where that fits clearly better. Full reference: the identity maps to 5. The fit leaves
    identities out; from the 95th percentile of the other readings a straight rise to 5 is laid over the map where it
    is higher, so nine tenths of the range stay as fitted.

    >>> raw = np.linspace(20, 45, 40)
    >>> fitted = MonotoneMap(identity=80.0).fit(raw, 1 + 4 / (1 + np.exp(-(raw - 32) / 3)))
    >>> np.round(fitted.predict([-1e6, 32, 80]), 2).tolist()
    [1.0, 3.0, 5.0]
    """

    def __init__(self, *, higher_is_better: bool = True, identity: float | None = None) -> None:
        self.higher_is_better = higher_is_better
        self.identity = identity

    def fit(self, raw: ArrayLike, human: ArrayLike) -> "MonotoneMap":
        """Fit on raw values and human scores (1..5, higher is better), both of shape (n,).

        Raises ValueError for fewer than 8 usable pairs, values that are not finite, or raw values all equal.
        """
        values, scores = np.asarray(raw, float), np.asarray(human, float)
        if values.shape != scores.shape or values.ndim != 1 or not np.all(np.isfinite([values, scores])):
            raise ValueError("calibration: raw values and human scores must be finite and of equal number")
        if self.identity is not None:
            differs = np.abs(values - self.identity) > IDENTITY_SLACK * max(1.0, abs(self.identity))
            values, scores = values[differs], scores[differs]
        if len(values) < FEWEST or np.ptp(values) == 0:
            raise ValueError(f"calibration: {len(values)} usable readings, {FEWEST} that are not all equal are needed")
        sign: Literal[-1, 1] = 1 if self.higher_is_better else -1
        centre = float(np.median(values))
        spread = float(np.subtract(*np.percentile(values, [84, 16]))) / 2
        scale = spread or float(np.std(values))
        z = sign * (values - centre) / scale
        kind, numbers = _fit_either(z, scores)
        ramp = None
        if self.identity is not None:
            end = sign * (self.identity - centre) / scale
            start = min(float(np.quantile(z, RAMP_QUANTILE)), end - 1e-6)
            ramp = (start, end)
        self.parameters_ = MapParameters(kind=kind, sign=sign, centre=centre, scale=scale, ramp=ramp, **numbers)
        self.n_ = len(values)
        self.rmse_ = float(np.sqrt(np.mean((self.predict(values) - scores) ** 2)))
        return self

    def predict(self, raw: ArrayLike) -> NDArray[np.float64]:
        """Return scores in 1..5 for finite raw values of any shape; rising in the tool's direction."""
        return apply_map(self.parameters_, raw)


def apply_map(parameters: MapParameters, raw: ArrayLike) -> NDArray[np.float64]:
    """Return the scores of a stored map, in 1..5."""
    # Cut before the division: a huge value over a small scale would overflow.
    reach = _FARTHEST * parameters.scale
    values = np.clip(np.asarray(raw, float), parameters.centre - reach, parameters.centre + reach)
    z = parameters.sign * (values - parameters.centre) / parameters.scale
    scores = _base(parameters, z)
    if parameters.ramp is not None:
        start, end = parameters.ramp
        foot = float(np.clip(_base(parameters, np.asarray(start)), LOWEST, HIGHEST))
        share = np.clip((z - start) / (end - start), 0, 1)
        scores = np.where(share > 0, np.maximum(scores, foot + (HIGHEST - foot) * share), scores)
        # The identity itself, whatever float32 made of it.
        identity = parameters.centre + parameters.sign * end * parameters.scale
        slack = IDENTITY_SLACK * max(1.0, abs(identity)) / parameters.scale
        scores = np.where(z >= end - slack, HIGHEST, scores)
    return np.clip(scores, LOWEST, HIGHEST)


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


def _base(parameters: MapParameters, z: NDArray[np.float64]) -> NDArray[np.float64]:
    if parameters.logistic is not None:
        return _logistic(np.asarray(parameters.logistic), z)
    knots = np.asarray(parameters.knots, float)
    value: NDArray[np.float64] = np.interp(z, knots[:, 0], knots[:, 1])
    return value


def _logistic(theta: NDArray[np.float64], z: NDArray[np.float64]) -> NDArray[np.float64]:
    a, b, s, m, c = theta
    # tanh form of the logistic: finite for any argument.
    value: NDArray[np.float64] = a + b * 0.5 * (1 + np.tanh(np.clip(s * (z - m), -700, 700) / 2)) + c * z
    return value


def _fit_either(
    z: NDArray[np.float64], human: NDArray[np.float64]
) -> tuple[Literal["logistic", "isotonic"], dict[str, Any]]:
    theta = _fit_logistic(z, human)
    knots = _fit_isotonic(z, human)
    if knots is None and theta is None:
        raise ValueError("calibration: the readings do not rise with the human scores in the tool's direction")
    if knots is not None:
        steps = np.interp(z, knots[:, 0], knots[:, 1])
        step_error = _rms(steps - human)
        if theta is None or _rms(np.clip(_logistic(theta, z), LOWEST, HIGHEST) - human) - step_error > ISOTONIC_GAIN:
            return "isotonic", {"knots": tuple((float(x), float(y)) for x, y in knots)}
    assert theta is not None  # noqa: S101 - told to the type checker; one of the two exists
    return "logistic", {"logistic": tuple(float(v) for v in theta)}


def _fit_logistic(z: NDArray[np.float64], human: NDArray[np.float64]) -> NDArray[np.float64] | None:
    from scipy.optimize import least_squares

    low, high = np.percentile(human, [5, 95])
    bounds = ([-50, 0, 0, -50, 0], [50, 50, 50, 50, 50])
    best = None
    for slope in (0.7, 3.0):
        for middle in (-0.5, 0.5):
            start = [low, max(high - low, 0.1), slope, middle, 0.01]
            fit = least_squares(lambda t: _logistic(t, z) - human, start, bounds=bounds, max_nfev=400)
            if fit.success and np.all(np.isfinite(fit.x)) and (best is None or fit.cost < best.cost):
                best = fit
    return None if best is None else np.asarray(best.x, float)


def _fit_isotonic(z: NDArray[np.float64], human: NDArray[np.float64]) -> NDArray[np.float64] | None:
    from sklearn.isotonic import IsotonicRegression

    fit = IsotonicRegression(y_min=LOWEST, y_max=HIGHEST, out_of_bounds="clip").fit(z, human)
    knots = np.column_stack([fit.X_thresholds_, fit.y_thresholds_])
    rising = np.concatenate([[True], np.diff(knots[:, 0]) > 0])
    return knots[rising] if rising.sum() >= 2 else None


def _rms(residual: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(residual**2)))


class Residual(_Stored):
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


class CategoryMap(_Stored):
    """A tool's map for images with one category of distortion."""

    map: MapParameters
    residual: Residual
    """Of the score for that category, where the tool's general map has its share."""


class ToolCalibration(_Stored):
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


class Provenance(_Stored):
    """What maps were fitted on."""

    dataset: str
    manifest_sha256: str
    split: str
    samples: int = Field(ge=1)
    groups: tuple[str, ...] = ()
    """The photographs (content groups)."""
    date: str
    """Day of the fit, ISO 8601."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The maps of tools by display name, and the data behind them by source name."""

    sources: Mapping[str, Provenance]
    tools: Mapping[str, ToolCalibration]
    origin: str = "memory"

    @classmethod
    def load(cls, path: Path | None = None) -> "Calibration":
        """Read a calibration file (the shipped one by default; `paper` is the paper's own).

        Raises SettingsError naming the file and the key.
        """
        if path is not None and str(path) == PAPER:
            from program.tools.paper import PaperCalibration

            return PaperCalibration()
        origin = str(path) if path else "configs/calibration.json"
        try:
            text = path.read_text("utf-8") if path else files("configs").joinpath("calibration.json").read_text("utf-8")
            stored = _File.model_validate_json(text)
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"calibration file {origin!r}: cannot be read ({error}); make it with `python -m program.calibrate`"
            ) from error
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"])) or "the file"
            fault = f"{key}: {' '.join(first['msg'].split()).lower()}"
            raise SettingsError(
                f"calibration file {origin!r}: {fault}; make it anew with `python -m program.calibrate`"
            ) from error
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


class _File(_Stored):
    schema_version: Literal[2] = 2
    sources: dict[str, Provenance]
    tools: dict[str, ToolCalibration]

    @model_validator(mode="after")
    def _sourced(self) -> "_File":
        missing = {source for entry in self.tools.values() for source in entry.sources} - set(self.sources)
        if missing:
            raise ValueError(f"no source {min(missing)!r}")
        return self
