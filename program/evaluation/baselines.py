"""Simpler ways to answer the same samples: each tool alone, means, the model alone, and the two fusion formulas."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from data.manifest import Sample
from program.agent.loop import AgenticIQA
from program.agent.state import AssessmentState
from program.common.errors import InputError
from program.evaluation.figures import compare, figure_of
from program.evaluation.record import Baseline, Cost, EvaluationRecord, Row
from program.fusion import ScoreFusion
from program.images.store import IMAGES
from program.lms.metering import metered

__all__ = ("BaselineAnswers", "with_baselines")

MODEL_ONLY = "model only"
ALL_TOOLS = "all tools"
ALL_RELIABLE = "all tools by reliability"
_MEANS = {ALL_TOOLS, ALL_RELIABLE, MODEL_ONLY}


class BaselineAnswers:
    """Answers a sample without the agent, right after the agent did: every ready tool, and the model on its own.

    A full-reference tool runs where the sample has a reference. Tools over 0.3 s an image are left out. The tools'
    scores are calibrated to 1..5 without knowledge of the distortion, as a user of that tool alone would get them.
    "model only" is a call of the program's Summarizer with no evidence: no finding, no tool score and no tool mean.
    """

    def __init__(self, program: AgenticIQA) -> None:
        self._program = program
        runner = program.resources.runner
        self._nr = tuple(spec.name for spec in runner.ready("NR"))
        self._fr = tuple(spec.name for spec in runner.ready("FR"))

    def __call__(self, sample: Sample, assessment: Any) -> tuple[dict[str, float | str], Cost]:
        """Return the answers by baseline; one that failed is absent. Never raises."""
        answers: dict[str, float | str] = {}
        try:
            image = IMAGES.add(sample.image)
            reference = IMAGES.add(sample.reference) if sample.reference else None
        except InputError:
            return {}, Cost()
        if sample.task == "scoring":
            names = (*self._fr, *self._nr) if reference is not None else self._nr
            runner = self._program.resources.runner
            read = [runner.measure(name, image, reference) for name in names]
            scores = {reading.tool: reading.score for reading in read if reading.score is not None}
            answers |= {name: round(score, 6) for name, score in scores.items()}
            if scores and len(scores) == len(names):
                values, precisions = list(scores.values()), runner.precisions([(name, None) for name in scores])
                answers[ALL_TOOLS] = round(math.fsum(values) / len(values), 6)
                known = [precision for precision in precisions if precision is not None]
                if len(known) == len(values):
                    mean = ScoreFusion(tool_weights="reliability").tool_mean(values, known)
                    answers[ALL_RELIABLE] = round(mean, 6)
        with metered() as usage:
            alone = self._model_only(assessment, image, reference)
        if alone is not None:
            answers[MODEL_ONLY] = alone
        tokens = usage.input_tokens + usage.output_tokens
        return answers, Cost(lm_calls=usage.lm_calls, tokens=tokens, cost_usd=usage.cost_usd)

    def _model_only(self, assessment: Any, image: Any, reference: Any) -> float | str | None:
        state: AssessmentState | None = getattr(assessment, "state", None)
        if state is None:
            return None
        blind = AssessmentState(
            query=state.query, image_path=state.image_path, reference_path=state.reference_path, options=state.options,
            plan=state.plan, executor_evidence=None,
        )  # fmt: skip
        try:
            answer = self._program.summarizer(state=blind, image=image, reference=reference)
        except Exception:  # the sample border again: a baseline's failure is counted, not raised
            return None
        text = answer.final_answer
        return None if answer.status == "failed" else text if isinstance(text, str) else round(text, 6)


@dataclass(frozen=True)
class _Way:
    """One row of the table: its key, what it is called, and the row's field with its answer."""

    key: str
    label: str
    kind: Literal["tool", "tools", "model", "mean", "fusion"]
    field: str = ""
    """Empty for those that `BaselineAnswers` gave."""

    def answer(self, row: Row) -> float | str | None:
        """Return what this way answered, or None."""
        if self.key == "mean of tools and model":
            pair = (row.tool_mean, row.expected_level)
            return None if None in pair else math.fsum(v for v in pair if v is not None) / 2
        answers: Mapping[str, float | str | None] = row.__dict__ if self.field else row.baselines or {}
        return answers.get(self.field or self.key)

    def row(self, row: Row) -> Row:
        """Return the row as if the program had answered this; failed where either did not answer."""
        answer = self.answer(row) if row.counts else None
        if answer is None or isinstance(answer, str) != (row.task == "mcq"):
            return row.model_copy(update={"status": "failed"})
        return row.model_copy(update={"predicted": answer})


_FIXED = (
    _Way("tools used", "mean of the tools the agent used", "tools", "tool_mean"),
    _Way("tools used by reliability", "the agent's tools, weighted by reliability", "tools", "tool_mean_reliable"),
    _Way(ALL_TOOLS, "mean of all ready tools", "tools"),
    _Way(ALL_RELIABLE, "all ready tools, weighted by reliability", "tools"),
    _Way(MODEL_ONLY, "model only, no evidence", "model"),
    _Way("model with evidence", "model's level with evidence", "model", "expected_level"),
    _Way("mean of tools and model", "plain mean, tools and model", "mean"),
    _Way("printed fusion", "fusion as printed", "fusion", "fusion_printed"),
    _Way("normalised fusion", "fusion normalised", "fusion", "fusion_normalised"),
    _Way("fusion by reliability", "fusion normalised, tools by reliability", "fusion", "fusion_reliable"),
)


def with_baselines(record: EvaluationRecord) -> EvaluationRecord:
    """Return the record with a table entry for every baseline its rows hold, in the table's order."""
    answered = [row for row in record.rows if row.task != "open"]
    tools = dict.fromkeys(key for row in answered for key in row.baselines or {} if key not in _MEANS)
    ways = (*(_Way(name, f"{name} alone", "tool") for name in tools), *_FIXED)
    baselines = {way.key: entry for way in ways if (entry := _entry(way, answered, record.seed)) is not None}
    return record.model_copy(update={"baselines": baselines})


def _entry(way: _Way, rows: Sequence[Row], seed: int) -> Baseline | None:
    answers = [way.row(row) for row in rows]
    gain = compare(answers, rows, seed=seed)
    figures: dict[str, Any] = {name: figure_of(name, answers, seed=seed) for name in gain}
    gain = {name: difference.of(figures[name].asked) for name, difference in gain.items()}
    return Baseline(label=way.label, kind=way.kind, gain=gain, **figures) if gain else None
