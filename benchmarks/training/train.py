"""Refit the expert and the tool that read the pretrained network: `python -m benchmarks.training.train`.

Measuring takes half an hour on two cores, fitting ten minutes. What was measured is kept in a folder, so that an
interrupted run goes on where it was.
"""

import argparse
import datetime
import json
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from program.common.files import whole_file, write_whole
from program.common.pool import progress

if TYPE_CHECKING:
    from benchmarks.training.images import Example, Table

__all__ = ("main",)

NOTICE = (
    "Fitted in part on the LIVE In the Wild Image Quality Challenge Database (D. Ghadiyaram, A. C. Bovik, IEEE "
    "Trans. Image Process. 25(1), 2016; 2015 online) and the LIVE Image Quality Assessment Database Release 2 "
    "(H. R. Sheikh, M. F. Sabir, A. C. Bovik, IEEE Trans. Image Process. 15(11), 2006; H. R. Sheikh, Z. Wang, "
    "L. Cormack, A. C. Bovik), Copyright (c) The University of Texas at Austin, Laboratory for Image and Video "
    "Engineering: permission is granted, without written agreement and without license or royalty fees, to "
    "use, copy, modify and distribute the databases and their documentation for any purpose, provided that the "
    "copyright notice appears in all copies and the databases are cited."
)
PHOTOGRAPHS = {"train": 300, "validation": 40}
"""How many of a split's photographs, those people liked best, are distorted: what is wrong from the start is not
taught."""
PART = 250


def main(argv: Sequence[str] | None = None) -> int:
    """Fit, write the arrays with their card, and print the figures; exit code 0 or 2."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.train", description=__doc__)
    parser.add_argument("--data-root", type=Path, required=True, help="folder with clive/ and live/")
    parser.add_argument("--measured", type=Path, required=True, help="folder that keeps what was measured")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2], help="the project's folder")
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="date to write into the card")
    options = parser.parse_args(argv)
    clive, live = manifests = [options.data_root / name / "manifest.jsonl" for name in ("clive", "live")]
    for manifest in manifests:
        if not manifest.is_file():
            sys.stderr.write(f"error: {str(manifest)!r}: no such file; give a folder with clive/ and live/\n")
            return 2
    # The last bits of a solution depend on how many threads share it.
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    from benchmarks.training import figures, fitting, images, tool
    from program.expert.judge.quality import model_from
    from program.expert.store import MODEL_FILE, POPULATION_FILE, PROVENANCE_FILE

    sources = {
        "clive": images.scored(clive), "halved": images.halved(clive), "live": images.scored(live),
        **{split: images.distorted(clive, split, count) for split, count in PHOTOGRAPHS.items()},
        "rising": images.rising(clive, PHOTOGRAPHS["train"]), "beside": images.beside(clive, PHOTOGRAPHS["train"]),
        "pairs": images.distorted(clive, "train", PHOTOGRAPHS["train"], images.PAIRS, view=1),
    }  # fmt: skip
    options.measured.mkdir(parents=True, exist_ok=True)
    tables = {name: _measured(options.measured, name, examples) for name, examples in sources.items()}
    pairs = tables.pop("pairs")
    every = images.joined(list(tables.values()))
    learned, held = (every.only(every.split == split) for split in ("train", "validation"))
    alone, paired = fitting.alone(learned), fitting.paired(images.joined([learned, pairs]))
    arrays = alone.arrays() | paired.arrays()
    models = {kind: model_from(kind, arrays) for kind in ("nr", "fr")}
    expert = options.out / "program" / "expert"
    fitting.save_arrays(expert / MODEL_FILE, arrays)
    predicted = tool.write(
        learned, options.out / "program/tools/lite-r4.npz", options.out / "configs/calibration.json", clive, live
    )
    card = {
        "model": MODEL_FILE, "date": options.date, "notice": NOTICE, "data": figures.data_card(learned, paired.table),
        "figures": figures.figures(learned, held, alone, paired, models, predicted),
    }  # fmt: skip
    for name, value in ((PROVENANCE_FILE, card), (POPULATION_FILE, figures.population(learned, alone))):
        write_whole(expert / name, json.dumps(value, indent=1) + "\n")
    sys.stdout.write(json.dumps(card["figures"], indent=2) + "\n")
    return 0


def _measured(folder: Path, name: str, examples: "Iterator[Example]") -> "Table":
    """Measure examples in parts, each kept in the folder as it ends; parts that are there already are read.

    A part that is not full is the last one, so the images of parts that are all there are not made again.
    """
    from benchmarks.training.images import Table, joined, measured

    parts: list[Table] = []
    made = 0
    with progress(f"measuring {name}", None) as advance:
        while not parts or len(parts[-1].scores) == PART:
            file, missing = folder / f"{name}-{len(parts)}.npz", PART * len(parts) - made
            if not file.exists():
                made = PART * (len(parts) + 1)
                if not (part := list(islice(examples, missing, missing + PART))):
                    break
                table = measured(part)
                with whole_file(file) as partial, partial.open("wb") as stream:
                    np.savez(stream, **table._asdict())
            with np.load(file, allow_pickle=False) as kept:
                single = {name: kept[name].astype(np.float32) for name in ("spreads", "moved")}
                parts.append(Table(**{**kept, **single}))
            advance(len(parts[-1].scores))
    return joined(parts)


if __name__ == "__main__":
    sys.exit(main())
