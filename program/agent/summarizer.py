"""The Summarizer: evidence and image become a score, an option or an explanation."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import dspy

from program.agent import rating
from program.agent.query import QueryReading, QueryType, read_query
from program.agent.replan import contradiction, find_gap
from program.agent.resources import Resources
from program.agent.state import AssessmentState, ExecutorOutput, SummarizerOutput, ToolReadings, rating_of_same_pixels
from program.common.text import in_sentences, is_chinese, normalise_choice, options_text
from program.fusion.scores import level_note
from program.images.store import IMAGES, ImageRef
from program.lms.ask import Answer, QuestionForm, ask
from program.lms.call import CallAllowance, stage
from signatures.schemas import GLOBAL
from signatures.summarizer import AnswerQuestion, ExplainQuality

logger = logging.getLogger(__name__)

_ROOM = 350
"""Tokens; about three times what an answer in words takes."""
NO_EVIDENCE = "No distortion analysis or tool score was available; the answer rests on the image alone."

_LETTER = {"final_answer": "B"}
_ANSWERED = {"final_answer": "B", "quality_reasoning": "Moderate blur, and a tool score of 2.6."}
_EXPLAINED = {
    "final_answer": "The image is moderately blurred.",
    "quality_reasoning": "Edges are soft; the tool score is 2.6.",
}


_RATING = (
    "quality_score", "level_probabilities", "level_probabilities_from", "tool_mean", "perceptual_weights",
    "score_interval",
)  # fmt: skip


class Summarizer(rating.Rater):
    """Answer from the evidence, and say whether it sufficed."""

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
        self.answer = dspy.Predict(AnswerQuestion)
        self.explain = dspy.Predict(ExplainQuality)

    def forward(self, state: AssessmentState, image: ImageRef, reference: ImageRef | None = None) -> SummarizerOutput:
        """Return the answer for a state that holds a plan and evidence (either may be None).

        Distortions that the answer itself names join the state's evidence. Raises ValueError when the state was never
        given a plan or evidence.
        """
        for needed in ("plan", "executor_evidence"):
            if not state.has(needed):
                raise ValueError(f"the state has no {needed}; run the stages before the Summarizer")
        reading = read_query(state.query, state.options)
        logger.info(
            "summarizer: %s (%s), %d findings, %d tool scores, image %s, reference %s",
            reading.type.value, reading.rule, len(state.evidence.findings()),
            len(state.evidence.readings.scores), image.name, reference.name if reference else None,
        )  # fmt: skip
        image, reference, crops = self._looked_at(state, image, reference)
        inputs = {
            "image": image,
            "reference": reference,
            "region_crops": crops or None,
            "query": state.query,
            **self._evidence_text(state.evidence),
        }
        tools = self.tool_readings(state.evidence, image, reference)
        with stage("summarizer"):
            fields = self._answered(state, reading, inputs, tools)
        if image.too_small and fields.get("score_interval") and not state.evidence.same_pixels:
            fields["score_interval"] = (1.0, 5.0)
        return self._output(fields, state, reading, tools)

    def _answered(
        self, state: AssessmentState, reading: QueryReading, inputs: Mapping[str, Any], tools: ToolReadings
    ) -> dict[str, Any]:
        """Return the fields that the kind of question asks for; what a score's answer names joins the evidence."""
        evidence, is_score = state.evidence, reading.type is QueryType.SCORING
        same = rating_of_same_pixels(chinese=is_chinese(state.query)) if evidence.same_pixels else {}
        if self.asks == "nothing" and not self.names_distortions(state):
            mean = self.fusion.tool_mean(*tools) if is_score and tools.scores else rating.UNDETERMINED
            fields: dict[str, Any] = {
                "final_answer": mean, "quality_reasoning": "The model was not asked.", "status": "ok",
            }  # fmt: skip
        elif reading.type is QueryType.MCQ and reading.options:
            fields = self._choose(inputs, reading.options, evidence)
        elif is_score and same:
            fields = same
        elif is_score and _is_iqa(state):
            fields = self._scored(inputs, state, tools)
        else:
            fields = self._explain(inputs)
        if not same and _is_iqa(state) and "quality_score" not in fields and self._judge.is_free:
            return self._with_score(fields, inputs, state.evidence, tools)
        return {**same, **fields}

    def _looked_at(
        self, state: AssessmentState, image: ImageRef, reference: ImageRef | None
    ) -> tuple[ImageRef, ImageRef | None, dict[str, ImageRef]]:
        """Return image, reference, and regions as images: details that are lost in the whole, which models see reduced.

        A model that judges crops is shown the one region that is asked about as the image, beside the whole ("Global")
        and those given.
        """
        scope = state.plan.query_scope if state.plan else []
        boxes, judges_crops = state.evidence.region_boxes or {}, self._judge.judges_crops
        if judges_crops:
            boxes = {**(state.regions or {}), **boxes}
        crops = {region: IMAGES.crop(image, box) for region, box in boxes.items()}
        if judges_crops and len(scope) == 1 and scope[0] in boxes:
            box = boxes[scope[0]]
            return crops[scope[0]], IMAGES.crop(reference, box) if reference else None, {GLOBAL: image, **crops}
        return image, reference, crops

    def _scored(self, inputs: Mapping[str, Any], state: AssessmentState, tools: ToolReadings) -> dict[str, Any]:
        """Return the answer to a question for a score; what it names joins the state's evidence."""
        evidence = state.evidence
        is_open = evidence.distortion_analysis is None and "analysis" not in evidence.failed_steps
        finds = is_open and self.names_distortions(state)
        answer = self._level_belief(inputs, evidence, CallAllowance(), finds=finds)
        if finds:
            evidence = state.executor_evidence = _with_findings(evidence, answer)
        return self._rate(inputs, evidence, answer, tools)

    def names_distortions(self, state: AssessmentState) -> bool:
        """Return whether the question for the score asks for the distortions too, in place of one before it.

        So it is for a model that is known to read images, plays both roles and was not compiled otherwise, of the image
        as a whole.
        """
        plan, resources = state.plan, self.resources
        plays_both = resources.lm("executor").model == resources.lm("summarizer").model
        if resources.settings.assessment.diagnosis != "answer" or not plays_both or plan is None:
            return False
        traits = resources.traits("executor")
        looks = resources.eyes() is resources.lm("executor") and traits.reads_images
        wanted = plan.query_type == "IQA" and plan.distortion_detection and plan.query_scope == [GLOBAL]
        if not (looks and wanted) or traits.answers_at_once is False:
            return False
        is_score = read_query(state.query, state.options).type is QueryType.SCORING
        demos = rating.predict_of(self.score if self.scoring_way() == "probabilities" else self.classify).demos
        return is_score and (not demos or any(demo.get("findings") is not None for demo in demos))

    def _with_score(
        self, fields: Mapping[str, Any], inputs: Mapping[str, Any], evidence: ExecutorOutput, tools: ToolReadings
    ) -> dict[str, Any]:
        """Add to a question's answer the score that a model gives when asked for one, where that costs nothing."""
        with dspy.context(trace=[]):  # optimizers teach what the question itself asks
            rated = self._rate(inputs, evidence, self._level_belief(inputs, evidence, CallAllowance()), tools)
        fields = {**{name: rated[name] for name in _RATING if name in rated}, **fields}
        if fields["summary"] or rated["status"] == "failed":
            return fields
        chinese = is_chinese(str(inputs["query"]))
        verdict = level_note(rated["quality_score"], chinese=chinese)
        return {**fields, "final_answer": f"{fields['final_answer']}{'' if chinese else ' '}{verdict}"}

    def _choose(
        self, inputs: Mapping[str, Any], options: Mapping[str, str], evidence: ExecutorOutput
    ) -> dict[str, Any]:
        def letter_in(text: str) -> str:
            letter = normalise_choice(text, options)
            if letter is None:
                raise ValueError(f"answer {text[:80]!r} is none of the options")
            return letter

        query = str(inputs["query"])
        near = None if self._judge.weighs_demos else self.neighbours
        line = partial(near.option_text, query=query, options=options) if near else None
        inputs = {**self._beside_similar(inputs, line), "options": options_text(options)}
        alone = self.resources.scores_only(query, options)
        if not alone and self.asks == "answer":
            return self._worded(self.answer, inputs, _ANSWERED, letter_in)
        chinese = is_chinese(query)
        reasons = rating.findings_note(evidence, "", chinese=chinese) or rating.NOTHING_STANDS_OUT[chinese]
        example = _LETTER if alone else _ANSWERED
        return self._worded(self.answer, inputs, example, letter_in, reasons=reasons, alone=alone)

    def _explain(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        def stripped(text: str) -> str:
            if not text.strip():
                raise ValueError("the answer is empty")
            return text.strip()

        return self._worded(self.explain, inputs, _EXPLAINED, stripped)

    def _worded(
        self, predictor: dspy.Predict, inputs: Mapping[str, Any], example: Mapping[str, Any],
        read: Callable[[str], str], reasons: str | None = None, *, alone: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Ask for an answer in words; `read` turns its text into what counts, or raises ValueError.

        Where `reasons` are known, the model is to give none; `alone`: nor is it asked for them.
        """

        def check(p: dspy.Prediction) -> tuple[str, str]:
            return read(str(p.final_answer or "")), rating.reasoning_of(p) if reasons is None else reasons

        form = QuestionForm(
            example,
            max_tokens=rating.ROOM_OF_A_WORD if alone else _ROOM,
            shape=partial(rating.shape_signature, word_alone=True) if alone else None,
            decisive_field=None if reasons is None or alone else "final_answer",
        )
        answer = ask(predictor, inputs, form, check, lm=self.resources.lm("summarizer"))
        if answer.value is None:
            return rating.failed_fields(answer)
        text, reasoning = answer.value
        own = "" if predictor is self.explain and self._judge.explains_in_figures else reasoning
        fields = {"final_answer": text, "quality_reasoning": reasoning, "summary": own}
        return {**fields, "status": "ok", "rung": answer.attempt}

    def _output(
        self, fields: dict[str, Any], state: AssessmentState, reading: QueryReading, tools: ToolReadings
    ) -> SummarizerOutput:
        notes, gap, evidence, is_iqa = [], "", state.evidence, _is_iqa(state)
        state.gap = None
        if fields["status"] != "failed":
            if is_iqa and state.plan is not None:
                found = find_gap(evidence, state.plan.query_scope, state.plan)
                state.gap, gap = found or (None, "")
            if is_iqa and evidence.is_empty:
                notes.append(NO_EVIDENCE)
            if is_iqa and (conflict := contradiction(evidence)):
                notes.append(f"{conflict}.")
            notes += [f"{note}." for note in evidence.notes if note not in fields["quality_reasoning"]]
        gap_left = gap or fields.get("unresolved_gap")
        if fields["status"] == "ok" and evidence.failed_steps:
            # Another answer than with this evidence: it must not pass for a whole one.
            fields = {**fields, "status": "degraded", "error": evidence.failure_note()}
        score = rated = fields.get("quality_score")
        if score is None and is_iqa and tools.scores:
            score = self.fusion.fuse_scores(tools.scores, None, tools.precisions)
        replan = bool(gap) and state.iteration_count < state.max_replan_iterations
        if replan:
            logger.info("need_replan=true, iteration %d: %s", state.iteration_count, gap)
        elif gap:
            logger.warning("max iterations reached (%d); not replanning for: %s", state.iteration_count, gap)
        return SummarizerOutput(
            **{
                **fields,
                "quality_reasoning": in_sentences(fields["quality_reasoning"], *notes),
                "quality_score": score,
                "level": self.fusion.map_to_level(rated) if rated is not None else None,
                "used_evidence": evidence.basis(),
                "need_replan": replan,
                "replan_reason": gap if replan else None,
                "unresolved_gap": None if replan else gap_left or None,
                "query_type": reading.type,
                "query_rule": reading.rule,
            }
        )


def _is_iqa(state: AssessmentState) -> bool:
    return state.plan is None or state.plan.query_type == "IQA"


def _with_findings(evidence: ExecutorOutput, answer: Answer[rating.LevelBelief]) -> ExecutorOutput:
    """Return evidence with what an answer named, or with the note that it named nothing that can be read."""
    if answer.value is not None and answer.value.findings is not None:
        return evidence.with_findings(answer.value.findings)
    return evidence.model_copy(
        update={
            "notes": [*evidence.notes, f"analysis failed: {rating.last_error(answer)}"],
            "failed_steps": [*evidence.failed_steps, "analysis"],
        }
    )
