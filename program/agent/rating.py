"""A model asked for a quality level: how it is asked, and the score that comes of its belief."""

import logging
from typing import Any, Literal, NamedTuple

import dspy

from program.agent.labels import Corrections, Neighbours
from program.agent.presentation import ForExpert, ForLanguageModel, Inputs, finding_in_words
from program.agent.resources import Resources
from program.agent.state import BeliefSource, Columns, ExecutorOutput, Finding, SummarizerOutput, ToolReadings
from program.common.text import in_sentences, is_chinese
from program.fusion import ScoreFusion, level_in_text
from program.fusion.levels import expected_level, level_masses, tokens_of
from program.fusion.scores import FittedFusion, disagreement, even_out, fusion_note, level_note, moved_note
from program.images.store import ImageRef
from program.lms.ask import Answer, ask
from program.lms.call import CallAllowance
from program.lms.traits import MOST_ALTERNATIVES, ModelTraits, own_record, traits_of
from signatures import summarizer as questions
from signatures.schemas import CATEGORIES_CHINESE, GLOBAL, SEVERITIES_CHINESE, DistortionCategory

logger = logging.getLogger(__name__)

UNDETERMINED = "Unable to determine"
PARSING_FAILED = "VLM output parsing failed"

AnswerPart = Literal["whole", "decision", "nothing"]
"""What a language model is asked for: an answer, its level or option where that comes first, or nothing: then the
tools' mean stands in its place. The latter two are for a compile, which goes by levels, options and evidence.
"""
_CERTAIN = 0.995
"""Mass on one level from which on stated probabilities are no more than that level's name."""


class LevelBelief(NamedTuple):
    """How likely each quality level is, why, and where the numbers came from; None and None without any belief."""

    probabilities: dict[int, float] | None
    reasoning: str
    source: BeliefSource | None
    findings: list[Finding] | None = None
    stated: Columns = Columns()
    """What else the model was asked for."""


class Rater(dspy.Module):
    """Rate from evidence; what was learned from labels is kept here."""

    def __init__(self, resources: Resources) -> None:
        super().__init__()
        self.resources = resources
        self.score = dspy.Predict(questions.ScoreQuality)
        self.classify = dspy.Predict(questions.ClassifyQuality)
        self.fitted: FittedFusion | None = None
        """The fusion a compile fitted; saved with the program."""
        self.neighbours: Neighbours | None = None
        """Labelled photographs, of which the nearest are evidence on a score; likewise."""
        self.corrections: Corrections | None = None
        """What labels add to the tools' mean, or to the embedded expert's reading; likewise."""
        self.answer_part: AnswerPart = "whole"

    @property
    def fusion(self) -> ScoreFusion:
        """How tool scores and level probabilities become one score."""
        return self.fitted or self.resources.fusion

    def presentation(self, evidence: ExecutorOutput) -> ForExpert | ForLanguageModel:
        """Return how image, evidence and labels are shown to the model."""
        learned = self.resources, self.neighbours, self.corrections
        mean = self.tools_mean(evidence)
        if self._judge.embedded:
            return ForExpert(*learned, mean)
        return ForLanguageModel(*learned, mean)

    def tools_mean(self, evidence: ExecutorOutput) -> float | None:
        """Return the tools' mean (1..5) as they read the image; None without a score."""
        return self.mean_of(evidence.readings)

    def mean_of(self, tools: ToolReadings) -> float | None:
        """Return the mean (1..5) that the fusion makes of tools' scores; None without a score."""
        return self.fusion.tool_mean(*tools) if tools.scores else None

    def tool_readings(self, evidence: ExecutorOutput, image: ImageRef, reference: ImageRef | None) -> ToolReadings:
        """Return what is fused of the tools: what they read, or what labels predict of the image by it."""
        return self.presentation(evidence).readings(evidence.readings, image, reference)

    def _rate(
        self, inputs: Inputs, evidence: ExecutorOutput, answer: Answer[LevelBelief], tools: ToolReadings
    ) -> SummarizerOutput:
        """Return the answer to a question for the score; without any belief the tools' scores stand alone."""
        if answer.value is not None:
            return self._fused(inputs, evidence, answer.value, tools, answer.attempt)
        level = level_in_text(answer.raw)
        if level is not None:
            reasoning = f"The model's answer, read as text, names level {level} of 5."
            named = LevelBelief(self._named(level), reasoning, "classification")
            return self._fused(inputs, evidence, named, tools, "text")
        if not tools.scores:
            return failed_answer(answer)
        logger.error("level probabilities failed on all calls; tools alone. Full output: %s", answer.raw)
        nothing = LevelBelief(None, "The model gave no level probabilities; the tools' scores stand alone.", None)
        fused = self._fused(inputs, evidence, nothing, tools, "tools alone")
        return fused.model_copy(update={"status": "degraded", "error": last_error(answer)})

    def _fused(
        self, inputs: Inputs, evidence: ExecutorOutput, belief: LevelBelief, tools: ToolReadings, attempt: str | None
    ) -> SummarizerOutput:
        """Return the answer that a belief and the tools' scores make together."""
        fusion, chinese = self.fusion, is_chinese(str(inputs["query"]))
        scores, precisions = tools
        mean, as_read = self.mean_of(tools), self.tools_mean(evidence)
        probabilities = belief.probabilities
        if probabilities and self.neighbours:
            probabilities = even_out(probabilities, self.neighbours.even_share)
        score = fusion.fuse_scores(scores, probabilities, precisions)
        weights = fusion.compute_perceptual_weights(scores, precisions)
        logger.info("fusion: tool mean %s, alpha %s, p %s, q %.4f", mean, weights, probabilities, score)
        findings = findings_note(evidence, belief.reasoning, chinese=chinese)
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
            rung=attempt,
        )

    def _level_belief(self, inputs: Inputs, *, with_findings: bool = False) -> Answer[LevelBelief]:
        """Ask how good the image is, in the best way that the model can; for its distortions, too, `with_findings`."""
        calls, way = CallAllowance(), self.scoring_way()
        if way == "probabilities":
            return self._probabilities(inputs, calls, with_findings=with_findings)
        if way == "classification":
            return self._named_level(inputs, calls, with_findings=with_findings)
        answer = self._level_by_tokens(inputs, calls, with_findings=with_findings)
        if answer.prediction is None or tokens_of(answer.prediction.get("logprobs")):
            return answer
        self._note_no_tokens()
        if self.scoring_way() != "probabilities":
            return answer
        stated = self._probabilities(inputs, calls, with_findings=with_findings)
        return answer if stated.value is None else stated

    def _note_no_tokens(self) -> None:
        """Remember that the model gives no probabilities of tokens."""
        lm = self._lm_of(self.classify)
        record = own_record(lm)
        if record.known.token_probabilities != 0:
            logger.warning("%s gave no token probabilities; it is asked without from now on", lm.model)
            record.learn(token_probabilities=0)

    def scoring_way(self) -> Literal["probabilities", "classification", "logprobs"]:
        """Return how levels are asked for: as set, or the best that the model can do and was compiled for."""
        scoring = self.resources.settings.assessment.scoring
        if scoring == "probabilities" or scoring == "classification":
            return scoring
        able = traits_of(self._lm_of(self.classify)).token_probabilities != 0
        if scoring == "logprobs" or self.resources.settings.assessment.score_only:
            return "logprobs" if able else "classification"
        # A program that was compiled with probabilities has its demos there.
        scores, words = (getattr(predict_of(each), "demos", None) for each in (self.score, self.classify))
        return "logprobs" if able and (words or not scores) else "probabilities"

    @property
    def _judge(self) -> ModelTraits:
        return self.resources.known_traits("summarizer")

    def _lm_of(self, predictor: dspy.Module) -> dspy.BaseLM:
        return predict_of(predictor).lm or self.resources.lm("summarizer")

    def _probabilities(self, inputs: Inputs, calls: CallAllowance, *, with_findings: bool) -> Answer[LevelBelief]:
        """Ask for a number for each level."""

        def read(p: dspy.Prediction) -> LevelBelief:
            masses = self.fusion.extract_vlm_probabilities(p.quality_probs, mode="probabilities")
            level = max(masses, key=lambda c: masses[c])
            source: BeliefSource = "probabilities"
            # One level with all the mass is the name of a level: only the expert (smoothing 0) may be so sure.
            if masses[level] > _CERTAIN and self._judge.smoothing:
                masses, source = self._named(level), "classification"
            return _belief(p, masses, source, reasoning_of(p))

        form = questions.PROBABILITIES_WITH_FINDINGS if with_findings else questions.PROBABILITIES
        return ask(self.score, inputs, form, read, lm=self.resources.lm("summarizer"), calls=calls)

    def _named_level(self, inputs: Inputs, calls: CallAllowance, *, with_findings: bool) -> Answer[LevelBelief]:
        """Ask for a level's word, read as text alone: its probabilities are smoothed."""
        if self.resources.one_word(str(inputs["query"])):
            form = questions.LEVEL_WORD
        elif with_findings:
            form = questions.FINDINGS_REASONS_THEN_LEVEL
        else:
            form = questions.REASONS_THEN_LEVEL

        def read(p: dspy.Prediction) -> LevelBelief:
            reasoning = "" if form is questions.LEVEL_WORD else reasoning_of(p)
            return self._smoothed(p, reasoning)

        return ask(self.classify, inputs, form, read, lm=self.resources.lm("summarizer"), calls=calls)

    def _level_by_tokens(self, inputs: Inputs, calls: CallAllowance, *, with_findings: bool) -> Answer[LevelBelief]:
        """Ask for a level's word with its tokens' probabilities; where none came, they are smoothed."""
        if self.resources.one_word(str(inputs["query"])):
            form = questions.LEVEL_WORD
        elif with_findings:
            form = questions.LEVEL_FINDINGS_AND_REASONS
        elif self.answer_part == "decision":
            form = questions.LEVEL_THAT_COUNTS
        else:
            form = questions.LEVEL_AND_REASONS
        is_level_all = form is questions.LEVEL_WORD or form is questions.LEVEL_THAT_COUNTS

        def read(p: dspy.Prediction) -> LevelBelief:
            reasoning = "" if is_level_all else reasoning_of(p)
            tokens = tokens_of(p.get("logprobs"))
            if not tokens:
                return self._smoothed(p, reasoning)
            try:
                return _belief(p, level_masses(tokens), "logprobs", reasoning)
            except ValueError as error:
                logger.warning("%s; the word alone counts", error)
                return self._smoothed(p, reasoning)

        config = {"logprobs": True, "top_logprobs": MOST_ALTERNATIVES}
        lm = self.resources.lm("summarizer")
        return ask(self.classify, inputs, form, read, lm=lm, calls=calls, config=config)

    def _smoothed(self, prediction: dspy.Prediction, reasoning: str) -> LevelBelief:
        masses = self.fusion.extract_vlm_probabilities(prediction.quality_level, mode="classification")
        return _belief(prediction, masses, "classification", reasoning)

    def _named(self, level: int) -> dict[int, float]:
        return self.fusion.extract_vlm_probabilities(str(level), mode="classification")


def findings_note(output: ExecutorOutput, text: str, *, chinese: bool = False) -> str:
    """Name the visible distortions that a text does not name yet in its language, or return an empty text.

    Whoever wrote the text has seen the faults that have words of their own; without a text, these are its sentences.
    """
    faults, names = [], []
    for region, finding in output.findings():
        if finding.severity == "none":
            continue
        if finding.fault and not text:
            place = "" if region == GLOBAL else f"{region}: "
            faults.append(f"{place}{finding_in_words(finding)}".rstrip(".。"))
        elif not finding.fault and _short(finding.type, chinese=chinese) not in text.casefold():
            names.append(_phrase(finding, region, chinese=chinese))
    if chinese:
        named = f"检测到：{'、'.join(names)}。"
        sentences = [f"{fault}。" for fault in faults]
    else:
        named = f"Found: {', '.join(names)}."
        sentences = [f"{fault}. " for fault in faults]
    if names:
        sentences.append(named)
    return "".join(sentences).rstrip(" ")


def _short(category: DistortionCategory, *, chinese: bool) -> str:
    if chinese:
        return CATEGORIES_CHINESE[category][:2]
    return category.split()[0].casefold().rstrip("s")


def _phrase(finding: Finding, region: str, *, chinese: bool) -> str:
    if chinese:
        place = "" if region == GLOBAL else f"“{region}”的"
        return f"{place}{SEVERITIES_CHINESE[finding.severity]}{CATEGORIES_CHINESE[finding.type]}"
    place = "" if region == GLOBAL else f" in {region}"
    return f"{finding.severity} {finding.type}{place}"


def predict_of(predictor: dspy.Module) -> dspy.Predict:
    """Return what asks the model, of a `dspy.ChainOfThought` too."""
    return getattr(predictor, "predict", predictor)


def _belief(prediction: dspy.Prediction, masses: dict[int, float], source: BeliefSource, reasoning: str) -> LevelBelief:
    """Return what an answer says of the level, with the distortions that it names where it was asked for them."""
    findings = prediction.get("findings")
    if findings is not None:
        findings = [Finding.of(entry) for entry in findings]
    return LevelBelief(masses, reasoning, source, findings, Columns.stated_in(prediction))


def reasoning_of(prediction: dspy.Prediction) -> str:
    """Return the reasons of an answer; ValueError where there are none."""
    text = str(prediction.quality_reasoning or "").strip()
    if text in {"", "None", "null"}:
        raise ValueError("quality_reasoning is empty")
    return text


def failed_answer(answer: Answer[Any]) -> SummarizerOutput:
    """Return the answer to a question that no call answered."""
    logger.error("all calls failed (%s). Full output: %s", "; ".join(answer.errors), answer.raw)
    return SummarizerOutput(
        final_answer=UNDETERMINED,
        quality_reasoning=PARSING_FAILED,
        summary=PARSING_FAILED,
        status="failed",
        error=last_error(answer),
    )


def last_error(answer: Answer[Any]) -> str:
    """Say what was wrong with the last of a question's answers."""
    return answer.errors[-1] if answer.errors else PARSING_FAILED
