"""Fitting the maps of tools on images with human scores, and the files that hold what was found."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from program.common.errors import SettingsError, ToolError
from program.common.files import write_whole
from program.tools.calibration import (
    Calibration,
    CategoryMap,
    MapParameters,
    Residual,
    ToolCalibration,
    apply_map,
    is_identity,
    mixed,
)  # fmt: skip
from program.tools.figures import Figures, Strengths
from program.tools.monotone import fit_map
from program.tools.readiness import file_sha256, library_label, parameter_path
from program.tools.registry import ToolSpec
from program.tools.strengths import strengths_all, strengths_table
from program.tools.survey import Labelled, Surveyed
from signatures.schemas import DISTORTION_CATEGORIES

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ("FitReport", "fit_all", "results")

FEWEST_OF_A_CATEGORY = 25
"""Fewer images of a distortion category get no map of their own."""


class FitReport(NamedTuple):
    """Fitted maps, and what could not be used."""

    tools: Mapping[str, ToolCalibration]
    skipped: Mapping[str, str]
    """Tools that were not fitted, and why."""


def results(
    surveyed: Surveyed, out: Path, *, strengths: bool, params_dir: Path | None = None
) -> tuple[dict[str, Any], "Table"]:
    """Write strengths or maps over those of a file, whole or not at all; returns the figures as JSON and as a table.

    Raises ToolError when nothing was fitted, SettingsError when the file cannot be read or written.
    """
    if strengths:
        measured = strengths_all(surveyed, Strengths.load(out) if out.exists() else Strengths())
        _write(measured, out)
        return {"out": str(out), **measured.model_dump(mode="json")}, strengths_table(measured, f"written to {out}")
    fit, sources = fit_all(surveyed, params_dir=params_dir), surveyed.sources()
    if not fit.tools:
        reasons = "; ".join(f"{name}: {why}" for name, why in fit.skipped.items())
        raise ToolError(f"calibration on {', '.join(sources)}: no tool could be fitted ({reasons})")
    base = Calibration.load(out) if out.exists() else Calibration()
    _write(base.updated(fit.tools, sources), out)
    figures = {
        name: {"n": t.residual.n, "rmse": t.residual.rmse, "srcc": t.srcc, "precision": round(t.error().precision, 4)}
        for name, t in fit.tools.items()
    }
    report = {
        "out": str(out),
        "sources": {name: source.model_dump(mode="json") for name, source in sources.items()},
        "tools": figures,
        "skipped": dict(fit.skipped),
        "problems": surveyed.problems(),
    }
    return report, _table(fit, f"Maps to 1..5 fitted on {', '.join(sources)}", f"written to {out}")


def _write(figures: Figures, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, figures.to_json())
    except OSError as error:
        raise SettingsError(
            f"file {str(path)!r}: cannot be written ({error.strerror}); choose another --out"
        ) from error


def _table(fit: FitReport, title: str, caption: str) -> "Table":
    from rich.table import Table

    table = Table(title=title, caption=caption)
    for column in ("tool", "n", "SRCC", "RMSE", "precision", "map"):
        table.add_column(column, justify="left" if column in ("tool", "map") else "right")
    for name, t in fit.tools.items():
        figures = (f"{t.srcc:.3f}", f"{t.residual.rmse:.3f}", f"{t.error().precision:.2f}")
        table.add_row(name, str(t.residual.n), *figures, t.map.kind)
    for name, why in fit.skipped.items():
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
    label_sd = np.array([sample.label_sd for _, sample in readings], float)
    kinds = np.array([sample.category or "" for _, sample in readings])
    authentic = np.array([sample.authentic for _, sample in readings], bool)
    # Identities are left out, as in the fit: the map gives them 5 whatever people said.
    differs = ~is_identity(values, spec.identity)

    def fitted(part: NDArray[np.bool_]) -> MapParameters:
        return fit_map(values[part], human[part], higher_is_better=spec.higher_is_better, identity=spec.identity)

    def residual(part: NDArray[np.bool_], predicted: NDArray[np.float64]) -> Residual:
        part = part & differs
        return Residual(
            n=int(part.sum()),
            rmse=round(float(np.sqrt(np.mean((predicted - human)[part] ** 2))), 4),
            spread=round(float(np.std(human[part])), 4),
            label_sd=round(float(np.sqrt(np.mean(label_sd[part] ** 2))), 4),
        )

    everything = np.ones(len(values), bool)
    general = fitted(everything)
    predicted = apply_map(general, values)
    own = {}
    for category in DISTORTION_CATEGORIES:
        part = kinds == category
        if part.sum() >= FEWEST_OF_A_CATEGORY:
            narrow = fitted(part)
            score = mixed(apply_map(narrow, values), predicted)
            own[category] = CategoryMap(map=narrow, residual=residual(part, score))
    srcc = float(spearmanr(values, human).statistic) * (1 if spec.higher_is_better else -1)
    return ToolCalibration(
        sources=tuple(sources),
        function=spec.key,
        library=library_label(spec),
        parameter_file_sha256=file_sha256(parameters) if parameters else None,
        residual=residual(everything, predicted),
        authentic=residual(authentic, predicted) if authentic.sum() >= FEWEST_OF_A_CATEGORY else None,
        srcc=round(srcc, 4),
        raw_range=(float(np.min(values)), float(np.max(values))),
        map=general,
        by_category=own,
    )


def fit_all(surveyed: Surveyed, *, params_dir: Path | None = None) -> FitReport:
    """Fit each surveyed tool's maps."""
    skipped, tools = dict(surveyed.skipped), {}
    for spec in surveyed.specs:
        readings = surveyed.readings(spec)
        if not readings:
            skipped[spec.name] = "no sample has a reference" if spec.mode == "FR" else "no sample it was not trained on"
            continue
        good = [(m.raw, sample) for _, sample, m in readings if m.raw is not None]
        sources = list(dict.fromkeys(data.source for data, _, m in readings if m.raw is not None))
        try:
            tools[spec.name] = fit_tool(spec, good, sources=sources, parameters=parameter_path(spec, params_dir))
        except ValueError as error:
            skipped[spec.name] = str(error)
    return FitReport(_with_correlations(tools, surveyed), skipped)


def _with_correlations(tools: Mapping[str, ToolCalibration], surveyed: Surveyed) -> dict[str, ToolCalibration]:
    """Return the tools with how the errors of each go with those of the others, on the images that both measured."""
    errors: dict[str, dict[int, float]] = {name: {} for name in tools}
    for spec in surveyed.specs:
        if spec.name in tools:
            for _, sample, m in surveyed.readings(spec):
                if m.raw is not None and not is_identity(m.raw, spec.identity):
                    errors[spec.name][id(sample)] = tools[spec.name].score(m.raw) - sample.human
    together: dict[str, dict[str, float]] = {name: {} for name in tools}
    for one, other in itertools.combinations(tools, 2):
        common = sorted(errors[one].keys() & errors[other].keys())
        if len(common) >= FEWEST_OF_A_CATEGORY:
            e, f = (np.array([errors[name][key] for key in common]) for name in (one, other))
            together[one][other] = round(float(e @ f / np.sqrt((e @ e) * (f @ f))), 4)
    return {name: tool.model_copy(update={"correlations": together[name]}) for name, tool in tools.items()}
