"""Which picture of a group is the best, what becomes of the others, and why. Pure.

Two scores' intervals say little of two pictures of one shot: their errors are the same. So pictures of a group are
compared by what differs between them: detail at full size, the expert's severities, whether the subject is sharp,
clipped light, and how far the exposure lies from the group's middle. Each picture gets a sum of these merits, and a
logistic function of the difference of two sums is the probability that the first is the better picture.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from program.fusion.levels import nearest_level
from program.gallery.decisions import Decision, Decisions
from program.gallery.picture import Picture
from program.running.row import side_of_minimum

__all__ = ("MERITS", "Choosing", "choose", "merits")

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
"""What counts how much: a doubling of detail, of the odds of a sharp subject, of clipped light and of pixels, a stop
away from the group's middle exposure, and one level of each severity. In round figures, by bursts made of CLIVE's train
photographs, and the two of exposure by some of its and BIQ2021's validation ones."""
_LEAST_CLIPPED = 0.002
_NOTABLE = np.array([0.1 if name in {"highlights", "shadows"} else 0.4 for name in MERITS])
"""Differences of merits that a reason names: clipped light counts little, and is easily seen."""


class Choosing(NamedTuple):
    """How a person wants it."""

    keep: int = 1
    """Pictures of each group."""
    reject_below: float = 2.2
    sure: float = 0.8


def merits(group: Sequence[Picture]) -> NDArray[np.float64]:
    """Return the N x M merits of a group's pictures, in the order of `MERITS`; only their differences mean anything."""
    stops = np.array([_stops(picture) for picture in group])
    away = np.abs(stops - np.median(stops))
    found = [_merits_of(picture, _scale(picture, group), off) for picture, off in zip(group, away, strict=True)]
    return np.array([list(each.values()) for each in found])


def _stops(picture: Picture) -> float:
    """Return how bright a picture is, in stops of linear light."""
    return 2.2 * float(np.log2(picture.light + 0.02))


def _scale(picture: Picture, group: Sequence[Picture]) -> int:
    """Return at which scale a picture is about as large as the smallest of its group: details of one size compare."""
    smallest = min(max(each.width, each.height) for each in group)
    return max(0, round(float(np.log2(max(picture.width, picture.height, 1) / max(smallest, 1)))))


def _merits_of(picture: Picture, scale: int, away: float) -> dict[str, float]:
    harm = {name: weight * picture.severities.get(name, 0.0) for name, weight in _SEVERITY.items()}
    detail = picture.sharp[min(scale, len(picture.sharp) - 1)] if picture.sharp else 0.0
    detail -= 2 * float(np.log2(picture.light + 0.02))  # a brighter picture has larger differences
    subject = 0.5 if picture.subject is None else min(max(picture.subject, 0.02), 0.98)
    high, low = (
        _CLIPPED * float(np.log2((share or 0.0) + _LEAST_CLIPPED))
        for share in (picture.clipped_high, picture.clipped_low)
    )
    return {
        "sharp": _DETAIL * detail + _SUBJECT * float(special.logit(subject)) / float(np.log(2)) - harm["Blurs"],
        "exposure": -harm["Brightness change"] - _STOP * away, "highlights": -high, "shadows": -low,
        "noise": -harm["Noise"], "compression": -harm["Compression"],
        "pixels": _PIXELS * float(np.log2(max(picture.width * picture.height, 1))),
    }  # fmt: skip


def choose(
    pictures: Sequence[Picture], groups: Sequence[Sequence[int]], decisions: Decisions, choosing: Choosing
) -> list[Picture]:
    """Return the pictures with group, rank, verdict and reason; `groups` are of places, of two pictures or more.

    What a person decided stands before what was measured. The best of a group is never rejected but by a person.
    """
    chosen = list(pictures)
    mine = [decisions.of(picture.id, picture.sha256) or Decision(sha256="0" * 64) for picture in pictures]

    def first(group: Sequence[int]) -> tuple[str, str]:
        return min((pictures[place].taken_at or "~", pictures[place].id) for place in group)

    for number, group in enumerate(sorted(groups, key=first), 1):
        own = [pictures[place] for place in group]
        for at, found in enumerate(_of_group(own, [mine[place] for place in group], choosing)):
            chosen[group[at]] = own[at].model_copy(update={**found, "group": str(number)})
    together = {place for group in groups for place in group}
    for place, picture in enumerate(pictures):
        found = {} if place in together else _alone(picture, choosing)
        chosen[place] = _decided(chosen[place].model_copy(update=found), mine[place])
    return chosen


def _of_group(group: Sequence[Picture], mine: Sequence[Decision], choosing: Choosing) -> list[dict[str, object]]:
    """Return rank, verdict and reason of a group's pictures."""
    terms = merits(group)
    sums = terms.sum(axis=1)
    order = sorted(range(len(group)), key=lambda n: (not mine[n].best, -sums[n], group[n].id))
    open_ = [n for n in order if mine[n].verdict != "reject"]
    kept, best = open_[: choosing.keep], order[0]
    found: list[dict[str, object]] = [{} for _ in group]
    for rank, n in enumerate(order, 1):
        side = _side(group[n], choosing)
        if n == best:
            reason = _advantages(terms[n] - np.delete(terms, n, axis=0))
        else:
            reason = _lacks(terms[n] - terms[best], group[n], group[best])
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
        found[n] = {
            "rank": rank, "best_of_group": n == best, "verdict": verdict, "reason": reason,
            "suggested_rating": _rating(group[n], verdict),
        }  # fmt: skip
    return found


def _alone(picture: Picture, choosing: Choosing) -> dict[str, object]:
    """Return verdict and reason of a picture in no group."""
    if picture.score is None:
        return {"verdict": "look", "reason": picture.error or "it got no score"}
    side = _side(picture, choosing)
    verdict = {"above": "keep", "below": "reject", "not sure": "look"}[side]
    why = (picture.reasoning or "").strip()
    doubt = _doubt(picture, side)
    reason = why if side == "above" else f"{why} {doubt[:1].upper()}{doubt[1:]}.".lstrip()
    return {"verdict": verdict, "reason": reason, "suggested_rating": _rating(picture, verdict)}


def _decided(picture: Picture, mine: Decision) -> Picture:
    """Return a picture with what a person decided of it."""
    changes: dict[str, object] = {}
    if mine.verdict is not None:
        changes |= {
            "verdict": mine.verdict,
            "reason": f"your decision (the program: {picture.verdict}, {picture.reason})",
        }
    if mine.stars is not None:
        changes["user_rating"] = mine.stars
    return picture.model_copy(update=changes) if changes else picture


def _side(picture: Picture, choosing: Choosing) -> str:
    return "not sure" if picture.score is None else side_of_minimum(picture, choosing.reject_below, choosing.sure)


def _doubt(picture: Picture, side: str) -> str:
    if picture.score is None:
        return "it got no score"
    told = f"score {picture.score:.1f} of 5"
    if side == "below":
        return told
    return f"{told}, likely {picture.low or picture.score:.1f} to {picture.high or picture.score:.1f}"


def _rating(picture: Picture, verdict: str) -> int | None:
    return None if picture.score is None else 1 if verdict == "reject" else nearest_level(picture.score)


# Reasons


def _advantages(ahead: NDArray[np.float64]) -> str:
    """Say what the best of a group has before the N others, whose N x M merits lie so far behind."""
    counts = dict(zip(MERITS, (ahead > _NOTABLE).sum(axis=0).tolist(), strict=True))
    parts: list[str] = []
    for name, count in sorted(counts.items(), key=lambda each: -each[1]):
        if not count or len(parts) == 3:
            break
        parts.append(f"{MERITS[name][0]} than {_others(count, len(ahead))}" if name == "sharp" else MERITS[name][0])
    return "; ".join(parts) or f"about as good as {_others(len(ahead), len(ahead))}"


_NUMBERS = ("", "one", "two", "three", "four", "five", "six")


def _others(count: int, of: int) -> str:
    few, all_ = (_NUMBERS[number] if number < len(_NUMBERS) else str(number) for number in (count, of))
    others = "the other" if of == 1 else f"the other {all_}"
    return f"{few} of {others}" if count < of else others


def _lacks(apart: NDArray[np.float64], picture: Picture, best: Picture) -> str:
    """Say what a picture lacks beside the best of its group: M differences of merits."""
    names = [list(MERITS)[n] for n in np.argsort(apart) if apart[n] < -_NOTABLE[n]]
    tone = "darker" if picture.light < best.light else "brighter"
    words = [tone if name == "exposure" else MERITS[name][1] for name in names]
    return "; ".join(words[:3]) or "about as good as the best"
