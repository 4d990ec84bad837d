"""What the expert looks at: an image measured once, and its place among photographs."""

import base64
import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from threading import Condition
from typing import Any, Literal, TypeAlias

import numpy as np
from cachetools import LRUCache, cached
from numpy.typing import NDArray
from scipy import special

from program.common import give_back_memory
from program.common.cache import PlainCache
from program.common.errors import ImageError
from program.expert.judge.heads import lift_of, load_heads
from program.expert.judge.quality import OUTPUTS, SEVERITIES, Features, Model, QualityBelief, believe, load_model
from program.expert.measure.differences import DIFFERENCE_NAMES, reference_differences
from program.expert.measure.features import FEATURE_NAMES, Maps, measure, resample, textured_share, thirds
from program.expert.measure.naturalness import Numbers
from program.expert.measure.signs import SIGN_NAMES, power_spread, signs
from program.expert.store import MEASURED, POPULATION_FILE, Matrix, stored_table
from program.images.decoding import READING_RULES
from program.images.refs import SMALLEST
from program.images.store import HOST, IMAGES, LARGEST, ImageRef, overlap, shift_of
from program.tools import network
from program.tools.network import WEIGHTS_SHA256
from signatures.schemas import DISTORTION_CATEGORIES, DistortionCategory, Intention

REMEMBERED = 2048
"""Views kept in memory: about 75 KB each, so at most 155 MB."""
_ROOM_MB = 2048
"""On disk: 36 KB an image, so 50,000 images."""
_URL = re.compile(re.escape(HOST) + r"[0-9a-f]{64}\.[a-z]+")
_READ = (str(READING_RULES), WEIGHTS_SHA256, *FEATURE_NAMES, *DIFFERENCE_NAMES, *SIGN_NAMES)
_LAYOUT = hashlib.sha256("|".join(_READ).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Measurements:
    """An image's features, or its differences from a reference, by name: `measured["noise_all"]`."""

    vector: NDArray[np.float64]
    maps: Maps
    names: tuple[str, ...]
    """Of the values in the vector; shared, since names take ten times the memory of the values."""

    def __getitem__(self, name: str) -> float:
        return float(self.vector[self.names.index(name)])

    def by_name(self) -> dict[str, float]:
        """Return all values by name, for who reads several."""
        return dict(zip(self.names, self.vector.tolist(), strict=True))


_NO_SIGNS = Measurements(np.zeros(0), {}, ())
"""Of an image beside a reference."""


class View:
    """One image, alone or against its reference; derived values are computed on first use."""

    def __init__(
        self,
        key: tuple[str, str],
        measured: Measurements,
        size: tuple[int, int],
        vector: Matrix,
        difference: Measurements | None = None,
        signs: Measurements | None = None,
        cell: "Callable[[int], View] | None" = None,
    ) -> None:
        """Take the content hashes of image and reference ("" without one), and what was measured.

        `size` is width and height. `vector` is what the model reads of the image, or of its
        `difference` from the reference; of an image alone `signs` are those of faults, and `cell`
        measures one of its 3 x 3 parts as large as it is: 0 .. 8, row by row.
        """
        self.key, self.measured, self.size, self.difference = key, measured, size, difference
        self.cell, self.signs = cell, signs or _NO_SIGNS
        features = self.model.look(vector)
        # Of an image with nothing to judge by as little is known as of one unlike all others.
        if self.unjudged is not None:
            features = features._replace(novelty=np.ones(1))
        self.features = features
        """How the model sees it; every answer reads this."""
        self.shift = (0, 0)
        """How many pixels the image lies to the right and below its reference."""
        self.shared: View | None = None
        """Of a shifted image, the view of what both show, each pixel at its own place."""
        self.whole: View | None = None
        self.intended: frozenset[Intention] = frozenset()
        """Effects that are meant."""
        self.kind: str | None = None
        """What it is by a person's word."""
        self.is_part = False
        """Whether it is judged beside the whole that it was cut from."""
        self.own_quality = float(self.features.quality[0])
        """Its quality by its own pixels alone, of a part too."""

    def within(self, whole: "View") -> "View":
        """Return this view of a part of an image as it is judged beside the whole."""
        part = copy(self)
        for derived in ("prior", "judged"):
            part.__dict__.pop(derived, None)
        part.whole, part.is_part, part.cell = whole, True, None
        # As far as distorted images differ: beside the rest, as beside an original, damage shows.
        distorted = OUTPUTS["nr"].index("distorted")
        apart = self.features.values[:, distorted] - whole.features.values[:, distorted]
        quality = np.clip(whole.features.quality + apart, 1.0, 5.0)
        part.features = self.features._replace(quality=quality)
        return part

    def meant(self, intended: Iterable[Intention], kind: str | None) -> "View":
        """Return this view as a person describes it: with effects that are meant, and its kind if it is known."""
        effects = frozenset(intended)
        if not effects and kind is None:
            return self
        described = copy(self)
        described.__dict__.pop("prior", None)
        described.intended, described.kind = effects, kind
        return described

    @property
    def aligned(self) -> "View":
        """The view that damage is told by: a shift is none, though it changes every pixel."""
        return self.shared or self

    @cached_property
    def unjudged(self) -> Literal["small", "flat"] | None:
        """Why no distortion can be told: the image is too small, or has no texture anywhere."""
        if self.difference is not None:
            return None
        if min(self.size) < SMALLEST:
            return "small"
        return "flat" if self.measured["textured_share"] == 0 else None

    @property
    def model(self) -> Model:
        """The model that fits: with a reference or without."""
        return load_model("nr" if self.difference is None else "fr")

    @cached_property
    def severities(self) -> dict[DistortionCategory, float]:
        """How strong each distortion category is, 0 .. 4: how far it brings the score down."""
        if self.unjudged is not None:
            return dict.fromkeys(DISTORTION_CATEGORIES, 0.0)
        by_name = dict(zip(SEVERITIES, self.features.severities[0].tolist(), strict=True))
        return {category: by_name[category] for category in DISTORTION_CATEGORIES}

    @property
    def displaced(self) -> float:
        """How strong distortions of place are, 0 .. 4: parts moved, merged or covered."""
        return float(self.features.severities[0, SEVERITIES.index("spatial")])

    @property
    def numbers(self) -> Matrix:
        """The numbers of an image alone that the heads for faults compare with those of others."""
        maps = [np.ravel(cells) for _, cells in sorted(self.measured.maps.items())]
        return np.concatenate([self.measured.vector, self.signs.vector, *maps, self.features.values[0]])

    @cached_property
    def outputs(self) -> Matrix:
        """What the heads for faults give of an image alone."""
        return np.asarray(load_heads().values(self.features.points.astype(float), self.numbers[None])[0])

    @cached_property
    def judged(self) -> Features:
        """How the model sees it, with a score that effects which are meant do not lower."""
        whole = self.whole or self
        if whole.difference is not None or whole.unjudged is not None:
            return self.features
        return self.features._replace(quality=self.features.quality + lift_of(whole.outputs))

    @cached_property
    def prior(self) -> QualityBelief:
        """The quality believed in without labels."""
        return believe(self.model, self.judged)


VIEWS: LRUCache[tuple[str, str], View] = LRUCache(REMEMBERED)
"""The views looked at last, whichever viewer measured them."""


class Viewer:
    """Measures each image once per process, or once per machine with a folder. Thread-safe."""

    def __init__(self, cache_dir: Path | None = None) -> None:
        """Keep measurements under `cache_dir` (in a folder of their own), or in memory only."""
        self._disk: PlainCache | None = None
        if cache_dir is not None:
            self._disk = PlainCache(cache_dir / f"features-{MEASURED}", size_limit_mb=_ROOM_MB)

    def view(self, image: Any, reference: Any = None) -> View:
        """Return the view of a dspy.Image, reference URL, data URI, or an ImageRef."""
        if reference is not None:
            reference = image_of(reference)
        return self._view(image_of(image), reference)

    def part(self, crop: Any, whole: Any, reference: Any = None) -> View:
        """Return the view of a region: beside its part of a reference, or else beside the whole.

        All that is said of a region is said of this view.
        """
        if reference is not None:
            return self.view(crop, reference)
        return self.view(crop).within(self.view(whole))

    def features_and_signs(self, image: ImageRef) -> tuple[Measurements, Measurements]:
        """Return what is measured of an image without the network, and the signs of faults in it."""
        kept = self._kept(_readings_of(image.sha256, partial(_pixels, image))[:2])
        return _measurements(kept[0], FEATURE_NAMES), _measurements(kept[1], SIGN_NAMES)

    def evenness(self, image: ImageRef) -> tuple[float, float]:
        """Return the sign `power_spread` and the feature `textured_share` alone, in a tenth of the time of all."""
        pixels = _pixels(image)
        return power_spread(pixels), textured_share(pixels)

    @cached(
        VIEWS, key=lambda _, image, reference: _key_of(image, reference),
        condition=Condition(),  # two threads that judge one image measure it once
    )  # fmt: skip
    def _view(self, image: ImageRef, reference: ImageRef | None) -> View:
        if reference is None:
            return self._alone(image)
        key, size = _key_of(image, reference), (image.width, image.height)
        features_read, _, spreads_read = _readings_of(image.sha256, partial(_pixels, image))
        difference_read = "/".join(key), lambda: _plain(reference_differences(_pixels(image), _pixels(reference)))
        # Their difference before their spreads: with it the network reads both.
        read = [features_read, difference_read, spreads_read, _spreads_beside(reference, image)]
        features, apart, own, others = self._kept(read)
        measured, difference = _measurements(features, FEATURE_NAMES), _measurements(apart, DIFFERENCE_NAMES)
        change = _spreads(own)[0] - _spreads(others)[0]
        view = View(key, measured, size, np.concatenate([change, difference.vector]), difference)
        shift = shift_of(image, reference)
        if any(shift):
            view.shift, view.shared = shift, self._shared(view, image, reference, shift)
        return view

    def _alone(self, image: ImageRef) -> View:
        kept = self._kept(_readings_of(image.sha256, functools.cache(partial(_pixels, image))))
        size, cell = (image.width, image.height), partial(self._cell, image)
        return _view_of(_key_of(image, None), size, kept, cell)

    def _cell(self, image: ImageRef, at: int) -> View:
        """Return the view of one of an image's 3 x 3 parts, as many pixels as there are of it."""
        whole, (row, column) = _pixels(image), divmod(at, 3)
        rows, columns = thirds(*whole.shape[:2])
        pixels = np.ascontiguousarray(whole[rows[row], columns[column]])
        key = f"{image.sha256}/cell{at}"
        kept = self._kept(_readings_of(key, lambda: pixels))
        return _view_of((key, ""), (pixels.shape[1], pixels.shape[0]), kept)

    def _shared(self, view: View, image: ImageRef, reference: ImageRef, shift: tuple[int, int]) -> View:
        """Return the view of what a shifted image and its reference both show."""
        shared = overlap(shift, _pixels(image), _pixels(reference))
        key = f"{'/'.join(view.key)}/{shift}"
        (apart,) = self._kept([(key, lambda: _plain(reference_differences(*shared)))])
        difference = _measurements(apart, DIFFERENCE_NAMES)
        own, others = (network.spreads(pixels)[0] for pixels in shared)
        vector = np.concatenate([own - others, difference.vector])
        return View(view.key, view.measured, view.size, vector, difference)

    @classmethod
    def forget(cls) -> None:
        """Give back the memory of all views; one that is asked for again is read anew."""
        cls._view.cache_clear()
        give_back_memory()

    def _kept(self, readings: Sequence["_Reading"]) -> list[Any]:
        """Return what the folder holds under each key; what it lacks is worked out and kept there."""
        if self._disk is None:
            return [work() for _, work in readings]
        found = self._disk.get_all([f"{_LAYOUT}/{key}" for key, _ in readings])
        lacking = {}
        for key, work in readings:
            place = f"{_LAYOUT}/{key}"
            if place not in found:
                found[place] = lacking[place] = work()
        if lacking:
            self._disk.set_all(lacking)
        return [found[f"{_LAYOUT}/{key}"] for key, _ in readings]


_Reading: TypeAlias = tuple[str, Callable[[], Any]]
"""A key, and what works out the JSON value that is kept under it."""


def _readings_of(key: str, pixels: Callable[[], NDArray[np.uint8]]) -> list[_Reading]:
    """Return the readings of an image alone: its features, signs and spreads."""
    return [
        (key, lambda: _plain(measure(pixels()))),
        (f"signs/{key}", lambda: _plain(signs(pixels()))),
        (f"spreads/{key}", lambda: _packed_spreads(pixels())),
    ]


def _plain(measured: tuple[Numbers, Maps]) -> dict[str, Any]:
    numbers, maps = measured
    return {"vector": list(numbers.values()), "maps": maps}


def _measurements(kept: Mapping[str, Any], names: tuple[str, ...]) -> Measurements:
    return Measurements(np.array(kept["vector"], dtype=np.float64), kept["maps"], names)


def _spreads_beside(reference: ImageRef, image: ImageRef) -> _Reading:
    """Return the reading of what the network makes of a reference, at the size of its image."""
    key = f"spreads/{reference.sha256}"
    if (reference.width, reference.height) != (image.width, image.height):
        key += f"/{image.width}x{image.height}"
    return key, lambda: _packed_spreads(resample(_pixels(reference), _pixels(image)))


def _packed_spreads(pixels: NDArray[np.uint8]) -> str:
    # In half precision, 48 KB an image, as those that the model was fitted on.
    return base64.b64encode(network.spreads(pixels).astype("<f2").tobytes()).decode()


def _view_of(
    key: tuple[str, str], size: tuple[int, int], kept: Sequence[Any], cell: Callable[[int], View] | None = None
) -> View:
    """Return the view of pixels alone from their features, signs and spreads, as they are kept."""
    measured, marks = _measurements(kept[0], FEATURE_NAMES), _measurements(kept[1], SIGN_NAMES)
    vector = np.concatenate([_spreads(kept[2]).ravel(), measured.vector])
    return View(key, measured, size, vector, signs=marks, cell=cell)


def _spreads(kept: str) -> Matrix:
    return np.frombuffer(base64.b64decode(kept), "<f2").astype(float).reshape(2, -1)


def _pixels(image: ImageRef) -> NDArray[np.uint8]:
    return IMAGES.pixels(image, at_most=LARGEST)


def _key_of(image: ImageRef, reference: ImageRef | None) -> tuple[str, str]:
    if reference is None:
        return image.sha256, ""
    return image.sha256, reference.sha256


def image_of(value: Any) -> ImageRef:
    """Return the image an input stands for; ImageError when it holds none that can be read here."""
    if isinstance(value, ImageRef):
        return value
    text = str(getattr(value, "url", value))
    if match := _URL.search(text):
        return IMAGES.find(match[0])
    if data := re.search(r"data:image/[\w.+-]+;base64,([A-Za-z0-9+/=\s]+)", text):
        return IMAGES.add(base64.b64decode(data[1]))
    raise ImageError(
        f"image {text[:60]!r}: not an image reference; give an image opened with program.images.store"
    )  # fmt: skip


_PROJECTED = 128
"""Random directions in place of some 18,000 measurements: distances stay within about a tenth
(Johnson & Lindenstrauss 1984)."""
_USUAL = 1.92
"""Median squared distance of the standardised measurements of two of BIQ2021's train
photographs."""
_QUALITY_SHARE = 0.3
"""What a squared difference of one level between the qualities that the expert sees counts, of a
usual distance. Mean label of the 16 nearest of BIQ2021's 400 train photographs, on its 200
validation ones: SRCC .689, RMSE .535 without; .740, .467 with .3; .1 to 1 hardly differ."""
WIDTH = _PROJECTED + 1


def likeness(view: "View") -> NDArray[np.float16]:
    """Return `WIDTH` numbers, close (Euclid) for images that look alike."""
    projected = view.features.points[0] @ _directions(view.features.points.shape[1])
    quality = np.sqrt(_QUALITY_SHARE * _USUAL) * view.own_quality
    return np.append(projected, quality).astype(np.float16)


def damage(view: "View") -> NDArray[np.float16]:
    """Return how strong each of `SEVERITIES` is, 0 .. 4: close for images damaged alike."""
    return np.asarray(view.features.severities[0], dtype=np.float16)


_LATE = 4608
"""Filters of the network's last four blocks: they tell what is shown rather than how well."""
_APPEARANCE_WIDTH = 192


def appearance(view: "View") -> NDArray[np.float16]:
    """Return a unit vector of what an image alone shows: cosines are 1 for one scene, else about 0.

    Blur, exposure and small shifts change it little (`benchmarks/gallery_bursts.py`).
    """
    points, ends = view.features.points[0], (network.SPREADS, 2 * network.SPREADS)
    shown = np.concatenate([points[end - _LATE : end] for end in ends])
    projected = shown @ _directions(len(shown), _APPEARANCE_WIDTH)
    return np.asarray(projected / max(float(np.linalg.norm(projected)), 1e-9), dtype=np.float16)


@functools.lru_cache(maxsize=4)
def _directions(count: int, kept: int = _PROJECTED) -> Matrix:
    # RandomState's stream never changes between versions: saved vectors stay comparable.
    drawn = np.random.RandomState(0).standard_normal((count, kept))
    return np.asarray(drawn / np.sqrt(kept), dtype=np.float32)


_EDGE = 0.02
"""Positions stay this far from 0 and 1 when they are added up: an odd image must not outvote
others."""

PROPERTIES: Mapping[str, Mapping[str, float]] = stored_table("words.yaml")["properties"]
"""What is read straight from one measurement, and what each adds up."""
COMPOSITES: Mapping[str, Mapping[str, float]] = stored_table("words.yaml")["composites"]
"""What questions ask after, and the properties whose positions each adds up."""


def probit(share: float) -> float:
    """Return the normal deviate of a share, which is first clipped to 0.02 .. 0.98."""
    return float(special.ndtri(min(max(share, _EDGE), 1 - _EDGE)))


def population() -> Mapping[str, Sequence[float]]:
    """Return each property's values at 0, 5 .. 100 per cent of natural photographs."""
    return dict(stored_table(POPULATION_FILE)["quantiles"])


def share_below(value: float, quantiles: Sequence[float]) -> float:
    """Return the share of the population below a value; in a run of equal quantiles its middle.

    >>> share_below(2.0, [0.0, 0.0, 0.0, 2.0, 4.0]), share_below(0.0, [0.0, 0.0, 0.0, 2.0, 4.0])
    (0.75, 0.25)
    """
    at = np.linspace(0, 1, len(quantiles))
    spread = np.asarray(quantiles, dtype=float)
    equal = spread == value
    if equal.any():
        return float(at[equal].mean())
    return float(np.interp(value, spread, at))


def reading(view: View, name: str) -> float:
    """Return one of `PROPERTIES` of an image."""
    judged: dict[Any, float] = {"quality": view.prior.mean, **view.severities}
    total = 0.0
    for source, weight in PROPERTIES[name].items():
        value = judged[source] if source in judged else view.measured[source]
        total += weight * value
    return total


def composite(view: View, name: str, quantiles: Mapping[str, Sequence[float]]) -> float:
    """Return a composite's sum of normal deviates, before it is placed."""
    total = 0.0
    for part, weight in COMPOSITES[name].items():
        total += weight * probit(share_below(reading(view, part), quantiles[part]))
    return total


def position(view: View, name: str) -> float:
    """Return where an image stands among natural photographs in one of `COMPOSITES`: 0 .. 1."""
    known = population()
    return share_below(composite(view, name, known), known[f"sum of {name}"])
