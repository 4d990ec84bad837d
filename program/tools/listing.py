"""The tools as a list for people and programs: what each is, whether it is ready here, and a trial run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict

from program.images import IMAGES, ImageRef
from program.tools.registry import Cost, Mode, ToolSpec
from program.tools.runner import ToolRunner

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ("ToolEntry", "check", "entries", "table")

TRIAL_SIZE_PX = 256


class ToolEntry(BaseModel):
    """One tool as listed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    pyiqa: str
    mode: Mode
    description: str
    cost: Cost
    licence: str
    ready: bool
    reason: str | None = None
    """Why it is not ready, and the mend."""
    raw: float | None = None
    """Trial run: the raw value, the score 1..5, the seconds of a second run, or the error."""
    score: float | None = None
    seconds: float | None = None
    error: str | None = None


def entries(runner: ToolRunner) -> list[ToolEntry]:
    """Return every known tool. Imports no torch."""
    missing = runner.unavailable()
    return [_entry(spec, missing.get(spec.name)) for spec in runner.registry.specs()]


def check(runner: ToolRunner) -> list[ToolEntry]:
    """Return every known tool with the result of a trial run of each ready one, on generated 256 x 256 pixels."""
    image, reference = _trial_pair()
    rows = []
    for entry in entries(runner):
        if not entry.ready:
            rows.append(entry)
            continue
        first = runner.measure(entry.name, image, reference)
        second = (
            runner.measure(entry.name, image, reference)
            if first.raw is not None and entry.cost != "expensive"
            else first
        )
        rows.append(
            entry.model_copy(
                update={
                    "raw": first.raw,
                    "score": first.score,
                    "seconds": round(second.seconds, 4),
                    "error": first.error,
                }
            )
        )
    return rows


def table(rows: Sequence[ToolEntry], *, checked: bool = False) -> "Table":
    """Return the entries as a table."""
    from rich.table import Table

    shown = Table(title="Image-quality tools", caption="FR: needs a reference; NR: looks at the image alone")
    for column in (
        "tool",
        "mode",
        "cost",
        "ready",
        *(("raw", "score", "s") if checked else ()),
        "what it is, or why not",
    ):
        shown.add_column(column, overflow="fold")
    for row in rows:
        trial = [_number(row.raw), _number(row.score), _number(row.seconds)] if checked else []
        text = row.error or row.reason or row.description
        shown.add_row(row.name, row.mode, row.cost, "yes" if row.ready else "no", *trial, text)
    return shown


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _entry(spec: ToolSpec, reason: str | None) -> ToolEntry:
    return ToolEntry(
        name=spec.name, pyiqa=spec.pyiqa, mode=spec.mode, description=spec.description, cost=spec.cost,
        licence=spec.licence, ready=reason is None, reason=reason,
    )  # fmt: skip


def _trial_pair() -> tuple[ImageRef, ImageRef]:
    # Noise smoothed at several scales has the spectrum of a photograph, which the statistics-based tools ask for.
    from scipy.ndimage import gaussian_filter

    rng = np.random.default_rng(0)
    shape = (TRIAL_SIZE_PX, TRIAL_SIZE_PX, 3)
    layers = [s * gaussian_filter(rng.standard_normal(shape), (s, s, 0), mode="wrap") for s in (1, 2, 4, 8, 16)]
    scene = np.clip(128 + 60 * sum(layers) / np.std(sum(layers)), 0, 255)
    noisy = np.clip(scene + 12 * rng.standard_normal(shape), 0, 255)
    return IMAGES.add(noisy.astype(np.uint8)), IMAGES.add(scene.astype(np.uint8))
