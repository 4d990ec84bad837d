"""The maps that the AgenticIQA paper prints in its Table 5, for comparison (docs/tools.md: what is wrong with them)."""

import math
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import yaml

from program.common.errors import ToolError
from program.common.files import CONFIGS
from program.tools.calibration import HIGHEST, LOWEST, Calibration

__all__ = ("PaperCalibration", "printed_maps")


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
