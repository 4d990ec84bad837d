"""What people's scores say of the tools: fitted maps and measured strengths, and the files that hold them."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from program.common.errors import SettingsError, ToolError
from program.common.files import write_whole
from program.evaluation.fits import fit_map
from program.evaluation.metrics import rmse, srcc
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
from program.tools.figures import FEWEST, Figures, MeasuredStrength, Strength, Strengths
from program.tools.readiness import file_sha256, library_label, parameter_path
from program.tools.registry import ToolSpec
from program.tools.survey import Surveyed
from signatures.schemas import DISTORTION_CATEGORIES

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

__all__ = ("fit_all", "results", "strength_of")

FEWEST_OF_A_CATEGORY = 25
"""Fewer images of a distortion category get no map of their own."""


def results(
    surveyed: Surveyed, out: Path, *, strengths: bool, params_dir: Path | None = None
) -> tuple[dict[str, Any], "Table"]:
    """Write strengths or maps over those of a file; returns the figures as JSON and as a table.

    Raises ToolError when nothing was fitted, SettingsError when the file cannot be read or written.
    """
    if strengths:
        measured = strengths_all(surveyed, Strengths.load(out) if out.exists() else Strengths())
        _write(measured, out)
        lines = []
        for name, tool in measured.tools.items():
            own = (tool.general, *map(tool.by_category.get, DISTORTION_CATEGORIES))
            lines.append((name, str(tool.general.n), *(f"{each.srcc:.2f}" if each else "-" for each in own)))
        title = f"|SRCC| with human scores from {', '.join(measured.sources)}"
        table = _table(title, out, ("tool", "n", "all", *DISTORTION_CATEGORIES), lines)
        return {"out": str(out), **measured.model_dump(mode="json")}, table
    tools, skipped = fit_all(surveyed, params_dir=params_dir)
    if not tools:
        reasons = "; ".join(f"{name}: {why}" for name, why in skipped.items())
        raise ToolError(f"calibration on {', '.join(surveyed.sources)}: no tool could be fitted ({reasons})")
    base = Calibration.load(out) if out.exists() else Calibration()
    _write(base.updated(tools, surveyed.sources), out)
    figures = {
        name: {"n": t.residual.n, "srcc": t.srcc, "rmse": t.residual.rmse, "precision": round(t.error().precision, 4)}
        for name, t in tools.items()
    }
    report = {
        "out": str(out),
        "sources": {name: source.model_dump(mode="json") for name, source in surveyed.sources.items()},
        "tools": figures,
        "skipped": skipped,
        "problems": surveyed.problems(),
    }
    lines = [(name, *map(str, own.values()), tools[name].map.kind) for name, own in figures.items()]
    lines += [(name, "-", "-", "-", "-", why) for name, why in skipped.items()]
    title = f"Maps to 1..5 fitted on {', '.join(surveyed.sources)}"
    return report, _table(title, out, ("tool", "n", "SRCC", "RMSE", "precision", "map"), lines)


def _write(figures: Figures, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, figures.to_json())
    except OSError as error:
        raise SettingsError(
            f"file {str(path)!r}: cannot be written ({error.strerror}); choose another --out"
        ) from error


def _table(title: str, out: Path, columns: Sequence[str], lines: Iterable[Sequence[str]]) -> "Table":
    from rich.table import Table

    table = Table(title=title, caption=f"written to {out}")
    for column in columns:
        table.add_column(column, justify="left" if column in ("tool", "map") else "right")
    for line in lines:
        table.add_row(*line)
    return table


def fit_tool(spec: ToolSpec, readings: "pd.DataFrame", parameters: Path | None = None) -> ToolCalibration:
    """Fit one tool's maps on its readings of labelled images (see `Surveyed.readings`), none of which failed.

    A category with too few readings gets no map of its own. Raises ValueError where nothing can be fitted.
    """
    values, human, label_sd = (readings[name].to_numpy(float) for name in ("raw", "human", "label_sd"))
    for what, numbers in (("labels", human), ("readings", values)):
        if np.ptp(numbers) == 0:
            raise ValueError(f"all {what} are the same")
    authentic = readings.authentic.to_numpy(bool)
    # Identities are left out, as in the fit: the map gives them 5 whatever people said.
    differs = ~is_identity(values, spec.identity)

    def fitted(part: NDArray[np.bool_]) -> MapParameters:
        return fit_map(values[part], human[part], higher_is_better=spec.higher_is_better, identity=spec.identity)

    def residual(part: NDArray[np.bool_], predicted: NDArray[np.float64]) -> Residual:
        part = part & differs
        return Residual(
            n=int(part.sum()),
            rmse=round(rmse(human[part], predicted[part]), 4),
            spread=round(float(np.std(human[part])), 4),
            label_sd=round(float(np.sqrt(np.mean(label_sd[part] ** 2))), 4),
        )

    everything = np.ones(len(values), bool)
    general = fitted(everything)
    predicted = apply_map(general, values)
    own = {}
    for category in DISTORTION_CATEGORIES:
        part = (readings.category == category).to_numpy(bool)
        if part.sum() >= FEWEST_OF_A_CATEGORY:
            narrow = fitted(part)
            score = mixed(apply_map(narrow, values), predicted)
            own[category] = CategoryMap(map=narrow, residual=residual(part, score))
    agreement = srcc(human, values) * (1 if spec.higher_is_better else -1)
    return ToolCalibration(
        sources=tuple(readings.source.unique()),
        function=spec.key,
        library=library_label(spec),
        parameter_file_sha256=file_sha256(parameters) if parameters else None,
        residual=residual(everything, predicted),
        authentic=residual(authentic, predicted) if authentic.sum() >= FEWEST_OF_A_CATEGORY else None,
        srcc=round(agreement, 4),
        raw_range=(float(np.min(values)), float(np.max(values))),
        map=general,
        by_category=own,
    )


def fit_all(surveyed: Surveyed, *, params_dir: Path | None = None) -> tuple[dict[str, ToolCalibration], dict[str, str]]:
    """Return each surveyed tool's fitted maps, and why tools were not fitted, by name."""
    skipped, tools = dict(surveyed.skipped), {}
    for spec in surveyed.specs:
        readings = surveyed.readings[surveyed.readings.tool == spec.name]
        if readings.empty:
            skipped[spec.name] = "no sample has a reference" if spec.mode == "FR" else "no sample it was not trained on"
            continue
        try:
            tools[spec.name] = fit_tool(spec, readings[readings.raw.notna()], parameter_path(spec, params_dir))
        except ValueError as error:
            skipped[spec.name] = str(error)
    return _with_correlations(tools, surveyed), skipped


def _with_correlations(tools: Mapping[str, ToolCalibration], surveyed: Surveyed) -> dict[str, ToolCalibration]:
    """Return the tools with how the errors of each go with those of the others, on the images that both measured."""
    identities = {spec.name: spec.identity for spec in surveyed.specs}
    errors: dict[str, dict[int, float]] = {name: {} for name in tools}
    for row in surveyed.readings.dropna(subset="raw").itertuples():
        if row.tool in tools and not is_identity(row.raw, identities[row.tool]):
            errors[row.tool][row.sample] = tools[row.tool].score(row.raw) - row.human
    together: dict[str, dict[str, float]] = {name: {} for name in tools}
    for one, other in itertools.combinations(tools, 2):
        common = sorted(errors[one].keys() & errors[other].keys())
        if len(common) >= FEWEST_OF_A_CATEGORY:
            e, f = (np.array([errors[name][key] for key in common]) for name in (one, other))
            together[one][other] = round(float(e @ f / np.sqrt((e @ e) * (f @ f))), 4)
    return {name: tool.model_copy(update={"correlations": together[name]}) for name, tool in tools.items()}


def strengths_all(surveyed: Surveyed, base: Strengths) -> Strengths:
    """Return the strengths of each surveyed tool over those of `base`."""
    good = surveyed.readings[surveyed.readings.raw.notna()]
    every = {spec.name: strength_of(library_label(spec), good[good.tool == spec.name]) for spec in surveyed.specs}
    return base.updated({name: own for name, own in every.items() if own is not None}, surveyed.sources)


def strength_of(library: str, readings: "pd.DataFrame") -> Strength | None:
    """Return a tool's strength from columns source, raw, human and category, or None where no source has 8 images.

    >>> import pandas as pd
    >>> rows = {"source": "toy", "raw": [1, 2, 3, 4, 5, 6, 7, 8], "human": [8, 7, 6, 5, 4, 3, 1, 2]}
    >>> strength_of("toy 1", pd.DataFrame({**rows, "category": "Noise"})).by_category["Noise"].srcc
    0.9762
    """
    general = _measured(readings)
    if general is None:
        return None
    every = {category: _measured(readings[readings.category == category]) for category in DISTORTION_CATEGORIES}
    own = {category: strength for category, strength in every.items() if strength is not None}
    return Strength(library=library, sources=tuple(readings.source.unique()), general=general, by_category=own)


def _measured(readings: "pd.DataFrame") -> MeasuredStrength | None:
    parts = [part for _, part in readings.groupby("source", sort=False)]
    enough = [part for part in parts if len(part) >= FEWEST and part.raw.nunique() > 1 and part.human.nunique() > 1]
    if not enough:
        return None
    agreement = np.mean([abs(srcc(part.human, part.raw)) for part in enough])
    return MeasuredStrength(srcc=round(float(agreement), 4), n=sum(map(len, enough)))
