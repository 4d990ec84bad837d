"""Tables of which of two images people prefer, made into scores within each split."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from data.manifest import Sample
from data.own import rows_of
from data.releases import Release, Row
from program.common.errors import DataError
from program.common.files import named_in

_PRIOR_SD = 2.0
"""Of strengths in logits: an image that won every vote stays finite. Scores of LIVE In the Wild spread by 1.3."""

_POINTS_PER_LOGIT = 0.6
"""By Thurstone's case V, one logit is sqrt(2) s / 1.702 points; single opinions of LIVE In the Wild spread by s = 0.77
points of 1..5 on average."""


def pairs(release: Release) -> Iterator[Sample]:
    """Read a table of pairs: `image`, `other`, `better`, and optionally `votes`, and `reference`, `group` of both.

    `better` is "image", "other", "tie", or the share of votes for `image`, 0..1. A sample has no score yet.
    """
    folder = release.root.resolve().parent
    names: dict[str, str] = {}
    content: dict[str, dict[str, Any]] = {}
    votes: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows_of(release.root, release.columns):
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
        won = {name: {k: n for k, n in (s.preferred_over or {}).items() if k in members} for name, s in members.items()}
        for name, strength in fit_strengths(won, prior_sd=_PRIOR_SD).items():
            score = 1 + 4 / (1 + np.exp(-_POINTS_PER_LOGIT * strength))
            inside += 1
            yield members[name].model_copy(update={"mos": round(float(score), 4), "preferred_over": won[name]})
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
    votes = np.array([(place[s.id], place[other]) for s in members for other in s.preferred_over or {}])
    graph = coo_matrix((np.ones(len(votes)), votes.T), shape=(len(members), len(members)))
    one_of_each = dict(zip(connected_components(graph, directed=False)[1], members, strict=True))
    return {split: n for split, n in Counter(str(s.split) for s in one_of_each.values()).items() if n > 1}


def fit_strengths(won: Mapping[str, Mapping[str, float]], *, prior_sd: float = float("inf")) -> dict[str, float]:
    """Return the Bradley-Terry strength of each name that has a vote, in logits, of mean 0: P(a beats b) = s(a - b).

    `won[a][b]` is the number of votes for a over b, s the logistic function; a tie is half a vote for each. With
    `prior_sd` strengths have a normal prior around 0, without one a name that won every vote has no finite strength.
    Source: Bradley & Terry 1952, Biometrika 39; as a logistic regression Agresti 2013, 11.6.

    >>> {name: round(s, 2) for name, s in fit_strengths({"a": {"b": 3}, "b": {"a": 1}}).items()}  # ln 3 apart
    {'a': 0.55, 'b': -0.55}
    """
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression

    votes = [(a, b, n) for a, row in sorted(won.items()) for b, n in sorted(row.items()) if n]
    if not votes:
        return {}
    place = {name: i for i, name in enumerate(sorted({name for *ends, _ in votes for name in ends}))}
    columns = np.array([[place[a], place[b]] for a, b, _ in votes]).ravel()
    signs, starts = np.tile([1.0, -1.0], len(votes)), np.arange(0, columns.size + 1, 2)
    design = sparse.csr_matrix((signs, columns, starts), shape=(len(votes), len(place)))
    # Each vote stands twice, mirrored, with half its weight: a regression asks for both outcomes.
    model = LogisticRegression(C=prior_sd**2, fit_intercept=False, tol=1e-8, max_iter=10_000)
    outcomes, weights = np.repeat([1, 0], len(votes)), np.tile([n / 2 for *_, n in votes], 2)
    strengths = model.fit(sparse.vstack([design, -design]), outcomes, weights).coef_[0]
    return {name: float(strengths[i] - strengths.mean()) for name, i in place.items()}


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
