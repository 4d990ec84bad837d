"""What is kept of one assessment: a row, which is also a line of every table."""

import json
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, Self

from pydantic import field_validator

from program.agent.assessment import Assessment
from program.agent.query import read_query
from program.common.backends import Frozen
from program.common.keys import redact
from program.common.request import Request
from signatures.schemas import GLOBAL

_MOST_DISTORTIONS = 8


class Row(Frozen):
    """One request's answer: a score on 1..5 with the belief's interval, or a question's answer, and why; or the error.

    Its fields are the columns of tables, in order.
    """

    id: str
    status: str
    score: float | None = None
    low: float | None = None
    high: float | None = None
    level: str | None = None
    answer: str | None = None
    """For questions that do not ask for a score."""
    option: str | None = None
    """The text of the option that `answer` is the letter of."""
    tool_mean: float | None = None
    """For such questions: the mean of the tools' scores, which is no rating by the program."""
    distortions: str | None = None
    fault_1: str | None = None
    strength_1: str | None = None
    fault_2: str | None = None
    strength_2: str | None = None
    fault_3: str | None = None
    strength_3: str | None = None
    """What a photographer calls wrong with it, the worst first: slight, moderate or strong."""
    subject_sharp: str | None = None
    kind: str | None = None
    tools: str | None = None
    reasoning: str | None = None
    notes: str | None = None
    """What was judged, where it is not the image as it is."""
    error: str | None = None
    image: str | None = None
    reference: str | None = None
    query: str | None = None
    options: str | None = None
    """The choices by letter, as JSON."""
    group: str | None = None
    """Content and split as the manifest says: a table with people's labels added is data to learn from."""
    split: str | None = None
    lm_calls: int | None = None
    cost_usd: float | None = None
    seconds: float | None = None

    @field_validator("*", mode="before")
    @classmethod
    def _encodable(cls, value: Any) -> Any:
        # A file's name may hold bytes that are no UTF-8.
        return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value

    @property
    def faults(self) -> list[tuple[str, str]]:
        """What is wrong and how strong it is, the worst first."""
        named = ((self.fault_1, self.strength_1), (self.fault_2, self.strength_2), (self.fault_3, self.strength_3))
        return [(fault, strength) for fault, strength in named if fault and strength]

    @classmethod
    def of(cls, request: Request, result: Assessment) -> Self:
        """Return an assessment as a row."""
        low, high = result.score_interval or (None, None)
        evidence = result.state.evidence
        distortions = [
            f"{kind}: {severity}" + ("" if region == GLOBAL else f" ({evidence.looked_at(region)})")
            for (region, kind), severity in evidence.severities(lambda found: found.type).items()
            if severity != "none"
        ]
        readings = dict.fromkeys(f"{log.tool} {log.score:.2f}" for log in evidence.tool_logs if log.score is not None)
        options = read_query(result.state.query, result.state.options).options if result.option is not None else None
        faults = {
            f"{name}_{place}": value
            for place, fault in enumerate(result.faults[:3], 1)
            for name, value in zip(("fault", "strength"), fault, strict=True)
        }
        named = _named(request)
        fields = {
            **named, **faults, "subject_sharp": result.subject_sharp, "kind": result.state.kind,
            "reference": named["reference"] or result.state.reference_path, "query": result.state.query,
            "options": json.dumps(options, ensure_ascii=False) if options else None,
            "status": result.status, "score": result.quality_score if result.level else None, "low": low, "high": high,
            "level": result.level,
            "answer": None if isinstance(result.final_answer, float) else result.final_answer, "option": result.option,
            "tool_mean": None if result.level else result.quality_score,
            "distortions": "; ".join(distortions[:_MOST_DISTORTIONS]) or None, "tools": "; ".join(readings) or None,
            "reasoning": result.summary or str(result.final_answer), "notes": "; ".join(result.notes) or None,
            "error": result.error, "lm_calls": result.usage.lm_calls, "cost_usd": result.usage.cost_usd,
            "seconds": round(result.usage.seconds.get("total", 0.0), 4),
        }  # fmt: skip
        return cls(**fields)

    @classmethod
    def failed_row(cls, request: Request, error: str) -> Self:
        """Return the row of a request that got no assessment."""
        text = " ".join(redact(error).split())[:500]
        return cls(**_named(request), status="error", query=request.query, error=text)

    def line(self) -> str:
        """Return the row as one line of JSON, without what is at its default."""
        return self.model_dump_json(exclude_defaults=True)


def _named(request: Request) -> dict[str, Any]:
    shown = {name: _shown(getattr(request, name)) for name in ("image", "reference")}
    return {"id": request.id, **shown, "group": request.group, "split": request.split}


def _shown(place: Any) -> str | None:
    """Return a path or URI as a cell; None for what has no name."""
    return str(place) if isinstance(place, str | Path) and not str(place).startswith("data:") else None


def side_of_minimum(row: Row, minimum: float, sure: float | None = None) -> Literal["above", "below", "not sure"]:
    """Say on which side of a minimum a scored row lies: with `sure` (0.5 .. 1) only where that is so probable.

    What people would say is taken as normally distributed about the score, with the row's interval as its central 95 %
    (the farther end counts: the scale may cut the other).
    """
    if row.score is None:
        raise ValueError(f"row {row.id!r}: has no score")
    if sure is not None:
        reach = max(row.score - (row.low or row.score), (row.high or row.score) - row.score)
        below = NormalDist(row.score, max(reach / 1.96, 1e-6)).cdf(minimum)
        if 1 - sure < below < sure:
            return "not sure"
    return "below" if row.score < minimum else "above"
