"""The quality believed in after demos and a rubric, and of every part: as numbers and as a picture."""

from collections.abc import Sequence
from threading import Lock

import numpy as np
from cachetools import LRUCache, cached
from PIL import Image

from program.common.errors import InputError
from program.expert.judge.faults import KINDS, fault_map, kind_of
from program.expert.judge.quality import Belief, Evidence, Features, believe, most_telling, weigh
from program.expert.judge.views import View, Viewer, population, reading, share_below
from program.expert.store import Matrix
from program.images.store import IMAGES, ImageRef
from signatures.rubric import PLAIN, TRAITS, Rubric, rubric_in
from signatures.schemas import CATEGORY_WORDS, FAULTS, DistortionCategory, category_of

__all__ = ("EVIDENCE_SETS", "TILE", "belief", "heatmap", "overlay", "properties_of", "quality_map", "telling")


EVIDENCE_SETS = 32
"""Sets of demos kept worked out: about 75 KB a demo, so 75 MB for sets of 32."""


def belief(
    view: View, demos: Sequence[tuple[View, float]] = (), instructions: str = "",
    moved: tuple[float, float] = (0.0, 1.0),
) -> Belief:  # fmt: skip
    """Return the quality believed in after demos of the same kind (all or none with a reference), each labelled.

    The rubric in the instructions and what the image is `moved` by (see `believe`) go before the demos: these correct
    what both leave.
    """
    rubric = rubric_in(instructions)
    seen = _seen(view, rubric)
    if view.difference is None and not KINDS[kind_of(view)]:  # people scored photographs
        seen = seen._replace(novelty=np.ones(1))
    return believe(view.model, seen, _evidence(demos, instructions if rubric else "") if demos else None, moved)


def telling(labelled: Sequence[tuple[View, float]], count: int, seed: int, instructions: str = "") -> tuple[int, ...]:
    """Return the places of the `count` labelled images, fewer than all, that as demos say most of the others."""
    rubric = rubric_in(instructions)
    labels = np.array([label for _, label in labelled])
    return most_telling([_seen(view, rubric) for view, _ in labelled], labels, count, np.random.default_rng(seed))


def properties_of(view: View) -> dict[str, float]:
    """Return where an image stands among natural photographs in each of the rubric's `TRAITS`, 0 .. 1."""
    known = population()
    return {name: share_below(reading(view, name), known[name]) for name in TRAITS}


def _seen(view: View, rubric: Rubric) -> Features:
    if rubric is PLAIN:
        return view.seen
    traits = properties_of(view) if rubric.likes else {}
    return view.seen._replace(quality=rubric.judged(view.seen.quality, view.severities, traits))


@cached(
    LRUCache(EVIDENCE_SETS), lock=Lock(),
    key=lambda demos, instructions: (instructions, *((view.key, label) for view, label in demos)),
)  # fmt: skip
def _evidence(demos: Sequence[tuple[View, float]], instructions: str) -> Evidence:
    rubric = rubric_in(instructions)
    return weigh(demos[0][0].model, [_seen(view, rubric) for view, _ in demos], np.array([label for _, label in demos]))


TILE, STEP = 1 / 3, 1 / 6
"""Side of a tile and distance to the next, in sides of the image: five by five tiles that overlap by half."""
_LEAST = 64
"""A tile's least side in pixels; smaller ones are not judged."""
_STRENGTH = 0.55


def heatmap(
    image: ImageRef, reference: ImageRef | None = None, distortion: str | None = None, step: float = STEP
) -> Image.Image:
    """Return an image in grey with red where its parts score below 4; see `quality_map` and, of a fault, `fault_map`.

    Raises InputError for a word that names no distortion and no fault.
    """
    if distortion is not None and distortion in FAULTS and reference is None:
        return overlay(image, fault_map(Viewer().view(image), distortion))
    category = category_of(distortion) if distortion else None
    if distortion and category is None:
        raise InputError(f"distortion {distortion!r}: unknown; name one of {', '.join(CATEGORY_WORDS.values())}")
    return overlay(image, quality_map(image, reference, category, step))


def quality_map(
    image: ImageRef, reference: ImageRef | None = None, distortion: DistortionCategory | None = None, step: float = STEP
) -> Matrix:
    """Return the score 1..5 of each tile, row by row: 5 x 5, or 1 x 1 of an image too small for tiles.

    Of a `distortion` alone: 4 less what it takes from the score there. `step` is the distance of tiles.
    """
    width, height, viewer = image.width, image.height, Viewer()

    def read(view: View) -> float:
        return view.prior.mean if distortion is None else 4 - view.severities[distortion]

    if TILE * min(width, height) < _LEAST:
        return np.array([[read(viewer.view(image, reference))]])
    starts, whole = np.arange(0, 1 - TILE + 1e-9, step), None if reference else viewer.view(image)

    def score(top: float, left: float) -> float:
        box = (left * width, top * height, (left + TILE) * width, (top + TILE) * height)
        with IMAGES.borrowing():
            tile, original = IMAGES.cropped(image, box), IMAGES.cropped(reference, box) if reference else None
            view = viewer.view(tile, original)
            return read(view.within(whole) if whole else view)

    return np.array([[score(top, left) for left in starts] for top in starts])


def overlay(image: ImageRef, scores: Matrix) -> Image.Image:
    """Return the image in grey, reddened where the map is low: clear at 4 and above, full at 1."""
    pixels = Image.fromarray(IMAGES.pixels(image))
    loss = np.clip((4.0 - scores) / 3.0, 0.0, 1.0)
    mask = Image.fromarray(np.uint8(255 * _STRENGTH * loss)).resize(pixels.size, Image.Resampling.BICUBIC)
    return Image.composite(Image.new("RGB", pixels.size, (214, 40, 40)), pixels.convert("L").convert("RGB"), mask)
