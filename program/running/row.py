"""What is kept of one assessment: a row, which is also a line of every table."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, Self, get_args

from pydantic import ConfigDict, field_validator

from program.agent.assessment import Assessment
from program.agent.state import UNREAD, Columns, ExecutorOutput
from program.common.backends import Record
from program.common.keys import redact
from program.common.request import Request
from program.fusion.scores import REACH

_MOST_DISTORTIONS = 8
_FAULT_COLUMNS = 3
_ERROR_LENGTH = 500


class RowStart(Record):
    """The first columns of a table."""

    id: str
    """The name of the row: of a folder's file its path below the folder."""
    status: str
    score: float | None = None
    low: float | None = None
    """Where the interval of the score begins: the mean score of people lies inside with a
    probability of 95 %."""
    high: float | None = None
    """Where the interval ends."""


class Row(Columns, RowStart):
    """One request's answer, flat: a line of every table, of MCP and of MLflow; or the error.

    The columns of a table, in order: those of `RowStart`, those of `Columns`, and the fields below.
    One without words of its own here is what an `Assessment` has under the same name.
    """

    model_config = ConfigDict(frozen=True)

    answer: str | None = None
    """For a question: the answer, a text or the letter of an option; empty where a score was asked for."""
    option: str | None = None
    guess: str | None = None
    distortions: str | None = None
    """The faults in seven broad categories (Blurs, Noise, ...), each slight, moderate, severe or extreme, with its
    region."""
    fault_1: str | None = None
    """The worst fault, as a photographer names it; empty where there is none."""
    strength_1: str | None = None
    """How strong it is: slight, moderate or strong."""
    fault_2: str | None = None
    """The second fault."""
    strength_2: str | None = None
    """How strong it is."""
    fault_3: str | None = None
    """The third fault."""
    strength_3: str | None = None
    """How strong it is."""
    advice: str | None = None
    subject_sharp: str | None = None
    kind: str | None = None
    """The kind of picture, as `photograph` or `document`."""
    not_judged: str | None = None
    tools: str | None = None
    """The tools that ran, with their scores from 1 to 5."""
    reasoning: str | None = None
    """Why, in sentences."""
    notes: str | None = None
    """How the judged picture differs from the file: first frame, converted colours, transparency."""
    error: str | None = None
    attempt: str | None = None
    """What the answer was read from: `first call`, `second call`, `third call`, `text` (an answer in
    other words), `tools alone` or `nothing`."""
    image: str | None = None
    """The file."""
    reference: str | None = None
    """The file that it was compared with."""
    query: str | None = None
    """The question that was asked."""
    options: str | None = None
    """The choices by letter, as JSON."""
    group: str | None = None
    """The photograph that it shows, as the manifest says."""
    split: str | None = None
    """The split, as the manifest says."""
    lm_calls: int | None = None
    """Paid calls of a language model."""
    cost_usd: float | None = None
    """Their price in USD, where it is known."""
    seconds: float | None = None
    """The time from start to end."""

    @field_validator("*", mode="before")
    @classmethod
    def _encodable(cls, value: Any) -> Any:
        if isinstance(value, str):  # a file's name may hold bytes that are no UTF-8
            return value.encode("utf-8", "backslashreplace").decode()
        return value

    @property
    def is_unread(self) -> bool:
        """Whether none of a language model's replies could be read."""
        return self.attempt in UNREAD

    @property
    def faults(self) -> list[tuple[str, str]]:
        """What is wrong and how strong it is, the worst first."""
        places = (
            (self.fault_1, self.strength_1),
            (self.fault_2, self.strength_2),
            (self.fault_3, self.strength_3),
        )
        return [(fault, strength) for fault, strength in places if fault and strength]

    @classmethod
    def of(cls, request: Request, result: Assessment) -> Self:
        """Return an assessment as a row."""
        state, usage = result.state, result.usage
        low, high = result.score_interval or (None, None)
        asked = _columns_of(request)
        fields = {
            **{name: getattr(result, name) for name in _AS_THEY_ARE},
            **asked,
            **_fault_columns(result.faults),
            "low": low,
            "high": high,
            "answer": result.final_answer if result.rating is None else None,
            "distortions": _distortions_text(result),
            "kind": state.kind,
            "tools": _tools_text(state.evidence),
            "reasoning": result.summary or str(result.final_answer),
            "notes": "; ".join(result.notes) or None,
            "attempt": result.attempt,
            "reference": asked["reference"] or state.reference_path,
            "query": state.query,
            "options": _options_text(result),
            "lm_calls": usage.lm_calls,
            "cost_usd": usage.cost_usd,
            "seconds": round(usage.seconds.get("total", 0.0), 4),
        }
        return cls(**fields)

    @classmethod
    def failed_row(cls, request: Request, error: str) -> Self:
        """Return the row of a request that got no assessment."""
        text = " ".join(redact(error).split())[:_ERROR_LENGTH]
        return cls(**_columns_of(request), status="error", query=request.query, error=text)

    @classmethod
    def kinds(cls) -> dict[str, type]:
        """Return what each column holds: str, float or int."""
        kinds = {}
        for name, field in cls.model_fields.items():
            kind: Any = field.annotation
            kinds[name] = get_args(kind)[0] if get_args(kind) else kind  # of `float | None`: float
        return kinds

    def line(self) -> str:
        """Return the row as one line of JSON, without what is at its default."""
        return self.model_dump_json(exclude_defaults=True)


_AS_THEY_ARE = (
    *Columns.model_fields, "status", "score", "option", "guess", "advice", "subject_sharp", "not_judged", "error",
)  # fmt: skip
"""Columns that an assessment has under the same names."""


def _fault_columns(faults: Sequence[tuple[str, str]]) -> dict[str, str]:
    columns: dict[str, str] = {}
    for place, (fault, strength) in enumerate(faults[:_FAULT_COLUMNS], 1):
        columns |= {f"fault_{place}": fault, f"strength_{place}": strength}
    return columns


def _distortions_text(result: Assessment) -> str | None:
    texts = []
    for (region, kind), severity in result.severities(lambda finding: finding.type).items():
        if severity != "none":
            texts.append(f"{kind}: {severity}{result.state.evidence.place_after(region)}")
    return "; ".join(texts[:_MOST_DISTORTIONS]) or None


def _tools_text(evidence: ExecutorOutput) -> str | None:
    logs = evidence.tool_logs
    texts = [f"{log.tool} {log.score:.2f}" for log in logs if log.score is not None]
    return "; ".join(dict.fromkeys(texts)) or None


def _options_text(result: Assessment) -> str | None:
    if result.option is None:
        return None
    return json.dumps(result.state.reading.options, ensure_ascii=False)


def _columns_of(request: Request) -> dict[str, Any]:
    return {
        "id": request.id,
        "image": _shown(request.image),
        "reference": _shown(request.reference),
        "group": request.group,
        "split": request.split,
    }


def _shown(place: Any) -> str | None:
    """Return a path or URI as a cell; None for what has no name."""
    if not isinstance(place, str | Path) or str(place).startswith("data:"):
        return None
    return str(place)


def side_of_minimum(row: Row, minimum: float, sure: float | None = None) -> Literal["above", "below", "not sure"]:
    """Say on which side of a minimum a scored row lies; not sure of an image that is not judged.

    With `sure` (0.5 .. 1) it is said only where that is so probable: what people say is taken as
    normal about the score, by the farther end of the row's interval (the scale may cut the other).
    """
    if row.score is None:
        raise ValueError(f"row {row.id!r}: has no score")
    if row.not_judged is not None:
        return "not sure"
    if sure is not None:
        reach = max(row.score - (row.low or row.score), (row.high or row.score) - row.score)
        below = NormalDist(row.score, max(reach / REACH, 1e-6)).cdf(minimum)
        if 1 - sure < below < sure:
            return "not sure"
    return "below" if row.score < minimum else "above"
