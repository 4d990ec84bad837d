"""Tables of which of two images people prefer, made into scores within each split."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from data.manifest import Sample, fault_of
from data.releases import Release, Row
from data.tables import scan_rows
from data.votes import scores_of_votes
from program.common.errors import DataError
from program.common.files import named_in


def pairs(release: Release) -> Iterator[Sample]:
    """Read a table of pairs: `image`, `other`, `better`, and optionally `votes`, and `reference`, `group` of both.

    `better` is "image", "other", "tie", or the share of votes for `image`, 0..1. A sample has no score yet.
    """
    folder = release.root.resolve().parent
    names: dict[str, str] = {}
    content: dict[str, dict[str, Any]] = {}
    votes: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in _rows(release):
        a, b = (_end(row, column, folder, names) for column in ("image", "other"))
        if a == b:
            raise row.error(f"{a!r} is compared with itself; name two images")
        shared = {"group": row.cells.get("group"), "reference": row.cells.get("reference")}
        if any(content.setdefault(end, shared) != shared for end in (a, b)):
            raise row.error("an image had another reference or group in an earlier line; correct one of them")
        given = row.cells.get("votes")
        share, count = _share(row), 1.0 if given is None else row.number("votes", given)
        if count <= 0:
            raise row.error(f"votes {count:g}: give a number above 0")
        votes[a][b] += count * share
        votes[b][a] += count * (1 - share)
    for path, name in names.items():
        reference, group = content[name]["reference"], content[name]["group"]
        # Named as the table does, so that the splits are the same wherever it lies.
        group = next(str(each) for each in (group, reference, name) if each is not None)
        won = {f"{release.entry.name}/{other}": round(n, 6) for other, n in votes[name].items() if n}
        place = None if reference is None else named_in(folder, str(reference), None)
        yield Sample(
            id=f"{release.entry.name}/{name}", image=Path(path), reference=place, preferred_over=won, group=group
        )


def _rows(release: Release) -> Iterator[Row]:
    noun = "line" if release.root.suffix.casefold() in {".jsonl", ".csv", ".tsv", ".xlsx"} else "row"
    for number, cells in scan_rows(release.root, release.layout.columns):
        row = Row(release.root, f"{noun} {number}", {})
        if not isinstance(cells, dict):
            raise row.error(fault_of(cells) if isinstance(cells, Exception) else "is not an object; write it as {...}")
        yield row.with_cells(cells)


def score_within_splits(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield samples with a score on 1..5 from the votes inside their split; those with no such vote are left out.

    The score is `1 + 4 / (1 + exp(-0.6 s))` of the Bradley-Terry strength s: 3 for the mean of images that votes
    connect, 0.6 points a logit there. Holds all samples in memory. Raises DataError where no vote is inside a split.
    """
    by_split: defaultdict[str | None, dict[str, Sample]] = defaultdict(dict)
    for sample in samples:
        by_split[sample.split][sample.id] = sample
    inside = 0
    for members in by_split.values():
        won: dict[str, dict[str, float]] = {}
        for name, sample in members.items():
            votes = sample.preferred_over or {}
            won[name] = {other: count for other, count in votes.items() if other in members}
        for name, score in scores_of_votes(won).items():
            inside += 1
            yield members[name].model_copy(update={"mos": score, "preferred_over": won[name]})
    if not inside:
        raise DataError("pairs: none lies inside one split; give more pairs, or --fractions 0,0,1 to keep all")


def parts_apart(samples: Iterable[Sample]) -> dict[str, int]:
    """Return by split into how many parts its images fall, with no vote between them; only splits of several.

    Each part's strengths have a mean of 0 of their own, so that scores of two parts do not compare.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    members = list(samples)
    place = {sample.id: i for i, sample in enumerate(members)}
    votes = []
    for sample in members:
        votes += [(place[sample.id], place[other]) for other in sample.preferred_over or {}]
    graph = coo_matrix((np.ones(len(votes)), np.transpose(votes)), shape=(len(members), len(members)))
    one_of_each = dict(zip(connected_components(graph, directed=False)[1], members, strict=True))
    parts = Counter(str(sample.split) for sample in one_of_each.values())
    return {split: count for split, count in parts.items() if count > 1}


def _end(row: Row, column: str, folder: Path, names: dict[str, str]) -> str:
    """Return the name of one of a row's images; two spellings of one path are one image."""
    text = row.cells.get(column)
    if not isinstance(text, str) or not text.strip():
        raise row.error(f"has no {column!r}; give image, other and better (or --columns)")
    return names.setdefault(str(row.image(folder, text)), text)


def _share(row: Row) -> float:
    better = str(row.cells.get("better")).strip().casefold()
    with suppress(ValueError):
        share = {"image": 1.0, "other": 0.0, "tie": 0.5}.get(better)
        share = float(better) if share is None else share
        if 0 <= share <= 1:
            return share
    given = row.cells.get("better")
    raise row.error(f"better {given!r}: give image, other, tie, or the share of votes for image, 0..1")
