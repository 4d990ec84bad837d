"""The one table of metrics: an entry here is all that a new figure takes; record, tables, page and run follow from it.

The value stands beside what computes many resamples of it at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from program.evaluation import metrics
from program.evaluation.fits import Parameters, fit_logistic
from program.evaluation.metrics import Resampler, Values, paired_arrays

__all__ = ("METRICS", "Metric", "bootstrap", "headline")

PartOf = Literal["by_distortion", "by_level", "by_question_type"]

_INFINITE = float("inf")

_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Metric:
    """One agreement figure. Call it with truth and prediction."""

    title: str
    """What people read, with an arrow towards the better end."""
    function: Callable[..., float]
    """Takes truth and prediction; nan where undefined."""
    needs: Literal["scores", "answers", "levels", "opinions", "intervals", "ends", "preferences"] = "scores"
    """What truth and prediction are: human and predicted score; true and chosen letter; whether the likeliest level was
    right and its probability; True and whether the score lies outside the opinions; True and whether the human score
    lies in the program's interval; that interval's ends; differences of both in pairs (see `preferences`)."""
    direction: Literal[1, 0, -1] = 1
    """1: higher is better, -1: lower is better, 0: neither."""
    varied: bool = False
    """Whether it is a matter of differences: of two samples, or where all are the same, it says nothing."""
    curve: Literal[0, 4, 5] = 0
    """The parameters of the curve that is fitted first: it passes through as many points, whatever they are."""
    bounds: tuple[float, float] = (-_INFINITE, _INFINITE)
    """The values that are possible; no interval reaches beyond them."""
    scale: Literal["plain", "fisher", "wilson"] = "plain"
    """What the interval is built on: the values, Fisher's z of correlations, or Wilson's formula for shares."""
    closed_form: Callable[[Values, Values], Resampler] | None = None
    """How many resamples are computed at once; None computes one after the other, 500 at most."""
    bootstrap_limit: int = 20_000
    """Larger sets use the jackknife over blocks of samples: same width, far less work."""
    inflated: bool = False
    """Whether resamples exceed the figure by nature, as means of absolute differences do: the interval then is that of
    the resamples moved back by their mean excess, so that it holds its figure."""
    note: Callable[[Values, Values], str] | None = None
    """What else is to be said of how the figure came about."""
    headline: bool = False
    """Whether it stands at the record's top level, else among the details. Headlines are compared between programs and
    worked out for every baseline, and need scores, answers or preferences."""
    word: str = ""
    """What it says in a word or two, where two programs are compared in a terminal; those without one are not there."""
    card: str = ""
    """A headline's meaning in two words. Those that have one get a card on the page and a column beside baselines."""
    parts: tuple[PartOf, ...] = ()
    """For which parts of the samples it is worked out too."""

    def __call__(self, truth: Values, predicted: Values) -> float:
        """Return the metric's value; raises InputError for input that cannot be used."""
        return self.function(truth, predicted)

    def why_not(self, truth: Values, predicted: Values) -> str:
        """Return why these samples say nothing of the metric; empty where they do."""
        size, needed = len(truth), self.curve + 1 if self.curve else 3 if self.varied else 1
        if size < needed:
            return f"{size or 'no'} sample{'s' * (size != 1)}, it takes {needed}"
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


def _after_logistic(title: str, metric: Callable[..., float], parameters: Parameters, **fields: Any) -> Metric:
    def line_note(truth: Values, predicted: Values) -> str:
        fit = fit_logistic(*paired_arrays("logistic", truth, predicted), parameters)
        return "" if fit.converged else "; a line instead of the logistic, which did not converge"

    function = partial(metrics.after_logistic, metric=metric, parameters=parameters)
    name = f"{title} after {parameters}-parameter logistic"
    return Metric(name, function, varied=True, curve=parameters, bootstrap_limit=2000, note=line_note, **fields)


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
        "RMSE ↓", metrics.rmse, direction=-1, bounds=(0, _INFINITE), closed_form=metrics.rmse_resampler,
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
    "plcc_logistic4": _after_logistic("PLCC ↑", metrics.plcc, 4, bounds=(-1, 1), scale="fisher"),
    "plcc_logistic5": _after_logistic("PLCC ↑", metrics.plcc, 5, bounds=(-1, 1), scale="fisher"),
    "rmse_logistic4": _after_logistic("RMSE ↓", metrics.rmse, 4, bounds=(0, _INFINITE), direction=-1),
    "rmse_logistic5": _after_logistic("RMSE ↓", metrics.rmse, 5, bounds=(0, _INFINITE), direction=-1),
    "mae": Metric(
        "MAE ↓", metrics.mae, direction=-1, bounds=(0, _INFINITE),
        closed_form=metrics.mean_of(lambda x, y: np.abs(np.subtract(y, x))), parts=("by_level",),
    ),
    "bias": Metric(
        "Bias, predicted - label", metrics.bias, direction=0,
        closed_form=metrics.mean_of(lambda x, y: np.subtract(y, x)), parts=("by_distortion", "by_level"),
    ),
    "pairwise": Metric(
        "Pairs in the right order ↑", metrics.pairwise, varied=True, bounds=(0, 1),
        closed_form=metrics.pairwise_resampler, bootstrap_limit=2000,
    ),
    "outlier_ratio": Metric(
        "Outliers past 2 sigma of opinions ↓", metrics.accuracy, "opinions", direction=-1, bounds=(0, 1),
        scale="wilson", closed_form=metrics.mean_of(np.equal),
    ),
    "calibration_error": Metric(
        "Calibration error of levels (ECE) ↓", metrics.calibration_error, "levels", direction=-1, bounds=(0, 1),
        bootstrap_limit=2000, inflated=True,
    ),
    "coverage": Metric(
        "Labels in the interval, 95 % meant", metrics.accuracy, "intervals", direction=0, bounds=(0, 1),
        scale="wilson", closed_form=metrics.mean_of(np.equal),
    ),
    "interval_width": Metric(
        "Width of the intervals ↓", metrics.bias, "ends", direction=-1, bounds=(0, 4),
        closed_form=metrics.mean_of(lambda low, high: np.subtract(high, low)),
    ),
}  # fmt: skip
"""Every metric by its name in Python, JSON and MLflow, in the order of the tables."""
