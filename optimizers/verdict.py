"""What a compile showed, said plainly."""

from collections.abc import Mapping
from dataclasses import dataclass

from optimizers.selection import validation_score
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
    gained = validation_score(best) - validation_score(uncompiled)
    told = [_told(name, differences[name]) for name in ("srcc", "plcc", "accuracy") if name in differences]
    text = f"{chosen} is {gained:+.3f} better on validation. On test: {'; '.join(told)}."
    return Verdict(True, text, baseline)


def _told(name: str, figure: Figure) -> str:
    label = {"srcc": "SRCC", "plcc": "PLCC", "accuracy": "accuracy"}[name]
    if figure.value is None:
        return f"{label} undefined"
    if figure.low is None or figure.high is None:
        return f"{label} {figure.value:+.3f}, no interval"
    sure = "better" if figure.low > 0 else "worse" if figure.high < 0 else "no sure difference"
    return f"{label} {figure.value:+.3f} ({sure})"


def _best_baseline(record: EvaluationRecord) -> Baseline | None:
    """Return the single tool or model that did best on these very samples: a choice that favours it."""
    ways = [way for way in record.baselines.values() if way.kind in {"tool", "model"}]
    name: MetricName = "srcc" if record.srcc is not None else "accuracy"
    known = [way for way in ways if (figure := getattr(way, name)) is not None and figure.value is not None]
    return max(known, key=lambda way: getattr(way, name).value, default=None)
