"""What a record counts over its rows: samples by task, rungs of the answer ladder, costs and pace."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from program.evaluation.record import Counts
from program.evaluation.rows import Cost, Row, Task

__all__ = ("tally",)

_STAGES = ("executor", "planner", "summarizer")


def tally(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the fields of a record that are counts and sums over its rows."""
    rungs = Counter(row.rung for row in rows if row.rung)
    spenders = [row.spent for row in rows if row.spent is not None]
    spent: dict[str, float] = {}
    for amounts in spenders:
        for name, amount in amounts.items():
            spent[name] = spent.get(name, 0.0) + amount
    beside = _costs(row.baseline_cost for row in rows if row.baseline_cost is not None)
    return {
        "scoring": _counts(rows, "scoring"), "mcq": _counts(rows, "mcq"), "other": _counts(rows, "open"),
        "groups": len({row.group for row in rows}),
        "rungs": dict(sorted(rungs.items())),
        "rung_shares": {rung: round(n / len(rows), 6) for rung, n in sorted(rungs.items())},
        "pace": _pace(rows, len(spenders), spent),
        "baseline_cost": Cost(**beside) if beside else None,
        "spent_by_stage": _stages(spent),
        "spent_per_sample": {name: round(total / len(spenders), 6) for name, total in spent.items()},
        **_costs(rows),
    }  # fmt: skip


def _counts(rows: Iterable[Row], task: Task) -> Counts:
    statuses = Counter(
        "failed" if row.status == "failed" else "used" if row.counts else "unlabelled"
        for row in rows
        if row.task == task
    )
    return Counts(asked=statuses.total(), **statuses)


def _costs(spenders: Iterable[Row | Cost]) -> dict[str, Any]:
    """Return the sums over those that say; what nobody says is left out."""
    sums: dict[str, Any] = {}
    for spender in spenders:
        for name in Cost.model_fields:
            if (value := getattr(spender, name)) is not None:
                sums[name] = sums.get(name, 0) + value
    return sums


def _stages(spent: dict[str, float]) -> dict[str, Cost]:
    sums: dict[str, dict[str, Any]] = {}
    for name, total in spent.items():
        kind, _, stage = name.rpartition("_")
        if kind in Cost.model_fields and stage in _STAGES:
            sums.setdefault(stage, {})[kind] = round(total, 6) if kind == "cost_usd" else int(total)
    return {stage: Cost(**sums[stage]) for stage in sorted(sums)}


def _pace(rows: Sequence[Row], spenders: int, spent: dict[str, float]) -> dict[str, float]:
    pace: dict[str, float] = {}
    if rows:
        middle, slow = np.percentile([row.seconds for row in rows], (50, 95))
        pace = {"seconds_p50": round(float(middle), 6), "seconds_p95": round(float(slow), 6)}
    if spenders:
        replanned = sum(row.spent is not None and row.spent.get("replans", 0) > 0 for row in rows)
        pace["replan_rate"] = round(replanned / spenders, 6)
    if readings := spent.get("tool_readings"):
        pace["tool_failure_rate"] = round(spent.get("tool_failures", 0.0) / readings, 6)
    return pace
