"""The maps that the AgenticIQA paper prints in its Table 5, for comparison, and what is wrong with them."""

import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import yaml

from program.common.errors import ToolError
from program.common.files import CONFIGS
from program.tools.calibration import HIGHEST, LOWEST, Calibration

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ("PaperCalibration", "faults", "report_table")

_NEAR = 0.05
"""A map that ends this close to 1 or 5 counts as reaching it."""


class PrintedMap(NamedTuple):
    """One row of the table and the raw values at the ends of the tool's range."""

    b1: float
    b2: float
    b3: float
    b4: float
    b5: float
    worst: float
    best: float

    def unclipped(self, raw: float) -> float:
        """Return b1 (1/2 - 1/(1 + exp(b2 (q - b3)))) + b4 q + b5 for a finite raw value q; it may leave 1..5."""
        # 1/2 - 1/(1 + e^x) is tanh(x / 2) / 2, which does not overflow.
        slope = math.tanh(max(-1e4, min(1e4, self.b2 * (raw - self.b3))) / 2) / 2
        return self.b1 * slope + self.b4 * raw + self.b5


@cache
def printed_maps() -> Mapping[str, PrintedMap]:
    """Return the table's rows by tool."""
    tree = yaml.safe_load((CONFIGS / "paper_calibration.yaml").read_text("utf-8"))
    return {
        name: PrintedMap(*(float(number) for number in (*row["b"], row["worst"], row["best"])))
        for name, row in tree["tools"].items()
    }


class PaperCalibration(Calibration):
    """The paper's maps in the place of fitted ones, clipped to 1..5. They know no categories and no reliability."""

    origin: str = "the paper's Table 5"

    def knows(self, tool_name: str) -> bool:
        """Return whether the table has a row for the tool."""
        return tool_name in printed_maps()

    def score(self, tool_name: str, raw: float, category: str | None = None) -> float:
        """Return the printed map's value, clipped to 1..5. Raises ToolError without a row or a finite raw value."""
        row = printed_maps().get(tool_name)
        if row is None:
            raise ToolError(f"tool {tool_name!r}: has no row in {self.origin}; leave tools.calibration unset")
        if not math.isfinite(raw):
            raise ToolError(f"tool {tool_name!r}: raw value {raw} cannot be scored; use another tool")
        return min(HIGHEST, max(LOWEST, row.unclipped(raw)))


def faults() -> dict[str, dict[str, Any]]:
    """Return, by tool, the scores at the ends of its range and what is wrong with the map between them.

    Ends are looked at unclipped: `falls` is the most that the score drops while the raw value gets better.
    """
    maps, report = printed_maps(), {}
    for name, row in maps.items():
        scores = np.array([row.unclipped(float(q)) for q in np.linspace(row.worst, row.best, 2001)])
        falls = float(np.max(np.maximum.accumulate(scores) - scores))
        twins = [other for other, its in maps.items() if other != name and np.allclose(its[:5], row[:5], rtol=1e-3)]
        texts = {
            f"falls by up to {falls:.2g} where the tool says better": falls > 1e-9,
            f"a perfect value gets {scores[-1]:.2f}, not 5": scores[-1] < HIGHEST - _NEAR,
            f"passes 5 ({scores.max():.2f})": scores.max() > HIGHEST + _NEAR,
            f"falls below 1 ({scores.min():.2f})": scores.min() < LOWEST - _NEAR,
            f"the row of {', '.join(twins)} again": bool(twins),
        }
        report[name] = {
            "worst": round(float(scores[0]), 4),
            "best": round(float(scores[-1]), 4),
            "falls": round(falls, 4),
            "faults": [text for text, holds in texts.items() if holds],
        }
    return report


def report_table() -> "Table":
    """Return the faults as a table."""
    from rich.table import Table

    table = Table(title="The paper's maps to 1..5 (Table 5, with the missing 1 + put in)")
    for column in ("tool", "at worst", "at best", "what is wrong"):
        table.add_column(column, justify="right" if column.startswith("at") else "left")
    for name, row in faults().items():
        table.add_row(name, f"{row['worst']:.2f}", f"{row['best']:.2f}", "; ".join(row["faults"]) or "-")
    return table
