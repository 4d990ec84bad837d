"""What is shown to a model: inputs and demos, with references to images or the images themselves."""

from typing import Any

import dspy

from program.common.backends import ImageLimits
from program.images.store import HOST, IMAGES, ImageRef
from program.lms.dspy_private import CUSTOM_TYPE_START_IDENTIFIER
from program.lms.wire_images import encoded_image

__all__ = ("clean", "inline", "inline_demo", "is_complete", "with_references")


def clean(value: Any) -> Any:
    """Return an input as it may be sent: references for images, text without DSPy's image marker."""
    if isinstance(value, ImageRef):
        return dspy.Image(value.url)
    if isinstance(value, str):
        # DSPy expands this marker to an image even inside plain text: a question must not be able to fetch one.
        return value.replace(CUSTOM_TYPE_START_IDENTIFIER, "")
    if isinstance(value, list):
        return [clean(item) for item in value]
    if isinstance(value, dict):
        return {clean(name): clean(item) for name, item in value.items()}
    return value


def is_complete(demo: Any, signature: type[dspy.Signature]) -> bool:
    """Return whether a demo answers every output and shows an image wherever the question does."""
    images = [n for n in signature.input_fields if n in {"image", "reference"}]
    return all(demo.get(name) is not None for name in [*signature.output_fields, *images])


def inline(value: Any, limits: ImageLimits) -> Any:
    """Return an input with the images themselves in place of references, for a model that knows none."""
    if isinstance(value, list):
        return [inline(item, limits) for item in value]
    if isinstance(value, dict):
        return {name: inline(item, limits) for name, item in value.items()}
    url = value if isinstance(value, str) else getattr(value, "url", None)
    if isinstance(url, str) and url.startswith(HOST):
        return dspy.Image(encoded_image(IMAGES.find(url), limits).data_uri)
    return value


def inline_demo(demo: Any, limits: ImageLimits) -> dict[str, Any]:
    """Return a demo with its images themselves."""
    return {name: inline(value, limits) if name in {"image", "reference"} else value for name, value in demo.items()}


def with_references(demo: Any) -> Any:
    """Return a demo with references in place of images that are given as data URIs."""
    urls = {name: getattr(demo.get(name), "url", demo.get(name)) for name in ("image", "reference")}
    given = {name: url for name, url in urls.items() if isinstance(url, str) and url.startswith("data:")}
    return {**demo, **{name: dspy.Image(IMAGES.add(url).url) for name, url in given.items()}} if given else demo
