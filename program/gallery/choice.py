"""Which pictures are of one shot, which is the best, and what a person decided.

Two pictures are the farther apart the more of their hashes' 256 bits differ (ImageHash's pHash,
Zauner 2010) and the smaller the cosine of their `appearance` is: a hash tells scenes of a kind
apart, the network forgives a moved camera, and their sum is right more often than either
(benchmarks/gallery_bursts.py). Pictures without times may lie as far apart as those of one burst
where one, moved over the other, shows the same. No picture joins a group unless it is near to all
others in it (complete linkage).

Two scores' intervals say little of two pictures of one shot: their errors are the same. So pictures
of a group are compared by what differs between them: detail at full size, the expert's severities,
whether the subject is sharp, clipped light, and how far the exposure lies from the group's middle.
Each picture gets a sum of these merits, and a logistic function of the difference of two sums is
the probability that the first is the better picture.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, product
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from data.decisions import KEPT_STARS, REJECTED, Decision, Decisions, Suggested
from program.fusion.levels import nearest_level
from program.gallery.picture import Picture
from program.images.stated import bursts
from program.images.store import overlap
from program.running.row import side_of_minimum

Grouping = Literal["auto", "time", "look", "off"]
_BITS = 256
_ALIKE, _IN_A_BURST, _APART = 0.77, 1.0, 0.6
"""Distances up to which two pictures are of one shot: by their look alone, taken within one burst,
and at other times (a copy, another version). On bursts of 60 of CLIVE's train photographs among 200
others."""
_SAME, _FARTHEST = 0.89, 4
"""Correlation from which a moved frame shows the same, and the farthest that it is moved, in pixels
of a frame: on shifted bursts of 20 of CLIVE's train photographs among 100 others, and of 15 of
BIQ2021's validation ones among 60."""
_ROWS = 512
_MOST = 4000
"""Pictures that are clustered together: the matrix of their distances takes 128 MB."""


def groups_of(pictures: Sequence[Picture], how: Grouping, gap_s: float) -> list[list[int]]:
    """Return the groups of two pictures and more, as places in `pictures`, in their order."""
    if how == "off" or len(pictures) < 2:
        return []
    burst = bursts([picture.time for picture in pictures], gap_s)
    if how == "time":
        return _members(np.where(burst < 0, -1 - np.arange(len(burst)), burst))
    if how == "look":
        burst = np.full(len(burst), -1)
    bits = np.stack([picture.bits for picture in pictures])
    vectors = np.stack([picture.vector for picture in pictures])
    frames = np.stack([picture.frame for picture in pictures], axis=-1).astype(np.float32)
    return _members(_labels(_Looks(bits, vectors, frames, burst)))


class _Looks(NamedTuple):
    """What N pictures are grouped by."""

    bits: NDArray[np.uint64]
    """N x 4."""
    vectors: NDArray[np.float32]
    """N x D."""
    frames: NDArray[np.float32]
    """24 x 24 x N."""
    burst: NDArray[np.intp]
    """-1 for a picture whose time is unknown."""

    def at(self, places: NDArray[np.intp] | slice) -> "_Looks":
        """Return some of them."""
        return _Looks(self.bits[places], self.vectors[places], self.frames[..., places], self.burst[places])


def _members(labels: NDArray[np.intp]) -> list[list[int]]:
    order = np.argsort(labels, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    return sorted(part.tolist() for part in parts if len(part) > 1)


def _labels(looks: _Looks) -> NDArray[np.intp]:
    """Return the number of each picture's cluster."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from sklearn.cluster import AgglomerativeClustering

    count = len(looks.bits)
    pairs = [np.concatenate(ends) for ends in zip(*_near(looks), strict=True)]
    linked = coo_array((np.ones(len(pairs[0]), bool), (pairs[0], pairs[1])), shape=(count, count))
    parts = connected_components(linked, directed=False)[1]
    labels, used = np.empty(count, dtype=np.intp), 0
    clustering = AgglomerativeClustering(None, metric="precomputed", linkage="complete", distance_threshold=1.0)
    for part in np.split(np.argsort(parts, kind="stable"), np.cumsum(np.bincount(parts))[:-1]):
        for first in range(0, len(part), _MOST):
            own = part[first : first + _MOST]
            clusters = np.zeros(len(own), dtype=np.intp)
            if len(own) > 1:
                clusters = clustering.fit_predict(_apart(looks.at(own), looks.at(own)))
            labels[own] = clusters + used
            used += int(clusters.max()) + 1
    return labels


def _near(looks: _Looks) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Yield the places of pictures that are near each other: the first, and the second."""
    for start in range(0, len(looks.bits), _ROWS):
        first, second = np.nonzero(_apart(looks.at(slice(start, start + _ROWS)), looks) < 1)
        yield first + start, second


def _apart(one: _Looks, two: _Looks) -> NDArray[np.float32]:
    """Return the N x M distances as shares of those up to which two pictures are of one shot."""
    hashes = np.zeros((len(one.bits), len(two.bits)), np.float32)
    for word in range(one.bits.shape[1]):
        hashes += np.bitwise_count(one.bits[:, word, None] ^ two.bits[None, :, word])
    apart = hashes / _BITS + np.maximum(1 - one.vectors @ two.vectors.T, 0)
    first, second = one.burst[:, None], two.burst[None]
    limits = np.where(first == second, np.float32(_IN_A_BURST), np.float32(_APART))
    timeless = (first < 0) | (second < 0)
    if timeless.any():
        limits[timeless] = np.where(_shows_the_same(one, two), np.float32(_IN_A_BURST), np.float32(_ALIKE))[timeless]
    return np.asarray(apart / limits, dtype=np.float32)


def _shows_the_same(one: _Looks, two: _Looks) -> NDArray[np.bool_]:
    """Return N x M: whether a frame moved over another correlates with it."""
    best = np.zeros((len(one.bits), len(two.bits)), np.float32)
    way = range(-_FARTHEST, _FARTHEST + 1)
    for shift in product(way, way):
        moved, still = (standard_frames(part) for part in overlap(shift, one.frames, two.frames))
        np.maximum(best, moved.T @ still, out=best)
    return best > _SAME


def standard_frames(frames: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return H x W x N frames as columns of mean 0 and length 1, flat ones of 0."""
    columns = frames.reshape(-1, frames.shape[-1])
    columns = columns - columns.mean(axis=0)
    return np.asarray(columns / np.maximum(np.linalg.norm(columns, axis=0), 1.0))


class Opinion(NamedTuple):
    """What a person says of a picture."""

    verdict: Literal["keep", "reject"] | None = None
    rating: int | None = None
    """1..5 stars, or -1 for a rejected picture."""
    best: bool = False


def opinion_of(picture: Picture, decision: Decision | None) -> Opinion:
    """Return what a person says of a picture: on the page, else by a rating beside it.

    The page's script has the same rule.
    """
    mine = decision or Decision(sha256=None)
    rating = picture.user_rating
    if mine.stars is not None:
        rating = mine.stars
    elif rating == REJECTED and (mine.verdict == "keep" or mine.best):
        rating = None
    rating = rating or None
    if picture.sha256 is None:  # it could not be read
        return Opinion(rating=rating)
    verdict = mine.verdict
    if verdict is None and rating is not None:
        if rating == REJECTED:
            verdict = "reject"
        elif rating >= KEPT_STARS:
            verdict = "keep"
    if verdict == "reject":
        rating = REJECTED
    return Opinion(verdict, rating, mine.best)


MERITS: Mapping[str, tuple[str, str]] = {
    "sharp": ("sharper", "softer"),
    "exposure": ("better exposed", "off in exposure"),
    "highlights": ("highlights held", "highlights clipped"),
    "shadows": ("shadows held", "shadows clipped"),
    "noise": ("less noise", "more noise"),
    "compression": ("less compressed", "more compressed"),
    "pixels": ("more pixels", "fewer pixels"),
}
"""What pictures of a group are compared by, in words for the better and the worse."""
_DETAIL, _SUBJECT, _CLIPPED, _PIXELS, _STOP = 1.5, 0.1, 0.05, 1.0, 5.0
_SEVERITY: Mapping[str, float] = {"Blurs": 1.0, "Brightness change": 4.0, "Noise": 4.0, "Compression": 8.0}
"""What counts how much: a doubling of detail, of the odds of a sharp subject, of clipped light and
of pixels, a stop away from the group's middle exposure, and one level of each severity. In round
figures, by bursts made of CLIVE's train photographs, and the two of exposure by some of its and
BIQ2021's validation ones."""
_LEAST_CLIPPED = 0.002
_NOTABLE = np.array(
    [{"highlights": 0.1, "shadows": 0.1, "noise": 0.75, "compression": 0.75}.get(name, 0.4) for name in MERITS]
)
"""Differences of merits that a reason names: clipped light counts little, and is easily seen; less
than a fifth of a level of noise or a tenth of compression is seen by nobody."""


class Choosing(NamedTuple):
    """How a person wants it."""

    keep: int = 1
    """Pictures of each group."""
    reject_below: float = 2.2
    sure: float = 0.8


def merits(group: Sequence[Picture]) -> NDArray[np.float64]:
    """Return the N x M merits of a group's pictures, as `MERITS`; only differences count."""
    stops = np.array([2.2 * float(np.log2(picture.light + 0.02)) for picture in group])  # of linear light
    away = np.abs(stops - np.median(stops))
    smallest = max(min(max(each.width, each.height) for each in group), 1)
    rows = [_merits_of(picture, smallest, off) for picture, off in zip(group, away, strict=True)]
    return np.array([list(each.values()) for each in rows])


def _merits_of(picture: Picture, smallest: int, away: float) -> dict[str, float]:
    # At the scale at which it is about as large as the smallest of its group: details of one size compare.
    scale = max(0, round(float(np.log2(max(picture.width, picture.height, 1) / smallest))))
    harm = {name: weight * picture.severities.get(name, 0.0) for name, weight in _SEVERITY.items()}
    detail = picture.sharp[min(scale, len(picture.sharp) - 1)] if picture.sharp else 0.0
    detail -= 2 * float(np.log2(picture.light + 0.02))  # a brighter picture has larger differences
    subject = 0.5 if picture.subject is None else min(max(picture.subject, 0.02), 0.98)
    high = _CLIPPED * float(np.log2((picture.clipped_high or 0.0) + _LEAST_CLIPPED))
    low = _CLIPPED * float(np.log2((picture.clipped_low or 0.0) + _LEAST_CLIPPED))
    return {
        "sharp": _DETAIL * detail + _SUBJECT * float(special.logit(subject)) / float(np.log(2)) - harm["Blurs"],
        "exposure": -harm["Brightness change"] - _STOP * away, "highlights": -high, "shadows": -low,
        "noise": -harm["Noise"], "compression": -harm["Compression"],
        "pixels": _PIXELS * float(np.log2(max(picture.width * picture.height, 1))),
    }  # fmt: skip


def choose(
    pictures: Sequence[Picture], groups: Sequence[Sequence[int]], decisions: Decisions, choosing: Choosing
) -> list[Picture]:
    """Return the pictures with group, rank, verdict and reason; `groups` are of places.

    What a person decided stands before what was measured. The best of a group is never rejected but
    by a person. What a person keeps of a group counts for none of the `Choosing.keep` pictures that
    are suggested.
    """
    chosen = list(pictures)
    mine = [opinion_of(picture, decisions.of(picture.id, picture.sha256)) for picture in pictures]

    in_time = sorted(groups, key=lambda group: min(pictures[place].moment for place in group))
    for number, group in enumerate(in_time, 1):
        own = [pictures[place] for place in group]
        suggested = _of_group(own, [Opinion()] * len(own), choosing)
        for at, changes in enumerate(_of_group(own, [mine[place] for place in group], choosing)):
            shown = {"group": str(number), "suggested": _suggested(suggested[at])}
            chosen[group[at]] = own[at].model_copy(update={**changes, **shown})
    together = set(chain.from_iterable(groups))
    for place, picture in enumerate(pictures):
        if place not in together:
            changes = _alone(picture, choosing)
            chosen[place] = picture.model_copy(update={**changes, "suggested": _suggested(changes)})
        chosen[place] = _decided(chosen[place], mine[place])
    return chosen


def _suggested(changes: Mapping[str, Any]) -> Suggested:
    best = bool(changes.get("best_of_group"))
    return Suggested(verdict=changes["verdict"], stars=changes.get("suggested_rating"), best=best)


def _of_group(group: Sequence[Picture], mine: Sequence[Opinion], choosing: Choosing) -> list[dict[str, object]]:
    """Return rank, verdict and reason of a group's pictures."""
    terms = merits(group)
    sums = terms.sum(axis=1)
    out = [each.verdict == "reject" for each in mine]
    order = sorted(range(len(group)), key=lambda n: (out[n], not mine[n].best, -sums[n], group[n].id))
    open_ = [n for n in order if not out[n]]
    kept, best = open_[: choosing.keep], order[0]
    changes: list[dict[str, object]] = [{} for _ in group]
    for rank, n in enumerate(order, 1):
        side = _side(group[n], choosing)
        if n == best:
            reason = _advantages(terms[n] - np.delete(terms, n, axis=0))
        else:
            reason = _lacks(terms[n] - terms[best], group[n], group[best])
            if n in kept:
                reason = f"among the best {len(kept)} of {len(group)}; {reason}"
        if n in kept:
            verdict = "keep" if side == "above" else "look"
        else:
            worse = float(special.expit(sums[best] - sums[n]))
            verdict = "reject" if n != best and (worse >= choosing.sure or side == "below") else "alternate"
        doubt = _doubt(group[n], side)
        if verdict == "look":
            reason = f"{doubt}; {reason}"
        elif side == "below":
            reason = f"{reason}; {doubt}"
        changes[n] = {
            "rank": rank, "best_of_group": n == best, "verdict": verdict, "reason": reason,
            "suggested_rating": _rating(group[n], verdict),
        }  # fmt: skip
    return changes


def _alone(picture: Picture, choosing: Choosing) -> dict[str, object]:
    """Return verdict and reason of a picture in no group."""
    if picture.score is None:
        return {"verdict": "look", "reason": picture.error or "it got no score"}
    side = _side(picture, choosing)
    verdict = {"above": "keep", "below": "reject", "not sure": "look"}[side]
    why = (picture.reasoning or "").strip()
    doubt = _doubt(picture, side)
    if verdict == "keep":  # with what is good first
        reason = f"Good enough: {picture.score:.1f}. {why}".rstrip()
    else:
        reason = f"{why} {doubt[:1].upper()}{doubt[1:]}.".lstrip()
    return {"verdict": verdict, "reason": reason, "suggested_rating": _rating(picture, verdict)}


def _decided(picture: Picture, mine: Opinion) -> Picture:
    """Return a picture with what a person says of it."""
    changes: dict[str, object] = {"user_rating": mine.rating, "stored_rating": picture.user_rating}
    if mine.rating != picture.user_rating:  # the mark is of the rating that was there
        changes["user_rating_confirms"] = None
    if mine.verdict is not None:
        changes |= {
            "verdict": mine.verdict,
            "program_said": (picture.verdict, picture.reason),
            "reason": f"your decision (the program: {picture.verdict}, {picture.reason})",
        }
    if mine.verdict == "keep":  # without stars of its own it passes a filter by stars, too
        changes["suggested_rating"] = max(_rating(picture, "keep") or 0, KEPT_STARS)
    return picture.model_copy(update=changes)


def _side(picture: Picture, choosing: Choosing) -> str:
    if picture.score is None:
        return "not sure"
    return side_of_minimum(picture, choosing.reject_below, choosing.sure)


def _doubt(picture: Picture, side: str) -> str:
    if picture.score is None:
        return "it got no score"
    if picture.not_judged:
        return "its score is a guess"
    text = f"score {picture.score:.1f} of 5"
    if side == "below":
        return text
    return f"{text}, likely {picture.low or picture.score:.1f} to {picture.high or picture.score:.1f}"


def _rating(picture: Picture, verdict: str) -> int | None:
    if picture.score is None or picture.not_judged:
        return None
    return 1 if verdict == "reject" else nearest_level(picture.score)


# Reasons


def _advantages(ahead: NDArray[np.float64]) -> str:
    """Say what the best of a group has before N others, N x M merits behind it."""
    counts = zip(MERITS, (ahead > _NOTABLE).sum(axis=0).tolist(), strict=True)
    parts = []
    for name, count in sorted(counts, key=lambda each: -each[1])[:3]:
        if name == "sharp" and count == len(ahead):
            parts.append(f"sharpest of {count + 1}")
        elif name == "sharp" and count:
            parts.append(f"sharper than {count} of {len(ahead)}")
        elif count:
            parts.append(MERITS[name][0])
    return "; ".join(parts) or "best of its group"


def _lacks(apart: NDArray[np.float64], picture: Picture, best: Picture) -> str:
    """Say what a picture lacks beside the best of its group: M differences of merits."""
    names = [list(MERITS)[n] for n in np.argsort(apart) if apart[n] < -_NOTABLE[n]]
    tone = "darker" if picture.light < best.light else "brighter"
    worse = {name: word for name, (_, word) in MERITS.items()} | {"exposure": tone}
    words = [worse[name] for name in names]
    return "; ".join(words[:3]) or "about as good as the best"
