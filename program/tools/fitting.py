"""Fitting the maps of tools on images with human scores."""

import datetime
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from program.errors import SettingsError, ToolError
from program.tools.calibration import Calibration, CategoryMap, MonotoneMap, Provenance, ToolCalibration
from program.tools.models import file_sha256, parameter_path, pyiqa_version
from program.tools.registry import ToolSpec
from program.tools.runner import ToolRunner
from program.tools.survey import survey
from signatures.schemas import DISTORTION_CATEGORIES, DistortionCategory

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ("FitReport", "Labelled", "fit_all", "fit_tool")

FEWEST_OF_A_CATEGORY = 25
"""Fewer images of a distortion category get no map of their own."""


class Labelled(NamedTuple):
    """An image with its human score on 1..5."""

    image: Path
    reference: Path | None
    human: float
    group: str | None = None
    category: DistortionCategory | None = None


class Dataset(NamedTuple):
    """Where labelled images come from."""

    name: str
    manifest_sha256: str
    split: str


@dataclass(frozen=True, slots=True)
class FitReport:
    """Fitted maps, where they come from, and what could not be used."""

    tools: Mapping[str, ToolCalibration]
    source: str
    provenance: Provenance
    skipped: Mapping[str, str]
    """Tools that were not fitted, and why."""
    problems: tuple[str, ...]
    """Failed measurements, one line each, the first of each tool."""

    def write(self, base: Calibration, path: Path) -> None:
        """Write the maps over those of `base`: a whole file or none.

        Raises ToolError when nothing was fitted, SettingsError when the file cannot be written.
        """
        if not self.tools:
            reasons = "; ".join(f"{name}: {why}" for name, why in self.skipped.items())
            raise ToolError(f"calibration on {self.provenance.dataset!r}: no tool could be fitted ({reasons})")
        text = base.updated(self.tools, self.source, self.provenance).to_json()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=path.parent, suffix=".part", encoding="utf-8", delete=False
            ) as part:
                part.write(text)
            Path(part.name).chmod(0o644)
            os.replace(part.name, path)
        except OSError as error:
            raise SettingsError(
                f"calibration file {str(path)!r}: cannot be written ({error.strerror}); choose another --out"
            ) from error

    def as_json(self, path: Path) -> dict[str, Any]:
        """Return what a program wants to know of the fit."""
        return {
            "out": str(path),
            "source": self.source,
            "provenance": self.provenance.model_dump(mode="json"),
            "tools": {name: t.model_dump(mode="json", include={"n", "rmse", "srcc"}) for name, t in self.tools.items()},
            "skipped": dict(self.skipped),
            "problems": list(self.problems),
        }

    def table(self, path: Path) -> "Table":
        """Return the fit as a table."""
        from rich.table import Table

        table = Table(title=f"Maps to 1..5 fitted on {self.source}", caption=f"written to {path}")
        for column in ("tool", "n", "SRCC", "RMSE", "map"):
            table.add_column(column, justify="left" if column in ("tool", "map") else "right")
        for name, fitted in self.tools.items():
            table.add_row(name, str(fitted.n), f"{fitted.srcc:.3f}", f"{fitted.rmse:.3f}", fitted.map.kind)
        for name, why in self.skipped.items():
            table.add_row(name, "-", "-", "-", why)
        return table


def fit_tool(
    spec: ToolSpec,
    raw: Sequence[float],
    human: Sequence[float],
    categories: Sequence[str | None],
    *,
    source: str,
    parameters: Path | None = None,
) -> ToolCalibration:
    """Fit one tool's maps on raw values, human scores 1..5 and the images' distortion categories, all of length n.

    A category with too few readings gets no map of its own. Raises ValueError where nothing can be fitted.
    """
    from scipy.stats import spearmanr

    def fit(keep: NDArray[np.bool_]) -> MonotoneMap:
        unfitted = MonotoneMap(higher_is_better=spec.higher_is_better, identity=spec.identity)
        return unfitted.fit(np.asarray(raw, float)[keep], np.asarray(human, float)[keep])

    fitted = fit(np.ones(len(raw), bool))
    own = {}
    for category in DISTORTION_CATEGORIES:
        keep = np.array([c == category for c in categories], bool)
        if keep.sum() >= FEWEST_OF_A_CATEGORY:
            narrow = fit(keep)
            own[category] = CategoryMap(n=narrow.n_, rmse=round(narrow.rmse_, 4), map=narrow.parameters_)
    srcc = float(spearmanr(raw, human).statistic) * (1 if spec.higher_is_better else -1)
    return ToolCalibration(
        source=source,
        pyiqa=spec.pyiqa,
        pyiqa_version=pyiqa_version() or "unknown",
        parameter_file_sha256=file_sha256(parameters) if parameters else None,
        n=fitted.n_,
        rmse=round(fitted.rmse_, 4),
        srcc=round(srcc, 4),
        raw_range=(float(np.min(raw)), float(np.max(raw))),
        map=fitted.parameters_,
        by_category=own,
    )


def fit_all(
    runner: ToolRunner,
    samples: Sequence[Labelled],
    *,
    dataset: tuple[str, str, str],
    names: Sequence[str] | None = None,
    on_image: Callable[[], None] = lambda: None,
) -> FitReport:
    """Run the ready tools (or the named ones) over labelled images and fit each one's map.

    `dataset` is name, manifest's SHA-256 and split. Expensive tools run only when named.
    Raises ToolError for an unknown name.
    """
    where = Dataset(*dataset)
    source = f"{where.name} ({where.split})"
    missing = runner.unavailable()
    wanted = [runner.registry.get(n) for n in names] if names else _affordable(runner.registry.specs())
    usable = [spec for spec in wanted if spec.name not in missing]
    skipped = {spec.name: missing[spec.name] for spec in wanted if spec.name in missing}
    measured = survey(runner, usable, [(s.image, s.reference) for s in samples], on_image=on_image)
    fitted, problems = {}, []
    for spec in usable:
        readings = [
            (by_tool[spec.name], s) for by_tool, s in zip(measured, samples, strict=True) if spec.name in by_tool
        ]
        if not readings:
            skipped[spec.name] = "no sample has a reference"
            continue
        good = [(m.raw, s) for m, s in readings if m.raw is not None]
        failed = [m.error for m, _ in readings if m.raw is None]
        if failed:
            problems.append(f"{spec.name}: {len(failed)} of {len(readings)} failed, the first: {failed[0]}")
        try:
            fitted[spec.name] = fit_tool(
                spec,
                [raw for raw, _ in good],
                [s.human for _, s in good],
                [s.category for _, s in good],
                source=source,
                parameters=parameter_path(spec, runner.params_dir),
            )
        except ValueError as error:
            skipped[spec.name] = str(error)
    provenance = Provenance(
        dataset=where.name,
        manifest_sha256=where.manifest_sha256,
        split=where.split,
        samples=len(samples),
        groups=tuple(sorted({s.group for s in samples if s.group is not None}))[:50],
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )
    return FitReport(fitted, source, provenance, skipped, tuple(problems))


def _affordable(specs: Sequence[ToolSpec]) -> list[ToolSpec]:
    return [spec for spec in specs if spec.cost != "expensive"]
