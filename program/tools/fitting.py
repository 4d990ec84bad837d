"""Fitting the maps of tools, and measuring what each is good at, on images with human scores."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from program.common.errors import SettingsError, ToolError
from program.common.files import write_whole
from program.tools.calibration import Calibration, CategoryMap, Residual, ToolCalibration, mixed
from program.tools.maps import is_identity
from program.tools.monotone import MonotoneMap
from program.tools.registry import ToolSpec
from program.tools.stored import Provenance
from program.tools.strengths import Readings, Strength, Strengths, strength_of
from program.tools.survey import Labelled, Surveyed
from program.tools.weights import file_sha256, library_version, parameter_path
from signatures.schemas import DISTORTION_CATEGORIES

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ("FitReport", "fit_all", "fit_tool", "strengths_all", "write_text")

FEWEST_OF_A_CATEGORY = 25
"""Fewer images of a distortion category get no map of their own."""


@dataclass(frozen=True, slots=True)
class FitReport:
    """Fitted maps, where they come from, and what could not be used."""

    tools: Mapping[str, ToolCalibration]
    sources: Mapping[str, Provenance]
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
            raise ToolError(f"calibration on {', '.join(self.sources)}: no tool could be fitted ({reasons})")
        write_text(path, base.updated(self.tools, self.sources).to_json())

    def as_json(self, path: Path) -> dict[str, Any]:
        """Return what a program wants to know of the fit."""
        shown = {
            name: {
                "n": t.residual.n,
                "rmse": t.residual.rmse,
                "srcc": t.srcc,
                "precision": round(t.error().precision, 4),
            }
            for name, t in self.tools.items()
        }
        return {
            "out": str(path),
            "sources": {name: p.model_dump(mode="json") for name, p in self.sources.items()},
            "tools": shown,
            "skipped": dict(self.skipped),
            "problems": list(self.problems),
        }

    def table(self, path: Path) -> "Table":
        """Return the fit as a table."""
        from rich.table import Table

        table = Table(title=f"Maps to 1..5 fitted on {', '.join(self.sources)}", caption=f"written to {path}")
        for column in ("tool", "n", "SRCC", "RMSE", "precision", "map"):
            table.add_column(column, justify="left" if column in ("tool", "map") else "right")
        for name, t in self.tools.items():
            figures = (f"{t.srcc:.3f}", f"{t.residual.rmse:.3f}", f"{t.error().precision:.2f}")
            table.add_row(name, str(t.residual.n), *figures, t.map.kind)
        for name, why in self.skipped.items():
            table.add_row(name, "-", "-", "-", "-", why)
        return table


def fit_tool(
    spec: ToolSpec,
    readings: Sequence[tuple[float, Labelled]],
    *,
    sources: Sequence[str],
    parameters: Path | None = None,
) -> ToolCalibration:
    """Fit one tool's maps on its raw values of labelled images.

    A category with too few readings gets no map of its own. Raises ValueError where nothing can be fitted.
    """
    from scipy.stats import spearmanr

    values = np.array([raw for raw, _ in readings], float)
    human = np.array([sample.human for _, sample in readings], float)
    kinds = np.array([sample.category or "" for _, sample in readings])

    def fitted(keep: NDArray[np.bool_]) -> MonotoneMap:
        unfitted = MonotoneMap(higher_is_better=spec.higher_is_better, identity=spec.identity)
        return unfitted.fit(values[keep], human[keep])

    def residual(keep: NDArray[np.bool_], predicted: NDArray[np.float64]) -> Residual:
        # Identities are left out, as in the fit: the map gives them 5 whatever people said.
        differs = keep & ~is_identity(values, spec.identity)
        apart = [sample.label_sd**2 for (_, sample), wanted in zip(readings, differs, strict=True) if wanted]
        return Residual(
            n=int(differs.sum()),
            rmse=round(float(np.sqrt(np.mean((predicted - human)[differs] ** 2))), 4),
            spread=round(float(np.std(human[differs])), 4),
            label_sd=round(float(np.sqrt(np.mean(apart))), 4),
        )

    everything = np.ones(len(values), bool)
    general = fitted(everything)
    predicted = general.predict(values)
    own = {}
    for category in DISTORTION_CATEGORIES:
        keep = kinds == category
        if keep.sum() >= FEWEST_OF_A_CATEGORY:
            narrow = fitted(keep)
            own[category] = CategoryMap(
                map=narrow.parameters_, residual=residual(keep, mixed(narrow.predict(values), predicted))
            )
    taken = np.array([sample.authentic for _, sample in readings], bool)
    srcc = float(spearmanr(values, human).statistic) * (1 if spec.higher_is_better else -1)
    return ToolCalibration(
        sources=tuple(sources),
        function=spec.key,
        library=_library(spec),
        parameter_file_sha256=file_sha256(parameters) if parameters else None,
        residual=residual(everything, predicted),
        authentic=residual(taken, predicted) if taken.sum() >= FEWEST_OF_A_CATEGORY else None,
        srcc=round(srcc, 4),
        raw_range=(float(np.min(values)), float(np.max(values))),
        map=general.parameters_,
        by_category=own,
    )


def fit_all(surveyed: Surveyed, *, params_dir: Path | None = None) -> FitReport:
    """Fit each surveyed tool's maps."""
    skipped, tools = dict(surveyed.skipped), {}
    for spec in surveyed.specs:
        found = surveyed.readings(spec)
        if not found:
            skipped[spec.name] = "no sample has a reference" if spec.mode == "FR" else "no sample it was not trained on"
            continue
        good = [(m.raw, sample) for _, sample, m in found if m.raw is not None]
        try:
            tools[spec.name] = fit_tool(
                spec,
                good,
                sources=list(dict.fromkeys(data.source for data, _, m in found if m.raw is not None)),
                parameters=parameter_path(spec, params_dir),
            )
        except ValueError as error:
            skipped[spec.name] = str(error)
    sources = {data.source: data.provenance() for data in surveyed.datasets}
    return FitReport(_with_correlations(tools, surveyed), sources, skipped, surveyed.problems())


def _with_correlations(tools: Mapping[str, ToolCalibration], surveyed: Surveyed) -> dict[str, ToolCalibration]:
    """Return the tools with how the errors of each go with those of the others, on the images that both measured."""
    errors: dict[str, dict[int, float]] = {name: {} for name in tools}
    for spec in surveyed.specs:
        if spec.name in tools:
            for _, sample, m in surveyed.readings(spec):
                if m.raw is not None and not is_identity(m.raw, spec.identity):
                    errors[spec.name][id(sample)] = tools[spec.name].score(m.raw) - sample.human
    found: dict[str, dict[str, float]] = {name: {} for name in tools}
    for one, other in itertools.combinations(tools, 2):
        common = sorted(errors[one].keys() & errors[other].keys())
        if len(common) >= FEWEST_OF_A_CATEGORY:
            e, f = (np.array([errors[name][key] for key in common]) for name in (one, other))
            found[one][other] = round(float(e @ f / np.sqrt((e @ e) * (f @ f))), 4)
    return {name: tool.model_copy(update={"correlations": found[name]}) for name, tool in tools.items()}


def strengths_all(surveyed: Surveyed, base: Strengths) -> Strengths:
    """Return the strengths of each surveyed tool over those of `base`; sources no figure rests on are dropped."""
    tools: dict[str, Strength] = dict(base.tools)
    for spec in surveyed.specs:
        by_source: dict[str, list[tuple[float, float, str | None]]] = {}
        for data, sample, m in surveyed.readings(spec):
            if m.raw is not None:
                by_source.setdefault(data.source, []).append((m.raw, sample.human, sample.category))
        measured = strength_of(
            _library(spec), [Readings(source, *zip(*rows, strict=True)) for source, rows in by_source.items()]
        )
        if measured is not None:
            tools[spec.name] = measured
    used = {source for strength in tools.values() for source in strength.sources}
    sources = {**base.sources, **{data.source: data.provenance() for data in surveyed.datasets}}
    return Strengths(sources={name: kept for name, kept in sources.items() if name in used}, tools=tools)


def write_text(path: Path, text: str) -> None:
    """Write a whole file or none. Raises SettingsError when it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise SettingsError(
            f"file {str(path)!r}: cannot be written ({error.strerror}); choose another --out"
        ) from error


def _library(spec: ToolSpec) -> str:
    return f"{spec.library} {library_version(spec.library) or 'unknown'}"
