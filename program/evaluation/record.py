"""What an evaluation leaves behind: one record over all rows."""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from program.errors import InputError
from program.evaluation.environment import Environment, environment
from program.evaluation.intervals import Figure, interval, paired_difference
from program.evaluation.metrics import MetricName
from program.evaluation.rows import Cost, Row, Rows, Task

__all__ = (
    "SCHEMA_VERSION", "SCORING_METRICS", "TASK_METRICS", "Baseline", "Bin", "Counts", "Dataset", "Details",
    "EvaluationRecord", "Part", "Readings", "Row", "compare", "summarize",
)  # fmt: skip

SCHEMA_VERSION: Literal[2] = 2

SCORING_METRICS: tuple[MetricName, ...] = ("srcc", "plcc", "krcc", "rmse")

TASK_METRICS: tuple[tuple[Task, tuple[MetricName, ...]], ...] = (("scoring", SCORING_METRICS), ("mcq", ("accuracy",)))


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Counts(_Frozen):
    """How many samples of one task were asked, answered and lost."""

    asked: int = 0
    used: int = 0
    """Entered the figures."""
    failed: int = 0
    unlabelled: int = 0
    """Answered, but without a truth to compare with."""


class Dataset(_Frozen):
    """What was evaluated."""

    name: str = "unnamed"
    manifest_sha256: str | None = None
    split: str | None = None
    """The split taken; None for all."""


class Baseline(_Frozen):
    """A simpler way to answer the same samples, and what the program adds to it.

    Figures are over the samples that both answered, out of all that have a label.
    """

    label: str
    kind: Literal["tool", "tools", "model", "mean", "fusion"]
    srcc: Figure | None = None
    plcc: Figure | None = None
    krcc: Figure | None = None
    rmse: Figure | None = None
    accuracy: Figure | None = None
    gain: dict[MetricName, Figure] = Field(default_factory=dict)
    """Program minus this, paired over the samples both answered. Higher is better, but lower for rmse."""


class Part(_Frozen):
    """The figures of one part of the samples: a distortion, a level or a question type."""

    n: int
    figures: dict[MetricName, Figure]


class Bin(_Frozen):
    """Samples of like confidence: what was claimed and what held."""

    n: int
    confidence: float
    right: Figure


class Details(_Frozen):
    """Figures beyond the headline ones; each null or empty where the data has no such label."""

    mae: Figure | None = None
    bias: Figure | None = None
    pairwise: Figure | None = None
    """Share of pairs put in the right order."""
    plcc_logistic4: Figure | None = None
    rmse_logistic4: Figure | None = None
    plcc_logistic5: Figure | None = None
    rmse_logistic5: Figure | None = None
    outlier_ratio: Figure | None = None
    """Share of scores more than two standard deviations of the opinions away from their mean."""
    calibration_error: Figure | None = None
    calibration_bins: tuple[Bin, ...] = ()
    by_distortion: dict[str, Part] = Field(default_factory=dict)
    by_level: dict[str, Part] = Field(default_factory=dict)
    """By the human score rounded to a level, "1" to "5"."""
    by_question_type: dict[str, Part] = Field(default_factory=dict)
    confusion: dict[str, dict[str, int]] = Field(default_factory=dict)
    """True letter -> answered letter -> count."""
    chance: float | None = None
    """Accuracy of guessing: the mean of 1 / options."""


class Readings(_Frozen):
    """The tool readings of one run, and the cache on disk they came from and went to."""

    fresh: int = 0
    """Not in the cache, so measured."""
    cached: int = 0
    failed: int = 0
    entries: int | None = None
    """Readings on disk at the end, of all runs; None without a cache. Likewise below."""
    size_mb: float | None = None
    limit_mb: int | None = None


class EvaluationRecord(_Frozen):
    """Everything needed to read, compare and repeat an evaluation. Round-trips through JSON."""

    schema_version: Literal[2] = SCHEMA_VERSION
    dataset: Dataset = Dataset()
    scoring: Counts = Counts()
    mcq: Counts = Counts()
    other: Counts = Counts()
    groups: int = 0
    """Distinct photographs among all samples asked."""
    srcc: Figure | None = None
    plcc: Figure | None = None
    """Of the raw scores, without a fitted logistic."""
    krcc: Figure | None = None
    rmse: Figure | None = None
    """On the 1..5 scale."""
    accuracy: Figure | None = None
    details: Details | None = None
    baselines: dict[str, Baseline] = Field(default_factory=dict)
    readings: Readings | None = None
    """By key; empty unless they were asked for."""
    rungs: dict[str, int] = Field(default_factory=dict)
    """How many samples were answered on each rung of the answer ladder."""
    rung_shares: dict[str, float] = Field(default_factory=dict)
    """The same as shares of the samples asked."""
    lm_calls: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    baseline_cost: Cost | None = None
    """What the baselines cost on top."""
    spent_by_stage: dict[str, Cost] = Field(default_factory=dict)
    """Sums of model calls, tokens and money by stage: planner, executor, summarizer."""
    spent_per_sample: dict[str, float] = Field(default_factory=dict)
    """Means over the samples that say: tokens, calls, cache hits, tool readings, replans, seconds by stage."""
    pace: dict[str, float] = Field(default_factory=dict)
    """Over the samples that say: seconds a sample took ("seconds_p50", "seconds_p95"), and the shares of samples that
    planned again ("replan_rate") and of tool readings that failed ("tool_failure_rate")."""
    seed: int = 0
    wall_seconds: float = 0.0
    """Of this run; samples taken over from a checkpoint cost nothing again."""
    context: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings hash, program hash, model names, tools: what the caller knows of the program."""
    environment: Environment
    rows: Rows = Field(default_factory=Rows)

    @property
    def figures(self) -> dict[MetricName, Figure]:
        """The figures for which the data has labels, by metric."""
        named: tuple[MetricName, ...] = (*SCORING_METRICS, "accuracy")
        return {name: figure for name in named if (figure := getattr(self, name)) is not None}

    @property
    def failed(self) -> int:
        """Samples that failed, over all tasks."""
        return self.scoring.failed + self.mcq.failed + self.other.failed

    def failures(self) -> Iterator[tuple[str, str]]:
        """Yield id and reason of every sample that failed, in the samples' order."""
        return ((row.id, row.error or "") for row in self.rows if row.status == "failed") if self.failed else iter(())

    def summary(self) -> dict[str, Any]:
        """Return the record as JSON-ready values, without the rows but with why samples failed."""
        failures = [{"id": name, "error": error} for name, error in self.failures()]
        return {**self.model_dump(mode="json", exclude={"rows"}), "failures": failures}


def summarize(
    rows: Sequence[Row],
    *,
    dataset: Dataset | None = None,
    context: Mapping[str, JsonValue] | None = None,
    seed: int = 0,
    wall_seconds: float = 0.0,
) -> EvaluationRecord:
    """Return the record over `rows`; figures are null where no row has such a label."""
    kept = rows if isinstance(rows, Rows) else Rows(rows)
    tally = _Tally()
    labelled: dict[Task, list[tuple[str, str, Any, Any]]] = {"scoring": [], "mcq": [], "open": []}
    truths: Counter[Task] = Counter()
    for row in kept:
        tally.add(row)
        truths[row.task] += row.truth is not None
        if row.counts:
            labelled[row.task].append((row.id, row.group, row.truth, row.predicted))
    figures: dict[str, Any] = {}
    for task, names in TASK_METRICS:
        if truths[task]:
            # Sorted, so that the order of the data changes no interval.
            columns = list(zip(*sorted(labelled[task], key=lambda cells: cells[0]), strict=True)) or [()] * 4
            _, groups, truth, predicted = columns
            asked = truths[task]
            figures |= {name: interval(name, truth, predicted, groups, seed=seed).of(asked) for name in names}
    return EvaluationRecord(
        dataset=dataset or Dataset(), seed=seed, wall_seconds=wall_seconds, context=dict(context or {}),
        environment=environment(), rows=kept, **tally.fields(), **figures,
    )  # fmt: skip


class _Tally:
    """Counts and costs over rows, one at a time."""

    def __init__(self) -> None:
        self._counts: dict[Task, Counter[str]] = {"scoring": Counter(), "mcq": Counter(), "open": Counter()}
        self._groups: set[str] = set()
        self._rungs: Counter[str] = Counter()
        self._costs: dict[str, Any] = {}
        self._spent: dict[str, float] = {}
        self._spenders = 0
        self._replanned = 0
        self._seconds = array("d")

    def add(self, row: Row) -> None:
        status = "failed" if row.status == "failed" else "used" if row.counts else "unlabelled"
        self._counts[row.task].update(("asked", status))
        self._groups.add(row.group)
        self._seconds.append(row.seconds)
        if row.rung:
            self._rungs[row.rung] += 1
        if row.spent is not None:
            self._spenders += 1
            self._replanned += row.spent.get("replans", 0) > 0
            for name, amount in row.spent.items():
                self._spent[name] = self._spent.get(name, 0.0) + amount
        spent: Iterable[tuple[str, BaseModel]] = [("", row)]
        if row.baseline_cost is not None:
            spent = [*spent, ("baseline_", row.baseline_cost)]
        for prefix, holder in spent:
            for name in ("lm_calls", "tokens", "cost_usd"):
                value = getattr(holder, name)
                if value is not None:
                    self._costs[prefix + name] = self._costs.get(prefix + name, 0) + value

    def fields(self) -> dict[str, Any]:
        counts = self._counts
        asked = sum(counter["asked"] for counter in counts.values())
        baseline = {k.removeprefix("baseline_"): v for k, v in self._costs.items() if k.startswith("baseline_")}
        return {
            "scoring": Counts(**counts["scoring"]), "mcq": Counts(**counts["mcq"]), "other": Counts(**counts["open"]),
            "groups": len(self._groups),
            "rungs": dict(sorted(self._rungs.items())),
            "rung_shares": {rung: round(n / asked, 6) for rung, n in sorted(self._rungs.items())},
            "pace": self._pace(),
            "baseline_cost": Cost(**baseline) if baseline else None,
            "spent_by_stage": self._by_stage(),
            "spent_per_sample": {name: round(total / self._spenders, 6) for name, total in self._spent.items()},
            **{name: self._costs.get(name) for name in ("lm_calls", "tokens", "cost_usd")},
        }  # fmt: skip

    def _by_stage(self) -> dict[str, Cost]:
        sums: dict[str, dict[str, Any]] = {}
        for name, total in self._spent.items():
            kind, _, stage = name.rpartition("_")
            if kind in {"lm_calls", "tokens", "cost_usd"} and stage in {"planner", "executor", "summarizer"}:
                sums.setdefault(stage, {})[kind] = round(total, 6) if kind == "cost_usd" else int(total)
        return {stage: Cost(**sums[stage]) for stage in sorted(sums)}

    def _pace(self) -> dict[str, float]:
        pace: dict[str, float] = {}
        if self._seconds:
            middle, slow = np.percentile(np.frombuffer(self._seconds), (50, 95))
            pace = {"seconds_p50": round(float(middle), 6), "seconds_p95": round(float(slow), 6)}
        if self._spenders:
            pace["replan_rate"] = round(self._replanned / self._spenders, 6)
        if readings := self._spent.get("tool_readings"):
            pace["tool_failure_rate"] = round(self._spent.get("tool_failures", 0.0) / readings, 6)
        return pace


def compare(before: Sequence[Row], after: Sequence[Row], *, seed: int = 0) -> dict[MetricName, Figure]:
    """Return `after - before` for every metric, over the samples that both programs answered.

    Higher is better for srcc, plcc, krcc and accuracy, lower for rmse. Raises InputError where a sample's truth
    differs between the two.
    """
    others = {row.id: row for row in after if row.counts}
    pairs = sorted(((row, others[row.id]) for row in before if row.counts and row.id in others), key=lambda p: p[0].id)
    for first, second in pairs:
        if (first.task, first.truth) != (second.task, second.truth):
            raise InputError(
                f"sample {first.id!r}: its truth is {first.truth!r} in one and {second.truth!r} in the other; "
                "compare two runs over the same manifest"
            )
    differences: dict[MetricName, Figure] = {}
    for task, names in TASK_METRICS:
        chosen = [pair for pair in pairs if pair[0].task == task]
        if chosen:
            truth: list[Any] = [first.truth for first, _ in chosen]
            old: list[Any] = [first.predicted for first, _ in chosen]
            new: list[Any] = [second.predicted for _, second in chosen]
            groups = [first.group for first, _ in chosen]
            differences |= {name: paired_difference(name, truth, old, new, groups, seed=seed) for name in names}
    return differences
