"""Assessments as traces of a run: a span for each step, named as the program names it, and how far it was off."""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import dspy
from dspy.utils.callback import BaseCallback

from program.common.keys import strip_bytes, without_keys
from program.tracking.runs import RunHandle
from program.tracking.spans import present

if TYPE_CHECKING:
    from mlflow import MlflowClient

_SETUP = ("signature", "demos", "config", "lm")
"""What a predictor is called with beside its question; the model's span holds what was made of it."""


class Recording(BaseCallback):
    """Makes a span of each step of a program.

    MLflow's own callback for DSPy names every predictor `Predict.forward`, and is switched on for a whole process.
    """

    def __init__(self, program: dspy.Module) -> None:
        self._names = {id(module): name.removeprefix("self.") for name, module in program.named_sub_modules()}
        # A predictor that stands in for another has its signature, and nothing else of it.
        self._names |= {id(predictor.signature): name for name, predictor in program.named_parameters()}
        self._names[id(program)] = type(program).__name__
        self._open: dict[str, tuple[Any, Any]] = {}
        self._judged: list[tuple[str, float | str, float | str, float | str, str]] = []
        self.asked: set[str] = set()
        """The predictors that asked a language model."""

    def judge(
        self, name: str, inputs: Mapping[str, Any], truth: float | str, whose: str, judge: Callable[[], float | str]
    ) -> None:
        """Record what `judge` answers of a sample as a trace; `whose` is "HUMAN" or "CODE", who says the truth."""
        import mlflow

        with mlflow.start_span(f"sample {name}", span_type="CHAIN") as span:
            span.set_inputs({"sample": name, **present(inputs)})
            truth, answer = _rounded(truth), _rounded(judge())
            span.set_outputs({"answer": answer})
            mlflow.update_current_trace(tags={"sample": name})
        if isinstance(truth, float) and isinstance(answer, float):
            error = _rounded(abs(answer - truth))
        else:
            error = float(answer != truth)
        self._judged.append((span.trace_id, truth, answer, error, whose))

    def log_assessments(self) -> None:
        """Log truth, score and error of every trace; to be called when the traces are written."""
        from mlflow import log_expectation, log_feedback
        from mlflow.entities import AssessmentSource

        program = AssessmentSource("CODE", "agentic-iqa")
        for trace, truth, answer, error, whose in self._judged:
            log_expectation(trace_id=trace, name="truth", value=truth, source=AssessmentSource(whose, "labels"))
            log_feedback(trace_id=trace, name="score", value=answer, source=program)
            log_feedback(trace_id=trace, name="error", value=error, source=program)

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Begin the span of a step."""
        known = self._names.get(id(instance)) or self._names.get(id(getattr(instance, "signature", None)))
        question = {name: value for name, value in inputs.get("kwargs", {}).items() if name not in _SETUP}
        self._begin(call_id, known or type(instance).__name__, "CHAIN", question)

    def on_module_end(self, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
        """End it."""
        self._end(call_id, outputs.toDict() if isinstance(outputs, dspy.Prediction) else outputs, exception)

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Begin the span of a call, which has the model's name."""
        import mlflow
        from mlflow.tracing.constant import SpanAttributeKey

        predictor = mlflow.get_current_active_span()
        if predictor is not None:
            self.asked.add(predictor.name)
        span = self._begin(call_id, instance.model, "CHAT_MODEL", inputs)
        span.set_attributes({SpanAttributeKey.MODEL: instance.model, SpanAttributeKey.MESSAGE_FORMAT: "dspy"})

    def on_lm_end(self, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
        """End it."""
        self._end(call_id, outputs, exception)

    def _begin(self, call_id: str, name: str, kind: str, inputs: Mapping[str, Any]) -> Any:
        import mlflow

        context = mlflow.start_span(name, span_type=kind)
        span = context.__enter__()
        span.set_inputs(present(inputs))
        self._open[call_id] = context, span
        return span

    def _end(self, call_id: str, outputs: Any, exception: Exception | None) -> None:
        context, span = self._open.pop(call_id)
        span.set_outputs(outputs)
        context.__exit__(type(exception) if exception else None, exception, None)


@contextlib.contextmanager
def record_traces(run: RunHandle, program: dspy.Module) -> Iterator[Recording]:
    """Record what a program assesses in this thread meanwhile as traces of a run."""
    with warnings.catch_warnings(action="ignore"):  # of its own types
        import mlflow.pyfunc

    run.enter_experiment()
    recording = Recording(program)
    mlflow.tracing.reset()
    mlflow.tracing.configure(span_processors=[_strip])
    try:
        with (
            mlflow.tracing.context(metadata={"mlflow.sourceRun": run.run_id}),
            dspy.context(callbacks=[*dspy.settings.callbacks, recording]),
        ):
            yield recording
    finally:
        mlflow.flush_trace_async_logging()
        mlflow.tracing.configure(span_processors=[])
    recording.log_assessments()


OPINION = "who is right"
"""The name of the feedback in which a person says so."""


def traces_of(client: "MlflowClient", run_id: str) -> dict[str, str]:
    """Return the traces of a run: by its sample's id, each one's own. Raises what MLflow raises."""
    experiment = client.get_run(run_id).info.experiment_id
    own = f"metadata.`mlflow.sourceRun` = '{run_id}'"
    traces = client.search_traces(locations=[experiment], filter_string=own, include_spans=False)
    return {trace.info.tags["sample"]: trace.info.trace_id for trace in traces if "sample" in trace.info.tags}


def log_opinion(client: "MlflowClient", trace: str, who: str, rater: str, facts: Mapping[str, str]) -> None:
    """Log who is right as a person's feedback on a trace, in place of the same person's earlier one.

    It goes to the store that MLflow's own functions write to. Raises what MLflow raises.
    """
    from mlflow import log_feedback, update_assessment
    from mlflow.entities import AssessmentSource, Feedback

    source, metadata = AssessmentSource("HUMAN", rater or "a person"), dict(facts)
    for earlier in client.get_trace(trace).info.assessments:
        if earlier.name == OPINION and earlier.source.source_id == source.source_id:
            new = Feedback(name=OPINION, value=who, source=source, metadata=metadata)
            update_assessment(trace, earlier.assessment_id, new)
            return
    log_feedback(trace_id=trace, name=OPINION, value=who, source=source, metadata=metadata)


def _rounded(value: float | str) -> float | str:
    return value if isinstance(value, str) else round(float(value), 3)


def _strip(span: Any) -> None:
    """Leave out keys, the image bytes that a caller's own language model was sent inline, and its headers."""
    span.set_inputs(without_keys(strip_bytes(span.inputs)))
    span.set_outputs(without_keys(strip_bytes(span.outputs)))
    for name, value in span.attributes.items():
        if not name.startswith("mlflow."):
            span.set_attribute(name, without_keys(strip_bytes(value)))
