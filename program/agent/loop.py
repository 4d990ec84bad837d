"""AgenticIQA: plan, gather evidence, answer; and plan again when the evidence falls short."""

import logging
from collections.abc import Mapping, Sequence

import dspy

from program.agent.assessment import Assessment
from program.agent.executor import Executor
from program.agent.inputs import fit_reference, initial_state, open_image
from program.agent.module import ProgramModule
from program.agent.planner import Planner
from program.agent.query import DEFAULT_QUERY
from program.agent.replan import next_step
from program.agent.resources import Resources
from program.agent.state import AssessmentState, ExecutorOutput, SummarizerOutput, ToolLog
from program.agent.summarizer import Summarizer
from program.common.settings import Settings, load_settings
from program.images.store import Box, ImageRef, ImageSource
from program.lms.limits import wired
from program.lms.metering import metered
from program.lms.usage import Usage
from program.tracking import annotate_trace
from signatures.schemas import Plan

__all__ = ("DEFAULT_QUERY", "AgenticIQA")

logger = logging.getLogger(__name__)


class AgenticIQA(ProgramModule):
    """Judge the quality of an image as people would, and say why.

    Called with an image (path, bytes, PIL image, H x W x 3 uint8 array or `dspy.Image`) and a query it returns an
    `Assessment`, which is a `dspy.Prediction`.
    `settings` default to configs/; `lm` plays every role and goes before DSPy's setting, which goes before the configs.
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
    ) -> Assessment:
        """Assess one image.

        `options` makes the query multiple-choice; `regions` are boxes in pixels (left, top, right, bottom) by
        name. Raises ImageError, ToolError or another InputError, one line each, for input that cannot be used.
        """
        settings = self.resources.settings
        test = open_image(image, settings.images.max_pixels)
        original = open_image(reference, settings.images.max_pixels) if reference is not None else None
        state = initial_state(query, test, original, options, regions, settings)
        original = fit_reference(original, test, state, resize=settings.tools.resize_reference)
        with metered() as usage, wired(settings.wire):
            result = self._loop(state, test, original)
        assessment = Assessment(**dict(result), state=state, usage=_completed(usage, state))
        annotate_trace(_facts(assessment))
        return assessment

    def _loop(self, state: AssessmentState, image: ImageRef, reference: ImageRef | None) -> SummarizerOutput:
        feedback: str | None = None
        avoid: list[str] = []
        lost: dict[str, str] = {}
        while True:
            failed = [tool for tool in _failed_tools(state.executor_evidence) if tool not in avoid]
            avoid += failed
            previous = state.plan
            read = self.planner(state=state, tool_names=self._tool_names(reference, avoid), feedback=feedback)
            state.plan, state.plan_repairs, state.plan_error = read
            if feedback is not None:
                state.remember_replan(feedback)
                if state.plan == previous and not failed:
                    return _unchanged(state, feedback)
            state.executor_evidence = self.executor(state=state, image=image, reference=reference, avoid=avoid)
            # A later plan may leave a tool out that the user named: what became of it is still told.
            lost |= _lost_tools(state.plan, state.executor_evidence)
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
        update={
            "quality_reasoning": f"{result.quality_reasoning} {note}",
            "need_replan": False, "replan_reason": None, "unresolved_gap": reason,
        }
    )  # fmt: skip
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
        "tool_mean": result.tool_mean,
        "perceptual_weights": result.perceptual_weights,
        "level_probabilities": result.level_probabilities,
        "unresolved_gap": result.unresolved_gap,
        "replans": result.usage.replans,
        "replan_reasons": [entry.reason for entry in result.state.replan_history] or None,
        "lm_calls": result.usage.lm_calls,
    }
