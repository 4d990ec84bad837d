"""A model asked for a quality level: what it is told, how it is asked, and the score that comes of its belief."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import dspy

from program.agent.labels import Corrections, Neighbours
from program.agent.resources import Resources
from program.agent.state import (
    BeliefSource,
    Columns,
    ExecutorOutput,
    Finding,
    SummarizerOutput,
    ToolReadings,
    compact_json,
)
from program.common.text import in_sentences, is_chinese
from program.fusion import ScoreFusion, level_in_text
from program.fusion.levels import expected_level, level_masses, tokens_of
from program.fusion.scores import FittedFusion, disagreement, even_out, fusion_note, level_note, moved_note
from program.images.store import ImageRef
from program.lms.ask import Answer, QuestionForm, ask
from program.lms.call import CallAllowance
from program.lms.traits import MOST_ALTERNATIVES, ModelTraits, own_record, traits_of
from signatures.schemas import (
    CATEGORIES_CHINESE,
    GLOBAL,
    LEVEL_WORDS,
    SEVERITIES_CHINESE,
    DistortionCategory,
    DistortionFinding,
)
from signatures.summarizer import ClassifyQuality, ScoreQuality

if TYPE_CHECKING:
    from program.expert import View

logger = logging.getLogger(__name__)

UNDETERMINED = "Unable to determine"
PARSING_FAILED = "VLM output parsing failed"
_ROOM = {"quality_level": 250, "quality_probs": 300}
"""Tokens by first asked output, about three times what an answer takes; of one word, all its pieces."""
ROOM_OF_A_WORD = 8
_ROOM_OF_FINDINGS = 300
NOTHING_STANDS_OUT = ("No distortion stands out.", "未见明显失真。")
"""English and Chinese."""

_SCORED = {
    "quality_reasoning": "Moderate blur softens edges; the tool score of 2.6 agrees.",
    "quality_probs": {"bad": 0.02, "poor": 0.13, "fair": 0.6, "good": 0.2, "excellent": 0.05},
}
_WORD = {"quality_level": "fair"}
_CLASSIFIED = {**_WORD, "quality_reasoning": _SCORED["quality_reasoning"]}
Asks = Literal["answer", "opening", "nothing"]
"""How much of an answer a language model is asked for: all, its level or option where that comes first, or nothing:
then the tools' mean stands in its place. The latter two are for a compile, which goes by levels, options and evidence.
"""
_FOUND = {"findings": [{"type": "Blurs", "severity": "moderate", "explanation": "Edges appear soft."}]}
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
        self.score = dspy.Predict(ScoreQuality)
        self.classify = dspy.Predict(ClassifyQuality)
        self.fitted: FittedFusion | None = None
        """The fusion a compile fitted; saved with the program."""
        self.neighbours: Neighbours | None = None
        """Labelled photographs, of which the nearest are evidence on a score; likewise."""
        self.corrections: Corrections | None = None
        """What labels add to the tools' mean, or to the embedded expert's reading; likewise."""
        self.asks: Asks = "answer"

    @property
    def fusion(self) -> ScoreFusion:
        """How tool scores and level probabilities become one score."""
        return self.fitted or self.resources.fusion

    def _beside_similar(self, inputs: Mapping[str, Any], line: Callable[["View"], str | None] | None) -> dict[str, Any]:
        """Return inputs with what labels of other photographs say of the image as a whole; without `line` nothing."""
        text = None if line is None else line(self._whole_view(inputs))
        return {**inputs, "similar_photographs": text}

    def _whole_view(self, inputs: Mapping[str, Any]) -> "View":
        """Return the view of what is judged: of a region, which is moved by what the whole is, the whole."""
        image, reference = inputs["image"], inputs["reference"]
        if reference is None:
            image = (inputs["region_crops"] or {}).get(GLOBAL, image)
        return self.resources.viewer.view(image, reference)

    def _beside_labels(self, inputs: Mapping[str, Any], evidence: ExecutorOutput) -> dict[str, Any]:
        """Return inputs with what labels say of the score: to the embedded expert as figures, to others in words."""
        if self._judge.reads_instructions:
            return self._beside_similar(inputs, self._levels_text(evidence))
        inputs = {**inputs, "similar_photographs": None}
        if self.corrections is not None:
            inputs["score_shift"] = self.corrections.shift(self._whole_view(inputs))
        return inputs

    def _levels_text(self, evidence: ExecutorOutput) -> Callable[["View"], str | None] | None:
        """Return what says how people rated others: all labels where something was fitted on them, else the nearest."""
        moved, near = self.corrections, self.neighbours
        if moved is None:
            return near.levels_text if near else None

        def line(view: "View") -> str | None:
            return moved.level_text(view, self.tools_mean(evidence)) or (near.levels_text(view) if near else None)

        return line

    def tools_mean(self, evidence: ExecutorOutput) -> float | None:
        """Return the tools' mean (1..5) as they read the image; None without a score."""
        return self.mean_of(evidence.readings)

    def mean_of(self, tools: ToolReadings) -> float | None:
        """Return the mean (1..5) that the fusion makes of tools' scores; None without a score."""
        return self.fusion.tool_mean(*tools) if tools.scores else None

    def tool_readings(self, evidence: ExecutorOutput, image: ImageRef, reference: ImageRef | None) -> ToolReadings:
        """Return what is fused of the tools: what they read, or what labels predict of the image by it."""
        mean, labels = self.tools_mean(evidence), self.corrections
        if mean is not None and labels is not None and self._judge.reads_instructions:
            view = self.resources.viewer.view(image, reference)
            if (predicted := labels.predict(view, mean)) is not None:
                return ToolReadings([predicted], [labels.by_kind[view.model.kind].precision])
        return evidence.readings

    def _evidence_text(self, evidence: ExecutorOutput) -> dict[str, str | None]:
        """Return readings and findings as the model gets them; a model that reads words gets the gist first."""
        readings, findings = scores_json(evidence.quality_scores), findings_json(evidence.distortion_analysis)
        if self._judge.reads_instructions:
            findings = findings_in_words(evidence.distortion_analysis)
            if readings and (mean := self.tools_mean(evidence)) is not None:
                readings = f"{quality_line(mean)}\n{readings}"
            if evidence.distortion_analysis and not findings:
                findings = NOTHING_STANDS_OUT[0]
        return {"quality_scores": readings, "distortion_analysis": findings}

    def _rate(
        self, inputs: Mapping[str, Any], evidence: ExecutorOutput, answer: Answer[LevelBelief], tools: ToolReadings
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
        self, inputs: Mapping[str, Any], evidence: ExecutorOutput, belief: LevelBelief, tools: ToolReadings,
        rung: str | None,
    ) -> SummarizerOutput:  # fmt: skip
        """Return the answer that a belief and the tools' scores make together."""
        fusion, chinese = self.fusion, is_chinese(str(inputs["query"]))
        (scores, precisions), read = tools, self.tools_mean(evidence)
        mean, probabilities = self.mean_of(tools), belief.probabilities
        if probabilities and self.neighbours:
            probabilities = even_out(probabilities, self.neighbours.even)
        score = fusion.fuse_scores(scores, probabilities, precisions)
        weights = fusion.compute_perceptual_weights(scores, precisions)
        logger.info("fusion: tool mean %s, alpha %s, p %s, q %.4f", mean, weights, probabilities, score)
        findings = findings_note(evidence, belief.reasoning, chinese=chinese)
        moved = "" if mean is None or read is None else moved_note(read, mean, chinese=chinese)
        made_of = fusion_note(fusion, score, scores, probabilities, precisions, chinese=chinese)
        gap = disagreement(mean, probabilities, chinese=chinese)
        low, high = fusion.interval(score, scores, probabilities, precisions)
        if gap and mean is not None and probabilities:
            believed = expected_level(probabilities)
            low, high = min(low, mean, believed), max(high, mean, believed)
        computed = {"level": fusion.map_to_level(score), "tool_mean": mean}
        return SummarizerOutput(
            **{**dict(belief.stated), **computed},
            final_answer=score,
            quality_score=score,
            quality_reasoning=in_sentences(belief.reasoning, findings, moved, made_of, gap),
            summary=belief.reasoning or findings or level_note(score, chinese=chinese),
            unresolved_gap=gap or None,
            level_probabilities=probabilities,
            level_probabilities_from=belief.source,
            perceptual_weights=weights,
            score_interval=(low, high),
            rung=rung,
        )

    def _level_belief(
        self, inputs: Mapping[str, Any], evidence: ExecutorOutput, calls: CallAllowance, *, finds: bool = False
    ) -> Answer[LevelBelief]:
        inputs = self._beside_labels(inputs, evidence)
        way = self.scoring_way()
        if way == "probabilities":
            return self._verbalized(inputs, calls, finds=finds)
        answer = self._classified(inputs, calls, from_tokens=way == "logprobs", finds=finds)
        if way != "logprobs" or answer.prediction is None or tokens_of(answer.prediction.get("logprobs")):
            return answer
        lm = self._lm_of(self.classify)
        if own_record(lm).known.token_probabilities != 0:
            logger.warning("%s gave no token probabilities; it is asked without from now on", lm.model)
            own_record(lm).learn(token_probabilities=0)
        if self.resources.settings.assessment.scoring != "auto" or self.scoring_way() != "probabilities":
            return answer
        verbalized = self._verbalized(inputs, calls, finds=finds)
        return answer if verbalized.value is None else verbalized

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

    def _verbalized(self, inputs: Mapping[str, Any], calls: CallAllowance, *, finds: bool) -> Answer[LevelBelief]:
        def read(p: dspy.Prediction) -> LevelBelief:
            masses = self.fusion.extract_vlm_probabilities(p.quality_probs, mode="probabilities")
            level = max(masses, key=lambda c: masses[c])
            source: BeliefSource = "probabilities"
            if masses[level] > _CERTAIN and not self._judge.is_calibrated:
                # One level with all the mass is the name of a level: nobody is that sure.
                masses, source = self._named(level), "classification"
            return LevelBelief(masses, reasoning_of(p), source, _found(p), Columns.stated_in(p))

        form = QuestionForm(
            example={**_FOUND, **_SCORED} if finds else _SCORED,
            max_tokens=_ROOM["quality_probs"] + finds * _ROOM_OF_FINDINGS,
            shape=partial(shape_signature, finds=True) if finds else None,
        )
        return ask(self.score, inputs, form, read, lm=self.resources.lm("summarizer"), calls=calls)

    def _classified(
        self, inputs: Mapping[str, Any], calls: CallAllowance, *, from_tokens: bool, finds: bool
    ) -> Answer[LevelBelief]:
        """Ask for a level's word; its probabilities are its tokens' where the backend gave them, else smoothed."""
        one_word = self.resources.scores_only(str(inputs["query"]))
        opens = self.asks == "opening" and from_tokens and not finds

        def read(p: dspy.Prediction) -> LevelBelief:
            reasoning = "" if one_word or opens else reasoning_of(p)
            found, stated = _found(p), Columns.stated_in(p)
            if from_tokens and (tokens := tokens_of(p.get("logprobs"))):
                try:
                    return LevelBelief(level_masses(tokens), reasoning, "logprobs", found, stated)
                except ValueError as error:
                    logger.warning("%s; the word alone counts", error)
            smoothed = self.fusion.extract_vlm_probabilities(p.quality_level, mode="classification")
            return LevelBelief(smoothed, reasoning, "classification", found, stated)

        level_last = not from_tokens and self._judge.reads_instructions
        form = QuestionForm(
            example=_WORD if one_word else {**_FOUND, **_CLASSIFIED} if finds else _CLASSIFIED,
            max_tokens=ROOM_OF_A_WORD if one_word else _ROOM["quality_level"] + finds * _ROOM_OF_FINDINGS,
            shape=partial(shape_signature, finds=finds, word_alone=one_word, level_last=level_last),
            decisive_field="quality_level" if opens else None,
        )
        config = {"logprobs": True, "top_logprobs": MOST_ALTERNATIVES} if from_tokens else None
        lm = self.resources.lm("summarizer")
        return ask(self.classify, inputs, form, read, lm=lm, calls=calls, config=config)

    def _named(self, level: int) -> dict[int, float]:
        return self.fusion.extract_vlm_probabilities(str(level), mode="classification")


def quality_line(mean: float) -> str:
    """Say in level words what a mean of tools' scores (1..5) means.

    >>> quality_line(3.6), quality_line(2.1)
    ('Measured quality: between fair and good (3.6 of 5).', 'Measured quality: poor (2.1 of 5).')
    """
    lower = min(int(mean), len(LEVEL_WORDS) - 1)
    words = LEVEL_WORDS[lower - 1], LEVEL_WORDS[lower]
    near = round(4 * (mean - lower))
    named = words[0] if near == 0 else words[1] if near == 4 else f"between {words[0]} and {words[1]}"
    return f"Measured quality: {named} ({mean:.1f} of 5)."


def findings_json(analysis: Mapping[str, Sequence[Finding]] | None) -> str | None:
    """Render findings as `{"Global": [{"type", "severity", "explanation"}]}`, or None when there are none."""
    if not analysis or not any(analysis.values()):
        return None
    return compact_json({region: [f.facts() for f in findings] for region, findings in analysis.items()})


def findings_in_words(analysis: Mapping[str, Sequence[Finding]] | None) -> str | None:
    """Render findings for a language model: faults by their words alone, a line a region; without any, as JSON.

    Figures, category and severity beside a fault's words cost a small model tokens and agreement.

    >>> blur = Finding(type="Blurs", severity="severe", explanation="Strong blur smears it: 9 % is left.", fault="blur")
    >>> findings_in_words({"Global": [blur, Finding(type="Noise", severity="none")]})
    'Strong blur smears it; no Noise'
    """
    if not any(finding.fault for findings in (analysis or {}).values() for finding in findings):
        return findings_json(analysis)
    texts = {region: "; ".join(map(_in_words, findings)) for region, findings in (analysis or {}).items()}
    return "\n".join(words if region == GLOBAL else f"{region}: {words}" for region, words in texts.items() if words)


def _in_words(finding: Finding) -> str:
    words = re.split("[:：]", finding.explanation, maxsplit=1)
    if finding.fault and len(words) > 1:
        return words[0]
    named = f"{'no' if finding.severity == 'none' else finding.severity} {finding.fault or finding.type}"
    return f"{named} ({finding.explanation.rstrip('.')})" if finding.fault and finding.explanation else named


def scores_json(scores: Mapping[str, Mapping[str, tuple[str, float]]] | None) -> str | None:
    """Render calibrated scores as `{"Global": {"Blurs": ["VIF", 2.6]}}`, in hundredths; None when there are none."""
    if not scores or not any(scores.values()):
        return None
    return compact_json({r: {d: [tool, round(s, 2)] for d, (tool, s) in by.items()} for r, by in scores.items() if by})


def findings_note(output: ExecutorOutput, text: str, *, chinese: bool = False) -> str:
    """Name the visible distortions that a text does not name yet in its language, or return an empty text.

    Who wrote a text has seen the faults that have words of their own; without a text, these are its sentences.
    """
    visible = [(region, finding) for region, finding in output.findings() if finding.severity != "none"]
    names = [
        _phrase(finding, region, chinese=chinese)
        for region, finding in visible
        if not finding.fault and _short(finding.type, chinese=chinese) not in text.casefold()
    ]
    faults = [] if text else [
        _in_words(finding) if region == GLOBAL else f"{region}: {_in_words(finding)}"
        for region, finding in visible if finding.fault
    ]  # fmt: skip
    found = f"检测到：{'、'.join(names)}。" if chinese else f"Found: {', '.join(names)}."
    end = "。" if chinese else ". "
    return "".join((*(f"{fault.rstrip('.。')}{end}" for fault in faults), found if names else "")).rstrip(" ")


def _short(category: DistortionCategory, *, chinese: bool) -> str:
    return CATEGORIES_CHINESE[category][:2] if chinese else category.split()[0].casefold().rstrip("s")


def _phrase(finding: Finding, region: str, *, chinese: bool) -> str:
    if chinese:
        place = "" if region == GLOBAL else f"“{region}”的"
        return f"{place}{SEVERITIES_CHINESE[finding.severity]}{CATEGORIES_CHINESE[finding.type]}"
    return f"{finding.severity} {finding.type}" + ("" if region == GLOBAL else f" in {region}")


def predict_of(predictor: dspy.Module) -> dspy.Predict:
    """Return what asks the model, of a `dspy.ChainOfThought` too."""
    return getattr(predictor, "predict", predictor)


_FINDINGS: Any = dspy.OutputField(desc="distortions that are visible, the most visible first; empty where none is")


@lru_cache(maxsize=64)
def shape_signature(
    signature: type[dspy.Signature], *, finds: bool = False, word_alone: bool = False, level_last: bool = False
) -> type[dspy.Signature]:
    """Return a signature that asks for the word alone, for findings before the reasons, or for the level last.

    The word is a level's or an option's. The level comes last for a model of which only text is read.
    """
    level = signature.output_fields.get("quality_level")
    if word_alone:
        for name in signature.output_fields.keys() - {"quality_level", "final_answer"}:
            signature = signature.delete(name)
        return signature
    if finds:
        place = [*signature.output_fields, "quality_reasoning"].index("quality_reasoning")
        signature = signature.insert(place, "findings", _FINDINGS, list[DistortionFinding])
    if level_last and level is not None:
        signature = signature.delete("quality_level").append("quality_level", level, level.annotation)
    return signature


def _found(prediction: dspy.Prediction) -> list[Finding] | None:
    """Return the distortions that an answer names, where it was asked for them."""
    found = prediction.get("findings")
    return None if found is None else [Finding.of(entry) for entry in found]


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
