"""What flows through an assessment: the state and each stage's output. Pure."""

import json
import logging
import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import ConfigDict, Field, JsonValue, StringConstraints, ValidationError, model_validator

from program.agent.notes import ended, note
from program.agent.query import QueryReading, QueryType, read_query
from program.common.backends import Record
from program.common.errors import first_fault
from program.images.store import Box, ImageRef
from program.tools.registry import Measurement
from signatures.schemas import GLOBAL, DistortionCategory, DistortionFinding, Intention, PictureKind, Plan, Severity

logger = logging.getLogger(__name__)

ImagePair = tuple[ImageRef, ImageRef | None]
"""An image and the reference beside it."""
HISTORY_LIMIT = 10
UNREAD = ("tools alone", "nothing")
"""What an answer was read from where no reply of a language model could be read."""
Status = Literal["ok", "degraded", "failed"]
BeliefSource = Literal["probabilities", "logprobs", "classification"]
_Text = Annotated[str, StringConstraints(strict=True, strip_whitespace=True, min_length=1)]
_Score = Annotated[float, Field(strict=True, ge=1, le=5, allow_inf_nan=False)]


class Finding(Record):
    """A distortion in one region: what, how strong, and what it does."""

    type: DistortionCategory
    severity: Severity
    explanation: str = ""
    fault: str = ""
    """What a photographer calls it ("motion blur"), where that is known."""

    @classmethod
    def all_in(cls, answers: Iterable[DistortionFinding]) -> "list[Finding]":
        """Return what a model found, without regions; one that says there is none is left out."""
        found = []
        for each in answers:
            if each.type != "none":
                words = each.explanation.strip()
                finding = cls(type=each.type, severity=each.severity, explanation=words, fault=each.fault)
                found.append(finding)
        return found

    def facts(self, *left_out: str) -> dict[str, Any]:
        """Return its fields without those left out, and without a fault where none is named."""
        facts = self.model_dump(exclude=set(left_out))
        if not self.fault:
            del facts["fault"]
        return facts


class ToolLog(Measurement):
    """One tool reading of an assessment: for which region and distortion, and what it counts."""

    region: str
    distortion: str
    precision: float | None = None
    """What the reading adds, as 1 / variance on 1..5; None where its calibration does not say."""
    alternative: str | None = None
    """For a failed tool: another ready tool that fits, if there is one."""


class ToolReadings(NamedTuple):
    """What tools say of an image: scores, 1..5, and how precise each is, where that is known."""

    scores: list[float]
    precisions: list[float] | None


class ExecutorOutput(Record):
    """The Executor's evidence by region ("Global": the whole image); None where no stage ran."""

    distortion_set: dict[str, list[str]] | None = None
    distortion_analysis: dict[str, list[Finding]] | None = None
    region_boxes: dict[str, Box] | None = None
    """Where the plan's regions are, in pixels, as the caller gave or the model located them."""
    selected_tools: dict[str, dict[str, str]] | None = None
    quality_scores: dict[str, dict[str, tuple[str, float]]] | None = None
    """Calibrated scores on 1..5: region -> distortion -> (tool, score)."""
    tool_logs: list[ToolLog] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    """What could not be done as asked (an unusable named tool, a region without a box)."""
    same_pixels: bool = False
    """Whether image and reference are the same: then the score is 5, whatever was measured."""
    shift: tuple[int, int] | None = None
    """By how many pixels the image lies to the right of its reference and below it, if it does."""
    lost_tools: list[str] = Field(default_factory=list)
    """What the notes say of named tools that gave no score, under this plan or an earlier one."""
    failed_steps: list[str] = Field(default_factory=list)
    """What gave nothing usable: plan, detection, analysis, tool selection (the model), tools (all)."""

    def with_findings(self, findings: list[Finding] | None) -> "ExecutorOutput":
        """Return this evidence with findings on the whole image; None: nobody has looked yet."""
        if findings is None:
            return self.model_copy(update={"distortion_set": None, "distortion_analysis": None})
        kinds = list(dict.fromkeys(each.type for each in findings if each.severity != "none"))
        update = {"distortion_set": {GLOBAL: kinds}, "distortion_analysis": {GLOBAL: findings}}
        return self.model_copy(update=update)

    def findings(self) -> list[tuple[str, Finding]]:
        """Return every finding with its region."""
        pairs = []
        for region, findings in (self.distortion_analysis or {}).items():
            pairs += [(region, finding) for finding in findings]
        return pairs

    @property
    def unread_steps(self) -> list[str]:
        """The steps in which the model gave nothing usable."""
        return [step for step in self.failed_steps if step != "tools"]

    @property
    def spares_tools(self) -> bool:
        """Whether no tool was run, as none would have added anything to the model's own belief."""
        return bool(self.selected_tools) and not any((self.selected_tools or {}).values())

    @property
    def is_empty(self) -> bool:
        """Whether no stage gave anything to rest an answer on."""
        return not self.distortion_analysis and not self.quality_scores

    @property
    def readings(self) -> ToolReadings:
        """The scores to fuse, one a distinct reading; None where one's precision is not known."""
        readings = set()
        for region, tools in (self.quality_scores or {}).items():
            readings |= {(region, tool, score) for tool, score in tools.values()}
        shares: dict[tuple[str, str, float | None], list[float | None]] = {}
        for log in self.tool_logs:
            shares.setdefault((log.region, log.tool, log.score), []).append(log.precision)
        scores, precisions = [], []
        for reading in sorted(readings):
            scores.append(reading[2])
            known = [share for share in shares.get(reading, [None]) if share is not None]
            if known == shares.get(reading):
                precisions.append(math.fsum(known))
        if scores and len(precisions) == len(scores):
            return ToolReadings(scores, precisions)
        return ToolReadings(scores, None)

    def basis(self) -> dict[str, Any] | None:
        """Name the readings and findings an answer rests on; None: it rests on the image alone."""
        if self.is_empty:
            return None
        readings = []
        for region, tools in (self.quality_scores or {}).items():
            for kind, (tool, score) in tools.items():
                of = {"region": region, "distortion": kind}
                readings.append({**of, "tool": tool, "score": round(score, 4)})
        findings = []
        for region, finding in self.findings():
            findings.append({"region": region, **finding.facts("explanation")})
        return {"readings": readings, "findings": findings}

    def failure_note(self) -> str:
        """Say what gave nothing usable in all attempts.

        >>> ExecutorOutput(failed_steps=["plan", "tools"]).failure_note()
        'the model gave no usable plan; every tool of the plan failed'
        """
        parts = []
        if self.unread_steps:
            parts.append(f"the model gave no usable {' and no usable '.join(self.unread_steps)}")
        if "tools" in self.failed_steps:
            parts.append("every tool of the plan failed")
        return "; ".join(parts)

    def looked_at(self, region: str) -> str:
        """Name what was looked at for a region: without a box, that is the whole image.

        >>> output = ExecutorOutput(region_boxes={"dog": (0, 0, 9, 9)})
        >>> output.looked_at("dog"), output.looked_at("car")
        ('dog', 'car (whole image)')
        """
        if region == GLOBAL:
            return "whole image"
        if region in (self.region_boxes or {}):
            return region
        return f"{region} (whole image)"

    def place_after(self, region: str) -> str:
        """Return what was looked at, in brackets after a finding; nothing for the whole image."""
        return "" if region == GLOBAL else f" ({self.looked_at(region)})"


class Columns(Record):
    """What an answer says of the quality in single values: fields of the answer and of a table's row.

    A scoring signature may ask a model for further ones, by the names that they have here.
    """

    level: str | None = Field(None, pattern="^[A-E]$")
    """The letter of the score, from A (excellent) to E (bad); empty where no model took part in the
    score."""
    tool_mean: float | None = None
    """The mean of the tools' scores that was fused, 1 to 5, by their weights; empty where no tool counts."""

    @classmethod
    def stated_in(cls, prediction: Mapping[str, Any]) -> "Columns":
        """Return what a model stated itself; with a warning nothing, where that cannot be."""
        stated = {name: prediction[name] for name in cls.model_fields if name in prediction}
        try:
            return cls(**stated)
        except ValidationError as error:
            logger.warning("the model states %s; left out", first_fault(error, "a field"))
            return cls()


class Rating(Columns):
    """What an answer says of the quality, whatever was asked."""

    quality_score: _Score | None = None
    """The quality from 1 to 5; of a question that a language model answers, the tools alone make it."""
    score_interval: tuple[float, float] | None = None
    """Where the mean score of people lies with a probability of 95 %: 1.96 standard deviations to either side."""
    level_probabilities: dict[int, float] | None = None
    """How likely the model holds each level, from 1 (bad) to 5 (excellent)."""
    level_probabilities_from: BeliefSource | None = None
    """How they were read: numbers the model wrote, its tokens' probabilities, or one level that it
    named, smoothed."""
    perceptual_weights: dict[int, float] | None = None
    """What each level weighs by the tools' mean: alpha of the fusion's formula."""


_EXAMPLES: list[JsonValue] = [
    {
        "final_answer": "B",
        "quality_reasoning": "The image shows moderate blur affecting sharpness, consistent with tool score of 2.6.",
        "need_replan": False,
    },
    {
        "final_answer": "Unable to determine",
        "quality_reasoning": "Insufficient evidence for vehicle region.",
        "need_replan": True,
        "replan_reason": "Missing tool scores for vehicle region",
    },
]


class SummarizerOutput(Rating):
    """The answer; tables, HTTP's JSON and MLflow's columns are made from it."""

    model_config = ConfigDict(json_schema_extra={"examples": _EXAMPLES})

    final_answer: _Text | _Score
    """The score from 1 to 5 where one was asked for, the letter of an option, or a text."""
    quality_reasoning: _Text
    """Why, with the sources: the model's own reasons, then what the score was made of and what was missing."""
    summary: str = ""
    """Why, in the model's own words alone; empty where the answer itself says it."""
    need_replan: bool = False
    """Whether the evidence falls short and more is looked for."""
    replan_reason: str | None = None
    """What is missing, where more is looked for."""
    unresolved_gap: str | None = None
    """Why the evidence still falls short, where nothing more is looked for."""
    used_evidence: dict[str, Any] | None = None
    """The readings and findings that the answer rests on; empty where it rests on the image alone."""
    guess: Literal["yes"] | None = None
    """`yes` where nothing that was measured speaks for the option that was chosen."""
    status: Status = "ok"
    """`ok`; `degraded`: a part of the evidence is missing; `failed`: no answer; in tables also `error`: no image that
    can be judged."""
    error: str | None = None
    """What went wrong, in one line."""
    attempt: str | None = None
    """What the answer was read from: "first call", "second call", "third call", "text", "tools alone" or "nothing"."""
    query_type: QueryType | None = None
    """What kind of question it was taken for."""
    query_rule: str | None = None
    """The rule that told the kind."""

    @property
    def is_unread(self) -> bool:
        """Whether none of a language model's replies could be read."""
        return self.attempt in UNREAD

    @property
    def rating(self) -> float | None:
        """The answer as a number, where a score was asked for; None for questions."""
        return self.final_answer if isinstance(self.final_answer, float) else None

    @property
    def score(self) -> float | None:
        """The quality from 1 to 5; empty where only tools measured it, beside a question to a language model."""
        if self.rating is None and self.level is None:
            return None
        return self.quality_score

    def with_rating(self, rating: Rating) -> "SummarizerOutput":
        """Return this answer with what another says of the quality."""
        return self.model_copy(update={name: getattr(rating, name) for name in Rating.model_fields})

    @model_validator(mode="before")
    @classmethod
    def _reason_for_replanning(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not values.get("need_replan"):
            return values
        if (values.get("replan_reason") or "").strip():
            return values
        logger.warning("need_replan is set without a reason")
        return {**values, "replan_reason": "No reason provided"}


GapKind = Literal[
    "uncovered", "uncertain", "unscored", "failed tool", "contradiction", "disagreement", "reduced", "wide"
]  # fmt: skip
"""What evidence lacks: findings on a region, a certain finding, tool scores, a tool's reading, agreement of
findings and scores, agreement of model and tools, a look at full size, or a narrow interval."""


class Gap(Record):
    """What evidence lacks, where, and the numbers that say so."""

    kind: GapKind
    regions: list[str] = Field(default_factory=lambda: [GLOBAL])
    distortions: list[str] = Field(default_factory=list)
    severity: Severity | None = None
    explanation: str = ""
    tool: str | None = None
    """The one that failed."""
    alternative: str | None = None
    """Another ready one that fits."""
    score: float | None = None
    """The tool's score, or the tools' mean, 1..5."""
    expected: float | None = None
    """The model's expected level, 1..5."""
    size: float | None = None
    """Of a disagreement in standard deviations, of an interval in levels, of a reduction its factor."""

    @property
    def is_doubt(self) -> bool:
        """Whether nothing is missing, but the score may be far off."""
        return self.kind in {"disagreement", "reduced", "wide"}

    @property
    def is_of_words(self) -> bool:
        """Whether only a language model's words could close it, and no tool."""
        return self.kind in {"uncovered", "uncertain"}

    def text(self, query: str = "") -> str:
        """Say it in the language of a question."""
        name, is_whole = str(self.kind), self.regions == [GLOBAL]
        if name in {"uncovered", "unscored"} and is_whole and not self.distortions:
            name += " whole"
        elif name in {"unscored", "contradiction"} and not self.distortions:
            name += " region"
        values = self.model_dump(exclude={"kind", "regions", "distortions"})
        values |= {"regions": ", ".join(self.regions), "distortions": ", ".join(self.distortions)}
        return note(name, query, **values)


class ReplanEntry(Record):
    """One replanning: which iteration, and why."""

    iteration: int = Field(ge=0)
    reason: str


class AssessmentState(Record):
    """Everything known of one assessment; each stage's field is optional and may be left unset."""

    query: str
    image_path: str
    """The image as the caller named it; the program works on its content-addressed reference."""
    image_notes: list[str] = Field(default_factory=list)
    """What was done to the image beyond plain decoding: a colour profile applied, ..."""
    intended: list[Intention] = Field(default_factory=list)
    """Effects that are meant, by the caller's word."""
    stated_kind: PictureKind | None = None
    """What kind of picture it is, likewise."""
    kind: str | None = None
    """What the embedded expert takes the image for: "photograph", "document", ..."""
    subject_sharp: float | None = None
    """How probably people call the subject of a photograph sharp, by the same."""
    advice: str | None = None
    """What to do about the faults of the whole image, in their order."""
    reference_path: str | None = None
    options: dict[str, str] | None = None
    regions: dict[str, Box] | None = None
    plan: Plan | None = None
    plan_repairs: list[str] = Field(default_factory=list)
    """What the rules changed in the planner's answer."""
    unusable_tools: list[str] = Field(default_factory=list)
    """What the rules say of named tools that cannot be used, a line each, as the repairs do."""
    plan_error: str | None = None
    """Why the Planner gave no usable plan, where the general plan stands in."""
    executor_evidence: ExecutorOutput | None = None
    summarizer_result: SummarizerOutput | None = None
    gap: Gap | None = None
    """What the last answer found missing in the evidence."""
    iteration_count: int = Field(0, ge=0)
    max_replan_iterations: int = Field(2, ge=0)
    replan_history: list[ReplanEntry] = Field(default_factory=list)

    @cached_property
    def reading(self) -> QueryReading:
        """The kind of the question, and its options by letter."""
        return read_query(self.query, self.options)

    @property
    def description(self) -> dict[str, Any]:
        """What the caller says of the picture, as inputs of a question."""
        return {"intended": self.intended or None, "kind": self.stated_kind}

    @property
    def evidence(self) -> ExecutorOutput:
        """The Executor's evidence, empty where there is none."""
        return self.executor_evidence or ExecutorOutput()

    @property
    def is_iqa(self) -> bool:
        """Whether technical quality is asked about, not beauty or content."""
        return self.plan is None or self.plan.query_type == "IQA"

    def has(self, stage: str) -> bool:
        """Return whether a stage's field was ever set (to a value or to None)."""
        return stage in self.model_fields_set

    def remember_replan(self, reason: str) -> None:
        """Count one replanning and append its reason; of more than 10 entries the oldest goes."""
        history = [*self.replan_history, ReplanEntry(iteration=self.iteration_count, reason=reason)]
        if len(history) > HISTORY_LIMIT:
            words = "excessive replanning: more than %d replans; the oldest is dropped"
            logger.warning(words, HISTORY_LIMIT)
        self.replan_history = history[-HISTORY_LIMIT:]
        self.iteration_count += 1


def of_same_pixels(output: ExecutorOutput, state: AssessmentState) -> ExecutorOutput:
    """Return the evidence on an image that is its own reference: nothing is wrong or missed."""
    scope = state.plan.query_scope if state.plan else [GLOBAL]
    words = ended(note("undistorted", state.query), state.query)
    none = Finding(type="Compression", severity="none", explanation=words)
    return output.model_copy(
        update={
            "distortion_set": {region: [] for region in scope},
            "distortion_analysis": {region: [none] for region in scope},
            "same_pixels": True,
            "notes": [note("same pixels", state.query), *output.notes],
            "failed_steps": [],
        }
    )


def answer_of_same_pixels(query: str) -> SummarizerOutput:
    """Return the answer to a question for the score of an image that is its own reference: 5."""
    words = ended(note("undistorted", query), query)
    return SummarizerOutput(
        final_answer=5.0,
        quality_score=5.0,
        level="A",
        quality_reasoning=words,
        summary=words,
        level_probabilities={1: 0.0, 2: 0.0, 3: 0.0, 4: 0.0, 5: 1.0},
        score_interval=(5.0, 5.0),
    )


def compact_json(value: Any) -> str:
    """Return JSON without spaces: a prompt is paid by the token."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
