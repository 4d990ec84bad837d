"""What an evaluation leaves behind: one small row per sample, and one record over all of them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from program.errors import InputError
from program.evaluation.environment import Environment, environment
from program.evaluation.intervals import Figure, interval, paired_difference
from program.evaluation.metrics import MetricName

__all__ = ("SCHEMA_VERSION", "Counts", "Dataset", "EvaluationRecord", "Row", "compare", "summarize")

SCHEMA_VERSION: Literal[1] = 1

SCORING_METRICS: tuple[MetricName, ...] = ("srcc", "plcc", "krcc", "rmse")

Task = Literal["scoring", "mcq", "open"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Row(_Frozen):
    """One sample: what was true, what the program said, and what it cost. Holds no image and no prompt."""

    id: str
    group: str
    """The content (photograph) it shows; samples of one group are not independent."""
    task: Task
    distortion: str | None = None
    truth: float | str | None = None
    """Human score on 1..5 (scoring), option letter (mcq), None (open)."""
    predicted: float | str | None = None
    """Score on 1..5, option letter or text as the program gave it; None where it failed."""
    level_probabilities: dict[int, float] | None = None
    status: Literal["ok", "degraded", "failed"]
    """"failed" samples are counted and enter no figure."""
    rung: str | None = None
    """What the answer was read from, where the program says so."""
    seconds: float = 0.0
    lm_calls: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    error: str | None = None
    """One line, for a failed or degraded sample."""

    @property
    def counts(self) -> bool:
        """Whether the row enters the figures: it has a truth and did not fail."""
        return self.status != "failed" and self.truth is not None


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


class EvaluationRecord(_Frozen):
    """Everything needed to read, compare and repeat an evaluation. Round-trips through JSON."""

    schema_version: Literal[1] = SCHEMA_VERSION
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
    rungs: dict[str, int] = Field(default_factory=dict)
    """How many samples were answered on each rung of the answer ladder."""
    lm_calls: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    seed: int = 0
    wall_seconds: float = 0.0
    """Of this run; samples taken over from a checkpoint cost nothing again."""
    context: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings hash, program hash, model names: what the caller knows of the program."""
    environment: Environment
    rows: tuple[Row, ...] = ()

    @property
    def figures(self) -> dict[MetricName, Figure]:
        """The figures for which the data has labels, by metric."""
        named: tuple[MetricName, ...] = (*SCORING_METRICS, "accuracy")
        return {name: figure for name in named if (figure := getattr(self, name)) is not None}

    @property
    def failed(self) -> int:
        """Samples that failed, over all tasks."""
        return self.scoring.failed + self.mcq.failed + self.other.failed

    def summary(self) -> dict[str, Any]:
        """Return the record as JSON-ready values, without the rows."""
        return self.model_dump(mode="json", exclude={"rows"})


def summarize(
    rows: Sequence[Row],
    *,
    dataset: Dataset | None = None,
    context: Mapping[str, JsonValue] | None = None,
    seed: int = 0,
    wall_seconds: float = 0.0,
) -> EvaluationRecord:
    """Return the record over `rows`; figures are null where no row has such a label."""
    ordered = sorted(rows, key=lambda row: row.id)  # so that the order of the data changes no interval
    by_task: dict[Task, list[Row]] = {"scoring": [], "mcq": [], "open": []}
    for row in ordered:
        by_task[row.task].append(row)
    figures: dict[str, Any] = {}
    if any(row.truth is not None for row in by_task["scoring"]):
        figures |= {name: _figure(name, by_task["scoring"], seed) for name in SCORING_METRICS}
    if any(row.truth is not None for row in by_task["mcq"]):
        figures["accuracy"] = _figure("accuracy", by_task["mcq"], seed)
    return EvaluationRecord(
        dataset=dataset or Dataset(),
        scoring=_counts(by_task["scoring"]),
        mcq=_counts(by_task["mcq"]),
        other=_counts(by_task["open"]),
        groups=len({row.group for row in rows}),
        rungs=dict(sorted(Counter(row.rung for row in rows if row.rung).items())),
        lm_calls=_total(row.lm_calls for row in rows),
        tokens=_total(row.tokens for row in rows),
        cost_usd=_total(row.cost_usd for row in rows),
        seed=seed,
        wall_seconds=wall_seconds,
        context=dict(context or {}),
        environment=environment(),
        rows=tuple(rows),
        **figures,
    )


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
    for task, names in (("scoring", SCORING_METRICS), ("mcq", ("accuracy",))):
        chosen = [pair for pair in pairs if pair[0].task == task]
        if chosen:
            truth: list[Any] = [first.truth for first, _ in chosen]
            old: list[Any] = [first.predicted for first, _ in chosen]
            new: list[Any] = [second.predicted for _, second in chosen]
            groups = [first.group for first, _ in chosen]
            differences |= {name: paired_difference(name, truth, old, new, groups, seed=seed) for name in names}
    return differences


def _figure(metric: MetricName, rows: Sequence[Row], seed: int) -> Figure:
    used = [row for row in rows if row.counts]
    truth: list[Any] = [row.truth for row in used]
    predicted: list[Any] = [row.predicted for row in used]
    return interval(metric, truth, predicted, [row.group for row in used], seed=seed)


def _counts(rows: Sequence[Row]) -> Counts:
    failed = sum(row.status == "failed" for row in rows)
    used = sum(row.counts for row in rows)
    return Counts(asked=len(rows), used=used, failed=failed, unlabelled=len(rows) - used - failed)


def _total(values: Iterable[float | None]) -> Any:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
