"""The ratings that photographs have in their files and sidecars, as labels."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from data.decisions import KEPT_STARS, REJECTED, preferred, scores_in_burst
from data.manifest import Sample
from program.common.errors import InputError
from program.common.files import leads_out, read_bounded
from program.common.request import Request
from program.images.decode_worker import tags_bounded
from program.images.decoding import MAX_PIXELS
from program.images.stated import stated_beside, stated_by, taken_at

_MOST_BYTES = 2**30


class Photograph(NamedTuple):
    """What a photograph's file and sidecars state."""

    id: str
    image: Path
    sha256: str
    taken_at: str | None
    rating: int
    """A person's own: stars 1..5, 0 for none, -1 for a rejected one."""
    picked: bool
    differs: bool
    """Whether the file states another rating than the sidecar."""
    is_suggested: bool
    """Whether it has no rating but what a gallery suggested."""

    @property
    def standing(self) -> str | None:
        """What it says of the picture's place in its burst."""
        if self.rating == REJECTED:
            return "reject"
        return "keep" if self.picked or self.rating >= KEPT_STARS else None


def read_photograph(request: Request, folder: Path) -> Photograph:
    """Read a photograph below `folder`. Raises InputError where it or its sidecar cannot be read."""
    path = request.image
    if not isinstance(path, Path):
        raise InputError(str(request.error))
    if leads_out(path, folder):
        raise InputError(f"image {request.id!r}: is a link out of the folder; put a copy in its place")
    beside = stated_beside(path, folder)
    try:
        data = read_bounded(path, _MOST_BYTES)
    except OSError as error:
        fault = f"cannot be read ({error.strerror}); check its permissions"
        raise InputError(f"image {request.id!r}: {fault}") from error
    tags, packet = tags_bounded(data, MAX_PIXELS)
    inside = stated_by(tags, packet)
    newest = beside if beside.rating else inside
    rating = 0 if newest.is_suggested else newest.rating or 0
    differs = bool(rating) and inside.rating not in {None, 0, rating}
    return Photograph(
        request.id, path, hashlib.sha256(data).hexdigest(), taken_at(tags),
        rating=rating, picked=beside.picked or inside.picked, differs=differs,
        is_suggested=not rating and (beside.is_suggested or inside.is_suggested),
    )  # fmt: skip


def labelled(photographs: Sequence[Photograph], burst_of: dict[str, str], rejects_as: float | None) -> list[Sample]:
    """Return the photographs with a score: their stars, or what the pairs of their burst say.

    `rejects_as` is the score of each rejected one; None: it has none but by pairs.
    """
    scores = {each.id: float(each.rating) for each in photographs if each.rating > 0}
    if rejects_as is not None:
        scores |= {each.id: rejects_as for each in photographs if each.rating == REJECTED}
    standing: defaultdict[str, dict[str, str | None]] = defaultdict(dict)
    for each in photographs:
        standing[burst_of[each.id]][each.id] = each.standing
    pairs: dict[str, dict[str, float]] = {}
    for burst in standing.values():
        won: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for better, worse in preferred(burst):
            won[better][worse] = 1.0
        if won:
            scores |= scores_in_burst(won, scores)
            pairs |= won
    return [
        Sample(
            id=each.id, image=each.image.absolute(), mos=scores[each.id], preferred_over=pairs.get(each.id),
            group=burst_of[each.id], metadata={"sha256": each.sha256, "labels": "person"},
        )
        for each in photographs if each.id in scores
    ]  # fmt: skip


def counts_of(photographs: Sequence[Photograph], samples: Sequence[Sample], burst_of: dict[str, str]) -> dict[str, Any]:
    """Return how many photographs have which rating, and what became of them."""
    ratings, sizes = Counter(each.rating for each in photographs), Counter(burst_of.values())
    return {
        "photographs": len(photographs), "labels": len(samples), "stars": {n: ratings[n] for n in range(1, 6)},
        "rejected": ratings[REJECTED], "picked": sum(each.picked for each in photographs),
        "suggested": sum(each.is_suggested and not each.picked for each in photographs),
        "unrated": sum(not (each.rating or each.picked or each.is_suggested) for each in photographs),
        "bursts": sum(size > 1 for size in sizes.values()),
        "pairs": sum(len(sample.preferred_over or {}) for sample in samples),
        "differ": sum(each.differs for each in photographs),
    }  # fmt: skip
