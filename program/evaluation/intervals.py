"""95 % intervals for the metrics, and for the difference between two programs on the same samples.

| samples | method |
|---|---|
| each its own group | percentile bootstrap over samples; accuracy: Wilson's score interval |
| G >= 8 shared groups | delete-one-group jackknife, t(G - 1), correlations on Fisher's z |
| G < 8 shared groups | as if each were its own group, and labelled descriptive |

Everything is seeded: the same input gives the same interval. docs/figures.md says how often they cover the truth.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, field_validator
from scipy import special

from program.common.errors import InputError
from program.evaluation.metric_table import METRICS, Metric, bootstrap
from program.evaluation.metrics import Values

__all__ = ("FEW", "MIN_GROUPS", "Figure", "interval", "paired_difference", "wilson")

CONFIDENCE = 0.95

FEW = 10
"""Of fewer samples an interval is as much chance as its figure: three in order have an SRCC of 1."""

MIN_GROUPS = 8
"""Fewer shared groups than this say too little about their spread to build an interval on."""

_MAX_BLOCKS = 200
"""More groups than this are merged (whole) into this many blocks before the jackknife: same width, less work."""

_NONE = "no interval: too few samples, or constant ones"
_ALIKE, _NO_WIDTH = "no interval: of so few samples all that are drawn agree, which bounds nothing", 1e-12

_RESAMPLES, _SLOW_RESAMPLES = 2000, 500
"""The second of metrics computed resample by resample: so many place an end within a tenth of the interval's width."""

_Array = NDArray[np.float64]


class Figure(BaseModel):
    """One number with its 95 % interval, how it was computed and on how much."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float | None
    """The metric (or difference); None where undefined, as for constant scores or no samples."""
    low: float | None
    high: float | None
    """The interval's ends; None where the samples allow none."""
    n: int
    """Samples used."""
    asked: int | None = None
    """Samples that should have been: those that failed make the difference. None where that was not counted."""
    groups: int
    """Distinct groups (photographs) among them."""
    method: str
    reason: str | None = None
    """Why there is no value; None where there is one."""

    @field_validator("value", "low", "high", mode="before")
    @classmethod
    def _nan_is_none(cls, value: object) -> object:
        # JSON has no nan, and None survives a round trip.
        return None if isinstance(value, float) and not np.isfinite(value) else value

    def of(self, asked: int) -> "Figure":
        """Return the figure with the number of samples that were asked."""
        return self.model_copy(update={"asked": asked})

    @property
    def descriptive(self) -> bool:
        """Whether the interval speaks of these photographs only, not of new ones."""
        return "descriptive" in self.method

    @property
    def sign(self) -> Literal[1, 0, -1]:
        """1 where the whole interval lies above 0, -1 where it lies below; 0 where it holds 0, or there is none."""
        if self.low is None or self.high is None:
            return 0
        return 1 if self.low > 0 else -1 if self.high < 0 else 0

    def value_text(self, sign: str = "") -> str:
        """Return the value with three decimals, or "undefined"; with `sign` "+" a plus stands before it."""
        return "undefined" if self.value is None else f"{self.value:{sign}.3f}"

    def ends_text(self, sign: str = "") -> str:
        """Return the interval in brackets; empty where there is none."""
        if self.low is None or self.high is None:
            return ""
        return f"[{self.low:{sign}.3f}, {self.high:{sign}.3f}]"

    def __str__(self) -> str:
        why = f", {self.reason}" if self.reason else ""
        return f"{self.value_text()} {self.ends_text() or f'(n={self.n}{why})'}"


def interval(
    metric: str,
    truth: Values,
    predicted: Values,
    groups: Sequence[Hashable] | None = None,
    *,
    seed: int = 0,
) -> Figure:
    """Return `metric` with its 95 % interval by the rule of this module's table.

    `metric` is its name in the table; `groups[i]` names the content of sample i (None: each its own). Raises InputError
    as the metrics do.
    Source: Efron & Tibshirani 1993 (bootstrap, jackknife); Fisher 1921 (z); Wilson 1927.
    """
    entry = METRICS[metric]
    why = entry.why_not(truth, predicted)
    value = np.nan if why else entry(truth, predicted)
    plan = _plan(entry, groups, len(truth), seed)
    if plan.size < 2 or np.isnan(value):
        return plan.figure(value, np.nan, np.nan, _NONE, why)
    if entry.scale == "wilson" and (plan.resample or value in (0.0, 1.0)):
        # Resampling understates the spread of a share near 0 or 1 (0.97 of 30: covers 59 %, Wilson's 95 %).
        # Where answers share photographs and all are alike, a photograph counts as one answer.
        low, high = wilson(value, plan.size if plan.resample else plan.groups)
        method = f"Wilson score interval over {plan.unit if plan.resample else 'photographs'}{plan.note}"
    else:
        fisher = entry.scale == "fisher" and not plan.resample
        (varied,) = _varied(entry, truth, (predicted,), plan, seed)
        if plan.resample and entry.inflated:
            varied = varied - (np.nanmean(varied) - value)
        low, high = _percentiles(varied) if plan.resample else _jackknife(value, varied, fisher=fisher)
        method = plan.method + (" on Fisher's z" if fisher else "") + plan.note
    method += entry.note(truth, predicted) if entry.note else ""
    low, high = np.clip([low, high], *entry.bounds)
    # Of three samples a resample is mostly of two, whose coefficients are 1 or -1.
    if plan.size < FEW and (high - low < _NO_WIDTH or (entry.varied and plan.size < 4)):
        return plan.figure(value, np.nan, np.nan, _ALIKE)
    return plan.figure(value, low, high, method)


def paired_difference(
    metric: str,
    truth: Values,
    before: Values,
    after: Values,
    groups: Sequence[Hashable] | None = None,
    *,
    seed: int = 0,
) -> Figure:
    """Return `metric(after) - metric(before)` on the same samples with its paired 95 % interval.

    Both programs see the same resamples (or left-out groups), so what the samples share cancels out.
    """
    entry = METRICS[metric]
    why = entry.why_not(truth, before) or entry.why_not(truth, after)
    value = np.nan if why else entry(truth, after) - entry(truth, before)
    plan = _plan(entry, groups, len(truth), seed)
    if plan.size < 2 or np.isnan(value):
        return plan.figure(value, np.nan, np.nan, _NONE, why)
    with_before, with_after = _varied(entry, truth, (before, after), plan, seed)
    change = with_after - with_before
    low, high = _percentiles(change) if plan.resample else _jackknife(value, change)
    return plan.figure(value, low, high, f"paired {plan.method}{plan.note}")


def wilson(share: float, n: float) -> tuple[float, float]:
    """Return Wilson's 95 % score interval for a share of n independent answers.

    Unlike resampling it stays honest when nearly all answers are right. Source: Wilson 1927, JASA 22.
    """
    z = float(special.ndtri((1 + CONFIDENCE) / 2))
    centre, spread = share + z**2 / (2 * n), z * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return float((centre - spread) / (1 + z**2 / n)), float((centre + spread) / (1 + z**2 / n))


@dataclass(frozen=True)
class _Plan:
    """Which samples move together, and whether they are resampled or left out block by block."""

    size: int
    groups: int
    resample: bool
    note: str
    unit: str
    blocks: NDArray[np.intp]

    @property
    def method(self) -> str:
        """How the interval is built, in words."""
        return f"{'bootstrap' if self.resample else 'jackknife'} over {self.unit}"

    def figure(self, value: float, low: float, high: float, method: str, why: str = "") -> Figure:
        """Return the figure of these samples; nan where there is no end, and `why` where there is no value."""
        ends = {"low": float(low), "high": float(high)}
        return Figure(value=value, **ends, n=self.size, groups=self.groups, method=method, reason=why or None)


def _plan(metric: Metric, groups: Sequence[Hashable] | None, size: int, seed: int) -> _Plan:
    if groups is not None and len(groups) != size:
        raise InputError(f"groups: {len(groups)} names for {size} samples; give one for each")
    numbers: dict[Hashable, int] = {}
    names = range(size) if groups is None else groups
    codes = np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.intp)
    count = len(numbers)
    note, unit, resample = "", "images", False
    if MIN_GROUPS <= count < size:
        unit = "photographs"
    else:
        if count < size:
            note = f" (descriptive: only {count} photograph{'s' if count != 1 else ''})"
        codes = np.arange(size)
        resample = size <= metric.bootstrap_limit
    units = int(codes.max(initial=-1)) + 1
    if not resample and units > _MAX_BLOCKS:
        codes = (np.random.default_rng(seed).permutation(units) % _MAX_BLOCKS)[codes]
        unit = f"{_MAX_BLOCKS} blocks of {unit}"
    return _Plan(size, count, resample, note, unit, codes)


def _varied(metric: Metric, truth: Values, predictions: Sequence[Values], plan: _Plan, seed: int) -> _Array:
    """Return the metric of each prediction, a row each, over the same resamples or without each block in turn."""
    if plan.resample:
        draws = _RESAMPLES if metric.closed_form is not None else _SLOW_RESAMPLES
        return bootstrap([metric.resampler(truth, predicted) for predicted in predictions], plan.size, seed, draws)
    x, kept = np.asarray(truth), [plan.blocks != block for block in range(int(plan.blocks.max()) + 1)]
    return np.array([[metric(x[keep], y[keep]) for keep in kept] for y in map(np.asarray, predictions)])


def _percentiles(values: _Array) -> tuple[float, float]:
    defined = values[np.isfinite(values)]  # a resample of one value repeated has no correlation
    if defined.size < 2:
        return float("nan"), float("nan")
    low, high = np.quantile(defined, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _jackknife(value: float, left_out: _Array, *, fisher: bool = False) -> tuple[float, float]:
    """Return `value -+ t(G - 1) sqrt((G - 1)/G sum((v_g - mean v)^2))`, on `atanh` when `fisher`."""
    fisher = fisher and bool(np.all(np.abs(np.append(left_out, value)) < 1))  # a perfect one has no z
    centre, values = (np.arctanh(value), np.arctanh(left_out)) if fisher else (value, left_out)
    count = values.size
    error = np.sqrt((count - 1) / count * np.sum((values - values.mean()) ** 2))
    ends = centre + np.array([-1.0, 1.0]) * special.stdtrit(count - 1, (1 + CONFIDENCE) / 2) * error
    low, high = np.tanh(ends) if fisher else ends
    return float(low), float(high)
