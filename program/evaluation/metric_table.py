"""The one table of metrics: an entry here is all that a new figure takes.

From it follow the record and its JSON, comparisons, baselines, tables, the page and the MLflow run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from program.evaluation import metrics
from program.evaluation.metrics import Parameters, Values, fit_logistic, paired_arrays
from program.evaluation.resampling import Resampler, mean_of, pearson, right_order, root_mean_square, spearman, tau

__all__ = ("METRICS", "Metric", "PartOf", "headline")

PartOf = Literal["by_distortion", "by_level", "by_question_type"]

_INFINITE = float("inf")


@dataclass(frozen=True)
class Metric:
    """One agreement figure. Call it with truth and prediction."""

    title: str
    """What people read, with an arrow towards the better end."""
    function: Callable[..., float]
    """Takes truth and prediction; nan where undefined."""
    needs: Literal["scores", "answers", "levels", "opinions"] = "scores"
    """What truth and prediction are: human and predicted score; true and chosen letter; whether the likeliest level was
    right and its probability; True and whether the score lies outside the opinions."""
    direction: Literal[1, 0, -1] = 1
    """1: higher is better, -1: lower is better, 0: neither."""
    bounds: tuple[float, float] = (-_INFINITE, _INFINITE)
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
    worked out for every baseline, and need scores or answers."""
    card: str = ""
    """A headline's meaning in two words. Those that have one get a card on the page and a column beside baselines."""
    parts: tuple[PartOf, ...] = ()
    """For which parts of the samples it is worked out too."""

    def __call__(self, truth: Values, predicted: Values) -> float:
        """Return the metric's value; raises InputError for input that cannot be used."""
        return self.function(truth, predicted)

    @property
    def task(self) -> Literal["scoring", "mcq"]:
        """The samples it is worked out over."""
        return "mcq" if self.needs == "answers" else "scoring"

    def resampler(self, truth: Values, predicted: Values) -> Resampler:
        """Return the function that gives the metric of the samples repeated `counts[b, i]` times, for every b."""
        if self.closed_form is not None:
            return self.closed_form(truth, predicted)
        x, y = np.asarray(truth), np.asarray(predicted)

        def one_by_one(counts: NDArray[np.float64]) -> NDArray[np.float64]:
            times = counts.astype(np.intp)
            return np.array([self.function(np.repeat(x, row), np.repeat(y, row)) for row in times])

        return one_by_one


def headline(task: str, *, cards: bool = False) -> list[str]:
    """Return the names of a task's headline metrics; with `cards` only those that have a card."""
    return [n for n, m in METRICS.items() if m.headline and m.task == task and (m.card or not cards)]


def _line_note(truth: Values, predicted: Values, *, parameters: Parameters) -> str:
    converged = fit_logistic(*paired_arrays("logistic", truth, predicted), parameters).converged
    return "" if converged else "; a line instead of the logistic, which did not converge"


def _after_logistic(title: str, function: Callable[..., float], parameters: Parameters, **fields: object) -> Metric:
    return Metric(
        f"{title} after {parameters}-parameter logistic", partial(function, parameters=parameters),
        bootstrap_limit=2000, note=partial(_line_note, parameters=parameters), **fields,  # type: ignore[arg-type]
    )  # fmt: skip


METRICS: dict[str, Metric] = {
    "srcc": Metric(
        "SRCC ↑", metrics.srcc, bounds=(-1, 1), scale="fisher", closed_form=spearman,
        headline=True, card="rank agreement", parts=("by_distortion",),
    ),
    "plcc": Metric(
        "PLCC ↑", metrics.plcc, bounds=(-1, 1), scale="fisher", closed_form=pearson,
        headline=True, card="linear agreement",
    ),
    "krcc": Metric(
        "KRCC ↑", metrics.krcc, bounds=(-1, 1), scale="fisher", closed_form=tau, bootstrap_limit=2000,
        headline=True,
    ),
    "rmse": Metric(
        "RMSE ↓", metrics.rmse, direction=-1, bounds=(0, _INFINITE), closed_form=root_mean_square,
        headline=True, card="points of 1..5", parts=("by_distortion",),
    ),
    "accuracy": Metric(
        "Accuracy ↑", metrics.accuracy, "answers", bounds=(0, 1), scale="wilson", closed_form=mean_of(np.equal),
        headline=True, card="right answers", parts=("by_question_type",),
    ),
    "plcc_logistic4": _after_logistic("PLCC ↑", metrics.plcc_logistic, 4, bounds=(-1, 1), scale="fisher"),
    "plcc_logistic5": _after_logistic("PLCC ↑", metrics.plcc_logistic, 5, bounds=(-1, 1), scale="fisher"),
    "rmse_logistic4": _after_logistic("RMSE ↓", metrics.rmse_logistic, 4, bounds=(0, _INFINITE), direction=-1),
    "rmse_logistic5": _after_logistic("RMSE ↓", metrics.rmse_logistic, 5, bounds=(0, _INFINITE), direction=-1),
    "mae": Metric(
        "MAE ↓", metrics.mae, direction=-1, bounds=(0, _INFINITE),
        closed_form=mean_of(lambda x, y: np.abs(np.subtract(y, x))), parts=("by_level",),
    ),
    "bias": Metric(
        "Bias, predicted - human", metrics.bias, direction=0, closed_form=mean_of(lambda x, y: np.subtract(y, x)),
        parts=("by_distortion", "by_level"),
    ),
    "pairwise": Metric(
        "Pairs in the right order ↑", metrics.pairwise, bounds=(0, 1), closed_form=right_order,
        bootstrap_limit=2000,
    ),
    "outlier_ratio": Metric(
        "Outliers past 2 sigma of opinions ↓", metrics.accuracy, "opinions", direction=-1, bounds=(0, 1),
        scale="wilson", closed_form=mean_of(np.equal),
    ),
    "calibration_error": Metric(
        "Calibration error of levels (ECE) ↓", metrics.calibration_error, "levels", direction=-1, bounds=(0, 1),
        bootstrap_limit=2000,
    ),
}  # fmt: skip
"""Every metric by its name in Python, JSON and MLflow, in the order of the tables."""
