"""What a caller gives, checked: images as references, a question, options and boxes."""

from collections.abc import Mapping, Sequence

import dspy

from program.agent.query import DEFAULT_QUERY, read_query
from program.agent.state import AssessmentState
from program.common.errors import InputError
from program.common.settings import Settings
from program.images.store import HOST, IMAGES, Box, ImageRef, ImageSource

__all__ = ("fit_reference", "initial_state", "open_image")


def open_image(source: "ImageSource | dspy.Image", max_pixels: int) -> ImageRef:
    """Return a caller's image as a reference; ImageError, one line, for what cannot be read. Nothing is fetched."""
    if isinstance(source, ImageRef):  # keeps what the caller calls it
        return IMAGES.add(source)
    url = source if isinstance(source, str) else getattr(source, "url", None)
    if isinstance(url, str) and url.startswith(HOST):
        return IMAGES.find(url)
    return IMAGES.add(source.url if isinstance(source, dspy.Image) else source, max_pixels=max_pixels)


def fit_reference(
    reference: ImageRef | None, image: ImageRef, state: AssessmentState, *, resize: bool
) -> ImageRef | None:
    """Return a reference of the image's size, resampled and noted where that is asked for, for all stages alike."""
    if reference is None or (reference.width, reference.height) == (image.width, image.height):
        return reference
    sizes = f"{reference.width}x{reference.height}", f"{image.width}x{image.height}"
    if not resize:
        raise InputError(
            f"reference {reference.name!r}: is {sizes[0]}, image {image.name!r} is {sizes[1]}; "
            "give a reference of the same size, or set tools.resize_reference"
        )
    state.image_notes = [*state.image_notes, f"reference resampled from {sizes[0]} to {sizes[1]}"]
    return IMAGES.resized(reference, image.width, image.height)


def initial_state(
    query: str,
    image: ImageRef,
    reference: ImageRef | None,
    options: Mapping[str, str] | Sequence[str] | None,
    regions: Mapping[str, Box] | None,
    settings: Settings,
) -> AssessmentState:
    """Return the state that an assessment starts from. Raises InputError for a question or boxes of no use."""
    if not isinstance(query, str):
        raise InputError(f"query {query!r}: is no text; ask something, as {DEFAULT_QUERY!r}")
    if not query.strip():
        raise InputError(f"query {query!r}: is empty; ask something, as {DEFAULT_QUERY!r}")
    try:
        asked = read_query(query, options)
    except ValueError as error:
        raise InputError(str(error)) from error
    for name, box in (regions or {}).items():
        if fault := _fault_of_box(box, image.width, image.height):
            raise InputError(f"region {name!r}: box {tuple(box)} {fault}")
    return AssessmentState(
        query=query.strip(),
        image_path=image.name,
        image_notes=list(image.notes),
        reference_path=reference.name if reference else None,
        options=asked.options if options else None,
        regions={name: tuple(box) for name, box in regions.items()} if regions else None,
        max_replan_iterations=settings.assessment.max_replan_iterations,
    )


def _fault_of_box(box: Box, width: int, height: int) -> str | None:
    if len(box) != 4:
        return f"has {len(box)} numbers; give left, top, right, bottom in pixels"
    left, top, right, bottom = box
    if not (left < right and top < bottom):
        return "is empty; give left < right and top < bottom"
    if left < 0 or top < 0 or right > width or bottom > height:
        return f"passes the edge of the {width}x{height} image; keep it within (0, 0, {width}, {height})"
    return None
