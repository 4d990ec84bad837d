"""Measured strengths of the tools: |SRCC| with human scores, by distortion category, and on which data."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeAlias

import numpy as np
from pydantic import Field

from program.tools.stored import Provenance, Stored, read_stored
from signatures.schemas import DISTORTION_CATEGORIES, DistortionCategory

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ("FEWEST", "MeasuredStrength", "Readings", "Strength", "Strengths", "strength_of")

FEWEST = 8
"""Fewer images of a category in one dataset say nothing of it."""

Agreement: TypeAlias = Annotated[float, Field(ge=0, le=1)]


class MeasuredStrength(Stored):
    """|SRCC| over datasets (the mean where several have the category) and the images it rests on."""

    srcc: Agreement
    n: int = Field(ge=FEWEST)


class Strength(Stored):
    """What one tool was measured to be good at."""

    library: str
    """With its version, as "pyiqa 0.1.16"."""
    sources: tuple[str, ...]
    """Keys of the file's sources."""
    general: MeasuredStrength
    """All distortions together."""
    by_category: dict[DistortionCategory, MeasuredStrength] = Field(default_factory=dict)


class Strengths(Stored):
    """A strengths file."""

    schema_version: Literal[1] = 1
    sources: dict[str, Provenance] = Field(default_factory=dict)
    tools: dict[str, Strength] = Field(default_factory=dict)

    @classmethod
    def load(cls, path: Path | None = None) -> "Strengths":
        """Read a strengths file (the shipped one by default). Raises SettingsError naming the file and the key."""
        return read_stored(cls, "strengths", path)[0]

    def table(self, path: Path) -> "Table":
        """Return the figures as a table."""
        from rich.table import Table

        table = Table(title="|SRCC| with human scores", caption=f"written to {path}; from {', '.join(self.sources)}")
        for column in ("tool", "n", "all", *DISTORTION_CATEGORIES):
            table.add_column(column, justify="left" if column == "tool" else "right")
        for name, tool in self.tools.items():
            own = [tool.by_category.get(category) for category in DISTORTION_CATEGORIES]
            figures = [f"{found.srcc:.2f}" if found else "-" for found in (tool.general, *own)]
            table.add_row(name, str(tool.general.n), *figures)
        return table

    def to_json(self) -> str:
        """Return the file's text; `load` gives back equal figures."""
        return self.model_dump_json(indent=1) + "\n"


class Readings(NamedTuple):
    """One tool's raw values on one dataset, the human scores, and the images' categories; all of length n."""

    source: str
    raw: Sequence[float]
    human: Sequence[float]
    categories: Sequence[str | None]


def strength_of(library: str, datasets: Sequence[Readings]) -> Strength | None:
    """Return a tool's strength over datasets, or None where none has 8 images.

    >>> raw, human = [1, 2, 3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3, 1, 2]
    >>> strength_of("toy 1", [Readings("toy", raw, human, ["Noise"] * 8)]).by_category["Noise"].srcc
    0.9762
    """
    general = _measured([(d.raw, d.human) for d in datasets])
    if general is None:
        return None
    own = {}
    for category in DISTORTION_CATEGORIES:
        parts = [_of_category(d, category) for d in datasets]
        found = _measured(parts)
        if found is not None:
            own[category] = found
    return Strength(library=library, sources=tuple(d.source for d in datasets), general=general, by_category=own)


def _of_category(data: Readings, category: str) -> tuple[Sequence[float], Sequence[float]]:
    kept = [(r, h) for r, h, c in zip(data.raw, data.human, data.categories, strict=True) if c == category]
    return [r for r, _ in kept], [h for _, h in kept]


def _measured(parts: Sequence[tuple[Sequence[float], Sequence[float]]]) -> MeasuredStrength | None:
    from scipy.stats import spearmanr

    enough = [(raw, human) for raw, human in parts if len(raw) >= FEWEST and np.ptp(raw) > 0 and np.ptp(human) > 0]
    if not enough:
        return None
    agreement = np.mean([abs(float(spearmanr(raw, human).statistic)) for raw, human in enough])
    return MeasuredStrength(srcc=round(float(agreement), 4), n=sum(len(raw) for raw, _ in enough))
