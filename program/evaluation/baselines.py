"""Simpler ways to answer the same samples, and what a program adds to each."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from data.manifest import Sample
from program.agent.assessment import Assessment
from program.agent.loop import AgenticIQA
from program.agent.saving import program_sha256
from program.agent.state import AssessmentState
from program.common.errors import InputError
from program.evaluation.figures import compare, figure_of
from program.evaluation.record import Baseline, EvaluationRecord, LabelledRow
from program.fusion import ScoreFusion
from program.images.store import IMAGES, ImageRef
from program.lms.limits import BudgetSpent

UNCOMPILED = "uncompiled"
MODEL_ONLY = "model only"
ALL_TOOLS = "all tools"
ALL_RELIABLE = "all tools by reliability"


class BaselineAnswers:
    """Answers a sample in simpler ways, right after the program did: uncompiled, every ready tool, the model alone.

    The uncompiled program has the same models; of a program that is not compiled there is no other.
    A full-reference tool runs where the sample has a reference. Tools over 0.3 s an image are left out. The tools'
    scores are calibrated to 1..5 without knowledge of the distortion, as a user of that tool alone would get them.
    "model only" is a call of the program's Summarizer with no evidence: no finding, no tool score and no tool mean.
    """

    def __init__(self, program: AgenticIQA) -> None:
        self._program, self._uncompiled = program, uncompiled(program)
        runner = program.resources.runner
        self._nr = tuple(spec.name for spec in runner.ready("NR"))
        self._fr = tuple(spec.name for spec in runner.ready("FR"))

    def __call__(self, sample: Sample, assessment: Assessment) -> dict[str, float | str]:
        """Return the answers by baseline; one that failed is absent. Raises BudgetSpent alone."""
        answers: dict[str, float | str] = {}
        try:
            image = IMAGES.add(sample.image)
            reference = IMAGES.add(sample.reference) if sample.reference else None
        except InputError:
            return {}
        if sample.task == "scoring":
            answers |= self._of_tools(image, reference)
        state = assessment.state
        blind = AssessmentState(
            query=state.query, image_path=state.image_path, reference_path=state.reference_path,
            options=state.options, plan=state.plan, executor_evidence=None,
        )  # fmt: skip
        alone = _answer(self._program.summarizer, state=blind, image=image, reference=reference)
        if alone is not None:
            answers[MODEL_ONLY] = alone
        before = _answer(self._uncompiled, **sample.arguments()) if self._uncompiled else None
        if before is not None:
            answers[UNCOMPILED] = before
        return answers

    def _of_tools(self, image: ImageRef, reference: ImageRef | None) -> dict[str, float]:
        """Return the score by each tool, and their means where all of them gave one."""
        names = self._nr if reference is None else (*self._fr, *self._nr)
        runner = self._program.resources.runner
        read = [runner.measure(name, image, reference) for name in names]
        scores = {reading.tool: reading.score for reading in read if reading.score is not None}
        answers = {name: round(score, 6) for name, score in scores.items()}
        if scores and len(scores) == len(names):
            values = list(scores.values())
            answers[ALL_TOOLS] = round(math.fsum(values) / len(values), 6)
            known = [p for p in runner.precisions([(name, None) for name in scores]) if p is not None]
            if len(known) == len(values):
                mean = ScoreFusion(tool_weights="reliability").tool_mean(values, known)
                answers[ALL_RELIABLE] = round(mean, 6)
        return answers


def _answer(ask: Callable[..., Any], **arguments: Any) -> float | str | None:
    try:
        answer = ask(**arguments)
    except BudgetSpent:
        raise
    except Exception:  # the sample border again: a baseline's failure is counted, not raised
        return None
    if answer.status == "failed":
        return None
    text = answer.final_answer
    return text if isinstance(text, str) else round(text, 6)


def uncompiled(program: AgenticIQA) -> AgenticIQA | None:
    """Return the program as it was before it learned anything, with the same models; None where it is that."""
    before = AgenticIQA(program.resources.settings)
    if program_sha256(before) == program_sha256(program):
        return None
    plain: AgenticIQA = program.deepcopy()
    usual = dict(before.named_parameters())
    for name, predictor in plain.named_parameters():
        predictor.signature, predictor.demos = usual[name].signature, []
    for part in ("fitted", "neighbours", "corrections"):
        setattr(plain.summarizer, part, None)
    return plain


_WAYS: Mapping[str, tuple[str, str, str]] = {
    UNCOMPILED: ("uncompiled program", "uncompiled", ""),
    "tools used": ("mean of the tools the agent used", "tools", "tool_mean_equal"),
    "tools used by reliability": ("the agent's tools, weighted by reliability", "tools", "tool_mean_reliable"),
    ALL_TOOLS: ("mean of all ready tools", "tools", ""),
    ALL_RELIABLE: ("all ready tools, weighted by reliability", "tools", ""),
    MODEL_ONLY: ("model only, no evidence", "model", ""),
    "model with evidence": ("model's level with evidence", "model", "expected_level"),
    "mean of tools and model": ("plain mean, tools and model", "mean", ""),
    "printed fusion": ("fusion as printed", "fusion", "fusion_printed"),
    "normalised fusion": ("fusion normalised", "fusion", "fusion_normalised"),
    "fusion by reliability": ("fusion normalised, tools by reliability", "fusion", "fusion_reliable"),
}
"""What each way to answer is called, its kind, and which of a row's beliefs it is, if one.

Single tools go after the first."""


def with_baselines(record: EvaluationRecord) -> EvaluationRecord:
    """Return the record with a table entry for every baseline its rows hold, in the table's order."""
    rows = [row for row in record.rows if row.task != "open"]
    answers = [_answers(row) for row in rows]
    tools = {name: (f"{name} alone", "tool", "") for each in answers for name in each if name not in _WAYS}
    baselines: dict[str, Baseline] = {}
    for name, (label, kind, _) in {UNCOMPILED: _WAYS[UNCOMPILED], **tools, **_WAYS}.items():
        others = [_answered(row, each.get(name)) for row, each in zip(rows, answers, strict=True)]
        gain = compare(others, rows, seed=record.seed)
        figures: dict[str, Any] = {metric: figure_of(metric, others, seed=record.seed) for metric in gain}
        gain = {metric: difference.of(figures[metric].asked) for metric, difference in gain.items()}
        if gain:
            baselines[name] = Baseline.model_validate({"label": label, "kind": kind, "gain": gain, **figures})
    return record.model_copy(update={"baselines": baselines})


def _answers(row: LabelledRow) -> dict[str, float | str | None]:
    """Return what each way answered a sample, by its name."""
    tools, model = row.beliefs.get("tool_mean_equal"), row.beliefs.get("expected_level")
    mean = None if tools is None or model is None else math.fsum((tools, model)) / 2
    beliefs = {name: row.beliefs.get(belief) for name, (_, _, belief) in _WAYS.items() if belief}
    return {**(row.baselines or {}), **beliefs, "mean of tools and model": mean}


def _answered(row: LabelledRow, answer: float | str | None) -> LabelledRow:
    """Return the row as if the program had answered this; failed where either did not answer."""
    if not row.counts or answer is None or isinstance(answer, str) != (row.task == "mcq"):
        return row.model_copy(update={"status": "failed"})
    return row.model_copy(update={"answer" if row.task == "mcq" else "score": answer})
