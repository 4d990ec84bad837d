"""What a compile showed, said plainly."""

from collections.abc import Mapping
from dataclasses import dataclass

from optimizers.selection import SCORE_STEP, validation_score
from program.evaluation.intervals import Figure
from program.evaluation.metrics import MetricName
from program.evaluation.record import Baseline, EvaluationRecord

__all__ = ("Verdict", "verdict_of")


@dataclass(frozen=True)
class Verdict:
    """Whether compiling helped, in one sentence, and the best simpler way on the same samples."""

    helped: bool
    """A candidate was better on validation, so it is the recommended program."""
    text: str
    baseline: Baseline | None


def verdict_of(
    chosen: str,
    best: EvaluationRecord,
    uncompiled: EvaluationRecord,
    differences: Mapping[MetricName, Figure],
    test: EvaluationRecord,
) -> Verdict:
    """Return the verdict: what validation recommends, and what the test samples then said of it."""
    baseline = _best_baseline(test)
    if chosen == "uncompiled":
        text = (
            "Compiling did not help on the validation samples: "
            "the program saved, and recommended, is the uncompiled one."
        )
        return Verdict(False, text, baseline)
    told = [_told(name, differences[name]) for name in ("srcc", "plcc", "rmse", "accuracy") if name in differences]
    text = f"{chosen} is {_gain(best, uncompiled)} on validation. On test: {'; '.join(told)}."
    if _is_sure(differences.get("rmse"), 1) and _is_sure(differences.get("srcc"), 1):
        text += " The order of images is better, and their scores lie further from people's: compare, do not grade."
    return Verdict(True, text, baseline)


def _gain(best: EvaluationRecord, uncompiled: EvaluationRecord) -> str:
    gained = validation_score(best) - validation_score(uncompiled)
    if abs(gained) >= SCORE_STEP / 2 or best.rmse is None or uncompiled.rmse is None:
        return f"{gained:+.3f} better"
    return (
        f"as good in order and nearer to people's scores (RMSE {best.rmse.value:.3f} after {uncompiled.rmse.value:.3f})"
    )


def _told(name: str, figure: Figure) -> str:
    label = name if name == "accuracy" else name.upper()
    if figure.value is None:
        return f"{label} undefined"
    if figure.low is None or figure.high is None:
        return f"{label} {figure.value:+.3f}, no interval"
    better = -1 if name == "rmse" else 1
    sure = "better" if _is_sure(figure, better) else "worse" if _is_sure(figure, -better) else "no sure difference"
    return f"{label} {figure.value:+.3f} ({sure})"


def _is_sure(figure: Figure | None, sign: int) -> bool:
    """Return whether a difference's interval lies above zero (sign 1) or below it (-1)."""
    if figure is None or figure.low is None or figure.high is None:
        return False
    return figure.low > 0 if sign > 0 else figure.high < 0


def _best_baseline(record: EvaluationRecord) -> Baseline | None:
    """Return the single tool or model that did best on these very samples: a choice that favours it."""
    ways = [way for way in record.baselines.values() if way.kind in {"tool", "model"}]
    name: MetricName = "srcc" if record.srcc is not None else "accuracy"
    known = [way for way in ways if (figure := getattr(way, name)) is not None and figure.value is not None]
    return max(known, key=lambda way: getattr(way, name).value, default=None)
