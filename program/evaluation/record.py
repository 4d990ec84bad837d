"""What an evaluation keeps: of each sample a row, with what is true and what it cost; and one record over all rows."""

import hashlib
import heapq
import math
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from program.agent.assessment import Assessment
from program.common.backends import Frozen, Usage
from program.common.keys import redact
from program.common.request import Request
from program.evaluation.intervals import METRICS, Figure
from program.fusion import ScoreFusion
from program.fusion.levels import expected_level
from program.running.row import Row
from program.tools.registry import installed_version

WORST = 12
"""So many of a task's worst misses keep the program's reasons, and stand on the page."""

Task = Literal["scoring", "mcq", "open"]

_MAX_TEXT, _MAX_REASONING = 300, 1200
_COLUMNS = (
    "id", "group", "task", "distortion", "question_type", "choices", "truth", "mos_std", "preferred_over", "predicted",
    "level", "level_probabilities", "score_interval", "tool_mean", "tool_mean_equal", "tool_mean_reliable",
    "expected_level", "fusion_printed", "fusion_normalised", "fusion_reliable", "baselines", "fitted",
    "status", "attempt", "seconds", "lm_calls", "tokens", "cost_usd", "usage", "error",
)  # fmt: skip
"""Of a table of samples."""
_TEXTS = dict.fromkeys(
    (
        "reasoning", "quality_reasoning", "evidence", "distortions", "tools", "notes", "option", "options", "image",
        "reference", "query",
    )
)  # fmt: skip
"""What a row loses that nobody will look at."""


class LabelledRow(Row):
    """One sample: what was true, what the program said, and what it cost. Holds no image and no prompt."""

    group: str
    """The content (photograph) it shows; samples of one group are not independent."""
    task: Task
    status: Literal["ok", "degraded", "failed"]
    """"failed" samples are counted and enter no figure."""
    distortion: str | None = None
    question_type: str | None = None
    choices: int | None = None
    """Options to choose from (mcq)."""
    truth: float | str | None = None
    """Human score on 1..5 (scoring), option letter (mcq), None (open)."""
    mos_std: float | None = None
    """Standard deviation of the opinions behind the truth, on the 1..5 scale."""
    preferred_over: dict[str, float] | None = None
    """How many votes found this image better than another, by the other's id; None where nobody was asked."""
    level_probabilities: dict[int, float] | None = None
    beliefs: dict[str, float] = Field(default_factory=dict)
    """What the score was fused from and what other formulas make of it, by name: see `_beliefs`."""
    baselines: dict[str, float | str] | None = None
    """What each baseline answered, by its name; one that failed is absent."""
    fitted: bool = False
    """Whether the program was fitted or chosen on it, or on others of its group."""
    seconds: float = 0.0
    tokens: int | None = None
    usage: Usage | None = None
    """What the answer took, also by stage; without what was sent."""
    quality_reasoning: str | None = None
    """Why, with the sources; kept for the worst misses only."""
    evidence: dict[str, JsonValue] | None = None
    """What the answer rests on; likewise."""

    @classmethod
    def of(cls, request: Request, result: Assessment, *, eta: float = 1.0) -> Self:
        """Return what a program made of a sample; `eta` is that of the formulas it is compared with."""
        labels, usage = _labels(request), _costs(result.usage)
        error = result.error or "the program gave no reason" if result.status == "failed" else None
        if error is None and labels["task"] == "scoring" and result.quality_score is None:
            error = f"answered {result.final_answer!r} where a score was asked"
        if error is not None:
            return cls(**labels, **usage, status="failed", error=_one_line(error), attempt=result.attempt)
        probabilities = result.level_probabilities
        own = {
            "level_probabilities": {c: _rounded(p) for c, p in probabilities.items()} if probabilities else None,
            "beliefs": {name: b for name, b in _beliefs(result, eta).items() if b is not None},
            "error": _one_line(result.error) if result.error else None,
            "quality_reasoning": result.quality_reasoning[:_MAX_REASONING],
            "evidence": result.used_evidence or result.state.evidence.basis(),
        }  # fmt: skip
        return cls(**dict(Row.of(request, result)) | labels | usage | own)

    @classmethod
    def failed_row(cls, request: Request, error: str) -> Self:
        """Return the row of a sample that got no answer."""
        return cls(**_labels(request), status="failed", error=_one_line(error))

    @property
    def predicted(self) -> float | str | None:
        """Score on 1..5, option letter or text as the program gave it; None where it failed."""
        if self.status == "failed":
            return None
        rated = self.score if self.score is not None else self.tool_mean
        if self.task == "scoring":
            return rated
        text = (self.answer if self.answer is not None else str(rated)).strip()[:_MAX_TEXT]
        return text.upper() if self.task == "mcq" else text

    @property
    def score_interval(self) -> tuple[float, float] | None:
        """Where the program says that 95 % of such scores lie."""
        is_scored = self.task == "scoring" and self.low is not None and self.high is not None
        return (self.low, self.high) if is_scored else None  # type: ignore[return-value]

    @property
    def miss(self) -> float | None:
        """How far the answer is from the truth; None for a right one. Wrong letters differ by chance alone."""
        if not self.counts or self.predicted is None:
            return None
        if self.task == "scoring":
            return abs(float(self.predicted) - float(self.truth or 0.0))
        if self.task == "mcq" and self.predicted != self.truth:
            return int.from_bytes(hashlib.blake2b(self.id.encode(), digest_size=4).digest(), "big") / 2**32
        return None

    @property
    def counts(self) -> bool:
        """Whether the row enters the figures: it has a truth and did not fail."""
        return self.status != "failed" and self.truth is not None

    def columns(self) -> dict[str, Any]:
        """Return what a table of samples holds of it."""
        values = self.model_dump(mode="json") | self.beliefs
        values |= {"predicted": self.predicted, "score_interval": self.score_interval and list(self.score_interval)}
        return {name: values.get(name) for name in _COLUMNS}


class WorstRows:
    """Tells, row by row, whether it is among the worst so far; of n rows in random order about 12 ln n are."""

    def __init__(self) -> None:
        self._heaps: dict[str, list[tuple[float, str]]] = {}

    def trim(self, row: LabelledRow) -> LabelledRow:
        """Return the row, without its texts unless it is among the worst of its task so far."""
        size, heap = row.miss, self._heaps.setdefault(row.task, [])
        if size is not None:
            heapq.heappush(heap, (size, row.id))
            if len(heap) <= WORST or heapq.heappop(heap) != (size, row.id):
                return row
        return row.model_copy(update=_TEXTS)


def _labels(sample: Any) -> dict[str, Any]:
    """Return what a row says of a sample before anybody answers it."""
    shown = hashlib.sha256(str(sample.reference or sample.image).encode()).hexdigest()[:12]
    labels = {
        "id": sample.id,
        # Several samples of one photograph are not independent, whether or not the manifest names a group.
        "group": sample.group or f"image-{shown}",
        "task": sample.task, "distortion": sample.distortion, "truth": sample.truth,
        "preferred_over": sample.preferred_over,
    }  # fmt: skip
    kind = sample.metadata.get("question_type")
    if sample.task == "mcq" and kind is not None:
        labels["question_type"] = str(kind)[:80]
    if sample.options:
        labels["choices"] = len(sample.options)
    if sample.task == "scoring" and sample.mos_std is not None:
        low, high = sample.mos_range
        labels["mos_std"] = round(4 * sample.mos_std / (high - low), 6)
    return labels


def _one_line(text: str) -> str:
    """Return a message on one line, short, without base64 and keys."""
    shortened = re.sub(r"[A-Za-z0-9+/=_-]{120,}", "...", " ".join(redact(str(text)).split()))
    return shortened if len(shortened) <= _MAX_TEXT else shortened[: _MAX_TEXT - 3] + "..."


def _beliefs(result: Assessment, eta: float) -> dict[str, float | None]:
    """Return the two beliefs a score is fused from, and what each formula makes of them with the settings' eta.

    "tool_mean_equal", the plain mean of the tool scores the program used, and "expected_level", the mean of the level
    probabilities; fused with the plain mean by the formula as printed, clipped to 1..5 ("fusion_printed"), and
    normalised ("fusion_normalised"). "tool_mean_reliable" and "fusion_reliable": the tools weighted by what their
    calibration says of them, the normalised formula with its width too. A fitted fusion plays no part: the formulas are
    compared alike whatever was compiled.
    """
    (scores, precisions), probabilities = result.state.evidence.readings, result.level_probabilities
    mean = math.fsum(scores) / len(scores) if scores else None
    level = expected_level(probabilities) if probabilities else None
    beliefs = {"tool_mean_equal": _rounded(mean), "expected_level": _rounded(level)}
    if mean is not None and probabilities:
        fusion = ScoreFusion(eta)
        beliefs["fusion_normalised"] = _rounded(fusion.fuse_scores([mean], probabilities))
        # Written out: ScoreFusion would warn of nearly every sample that the printed formula leaves the scale.
        weights = fusion.compute_perceptual_weights([mean])
        printed = math.fsum(weights[c] * probabilities.get(c, 0.0) * c for c in weights)
        beliefs["fusion_printed"] = _rounded(min(5.0, max(1.0, printed)))
    if scores and precisions is not None:
        reliable = ScoreFusion(eta, tool_weights="reliability")
        beliefs["tool_mean_reliable"] = _rounded(reliable.tool_mean(scores, precisions))
        if probabilities:
            beliefs["fusion_reliable"] = _rounded(reliable.fuse_scores(scores, probabilities, precisions))
    return beliefs


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def _costs(usage: Usage) -> dict[str, Any]:
    tokens = usage.input_tokens + usage.output_tokens
    own = usage.model_copy(update={"wire_images": [], "wire_notes": []})
    return {"lm_calls": usage.lm_calls, "tokens": tokens, "cost_usd": usage.cost_usd, "usage": own}


_PACKAGES = ("agentic-iqa", "dspy", "pyiqa", "torch", "numpy", "scipy", "scikit-image", "pillow", "mlflow", "pydantic")


class Environment(Frozen):
    """The software a result came from; no host, user or path."""

    python: str
    platform: str
    versions: dict[str, str]
    """Installed packages that can change a result; absent ones are left out."""
    git_commit: str | None = None
    """None outside a checkout."""
    git_dirty: bool | None = None
    """Whether tracked files differed from the commit."""


class Agreement(BaseModel):
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


class Counts(Frozen):
    """How many samples of one task were asked, answered and lost."""

    asked: int = 0
    used: int = 0
    """Entered the figures."""
    failed: int = 0
    unlabelled: int = 0
    """Answered, but without a truth to compare with."""


class Dataset(Frozen):
    """What was evaluated."""

    name: str = "unnamed"
    manifest_sha256: str | None = None
    split: str | None = None
    """The split taken; None for all."""
    judge: str = "people"
    """Whose labels these are, in words (`data.manifest.Sample.judge`)."""


class Fitted(Frozen):
    """How many of the samples asked for a program was fitted or chosen on, and what became of them."""

    samples: int
    by_group: int = 0
    """Of these, those of which only the group or the reference is known."""
    left_out: bool = False
    drawn: bool = False
    """Whether the split is the one that the program's compile drew."""

    def __str__(self) -> str:
        fate = ("counted", "left out")[self.left_out]
        return f"{self.samples} {fate}" if self.samples else "none"


class Baseline(Agreement):
    """A simpler way to answer the same samples, and what the program adds to it.

    Figures are over the samples that both answered, out of all that have a label.
    """

    label: str
    kind: Literal["uncompiled", "tool", "tools", "model", "mean", "fusion"]
    gain: dict[str, Figure] = Field(default_factory=dict)
    """Program minus this, paired over the samples both answered. Higher is better, but lower for rmse."""


class PartFigures(Frozen):
    """The figures of one part of the samples: a distortion, a level or a question type."""

    n: int
    figures: dict[str, Figure]


class Details(Agreement):
    """Figures beyond the headline ones, and parts of the samples; empty where the data has no such label."""

    headline: ClassVar[bool] = False

    by_distortion: dict[str, PartFigures] = Field(default_factory=dict)
    by_level: dict[str, PartFigures] = Field(default_factory=dict)
    """By the human score rounded to a level, "1" to "5"."""
    by_question_type: dict[str, PartFigures] = Field(default_factory=dict)
    chance: float | None = None
    """Accuracy of guessing: the mean of 1 / options."""


class EvaluationRecord(Agreement):
    """Everything needed to read, compare and repeat an evaluation. Round-trips through JSON."""

    schema_version: Literal[2] = 2
    dataset: Dataset = Dataset()
    scoring: Counts = Counts()
    mcq: Counts = Counts()
    other: Counts = Counts()
    groups: int = 0
    """Distinct photographs among all samples asked."""
    fitted: Fitted | None = None
    """None where nobody knows what the program was fitted on."""
    details: Details | None = None
    baselines: dict[str, Baseline] = Field(default_factory=dict)
    attempts: dict[str, int] = Field(default_factory=dict)
    """How many samples were answered at each attempt."""
    lm_calls: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    pace: dict[str, float] = Field(default_factory=dict)
    """Over the samples that say: seconds a sample took ("seconds_p50", "seconds_p95"), and what an image cost."""
    seed: int = 0
    wall_seconds: float = 0.0
    """Of this run; what the cache holds takes none."""
    context: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings hash, program hash, model names, tools: what the caller knows of the program."""
    environment: Environment
    rows: tuple[LabelledRow, ...] = ()

    @property
    def failed(self) -> int:
        """Samples that failed, over all tasks."""
        return self.scoring.failed + self.mcq.failed + self.other.failed

    @property
    def degraded(self) -> int:
        """Samples of which a part of the evidence, or the model's answer, is missing."""
        return sum(row.status == "degraded" for row in self.rows)

    @property
    def is_incomplete(self) -> bool:
        """Whether a sample failed, or all are degraded."""
        return self.failed > 0 or 0 < self.degraded == len(self.rows)

    @property
    def is_of_fitted(self) -> bool:
        """Whether the program was fitted or chosen on all samples: then the figures say nothing of others."""
        return bool(self.rows) and all(row.fitted for row in self.rows)

    def failures(self) -> Iterator[tuple[str, str]]:
        """Yield id and reason of every sample that failed, in the samples' order."""
        return ((row.id, row.error or "") for row in self.rows if row.status == "failed") if self.failed else iter(())

    def summary(self) -> dict[str, Any]:
        """Return the record as JSON-ready values, without the rows but with why samples failed."""
        failures = [{"id": name, "error": error} for name, error in self.failures()]
        values = self.model_dump(mode="json", exclude={"rows"})
        return {**values, "degraded": self.degraded, "failures": failures}


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
