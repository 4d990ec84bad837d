"""What flows through an assessment: the state, each stage's output, and the result a caller gets."""

import logging
import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from program.images import Box
from program.query import QueryType, read_query
from signatures.schemas import DistortionCategory, Plan, Severity

__all__ = (
    "Assessment",
    "AssessmentState",
    "BeliefSource",
    "ExecutorOutput",
    "Finding",
    "ReplanEntry",
    "StageUsage",
    "Status",
    "SummarizerOutput",
    "ToolLog",
    "Usage",
    "WireImage",
)

logger = logging.getLogger(__name__)

HISTORY_LIMIT = 10
Status = Literal["ok", "degraded", "failed"]
BeliefSource = Literal["probabilities", "logprobs", "classification"]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class Finding(_Record):
    """A distortion in one region: what, how strong, and what it does."""

    type: DistortionCategory
    severity: Severity
    explanation: str = ""


class ToolLog(_Record):
    """One tool reading: raw value in the tool's own unit, calibrated score on 1..5, or why there is none."""

    tool: str
    region: str
    distortion: str
    raw: float | None = None
    score: float | None = None
    seconds: float = 0.0
    cached: bool = False
    error: str | None = None
    box: tuple[float, float, float, float] | None = None
    """The pixels that were measured, when not the whole image (grown to the tool's minimum size)."""
    note: str | None = None
    """What was measured, where it is not the image as it is: averaged down, or against a resampled reference."""
    precision: float | None = None
    """What the reading adds, as 1 / variance on 1..5, by the tool's calibration; None where that does not say."""
    alternative: str | None = None
    """For a failed tool: another ready tool that fits, if there is one."""


class ExecutorOutput(_Record):
    """The Executor's evidence, by region ("Global" is the whole image); None where a stage did not run."""

    distortion_set: dict[str, list[str]] | None = None
    distortion_analysis: dict[str, list[Finding]] | None = None
    region_boxes: dict[str, Box] | None = None
    """Where the plan's regions are, in pixels: as the caller gave them, else as the model located them."""
    selected_tools: dict[str, dict[str, str]] | None = None
    quality_scores: dict[str, dict[str, tuple[str, float]]] | None = None
    """Calibrated scores on 1..5: region -> distortion -> (tool, score)."""
    tool_logs: list[ToolLog] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    """What could not be done as asked (an unusable named tool, a region without a box)."""
    failed_steps: list[str] = Field(default_factory=list)
    """Steps for which the model gave no usable answer: detection, analysis, tool selection."""

    @property
    def is_empty(self) -> bool:
        """Whether no stage gave anything to rest an answer on."""
        return not self.distortion_analysis and not self.quality_scores


class SummarizerOutput(_Record):
    """The Summarizer's answer. `final_answer` is a float on 1..5 for scoring, a letter or text otherwise."""

    model_config = ConfigDict(
        extra="forbid",
        validate_assignment=True,
        json_schema_extra={
            "examples": [
                {
                    "final_answer": "B",
                    "quality_reasoning": "The image shows moderate blur affecting sharpness, "
                    "consistent with tool score of 2.6.",
                    "need_replan": False,
                },
                {
                    "final_answer": "Unable to determine",
                    "quality_reasoning": "Insufficient evidence for vehicle region.",
                    "need_replan": True,
                    "replan_reason": "Missing tool scores for vehicle region",
                },
            ]
        },
    )

    final_answer: str | float
    quality_reasoning: str = Field(min_length=1)
    need_replan: bool = False
    replan_reason: str | None = None
    used_evidence: dict[str, Any] | None = None
    """The readings and findings the answer rests on, under "readings" and "findings"."""
    quality_score: float | None = Field(None, ge=1, le=5, allow_inf_nan=False)
    """The score that was asked for; of questions (options, explanations) and failed ratings the tools' mean alone."""
    level: str | None = Field(None, pattern="^[A-E]$")
    """The letter view of a score that was asked for; None for questions."""
    level_probabilities: dict[int, float] | None = None
    level_probabilities_from: BeliefSource | None = None
    """Numbers the model wrote, its tokens' log-probabilities, or one level that it named, smoothed."""
    score_interval: tuple[float, float] | None = None
    """Score -+ 1.96 standard deviations of the fused belief over the levels, on the score's scale, within [1, 5]."""
    status: Status = "ok"
    error: str | None = None
    rung: str | None = None
    """What the answer was read from: "first call", "second call", "third call", "text" or "tools alone"."""
    query_type: QueryType | None = None
    query_rule: str | None = None

    @property
    def rating(self) -> float | None:
        """The score, where one was asked for and given; None for questions, on which the tools' mean says nothing."""
        return self.final_answer if isinstance(self.final_answer, float) else None

    @field_validator("final_answer", mode="before")
    @classmethod
    def _checked_answer(cls, value: Any) -> Any:
        if isinstance(value, str):
            if not value.strip():
                raise ValueError("final_answer is empty")
            return value.strip()
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError("final_answer must be text or a number")
        if not (math.isfinite(value) and 1 <= value <= 5):
            raise ValueError(f"final_answer {value!r}: a score must lie in [1, 5]")
        return float(value)

    @field_validator("quality_reasoning", mode="before")
    @classmethod
    def _trimmed_reasoning(cls, value: Any) -> Any:
        return value.strip() if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _reason_for_replanning(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("need_replan") and not (values.get("replan_reason") or "").strip():
            logger.warning("need_replan is set without a reason")
            return {**values, "replan_reason": "No reason provided"}
        return values


class ReplanEntry(_Record):
    """One replanning: which iteration, and why."""

    iteration: int = Field(ge=0)
    reason: str


class AssessmentState(_Record):
    """Everything known of one assessment; each stage's field is optional and may be left unset."""

    query: str
    image_path: str
    """The image as the caller named it; the program itself works on its content-addressed reference."""
    image_notes: list[str] = Field(default_factory=list)
    """What was done to the image beyond plain decoding: transparency laid over white, a colour profile applied, ..."""
    reference_path: str | None = None
    options: dict[str, str] | None = None
    regions: dict[str, Box] | None = None
    plan: Plan | None = None
    plan_repairs: list[str] = Field(default_factory=list)
    """What the rules changed in the planner's answer."""
    executor_evidence: ExecutorOutput | None = None
    summarizer_result: SummarizerOutput | None = None
    iteration_count: int = Field(0, ge=0)
    max_replan_iterations: int = Field(2, ge=0)
    replan_history: list[ReplanEntry] = Field(default_factory=list)

    def has(self, stage: str) -> bool:
        """Return whether a stage's field was ever set (to a value or to None)."""
        return stage in self.model_fields_set

    def remember_replan(self, reason: str) -> None:
        """Count one replanning and append its reason; the oldest of more than 10 entries goes first."""
        history = [*self.replan_history, ReplanEntry(iteration=self.iteration_count, reason=reason)]
        if len(history) > HISTORY_LIMIT:
            logger.warning("excessive replanning: more than %d replans; the oldest is forgotten", HISTORY_LIMIT)
        self.replan_history = history[-HISTORY_LIMIT:]
        self.iteration_count += 1


class WireImage(_Record):
    """One image as a language model was sent it."""

    sha256: str
    """Of the original."""
    name: str
    media_type: str
    width: int
    height: int
    size_bytes: int
    change: str | None = None
    """How it differs from the original ("bmp as png", "scaled from 9000x6000 to 8000x5333"); None: original bytes."""


class StageUsage(_Record):
    """What the model calls of one stage cost."""

    lm_calls: int = 0
    """Calls of a model, repeats after a fault among them, answered from a cache or not."""
    lm_cache_hits: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    """None where no call's price is known."""


class Usage(StageUsage):
    """What one assessment cost: model calls, tokens, money where prices are known, and seconds per stage."""

    stages: dict[str, StageUsage] = Field(default_factory=dict)
    """The calls by stage: planner, executor, summarizer."""
    tool_readings: int = 0
    tool_cache_hits: int = 0
    tool_failures: int = 0
    replans: int = 0
    seconds: dict[str, float] = Field(default_factory=dict)
    """Wall time by stage: planner, executor, tools (part of the executor), summarizer, total."""
    wire_images: list[WireImage] = Field(default_factory=list)
    """Images that went to a model's service; answers from a cache and the embedded expert send none."""
    wire_notes: list[str] = Field(default_factory=list)
    """What a model's service refused or was sent otherwise than asked, as its JSON schema or log-probabilities."""


class Assessment(SummarizerOutput):
    """The result of one assessment: the Summarizer's answer, with the state it came from and what it cost."""

    state: AssessmentState
    usage: Usage = Field(default_factory=Usage)

    @property
    def option(self) -> str | None:
        """The text of the option that was chosen; None for other answers."""
        options = read_query(self.state.query, self.state.options).options or {}
        return options.get(str(self.final_answer)) if self.query_type is QueryType.MCQ else None

    @property
    def notes(self) -> list[str]:
        """What was judged, where it is not the image as it is: transparency laid over white, pixels averaged, ..."""
        evidence = self.state.executor_evidence
        measured = [log.note for log in evidence.tool_logs if log.note] if evidence else []
        return list(dict.fromkeys([*self.state.image_notes, *measured]))
