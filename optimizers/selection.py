"""Which candidate is recommended, by its figures on validation, never on test; and what the test says of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from optimizers.search import Candidate
from program.evaluation.charts import gain_words
from program.evaluation.figures import compare
from program.evaluation.intervals import METRICS, Figure
from program.evaluation.record import Baseline, EvaluationRecord

VALIDATION, IN_FOLDS = "on validation", "in folds of the labels"
"""What a choice goes by, in words."""
SCORE_STEP, PLCC_STEP = 0.002, 0.005
"""Smaller differences in score decide nothing: PLCC does then, and where that is no larger either, RMSE."""
DEARER = 1.05
"""Tokens an image, as a multiple, from which a candidate costs more: it is taken for a sure gain alone."""
CLEAR, CLEARLY_NEARER = 0.01, 0.15
"""What a fitted fusion has to gain on validation, in score or PLCC, or as a share of RMSE: it moves every score to
come, and what it fits of scores nearly on the people's scale does not carry over. On photographs so few that intervals
speak of these alone, chance moves the scale by as much as that, and none is taken."""


def leading_metric(figures: Mapping[str, object]) -> str:
    """Return which of some figures decides: preference where people compared pairs, else SRCC, else accuracy."""
    return next((name for name in ("preference", "srcc") if name in figures), "accuracy")


def label(name: str) -> str:
    """Return a figure's name as it is written in a sentence."""
    return name if name in {"accuracy", "preference"} else name.upper()


class Ranked(NamedTuple):
    """A candidate with its validation record."""

    candidate: Candidate
    record: EvaluationRecord


class Ranking:
    """Candidates by validation score. Ties go to the earlier one: an optimizer has to show that it helped."""

    def __init__(
        self, judge: Callable[[Candidate], EvaluationRecord], uncompiled: Candidate, *, keep: int,
        where: str = VALIDATION,
    ) -> None:  # fmt: skip
        """Judge the uncompiled program; `where` says in words what `judge` goes by."""
        self._judge, self._keep, self.where = judge, keep, where
        self.uncompiled = self.best = Ranked(uncompiled, judge(uncompiled))
        self._ranked = [self.uncompiled]

    def add(self, proposed: Sequence[Candidate], *, clearly: bool = False) -> str:
        """Judge the `keep` best by search score, take what is better, and say what became of them.

        `clearly` asks for a `clear_gain`. A program that was judged is not judged again.
        """
        before = self.best
        judged: list[EvaluationRecord] = []
        by_search = sorted(proposed, key=lambda c: -(c.search_score if c.search_score is not None else 2.0))
        for candidate in by_search:
            is_known = candidate.digest in {each.candidate.digest for each in self._ranked}
            if is_known or len(judged) == self._keep:
                continue
            ranked = Ranked(candidate, self._judge(candidate))
            self._ranked.append(ranked)
            judged.append(ranked.record)
            old, new = self.best.record, ranked.record
            if clearly:
                better = clear_gain(new, old)
            elif self.where == IN_FOLDS and _tells_scores_apart(new, old):
                better = follows_closer(new, old)
            else:
                better = _order(new) > _order(old)
            if better and not (costs_more(new, old) and not _sure_gain(new, old)):
                self.best = ranked
        if self.best is not before:
            return f"better {self.where}"
        if not judged:
            return "not taken, as it changes nothing"
        return f"not taken, as {_shortfall(max(judged, key=_order), before.record, clearly, self.where)}"

    def table(self) -> dict[str, dict[str, Any]]:
        """Return each candidate's validation score, search score and figures, best first."""
        ordered = sorted(self._ranked, key=lambda r: _order(r.record), reverse=True)
        return {
            # Rounded as the log does: a resumed compile, which reads it there, tells the same.
            each.name: {"search": each.search_score and round(each.search_score, 6), **validation_figures(record)}
            for each, record in ordered
        }


def _shortfall(new: EvaluationRecord, old: EvaluationRecord, clearly: bool, where: str) -> str:
    if costs_more(new, old) and _order(new) > _order(old):
        tokens = " after ".join(f"{record.pace['tokens_per_image']:.0f}" for record in (new, old))
        return f"it costs more ({tokens} tokens an image), and {where} it shows no sure gain"
    if not clearly:
        return f"it is no better {where}"
    if _few(new):
        return "the photographs are too few to say that it carries over"
    gained = validation_score(new) - validation_score(old)
    nearer = _value(new, "rmse") / _value(old, "rmse") - 1 if _value(old, "rmse") else 0.0
    correlated = _value(new, "plcc") - _value(old, "plcc")
    names = dict.fromkeys((leading_metric(new.figures), "accuracy"))
    order = " and ".join(label(name) for name in names if name in new.figures)
    return f"{where} it gains too little ({order} {gained:+.3f}, PLCC {correlated:+.3f}, RMSE {nearer:+.0%})"


def validation_figures(record: EvaluationRecord) -> dict[str, float | None]:
    """Return a candidate's validation score and figures by name."""
    return {"score": validation_score(record), **{str(n): figure.value for n, figure in record.figures.items()}}


def validation_score(record: EvaluationRecord) -> float:
    """Return the mean of the leading figure of scores and accuracy, weighted by their samples; whichever the data has.

    An undefined SRCC (constant answers) counts as 0: such a program orders nothing. So does each failed sample: a
    program must not gain by failing on the hard ones.
    """
    names = {leading_metric(record.figures), "accuracy"}
    parts = [figure for name, figure in record.figures.items() if name in names]
    total = sum(figure.asked or figure.n for figure in parts)
    return sum((figure.value or 0.0) * figure.n for figure in parts) / total if total else 0.0


def clear_gain(new: EvaluationRecord, old: EvaluationRecord) -> bool:
    """Return whether a record's score is clearly higher, or no lower with PLCC clearly higher or RMSE clearly lower.

    Never where its intervals do not speak of new photographs.
    """
    if _few(new):
        return False
    gained = validation_score(new) - validation_score(old)
    if gained >= CLEAR or gained < -SCORE_STEP / 2:
        return gained > 0
    correlated = _value(new, "plcc") - _value(old, "plcc")
    # A change of ranks too small to count is none to gain by: only what keeps them may go for the scale.
    return gained < SCORE_STEP / 2 and (
        correlated >= CLEAR or _value(new, "rmse") <= (1 - CLEARLY_NEARER) * _value(old, "rmse") - 1e-9
    )


def follows_closer(new: EvaluationRecord, old: EvaluationRecord) -> bool:
    """Return whether scores surely follow the labels' order and err less than the old ones, also on their best line.

    Of few and noisy labels SRCC tells too little: what gained .04 on 1,000 others was no better in SRCC on 108 in half
    of the draws. The squared error tells more, and as the old scores are moved to the labels' scale first, answers near
    the mean in no order do not win by it. Careful ones, which move too little, may be on their best line, too.
    """
    order, error = new.figures.get("srcc"), _value(new, "rmse")
    if order is None or order.sign <= 0 or error >= _value(old, "rmse"):
        return False
    return min(error, _error_on_line(new)) < _error_on_line(old)


def _tells_scores_apart(new: EvaluationRecord, old: EvaluationRecord) -> bool:
    return leading_metric(new.figures) == "srcc" and _value(new, "rmse") != _value(old, "rmse")


def _error_on_line(record: EvaluationRecord) -> float:
    """Return the RMSE of scores on the rising line that fits the labels best, each label left out of it."""
    rows = [row for row in record.rows if row.counts and row.task == "scoring"]
    truth, predicted = (np.array([getattr(row, name) for row in rows], float) for name in ("truth", "predicted"))
    labels, scores = truth - truth.mean(), predicted - predicted.mean()
    slope = max(0.0, float(scores @ labels)) / max(float(scores @ scores), 1e-12)
    leverage = 1 / len(rows) + (scores**2 / max(float(scores @ scores), 1e-12)) * (slope > 0)
    return float(np.sqrt(np.mean(((labels - slope * scores) / (1 - leverage)) ** 2)))


def costs_more(new: EvaluationRecord, old: EvaluationRecord) -> bool:
    """Return whether a record's answers took clearly more tokens an image, as far as both paid for any."""
    spent, before = (record.pace.get("tokens_per_image") for record in (new, old))
    return spent is not None and before is not None and spent > DEARER * before


def _sure_gain(new: EvaluationRecord, old: EvaluationRecord) -> bool:
    """Return whether the leading figure or the error is better with its interval, over the same samples."""
    gains = compare(old.rows, new.rows, seed=old.seed)
    names = {leading_metric(gains), "rmse"} & gains.keys()
    return any(gains[name].sign * METRICS[name].direction > 0 for name in names)


def _few(record: EvaluationRecord) -> bool:
    return any(figure.descriptive for figure in record.figures.values())


def _order(record: EvaluationRecord) -> tuple[float, float, float]:
    score, correlation = validation_score(record), _value(record, "plcc")
    return round(score / SCORE_STEP), round(correlation / PLCC_STEP), -_value(record, "rmse")


def _value(record: EvaluationRecord, name: str) -> float:
    figure = record.figures.get(name)
    return figure.value if figure is not None and figure.value is not None else 0.0


@dataclass(frozen=True)
class Verdict:
    """Whether compiling helped, in one sentence."""

    helped: bool
    """A candidate was better on validation, so it is the recommended program."""
    text: str


def verdict_of(
    best: EvaluationRecord, uncompiled: EvaluationRecord, differences: Mapping[str, Figure], where: str = VALIDATION
) -> Verdict:
    """Return the verdict on what validation recommends: by how much it is better there, and what test said of it."""
    names = [name for name in ("preference", "srcc", "plcc", "rmse", "accuracy") if name in differences]
    words = "; ".join(_words(name, differences[name]) for name in names)
    ways = {differences[name].sign * METRICS[name].direction for name in names} - {0}
    helped = {1: "Compiling helped", -1: "Compiling did harm", 0: "Compiling helped in part"}
    opening = helped[sum(ways)] if ways else "No sure gain"
    text = f"{opening} on test: {words}. {where.capitalize()} it is {_gain(best, uncompiled)}."
    if "srcc" in names and differences["rmse"].sign == differences["srcc"].sign == 1:
        text += " The order of images is better, and their scores lie further from the labels: compare, do not grade."
    return Verdict(True, text)


def kept_verdict(why: str) -> Verdict:
    """Return the verdict where the uncompiled program is the one that is saved."""
    return Verdict(False, f"The uncompiled program is kept, and recommended: {why}.")


@dataclass(frozen=True)
class CrossValidation:
    """What programs gain on the samples of one fold that were compiled on the others, and whether one is adopted."""

    folds: int
    gains: dict[str, Figure]
    adopted: bool
    """The interval over photographs of the leading figure lies above 0, or holds it and the scores follow closer."""

    @classmethod
    def of(
        cls, folds: int, old: EvaluationRecord, new: EvaluationRecord, gains: dict[str, Figure]
    ) -> "CrossValidation":
        """Judge by what programs gain on the same samples, and how they follow the labels."""
        first = gains.get(leading_metric(gains))
        if first is None or first.descriptive or first.sign < 0:
            return cls(folds, gains, adopted=False)
        is_closer = _tells_scores_apart(new, old) and follows_closer(new, old)
        return cls(folds, gains, adopted=first.sign > 0 or is_closer)

    def verdict(self) -> Verdict:
        """Say what the folds say."""
        names = [name for name in ("preference", "srcc", "rmse", "accuracy") if name in self.gains]
        words = "; ".join(_words(name, self.gains[name], ends=True) for name in names)
        groups = max(figure.groups for figure in self.gains.values())
        compiled = f"compiled on {self.folds - 1} of {self.folds} folds of {groups} photographs"
        sentence = f"{compiled} and tested on the other, programs gain {words}"
        if not self.adopted:
            return kept_verdict(sentence)
        first = self.gains[leading_metric(self.gains)]
        closer = "" if first.sign > 0 else "; on a line of their own the uncompiled program's scores err more"
        return Verdict(True, f"The compiled program is recommended: {sentence}{closer}.")


def _gain(best: EvaluationRecord, uncompiled: EvaluationRecord) -> str:
    gained = validation_score(best) - validation_score(uncompiled)
    if gained >= SCORE_STEP / 2 or best.rmse is None or uncompiled.rmse is None:
        return f"{gained:+.3f} better"
    order = "as good in order" if gained > -SCORE_STEP / 2 else f"{gained:+.3f} in order"
    return f"{order} and nearer to the labels (RMSE {best.rmse.value:.3f} after {uncompiled.rmse.value:.3f})"


def _words(name: str, figure: Figure, *, ends: bool = False) -> str:
    if figure.value is None:
        return f"{label(name)} undefined"
    interval = f" {figure.ends_text('+')}" if ends and figure.ends_text() else ""
    return f"{label(name)} {figure.value:+.3f}{interval} ({gain_words(name, figure)})"


def best_baseline(record: EvaluationRecord) -> Baseline | None:
    """Return the single tool or model that did best on these very samples: a choice that favours it."""
    ways = [way for way in record.baselines.values() if way.kind in {"tool", "model"}]
    name = leading_metric(record.figures)
    measured = [(figure.value, way) for way in ways if (figure := way.figures.get(name)) and figure.value is not None]
    return max(measured, key=lambda each: each[0], default=(0.0, None))[1]
