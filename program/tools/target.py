"""What a tool measures: an image and its reference, or a box of them, averaged down where they are large."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from program.common.errors import ToolError
from program.images.refs import reduced_size, reduction, whole_pixels
from program.images.store import IMAGES, Box, ImageRef
from program.tools.registry import ToolSpec

__all__ = ("Target", "target_of")


@dataclass(frozen=True, slots=True)
class Target:
    """Images that suit a tool, which part of them, and how much averaged down."""

    image: ImageRef
    reference: ImageRef | None
    box: Box | None
    """The box asked for, grown to the tool's minimum size; None for the whole image."""
    factor: int
    at_most: int
    note: str | None
    """What is measured, where it is not the image as it is."""

    def pixels(self, ref: ImageRef) -> NDArray[np.uint8]:
        """Return the pixels to measure of the image or of the reference."""
        if self.box is None:
            return IMAGES.pixels(ref, at_most=self.at_most)
        return IMAGES.cut(ref, self.box, at_most=self.at_most)[0]


def target_of(
    spec: ToolSpec,
    image: ImageRef,
    reference: ImageRef | None,
    box: Box | None,
    *,
    reduce_above_px: int,
    resize_reference: bool,
) -> Target:
    """Return what to measure, nothing decoded. Raises ToolError where the pair or the size does not suit the tool."""
    notes = []
    if spec.mode == "NR":
        reference = None
    elif reference is None:
        raise ToolError(f"tool {spec.name!r}: needs a reference image; give one or use a no-reference tool")
    else:
        reference, note = _fitting(reference, image, resize=resize_reference)
        notes += [note] if note else []
    used = _grown(spec, image, box)
    width, height = (int(used[2] - used[0]), int(used[3] - used[1])) if used else (image.width, image.height)
    factor = reduction(width, height, reduce_above_px)
    if factor > 1:
        size = reduced_size(width, height, factor)
        if min(size) < spec.minimum_size_px:
            raise ToolError(
                f"tool {spec.name!r}: {image.name!r} is measured at {size[0]}x{size[1]}, it needs at least "
                f"{spec.minimum_size_px} pixels a side; raise tools.reduce_above_px or use another tool"
            )
        notes.append(f"measured at {size[0]}x{size[1]}, each pixel the mean of {factor}x{factor}")
    return Target(image, reference, used, factor, reduce_above_px, "; ".join(notes) or None)


def _fitting(reference: ImageRef, image: ImageRef, *, resize: bool) -> tuple[ImageRef, str | None]:
    """Return the reference at the image's size, and what was done to it."""
    original, size = (reference.width, reference.height), (image.width, image.height)
    if size == original:
        return reference, None
    if not resize:
        raise ToolError(
            f"reference {reference.name!r}: is {original[0]}x{original[1]}, image {image.name!r} is "
            f"{size[0]}x{size[1]}; give a reference of the same size, or set tools.resize_reference"
        )
    note = f"reference {reference.name!r} resampled from {original[0]}x{original[1]} to {size[0]}x{size[1]}"
    return IMAGES.resized(reference, *size), note


def _grown(spec: ToolSpec, image: ImageRef, box: Box | None) -> Box | None:
    """Return the box to measure; None for the whole image. Raises when the image is smaller than the tool's minimum."""
    if min(image.width, image.height) < spec.minimum_size_px:
        raise ToolError(
            f"tool {spec.name!r}: image {image.name!r} is {image.width}x{image.height}, it needs at least "
            f"{spec.minimum_size_px} pixels a side; use a larger image or another tool"
        )
    if box is None:
        return None
    used = whole_pixels(box, image.width, image.height, minimum_px=spec.minimum_size_px)
    return None if used == (0, 0, image.width, image.height) else used
