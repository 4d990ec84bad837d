"""What people say besides scores, and how often a program agrees: the better of two images, and the faults they saw."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from data.manifest import read_manifest
from program.common.errors import InputError
from program.common.files import Place, named_in
from program.evaluation.intervals import CONFIDENCE, MIN_GROUPS, Figure, wilson
from program.evaluation.metrics import agreements, mean
from program.evaluation.record import LabelledRow

Pair = tuple[LabelledRow, LabelledRow]
"""The image that more people preferred, and the other."""

_NORMAL = float(special.ndtri((1 + CONFIDENCE) / 2))


def preference(rows: Sequence[LabelledRow]) -> Figure:
    """Return the share of pairs that a program orders as most people do; equal scores earn half a point.

    Pairs without a majority are left out. Its interval is Wilson's for as many independent pairs as would have the
    share's variance. `asked` counts pairs that hold a failed sample, too.
    """
    pairs = _pairs(rows)
    used = [pair for pair in pairs if all(row.counts for row in pair)]
    earned, ends = _earned(used), _Ends.of(used)
    value, size = mean(earned), len(used)
    low = high = float("nan")
    if size > 1:
        # Where all are right or wrong there is no spread to go by: a photograph counts once.
        spread = _variance(earned, ends)
        independent = value * (1 - value) / spread if spread else len(set(chain(*ends.names))) / 2
        low, high = wilson(value, min(size, independent))
    return ends.figure(value, low, high, "Wilson score interval").of(len(pairs))


def preference_gain(before: Sequence[LabelledRow], after: Sequence[LabelledRow]) -> Figure:
    """Return `after - before` of the share with its paired interval, over rows of the same samples that all count."""
    old, new = _pairs(before), _pairs(after)
    change = _earned(new) - _earned(old)
    value, ends = mean(change), _Ends.of(old)
    reach = _NORMAL * math.sqrt(_variance(change, ends)) if len(old) > 1 else float("nan")
    low, high = np.clip([value - reach, value + reach], -1, 1)
    return ends.figure(value, low, high, "paired,")


@dataclass(frozen=True)
class _Ends:
    """What each pair lies between: two photographs, or images where photographs are too few to tell their spread."""

    names: tuple[tuple[str, ...], ...]
    photographs: int
    note: str

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> "_Ends":
        groups, images = ({getattr(row, of) for pair in pairs for row in pair} for of in ("group", "id"))
        few = len(groups) < min(MIN_GROUPS, len(images))
        note = f" (descriptive: only {len(groups)} photograph{'s' * (len(groups) != 1)})" if few else ""
        names = (tuple(sorted({row.id if few else row.group for row in pair})) for pair in pairs)
        return cls(tuple(names), len(groups), note)

    def figure(self, value: float, low: float, high: float, how: str) -> Figure:
        unit = "an image" if self.note else "a photograph"
        method = f"{how} over pairs, those that share {unit} going together{self.note}"
        size, reason = len(self.names), None if self.names else "no pair of images that both got a score"
        return Figure(value=value, low=low, high=high, n=size, groups=self.photographs, method=method, reason=reason)


def _pairs(rows: Sequence[LabelledRow]) -> list[Pair]:
    """Return the pairs with a majority, in the order of their ids, so that the order of the data changes nothing."""
    by_id = {row.id: row for row in rows}
    pairs = []
    for _, row in sorted(by_id.items()):
        for name, votes in sorted((row.preferred_over or {}).items()):
            other = by_id.get(name)
            if other is not None and votes > (other.preferred_over or {}).get(row.id, 0.0):
                pairs.append((row, other))
    return pairs


def _earned(pairs: Sequence[Pair]) -> NDArray[np.float64]:
    gaps = [float(better.predicted or 0) - float(other.predicted or 0) for better, other in pairs]
    return agreements(np.ones(len(gaps)), gaps)


def _variance(values: NDArray[np.float64], ends: _Ends) -> float:
    """Return the variance of the mean of a number for each pair, so that 1.96 deviations reach as far as Student's."""
    by_end: defaultdict[str, float] = defaultdict(float)
    by_both: defaultdict[tuple[str, ...], float] = defaultdict(float)
    left = values - values.mean()
    for value, names in zip(left.tolist(), ends.names, strict=True):
        for name in names:
            by_end[name] += value
        # Pairs of the same two were counted with each of them.
        by_both[names] += value * (len(names) > 1)
    together = sum(v * v for v in by_end.values()) - sum(v * v for v in by_both.values())
    free = max(1, len(by_end) - 2)  # two of them make an independent pair
    widened = max(together * len(by_end) / free, float(left @ left)) / values.size**2
    return float(widened * (special.stdtrit(free, (1 + CONFIDENCE) / 2) / _NORMAL) ** 2)


LINES = {
    "main": "main fault named first", "found": "moderate and strong faults found",
    "right": "named faults that are there", "clean": "clean pictures with an invented fault",
    "silent": "faulty pictures with nothing named",
}  # fmt: skip


class Annotated(NamedTuple):
    """One picture as somebody saw it."""

    id: str
    image: Place
    strengths: Mapping[str, str]
    """Fault -> slight, moderate or strong."""
    main: str | None


def read_annotations(file: Path) -> list[Annotated]:
    """Return the pictures of a JSONL file with lines {"id", "faults": [{"fault", "strength"}], "main"}.

    A line names its "image" beside the file, or its id stands in a manifest.jsonl of a folder next to the file's.
    Raises InputError for lines that hold none of this.
    """
    try:
        records = [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise InputError(
            f"file {str(file)!r}: cannot be read as JSON lines ({error}); give annotated faults"
        ) from error
    images = _images(file) if any("image" not in record for record in records) else {}
    pictures = []
    for number, record in enumerate(records, 1):
        try:
            image = named_in(file.parent, record["image"], None) if "image" in record else images[record["id"]]
            strengths = {fault["fault"]: fault["strength"] for fault in record["faults"]}
            pictures.append(Annotated(record["id"], image, strengths, record["main"]))
        except (KeyError, TypeError) as error:
            raise InputError(
                f"file {str(file)!r}: line {number} has no {error}; give id, faults, main and an image, or the id of a "
                "manifest in a folder next to it"
            ) from error
    if not pictures:
        raise InputError(f"file {str(file)!r}: is empty; give a line for each picture")
    return pictures


def _images(file: Path) -> dict[str, Path]:
    manifests = sorted(file.resolve().parent.parent.glob("*/manifest.jsonl"))
    return {sample.id: Path(str(sample.image)) for manifest in manifests for sample in read_manifest(manifest)}


def reason_figures(
    pictures: Sequence[Annotated], name: Callable[[Annotated], Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """Return each of `LINES` as share, interval and number, with the best constant answer's share.

    `name` says which faults are named of a picture, the worst first. The constant answer names the fault that is most
    often the worst.
    """
    mains = Counter(picture.main for picture in pictures if picture.main)
    usual = [fault for fault, _ in mains.most_common(1)]
    ours = _hits(pictures, [name(picture) for picture in pictures])
    constant = _hits(pictures, [usual] * len(pictures))
    figures = {}
    for key in LINES:
        hits = ours[key]
        if hits:
            share = sum(hits) / len(hits)
            low, high = wilson(share, len(hits))
            of_constant = sum(constant[key]) / len(constant[key]) if constant[key] else None
            figures[key] = {
                "share": share, "low": low, "high": high, "n": len(hits), "right": sum(hits), "constant": of_constant,
            }  # fmt: skip
    return figures


def _hits(pictures: Sequence[Annotated], named: Sequence[Sequence[str]]) -> dict[str, list[bool]]:
    hits: dict[str, list[bool]] = defaultdict(list)
    for picture, faults in zip(pictures, named, strict=True):
        strong = [fault for fault, strength in picture.strengths.items() if strength in {"moderate", "strong"}]
        if picture.main:
            hits["main"].append(list(faults[:1]) == [picture.main])
        hits["found"] += [fault in faults for fault in strong]
        hits["right"] += [fault in picture.strengths for fault in faults]
        if not picture.strengths:
            hits["clean"].append(bool(faults))
        if strong:
            hits["silent"].append(not faults)
    return hits


def reasons_text(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the figures as lines of text."""
    lines = [f"{'':42}{'share':>7}  {'95 %':14}{'of':>12}  constant answer"]
    for key, of in figures.items():
        beside = "" if of["constant"] is None else f"{of['constant']:.2f}"
        span, count = f"{of['low']:.2f} to {of['high']:.2f}", f"{of['right']} of {of['n']}"
        lines.append(f"{LINES[key]:42}{of['share']:7.2f}  {span:14}{count:>12}  {beside}")
    return "\n".join(lines) + "\n"
