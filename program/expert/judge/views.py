"""What the expert looks at: an image (and its reference) with everything measured once, by content hash."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
from cachetools import LRUCache, cached

from program.common.cache import PlainCache
from program.common.errors import ImageError
from program.expert.judge.models import QualityModel, load_model
from program.expert.judge.quality import Belief, Evidence, Seen, believe, graded, look, weigh
from program.expert.measure.features import FEATURE_NAMES, FEATURE_PLACES, measure
from program.expert.measure.measurement import Measurement
from program.expert.measure.reference import DIFFERENCE_NAMES, DIFFERENCE_PLACES, compare
from program.expert.store import Matrix
from program.images.decoding import READING_RULES
from program.images.store import HOST, IMAGES, ImageRef
from signatures.schemas import DISTORTION_CATEGORIES, DistortionCategory

__all__ = ("View", "Viewer", "image_of")

REMEMBERED = 4096
"""Views kept in memory: 20 to 40 KB each, so at most 160 MB."""
LARGEST = 2**23
"""Pixels of an image that is measured as it is; larger ones are averaged down first, so that memory stays bounded."""
EVIDENCE_SETS = 32
"""Sets of demos kept worked out: about 5 KB a demo, so 5 MB for sets of 32."""
SMALLEST = 32
"""Pixels of a shorter side from which sharpness is judged: two of the blocks that detail is measured in."""
_DETAIL: tuple[DistortionCategory, ...] = ("Blurs", "Sharpness")
_URL = re.compile(re.escape(HOST) + r"[0-9a-f]{64}\.[a-z]+")
_LAYOUT = hashlib.sha256("|".join((str(READING_RULES), *FEATURE_NAMES, *DIFFERENCE_NAMES)).encode()).hexdigest()[:12]


class View:
    """One image, alone or against its reference; derived values are computed on first use."""

    def __init__(
        self, key: tuple[str, str], measured: Measurement, difference: Measurement | None, size: tuple[int, int]
    ) -> None:
        """Take the content hashes of image and reference ("" without one), what was measured, and width and height."""
        self.key, self.measured, self.difference, self.size = key, measured, difference, size

    @cached_property
    def unjudged(self) -> Literal["small", "flat"] | None:
        """Why nothing can be said of sharpness, if so: the image is too small, or no block of it has any texture."""
        if self.difference is not None:
            return None
        if min(self.size) < SMALLEST:
            return "small"
        return "flat" if self.measured["textured_share"] == 0 else None

    @property
    def model(self) -> QualityModel:
        """The models that fit: with a reference or without."""
        return load_model("nr" if self.difference is None else "fr")

    @property
    def vector(self) -> Matrix:
        """The features that the models read."""
        return self.measured.vector if self.difference is None else self.difference.vector

    @cached_property
    def seen(self) -> Seen:
        """How the model sees it; every later answer reads this instead of the training data."""
        return look(self.model, self.vector)

    @property
    def severities(self) -> dict[DistortionCategory, float]:
        """How strong each distortion category is, 0 .. 4."""
        return self._by_category(self.tilt[:7])

    @cached_property
    def grades(self) -> dict[DistortionCategory, float]:
        """How strong each is in people's eyes, 0 .. 4: the severities, the strongest judged with the quality."""
        return self._by_category(graded(self.model, self.seen)[0])

    def _by_category(self, values: Matrix) -> dict[DistortionCategory, float]:
        found = dict(zip(DISTORTION_CATEGORIES, values.tolist(), strict=True))
        return found if self.unjudged is None else found | dict.fromkeys(_DETAIL, 0.0)

    @property
    def tilt(self) -> Matrix:
        """The detector's whole output, one row."""
        return np.asarray(self.seen.severities[0])

    @cached_property
    def prior(self) -> Belief:
        """The quality believed in without any demo."""
        return believe(self.model, self.seen)

    def belief(self, demos: "Sequence[tuple[View, float]]") -> Belief:
        """Return the quality believed in after demos of the same kind (all or none with a reference), each labelled."""
        return believe(self.model, self.seen, _evidence(demos)) if demos else self.prior


@cached(
    LRUCache(EVIDENCE_SETS), key=lambda demos: tuple((view.key, label) for view, label in demos), lock=Lock()
)  # fmt: skip
def _evidence(demos: Sequence[tuple[View, float]]) -> Evidence:
    labels = np.array([label for _, label in demos])
    return weigh(demos[0][0].model, Seen.stacked([view.seen for view, _ in demos]), labels)


VIEWS: LRUCache[tuple[str, str], View] = LRUCache(REMEMBERED)
"""The views looked at last, whichever viewer measured them."""


class Viewer:
    """Measures each image once per process, and once per machine when a folder is given. Thread-safe."""

    def __init__(self, folder: Path | None = None) -> None:
        """Keep measurements in `folder`, or in memory only."""
        self._disk = PlainCache(folder) if folder is not None else None

    def view(self, image: Any, reference: Any = None) -> View:
        """Return the view of an input's image: a dspy.Image, reference URL, data URI, or an ImageRef."""
        return self._view(image_of(image), image_of(reference) if reference is not None else None)

    @cached(
        VIEWS, key=lambda _, image, reference: (image.sha256, reference.sha256 if reference else ""), lock=Lock()
    )  # fmt: skip
    def _view(self, image: ImageRef, reference: ImageRef | None) -> View:
        def pixels(ref: ImageRef) -> Any:
            return IMAGES.pixels(ref, at_most=LARGEST)

        measured = self._kept(image.sha256, FEATURE_PLACES, lambda: measure(pixels(image)))
        key, size = (image.sha256, reference.sha256 if reference else ""), (image.width, image.height)
        if reference is None:
            return View(key, measured, None, size)
        difference = self._kept("/".join(key), DIFFERENCE_PLACES, lambda: compare(pixels(image), pixels(reference)))
        return View(key, measured, difference, size)

    def _kept(self, key: str, places: Mapping[str, int], work: Callable[[], Measurement]) -> Measurement:
        """Return what the folder holds of an image or a pair, or else work it out and keep it there."""
        if self._disk is None:
            return work()
        value = self._disk.get(f"{_LAYOUT}/{key}")
        if value is not None:
            return Measurement(np.array(value["vector"], dtype=np.float64), value["maps"], places)
        measurement = work()
        self._disk.set(f"{_LAYOUT}/{key}", {"vector": measurement.vector.tolist(), "maps": measurement.maps})
        return measurement


def image_of(value: Any) -> ImageRef:
    """Return the image an input stands for; ImageError when it holds none that can be read here."""
    if isinstance(value, ImageRef):
        return value
    if isinstance(value, Mapping):
        value = value.get("url") or value.get("image_url") or json.dumps(dict(value), default=str)
    text = str(getattr(value, "url", value))
    match = _URL.search(text)
    if match:
        return IMAGES.find(match[0])
    data = re.search(r"data:image/[\w.+-]+;base64,([A-Za-z0-9+/=\s]+)", text)
    if data:
        return IMAGES.add(base64.b64decode(data[1]))
    raise ImageError(f"image {text[:60]!r}: not an image reference; give an image opened with program.images.store")
