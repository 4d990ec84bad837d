"""What an assessment writes on the MLflow trace that is being recorded, if there is one."""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any


def annotate_trace(facts: Mapping[str, Any]) -> None:
    """Write facts on the span that is being recorded, if there is one."""
    span = _current_span()
    if span is not None:
        span.set_attributes({f"agentic_iqa.{name}": value for name, value in present(facts).items()})


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
        span.set_inputs(present(inputs))
        yield outputs
        span.set_outputs(present(outputs))
        if outputs.get("error"):
            span.set_status("ERROR")


def present(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def _current_span() -> Any:
    """Return the span that is being recorded, or None; MLflow is not imported to find out."""
    if "mlflow" not in sys.modules:
        return None
    import mlflow

    return mlflow.get_current_active_span()
