"""What an evaluation leaves behind: a row per sample, and one record over all rows."""

import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from program.evaluation.intervals import Figure
from program.evaluation.metric_table import METRICS
from program.evaluation.row import Cost, LabelledRow
from program.tools.readiness import installed_version

__all__ = (
    "SCHEMA_VERSION", "Baseline", "Bin", "Counts", "Dataset", "Details", "Environment", "EvaluationRecord",
    "GatePoint", "Part", "Readings", "environment",
)  # fmt: skip

SCHEMA_VERSION: Literal[2] = 2

_PACKAGES = ("agentic-iqa", "dspy", "pyiqa", "torch", "numpy", "scipy", "scikit-image", "pillow", "mlflow", "pydantic")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Environment(_Frozen):
    """The software a result came from; no host, user or path."""

    python: str
    platform: str
    versions: dict[str, str]
    """Installed packages that can change a result; absent ones are left out."""
    git_commit: str | None = None
    """None outside a checkout."""
    git_dirty: bool | None = None
    """Whether tracked files differed from the commit."""


class Figures(BaseModel):
    """A field for every headline metric of the table, or for every other one; None where the data has no such label."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, Figure | None]
    headline: ClassVar[bool] = True

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Figure | None: ...

    @model_validator(mode="before")
    @classmethod
    def _fields_of_the_table(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        fields = dict.fromkeys(name for name, metric in METRICS.items() if metric.headline == cls.headline)
        if surplus := data.keys() - fields - cls.model_fields.keys():
            raise ValueError(f"extra fields: {', '.join(sorted(map(str, surplus)))}")
        return fields | data

    @property
    def figures(self) -> dict[str, Figure]:
        """The figures for which the data has labels, by metric, in the table's order."""
        return {name: figure for name in METRICS if isinstance(figure := getattr(self, name, None), Figure)}


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
    judge: str = "people"
    """Whose labels these are, in words (`data.manifest.Sample.judge`)."""


class Baseline(Figures):
    """A simpler way to answer the same samples, and what the program adds to it.

    Figures are over the samples that both answered, out of all that have a label.
    """

    label: str
    kind: Literal["tool", "tools", "model", "mean", "fusion"]
    gain: dict[str, Figure] = Field(default_factory=dict)
    """Program minus this, paired over the samples both answered. Higher is better, but lower for rmse."""


class Part(_Frozen):
    """The figures of one part of the samples: a distortion, a level or a question type."""

    n: int
    figures: dict[str, Figure]


class Bin(_Frozen):
    """Samples of like confidence: what was claimed and what held."""

    n: int
    confidence: float
    right: Figure


class GatePoint(_Frozen):
    """A threshold on scores, 1..5, as a gate: what it stops against what people put below it."""

    threshold: float
    precision: Figure
    """Of the images that the program puts below it, the share that people do too."""
    recall: Figure
    """Of the images that people put below it, the share that the program does too."""


class Details(Figures):
    """Figures beyond the headline ones, and parts of the samples; empty where the data has no such label."""

    headline: ClassVar[bool] = False

    calibration_bins: tuple[Bin, ...] = ()
    gate: tuple[GatePoint, ...] = ()
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


class EvaluationRecord(Figures):
    """Everything needed to read, compare and repeat an evaluation. Round-trips through JSON."""

    schema_version: Literal[2] = SCHEMA_VERSION
    dataset: Dataset = Dataset()
    scoring: Counts = Counts()
    mcq: Counts = Counts()
    other: Counts = Counts()
    groups: int = 0
    """Distinct photographs among all samples asked."""
    details: Details | None = None
    baselines: dict[str, Baseline] = Field(default_factory=dict)
    readings: Readings | None = None
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
    rows: tuple[LabelledRow, ...] = ()

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


def environment() -> Environment:
    """Return the current environment; asks git, about 5 ms. Never fails."""
    commit, dirty = _git()
    versions = {name: version for name in _PACKAGES if (version := installed_version(name))}
    python, machine = platform.python_version(), f"{sys.platform}-{platform.machine()}"
    return Environment(python=python, platform=machine, versions=versions, git_commit=commit, git_dirty=dirty)


def _git() -> tuple[str | None, bool | None]:
    root, git = Path(__file__).resolve().parents[2], shutil.which("git")
    # An installed copy inside somebody else's checkout must not report their commit.
    if git is None or not (root / ".git").exists():
        return None, None
    try:
        command = [git, "-C", str(root), "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
        status = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.splitlines()  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None, None
    (commit,) = [line.removeprefix("# branch.oid ") for line in status if line.startswith("# branch.oid ")]
    return commit, any(not line.startswith("#") for line in status)
