"""Many images through many tools, and the maps that people's scores give these."""

import datetime
import itertools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.catalogue import resolve_dataset
from data.distortions import category_named
from data.manifest import GENERATED, Layout, Sample, check_scale, manifest_sha256, read_manifest
from program.common.errors import ImageError, InputError, SettingsError, ToolError
from program.common.files import is_remote, remove_leftovers, write_whole
from program.common.pool import in_order
from program.evaluation.metrics import fit_map, rmse, srcc
from program.images.store import IMAGES
from program.tools.calibration import (
    Calibration,
    CategoryMap,
    MapParameters,
    Provenance,
    Residual,
    ToolCalibration,
    apply_map,
    is_identity,
    mix,
)  # fmt: skip
from program.tools.registry import Measurement, ToolSpec, file_sha256, library_label, parameter_path
from program.tools.runner import ToolRunner
from signatures.schemas import DISTORTION_CATEGORIES

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

logger = logging.getLogger(__name__)

AUTHENTIC = (None, "authentic")
"""What a manifest calls the distortion of a photograph as it was taken."""
Measured = Sequence[Mapping[str, Measurement]]
"""A mapping by tool name for each sample, in order."""
_COLUMNS = ("tool", "source", "sample", "raw", "error", "human", "category", "authentic", "label_sd")


class LabelledSet(NamedTuple):
    """Labelled images of one dataset and split."""

    name: str
    manifest_sha256: str
    split: str
    samples: Sequence[Sample]

    @classmethod
    def read(cls, name: str, split: str, cache_dir: Path, remote: Collection[str] = ()) -> "LabelledSet":
        """Return the images of a dataset or manifest that people scored. Raises InputError where there is none.

        `remote` are the kinds of address that its rows may name (see `data.manifest.Layout`).
        """
        manifest, layout = resolve_dataset(name, cache_dir), Layout(remote=remote)
        if doubt := check_scale(manifest, layout):
            logger.warning("%s", doubt)
        # Several questions on one image are one image.
        distinct = {}
        for s in read_manifest(manifest, layout):
            if split in ("all", s.split) and s.quality is not None and not s.is_made_up:
                distinct[s.image, s.reference] = s
        if not distinct:
            raise InputError(
                f"dataset {name!r}: no sample with people's score in split {split!r}; choose another --split or dataset"
            )
        place = PurePosixPath(manifest if is_remote(manifest) else Path(manifest).resolve())
        title = "/".join(place.with_suffix("").parts[-2:]).removesuffix("/manifest")
        return cls(name if name in GENERATED else title, manifest_sha256(manifest), split, list(distinct.values()))

    @property
    def names(self) -> set[str]:
        """What the data may be known by, in lower case: its folder and its file."""
        return set(self.name.casefold().split("/"))

    @property
    def source(self) -> str:
        """How the files call it."""
        return f"{self.name} ({self.split})"

    def provenance(self) -> Provenance:
        """Return what the file of figures says of this dataset."""
        return Provenance(
            dataset=self.name,
            manifest_sha256=self.manifest_sha256,
            split=self.split,
            samples=len(self.samples),
            groups=tuple(sorted({s.group for s in self.samples if s.group is not None}))[:50],
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        )


class Surveyed(NamedTuple):
    """Readings of tools on datasets, those on data that a tool was trained on left out."""

    readings: "pd.DataFrame"
    """One row a reading: tool, source, sample (a number), raw (NaN where it failed), error, and of the sample its human
    score, category (None outside the seven), whether it is authentic, and label_sd: where the score is a mean over
    other images, how far one lies from it (standard deviation)."""
    specs: Sequence[ToolSpec]
    sources: Mapping[str, Provenance]
    """What the file of figures says of the datasets, by source name."""
    skipped: Mapping[str, str]
    """Tools that cannot run here, and why."""

    @classmethod
    def of(
        cls, measured: Sequence[tuple[LabelledSet, Measured]], specs: Sequence[ToolSpec], skipped: Mapping[str, str]
    ) -> "Surveyed":
        """Return the readings of datasets."""
        import pandas as pd

        rows = []
        for data, by_sample in measured:
            fresh = [spec.name for spec in specs if data.names.isdisjoint(map(str.casefold, spec.trained_on))]
            for sample, by_tool in zip(data.samples, by_sample, strict=True):
                # The quickstart's score of an image is KADID-10k's mean over others, and its deviation is among those.
                deviation = sample.metadata.get("label_std", 0.0) if data.name in GENERATED else 0.0
                kind, is_authentic = category_named(sample.distortion), sample.distortion in AUTHENTIC
                about = (sample.quality, kind, is_authentic, deviation)
                for name in fresh:
                    if name in by_tool:
                        read = by_tool[name]
                        rows.append((name, data.source, id(sample), read.raw, read.error, *about))
        table = pd.DataFrame(rows, columns=list(_COLUMNS)).astype({"raw": float})
        return cls(table, specs, {data.source: data.provenance() for data, _ in measured}, skipped)

    def problems(self) -> list[str]:
        """Return the failed measurements, one line per tool with the first of them."""
        lines = []
        for name, rows in self.readings.groupby("tool", sort=False):
            errors = list(rows.error[rows.raw.isna()])
            if errors:
                lines.append(f"{name}: {len(errors)} of {len(rows)} failed, the first: {errors[0]}")
        return lines


def measure_all(
    runner: ToolRunner, datasets: Sequence[LabelledSet], names: Sequence[str] | None, on_image: Callable[[], None]
) -> Surveyed:
    """Run the ready tools, or those named (expensive ones only so), over labelled images; ToolError if unknown."""
    missing = runner.unavailable()
    affordable = [spec for spec in runner.registry.specs() if spec.cost != "expensive"]
    wanted = [runner.registry.get(name) for name in names] if names else affordable
    usable = [spec for spec in wanted if spec.name not in missing]
    measured = [(data, survey(runner, usable, data.samples, on_image)) for data in datasets]
    return Surveyed.of(measured, usable, {s.name: missing[s.name] for s in wanted if s.name in missing})


def survey(
    runner: ToolRunner,
    specs: Sequence[ToolSpec],
    samples: Sequence[Sample],
    on_image: Callable[[], None],
) -> Measured:
    """Measure every image with every tool; full-reference tools only where there is a reference.

    Measurements of a bad image hold the error. `on_image` is called after each image, from the worker's thread.
    """

    def measure(sample: Sample) -> dict[str, Measurement]:
        fitting = [spec.name for spec in specs if spec.mode == "NR" or sample.reference is not None]
        try:
            image = IMAGES.add(sample.image)
            reference = IMAGES.add(sample.reference) if sample.reference is not None else None
            return {name: runner.measure(name, image, reference) for name in fitting}
        except ImageError as error:
            return {name: Measurement(tool=name, error=str(error)) for name in fitting}
        finally:
            on_image()

    return in_order(measure, samples, workers=2)


FEWEST_OF_A_CATEGORY = 25
"""Fewer images of a distortion category get no map of their own."""


def results(surveyed: Surveyed, out: Path, params_dir: Path | None) -> tuple[dict[str, Any], "Table"]:
    """Write maps over those of a file; returns the figures as JSON and as a table.

    Raises ToolError when nothing was fitted, SettingsError when the file cannot be read or written.
    """
    tools, skipped = fit_all(surveyed, params_dir=params_dir)
    if not tools:
        why_not = skipped.__getitem__
        alike = itertools.groupby(sorted(skipped, key=why_not), key=why_not)
        reasons = "; ".join(f"{why}: {', '.join(names)}" for why, names in alike)
        raise ToolError(f"calibration on {', '.join(surveyed.sources)}: no tool could be fitted ({reasons})")
    _write((Calibration.load(out) if out.exists() else Calibration()).merge(tools, surveyed.sources), out)
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
    from rich.table import Table

    table = Table(title=f"Maps to 1..5 fitted on {', '.join(surveyed.sources)}", caption=f"written to {out}")
    for column in ("tool", "n", "SRCC", "RMSE", "precision", "map"):
        table.add_column(column, justify="left" if column in ("tool", "map") else "right")
    for name, own in figures.items():
        table.add_row(name, *map(str, own.values()), tools[name].map.kind)
    for name, why in skipped.items():
        table.add_row(name, "-", "-", "-", "-", why)
    return report, table


def _write(figures: Calibration, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent)
        write_whole(path, figures.to_json())
    except OSError as error:
        raise SettingsError(
            f"file {str(path)!r}: cannot be written ({error.strerror}); choose another --out"
        ) from error


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
            score = mix(apply_map(narrow, values), predicted)
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
