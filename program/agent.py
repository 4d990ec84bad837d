"""AgenticIQA: plan, gather evidence, answer; and plan again when the evidence falls short."""

import asyncio
import contextvars
import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dspy

from program.batch import FailedSample, assess_all
from program.errors import InputError
from program.executor import Executor
from program.gate import wired
from program.images import HOST, IMAGES, Box, ImageRef, ImageSource
from program.metering import metered
from program.planner import Planner
from program.query import DEFAULT_QUERY, read_query
from program.replan import next_step
from program.resources import Resources
from program.settings import Settings, load_settings
from program.state import Assessment, AssessmentState, ExecutorOutput, SummarizerOutput, ToolLog, Usage
from program.summarizer import Summarizer
from program.tracking import annotate_trace
from signatures.schemas import Plan

__all__ = ("DEFAULT_QUERY", "AgenticIQA")

logger = logging.getLogger(__name__)


class AgenticIQA(dspy.Module):
    """Judge the quality of an image as people would, and say why.

    Called with an image (path, bytes, PIL image or H x W x 3 uint8 array) and a query it returns an `Assessment`.
    `settings` default to configs/; `lm` plays every role and goes before DSPy's setting, which goes before the configs.
    """

    def __init__(self, settings: Settings | None = None, lm: dspy.BaseLM | None = None) -> None:
        super().__init__()
        self.resources = Resources(settings or load_settings(), lm)
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
    ) -> Assessment:
        """Assess one image.

        `options` makes the query multiple-choice; `regions` are boxes in pixels (left, top, right, bottom) by
        name. Raises ImageError, ToolError or another InputError, one line each, for input that cannot be used.
        """
        settings = self.resources.settings
        test = _opened(image, settings.images.max_pixels)
        original = _opened(reference, settings.images.max_pixels) if reference is not None else None
        state = _initial_state(query, test, original, options, regions, settings)
        original = _fitted(original, test, state, resize=settings.tools.resize_reference)
        with metered() as usage, wired(settings.wire):
            result = self._loop(state, test, original)
        assessment = Assessment(**dict(result), state=state, usage=_completed(usage, state))
        annotate_trace(_facts(assessment))
        return assessment

    async def aforward(self, *arguments: Any, **named: Any) -> Assessment:
        """Assess one image without blocking the event loop; the arguments are those of a plain call.

        It runs in a thread of its own with the caller's context. A cancelled call goes on to its end, unheard.
        """
        run = functools.partial(contextvars.copy_context().run, AgenticIQA.forward, self, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self.resources.threads, run)

    def batch(
        self, samples: Iterable[Any], workers: int = 8, *, progress: bool = False
    ) -> list[Assessment | FailedSample]:
        """Assess many samples with `workers` threads; results in their order, a failed sample as a `FailedSample`.

        A sample is an image, a mapping of the call's arguments or an object with them as attributes. Ctrl-C finishes
        what is in flight and raises BatchInterrupted, which holds the results so far.
        """
        return assess_all(self, samples, workers=workers, progress=progress)

    def _loop(self, state: AssessmentState, image: ImageRef, reference: ImageRef | None) -> SummarizerOutput:
        feedback: str | None = None
        avoid: list[str] = []
        lost: dict[str, str] = {}
        while True:
            failed = [tool for tool in _failed_tools(state.executor_evidence) if tool not in avoid]
            avoid += failed
            plan, repairs = self.planner(state=state, tool_names=self._tool_names(reference, avoid), feedback=feedback)
            if feedback is not None and plan == state.plan and not failed:
                return _unchanged(state, feedback)
            if feedback is not None:
                state.remember_replan(feedback)
            state.plan, state.plan_repairs = plan, repairs
            state.executor_evidence = self.executor(state=state, image=image, reference=reference, avoid=avoid)
            # A later plan may leave a tool out that the user named: what became of it is still told.
            lost |= _lost_tools(plan, state.executor_evidence)
            told = state.executor_evidence.notes
            told += [note for note in lost.values() if note not in told]
            state.summarizer_result = self.summarizer(state=state, image=image, reference=reference)
            if next_step(state) == "end":
                return state.summarizer_result
            feedback = state.summarizer_result.replan_reason

    def _tool_names(self, reference: ImageRef | None, avoid: Sequence[str]) -> list[str]:
        ready = self.resources.runner.ready("NR" if reference is None else "FR")
        others = self.resources.runner.ready("NR") if reference is not None else ()
        return [spec.name for spec in (*ready, *others) if spec.name not in avoid]


def _opened(source: "ImageSource | dspy.Image", max_pixels: int) -> ImageRef:
    if isinstance(source, ImageRef):  # keeps what the caller calls it
        return IMAGES.add(source)
    url = source if isinstance(source, str) else getattr(source, "url", None)
    if isinstance(url, str) and url.startswith(HOST):
        return IMAGES.find(url)
    if isinstance(source, dspy.Image):
        raise InputError("image: a dspy.Image with its own URL is not opened here; give a path, bytes or pixels")
    return IMAGES.add(source, max_pixels=max_pixels)


def _fitted(reference: ImageRef | None, image: ImageRef, state: AssessmentState, *, resize: bool) -> ImageRef | None:
    """Return a reference of the image's size, resampled and noted where that is asked for, for all stages alike."""
    if reference is None or (reference.width, reference.height) == (image.width, image.height):
        return reference
    sizes = f"{reference.width}x{reference.height}", f"{image.width}x{image.height}"
    if not resize:
        raise InputError(
            f"reference {reference.name!r}: is {sizes[0]}, image {image.name!r} is {sizes[1]}; "
            "give a reference of the same size, or set tools.resize_reference"
        )
    state.image_notes = [*state.image_notes, f"reference resampled from {sizes[0]} to {sizes[1]}"]
    return IMAGES.resized(reference, image.width, image.height)


def _initial_state(
    query: str,
    image: ImageRef,
    reference: ImageRef | None,
    options: Mapping[str, str] | Sequence[str] | None,
    regions: Mapping[str, Box] | None,
    settings: Settings,
) -> AssessmentState:
    if not isinstance(query, str):
        raise InputError(f"query {query!r}: is no text; ask something, as {DEFAULT_QUERY!r}")
    if not query.strip():
        raise InputError(f"query {query!r}: is empty; ask something, as {DEFAULT_QUERY!r}")
    try:
        asked = read_query(query, options)
    except ValueError as error:
        raise InputError(str(error)) from error
    for name, box in (regions or {}).items():
        if fault := _fault_of_box(box, image.width, image.height):
            raise InputError(f"region {name!r}: box {tuple(box)} {fault}")
    return AssessmentState(
        query=query.strip(),
        image_path=image.name,
        image_notes=list(image.notes),
        reference_path=reference.name if reference else None,
        options=asked.options if options else None,
        regions={name: tuple(box) for name, box in regions.items()} if regions else None,
        max_replan_iterations=settings.assessment.max_replan_iterations,
    )


def _fault_of_box(box: Box, width: int, height: int) -> str | None:
    if len(box) != 4:
        return f"has {len(box)} numbers; give left, top, right, bottom in pixels"
    left, top, right, bottom = box
    if not (left < right and top < bottom):
        return "is empty; give left < right and top < bottom"
    if left < 0 or top < 0 or right > width or bottom > height:
        return f"passes the edge of the {width}x{height} image; keep it within (0, 0, {width}, {height})"
    return None


def _failed_tools(evidence: ExecutorOutput | None) -> list[str]:
    """Return the tools that failed and have a stand-in: without them the same plan is another question."""
    logs = evidence.tool_logs if evidence else []
    return list(dict.fromkeys(log.tool for log in logs if log.error and log.alternative))


def _lost_tools(plan: Plan, evidence: ExecutorOutput) -> dict[str, str]:
    """Return, for each tool that the user named and that gave no score, a note that says so."""
    return {
        log.tool: f"tool {log.tool!r} was asked for and gave no score ({_fault(log)})"
        for log in evidence.tool_logs
        if log.error and log.tool in plan.required_tools
    }


def _fault(log: ToolLog) -> str:
    return (log.error or "").removeprefix(f"tool {log.tool!r}: ")


def _unchanged(state: AssessmentState, reason: str) -> SummarizerOutput:
    """Return the answer at hand: asking the same again would cost calls and change nothing."""
    result = state.summarizer_result
    if result is None:
        raise ValueError("no answer to keep: the Summarizer has not run")
    logger.info("the new plan equals the previous one; the answer stands (%s)", reason)
    note = f"Planning again changed nothing, so this gap remains: {reason}."
    kept = result.model_copy(
        update={"quality_reasoning": f"{result.quality_reasoning} {note}", "need_replan": False, "replan_reason": None}
    )
    state.summarizer_result = kept
    return kept


def _completed(usage: Usage, state: AssessmentState) -> Usage:
    logs = state.executor_evidence.tool_logs if state.executor_evidence else []
    usage.tool_readings = len(logs)
    usage.tool_cache_hits = sum(log.cached for log in logs)
    usage.tool_failures = sum(log.error is not None for log in logs)
    usage.replans = state.iteration_count
    return usage


def _facts(result: Assessment) -> dict[str, object]:
    """Return what the log says of an assessment, for its trace."""
    evidence = result.state.executor_evidence or ExecutorOutput()
    return {
        "mode": result.query_type.value if result.query_type else None,
        "query_rule": result.query_rule,
        "findings": sum(map(len, (evidence.distortion_analysis or {}).values())),
        "tool_scores": len([log for log in evidence.tool_logs if log.score is not None]),
        "tool_failures": len([log for log in evidence.tool_logs if log.error]),
        "image": result.state.image_path,
        "reference": result.state.reference_path,
        "status": result.status,
        "rung": result.rung,
        "score": result.rating,
        "replans": result.usage.replans,
        "replan_reasons": [entry.reason for entry in result.state.replan_history] or None,
        "lm_calls": result.usage.lm_calls,
    }
