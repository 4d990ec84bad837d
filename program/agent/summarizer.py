"""The Summarizer: evidence and image become a score, an option or an explanation."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import dspy

from program.agent import rating
from program.agent.presentation import NOTHING_STANDS_OUT, Inputs
from program.agent.query import QueryReading, QueryType, read_query
from program.agent.replan import contradiction, find_gap
from program.agent.resources import Resources
from program.agent.state import AssessmentState, ExecutorOutput, SummarizerOutput, ToolReadings, answer_of_same_pixels
from program.common.text import in_sentences, is_chinese, normalise_choice, options_text
from program.fusion.scores import level_note
from program.images.store import ImageRef
from program.lms.ask import Answer, ask
from program.lms.call import stage
from signatures import summarizer as questions
from signatures.forms import QuestionForm
from signatures.schemas import GLOBAL

logger = logging.getLogger(__name__)

NO_EVIDENCE = "No distortion analysis or tool score was available; the answer rests on the image alone."


class Summarizer(rating.Rater):
    """Answer from the evidence, and say whether it sufficed."""

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
        self.answer = dspy.Predict(questions.AnswerQuestion)
        self.explain = dspy.Predict(questions.ExplainQuality)

    def forward(self, state: AssessmentState, image: ImageRef, reference: ImageRef | None = None) -> SummarizerOutput:
        """Return the answer for a state that holds a plan and evidence (either may be None).

        Distortions that the answer itself names join the state's evidence. Raises ValueError when the state was never
        given a plan or evidence.
        """
        for needed in ("plan", "executor_evidence"):
            if not state.has(needed):
                raise ValueError(f"the state has no {needed}; run the stages before the Summarizer")
        reading = read_query(state.query, state.options)
        evidence = state.evidence
        asked = reading.type.value, reading.rule
        counts = len(evidence.findings()), len(evidence.readings.scores)
        names = image.name, getattr(reference, "name", None)
        text = "summarizer: %s (%s), %d findings, %d tool scores, image %s, reference %s"
        logger.info(text, *asked, *counts, *names)
        shown = self.presentation(evidence)
        shown_image, shown_reference, crops = shown.images(state, image, reference)
        inputs = {
            "image": shown_image,
            "reference": shown_reference,
            "region_crops": crops or None,
            "query": state.query,
            **shown.evidence(evidence),
        }
        tools = shown.readings(evidence.readings, shown_image, shown_reference)
        with stage("summarizer"):
            answer = self._answered(state, reading, inputs, tools)
        if shown_image.too_small and answer.score_interval and not state.evidence.same_pixels:
            answer = answer.model_copy(update={"score_interval": (1.0, 5.0)})
        return self._completed(answer, state, reading, tools)

    def _answered(
        self, state: AssessmentState, reading: QueryReading, inputs: Inputs, tools: ToolReadings
    ) -> SummarizerOutput:
        """Return the answer that the kind of question asks for; what a score's answer names joins the evidence."""
        is_score = reading.type is QueryType.SCORING
        same_pixels, chinese = state.evidence.same_pixels, is_chinese(state.query)
        if is_score and same_pixels:
            return answer_of_same_pixels(chinese=chinese)
        if self.answer_part == "nothing" and not self.names_distortions(state):
            return self._by_tools(tools, is_score=is_score)
        if is_score and _is_iqa(state):
            if _is_analysis_open(state) and self.names_distortions(state):
                return self._score_with_findings(inputs, state, tools)
            return self._score(inputs, state.evidence, tools)
        if reading.type is QueryType.MCQ and reading.options:
            answer = self._choose(inputs, reading.options, state.evidence)
        else:
            answer = self._explain(inputs, state.evidence)
        if same_pixels:
            return answer.with_rating(answer_of_same_pixels(chinese=chinese))
        if self._judge.embedded and _is_iqa(state):
            return self._beside_score(answer, inputs, state.evidence, tools)
        return answer

    def _by_tools(self, tools: ToolReadings, *, is_score: bool) -> SummarizerOutput:
        """Return the answer where the model is not to be asked: the tools' score, where one is wanted."""
        unasked = SummarizerOutput(final_answer=rating.UNDETERMINED, quality_reasoning="The model was not asked.")
        if not (is_score and tools.scores):
            return unasked
        score = self.fusion.fuse_scores(tools.scores, None, tools.precisions)
        mean, level = self.mean_of(tools), self.fusion.map_to_level(score)
        update = {"final_answer": score, "quality_score": score, "level": level, "tool_mean": mean}
        return unasked.model_copy(update=update)

    def _score(self, inputs: Inputs, evidence: ExecutorOutput, tools: ToolReadings) -> SummarizerOutput:
        """Return the answer to a question for a score, from the evidence."""
        answer = self._level_belief(self.presentation(evidence).beside_ratings(inputs))
        return self._rate(inputs, evidence, answer, tools)

    def _score_with_findings(self, inputs: Inputs, state: AssessmentState, tools: ToolReadings) -> SummarizerOutput:
        """Return the answer to a question for a score; the distortions that it names join the state's evidence."""
        inputs = self.presentation(state.evidence).beside_ratings(inputs)
        answer = self._level_belief(inputs, with_findings=True)
        evidence = state.executor_evidence = _with_findings(state.evidence, answer)
        return self._rate(inputs, evidence, answer, tools)

    def names_distortions(self, state: AssessmentState) -> bool:
        """Return whether the question for the score asks for the distortions too, in place of one before it.

        Only for an IQA question about the whole image, to a model that reads images, plays both roles, and has no demos
        without findings.
        """
        plan, resources = state.plan, self.resources
        plays_both = resources.lm("executor").model == resources.lm("summarizer").model
        if resources.settings.assessment.diagnosis != "answer" or not plays_both or plan is None:
            return False
        traits = resources.traits("executor")
        looks = resources.distortion_model is resources.lm("executor") and traits.reads_images
        wanted = plan.query_type == "IQA" and plan.distortion_detection and plan.query_scope == [GLOBAL]
        if not (looks and wanted) or traits.answers_at_once is False:
            return False
        is_score = read_query(state.query, state.options).type is QueryType.SCORING
        demos = rating.predict_of(self.score if self.scoring_way() == "probabilities" else self.classify).demos
        return is_score and (not demos or any(demo.get("findings") is not None for demo in demos))

    def _beside_score(
        self, answer: SummarizerOutput, inputs: Inputs, evidence: ExecutorOutput, tools: ToolReadings
    ) -> SummarizerOutput:
        """Add to a question's answer the score that the model gives when asked for one, asked of the expert alone."""
        with dspy.context(trace=[]):  # optimizers teach what the question itself asks
            rated = self._score(inputs, evidence, tools)
        answer = answer.with_rating(rated)
        if answer.summary or rated.quality_score is None:
            return answer
        chinese = is_chinese(str(inputs["query"]))
        space = "" if chinese else " "
        text = f"{answer.final_answer}{space}{level_note(rated.quality_score, chinese=chinese)}"
        return answer.model_copy(update={"final_answer": text})

    def _choose(self, inputs: Inputs, options: Mapping[str, str], evidence: ExecutorOutput) -> SummarizerOutput:
        """Ask for an option; where its letter is all that counts, the reasons are the findings."""

        def letter_in(text: str) -> str:
            letter = normalise_choice(text, options)
            if letter is None:
                raise ValueError(f"answer {text[:80]!r} is none of the options")
            return letter

        query = str(inputs["query"])
        beside = self.presentation(evidence).beside_answers(inputs, query, options)
        inputs = {**beside, "options": options_text(options)}
        if self.resources.one_word(query, options):
            form = questions.OPTION_LETTER
        elif self.answer_part == "whole":
            return self._ask_in_words(self.answer, inputs, questions.OPTION_AND_REASONS, letter_in)
        else:
            form = questions.OPTION_THAT_COUNTS
        chinese = is_chinese(query)
        reasons = rating.findings_note(evidence, "", chinese=chinese) or NOTHING_STANDS_OUT[chinese]
        return self._ask_in_words(self.answer, inputs, form, letter_in, reasons)

    def _explain(self, inputs: Inputs, evidence: ExecutorOutput) -> SummarizerOutput:
        def stripped(text: str) -> str:
            if not text.strip():
                raise ValueError("the answer is empty")
            return text.strip()

        answer = self._ask_in_words(self.explain, inputs, questions.EXPLANATION, stripped)
        if answer.status == "failed":
            return answer
        summary = self.presentation(evidence).summary(answer.quality_reasoning)
        return answer.model_copy(update={"summary": summary})

    def _ask_in_words(
        self, predictor: dspy.Predict, inputs: Inputs, form: QuestionForm, read: Callable[[str], str],
        reasons: str | None = None,
    ) -> SummarizerOutput:  # fmt: skip
        """Ask for an answer in words; `read` turns its text into what counts, or raises ValueError.

        Where `reasons` are known, the model's own are not read.
        """

        def check(p: dspy.Prediction) -> tuple[str, str]:
            return read(str(p.final_answer or "")), rating.reasoning_of(p) if reasons is None else reasons

        answer = ask(predictor, inputs, form, check, lm=self.resources.lm("summarizer"))
        if answer.value is None:
            return rating.failed_answer(answer)
        text, reasoning = answer.value
        return SummarizerOutput(final_answer=text, quality_reasoning=reasoning, summary=reasoning, rung=answer.attempt)

    def _completed(
        self, answer: SummarizerOutput, state: AssessmentState, reading: QueryReading, tools: ToolReadings
    ) -> SummarizerOutput:
        """Return an answer with what its evidence lacks, and with the tools' score beside questions."""
        evidence, is_iqa = state.evidence, _is_iqa(state)
        fields: dict[str, Any] = {
            "used_evidence": evidence.basis(), "query_type": reading.type, "query_rule": reading.rule,
        }  # fmt: skip
        gap = self._gap(answer, state)
        replan = bool(gap) and state.iteration_count < state.max_replan_iterations
        if replan:
            logger.info("need_replan=true, iteration %d: %s", state.iteration_count, gap)
            fields |= {"need_replan": True, "replan_reason": gap, "unresolved_gap": None}
        elif gap:
            logger.warning("max iterations reached (%d); not replanning for: %s", state.iteration_count, gap)
            fields |= {"unresolved_gap": gap}
        if answer.status == "ok" and evidence.failed_steps:
            # With this evidence the answer might differ.
            fields |= {"status": "degraded", "error": evidence.failure_note()}
        if answer.quality_score is None and is_iqa and tools.scores:
            score = self.fusion.fuse_scores(tools.scores, None, tools.precisions)
            fields |= {"quality_score": score, "tool_mean": self.mean_of(tools)}
        if answer.status != "failed":
            notes = _notes(evidence, answer.quality_reasoning, is_iqa=is_iqa)
            fields["quality_reasoning"] = in_sentences(answer.quality_reasoning, *notes)
        return answer.model_copy(update=fields)

    def _gap(self, answer: SummarizerOutput, state: AssessmentState) -> str:
        """Write down what the evidence lacks of the plan, and say it; nothing where planning again would not help."""
        state.gap, text = None, ""
        if answer.status == "failed" or state.plan is None or not _is_iqa(state):
            return text
        found = find_gap(state.evidence, state.plan.query_scope, state.plan)
        if found is not None:
            state.gap, text = found
        return text


def _notes(evidence: ExecutorOutput, reasoning: str, *, is_iqa: bool) -> list[str]:
    """Return what the reasoning must still say of the evidence, in sentences."""
    notes = []
    if is_iqa and evidence.is_empty:
        notes.append(NO_EVIDENCE)
    conflict = contradiction(evidence) if is_iqa else ""
    if conflict:
        notes.append(f"{conflict}.")
    return notes + [f"{note}." for note in evidence.notes if note not in reasoning]


def _is_iqa(state: AssessmentState) -> bool:
    return state.plan is None or state.plan.query_type == "IQA"


def _is_analysis_open(state: AssessmentState) -> bool:
    """Return whether nobody has looked for distortions yet."""
    return state.evidence.distortion_analysis is None and "analysis" not in state.evidence.failed_steps


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
