"""Rows of a table, as MLflow's scoring server sends them, become assessments, and those become rows."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import dspy
import pandas as pd

from program.common.errors import InputError
from program.common.settings import Settings
from program.running.runner import one_image
from program.service.columns import BYTES, OUTPUTS
from program.service.incoming import AssessRequest, checked, job_of
from program.service.refusals import Refused, reason_of
from program.service.sources import Sent, Sources, opened

if TYPE_CHECKING:
    from program.agent.loop import AgenticIQA

__all__ = ("assess_rows",)


def assess_rows(
    program: "AgenticIQA", rows: Iterable[Mapping[str, Any]], settings: Settings, *, local: bool = False
) -> list[dict[str, Any]]:
    """Return one answer a row, in order; a row that cannot be assessed has status "failed" and says why.

    A row's image is base64 (plain, URL-safe or a data: URL) in `image`, bytes in `image_bytes`, or a file or URL that
    the settings under `serve` allow (with `local` any file); `options` and `regions` are JSON. The reference likewise.
    """
    sources = Sources(settings.serve, local=local)
    return [_assess(program, row, settings, sources) for row in rows]


def _assess(program: "AgenticIQA", row: Mapping[str, Any], settings: Settings, sources: Sources) -> dict[str, Any]:
    try:
        cells = {name: value for name, value in row.items() if not (value is None or value is pd.NA or value != value)}
        for name in BYTES:
            if name in cells:
                what = name.removesuffix("_bytes")
                cells[what] = Sent(bytes(cells.pop(name)), what)
        request = job_of(checked(AssessRequest, cells), settings.serve, sources)
        with one_image():
            result = program(**opened(request, settings.serve.max_megapixels).arguments())
    except (InputError, Refused, dspy.LMError) as error:
        return {**dict.fromkeys(OUTPUTS), "status": "failed", "error": reason_of(error)}
    low, high = result.score_interval or (None, None)
    return {
        "answer": str(result.final_answer), "score": result.rating, "level": result.level, "score_low": low,
        "score_high": high, "reasoning": result.quality_reasoning, "status": result.status, "error": result.error,
        "assessment": result.model_dump_json(),
    }  # fmt: skip
