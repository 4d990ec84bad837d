"""AgenticIQA: plan, gather evidence, answer; and look again where that brings more."""

import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, get_args

import dspy
from PIL import Image

from program.agent.assessment import Assessment
from program.agent.executor import Executor
from program.agent.looking import SecondLook
from program.agent.module import ProgramModule
from program.agent.notes import ended, note
from program.agent.planner import Planner
from program.agent.query import read_query
from program.agent.replan import next_step
from program.agent.resources import ROLES, Resources, cast_as
from program.agent.state import (
    AssessmentState,
    ExecutorOutput,
    Gap,
    ImagePair,
    SummarizerOutput,
    ToolLog,
    of_same_pixels,
)
from program.agent.summarizer import Summarizer
from program.common.backends import Usage
from program.common.cache import forget_answers, noted_answers
from program.common.errors import ImagesRefused, InputError, did_you_mean
from program.common.files import check_text
from program.common.request import DEFAULT_QUERY
from program.common.settings import Settings, load_settings
from program.common.text import in_sentences
from program.images.store import HOST, IMAGES, Box, ImageRef, ImageSource, shift_of, shift_text, show_the_same
from program.lms.call import meter
from program.lms.limits import wire_scope
from program.lms.traits import own_record
from program.tracking import annotate_trace
from signatures.schemas import Intention, PictureKind

if TYPE_CHECKING:
    from program.expert import Viewer

logger = logging.getLogger(__name__)


class AgenticIQA(ProgramModule):
    """Judge the quality of an image as people would, and say why.

    Called with an image (path, bytes, PIL image, H x W x 3 uint8 array or `dspy.Image`) and a
    query, it returns an `Assessment`, which is a `dspy.Prediction`. `settings` default to configs/;
    `lm` plays every role and goes before DSPy's setting, which goes before the configs.
    """

    def __init__(self, settings: Settings | None = None, lm: dspy.BaseLM | None = None) -> None:
        super().__init__(Resources(settings or load_settings(), lm))
        self.planner = Planner(self.resources)
        self.executor = Executor(self.resources)
        self.summarizer = Summarizer(self.resources)

    def forward(
        self,
        image: "ImageSource | dspy.Image",
        query: str = DEFAULT_QUERY,
        reference: "ImageSource | dspy.Image | None" = None,
        options: Mapping[str, str] | Sequence[str] | None = None,
        regions: Mapping[str, Box] | None = None,
        intended: Iterable[Intention] | None = None,
        kind: PictureKind | None = None,
    ) -> Assessment:
        """Assess one image.

        `options` makes the query multiple-choice; `regions` are boxes in pixels (left, top, right,
        bottom) by name. `intended` are effects that are meant ("high-key"), `kind` is what the
        picture is ("document"), in place of the settings'. Raises ImageError, ToolError or another
        InputError, one line each, for input that cannot be used.
        """
        settings = self.resources.settings
        test, original = _opened_pair(image, reference, settings.images.max_pixels)
        state = _initial_state(query, test, original, options, regions, settings)
        _describe(state, intended, kind, settings)
        if original is not None:
            given = original
            original = IMAGES.match_size(given, test, resample=settings.tools.resize_reference)
            if original is not given:
                state.image_notes.append(f"reference resampled from {given.size} to {test.size}")
            if not show_the_same(test, original):
                state.image_notes.append(f"the reference {given.name!r} seems to show something else")
        images = test, original
        with meter() as usage, wire_scope(settings), cast_as(self._models_set()):
            not_judged = self._look(state, images)
            with noted_answers() as noted:
                result, state = self._answered(state, images, usage)
            self.resources.note_answer(result)
            if result.is_unread:
                forget_answers(noted)
            if note := self.resources.sight_note:
                state.image_notes = [*state.image_notes, note]
        usage.replans = state.iteration_count
        assessment = Assessment.of(result, state, usage, images, not_judged)
        state.advice = _advice(assessment, self.resources.viewer)
        annotate_trace(_facts(assessment))
        return assessment

    def _look(self, state: AssessmentState, images: ImagePair) -> str | None:
        """Write down what the expert takes an image for; return why it is not judged."""
        from program.expert import KINDS, TOO_SMALL, frame_of, kind_of, not_judged, sharpness_of

        (image, reference), viewer = images, self.resources.viewer
        if reference is not None:
            is_guess = image.too_small and not IMAGES.same_pixels(image, reference)
            return TOO_SMALL if is_guess else None
        if self.resources.known_traits("summarizer").embedded:
            view = viewer.view(image).meant(state.intended, state.stated_kind)
            state.kind, state.subject_sharp = kind_of(view), sharpness_of(view)
            return not_judged(view)
        if state.stated_kind is not None:
            return None if KINDS[state.stated_kind] else state.stated_kind
        if image.too_small:
            return TOO_SMALL
        return frame_of(viewer, image)

    def never_asked(self) -> frozenset[str]:
        """Return the predictors without a question, or with none in rating a whole image."""
        resources = self.resources
        with cast_as(self._models_set()):
            names = {"executor.detect", "executor.analyse"}
            if resources.settings.assessment.diagnosis == "separate":
                names = {"executor.diagnose"}
            elif resources.answers_with_distortions:
                names.add("executor.diagnose")
            if resources.distortion_model is not resources.lm("executor"):
                # The embedded expert looks, by its own wording.
                names |= {f"executor.{step}" for step in ("detect", "analyse", "diagnose", "locate")}
            if resources.settings.executor.selection == "measured":
                names.add("executor.select_tools")
            if self.summarizer.scoring_way() == "probabilities":
                names.add("summarizer.classify")
            else:
                names.add("summarizer.score")
        return frozenset(names)

    # Its docstring is replaced below by `forward`'s.
    def __call__(self, *arguments: Any, **named: Any) -> Assessment:
        """Assess one image: see `forward`."""
        assessment: Assessment = super().__call__(*arguments, **named)
        return assessment

    def heatmap(
        self,
        image: "ImageSource | dspy.Image",
        reference: "ImageSource | dspy.Image | None" = None,
        distortion: str | None = None,
    ) -> Image.Image:
        """Return the image in grey with red where quality is lost, as the expert sees its parts.

        The stronger the red, the lower the score of that part: none from 4 of 5 on. Of a
        `distortion` ("blur", "noise" ...) the red is what it alone takes from the score. Beside a
        reference of the same size the differences count. Raises ImageError or another InputError
        for images and distortions that cannot be used.
        """
        from program.expert import heatmap

        settings = self.resources.settings
        test, original = _opened_pair(image, reference, settings.images.max_pixels)
        if original is not None:
            original = IMAGES.match_size(original, test, resample=settings.tools.resize_reference)
        return heatmap(test, original, distortion)

    def _models_set(self) -> dict[str, dspy.BaseLM]:
        """Return the model of each role whose predictors all have the same one, as by `set_lm`."""
        models: dict[str, dspy.BaseLM] = {}
        for role in ROLES:
            lms = [predictor.lm for predictor in _predictors_of(getattr(self, role))]
            if lms[0] is not None and all(lm is lms[0] for lm in lms):
                models[role] = lms[0]
        return models

    def _answered(
        self, state: AssessmentState, images: ImagePair, usage: Usage
    ) -> tuple[SummarizerOutput, AssessmentState]:
        """Return the answer and its state; a model that refuses images is asked again without."""
        refusals = set()
        while True:
            started = state.model_copy()
            try:
                return self._loop(started, images, usage), started
            except ImagesRefused as refusal:
                # The model's record now says that it reads none, so the expert looks.
                if str(refusal) in refusals:
                    raise
                refusals.add(str(refusal))
                logger.info("%s; asked again without images", refusal)

    def _loop(self, state: AssessmentState, images: ImagePair, usage: Usage) -> SummarizerOutput:
        """Plan, gather evidence and answer; look again while that may bring more."""
        self._plan(state, images)
        result = state.summarizer_result = self._round(state, images)
        _add_readings(usage, state.evidence.tool_logs)
        while next_step(state) == "planner" and state.gap is not None:
            gap, known = state.gap, state.evidence.tool_logs
            again = self._looked_again(gap, state, images)
            if again is None:
                result = state.summarizer_result = _left_open(result, gap, state.query)
                break
            result = state.summarizer_result = again
            _add_readings(usage, [log for log in state.evidence.tool_logs if log not in known])
        return result

    def _plan(self, state: AssessmentState, images: ImagePair, feedback: str | None = None) -> None:
        names = self.executor.tool_names(images[1])
        planned = self.planner(state=state, tool_names=names, feedback=feedback)
        state.plan, state.plan_repairs, state.unusable_tools, state.plan_error = planned

    def _looked_again(self, gap: Gap, state: AssessmentState, images: ImagePair) -> SummarizerOutput | None:
        """Return an answer from new evidence, another plan's or one more reading's; None without."""
        feedback = gap.text(state.query)
        if not gap.is_of_words:
            evidence = SecondLook(state, images, self.resources).at(gap)
            if evidence is None:
                return None
            state.remember_replan(feedback)
            return self._answer_from(evidence, state, images)
        if self.resources.known_traits("planner").embedded:
            return None  # its plan depends on the question alone
        previous = state.plan
        self._plan(state, images, feedback)
        state.remember_replan(feedback)
        if state.plan == previous:
            return None
        return self._round(state, images)

    def _round(self, state: AssessmentState, images: ImagePair) -> SummarizerOutput:
        """Gather evidence and answer from it: both in one question where the model manages that."""
        if not self.summarizer.names_distortions(state):
            return self._in_two_questions(state, images)
        known_to_manage = self.resources.traits("executor").answers_at_once
        evidence = self._gathered(state, images, with_diagnosis=False)
        result = self._answer_from(evidence, state, images)
        if known_to_manage:  # it is asked for both again, though an answer could not be read
            return result
        manages = "analysis" not in state.evidence.failed_steps
        if not manages:
            result = self._in_two_questions(state, images)
        # Only an "ok" answer teaches: another may have failed for a reason that lies elsewhere.
        if result.status == "ok" and not state.evidence.same_pixels:
            own_record(self.resources.lm("executor")).learn(answers_at_once=manages)
        return result

    def _in_two_questions(self, state: AssessmentState, images: ImagePair) -> SummarizerOutput:
        """Answer from distortions that were asked for before."""
        evidence = self._gathered(state, images)
        result = self._answer_from(evidence, state, images)
        if result.status == "failed" and evidence.spares_tools:  # then they are all that there is
            evidence = self._gathered(state, images, tools_alone=True)
            result = self._answer_from(evidence, state, images)
        return result

    def _gathered(self, state: AssessmentState, images: ImagePair, **how: bool) -> ExecutorOutput:
        image, reference = images
        evidence: ExecutorOutput = self.executor(
            state=state, image=image, reference=reference, fusion=self.summarizer.fusion, **how
        )
        return evidence

    def _answer_from(self, evidence: ExecutorOutput, state: AssessmentState, images: ImagePair) -> SummarizerOutput:
        """Write evidence into the state with what the two images show by themselves, and answer."""
        image, reference = images
        if reference is not None and evidence.shift is None:
            shift = shift_of(image, reference)
            if any(shift):
                notes = [shift_text(shift, state.query), *evidence.notes]
                evidence = evidence.model_copy(update={"shift": shift, "notes": notes})
            if state.is_iqa and IMAGES.same_pixels(image, reference):
                evidence = of_same_pixels(evidence, state)
        state.executor_evidence = evidence
        result: SummarizerOutput = self.summarizer(state=state, image=image, reference=reference)
        return result


def _predictors_of(role: dspy.Module) -> list[dspy.Predict]:
    """Return what a role asks with; `named_parameters` takes too long for each image."""
    predictors = []
    for part in vars(role).values():
        if isinstance(part, dspy.Predict):
            predictors.append(part)
        elif isinstance(part, dspy.Module):
            predictors += [predictor for _, predictor in part.named_parameters()]
    return predictors


functools.update_wrapper(AgenticIQA.__call__, AgenticIQA.forward, assigned=("__doc__",))  # for `help`


def _add_readings(usage: Usage, logs: Sequence[ToolLog]) -> None:
    usage.tool_readings += len(logs)
    usage.tool_cache_hits += sum(log.cached for log in logs)
    usage.tool_failures += sum(log.error is not None for log in logs)


def _left_open(result: SummarizerOutput, gap: Gap, query: str) -> SummarizerOutput:
    """Return the answer at hand, where nothing new is to be had."""
    logger.info("nothing new could be gathered; the answer stands (%s)", gap.kind)
    fields: dict[str, Any] = {"need_replan": False, "replan_reason": None}
    if not gap.is_doubt:
        text = gap.text(query)
        remains = ended(note("replanned", query, gap=text), query)
        fields["quality_reasoning"] = in_sentences(result.quality_reasoning, remains)
        fields["unresolved_gap"] = text
    return result.model_copy(update=fields)


def _facts(result: Assessment) -> dict[str, object]:
    """Return the facts of an assessment that its trace is annotated with."""
    evidence = result.state.evidence
    own = (
        "query_rule", "status", "attempt", "tool_mean", "perceptual_weights", "level_probabilities",
        "unresolved_gap",
    )  # fmt: skip
    return {
        **{name: getattr(result, name) for name in own},
        "mode": result.query_type.value if result.query_type else None,
        "findings": len(evidence.findings()),
        "tool_scores": len([log for log in evidence.tool_logs if log.score is not None]),
        "tool_failures": result.usage.tool_failures,
        "image": result.state.image_path,
        "reference": result.state.reference_path,
        "score": result.rating,
        "replans": result.usage.replans,
        "replan_reasons": [entry.reason for entry in result.state.replan_history] or None,
        "lm_calls": result.usage.lm_calls,
    }


# What a caller gives, checked


def _opened(source: "ImageSource | dspy.Image", max_pixels: int) -> ImageRef:
    """Return a caller's image, of which nothing is fetched; ImageError where it cannot be read."""
    if isinstance(source, dspy.Image):
        source = source.url
    if isinstance(source, str) and source.startswith(HOST):
        return IMAGES.find(source)
    return IMAGES.add(source, max_pixels=max_pixels)


def _opened_pair(
    image: "ImageSource | dspy.Image", reference: "ImageSource | dspy.Image | None", max_pixels: int
) -> ImagePair:
    test = _opened(image, max_pixels)
    if reference is None:
        return test, None
    return test, _opened(reference, max_pixels)


def _initial_state(
    query: str,
    image: ImageRef,
    reference: ImageRef | None,
    options: Mapping[str, str] | Sequence[str] | None,
    regions: Mapping[str, Box] | None,
    settings: Settings,
) -> AssessmentState:
    """Return the state that an assessment starts from; InputError for unusable input."""
    if not isinstance(query, str) or not query.strip():
        raise InputError(f"query {query!r}: is no text; ask something, as {DEFAULT_QUERY!r}")
    try:
        reading = read_query(query, options)
    except ValueError as error:
        raise InputError(str(error)) from error
    for text in (query, *(reading.options or {}).values(), *(regions or {})):
        check_text(str(text), f"text {text!r}:")
    for name, box in (regions or {}).items():
        if fault := _fault_of_box(box, image.width, image.height):
            raise InputError(f"region {name!r}: box {tuple(box)} {fault}")
    boxes = {name: tuple(box) for name, box in (regions or {}).items()}
    return AssessmentState(
        query=query.strip(),
        image_path=image.name,
        image_notes=list(image.notes),
        reference_path=reference.name if reference else None,
        options=reading.options if options else None,
        regions=boxes or None,
        max_replan_iterations=settings.assessment.max_replan_iterations,
    )


def _describe(state: AssessmentState, intended: Iterable[str] | None, kind: str | None, settings: Settings) -> None:
    """Write down what caller or settings say of a picture. Raises InputError for unknown names."""
    if intended is None:
        intended = settings.assessment.intended
    names = [intended] if isinstance(intended, str) else list(intended)
    kind = kind or settings.assessment.kind
    stated = [("intended", name, get_args(Intention)) for name in names]
    if kind is not None:
        stated.append(("kind", kind, get_args(PictureKind)))
    for what, name, known in stated:
        if name not in known:
            raise InputError(f"{what} {name!r}: is not known{did_you_mean(name, known)}")
    state.intended = cast("list[Intention]", names)
    state.stated_kind = cast("PictureKind | None", kind)


def _advice(assessment: Assessment, viewer: "Viewer") -> str | None:
    """Say what to do about the faults; how much of it is measured where the expert looks."""
    from program.expert import advice_on

    state, view = assessment.state, None
    if state.kind:
        view = viewer.view(assessment.images[0])
    return advice_on(dict(assessment.faults), state.query, view) or None


def _fault_of_box(box: Box, width: int, height: int) -> str | None:
    if len(box) != 4:
        return f"has {len(box)} numbers; give left, top, right, bottom in pixels"
    left, top, right, bottom = box
    if not (left < right and top < bottom):
        return "is empty; give left < right and top < bottom"
    if left < 0 or top < 0 or right > width or bottom > height:
        return f"passes the edge of the {width}x{height} image; keep it within (0, 0, {width}, {height})"
    return None
