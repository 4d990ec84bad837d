"""Public datasets, read from their official release layout into samples; readers stream and open no image."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import TypeAlias

from data import readers_hub as hub
from data import readers_questions as questions
from data import readers_scores as scores
from data.catalogue import entry_of
from data.manifest import KEYS, Sample
from data.pairs import pairs
from data.release import Release
from program.common.errors import DataError, did_you_mean
from program.common.offered import offered
from program.common.places import path_mend

__all__ = ("READERS", "Reader", "load")

Reader: TypeAlias = Callable[[Release], Iterator[Sample]]

READERS: Mapping[str, Reader] = {
    "tid2013": scores.tid2013,
    "kadid10k": scores.kadid10k,
    "live": scores.live,
    "csiq": scores.csiq,
    "pipal": scores.pipal,
    "clive": scores.clive,
    "bid": scores.bid,
    "koniq10k": scores.koniq10k,
    "spaq": scores.spaq,
    "agiqa3k": scores.agiqa3k,
    "biq2021": scores.biq2021,
    "qbench-dev": partial(questions.qbench, part="dev", split="validation"),
    "qbench-test": partial(questions.qbench, part="test", split="test"),
    "agenticiqa-eval": questions.agenticiqa_eval,
    "table": questions.table,
    "huggingface": hub.huggingface,
    "pairs": pairs,
}

FIELDS = (*(name for name in KEYS if name != "metadata"), "question_type", *ascii_uppercase,
          "other", "better", "votes")  # fmt: skip
"""What a column can be named as: the manifest's keys, the type of a question, options by letter, and a pair's."""

logger = logging.getLogger(__name__)


def load(
    name: str,
    root: Path | str,
    *,
    columns: Mapping[str, str] | None = None,
    mos_range: tuple[float, float] | None = None,
    higher_is_better: bool | None = None,
    images: Path = Path("images"),
    on_missing: Callable[[Path], None] | None = None,
) -> Iterator[Sample]:
    """Yield the samples of a dataset's release at `root`.

    `columns`, `mos_range` and `higher_is_better` are for "table" and "huggingface", `columns` for "pairs" too; `images`
    takes the images that "huggingface" holds as bytes. A file that a label names and the release lacks raises
    DataError, or, with `on_missing`, is passed to it and left out. Raises DataError for an unknown name or a release
    that is not in its documented layout.
    """
    entry = entry_of(name)
    if not entry.verified:
        logger.warning("dataset %s: its layout is not verified (%s)", name, entry.layout)
    scaled = mos_range is not None or higher_is_better is not None
    if name not in {"table", "huggingface"} and (scaled or (columns and name != "pairs")):
        raise DataError(f"dataset {name!r}: has columns and a scale of its own; leave --columns and --mos-range away")
    for field, column in (columns or {}).items():
        if field not in FIELDS:
            raise DataError(f"--columns {field}={column}: {field!r} is no field{did_you_mean(field, FIELDS)}")
    release = Release(entry, Path(os.path.expanduser(root)), columns or {}, mos_range, higher_is_better, images)
    if name != "huggingface" and not release.root.exists():
        raise DataError(f"dataset {name!r}: there is no {str(release.root)!r}; get it from {entry.source}")
    readers = READERS if name in READERS else offered("datasets", lambda _, offer: offer["read"])
    for sample in readers[name](release):
        if (missing := sample.missing_file) is None:
            yield sample
        elif on_missing is None:
            raise DataError(
                f"dataset {name!r}: {sample.id!r} needs {str(missing)!r}, which is not there; "
                f"{path_mend(missing, 'unpack the whole release')}, or leave such lines out with --allow-missing"
            )
        else:
            on_missing(Path(missing))
