"""Where an image is good and where it is not: the expert's score of every part, as numbers and as a picture."""

import numpy as np
from PIL import Image

from program.common.errors import InputError
from program.expert.judge.faults import FAULTS, fault_map
from program.expert.judge.views import View, Viewer
from program.expert.store import Matrix
from program.images.store import IMAGES, ImageRef
from signatures.schemas import CATEGORY_WORDS, DistortionCategory, category_of

__all__ = ("TILE", "heatmap", "overlay", "quality_map")

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
