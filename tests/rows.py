"""Answers and rows for tests of what is made of them."""

from collections.abc import Sequence
from typing import Any

from program.agent.assessment import Assessment
from program.agent.loop import AgenticIQA
from program.agent.state import AssessmentState
from program.batch.command import judge
from program.batch.inputs import Items
from program.common.request import Request
from program.evaluation.record import LabelledRow
from program.running.row import Row

BELIEFS = (
    "tool_mean_equal", "tool_mean_reliable", "expected_level", "fusion_printed", "fusion_normalised", "fusion_reliable",
)  # fmt: skip


def assessment(value: float | str, **more: Any) -> Assessment:
    """Return what a program answers with this, a score or a text."""
    fields = {"quality_score": value if isinstance(value, float) else None, "quality_reasoning": "because"}
    state = AssessmentState(query="Rate it.", image_path="x.png")
    return Assessment(**{"final_answer": value, "state": state, **fields, **more})


def labelled(*, task: str, status: str = "ok", predicted: float | str | None = None, **more: Any) -> LabelledRow:
    """Return the row of a sample that got this answer."""
    beliefs = {name: more.pop(name) for name in BELIEFS if name in more}
    answered = {"score" if task == "scoring" else "answer": predicted}
    return LabelledRow.model_validate({**answered, "task": task, "status": status, "beliefs": beliefs, **more})


def judged(program: AgenticIQA, items: Items | Sequence[Request], **more: Any) -> list[Row]:
    """Return the rows of a batch without a table."""
    rows: list[Row] = []
    judge(program, items, rows.append, progress=False, **more)
    return rows
