"""Write `population.json`: how each measured property is distributed over natural photographs.

The manifest must be the one that the expert was fitted on: each photograph's believed
quality is that of a fit without it.

python -m program.expert.training.population ../shared/data/clive/manifest.jsonl
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from data.manifest import read_manifest
from program.common.files import write_whole
from program.expert.engine import MODEL
from program.expert.judge.attributes import COMPOSITES, POPULATION_FILE, PROPERTIES, composite
from program.expert.judge.blend import Blend
from program.expert.judge.models import load_model
from program.expert.judge.quality import Belief
from program.expert.judge.views import View, Viewer
from program.expert.store import stored_arrays
from program.expert.training.regressions import left_out
from program.images.store import IMAGES

__all__ = ("distribution", "main")

QUANTILES = tuple(range(0, 101, 5))
"""Percentages at which a property's distribution is kept."""


class _LeftOut(View):
    """A training photograph, judged by a regression on the others: its own score must not sharpen what is believed."""

    def __init__(self, view: View, mean: float) -> None:
        super().__init__(view.key, view.measured, view.difference, view.size)
        self._mean = mean

    @cached_property
    def prior(self) -> Belief:
        return replace(super().prior, mean=self._mean)


def distribution(views: Sequence[View]) -> dict[str, list[float]]:
    """Return the quantiles of every property over views, then of every composite's sum."""
    known = {name: _quantiles([read(view) for view in views]) for name, read in PROPERTIES.items()}
    sums = {f"sum of {name}": _quantiles([composite(v, name, known) for v in views]) for name in COMPOSITES}
    return known | sums


def _quantiles(values: Sequence[float]) -> list[float]:
    return [round(float(q), 4) for q in np.percentile(values, QUANTILES)]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the train images of a manifest and write the file; their scores are not read."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("manifest", type=Path, help="LIVE In the Wild's manifest; only its train images are used")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / POPULATION_FILE)
    given = parser.parse_args(argv)
    viewer = Viewer()
    seen = [viewer.view(IMAGES.add(s.image)) for s in read_manifest(given.manifest) if s.split == "train"]
    blend = load_model("nr").regression
    believed = left_out(blend.natural if isinstance(blend, Blend) else blend, stored_arrays()["nr_labels"])
    views = [_LeftOut(view, mean) for view, mean in zip(seen, believed[: len(seen)].tolist(), strict=True)]
    stated: Mapping[str, object] = {
        "model": MODEL,
        "data": f"{len(views)} train photographs of LIVE In the Wild (Ghadiyaram & Bovik 2015), without their scores",
        "per cent": list(QUANTILES),
        "quantiles": distribution(views),
    }
    write_whole(given.out, json.dumps(stated, indent=1) + "\n")
    sys.stdout.write(f"{given.out.name}: {len(views)} photographs\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
