"""Refit the perceptual expert from human-scored and generated images: `python -m program.expert.training.train`."""

import argparse
import datetime
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from program.common.files import write_whole

if TYPE_CHECKING:
    from program.expert.training.tables import Table
    from program.expert.training.teaching import Lessons

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


def main(argv: Sequence[str] | None = None) -> int:
    """Fit, write the model file with its provenance, and print the figures; exit code 0 or 2."""
    parser = argparse.ArgumentParser(prog="python -m program.expert.training.train", description=__doc__)
    parser.add_argument("--data-root", type=Path, required=True, help="folder with clive/ and live/")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1], help="folder for the model file")
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="date to write into the provenance")
    options = parser.parse_args(argv)
    for name in ("clive", "live"):
        manifest = options.data_root / name / "manifest.jsonl"
        if not manifest.is_file():
            sys.stderr.write(f"error: {str(manifest)!r}: no such file; give a folder with clive/ and live/\n")
            return 2
    # The last bits of a solution depend on how many threads share it.
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    from program.expert.store import MODEL_FILE, PROVENANCE_FILE
    from program.expert.training import codebooks, fitting, tables, teaching
    from program.expert.training.figures import figures

    manifests = [options.data_root / name / "manifest.jsonl" for name in ("clive", "live")]
    books = codebooks.learn_books(manifests)
    clive, live = (tables.scored_images(manifest, books) for manifest in manifests)
    sys.stdout.write(f"measured {len(clive.labels)} CLIVE and {len(live.labels)} LIVE images\n")
    made, greyed = (tables.generated_table(books, grey=grey) for grey in (False, True))
    quickstart = tables.quickstart_images(books)
    sys.stdout.write(f"generated {len(made.labels)}, {len(greyed.labels)} and {len(quickstart.labels)} images\n")
    lesson = teaching.lessons(manifests[0], books)
    sys.stdout.write(f"measured {len(lesson.vectors)} versions of CLIVE train photographs\n")
    arrays, settings, images = fitting.fit(clive, live, made, greyed, lesson, books)
    fitting.save_arrays(options.out / MODEL_FILE, arrays)
    provenance: dict[str, Any] = {
        "model": MODEL_FILE, "date": options.date, "notice": NOTICE, "settings": settings,
        "data": _data_card(clive, live, made, greyed, lesson),
    }  # fmt: skip
    _write(options.out / PROVENANCE_FILE, provenance)
    held = [teaching.distorted_images(manifests[0], books, split) for split in ("validation", "test")]
    scored = {"clive": clive, "live": live, "quickstart": quickstart, "distorted clive": held[0].joined(held[1])}
    provenance["figures"] = figures(arrays, settings, scored, images)
    _write(options.out / PROVENANCE_FILE, provenance)
    sys.stdout.write(json.dumps(provenance["figures"], indent=2) + "\n")
    return 0


def _data_card(clive: "Table", live: "Table", made: "Table", greyed: "Table", lesson: "Lessons") -> dict[str, str]:
    from program.expert.training.fitting import COMPARED

    own = f"{clive.count('train')} CLIVE and {live.count('train')} LIVE train images"
    return {
        "quality without reference": f"human scores of {own}; KADID-10k "
        "level means on the images generated for the distortion detectors; and what the model with reference says of "
        f"{int(lesson.distorted.sum())} distorted versions of CLIVE train images",
        "codebooks": f"patches of {own} and of generated images, without scores",
        "quality with reference": f"human scores of {live.count('train')} LIVE train images, and "
        f"KADID-10k level means on {COMPARED} of the images generated for the distortion detectors",
        "distortion detectors": f"{len(made.labels)} images generated from crops, mirrorings and scales of the "
        f"quickstart's train photographs (without reference {len(greyed.labels)} more, in greys); severity is 4.6 "
        "minus KADID-10k's mean score of that distortion and level. Without reference also "
        f"{int(lesson.distorted.sum())} distorted and {int((~lesson.distorted).sum())} undistorted versions of CLIVE "
        "train images, whose severities are what the detectors with reference say of them; "
        f"feature means, spreads and quantiles of {clive.count('train')} CLIVE train images, without their scores",
        "never used": "BIQ2021; validation and test splits (validation chose the settings)",
    }


def _write(path: Path, value: dict[str, Any]) -> None:
    write_whole(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
