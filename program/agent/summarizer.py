"""The Summarizer: evidence and image become a score, an option or an explanation."""

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import dspy

from program.agent.labels import Corrections, Neighbours
from program.agent.query import QueryReading, QueryType, read_query
from program.agent.replan import contradiction, should_replan
from program.agent.resources import Resources
from program.agent.state import (
    AssessmentState,
    BeliefSource,
    ExecutorOutput,
    Finding,
    SummarizerOutput,
    ToolReadings,
    findings_in_words,
    findings_json,
    findings_note,
    quality_line,
    rating_of_same_pixels,
    scores_json,
)
from program.common.text import is_chinese, normalise_choice, options_told
from program.fusion import ScoreFusion, level_in_text
from program.fusion.levels import expected_level, level_masses, tokens_of
from program.fusion.scores import FittedFusion, evened, fusion_note, level_note, moved_note
from program.images.store import IMAGES, ImageRef
from program.lms.ask import Answer, ask
from program.lms.call import CallAllowance, stage
from program.lms.traits import MOST_ALTERNATIVES, ModelTraits, own_record, traits_of
from signatures.schemas import GLOBAL, DistortionFinding
from signatures.summarizer import AnswerQuestion, ClassifyQuality, ExplainQuality, ScoreQuality

if TYPE_CHECKING:
    from program.expert import View

logger = logging.getLogger(__name__)

UNDETERMINED = "Unable to determine"
PARSING_FAILED = "VLM output parsing failed"
DISAGREEMENT = 1.5
"""Levels between the tools' mean and the model's belief from which on an answer says so."""
_ROOM = {"quality_level": 250, "quality_probs": 300, "final_answer": 350}
"""Tokens by first asked output, about three times what an answer takes; of one word, all its pieces."""
_ROOM_OF_A_WORD = 8
_ROOM_OF_FINDINGS = 300
NOTHING_STANDS_OUT = "No distortion stands out."
NO_EVIDENCE = "No distortion analysis or tool score was available; the answer rests on the image alone."

_SCORED = {
    "quality_reasoning": "Moderate blur softens edges; the tool score of 2.6 agrees.",
    "quality_probs": {"bad": 0.02, "poor": 0.13, "fair": 0.6, "good": 0.2, "excellent": 0.05},
}
_WORD = {"quality_level": "fair"}
_CLASSIFIED = {**_WORD, "quality_reasoning": _SCORED["quality_reasoning"]}
_FOUND = {"findings": [{"type": "Blurs", "severity": "moderate", "explanation": "Edges appear soft."}]}
_LETTER = {"final_answer": "B"}
_ANSWERED = {"final_answer": "B", "quality_reasoning": "Moderate blur, and a tool score of 2.6."}
_EXPLAINED = {
    "final_answer": "The image is moderately blurred.",
    "quality_reasoning": "Edges are soft; the tool score is 2.6.",
}


_CERTAIN = 0.995
"""Mass on one level from which on stated probabilities are no more than that level's name."""

_RATING = (
    "quality_score", "level_probabilities", "level_probabilities_from", "tool_mean", "perceptual_weights",
    "score_interval",
)  # fmt: skip


class _Belief(NamedTuple):
    """How likely each quality level is, why, and where the numbers came from."""

    probabilities: dict[int, float]
    reasoning: str
    source: BeliefSource
    findings: list[Finding] | None = None


class Summarizer(dspy.Module):
    """Answer from the evidence, and say whether it sufficed."""

    def __init__(self, resources: Resources) -> None:
        super().__init__()
        self.resources = resources
        self.score = dspy.Predict(ScoreQuality)
        self.classify = dspy.Predict(ClassifyQuality)
        self.answer = dspy.Predict(AnswerQuestion)
        self.explain = dspy.Predict(ExplainQuality)
        self.asks = True
        """False where evidence alone is gathered: the tools' mean stands in place of an answer."""
        self.fitted: FittedFusion | None = None
        """The fusion a compile fitted; saved with the program."""
        self.neighbours: Neighbours | None = None
        """Labelled photographs, of which the nearest are evidence on a score; likewise."""
        self.corrections: Corrections | None = None
        """What labels add to the tools' mean, or to the embedded expert's reading; likewise."""

    @property
    def fusion(self) -> ScoreFusion:
        """How tool scores and level probabilities become one score."""
        return self.fitted or self.resources.fusion

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
            **self._told(state.evidence),
        }
        tools = self.tool_readings(state.evidence, image, reference)
        with stage("summarizer"):
            fields = self._answered(state, reading, inputs, tools)
        if image.too_small and fields.get("score_interval") and not state.evidence.same_pixels:
            fields["score_interval"] = (1.0, 5.0)
        return self._output(fields, state, reading, _gap(state, fields), tools)

    def _answered(
        self, state: AssessmentState, reading: QueryReading, inputs: Mapping[str, Any], tools: ToolReadings
    ) -> dict[str, Any]:
        """Return the fields that the kind of question asks for; what a score's answer names joins the evidence."""
        evidence, is_score = state.evidence, reading.type is QueryType.SCORING
        same = rating_of_same_pixels(chinese=is_chinese(state.query)) if evidence.same_pixels else {}
        if not self.asks and not self.names_distortions(state):
            mean = self.fusion.tool_mean(*tools) if is_score and tools.scores else UNDETERMINED
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
        crops = {region: IMAGES.cropped(image, box) for region, box in boxes.items()}
        if judges_crops and len(scope) == 1 and scope[0] in boxes:
            box = boxes[scope[0]]
            return crops[scope[0]], IMAGES.cropped(reference, box) if reference else None, {GLOBAL: image, **crops}
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

    def _beside_similar(self, inputs: Mapping[str, Any], told: Callable[["View"], str | None] | None) -> dict[str, Any]:
        """Return inputs with what labels of other photographs say of the image as a whole; without `told` nothing."""
        if told is None:
            return {**inputs, "similar_photographs": None}
        image, reference = inputs["image"], inputs["reference"]
        if reference is None:  # of a region, what the whole is moved by
            image = (inputs["region_crops"] or {}).get(GLOBAL, image)
        return {**inputs, "similar_photographs": told(self.resources.viewer.view(image, reference))}

    def _levels_told(self, evidence: ExecutorOutput) -> Callable[["View"], str | None] | None:
        """Return what says how people rated others: all labels where something was fitted on them, else the nearest."""
        moved, near = self.corrections, self.neighbours
        if self._judge.weighs_demos:
            return moved.shift_told if moved else None
        if moved is None:
            return near.levels_told if near else None

        def told(view: "View") -> str | None:
            return moved.level_told(view, self.tools_mean(evidence)) or (near.levels_told(view) if near else None)

        return told

    def tools_mean(self, evidence: ExecutorOutput) -> float | None:
        """Return the tools' mean (1..5) as they read the image; None without a score."""
        scores, precisions = evidence.readings
        return self.fusion.tool_mean(scores, precisions) if scores else None

    def tool_readings(self, evidence: ExecutorOutput, image: ImageRef, reference: ImageRef | None) -> ToolReadings:
        """Return what is fused of the tools: what they read, or what labels predict of the image by it."""
        mean, labels = self.tools_mean(evidence), self.corrections
        if mean is not None and labels is not None and not self._judge.weighs_demos:
            view = self.resources.viewer.view(image, reference)
            if (predicted := labels.predicted(view, mean)) is not None:
                return ToolReadings([predicted], [labels.precision(view)])
        return evidence.readings

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
        demos = _asks(self.score if self.scoring_way() == "probabilities" else self.classify).demos
        return is_score and (not demos or any(demo.get("findings") is not None for demo in demos))

    def _told(self, evidence: ExecutorOutput) -> dict[str, str | None]:
        """Return readings and findings as the model gets them; a model that reads words gets the gist first."""
        readings, findings = scores_json(evidence.quality_scores), findings_json(evidence.distortion_analysis)
        if self._judge.reads_instructions:
            findings = findings_in_words(evidence.distortion_analysis)
            if readings and (mean := self.tools_mean(evidence)) is not None:
                readings = f"{quality_line(mean)}\n{readings}"
            if evidence.distortion_analysis and not findings:
                findings = NOTHING_STANDS_OUT
        return {"quality_scores": readings, "distortion_analysis": findings}

    def _rate(
        self, inputs: Mapping[str, Any], evidence: ExecutorOutput, answer: Answer[_Belief], tools: ToolReadings
    ) -> dict[str, Any]:
        fusion, chinese = self.fusion, is_chinese(str(inputs["query"]))
        (scores, precisions), read = tools, self.tools_mean(evidence)
        mean = fusion.tool_mean(scores, precisions) if scores else None
        moved = "" if mean is None or read is None else moved_note(read, mean, chinese=chinese)
        rung, status = answer.rung, "ok"
        probabilities, reasoning, source = answer.value[:3] if answer.value else (None, "", None)
        if probabilities is None and (level := level_in_text(answer.raw)) is not None:
            probabilities = self._named(level)
            rung, source = "text", "classification"
            reasoning = f"The model's answer, read as text, names level {level} of 5."
        if probabilities is None:
            if not scores:
                return _failed(answer)
            rung, status = "tools alone", "degraded"
            reasoning = "The model gave no level probabilities; the tools' scores stand alone."
            logger.error("level probabilities failed on all calls; tools alone. Full output: %s", answer.raw)
        if probabilities and self.neighbours and not self._judge.weighs_demos:
            probabilities = evened(probabilities, self.neighbours.even)
        score = fusion.fuse_scores(scores, probabilities, precisions)
        weights = fusion.compute_perceptual_weights(scores, precisions)
        logger.info("fusion: tool mean %s, alpha %s, p %s, q %.4f", mean, weights, probabilities, score)
        findings = findings_note(evidence, reasoning, chinese=chinese)
        gap = disagreement(mean, probabilities, chinese=chinese)
        low, high = fusion.interval(score, scores, probabilities, precisions)
        if gap and mean is not None and probabilities:
            believed = expected_level(probabilities)
            low, high = min(low, mean, believed), max(high, mean, believed)
        made_of = fusion_note(fusion, score, scores, probabilities, precisions, chinese=chinese)
        return {
            "final_answer": score,
            "quality_score": score,
            "quality_reasoning": " ".join(filter(None, (reasoning, findings, moved, made_of, gap))),
            "summary": reasoning or findings or level_note(score, chinese=chinese),
            "unresolved_gap": gap or None,
            "level_probabilities": probabilities,
            "level_probabilities_from": source,
            "tool_mean": mean,
            "perceptual_weights": weights,
            "score_interval": (low, high),
            "status": status,
            "error": None if status == "ok" else _last_error(answer),
            "rung": rung,
        }

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

    def _level_belief(
        self, inputs: Mapping[str, Any], evidence: ExecutorOutput, calls: CallAllowance, *, finds: bool = False
    ) -> Answer[_Belief]:
        inputs = self._beside_similar(inputs, self._levels_told(evidence))
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
        compiled = _has_demos(self.score) and not _has_demos(self.classify)
        return "logprobs" if able and not compiled else "probabilities"

    @property
    def _judge(self) -> ModelTraits:
        return self.resources.known("summarizer")

    def _lm_of(self, predictor: dspy.Module) -> dspy.BaseLM:
        return _asks(predictor).lm or self.resources.lm("summarizer")

    def _verbalized(self, inputs: Mapping[str, Any], calls: CallAllowance, *, finds: bool) -> Answer[_Belief]:
        def read(p: dspy.Prediction) -> _Belief:
            masses = self.fusion.extract_vlm_probabilities(p.quality_probs, mode="probabilities")
            level = max(masses, key=lambda c: masses[c])
            if masses[level] > _CERTAIN and not self._judge.is_calibrated:
                # One level with all the mass is the name of a level: nobody is that sure.
                return _Belief(self._named(level), _reasoning(p), "classification", _found(p))
            return _Belief(masses, _reasoning(p), "probabilities", _found(p))

        return ask(
            self.score, inputs, lm=self.resources.lm("summarizer"), check=read, calls=calls,
            example={**_FOUND, **_SCORED} if finds else _SCORED,
            room=_ROOM["quality_probs"] + finds * _ROOM_OF_FINDINGS,
            form=partial(_shaped, finds=True) if finds else None,
        )  # fmt: skip

    def _classified(
        self, inputs: Mapping[str, Any], calls: CallAllowance, *, from_tokens: bool, finds: bool
    ) -> Answer[_Belief]:
        """Ask for a level's word; its probabilities are its tokens' where the backend gave them, else smoothed."""
        one_word = self.resources.scores_only(str(inputs["query"]))

        def read(p: dspy.Prediction) -> _Belief:
            reasoning = "" if one_word else _reasoning(p)
            if from_tokens and (tokens := tokens_of(p.get("logprobs"))):
                try:
                    return _Belief(level_masses(tokens), reasoning, "logprobs", _found(p))
                except ValueError as error:
                    logger.warning("%s; the word alone counts", error)
            smoothed = self.fusion.extract_vlm_probabilities(p.quality_level, mode="classification")
            return _Belief(smoothed, reasoning, "classification", _found(p))

        level_last = not from_tokens and self._judge.reads_instructions
        return ask(
            self.classify, inputs, lm=self.resources.lm("summarizer"), check=read, calls=calls,
            room=_ROOM_OF_A_WORD if one_word else _ROOM["quality_level"] + finds * _ROOM_OF_FINDINGS,
            form=partial(_shaped, finds=finds, word_alone=one_word, level_last=level_last),
            example=_WORD if one_word else {**_FOUND, **_CLASSIFIED} if finds else _CLASSIFIED,
            config={"logprobs": True, "top_logprobs": MOST_ALTERNATIVES} if from_tokens else None,
        )  # fmt: skip

    def _named(self, level: int) -> dict[int, float]:
        return self.fusion.extract_vlm_probabilities(str(level), mode="classification")

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
        told = partial(near.answer_told, query=query, options=options) if near else None
        inputs = self._beside_similar(inputs, told)
        inputs = {**inputs, "options": options_told(options)}
        if not self.resources.scores_only(query, options):
            return self._worded(self.answer, inputs, _ANSWERED, letter_in)
        chinese = is_chinese(query)
        reasons = findings_note(evidence, "", chinese=chinese) or ("未见明显失真。" if chinese else NOTHING_STANDS_OUT)
        return self._worded(self.answer, inputs, _LETTER, letter_in, reasons=reasons)

    def _explain(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        def stripped(text: str) -> str:
            if not text.strip():
                raise ValueError("the answer is empty")
            return text.strip()

        return self._worded(self.explain, inputs, _EXPLAINED, stripped)

    def _worded(
        self, predictor: dspy.Predict, inputs: Mapping[str, Any], example: Mapping[str, Any],
        read: Callable[[str], str], reasons: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Ask for an answer in words; `read` turns its text into what counts, or raises ValueError.

        Where `reasons` are known, the model is asked for none.
        """

        def check(p: dspy.Prediction) -> tuple[str, str]:
            return read(str(p.final_answer or "")), _reasoning(p) if reasons is None else reasons

        answer = ask(
            predictor, inputs, lm=self.resources.lm("summarizer"), check=check, example=example,
            room=_ROOM["final_answer"] if reasons is None else _ROOM_OF_A_WORD,
            form=None if reasons is None else partial(_shaped, word_alone=True),
        )  # fmt: skip
        if answer.value is None:
            return _failed(answer)
        text, reasoning = answer.value
        own = "" if predictor is self.explain and self._judge.explains_in_figures else reasoning
        fields = {"final_answer": text, "quality_reasoning": reasoning, "summary": own}
        return {**fields, "status": "ok", "rung": answer.rung}

    def _output(
        self, fields: dict[str, Any], state: AssessmentState, reading: QueryReading, gap: str, tools: ToolReadings
    ) -> SummarizerOutput:
        notes, evidence, is_iqa = [], state.evidence, _is_iqa(state)
        if fields["status"] != "failed":
            if is_iqa and evidence.is_empty:
                notes.append(NO_EVIDENCE)
            if is_iqa and (conflict := contradiction(evidence)):
                notes.append(f"{conflict}.")
            notes += [f"{note}." for note in evidence.notes if note not in fields["quality_reasoning"]]
        gap_left = gap or fields.get("unresolved_gap")
        if fields["status"] == "ok" and evidence.failed_steps:
            # Another answer than with this evidence: it must not pass for a whole one.
            fields = {**fields, "status": "degraded", "error": evidence.lacking()}
        score = rating = fields.get("quality_score")
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
                "quality_reasoning": " ".join([fields["quality_reasoning"].strip(), *notes]),
                "quality_score": score,
                "level": self.fusion.map_to_level(rating) if rating is not None else None,
                "used_evidence": evidence.used(),
                "need_replan": replan,
                "replan_reason": gap if replan else None,
                "unresolved_gap": None if replan else gap_left or None,
                "query_type": reading.type,
                "query_rule": reading.rule,
            }
        )


def _is_iqa(state: AssessmentState) -> bool:
    return state.plan is None or state.plan.query_type == "IQA"


def _gap(state: AssessmentState, fields: Mapping[str, Any]) -> str:
    """Return what another plan could bring to the evidence; empty where nothing, or where there is no answer."""
    if state.plan is None or not _is_iqa(state) or fields["status"] == "failed":
        return ""
    return should_replan(state.evidence, state.plan.query_scope, state.plan)[1]


def disagreement(mean: float | None, probabilities: Mapping[int, float] | None, *, chinese: bool = False) -> str:
    """Say where tools and model lie `DISAGREEMENT` levels apart or more, with both figures; else an empty text.

    >>> disagreement(4.2, {1: 0.2, 2: 0.8})
    'The tools say 4.2 of 5 and the model 1.8: they disagree.'
    """
    if mean is None or not probabilities or abs(mean - expected_level(probabilities)) < DISAGREEMENT:
        return ""
    words = "工具评分为 {:.1f}，模型判断为 {:.1f}：两者不一致。" if chinese else (
        "The tools say {:.1f} of 5 and the model {:.1f}: they disagree."
    )  # fmt: skip
    return words.format(mean, expected_level(probabilities))


def _asks(predictor: dspy.Module) -> dspy.Predict:
    """Return what asks the model, of a `dspy.ChainOfThought` too."""
    return getattr(predictor, "predict", predictor)


def _has_demos(predictor: dspy.Module) -> bool:
    return bool(getattr(_asks(predictor), "demos", None))


_FINDINGS: Any = dspy.OutputField(desc="distortions that are visible, the most visible first; empty where none is")


@lru_cache(maxsize=64)
def _shaped(
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


def _with_findings(evidence: ExecutorOutput, answer: Answer[_Belief]) -> ExecutorOutput:
    """Return evidence with what an answer named, or with the note that it named nothing that can be read."""
    if answer.value is not None and answer.value.findings is not None:
        return evidence.with_findings(answer.value.findings)
    return evidence.model_copy(
        update={
            "notes": [*evidence.notes, f"analysis failed: {_last_error(answer)}"],
            "failed_steps": [*evidence.failed_steps, "analysis"],
        }
    )


def _found(prediction: dspy.Prediction) -> list[Finding] | None:
    """Return the distortions that an answer names, where it was asked for them."""
    found = prediction.get("findings")
    return None if found is None else [Finding.of(entry) for entry in found]


def _reasoning(prediction: dspy.Prediction) -> str:
    text = str(prediction.quality_reasoning or "").strip()
    if text in {"", "None", "null"}:
        raise ValueError("quality_reasoning is empty")
    return text


def _failed(answer: Answer[Any]) -> dict[str, Any]:
    logger.error("all calls failed (%s). Full output: %s", "; ".join(answer.errors), answer.raw)
    return {
        "final_answer": UNDETERMINED,
        "quality_reasoning": PARSING_FAILED,
        "summary": PARSING_FAILED,
        "status": "failed",
        "error": _last_error(answer),
    }


def _last_error(answer: Answer[Any]) -> str:
    return answer.errors[-1] if answer.errors else PARSING_FAILED
