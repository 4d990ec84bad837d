"""The Summarizer: evidence and image become a score, an option or an explanation.

A score is made of the belief that a model's level tells and of the tools' scores.
"""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import dspy

from program.agent.labels import Corrections, Neighbours
from program.agent.notes import ended, note
from program.agent.presentation import NOTHING_STANDS_OUT, ForExpert, ForLanguageModel, Inputs, findings_note
from program.agent.query import QueryType
from program.agent.replan import CLOSER, contradiction, find_doubt, find_gap
from program.agent.resources import Resources
from program.agent.state import (
    AssessmentState,
    BeliefSource,
    Columns,
    ExecutorOutput,
    Finding,
    Gap,
    SummarizerOutput,
    ToolReadings,
    answer_of_same_pixels,
)
from program.common.text import in_sentences, is_chinese, normalise_choice, options_text
from program.fusion import ScoreFusion, level_in_text
from program.fusion.levels import expected_level, level_masses, tokens_of
from program.fusion.scores import FittedFusion, disagreement, even_out, fusion_note, level_note, moved_note
from program.images.store import ImageRef
from program.lms.ask import Answer, ask
from program.lms.call import CallAllowance, stage
from program.lms.servers import served
from program.lms.traits import MOST_ALTERNATIVES, ModelTraits, own_record, traits_of
from program.tools import network
from signatures import summarizer as questions
from signatures.forms import QuestionForm
from signatures.schemas import GLOBAL

logger = logging.getLogger(__name__)

UNDETERMINED = "Unable to determine"
PARSING_FAILED = "VLM output parsing failed"

AnswerPart = Literal["whole", "decision", "nothing"]
"""What a language model is asked for: an answer, its level or option where that comes first, or
nothing (the tools' mean stands in its place). A compile asks for the latter two."""
_CERTAIN = 0.995
"""Mass on one level from which on stated probabilities are no more than that level's name."""


class LevelBelief(NamedTuple):
    """How likely each quality level is, why, and where the numbers came from; None without any."""

    probabilities: dict[int, float] | None
    reasoning: str
    source: BeliefSource | None
    findings: list[Finding] | None = None
    stated: Columns = Columns()
    """What else the model was asked for."""


@dataclass(frozen=True)
class _Case:
    """A question on an image, with all that its answer is made of."""

    state: AssessmentState
    shown: ForExpert | ForLanguageModel
    """How image, evidence and labels are shown to the model."""
    inputs: Inputs
    tools: ToolReadings
    """What is fused of the tools."""
    fusion: ScoreFusion
    mean: float | None
    """What the fusion makes of the tools' scores (1..5); None without a score."""

    @property
    def is_score(self) -> bool:
        """Whether the question is for the score."""
        return self.state.reading.type is QueryType.SCORING


class Summarizer(dspy.Module):
    """Answer from the evidence, and say whether it sufficed; keep what was learned from labels."""

    def __init__(self, resources: Resources) -> None:
        super().__init__()
        self.resources = resources
        self.score = dspy.Predict(questions.ScoreQuality)
        self.classify = dspy.Predict(questions.ClassifyQuality)
        self.answer = dspy.Predict(questions.AnswerQuestion)
        self.explain = dspy.Predict(questions.ExplainQuality)
        self.fitted: FittedFusion | None = None
        """The fusion a compile fitted; saved with the program."""
        self.neighbours: Neighbours | None = None
        """Labelled photographs, of which the nearest are evidence on a score; likewise."""
        self.corrections: Corrections | None = None
        """What labels add to the tools' mean, or to the embedded expert's reading; likewise."""
        self.answer_part: AnswerPart = "whole"

    def forward(self, state: AssessmentState, image: ImageRef, reference: ImageRef | None = None) -> SummarizerOutput:
        """Return the answer for a state that holds a plan and evidence (either may be None).

        Distortions that the answer itself names join the state's evidence. Raises ValueError when
        the state was never given a plan or evidence.
        """
        for needed in ("plan", "executor_evidence"):
            if not state.has(needed):
                raise ValueError(f"the state has no {needed}; run the stages before the Summarizer")
        case = self._case(state, image, reference)
        with stage("summarizer"):
            answer = self._answered(case)
        is_guess = case.inputs["image"].too_small and not state.evidence.same_pixels
        if is_guess and answer.score_interval:
            answer = answer.model_copy(update={"score_interval": (1.0, 5.0)})
        return self._completed(answer, case)

    def _case(self, state: AssessmentState, image: ImageRef, reference: ImageRef | None) -> _Case:
        evidence, fusion = state.evidence, self.fusion
        readings = evidence.readings
        shown = self._presentation(readings, fusion)
        images = shown.images(state, image, reference)
        inputs = {**images, "query": state.query, **state.description, **shown.evidence(evidence)}
        tools = shown.readings(readings, (images["image"], images["reference"]))
        reading = state.reading
        logger.info(
            "summarizer: %s (%s), %d findings, %d tool scores, image %s, reference %s",
            reading.type.value, reading.rule, len(evidence.findings()), len(readings.scores), image.name,
            getattr(reference, "name", None),
        )  # fmt: skip
        mean = fusion.tool_mean(*tools) if tools.scores else None
        return _Case(state, shown, inputs, tools, fusion, mean)

    def _answered(self, case: _Case) -> SummarizerOutput:
        """Return the answer to the kind of question; what a score names joins the evidence."""
        state, reading, evidence = case.state, case.state.reading, case.state.evidence
        if case.is_score and evidence.same_pixels:
            return answer_of_same_pixels(state.query)
        if self.answer_part == "nothing" and not self.names_distortions(state):
            return _by_tools(case)
        if case.is_score and state.is_iqa:
            if (kept := self._kept_belief(state)) is not None:
                return self._fused(case, *kept)
            is_looked_for = evidence.distortion_analysis is not None or "analysis" in evidence.failed_steps
            if is_looked_for or not self.names_distortions(state):
                return self._rate(case, self._level_belief(case))
            belief = self._level_belief(case, with_findings=True)
            state.executor_evidence = _with_findings(evidence, belief)
            return self._rate(case, belief)
        if reading.type is QueryType.MCQ and reading.options:
            answer = self._choose(case, reading.options)
        else:
            answer = self._explain(case)
        if evidence.same_pixels:
            return answer.with_rating(answer_of_same_pixels(state.query))
        if self._judge.embedded and state.is_iqa:
            return self._beside_score(answer, case)
        return answer

    def _kept_belief(self, state: AssessmentState) -> tuple[LevelBelief, str | None] | None:
        """Return what a language model believed before tools alone looked again; it is not asked again."""
        before, gap = state.summarizer_result, state.gap
        if before is None or gap is None or gap.is_of_words or self._judge.embedded:
            return None
        probabilities, source = before.level_probabilities, before.level_probabilities_from
        if probabilities is None:
            return None
        reasons = "" if self.resources.one_word(state.reading) else before.summary
        return LevelBelief(probabilities, reasons, source), before.attempt

    def _beside_score(self, answer: SummarizerOutput, case: _Case) -> SummarizerOutput:
        """Add to a question's answer the score that the expert gives when asked for one."""
        with dspy.context(trace=[]):  # optimizers teach what the question itself asks
            rated = self._rate(case, self._level_belief(case))
        answer = answer.with_rating(rated)
        if answer.summary or rated.quality_score is None:
            return answer
        chinese = is_chinese(case.state.query)
        space = "" if chinese else " "
        text = f"{answer.final_answer}{space}{level_note(rated.quality_score, chinese=chinese)}"
        return answer.model_copy(update={"final_answer": text})

    def _choose(self, case: _Case, options: Mapping[str, str]) -> SummarizerOutput:
        """Ask for an option; where its letter is all that counts, the reasons are the findings."""

        def letter_in(text: str) -> str:
            letter = normalise_choice(text, options)
            if letter is None:
                raise ValueError(f"answer {text[:80]!r} is none of the options")
            return letter

        query = case.state.query
        beside = case.shown.beside_answers(case.inputs, query, options)
        inputs = {**beside, "options": options_text(options)}
        form, chinese = questions.OPTION_AND_REASONS, is_chinese(query)
        reasons: str | None = findings_note(case.state.evidence, "", chinese=chinese)
        reasons = reasons or NOTHING_STANDS_OUT[chinese]
        if self.resources.one_word(case.state.reading):
            form = questions.OPTION_LETTER
        elif self.answer_part == "whole":
            reasons = None
        else:
            form = questions.OPTION_THAT_COUNTS
        return self._ask_in_words(self.answer, inputs, form, letter_in, reasons)

    def _explain(self, case: _Case) -> SummarizerOutput:
        def stripped(text: str) -> str:
            if not text.strip():
                raise ValueError("the answer is empty")
            return text.strip()

        answer = self._ask_in_words(self.explain, case.inputs, questions.EXPLANATION, stripped)
        if self._judge.embedded and answer.status == "ok":  # its reasons are figures
            return answer.model_copy(update={"summary": ""})
        return answer

    def names_distortions(self, state: AssessmentState) -> bool:
        """Return whether the question for the score asks for the distortions, too, in one.

        Only for an IQA question about the whole image, to a model that reads images, plays both
        roles, was understood before, and has no demos without findings.
        """
        plan = state.plan
        if plan is None or not (state.is_iqa and plan.distortion_detection and plan.query_scope == [GLOBAL]):
            return False
        if state.reading.type is not QueryType.SCORING or not self.resources.answers_with_distortions:
            return False
        is_known_to = self.resources.traits("executor").answers_at_once
        if not is_known_to and self.resources.wordings("executor", state) is not None:
            return False
        asked = self.score if self.scoring_way() == "probabilities" else self.classify
        demos = predict_of(asked).demos
        return not demos or any(demo.get("findings") is not None for demo in demos)

    def _ask_in_words(
        self, predictor: dspy.Predict, inputs: Inputs, form: QuestionForm, read: Callable[[str], str],
        reasons: str | None = None,
    ) -> SummarizerOutput:  # fmt: skip
        """Ask for an answer in words; `read` turns its text into what counts, or raises ValueError.

        Where `reasons` are known, the model's own are not read.
        """

        def check(p: dspy.Prediction) -> SummarizerOutput:
            text = read(str(p.final_answer or ""))
            why = reasoning_of(p) if reasons is None else reasons
            return SummarizerOutput(final_answer=text, quality_reasoning=why, summary=why, guess=p.get("guess"))

        answer = ask(predictor, inputs, form, check, lm=self.resources.lm("summarizer"))
        if answer.value is None:
            return self._failed(answer)
        return answer.value.model_copy(update={"attempt": answer.attempt})

    def _failed(self, answer: Answer[Any]) -> SummarizerOutput:
        """Return the answer to a question that no call answered."""
        logger.error("all calls failed (%s). Full output: %s", "; ".join(answer.errors), answer.raw)
        return SummarizerOutput(
            final_answer=UNDETERMINED,
            quality_reasoning=PARSING_FAILED,
            summary=PARSING_FAILED,
            status="failed",
            error=last_error(answer),
            attempt=self._attempt("nothing"),
        )

    def _attempt(self, name: str) -> str | None:
        """Name an attempt; the expert makes none."""
        return None if self._judge.embedded else name

    def _completed(self, answer: SummarizerOutput, case: _Case) -> SummarizerOutput:
        """Return an answer with what its evidence lacks, and the tools' score beside questions."""
        state, tools = case.state, case.tools
        evidence, reading = state.evidence, state.reading
        fields: dict[str, Any] = {
            "used_evidence": evidence.basis(),
            "query_type": reading.type,
            "query_rule": reading.rule,
        }
        state.gap = self._gap(answer, case)
        gap = state.gap.text(state.query) if state.gap else ""
        is_unread = answer.is_unread or bool(evidence.unread_steps)
        if state.gap and is_unread:  # a model that cannot be understood is not asked for another plan
            fields |= {"unresolved_gap": gap}
        elif state.gap and state.iteration_count < state.max_replan_iterations:
            logger.info("need_replan=true, iteration %d: %s", state.iteration_count, gap)
            fields |= {"need_replan": True, "replan_reason": gap, "unresolved_gap": None}
        elif state.gap and not state.gap.is_doubt:
            logger.warning("max iterations reached (%d); not replanning for: %s", state.iteration_count, gap)
            fields |= {"unresolved_gap": gap}
        if answer.status == "ok" and evidence.failed_steps:
            # With this evidence the answer might differ.
            fields |= {"status": "degraded", "error": evidence.failure_note()}
        if answer.quality_score is None and state.is_iqa and tools.scores:
            score = case.fusion.fuse_scores(tools.scores, None, tools.precisions)
            fields |= {"quality_score": score, "tool_mean": case.mean}
        if answer.status != "failed":
            notes = _notes(state, answer.quality_reasoning)
            fields["quality_reasoning"] = in_sentences(answer.quality_reasoning, *notes)
        return answer.model_copy(update=fields)

    def _gap(self, answer: SummarizerOutput, case: _Case) -> Gap | None:
        """Return what the evidence lacks of the plan, or else why the score is doubtful."""
        state, plan, image = case.state, case.state.plan, case.inputs["image"]
        if answer.status == "failed" or plan is None or not state.is_iqa:
            return None
        gap = find_gap(state.evidence, plan.query_scope, plan)
        looks_again = self.resources.settings.assessment.look_again
        if gap is not None or not looks_again or image.too_small or state.evidence.same_pixels:
            return gap
        belief, interval = answer.level_probabilities, answer.score_interval
        if belief is None or interval is None:
            return None
        expected = expected_level(belief)
        deviation = math.sqrt(math.fsum(p * (level - expected) ** 2 for level, p in belief.items()))
        tools, precision = None, math.fsum(case.tools.precisions or ())
        if precision and case.mean is not None:
            tools = case.mean, 1 / math.sqrt(precision)
        reduced_by = 1.0
        if plan.query_scope == [GLOBAL] and CLOSER not in (state.evidence.region_boxes or {}):
            reduced_by = max(image.width, image.height) / network.SHOWN_PX
        return find_doubt((expected, deviation), tools, interval, reduced_by)

    @property
    def fusion(self) -> ScoreFusion:
        """How tool scores and level probabilities become one score."""
        return self.fitted or self.resources.fusion

    def _presentation(self, read: ToolReadings, fusion: ScoreFusion) -> ForExpert | ForLanguageModel:
        mean = fusion.tool_mean(*read) if read.scores else None
        learned = self.resources, self.neighbours, self.corrections
        if self._judge.embedded:
            return ForExpert(*learned, mean)
        return ForLanguageModel(*learned, mean)

    def tools_mean(self, evidence: ExecutorOutput) -> float | None:
        """Return the tools' mean (1..5) as they read the image; None without a score."""
        return self._presentation(evidence.readings, self.fusion).tools_mean

    def tool_readings(self, evidence: ExecutorOutput, image: ImageRef, reference: ImageRef | None) -> ToolReadings:
        """Return what is fused of the tools: what they read, or what labels predict by it."""
        readings = evidence.readings
        return self._presentation(readings, self.fusion).readings(readings, (image, reference))

    def _rate(self, case: _Case, answer: Answer[LevelBelief]) -> SummarizerOutput:
        """Return the answer to a question for the score; without a belief the tools stand alone."""
        if answer.value is not None:
            return self._fused(case, self._evened(answer.value), answer.attempt)
        level, query = level_in_text(answer.raw), case.state.query
        if level is not None:
            reasoning = ended(note("read as text", query, level=level), query)
            masses = case.fusion.extract_vlm_probabilities(str(level), mode="classification")
            belief = self._evened(LevelBelief(masses, reasoning, "classification"))
            return self._fused(case, belief, "text")
        if not case.tools.scores:
            return self._failed(answer)
        logger.error("level probabilities failed on all calls; tools alone. Full output: %s", answer.raw)
        nothing = LevelBelief(None, ended(note("tools alone", query), query), None)
        fused = self._fused(case, nothing, self._attempt("tools alone"))
        return fused.model_copy(update={"status": "degraded", "error": last_error(answer)})

    def _evened(self, belief: LevelBelief) -> LevelBelief:
        """Return a belief as labels of similar photographs leave it."""
        if self.neighbours is None or not belief.probabilities:
            return belief
        return belief._replace(probabilities=even_out(belief.probabilities, self.neighbours.even_share))

    def _fused(self, case: _Case, belief: LevelBelief, attempt: str | None) -> SummarizerOutput:
        """Return the answer that a belief and the tools' scores make together."""
        fusion, mean, chinese = case.fusion, case.mean, is_chinese(case.state.query)
        (scores, precisions), as_read = case.tools, case.shown.tools_mean
        probabilities = belief.probabilities
        score = fusion.fuse_scores(scores, probabilities, precisions)
        weights = fusion.compute_perceptual_weights(scores, precisions)
        logger.info("fusion: tool mean %s, alpha %s, p %s, q %.4f", mean, weights, probabilities, score)
        findings = findings_note(case.state.evidence, belief.reasoning, chinese=chinese)
        shift = ""
        if mean is not None and as_read is not None:
            shift = moved_note(as_read, mean, chinese=chinese)
        made_of = fusion_note(fusion, score, scores, probabilities, precisions, chinese=chinese)
        conflict = disagreement(mean, probabilities, chinese=chinese)
        low, high = fusion.interval(score, scores, probabilities, precisions)
        if conflict and mean is not None and probabilities:
            believed = expected_level(probabilities)
            low, high = min(low, mean, believed), max(high, mean, believed)
        computed = {"level": fusion.map_to_level(score), "tool_mean": mean}
        return SummarizerOutput(
            **{**dict(belief.stated), **computed},
            final_answer=score,
            quality_score=score,
            quality_reasoning=in_sentences(belief.reasoning, findings, shift, made_of, conflict),
            summary=belief.reasoning or findings or level_note(score, chinese=chinese),
            unresolved_gap=conflict or None,
            level_probabilities=probabilities,
            level_probabilities_from=belief.source,
            perceptual_weights=weights,
            score_interval=(low, high),
            attempt=attempt,
        )

    def _level_belief(self, case: _Case, *, with_findings: bool = False) -> Answer[LevelBelief]:
        """Ask how good the image is, in the best way that the model can."""
        calls, way = CallAllowance(), self.scoring_way()
        if self.resources.reads_levels_as_text:
            calls.will_do = level_in_text
        case = replace(case, inputs=case.shown.beside_ratings(case.inputs))
        if way == "probabilities":
            return self._probabilities(case, calls, with_findings=with_findings)
        by_tokens = way == "logprobs"
        answer = self._named_level(case, calls, by_tokens=by_tokens, with_findings=with_findings)
        if not by_tokens or answer.prediction is None or tokens_of(answer.prediction.get("logprobs")):
            return answer
        lm = self._lm_of(self.classify)
        record = own_record(lm)
        if record.known.token_probabilities != 0:
            logger.warning("%s gave no token probabilities; it is asked without from now on", lm.model)
            record.learn(token_probabilities=0)
        if self.scoring_way() != "probabilities":
            return answer
        stated = self._probabilities(case, calls, with_findings=with_findings)
        if stated.value is None:
            return answer
        return stated

    def scoring_way(self) -> Literal["probabilities", "classification", "logprobs"]:
        """Return how levels are asked for: as set, or as the model can and was compiled for."""
        settings = self.resources.settings.assessment
        if settings.scoring == "probabilities" or settings.scoring == "classification":
            return settings.scoring
        able = traits_of(self._lm_of(self.classify)).token_probabilities != 0
        if settings.scoring == "logprobs" or settings.score_only:
            return "logprobs" if able else "classification"
        # A program that was compiled with probabilities has its demos there.
        words, scores = (getattr(predict_of(each), "demos", None) for each in (self.classify, self.score))
        return "logprobs" if able and (words or not scores) else "probabilities"

    @property
    def _judge(self) -> ModelTraits:
        return self.resources.known_traits("summarizer")

    def _lm_of(self, predictor: dspy.Module) -> dspy.BaseLM:
        own = predict_of(predictor).lm
        if own is None:
            return self.resources.lm("summarizer")
        return served(own, self.resources.settings)

    def _probabilities(self, case: _Case, calls: CallAllowance, *, with_findings: bool) -> Answer[LevelBelief]:
        """Ask for a number for each level."""

        def read(p: dspy.Prediction) -> LevelBelief:
            masses = case.fusion.extract_vlm_probabilities(p.quality_probs, mode="probabilities")
            level = max(masses, key=lambda c: masses[c])
            source: BeliefSource = "probabilities"
            # All the mass on one level only names it: the expert alone (smoothing 0) may be so sure.
            if masses[level] > _CERTAIN and self._judge.smoothing:
                masses = case.fusion.extract_vlm_probabilities(str(level), mode="classification")
                source = "classification"
            return _belief(p, masses, source, reasoning_of(p))

        form = questions.PROBABILITIES_WITH_FINDINGS if with_findings else questions.PROBABILITIES
        return ask(self.score, case.inputs, form, read, lm=self.resources.lm("summarizer"), calls=calls)

    def _named_level(
        self, case: _Case, calls: CallAllowance, *, by_tokens: bool, with_findings: bool
    ) -> Answer[LevelBelief]:
        """Ask for a level's word, whose tokens tell the probabilities, or which is smoothed."""
        if self.resources.one_word(case.state.reading):
            form = questions.LEVEL_WORD
        elif with_findings and by_tokens:
            form = questions.LEVEL_FINDINGS_AND_REASONS
        elif with_findings:
            form = questions.FINDINGS_REASONS_THEN_LEVEL
        elif not by_tokens:
            form = questions.REASONS_THEN_LEVEL
        elif self.answer_part == "decision":
            form = questions.LEVEL_THAT_COUNTS
        else:
            form = questions.LEVEL_AND_REASONS
        is_level_all = form is questions.LEVEL_WORD or form is questions.LEVEL_THAT_COUNTS

        def read(p: dspy.Prediction) -> LevelBelief:
            reasoning = "" if is_level_all else reasoning_of(p)
            if by_tokens and (tokens := tokens_of(p.get("logprobs"))):
                try:
                    return _belief(p, level_masses(tokens), "logprobs", reasoning)
                except ValueError as error:
                    logger.warning("%s; the word alone counts", error)
            masses = case.fusion.extract_vlm_probabilities(p.quality_level, mode="classification")
            return _belief(p, masses, "classification", reasoning)

        config: dict[str, Any] = {}
        if by_tokens:
            config = {"logprobs": True, "top_logprobs": MOST_ALTERNATIVES}
        lm = self.resources.lm("summarizer")
        return ask(self.classify, case.inputs, form, read, lm=lm, calls=calls, config=config)


def _by_tools(case: _Case) -> SummarizerOutput:
    """Return the answer where no model is to be asked: the tools' score, where one is wanted."""
    unasked = SummarizerOutput(final_answer=UNDETERMINED, quality_reasoning="The model was not asked.")
    if not (case.is_score and case.tools.scores):
        return unasked
    score = case.fusion.fuse_scores(case.tools.scores, None, case.tools.precisions)
    level = case.fusion.map_to_level(score)
    update = {"final_answer": score, "quality_score": score, "level": level, "tool_mean": case.mean}
    return unasked.model_copy(update=update)


def _notes(state: AssessmentState, reasoning: str) -> list[str]:
    """Return what the reasoning must still say of the evidence, in sentences."""
    evidence, notes = state.evidence, []
    if state.is_iqa:
        if evidence.is_empty:
            notes.append(note("no evidence", state.query))
        if gap := contradiction(evidence):
            notes.append(gap.text(state.query))
    notes += [each for each in evidence.notes if each not in reasoning]
    return [ended(each, state.query) for each in notes if each]


def _with_findings(evidence: ExecutorOutput, answer: Answer[LevelBelief]) -> ExecutorOutput:
    """Return evidence with what an answer named, or a note that it cannot be read."""
    if answer.value is not None and answer.value.findings is not None:
        return evidence.with_findings(answer.value.findings)
    return evidence.model_copy(
        update={
            "notes": [*evidence.notes, f"analysis failed: {last_error(answer)}"],
            "failed_steps": [*evidence.failed_steps, "analysis"],
        }
    )


def predict_of(predictor: dspy.Module) -> dspy.Predict:
    """Return what asks the model, of a `dspy.ChainOfThought` too."""
    return getattr(predictor, "predict", predictor)


def _belief(prediction: dspy.Prediction, masses: dict[int, float], source: BeliefSource, reasoning: str) -> LevelBelief:
    """Return what an answer says of the level, with the distortions that it names, if any."""
    findings = prediction.get("findings")
    if findings is not None:
        findings = Finding.all_in(findings)
    return LevelBelief(masses, reasoning, source, findings, Columns.stated_in(prediction))


def reasoning_of(prediction: dspy.Prediction) -> str:
    """Return the reasons of an answer; ValueError where there are none."""
    text = str(prediction.quality_reasoning or "").strip()
    if text in {"", "None", "null"}:
        raise ValueError("quality_reasoning is empty")
    return text


def last_error(answer: Answer[Any]) -> str:
    """Say what was wrong with the last of a question's answers."""
    return answer.errors[-1] if answer.errors else PARSING_FAILED
