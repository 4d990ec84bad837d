"""What the expert looks at: an image (and its reference) with everything measured once, by content hash."""

import base64
import hashlib
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np

from program.cache import PlainCache
from program.decoding import READING_RULES
from program.errors import ImageError
from program.images import HOST, IMAGES, ImageRef
from program.lms.perceptual.features import FEATURE_NAMES, Measured, measure
from program.lms.perceptual.quality import (
    Belief,
    Evidence,
    QualityModel,
    Seen,
    believe,
    graded,
    load_model,
    look,
    weigh,
)
from program.lms.perceptual.reference import DIFFERENCE_NAMES, Difference, compare
from program.lms.perceptual.regression import Matrix
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
        self, key: tuple[str, str], measured: Measured, difference: Difference | None, size: tuple[int, int]
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
        return "flat" if self.measured.named["textured_share"] == 0 else None

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


_K = TypeVar("_K")
_V = TypeVar("_V")


class Recent(Generic[_K, _V]):
    """The values used last, up to a number of them. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit, self._lock = limit, threading.Lock()
        self._values: OrderedDict[_K, _V] = OrderedDict()

    def get(self, key: _K) -> _V | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: _K, value: _V) -> None:
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._limit:
                self._values.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._values.clear()


_EVIDENCE: Recent[tuple[tuple[tuple[str, str], float], ...], Evidence] = Recent(EVIDENCE_SETS)


def _evidence(demos: Sequence[tuple[View, float]]) -> Evidence:
    key = tuple((view.key, label) for view, label in demos)
    found = _EVIDENCE.get(key)
    if found is None:
        model = demos[0][0].model
        found = weigh(model, Seen.stacked([view.seen for view, _ in demos]), np.array([label for _, label in demos]))
        _EVIDENCE.put(key, found)
    return found


class Viewer:
    """Measures each image once per process, and once per machine when a folder is given. Thread-safe."""

    _memory: ClassVar[Recent[tuple[str, str], View]] = Recent(REMEMBERED)

    def __init__(self, folder: Path | None = None) -> None:
        """Keep measurements in `folder`, or in memory only."""
        self._folder = folder
        self._disk = PlainCache(folder) if folder is not None else None

    def view(self, image: Any, reference: Any = None) -> View:
        """Return the view of an input's image: a dspy.Image, reference URL, data URI, or an ImageRef."""
        ref = image_of(image)
        against = image_of(reference) if reference is not None else None
        key = (ref.sha256, against.sha256 if against else "")
        view = self._memory.get(key)
        if view is None:
            difference = self._difference(ref, against) if against else None
            view = View(key, self._measured(ref), difference, (ref.width, ref.height))
            self._memory.put(key, view)
        return view

    def _measured(self, ref: ImageRef) -> Measured:
        stored = self._stored(ref.sha256)
        if stored is not None:
            return Measured(*stored)
        found = measure(IMAGES.pixels(ref, at_most=LARGEST))
        self._store(ref.sha256, found.vector, found.maps)
        return found

    def _difference(self, ref: ImageRef, reference: ImageRef) -> Difference:
        key = f"{ref.sha256}/{reference.sha256}"
        stored = self._stored(key)
        if stored is not None:
            return Difference(*stored)
        found = compare(IMAGES.pixels(ref, at_most=LARGEST), IMAGES.pixels(reference, at_most=LARGEST))
        self._store(key, found.vector, found.maps)
        return found

    def _stored(self, key: str) -> tuple[Matrix, dict[str, list[list[float]]]] | None:
        if self._disk is None:
            return None
        value = self._disk.get(f"{_LAYOUT}/{key}")
        return None if value is None else (np.array(value["vector"], dtype=np.float64), value["maps"])

    def _store(self, key: str, vector: Matrix, maps: Mapping[str, Any]) -> None:
        if self._disk is not None:
            self._disk.set(f"{_LAYOUT}/{key}", {"vector": vector.tolist(), "maps": dict(maps)})


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
    raise ImageError(f"image {text[:60]!r}: not an image reference; give an image opened with program.images")
