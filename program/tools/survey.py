"""Many images through many tools, with what people said of the images."""

import datetime
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from data.catalogue import GENERATED, resolve_dataset
from data.kadid import category_named
from data.manifest import manifest_sha256, read_manifest
from program.common.errors import ImageError, InputError
from program.common.pool import in_order
from program.images.store import IMAGES
from program.tools.figures import Provenance
from program.tools.registry import Measurement, ToolSpec
from program.tools.runner import ToolRunner
from signatures.schemas import DistortionCategory

if TYPE_CHECKING:
    import pandas as pd

__all__ = ("Labelled", "LabelledSet", "Surveyed", "measure_all", "survey")

AUTHENTIC = (None, "authentic")
"""What a manifest calls the distortion of a photograph as it was taken."""
_COLUMNS = ("tool", "source", "sample", "raw", "error", "human", "category", "authentic", "label_sd")


class Labelled(NamedTuple):
    """An image with its human score on 1..5."""

    image: Path
    reference: Path | None
    human: float
    group: str | None = None
    category: DistortionCategory | None = None
    """Of a known distortion; None also for kinds outside the seven."""
    authentic: bool = False
    """A photograph as it was taken: nobody knows what is wrong with it."""
    label_sd: float = 0.0
    """Where `human` is a mean over other images: how far one image lies from it (standard deviation)."""


class LabelledSet(NamedTuple):
    """Labelled images of one dataset and split."""

    name: str
    manifest_sha256: str
    split: str
    samples: Sequence[Labelled]

    @classmethod
    def read(cls, name: str, split: str, cache_dir: Path) -> "LabelledSet":
        """Return the images of a dataset or manifest that people scored. Raises InputError where there is none."""
        manifest = resolve_dataset(name, cache_dir)
        # Several questions on one image are one image.
        distinct = {
            (s.image, s.reference): Labelled(
                Path(s.image), Path(s.reference) if s.reference else None, s.quality, s.group,
                category_named(s.distortion), s.distortion in AUTHENTIC,
                # The quickstart's score of an image is KADID-10k's mean over others, and its deviation is among those.
                s.metadata.get("label_std", 0.0) if name in GENERATED else 0.0,
            )
            for s in read_manifest(manifest)
            if split in ("all", s.split) and s.quality is not None and not s.is_made_up
        }  # fmt: skip
        if not distinct:
            raise InputError(
                f"dataset {name!r}: no sample with people's score in split {split!r}; choose another --split or dataset"
            )
        title = name if name in GENERATED else Path(manifest).resolve().parent.name
        return cls(title, manifest_sha256(manifest), split, list(distinct.values()))

    @property
    def source(self) -> str:
        """How the files call it."""
        return f"{self.name} ({self.split})"

    def provenance(self) -> Provenance:
        """Return what is told of it beside the figures."""
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
    """One row a reading: tool, source, sample (a number), raw (NaN where it failed), error, and the sample's human,
    category, authentic and label_sd."""
    specs: Sequence[ToolSpec]
    sources: Mapping[str, Provenance]
    """What is told of the datasets beside the figures, by source name."""
    skipped: Mapping[str, str]
    """Tools that cannot run here, and why."""

    @classmethod
    def of(
        cls,
        datasets: Sequence[LabelledSet],
        measured: Sequence[Sequence[Mapping[str, Measurement]]],
        specs: Sequence[ToolSpec],
        skipped: Mapping[str, str],
    ) -> "Surveyed":
        """Return the readings from one mapping by tool name per sample of each dataset."""
        import pandas as pd

        rows = [
            (spec.name, data.source, id(sample), by_tool[spec.name].raw, by_tool[spec.name].error, sample.human,
             sample.category, sample.authentic, sample.label_sd)
            for data, by_sample in zip(datasets, measured, strict=True)
            for sample, by_tool in zip(data.samples, by_sample, strict=True)
            for spec in specs
            if spec.name in by_tool and data.name.casefold() not in {name.casefold() for name in spec.trained_on}
        ]  # fmt: skip
        table = pd.DataFrame(rows, columns=list(_COLUMNS)).astype({"raw": float})
        return cls(table, specs, {data.source: data.provenance() for data in datasets}, skipped)

    def problems(self) -> list[str]:
        """Return the failed measurements, one line per tool with the first of them."""
        lines = []
        for name, rows in self.readings.groupby("tool", sort=False):
            errors = list(rows.error[rows.raw.isna()])
            if errors:
                lines.append(f"{name}: {len(errors)} of {len(rows)} failed, the first: {errors[0]}")
        return lines


def measure_all(
    runner: ToolRunner,
    datasets: Sequence[LabelledSet],
    *,
    names: Sequence[str] | None = None,
    on_image: Callable[[], None] = lambda: None,
) -> Surveyed:
    """Run the ready tools (or the named ones) over labelled images; ToolError for an unknown name.

    Expensive tools run only when named.
    """
    missing = runner.unavailable()
    affordable = [spec for spec in runner.registry.specs() if spec.cost != "expensive"]
    wanted = [runner.registry.get(name) for name in names] if names else affordable
    usable = [spec for spec in wanted if spec.name not in missing]
    measured = [
        survey(runner, usable, [(s.image, s.reference) for s in data.samples], on_image=on_image) for data in datasets
    ]
    return Surveyed.of(datasets, measured, usable, {s.name: missing[s.name] for s in wanted if s.name in missing})


def survey(
    runner: ToolRunner,
    specs: Sequence[ToolSpec],
    pairs: Sequence[tuple[Path, Path | None]],
    *,
    on_image: Callable[[], None] = lambda: None,
) -> list[dict[str, Measurement]]:
    """Measure every image with every tool; full-reference tools only where there is a reference.

    Returns one mapping from tool name to measurement per pair of image and reference, in order; those of a bad image
    hold the error. `on_image` is called after each image, from the worker's thread.
    """

    def measure(pair: tuple[Path, Path | None]) -> dict[str, Measurement]:
        fitting = [spec.name for spec in specs if spec.mode == "NR" or pair[1] is not None]
        try:
            image = IMAGES.add(pair[0])
            reference = IMAGES.add(pair[1]) if pair[1] is not None else None
            return {name: runner.measure(name, image, reference) for name in fitting}
        except ImageError as error:
            return {name: Measurement(tool=name, error=str(error)) for name in fitting}
        finally:
            on_image()

    return in_order(measure, pairs, workers=2)
