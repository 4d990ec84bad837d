"""The tools as a list for people and programs: what each is, whether it is ready here, and a trial run."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from pydantic import BaseModel, ConfigDict

from program.images.store import IMAGES, ImageRef
from program.tools.registry import Cost, Library, Mode, Needs, ToolSpec
from program.tools.runner import ToolRunner

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ("ToolEntry", "check", "entries", "table")

TRIAL_SIZE_PX = 256
SLOW_S = 60.0
"""A tool slower than this is not run a second time."""


class ToolEntry(BaseModel):
    """One tool as listed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    library: Library
    function: str
    """Its name in the library."""
    mode: Mode
    description: str
    needs: Needs
    cost: Cost
    licence: str
    general: float
    """|SRCC| over all distortions, measured or published; 0 is no claim."""
    calibrated: bool
    """Whether its raw values become scores 1..5."""
    ready: bool
    reason: str | None = None
    """Why it is not ready, and the mend."""
    raw: float | None = None
    """Trial run: the raw value, the score 1..5, the seconds of a second run, or the error."""
    score: float | None = None
    seconds: float | None = None
    deterministic: bool | None = None
    """Whether the second run gave the same value to the last digit."""
    error: str | None = None


def entries(runner: ToolRunner, names: Sequence[str] | None = None) -> list[ToolEntry]:
    """Return the known tools, or the named ones. Imports no torch. Raises ToolError for an unknown name."""
    wanted = [runner.registry.get(name) for name in names] if names else runner.registry.specs()
    return [_entry(spec, runner) for spec in wanted]


def check(runner: ToolRunner, names: Sequence[str] | None = None) -> list[ToolEntry]:
    """Return the known tools (or the named ones) with two trial runs of each ready one, on a photograph and its JPEG.

    A tool that takes over a minute runs once. `runner` should keep no readings: a second run is to be a run.
    """
    image, reference = _trial_pair()
    return [_tried(entry, runner, image, reference) for entry in entries(runner, names)]


def _tried(entry: ToolEntry, runner: ToolRunner, image: ImageRef, reference: ImageRef) -> ToolEntry:
    if not entry.ready:
        return entry
    first = runner.measure(entry.name, image, reference)
    again = runner.measure(entry.name, image, reference) if first.raw is not None and first.seconds < SLOW_S else None
    # A raw value without a map is a reading all the same.
    error = first.error if first.raw is None or entry.calibrated else None
    return entry.model_copy(
        update={
            "raw": first.raw,
            "score": first.score,
            "seconds": round((again or first).seconds, 4),
            "deterministic": None if again is None else again.raw == first.raw,
            "error": error,
        }
    )


def table(rows: Sequence[ToolEntry], *, checked: bool = False) -> "Group":
    """Return the entries as a table, and below it why some cannot be used."""
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    shown = Table(
        title="Image-quality tools",
        caption="FR compares with a reference, NR does not. SRCC: agreement with people, measured or published",
    )
    trial = ("raw", "1..5", "s", "same") if checked else ()
    for column in ("tool", "mode", "cost", "SRCC", "ready", *trial):
        shown.add_column(column, no_wrap=True)
    if not checked:
        shown.add_column("what it is", min_width=24)
    for row in rows:
        same = "-" if row.deterministic is None else "yes" if row.deterministic else "NO"
        tried = [_number(row.raw), _number(row.score), _number(row.seconds), same] if checked else [row.description]
        general = f"{row.general:.2f}" if row.general else "-"
        shown.add_row(row.name, row.mode, row.cost, general, "yes" if row.ready else "no", *tried)
    why = [f"{row.name}: {row.error or row.reason}" for row in rows if row.error or row.reason]
    return Group(shown, *map(escape, why))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _entry(spec: ToolSpec, runner: ToolRunner) -> ToolEntry:
    reason = runner.why_not(spec)
    return ToolEntry(
        name=spec.name, library=spec.library, function=spec.function, mode=spec.mode, description=spec.description,
        needs=spec.needs, cost=spec.cost, licence=spec.licence, general=spec.general,
        calibrated=runner.calibration.knows(spec.name), ready=reason is None, reason=reason,
    )  # fmt: skip


def _trial_pair() -> tuple[ImageRef, ImageRef]:
    """Return a 256 x 256 part of a photograph as JPEG of quality 20, and the part itself."""
    from skimage.data import astronaut

    scene = np.ascontiguousarray(astronaut()[:TRIAL_SIZE_PX, 96 : 96 + TRIAL_SIZE_PX])
    packed = io.BytesIO()
    Image.fromarray(scene).save(packed, "JPEG", quality=20)
    return IMAGES.add(packed.getvalue()), IMAGES.add(scene)
