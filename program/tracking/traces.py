"""Traces of assessments in the MLflow store: every stage and question with its time, and no image bytes."""

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from program.common.settings import variable

if TYPE_CHECKING:
    from program.tracking.store import Tracker

__all__ = ("annotate_trace", "stripped", "traced")

_PRIVATE = re.compile(r"headers$|api_?key$|^authorization$", re.IGNORECASE)
"""Options of a language model that may hold keys; MLflow writes most of a model's options down."""
_IMAGE_BYTES = re.compile(r"(data:[\w.+-]+/[\w.+-]+;base64,)[A-Za-z0-9+/=_-]{16,}")


def annotate_trace(facts: Mapping[str, Any]) -> None:
    """Write facts on the MLflow span that is being recorded, if there is one; MLflow is not imported to find out."""
    if "mlflow" not in sys.modules:
        return
    import mlflow

    span = mlflow.get_current_active_span()
    if span is not None:
        span.set_attributes({f"agentic_iqa.{name}": value for name, value in facts.items() if value is not None})


@contextlib.contextmanager
def traced(tracker: "Tracker", rate: float) -> Iterator[None]:
    """Record a share `rate` (0..1) of the process's assessments meanwhile as traces of the tracker's experiment."""
    if rate <= 0:
        yield
        return
    import dspy
    import mlflow

    mlflow.set_tracking_uri(tracker.tracking_uri)
    mlflow.set_experiment(experiment_id=tracker.experiment_id)
    counted = dspy.settings.track_usage
    with variable("MLFLOW_TRACE_SAMPLING_RATIO", str(rate)):
        mlflow.tracing.reset()
        mlflow.tracing.configure(span_processors=[_strip])
        mlflow.dspy.autolog(log_traces=True, log_traces_from_eval=True, log_traces_from_compile=False, silent=True)
        # It switches on DSPy's own count of tokens, which complains of programs that return no Prediction.
        dspy.configure(track_usage=counted)
        try:
            yield
        finally:
            mlflow.dspy.autolog(disable=True, silent=True)
            mlflow.flush_trace_async_logging()
            mlflow.tracing.configure(span_processors=[])


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
