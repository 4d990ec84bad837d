"""One small row per sample, and many of them in little memory."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, JsonValue
from pydantic_core import CoreSchema, core_schema

__all__ = ("Cost", "Notes", "Row", "Rows", "Task")

Task = Literal["scoring", "mcq", "open"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Cost(_Frozen):
    """What was spent on language models; None where nobody counted."""

    lm_calls: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None


class Notes(_Frozen):
    """Why the program answered as it did; kept for the worst misses only."""

    reasoning: str = ""
    evidence: dict[str, JsonValue] | None = None
    """The findings and tool readings it used."""


class Row(_Frozen):
    """One sample: what was true, what the program said, and what it cost. Holds no image and no prompt."""

    id: str
    group: str
    """The content (photograph) it shows; samples of one group are not independent."""
    task: Task
    distortion: str | None = None
    question_type: str | None = None
    choices: int | None = None
    """Options to choose from (mcq)."""
    truth: float | str | None = None
    """Human score on 1..5 (scoring), option letter (mcq), None (open)."""
    mos_std: float | None = None
    """Standard deviation of the opinions behind the truth, on the 1..5 scale."""
    predicted: float | str | None = None
    """Score on 1..5, option letter or text as the program gave it; None where it failed."""
    level: str | None = None
    """Letter A..E of the predicted score."""
    level_probabilities: dict[int, float] | None = None
    tool_mean: float | None = None
    """Plain mean of the tool scores the program used (q-bar), on 1..5."""
    tool_mean_reliable: float | None = None
    """The same weighted by what each tool's calibration says of it."""
    expected_level: float | None = None
    """Mean of the level probabilities."""
    fusion_printed: float | None = None
    """Tool mean and level probabilities fused by the formula as printed, clipped to 1..5."""
    fusion_normalised: float | None = None
    """The same by the normalised formula."""
    fusion_reliable: float | None = None
    """The normalised formula with the tools weighted by reliability, its width too."""
    baselines: dict[str, float | str] | None = None
    """What each baseline answered, by its name; one that failed is absent."""
    baseline_cost: Cost | None = None
    status: Literal["ok", "degraded", "failed"]
    """"failed" samples are counted and enter no figure."""
    rung: str | None = None
    """What the answer was read from, where the program says so."""
    seconds: float = 0.0
    lm_calls: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    spent: dict[str, float] | None = None
    """Input and output tokens, cache hits, tool readings, replans, and seconds by stage ("seconds_planner")."""
    error: str | None = None
    """One line, for a failed or degraded sample."""
    notes: Notes | None = None

    @property
    def counts(self) -> bool:
        """Whether the row enters the figures: it has a truth and did not fail."""
        return self.status != "failed" and self.truth is not None

    @property
    def answer(self) -> float | str | None:
        """The predicted score or letter, for a row that counts."""
        return self.predicted if self.counts else None

    def line(self) -> bytes:
        """Return the row as one line of JSON, without what is at its default."""
        return self.__pydantic_serializer__.to_json(self, exclude_defaults=True)


class Rows(Sequence[Row]):
    """Rows in a fixed order, kept as JSON and read anew at each look: a fifth of the memory of objects."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._data = bytearray()
        self._ends = array("q", [0])
        self._places = array("q")
        self._order: Any = None
        for row in rows:
            self.put(row)

    def put(self, row: Row, place: int | None = None) -> None:
        """Add a row at a place of the order (default: after all that were put)."""
        self._data += row.line()
        self._ends.append(len(self._data))
        self._places.append(len(self._places) if place is None else place)
        self._order = None

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> "Rows": ...

    def __getitem__(self, index: int | slice) -> "Row | Rows":
        if isinstance(index, slice):
            return Rows(self[i] for i in range(*index.indices(len(self))))
        if self._order is None:
            self._order = np.argsort(np.frombuffer(self._places, dtype=np.int64), kind="stable")
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        put = int(self._order[index])
        return Row.model_validate_json(bytes(self._data[self._ends[put] : self._ends[put + 1]]))

    def __iter__(self) -> Iterator[Row]:
        return (self[index] for index in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Rows({len(self)})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        listed = core_schema.no_info_after_validator_function(cls, handler.generate_schema(tuple[Row, ...]))
        dumped = core_schema.plain_serializer_function_ser_schema(_dumped, info_arg=True)
        python = core_schema.union_schema([core_schema.is_instance_schema(cls), listed])
        return core_schema.json_or_python_schema(listed, python, serialization=dumped)


def _dumped(rows: Rows, info: Any) -> list[Mapping[str, Any]]:
    return [row.model_dump(mode=info.mode) for row in rows]
