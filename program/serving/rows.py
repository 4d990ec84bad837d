"""Rows of a table, as MLflow's scoring server sends them, become assessments, and those become rows."""

import base64
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dspy

from program.errors import InputError
from program.query import DEFAULT_QUERY
from program.serving.incoming import Job, job_of, row_request
from program.serving.refusals import Refused, model_fault
from program.serving.sources import Sources
from program.settings import Settings
from program.state import Assessment
from program.tracking.models import Interface

if TYPE_CHECKING:
    from program.agent import AgenticIQA

__all__ = ("OUTPUTS", "assess_rows", "interface")

_TEXTS = (
    "image", "image_path", "image_url", "reference", "reference_path", "reference_url", "query", "options", "regions",
    "name",
)  # fmt: skip
_BYTES = ("image_bytes", "reference_bytes")

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
    inputs += [ColSpec("binary", name, required=False) for name in _BYTES]
    outputs = [ColSpec(kind, name, required=False) for name, kind in OUTPUTS.items()]
    # A path, as no artifact is to hold an image's bytes in text.
    row = {"image_path": "photo.jpg", "query": DEFAULT_QUERY}
    return Interface(
        signature=ModelSignature(inputs=Schema(inputs), outputs=Schema(outputs)),
        example=pd.DataFrame([row]),
        script=Path(__file__).with_name("model.py"),
    )


def assess_rows(program: "AgenticIQA", rows: Iterable[Mapping[str, Any]], settings: Settings) -> list[dict[str, Any]]:
    """Return one answer a row, in order; a row that cannot be assessed has status "failed" and says why.

    A row's image is base64 (plain, URL-safe or a data: URL) in `image`, bytes in `image_bytes`, or a file or URL that
    the settings under `serve` allow; `options` and `regions` are JSON. The reference likewise.
    """
    sources = Sources(settings.serve)
    return [_assess(program, row, settings, sources) for row in rows]


def _assess(program: "AgenticIQA", row: Mapping[str, Any], settings: Settings, sources: Sources) -> dict[str, Any]:
    try:
        result = _job(row, settings, sources).run(program, settings.serve.max_megapixels)
    except (InputError, Refused) as error:
        return _failed(str(error))
    except dspy.LMError as error:
        return _failed(model_fault(error))
    return _answered(result)


def _failed(reason: str) -> dict[str, Any]:
    return {**dict.fromkeys(OUTPUTS), "status": "failed", "error": reason}


def _job(row: Mapping[str, Any], settings: Settings, sources: Sources) -> Job:
    given = {name: value for name, value in row.items() if not _missing(value)}
    for name in _BYTES:
        if name in given:
            given[name.removesuffix("_bytes")] = base64.b64encode(bytes(given.pop(name))).decode()
    for name in ("options", "regions"):
        if isinstance(given.get(name), str):
            try:
                given[name] = json.loads(given[name])
            except ValueError:
                raise Refused(422, "request", f"{name}: not JSON; give an object or a list") from None
    return job_of(row_request(given), settings.serve, sources)


def _missing(value: Any) -> bool:
    """Return whether a table's cell is empty: None, nan or pandas' NA."""
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and value != value)


def _answered(result: Assessment) -> dict[str, Any]:
    low, high = result.score_interval or (None, None)
    return {
        "answer": str(result.final_answer), "score": result.rating, "level": result.level, "score_low": low,
        "score_high": high, "reasoning": result.quality_reasoning, "status": result.status, "error": result.error,
        "assessment": result.model_dump_json(),
    }  # fmt: skip
