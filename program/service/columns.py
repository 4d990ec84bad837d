"""The columns of requests and answers at MLflow's scoring server. Loads no web framework, as compiling needs them."""

from pathlib import Path

from program.agent.query import DEFAULT_QUERY
from program.tracking.models import Interface

__all__ = ("BYTES", "OUTPUTS", "interface")

_TEXTS = (
    "image", "image_path", "image_url", "reference", "reference_path", "reference_url", "query", "options", "regions",
    "name",
)  # fmt: skip
BYTES = ("image_bytes", "reference_bytes")

OUTPUTS = {
    "answer": "string", "score": "double", "level": "string", "score_low": "double", "score_high": "double",
    "reasoning": "string", "status": "string", "error": "string", "assessment": "string",
}  # fmt: skip
"""Columns of an answer: score, interval and level where a score was asked for; `assessment` is the whole of it as JSON,
null for a row that could not be assessed."""


def interface() -> Interface:
    """Return the typed columns of a request and of an answer, all of which may be left out or empty, and an example."""
    import pandas as pd
    from mlflow.models import ModelSignature
    from mlflow.types.schema import ColSpec, Schema

    inputs = [ColSpec("string", name, required=False) for name in _TEXTS]
    inputs += [ColSpec("binary", name, required=False) for name in BYTES]
    outputs = [ColSpec(kind, name, required=False) for name, kind in OUTPUTS.items()]
    # A path, as no artifact is to hold an image's bytes in text.
    row = {"image_path": "photo.jpg", "query": DEFAULT_QUERY}
    return Interface(
        signature=ModelSignature(inputs=Schema(inputs), outputs=Schema(outputs)),
        example=pd.DataFrame([row]),
        script=Path(__file__).with_name("model.py"),
    )
