"""Simpler ways to answer the same samples: each tool alone, means, the model alone, and the two fusion formulas."""

import math
from collections.abc import Mapping
from typing import Any

from data.manifest import Sample
from program.agent.assessment import Assessment
from program.agent.loop import AgenticIQA
from program.agent.state import AssessmentState
from program.common.errors import InputError
from program.evaluation.figures import compare, figure_of
from program.evaluation.record import Baseline, EvaluationRecord
from program.evaluation.row import Cost, LabelledRow
from program.fusion import ScoreFusion
from program.images.store import IMAGES
from program.lms.metering import metered

__all__ = ("BaselineAnswers", "with_baselines")

MODEL_ONLY = "model only"
ALL_TOOLS = "all tools"
ALL_RELIABLE = "all tools by reliability"


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

    def __call__(self, sample: Sample, assessment: Assessment) -> tuple[dict[str, float | str], Cost]:
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
            alone = self._model_only(assessment.state, image, reference)
        if alone is not None:
            answers[MODEL_ONLY] = alone
        tokens = usage.input_tokens + usage.output_tokens
        return answers, Cost(lm_calls=usage.lm_calls, tokens=tokens, cost_usd=usage.cost_usd)

    def _model_only(self, state: AssessmentState, image: Any, reference: Any) -> float | str | None:
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


_WAYS: Mapping[str, tuple[str, str]] = {
    "tools used": ("mean of the tools the agent used", "tools"),
    "tools used by reliability": ("the agent's tools, weighted by reliability", "tools"),
    ALL_TOOLS: ("mean of all ready tools", "tools"),
    ALL_RELIABLE: ("all ready tools, weighted by reliability", "tools"),
    MODEL_ONLY: ("model only, no evidence", "model"),
    "model with evidence": ("model's level with evidence", "model"),
    "mean of tools and model": ("plain mean, tools and model", "mean"),
    "printed fusion": ("fusion as printed", "fusion"),
    "normalised fusion": ("fusion normalised", "fusion"),
    "fusion by reliability": ("fusion normalised, tools by reliability", "fusion"),
}
"""What each way to answer is called, and its kind; single tools go before them."""


def with_baselines(record: EvaluationRecord) -> EvaluationRecord:
    """Return the record with a table entry for every baseline its rows hold, in the table's order."""
    rows = [row for row in record.rows if row.task != "open"]
    answers = [_answers(row) for row in rows]
    tools = {name: (f"{name} alone", "tool") for each in answers for name in each if name not in _WAYS}
    baselines: dict[str, Baseline] = {}
    for name, (label, kind) in {**tools, **_WAYS}.items():
        others = [_answered(row, each.get(name)) for row, each in zip(rows, answers, strict=True)]
        gain = compare(others, rows, seed=record.seed)
        figures: dict[str, Any] = {metric: figure_of(metric, others, seed=record.seed) for metric in gain}
        gain = {metric: difference.of(figures[metric].asked) for metric, difference in gain.items()}
        if gain:
            baselines[name] = Baseline.model_validate({"label": label, "kind": kind, "gain": gain, **figures})
    return record.model_copy(update={"baselines": baselines})


def _answers(row: LabelledRow) -> dict[str, float | str | None]:
    """Return what each way answered a sample, by its name."""
    belief = row.beliefs.get
    tools, model = belief("tool_mean"), belief("expected_level")
    return {
        **(row.baselines or {}), "tools used": tools, "tools used by reliability": belief("tool_mean_reliable"),
        "model with evidence": model,
        "mean of tools and model": None if tools is None or model is None else math.fsum((tools, model)) / 2,
        "printed fusion": belief("fusion_printed"), "normalised fusion": belief("fusion_normalised"),
        "fusion by reliability": belief("fusion_reliable"),
    }  # fmt: skip


def _answered(row: LabelledRow, answer: float | str | None) -> LabelledRow:
    """Return the row as if the program had answered this; failed where either did not answer."""
    if not row.counts or answer is None or isinstance(answer, str) != (row.task == "mcq"):
        return row.model_copy(update={"status": "failed"})
    return row.model_copy(update={"answer" if row.task == "mcq" else "score": answer})
