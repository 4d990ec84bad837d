"""Files of figures by tool: how strong it is, and maps of raw values to scores 1..5.

A map is the regression of the human score on the raw value, so it also says how much a tool knows:
a tool that tells little gets scores close to the mean, and a mean over tools is not dragged about
by it.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, FiniteFloat, model_validator

from program.common.backends import Frozen
from program.common.errors import ToolError
from program.common.files import CONFIGS
from program.common.settings import ConfigFile
from signatures.schemas import DistortionCategory, category_of

LOWEST, HIGHEST = 1.0, 5.0
PAPER = "paper"
"""In the place of a calibration file: the maps that the AgenticIQA paper prints."""
_FARTHEST = 1e6
"""Standardised raw values are cut here, so that no finite raw value overflows."""
IDENTITY_SLACK = 1e-5
"""A raw value this close to the identity's (times it, where that is above 1) is it: piq's HaarPSI
is up to 6e-6 off."""
CATEGORY_WEIGHT = 0.5
"""Weight of the map fitted on one distortion category against the tool's general map. The general
one (0) shifts categories against each other, the category's own (1) rests on few kinds of
distortion. Tool chosen by category, SRCC at 0, 0.5, 1: 0.838, 0.889, 0.904 with each quickstart
train photograph left out in turn (the same distortions in both parts, so 1 is flattered)."""
ASSUMED_CORRELATION = 0.8
"""Of the errors of two tools that were not fitted on the same images; measured ones are 0.3 to
0.8."""
LEAST_RMSE = 0.1
"""No tool is surer than this: people's own mean scores are not."""
FEWEST = 8
"""Fewer images of a category in one dataset say nothing of it."""

Agreement: TypeAlias = Annotated[float, Field(ge=0, le=1)]


class Provenance(Frozen):
    """What figures rest on."""

    dataset: str
    manifest_sha256: str
    split: str
    samples: int = Field(ge=1)
    groups: tuple[str, ...] = ()
    """The photographs (content groups)."""
    date: str
    """Day of the fit, ISO 8601."""


class Figures(ConfigFile):
    """Figures by tool, and the data behind them by source name."""

    schema_version: int = 1
    sources: dict[str, Provenance] = Field(default_factory=dict)
    tools: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _sourced(self) -> Self:
        missing = {source for entry in self.tools.values() for source in entry.sources} - set(self.sources)
        if missing:
            raise ValueError(f"no source {min(missing)!r}")
        return self

    def to_json(self) -> str:
        """Return the text of a file that `load` reads as equal figures."""
        return self.model_dump_json(indent=1, exclude_none=True) + "\n"

    def merge(self, tools: Mapping[str, Any], sources: Mapping[str, Provenance]) -> Self:
        """Return the file with these figures in their namesakes' places."""
        merged = {**self.tools, **tools}
        used = {source for entry in merged.values() for source in entry.sources}
        rest = {name: source for name, source in {**self.sources, **sources}.items() if name in used}
        return self.model_copy(update={"sources": rest, "tools": merged})


class MeasuredStrength(Frozen):
    """Mean |SRCC| over the datasets that have the category, and the images it rests on."""

    srcc: Agreement
    n: int = Field(ge=FEWEST)


class Strength(Frozen):
    """What one tool was measured to be good at."""

    library: str
    """With its version, as "pyiqa 0.1.16"."""
    sources: tuple[str, ...]
    """Keys of the file's sources."""
    general: MeasuredStrength
    """All distortions together."""
    by_category: dict[DistortionCategory, MeasuredStrength] = Field(default_factory=dict)


class Strengths(Figures):
    """|SRCC| of tools with human scores, by distortion category."""

    FILE: ClassVar[str] = "strengths.json"
    schema_version: Literal[1] = 1
    tools: dict[str, Strength] = Field(default_factory=dict)


class MapParameters(Frozen):
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


def apply_map(parameters: MapParameters, raw: ArrayLike) -> NDArray[np.float64]:
    """Return the scores of a stored map, in 1..5, for finite raw values of any shape."""
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


def is_identity(raw: ArrayLike, identity: float | None) -> NDArray[np.bool_]:
    """Return which raw values are those of an image equal to its reference."""
    if identity is None:
        return np.zeros(np.shape(raw), bool)
    return np.asarray(np.abs(np.subtract(raw, identity)) <= IDENTITY_SLACK * max(1.0, abs(identity)))


def _base(parameters: MapParameters, z: NDArray[np.float64]) -> NDArray[np.float64]:
    if parameters.logistic is not None:
        return logistic(np.asarray(parameters.logistic), z)
    knots = np.asarray(parameters.knots, float)
    return np.asarray(np.interp(z, knots[:, 0], knots[:, 1]))


def logistic(theta: NDArray[np.float64], z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a + b / (1 + exp(-s (z - m))) + c z for theta = (a, b, s, m, c)."""
    a, b, s, m, c = theta
    # tanh form of the logistic: finite for any argument.
    return np.asarray(a + b * 0.5 * (1 + np.tanh(np.clip(s * (z - m), -700, 700) / 2)) + c * z)


def mix(own: Any, general: Any) -> Any:
    """Return the score for a category: its own map's and the general map's, in fixed shares."""
    return CATEGORY_WEIGHT * own + (1 - CATEGORY_WEIGHT) * general


class Residual(Frozen):
    """How far a tool's scores lie from people's, and how far those lie from their mean."""

    n: int = Field(ge=1)
    rmse: FiniteFloat = Field(ge=0)
    """Root mean square of score - human score."""
    spread: FiniteFloat = Field(ge=0)
    """Standard deviation of the human scores: the residual of a tool that knows nothing."""
    label_sd: FiniteFloat = Field(0.0, ge=0)
    """Where the human score is a mean over other images (the quickstart's): how far one image lies
    from it."""

    @property
    def precision(self) -> float:
        """What a reading adds to knowing nothing of the image: 1 / variance, less that before.

        >>> Residual(n=100, rmse=0.5, spread=1.0).precision, Residual(n=100, rmse=1.0, spread=1.0).precision
        (3.0, 0.0)
        """
        return self.precision_of(max(self.rmse, LEAST_RMSE) ** 2)

    def precision_of(self, variance: float) -> float:
        """Return the same for another error variance, such as a mean's."""
        apart = self.label_sd**2
        if self.spread > 0:
            return max(0.0, 1 / (variance + apart) - 1 / (self.spread**2 + apart))
        return 0.0


class BeliefError(NamedTuple):
    """How far a model's belief lies from people's scores, and how that goes with the errors of tools."""

    rmse: float
    correlation: float
    by_tool: Mapping[str, float] = {}
    """The correlation with tools that have another one, by name."""

    def with_tool(self, tool: str) -> float:
        """Return the correlation with a tool's error."""
        return self.by_tool.get(tool, self.correlation)


class CategoryMap(Frozen):
    """A tool's map for images with one category of distortion."""

    map: MapParameters
    residual: Residual
    """Of the score for that category, where the tool's general map has its share."""


class ToolCalibration(Frozen):
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
    """On photographs as they were taken, whose distortions nobody knows, where it was fitted on
    some."""
    srcc: FiniteFloat
    """Spearman correlation of raw values (in the tool's direction) with the human scores."""
    raw_range: tuple[FiniteFloat, FiniteFloat]
    """Lowest and highest raw value seen in the fit."""
    correlations: dict[str, float] = Field(default_factory=dict)
    """How its errors go with those of other tools on the same images: sum(e f) / sqrt(sum(e^2)
    sum(f^2)), by tool."""
    map: MapParameters
    """Over all distortions."""
    by_category: dict[DistortionCategory, CategoryMap] = Field(default_factory=dict)

    def score(self, raw: float, category: str | None = None) -> float:
        """Return the score 1..5 of a finite raw value, of an image whose distortion is of this category (if known)."""
        general, own = float(apply_map(self.map, raw)), self._own(category)
        if own is None:
            return general
        return float(mix(float(apply_map(own.map, raw)), general))

    def error(self, category: str | None = None) -> Residual:
        """Return the residual that counts for a distortion category, if one is known.

        Without a category, a tool that was also fitted on photographs as they were taken has its
        residual on those. With one it has the larger of that and the category's, because the
        category is a guess. Against the larger one throughout, SRCC .806 (before .769) on CLIVE's
        validation photographs, .680 (.672) on BIQ2021's, .903 (.888) on the quickstart's.
        """
        own = self._own(category)
        if own is None:
            return self.authentic or self.residual
        return min(own.residual, self.authentic or own.residual, key=lambda each: each.precision)

    def _own(self, category: str | None) -> CategoryMap | None:
        known = category_of(category) if category else None
        if known:
            return self.by_category.get(known)
        return None


class Calibration(Figures):
    """The maps of tools by display name; without maps raw values come, and no scores."""

    FILE: ClassVar[str] = "calibration.json"
    MEND: ClassVar[str] = "make it again with `python -m program.calibrate`"
    schema_version: Literal[2] = 2
    tools: dict[str, ToolCalibration] = Field(default_factory=dict)

    def score(self, tool_name: str, raw: float, category: str | None = None) -> float:
        """Return the score 1..5 of a raw value; `category` is the distortion the tool was taken for, if any.

        Rising in the tool's direction, 5 for an FR tool's identity. Raises ToolError for a tool
        without a map or a raw value that is not finite.
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

    def precisions(
        self, readings: Sequence[tuple[str, str | None]], belief: BeliefError | None = None
    ) -> list[float | None]:
        """Return what each reading (tool, category) of one image adds: 1 / variance on 1..5.

        The figures add up to the precision of the combination of scores with the least error
        variance: weights w = argmin w' C w with sum(w) = 1, w >= 0 (Bates and Granger 1969), where
        C are the tools' error covariances. Beside a `belief`, which is then a part of the combination,
        they are w / (w' C w); as its error is that over all distortions, the tools' are, too. A reading
        that the others make superfluous, or of a tool that knows nothing, adds 0; one of a tool without
        a map is None.
        """
        errors = [self.tools[tool].error(category) if tool in self.tools else None for tool, category in readings]
        shares: list[float | None] = [None if error is None else 0.0 for error in errors]
        usable = {i: error for i, error in enumerate(errors) if error is not None and error.precision > 0}
        if not usable:
            return shares
        read = [readings[i] for i in usable]
        if belief is not None:
            weights, variance = least_variance(self._covariance([(tool, None) for tool, _ in read], belief))
            weights, scale = weights[1:], 1 / variance
        else:
            weights, variance = least_variance(self._covariance(read))
            scale = float(weights @ np.array([error.precision_of(variance) for error in usable.values()]))
        for i, weight in zip(usable, weights, strict=True):
            shares[i] = round(float(weight) * scale, 6)
        return shares

    def expected_error(self, tools: Sequence[str], belief: BeliefError | None = None) -> float:
        """Return the root mean squared error of tools' scores, and of a belief beside them, at their best weights."""
        _, variance = least_variance(self._covariance([(tool, None) for tool in tools], belief))
        return math.sqrt(variance)

    def _covariance(
        self, readings: Sequence[tuple[str, str | None]], belief: BeliefError | None = None
    ) -> NDArray[np.float64]:
        """Return that of the readings' errors; a belief's goes first."""
        tools = [tool for tool, _ in readings]
        rmse = [max(self.tools[tool].error(category).rmse, LEAST_RMSE) for tool, category in readings]
        together = np.array([[self._correlation(one, other) for other in tools] for one in tools])
        if belief is not None:
            beside = np.array([belief.with_tool(tool) for tool in tools])
            together = np.block([[np.ones((1, 1)), beside[None]], [beside[:, None], together]])
            rmse = [belief.rmse, *rmse]
        return np.asarray(together * np.outer(rmse, rmse))

    def _correlation(self, one: str, other: str) -> float:
        if one == other:
            return 1.0
        measured = self.tools[other].correlations.get(one, ASSUMED_CORRELATION)
        return self.tools[one].correlations.get(other, measured)


def least_variance(covariance: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return the weights (sum 1, none negative) of the sum with the least variance, and that.

    `covariance` is n x n with a positive diagonal. Items whose best weight is negative leave, the
    most negative first.

    >>> weights, variance = least_variance(np.array([[1.0, 0.0], [0.0, 3.0]]))
    >>> weights.round(6).tolist(), round(variance, 6)
    ([0.75, 0.25], 0.75)
    """
    # A little independent error on each keeps two equal items apart.
    steady = covariance + 1e-9 * np.diag(np.diag(covariance))
    rest = np.arange(len(covariance))
    while True:
        best = np.linalg.solve(steady[np.ix_(rest, rest)], np.ones(len(rest)))
        if len(rest) == 1 or best.min() >= 0:
            break
        rest = np.delete(rest, int(best.argmin()))
    weights = np.zeros(len(covariance))
    weights[rest] = best / best.sum()
    return weights, float(weights @ covariance @ weights)


@cache
def printed_maps() -> Mapping[str, tuple[float, ...]]:
    """Return b1 .. b5 of the table's rows by tool."""
    tree = yaml.safe_load((CONFIGS / "paper_calibration.yaml").read_text("utf-8"))
    return {name: tuple(float(number) for number in row["b"]) for name, row in tree["tools"].items()}


class PaperCalibration(Calibration):
    """The paper's maps, clipped to 1..5, without categories and reliability."""

    origin: str = "the paper's Table 5"

    def knows(self, tool_name: str) -> bool:
        """Return whether the table has a row for the tool."""
        return tool_name in printed_maps()

    def score(self, tool_name: str, raw: float, category: str | None = None) -> float:
        """Return the printed map's value, clipped to 1..5. Raises ToolError without a row or a finite raw value."""
        row = printed_maps().get(tool_name)
        if row is None:
            raise ToolError(f"tool {tool_name!r}: has no row in {self.origin}; leave tools.calibration unset")
        if not math.isfinite(raw):
            raise ToolError(f"tool {tool_name!r}: raw value {raw} cannot be scored; use another tool")
        b1, b2, b3, b4, b5 = row
        # b1 (1/2 - 1/(1 + exp(b2 (raw - b3)))) + b4 raw + b5; 1/2 - 1/(1 + e^x) is tanh(x / 2) / 2: no overflow.
        slope = math.tanh(max(-1e4, min(1e4, b2 * (raw - b3))) / 2) / 2
        return min(HIGHEST, max(LOWEST, b1 * slope + b4 * raw + b5))
