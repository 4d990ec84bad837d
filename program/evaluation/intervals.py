"""The one table of metrics (a new figure takes one entry), and 95 % intervals of them and of differences."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import field_validator
from scipy import special

from program.common.backends import Frozen
from program.common.errors import InputError
from program.common.text import counted
from program.evaluation import metrics
from program.evaluation.metrics import PARAMETERS, Resampler, Values, fit_logistic, paired_arrays

_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Metric:
    """One agreement figure. Call it with truth and prediction."""

    title: str
    """What people read, with an arrow towards the better end."""
    function: Callable[..., float]
    """Takes truth and prediction; nan where undefined."""
    needs: Literal["scores", "answers", "opinions", "intervals", "preferences"] = "scores"
    """What truth and prediction are: human and predicted score; true and chosen letter; True and whether the score lies
    outside the opinions; True and whether the human score lies in the program's interval; differences of both in pairs
    (see `preferences`)."""
    direction: Literal[1, 0, -1] = 1
    """1: higher is better, -1: lower is better, 0: neither."""
    varied: bool = False
    """Whether it is a matter of differences: of two samples, or where all are the same, it says nothing."""
    curve: int = 0
    """The parameters of the curve that is fitted first."""
    bounds: tuple[float, float] = (-np.inf, np.inf)
    """The values that are possible; no interval reaches beyond them."""
    scale: Literal["plain", "fisher", "wilson"] = "plain"
    """What the interval is built on: the values, Fisher's z of correlations, or Wilson's formula for shares."""
    closed_form: Callable[[Values, Values], Resampler] | None = None
    """How many resamples are computed at once; None computes one after the other, 500 at most."""
    bootstrap_limit: int = 20_000
    """Larger sets use the jackknife over blocks of samples: same width, far less work."""
    note: Callable[[Values, Values], str] | None = None
    """What else is to be said of how the figure came about."""
    headline: bool = False
    """Whether it stands at the record's top level, else among the details. Headlines are compared between programs and
    worked out for every baseline, and need scores, answers or preferences."""
    word: str = ""
    """What it says in a word or two, where two programs are compared in a terminal; those without one are not there."""
    card: str = ""
    """A headline's meaning in two words. Those that have one get a card on the page and a column beside baselines."""
    parts: tuple[Literal["by_distortion", "by_level", "by_question_type"], ...] = ()
    """For which parts of the samples it is worked out too."""

    def __call__(self, truth: Values, predicted: Values) -> float:
        """Return the metric's value; raises InputError for input that cannot be used."""
        return self.function(truth, predicted)

    def why_not(self, truth: Values, predicted: Values) -> str:
        """Return why these samples say nothing of the metric; empty where they do."""
        needed = 1
        if self.varied:
            needed = max(3, self.curve + 1)
        if len(truth) < needed:
            return f"it takes {counted(needed, 'sample')}, not {len(truth) or 'none'}"
        if not self.varied:
            return ""
        for what, values in zip(("labels", "answers"), paired_arrays("metric", truth, predicted), strict=True):
            differing = len(np.unique(np.round(values, 9)))  # what rounding leaves of a constant is no difference
            if differing == 1:
                return f"all {what} are the same"
            if differing < self.curve:
                return f"{differing} different {what}, the curve has {self.curve} parameters"
        return ""

    @property
    def task(self) -> Literal["scoring", "mcq"]:
        """The samples it is worked out over."""
        return "mcq" if self.needs == "answers" else "scoring"

    def resampler(self, truth: Values, predicted: Values) -> Resampler:
        """Return the function that gives the metric of the samples repeated `counts[b, i]` times, for every b."""
        if self.closed_form is not None:
            return self.closed_form(truth, predicted)
        x, y = np.asarray(truth), np.asarray(predicted)

        def one_by_one(counts: _Array) -> _Array:
            times = counts.astype(np.intp)
            return np.array([self.function(np.repeat(x, row), np.repeat(y, row)) for row in times])

        return one_by_one


def headline(task: str, *, cards: bool = False) -> list[str]:
    """Return the names of a task's headline metrics; with `cards` only those that have a card."""
    return [n for n, m in METRICS.items() if m.headline and m.task == task and (m.card or not cards)]


def _after_logistic(title: str, metric: Callable[..., float], **fields: Any) -> Metric:
    def line_note(truth: Values, predicted: Values) -> str:
        fit = fit_logistic(*paired_arrays("logistic", truth, predicted))
        return "" if fit.converged else "; a line instead of the logistic, which did not converge"

    function = partial(metrics.after_logistic, metric=metric)
    name = f"{title} after {PARAMETERS}-parameter logistic"
    return Metric(name, function, varied=True, curve=PARAMETERS, bootstrap_limit=2000, note=line_note, **fields)


def bootstrap(resamplers: Sequence[Resampler], size: int, seed: int, resamples: int) -> _Array:
    """Return each resampler's values over the same `resamples` random resamples of `size` samples, a row each."""
    rng = np.random.default_rng(seed)
    batch = max(1, min(resamples, 2_000_000 // size))  # keeps a batch's matrices near 16 MB each
    rows = []
    for start in range(0, resamples, batch):
        height = min(batch, resamples - start)
        drawn = rng.integers(size, size=(height, size)) + size * np.arange(height)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=height * size).reshape(height, size).astype(np.float64)
        rows.append(np.stack([resampler(counts) for resampler in resamplers]))
    return np.concatenate(rows, axis=1)


METRICS: dict[str, Metric] = {
    "srcc": Metric(
        "SRCC ↑", metrics.srcc, varied=True, bounds=(-1, 1), scale="fisher", closed_form=metrics.srcc_resampler,
        headline=True, word="order (SRCC)", card="rank agreement", parts=("by_distortion",),
    ),
    "plcc": Metric(
        "PLCC ↑", metrics.plcc, varied=True, bounds=(-1, 1), scale="fisher", closed_form=metrics.plcc_resampler,
        headline=True, card="linear agreement",
    ),
    "krcc": Metric(
        "KRCC ↑", metrics.krcc, varied=True, bounds=(-1, 1), scale="fisher", closed_form=metrics.krcc_resampler,
        bootstrap_limit=2000, headline=True,
    ),
    "rmse": Metric(
        "RMSE ↓", metrics.rmse, direction=-1, bounds=(0, np.inf), closed_form=metrics.rmse_resampler,
        headline=True, word="error (RMSE)", card="points of 1..5", parts=("by_distortion",),
    ),
    "accuracy": Metric(
        "Accuracy ↑", metrics.accuracy, "answers", bounds=(0, 1), scale="wilson", closed_form=metrics.mean_of(np.equal),
        headline=True, word="questions right", card="right answers", parts=("by_question_type",),
    ),
    "preference": Metric(
        "Agrees with people's preferences ↑", metrics.preference, "preferences", bounds=(0, 1), scale="wilson",
        headline=True, word="pairs in order",
    ),
    "plcc_logistic4": _after_logistic("PLCC ↑", metrics.plcc, bounds=(-1, 1), scale="fisher"),
    "rmse_logistic4": _after_logistic("RMSE ↓", metrics.rmse, bounds=(0, np.inf), direction=-1),
    "mae": Metric(
        "MAE ↓", metrics.mae, direction=-1, bounds=(0, np.inf),
        closed_form=metrics.mean_of(lambda x, y: np.abs(np.subtract(y, x))), parts=("by_level",),
    ),
    "bias": Metric(
        "Bias, predicted - label", metrics.bias, direction=0,
        closed_form=metrics.mean_of(lambda x, y: np.subtract(y, x)), parts=("by_distortion", "by_level"),
    ),
    "outlier_ratio": Metric(
        "Outliers past 2 sigma of opinions ↓", metrics.accuracy, "opinions", direction=-1, bounds=(0, 1),
        scale="wilson", closed_form=metrics.mean_of(np.equal),
    ),
    "coverage": Metric(
        "Labels in the interval, 95 % meant", metrics.accuracy, "intervals", direction=0, bounds=(0, 1),
        scale="wilson", closed_form=metrics.mean_of(np.equal),
    ),
}  # fmt: skip
"""Every metric by its name in Python, JSON and MLflow, in the order of the tables."""


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


class Figure(Frozen):
    """One number with its 95 % interval, how it was computed and on how much."""

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
        if self.low > 0:
            return 1
        if self.high < 0:
            return -1
        return 0

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
    metric: str, truth: Values, predicted: Values, groups: Sequence[Hashable] | None = None, *, seed: int = 0
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
    if entry.scale == "wilson" and plan.resample:
        # Resampling understates the spread of a share near 0 or 1 (0.97 of 30: covers 59 %, Wilson's 95 %).
        low, high = wilson(value, plan.size)
        method = f"Wilson score interval over {plan.unit}"
    elif entry.scale == "wilson" and value in (0.0, 1.0):
        # Where answers share photographs and all are alike, a photograph counts as one answer.
        low, high = wilson(value, plan.groups)
        method = "Wilson score interval over photographs"
    else:
        (varied,) = _varied(entry, truth, (predicted,), plan, seed)
        method = plan.method
        if plan.resample:
            low, high = _percentiles(varied)
        elif entry.scale == "fisher":
            low, high = _jackknife(value, varied, fisher=True)
            method += " on Fisher's z"
        else:
            low, high = _jackknife(value, varied)
    method += plan.note
    if entry.note:
        method += entry.note(truth, predicted)
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
            note = f" (descriptive: only {counted(count, 'photograph')})"
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


def _percentiles(values: _Array) -> _Array:
    defined = values[np.isfinite(values)]  # a resample of one value repeated has no correlation
    if defined.size < 2:
        return np.full(2, np.nan)
    return np.quantile(defined, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])


def _jackknife(value: float, left_out: _Array, *, fisher: bool = False) -> _Array:
    """Return `value -+ t(G - 1) sqrt((G - 1)/G sum((v_g - mean v)^2))`, on `atanh` when `fisher`."""
    fisher = fisher and bool(np.all(np.abs(np.append(left_out, value)) < 1))  # a perfect one has no z
    centre, values = (np.arctanh(value), np.arctanh(left_out)) if fisher else (value, left_out)
    count = values.size
    error = np.sqrt((count - 1) / count * np.sum((values - values.mean()) ** 2))
    ends = centre + np.array([-1.0, 1.0]) * special.stdtrit(count - 1, (1 + CONFIDENCE) / 2) * error
    return np.asarray(np.tanh(ends) if fisher else ends)
