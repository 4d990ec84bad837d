"""Measuring what each tool is good at: |SRCC| with human scores, by distortion category."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from program.tools.figures import FEWEST, MeasuredStrength, Strength, Strengths
from program.tools.readiness import library_label
from program.tools.survey import Surveyed
from signatures.schemas import DISTORTION_CATEGORIES

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ("strength_of", "strengths_all", "strengths_table")

Rows: TypeAlias = Sequence[tuple[float, float, str | None]]
"""Raw value, human score and distortion category of the images of one dataset."""


def strengths_all(surveyed: Surveyed, base: Strengths) -> Strengths:
    """Return the strengths of each surveyed tool over those of `base`."""
    tools: dict[str, Strength] = {}
    for spec in surveyed.specs:
        by_source: dict[str, list[tuple[float, float, str | None]]] = {}
        for data, sample, m in surveyed.readings(spec):
            if m.raw is not None:
                by_source.setdefault(data.source, []).append((m.raw, sample.human, sample.category))
        measured = strength_of(library_label(spec), by_source)
        if measured is not None:
            tools[spec.name] = measured
    return base.updated(tools, surveyed.sources())


def strength_of(library: str, datasets: Mapping[str, Rows]) -> Strength | None:
    """Return a tool's strength over datasets by source name, or None where none has 8 images.

    >>> raw, human = [1, 2, 3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3, 1, 2]
    >>> strength_of("toy 1", {"toy": list(zip(raw, human, ["Noise"] * 8))}).by_category["Noise"].srcc
    0.9762
    """
    general = _measured(datasets.values(), None)
    if general is None:
        return None
    every = {category: _measured(datasets.values(), category) for category in DISTORTION_CATEGORIES}
    own = {category: strength for category, strength in every.items() if strength is not None}
    return Strength(library=library, sources=tuple(datasets), general=general, by_category=own)


def strengths_table(strengths: Strengths, caption: str) -> "Table":
    """Return the figures as a table."""
    from rich.table import Table

    table = Table(title="|SRCC| with human scores", caption=f"{caption}; from {', '.join(strengths.sources)}")
    for column in ("tool", "n", "all", *DISTORTION_CATEGORIES):
        table.add_column(column, justify="left" if column == "tool" else "right")
    for name, tool in strengths.tools.items():
        own = [tool.by_category.get(category) for category in DISTORTION_CATEGORIES]
        figures = [f"{strength.srcc:.2f}" if strength else "-" for strength in (tool.general, *own)]
        table.add_row(name, str(tool.general.n), *figures)
    return table


def _measured(datasets: Iterable[Rows], category: str | None) -> MeasuredStrength | None:
    from scipy.stats import spearmanr

    agreements, n = [], 0
    for rows in datasets:
        pairs = np.array([row[:2] for row in rows if category in (None, row[2])], float)
        if len(pairs) >= FEWEST and np.ptp(pairs, axis=0).min() > 0:
            agreements.append(abs(float(spearmanr(*pairs.T).statistic)))
            n += len(pairs)
    return MeasuredStrength(srcc=round(float(np.mean(agreements)), 4), n=n) if agreements else None
