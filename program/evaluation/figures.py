"""From rows to figures: one metric, pairs, a whole record, its details, and the difference between two programs."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue
from scipy import special

from program.common.errors import InputError
from program.evaluation.intervals import (
    CONFIDENCE,
    METRICS,
    MIN_GROUPS,
    Figure,
    headline,
    interval,
    paired_difference,
    wilson,
)
from program.evaluation.metrics import Values, agreements, equal_mass_bins, outliers
from program.evaluation.record import (
    Bin,
    Cost,
    Counts,
    Dataset,
    Details,
    EvaluationRecord,
    GatePoint,
    LabelledRow,
    Part,
    Task,
    environment,
)
from program.fusion.levels import nearest_level

Pair = tuple[LabelledRow, LabelledRow]
"""The image that more people preferred, and the other."""

_NORMAL = float(special.ndtri((1 + CONFIDENCE) / 2))


def preference(rows: Sequence[LabelledRow]) -> Figure:
    """Return the share of pairs that a program orders as most people do; equal scores earn half a point.

    Pairs without a majority are left out. Its interval is Wilson's for as many independent pairs as would have the
    share's variance. `asked` counts pairs that hold a failed sample, too.
    """
    pairs = _pairs(rows)
    used = [pair for pair in pairs if all(row.counts for row in pair)]
    earned, ends = _earned(used), _Ends.of(used)
    value, size = _mean(earned), len(used)
    low = high = float("nan")
    if size > 1:
        # Where all are right or wrong there is no spread to go by: a photograph counts once.
        spread = _variance(earned, ends)
        independent = value * (1 - value) / spread if spread else ends.count / 2
        low, high = wilson(value, min(size, independent))
    return ends.figure(value, low, high, "Wilson score interval").of(len(pairs))


def preference_gain(before: Sequence[LabelledRow], after: Sequence[LabelledRow]) -> Figure:
    """Return `after - before` of the share with its paired interval, over rows of the same samples that all count."""
    old, new = _pairs(before), _pairs(after)
    change = _earned(new) - _earned(old)
    value, ends = _mean(change), _Ends.of(old)
    reach = _NORMAL * math.sqrt(_variance(change, ends)) if len(old) > 1 else float("nan")
    low, high = np.clip([value - reach, value + reach], -1, 1)
    return ends.figure(value, low, high, "paired,")


@dataclass(frozen=True)
class _Ends:
    """What each pair lies between: two photographs, or images where photographs are too few to tell their spread."""

    names: tuple[tuple[str, ...], ...]
    photographs: int
    note: str

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> "_Ends":
        groups, images = ({getattr(row, of) for pair in pairs for row in pair} for of in ("group", "id"))
        few = len(groups) < min(MIN_GROUPS, len(images))
        note = f" (descriptive: only {len(groups)} photograph{'s' * (len(groups) != 1)})" if few else ""
        names = (tuple(sorted({row.id if few else row.group for row in pair})) for pair in pairs)
        return cls(tuple(names), len(groups), note)

    @property
    def count(self) -> int:
        return len({name for names in self.names for name in names})

    def figure(self, value: float, low: float, high: float, how: str) -> Figure:
        unit = "an image" if self.note else "a photograph"
        method = f"{how} over pairs, those that share {unit} going together{self.note}"
        size, reason = len(self.names), None if self.names else "no pair of images that both got a score"
        return Figure(
            value=value, low=low, high=high, n=size, groups=self.photographs, method=method, reason=reason
        )  # fmt: skip


def _pairs(rows: Sequence[LabelledRow]) -> list[Pair]:
    """Return the pairs with a majority, in the order of their ids, so that the order of the data changes nothing."""
    by_id = {row.id: row for row in rows}
    return [
        (row, other)
        for _, row in sorted(by_id.items())
        for name, votes in sorted((row.preferred_over or {}).items())
        if (other := by_id.get(name)) is not None and votes > (other.preferred_over or {}).get(row.id, 0.0)
    ]


def _earned(pairs: Sequence[Pair]) -> NDArray[np.float64]:
    gaps = [float(better.predicted or 0) - float(other.predicted or 0) for better, other in pairs]
    return agreements(np.ones(len(gaps)), gaps)


def _variance(values: NDArray[np.float64], ends: _Ends) -> float:
    """Return the variance of the mean of a number for each pair, so that 1.96 deviations reach as far as Student's."""
    by_end: defaultdict[str, float] = defaultdict(float)
    by_both: defaultdict[tuple[str, ...], float] = defaultdict(float)
    left = values - values.mean()
    for value, names in zip(left.tolist(), ends.names, strict=True):
        for name in names:
            by_end[name] += value
        # Pairs of the same two were counted with each of them.
        by_both[names] += value * (len(names) > 1)
    together = sum(v * v for v in by_end.values()) - sum(v * v for v in by_both.values())
    free = max(1, len(by_end) - 2)  # two of them make an independent pair
    widened = max(together * len(by_end) / free, float(left @ left)) / values.size**2
    return float(widened * (special.stdtrit(free, (1 + CONFIDENCE) / 2) / _NORMAL) ** 2)


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if values.size else float("nan")


_MAX_PARTS = 60
"""A field with more values than this names samples, not kinds of them."""

_THRESHOLDS = (2.0, 2.5, 3.0, 3.5, 4.0)

_STAGES = ("executor", "planner", "summarizer")

_Inputs = tuple[Sequence[LabelledRow], Values, Values]


def summarize(
    rows: Sequence[LabelledRow],
    *,
    dataset: Dataset | None = None,
    context: Mapping[str, JsonValue] | None = None,
    seed: int = 0,
    wall_seconds: float = 0.0,
) -> EvaluationRecord:
    """Return the record over `rows`; figures are null where no row has such a label."""
    names = [*headline("scoring"), *headline("mcq")]
    figures = {name: figure for name in names if (figure := figure_of(name, rows, seed=seed)).asked}
    return EvaluationRecord(
        dataset=dataset or Dataset(), seed=seed, wall_seconds=wall_seconds, context=dict(context or {}),
        environment=environment(), rows=tuple(rows), **_tally(rows), **figures,
    )  # fmt: skip


def figure_of(name: str, rows: Sequence[LabelledRow], *, seed: int = 0) -> Figure:
    """Return a metric over the rows of its task that have a truth; those that failed are only counted as asked."""
    metric = METRICS[name]
    labelled = [row for row in rows if row.task == metric.task and row.truth is not None]
    if metric.needs == "preferences":
        return preference(labelled)
    # Sorted, so that the order of the data changes no interval.
    used, truth, predicted = _INPUTS[metric.needs](_in_order(labelled))
    return interval(name, truth, predicted, [row.group for row in used], seed=seed).of(len(labelled))


def compare(before: Sequence[LabelledRow], after: Sequence[LabelledRow], *, seed: int = 0) -> dict[str, Figure]:
    """Return `after - before` for every headline metric, over the samples that both programs answered.

    Higher is better for srcc, plcc, krcc, accuracy and preference, lower for rmse. Raises InputError where a sample's
    truth differs between the two.
    """
    others = {row.id: row for row in after if row.counts}
    pairs = sorted(((row, others[row.id]) for row in before if row.counts and row.id in others), key=lambda p: p[0].id)
    for first, second in pairs:
        if (first.task, first.truth) != (second.task, second.truth):
            raise InputError(
                f"sample {first.id!r}: its truth is {first.truth!r} in one and {second.truth!r} in the other; "
                "compare two runs over the same manifest"
            )
    differences: dict[str, Figure] = {}
    for task in ("scoring", "mcq"):
        chosen = [pair for pair in pairs if pair[0].task == task]
        if chosen:
            used, truth, old = _predictions([first for first, _ in chosen])
            _, _, new = _predictions([second for _, second in chosen])
            groups = [row.group for row in used]
            names = [name for name in headline(task) if METRICS[name].needs != "preferences"]
            differences |= {n: paired_difference(n, truth, old, new, groups, seed=seed) for n in names}
            gain = preference_gain(used, [second for _, second in chosen])
            differences |= {"preference": gain} if gain.n else {}
    return differences


def details_of(rows: Sequence[LabelledRow], *, seed: int = 0) -> Details:
    """Return every further figure with its interval; parts smaller than two samples have none."""
    names = [name for name, metric in METRICS.items() if not metric.headline]
    fields: dict[str, Any] = {name: f for name in names if (f := figure_of(name, rows, seed=seed)).n}
    fields |= {part: _parts(part, rows, seed) for part in _PARTS}
    used = _in_order(rows)
    fields |= {"calibration_bins": _calibration_bins(used, seed), "gate": _gate(used, seed)}
    choices = [row for row in used if row.task == "mcq"]
    answers = Counter((str(row.truth), str(row.predicted)) for row in choices)
    letters = sorted({letter for pair in answers for letter in pair})
    fields["confusion"] = {t: {p: answers[t, p] for p in letters} for t in letters}
    chances = [1 / row.choices for row in choices if row.choices]
    fields["chance"] = math.fsum(chances) / len(chances) if chances and len(chances) == len(choices) else None
    return Details(**fields)


def _in_order(rows: Iterable[LabelledRow]) -> list[LabelledRow]:
    return sorted((row for row in rows if row.counts), key=attrgetter("id"))


def _predictions(rows: Sequence[LabelledRow]) -> _Inputs:
    truth: list[Any] = [row.truth for row in rows]
    predicted: list[Any] = [row.predicted for row in rows]
    return rows, truth, predicted


def _levels(rows: Sequence[LabelledRow]) -> _Inputs:
    used = [row for row in rows if row.level_probabilities]
    # Of equally probable levels the lowest, as argmax does.
    beliefs = [max(sorted((row.level_probabilities or {}).items()), key=lambda item: item[1]) for row in used]
    levels = [nearest_level(float(row.truth or 0)) for row in used]
    right = np.array([float(belief[0] == level) for belief, level in zip(beliefs, levels, strict=True)])
    return used, right, np.array([probability for _, probability in beliefs])


def _opinions(rows: Sequence[LabelledRow]) -> _Inputs:
    used = [row for row in rows if row.mos_std is not None]
    truth, predicted, spread = ([getattr(row, name) for row in used] for name in ("truth", "predicted", "mos_std"))
    return used, [True] * len(used), outliers(truth, predicted, spread).tolist()


def _ends(rows: Sequence[LabelledRow]) -> _Inputs:
    used = [row for row in rows if row.score_interval is not None]
    ends = np.array([row.score_interval for row in used], dtype=float).reshape(-1, 2)
    return used, ends[:, 0], ends[:, 1]


def _intervals(rows: Sequence[LabelledRow]) -> _Inputs:
    used, low, high = _ends(rows)
    truth = np.array([row.truth for row in used], dtype=float)
    return used, np.ones(len(used)), (np.asarray(low) <= truth) & (truth <= np.asarray(high))


_INPUTS: Mapping[str, Callable[[Sequence[LabelledRow]], _Inputs]] = {
    "scores": _predictions, "answers": _predictions, "levels": _levels, "opinions": _opinions, "ends": _ends,
    "intervals": _intervals,
}  # fmt: skip
"""What a metric needs of rows that count: the rows that have it, truth and prediction."""


def _calibration_bins(used: Sequence[LabelledRow], seed: int) -> tuple[Bin, ...]:
    rows, right, confidence = map(np.asarray, _levels([row for row in used if row.task == "scoring"]))
    bins = equal_mass_bins(confidence) if rows.size else np.array([], dtype=np.intp)
    return tuple(
        Bin(n=int(inside.sum()), confidence=float(confidence[inside].mean()), right=_share(rows, inside, right, seed))
        for inside in (bins == number for number in np.unique(bins))
    )


def _gate(used: Sequence[LabelledRow], seed: int) -> tuple[GatePoint, ...]:
    """Return what each threshold does as a gate, where both people and program put images below it."""
    rows, truth, predicted = map(np.asarray, _predictions([row for row in used if row.task == "scoring"]))
    return tuple(
        GatePoint(
            threshold=threshold, precision=_share(rows, stopped, below, seed), recall=_share(rows, below, stopped, seed)
        )
        for threshold in _THRESHOLDS
        if (below := truth < threshold).any() and (stopped := predicted < threshold).any()
    )


def _share(rows: NDArray[Any], of: NDArray[np.bool_], right: NDArray[Any], seed: int) -> Figure:
    """Return which share of some of the rows is right."""
    return interval("accuracy", [True] * int(of.sum()), right[of].tolist(), [row.group for row in rows[of]], seed=seed)


_PARTS: Mapping[str, Callable[[LabelledRow], str | None]] = {
    "by_distortion": lambda row: row.distortion,
    "by_level": lambda row: str(nearest_level(row.truth)) if isinstance(row.truth, float) else None,
    "by_question_type": lambda row: row.question_type,
}
"""What a sample is a part of; None for none."""


def _parts(part: str, rows: Sequence[LabelledRow], seed: int) -> dict[str, Part]:
    names = [name for name, metric in METRICS.items() if part in metric.parts]
    members: defaultdict[str, list[LabelledRow]] = defaultdict(list)
    for row in rows:
        key = _PARTS[part](row)
        if row.truth is not None and key is not None and any(METRICS[name].task == row.task for name in names):
            members[key].append(row)
    sizes = {key: size for key, inside in sorted(members.items()) if (size := sum(row.counts for row in inside))}
    if len(sizes) > _MAX_PARTS:
        return {}
    return {
        key: Part(n=size, figures={name: figure_of(name, members[key], seed=seed) for name in names})
        for key, size in sizes.items()
    }


def _tally(rows: Sequence[LabelledRow]) -> dict[str, Any]:
    """Return the fields of a record that are counts and sums over its rows: samples by task, rungs, costs, pace."""
    rungs = Counter(row.rung for row in rows if row.rung)
    spenders = [row.spent for row in rows if row.spent is not None]
    spent = _sums(spenders)
    beside = _sums(_cost(row.baseline_cost) for row in rows if row.baseline_cost is not None)
    return {
        "scoring": _counts(rows, "scoring"), "mcq": _counts(rows, "mcq"), "other": _counts(rows, "open"),
        "groups": len({row.group for row in rows}),
        "rungs": dict(sorted(rungs.items())),
        "rung_shares": {rung: round(n / len(rows), 6) for rung, n in sorted(rungs.items())},
        "pace": _pace(rows, spenders, spent),
        "baseline_cost": Cost(**beside) if beside else None,
        "spent_by_stage": _stages(spent),
        "spent_per_sample": {name: round(total / len(spenders), 6) for name, total in spent.items()},
        **_sums(map(_cost, rows)),
    }  # fmt: skip


def _counts(rows: Iterable[LabelledRow], task: Task) -> Counts:
    statuses = Counter(
        "failed" if row.status == "failed" else "used" if row.counts else "unlabelled"
        for row in rows
        if row.task == task
    )
    return Counts(asked=statuses.total(), **statuses)


def _cost(spender: LabelledRow | Cost) -> dict[str, Any]:
    return {name: getattr(spender, name) for name in Cost.model_fields}


def _sums(amounts: Iterable[Mapping[str, float | None]]) -> dict[str, Any]:
    """Return the sums over those that say; what nobody says is left out."""
    sums: dict[str, Any] = {}
    for each in amounts:
        for name, amount in each.items():
            if amount is not None:
                sums[name] = sums.get(name, 0) + amount
    return sums


def _stages(spent: dict[str, float]) -> dict[str, Cost]:
    stages: dict[str, dict[str, Any]] = {
        stage: {kind: round(spent[name], 6) for kind in Cost.model_fields if (name := f"{kind}_{stage}") in spent}
        for stage in _STAGES
    }
    return {stage: Cost(**costs) for stage, costs in stages.items() if costs}


def _pace(
    rows: Sequence[LabelledRow], spenders: Sequence[Mapping[str, float]], spent: dict[str, float]
) -> dict[str, float]:
    pace: dict[str, float] = {}
    if rows:
        middle, slow = np.percentile([row.seconds for row in rows], (50, 95))
        pace = {"seconds_p50": round(float(middle), 6), "seconds_p95": round(float(slow), 6)}
    if spenders:
        pace["replan_rate"] = round(sum(each.get("replans", 0) > 0 for each in spenders) / len(spenders), 6)
    # What a cache answered cost nothing: it says nothing of what an image costs.
    if paid := [each for each in spenders if each.get("lm_calls")]:
        asked = _sums(paid)
        tokens, seconds = asked["input_tokens"] + asked["output_tokens"], asked.get("seconds_summarizer", 0.0)
        pace |= {
            "tokens_per_image": round(tokens / len(paid), 1),
            "model_seconds_per_image": round(seconds / len(paid), 3),
        }
    if readings := spent.get("tool_readings"):
        pace["tool_failure_rate"] = round(spent.get("tool_failures", 0.0) / readings, 6)
    return pace
