"""Traces of assessments in the MLflow store: every stage and question with its time, and no image bytes."""

import contextlib
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from program.tracking.runs import RunHandle

__all__ = ("annotate_trace", "miss_trace", "stripped", "tool_span", "traced")

logger = logging.getLogger(__name__)

_PRIVATE = re.compile(r"headers$|api_?key$|^authorization$", re.IGNORECASE)
"""Options of a language model that may hold keys; MLflow writes most of a model's options down."""
_NOISE = tuple(f"on_adapter_{what}_{when}" for what in ("format", "parse") for when in ("start", "end"))
"""Events that MLflow would make spans of, which hold what the model's own span holds."""
_IMAGE_BYTES = re.compile(r"(data:[\w.+-]+/[\w.+-]+;base64,)[A-Za-z0-9+/=_-]{16,}")


def annotate_trace(facts: Mapping[str, Any]) -> None:
    """Write facts on the MLflow span that is being recorded, if there is one."""
    if (span := _current_span()) is not None:
        span.set_attributes({f"agentic_iqa.{name}": value for name, value in facts.items() if value is not None})


def _current_span() -> Any:
    """Return the MLflow span that is being recorded, or None; MLflow is not imported to find out."""
    if "mlflow" not in sys.modules:
        return None
    import mlflow

    return mlflow.get_current_active_span()


@contextlib.contextmanager
def tool_span(name: str, inputs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Record a tool's reading as a span of the assessment that is being recorded, if there is one.

    Yields a mapping to be filled with the span's outputs; an `error` among them makes it a failed one.
    """
    outputs: dict[str, Any] = {}
    if _current_span() is None:
        yield outputs
        return
    import mlflow

    with mlflow.start_span(name, span_type="TOOL") as span:
        span.set_inputs(dict(inputs))
        yield outputs
        span.set_outputs(outputs)
        if outputs.get("error"):
            span.set_status("ERROR")


@contextlib.contextmanager
def traced(run: "RunHandle") -> Iterator[dict[str, tuple[float | str, bool]]]:
    """Record the process's assessments meanwhile as traces of a run; yields what was true, to be filled by trace."""
    expected: dict[str, tuple[float | str, bool]] = {}
    if run.run_id is None:
        yield expected
        return
    import dspy
    import mlflow

    with warnings.catch_warnings(action="ignore"):  # of its own types
        from mlflow.dspy.callback import MlflowCallback
    run.enter_experiment()
    counted = dspy.settings.track_usage
    with mlflow.tracing.context(metadata={"mlflow.sourceRun": run.run_id}):
        mlflow.tracing.reset()
        mlflow.tracing.configure(span_processors=[_strip])
        try:
            mlflow.dspy.autolog(log_traces=True, log_traces_from_eval=True, log_traces_from_compile=False, silent=True)
        except RuntimeError as error:  # DSPy's settings belong to another thread
            logger.info("no traces of this run: %s", error)
            yield expected
            return
        # It switches on DSPy's own count of tokens, which complains of programs that return no Prediction.
        dspy.configure(track_usage=counted)
        callback = MlflowCallback()
        vars(callback).update(dict.fromkeys(_NOISE, lambda **_: None))
        others = [other for other in dspy.settings.callbacks if not isinstance(other, MlflowCallback)]
        try:
            # What autolog configured is not seen inside a context of DSPy's.
            with dspy.context(callbacks=[*others, callback]):
                yield expected
        finally:
            mlflow.dspy.autolog(disable=True, silent=True)
            mlflow.flush_trace_async_logging()
            mlflow.tracing.configure(span_processors=[])
        # Once all are written, which takes a second's wait each time.
        run.log_expectations(expected)


@contextlib.contextmanager
def miss_trace(sample: str, inputs: Mapping[str, Any], truth: float | str) -> Iterator[Callable[[Any], str]]:
    """Record what is assessed inside, itself inside of `traced`, as one trace; yields what takes the answer.

    It returns the trace's id.
    """
    import mlflow

    told: list[Any] = []

    def answered(answer: Any) -> str:
        told.append(answer)
        return str(span.trace_id)

    with mlflow.start_span(f"sample {sample}", span_type="CHAIN") as span:
        span.set_inputs({"sample": sample, **inputs})
        yield answered
        answer = round(told[0], 3) if told and isinstance(told[0], float) else "".join(map(str, told))
        span.set_outputs({"answer": answer, "truth": truth})
        tags = {"sample": sample, "truth": truth, "answer": answer, "picture": inputs.get("picture")}
        mlflow.update_current_trace(tags={name: str(value) for name, value in tags.items() if value is not None})


def _strip(span: Any) -> None:
    """Leave out the image bytes that a caller's own language model was sent inline, and the headers it was given."""
    span.set_inputs(stripped(span.inputs))
    span.set_outputs(stripped(span.outputs))
    for key, value in list(span.attributes.items()):
        if _PRIVATE.search(key):
            span.set_attribute(key, "(left out)")
        elif not key.startswith("mlflow.") and "base64," in str(value):
            span.set_attribute(key, stripped(value))


def stripped(value: Any) -> Any:
    """Return a value (text, or lists and mappings of it) without the bytes of data URIs and the values of headers."""
    if isinstance(value, str):
        return _IMAGE_BYTES.sub(r"\1(left out)", value)
    if isinstance(value, Mapping):
        return {key: "(left out)" if _PRIVATE.search(str(key)) else stripped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [stripped(item) for item in value]
    url = getattr(value, "url", None)
    return stripped(url) if isinstance(url, str) and url.startswith("data:") else value
