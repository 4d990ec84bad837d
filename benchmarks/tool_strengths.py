"""Measure the tools' strengths: |SRCC| with human scores, in all and for each category of distortion.

usage: python -m benchmarks.tool_strengths MANIFEST ... --out configs/strengths.json [--split all] [--tools PSNR,MDSI]

`configs/strengths.json` was made so. Figures of tools that are not measured are kept.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from program.common.files import write_whole
from program.common.pool import progress
from program.common.settings import load_settings
from program.evaluation.calibrating import LabelledSet, Surveyed, measure_all
from program.evaluation.metrics import srcc
from program.tools.calibration import FEWEST, MeasuredStrength, Strength, Strengths
from program.tools.registry import library_label
from program.tools.runner import ToolRunner
from signatures.schemas import DISTORTION_CATEGORIES


def main(argv: list[str] | None = None) -> None:
    """Measure, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", metavar="MANIFEST")
    parser.add_argument("--split", default="train")
    parser.add_argument("--tools", metavar="NAME[,NAME]")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(argv)
    settings = load_settings()
    datasets = [LabelledSet.read(name, arguments.split, settings.cache_dir) for name in arguments.data]
    names = arguments.tools.split(",") if arguments.tools else None
    with progress("measuring", sum(len(data.samples) for data in datasets)) as advance:
        surveyed = measure_all(ToolRunner(settings), datasets, names=names, on_image=advance)
    measured = strengths_of(surveyed)
    before = Strengths.load(arguments.out) if arguments.out.exists() else Strengths()
    write_whole(arguments.out, before.merge(measured, surveyed.sources).to_json())
    for name, own in measured.items():
        sys.stdout.write(f"{name:<12} {own.general.srcc:.3f} n={own.general.n}\n")


def strengths_of(surveyed: Surveyed) -> dict[str, Strength]:
    """Return the strength of each tool that has one."""
    good = surveyed.readings[surveyed.readings.raw.notna()]
    measured = {}
    for spec in surveyed.specs:
        strength = strength_of(library_label(spec), good[good.tool == spec.name])
        if strength is not None:
            measured[spec.name] = strength
    return measured


def strength_of(library: str, readings: pd.DataFrame) -> Strength | None:
    """Return a tool's strength from columns source, raw, human and category, or None where no source has 8 images.

    >>> import pandas as pd
    >>> rows = {"source": "toy", "raw": [1, 2, 3, 4, 5, 6, 7, 8], "human": [8, 7, 6, 5, 4, 3, 1, 2]}
    >>> strength_of("toy 1", pd.DataFrame({**rows, "category": "Noise"})).by_category["Noise"].srcc
    0.9762
    """
    general = _measured(readings)
    if general is None:
        return None
    own = {}
    for category in DISTORTION_CATEGORIES:
        strength = _measured(readings[readings.category == category])
        if strength is not None:
            own[category] = strength
    return Strength(library=library, sources=tuple(readings.source.unique()), general=general, by_category=own)


def _measured(readings: pd.DataFrame) -> MeasuredStrength | None:
    parts = [part for _, part in readings.groupby("source", sort=False)]
    enough = [part for part in parts if len(part) >= FEWEST and part.raw.nunique() > 1 and part.human.nunique() > 1]
    if not enough:
        return None
    agreement = np.mean([abs(srcc(part.human, part.raw)) for part in enough])
    return MeasuredStrength(srcc=round(float(agreement), 4), n=sum(map(len, enough)))


if __name__ == "__main__":
    main()
