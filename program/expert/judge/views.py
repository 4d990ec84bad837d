"""What the expert looks at: an image with everything measured once, its place among photographs, and its likeness."""

import base64
import functools
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from threading import Condition
from typing import Any, Literal

import numpy as np
from cachetools import LRUCache, cached
from numpy.typing import NDArray
from scipy import special

from program.common import give_back_memory
from program.common.cache import PlainCache
from program.common.errors import ImageError
from program.expert.judge.quality import OUTPUTS, SEVERITIES, Belief, Model, believe, load_model
from program.expert.measure.features import DIFFERENCE_NAMES, FEATURE_NAMES, measure, reference_differences, resample
from program.expert.measure.measures import Maps, Named
from program.expert.measure.signs import SIGN_NAMES, signs
from program.expert.store import MEASURED, POPULATION_FILE, Matrix, stored_table
from program.images.decoding import READING_RULES
from program.images.refs import SMALLEST
from program.images.store import HOST, IMAGES, LARGEST, ImageRef, overlap, shift_of
from program.tools import network
from program.tools.network import WEIGHTS_SHA256
from signatures.schemas import DISTORTION_CATEGORIES, DistortionCategory

REMEMBERED = 2048
"""Views kept in memory: about 75 KB each, so at most 155 MB."""
_ROOM_MB = 2048
"""On disk: 36 KB an image, so 50,000 images."""
_URL = re.compile(re.escape(HOST) + r"[0-9a-f]{64}\.[a-z]+")
_READ = (str(READING_RULES), WEIGHTS_SHA256, *FEATURE_NAMES, *DIFFERENCE_NAMES, *SIGN_NAMES)
_LAYOUT = hashlib.sha256("|".join(_READ).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Measurement:
    """An image's features, or its differences from a reference; `measurement["noise_all"]` is one of them."""

    vector: NDArray[np.float64]
    maps: Maps
    names: tuple[str, ...]
    """Of the values in the vector; shared where many are kept, since names take ten times the memory of the values."""

    def __getitem__(self, name: str) -> float:
        return float(self.vector[self.names.index(name)])


class View:
    """One image, alone or against its reference; derived values are computed on first use."""

    def __init__(
        self, key: tuple[str, str], measured: Measurement, size: tuple[int, int], vector: Matrix,
        difference: Measurement | None = None, signs: Callable[[], Measurement] | None = None,
    ) -> None:  # fmt: skip
        """Take the content hashes of image and reference ("" without one), what was measured, width and height.

        `vector` is what the model reads of the image, or of its `difference` from the reference; `signs` measures those
        of faults, of an image alone.
        """
        self.key, self.measured, self.size, self.difference = key, measured, size, difference
        self._signs = signs
        seen = self.model.look(vector)
        # Of an image that shows nothing to judge by, as little is known as of one unlike all others.
        self.seen = seen if self.unjudged is None else seen._replace(novelty=np.ones(1))
        """How the model sees it; every answer reads this."""
        self.shift = (0, 0)
        """How many pixels the image lies to the right and below its reference."""
        self.shared: View | None = None
        """Of a shifted image, the view of what both show, each pixel at its own place."""
        self.is_part = False
        """Whether it is judged beside the whole that it was cut from."""
        self.own_quality = float(self.seen.quality[0])
        """Its quality by its own pixels alone, of a part too: what is found in a part does not depend on the rest."""

    def within(self, whole: "View") -> "View":
        """Return this view of a part of an image as it is judged beside the whole."""
        part = copy(self)
        part.__dict__.pop("prior", None)
        part.is_part = True
        # By as much as a distorted image differs from another: beside the rest, as beside an original, damage shows.
        distorted = OUTPUTS["nr"].index("distorted")
        apart = self.seen.values[:, distorted] - whole.seen.values[:, distorted]
        part.seen = self.seen._replace(quality=np.clip(whole.seen.quality + apart, 1.0, 5.0))
        return part

    @property
    def aligned(self) -> "View":
        """The view that damage is told by: a shift is none, though it changes every pixel."""
        return self.shared or self

    @cached_property
    def unjudged(self) -> Literal["small", "flat"] | None:
        """Why no distortion can be told, if so: the image is too small, or no block of it has any texture."""
        if self.difference is not None:
            return None
        if min(self.size) < SMALLEST:
            return "small"
        return "flat" if self.measured["textured_share"] == 0 else None

    @cached_property
    def signs(self) -> Measurement:
        """The signs of faults, measured on first use; only without a reference."""
        if self._signs is None:
            raise ValueError("an image beside a reference has no signs; look at it alone")
        return self._signs()

    @property
    def model(self) -> Model:
        """The model that fits: with a reference or without."""
        return load_model("nr" if self.difference is None else "fr")

    @cached_property
    def severities(self) -> dict[DistortionCategory, float]:
        """How strong each distortion category is, 0 .. 4: how far it brings the score down."""
        if self.unjudged is not None:
            return dict.fromkeys(DISTORTION_CATEGORIES, 0.0)
        return dict(zip(DISTORTION_CATEGORIES, self.seen.severities[0].tolist(), strict=False))

    @property
    def displaced(self) -> float:
        """How strong distortions of place are, likewise: parts moved, merged or covered; only with a reference."""
        return float(self.seen.severities[0, SEVERITIES.index("spatial")])

    @cached_property
    def prior(self) -> Belief:
        """The quality believed in without labels."""
        return believe(self.model, self.seen)


VIEWS: LRUCache[tuple[str, str], View] = LRUCache(REMEMBERED)
"""The views looked at last, whichever viewer measured them."""


class Viewer:
    """Measures each image once per process, and once per machine when a folder is given. Thread-safe."""

    def __init__(self, cache_dir: Path | None = None) -> None:
        """Keep measurements under `cache_dir` (in a folder of their own), or in memory only."""
        folder = cache_dir and cache_dir / f"features-{MEASURED}"
        self._disk = PlainCache(folder, size_limit_mb=_ROOM_MB) if folder is not None else None

    def view(self, image: Any, reference: Any = None) -> View:
        """Return the view of an input's image: a dspy.Image, reference URL, data URI, or an ImageRef."""
        return self._view(image_of(image), image_of(reference) if reference is not None else None)

    @cached(
        VIEWS, key=lambda _, image, reference: (image.sha256, reference.sha256 if reference else ""),
        condition=Condition(),  # two threads that judge one image measure it once
    )  # fmt: skip
    def _view(self, image: ImageRef, reference: ImageRef | None) -> View:
        def measurement(work: Callable[[], tuple[Named, Maps]], names: tuple[str, ...], key: str) -> Measurement:
            value = self._kept(key, lambda: {"vector": [*(found := work())[0].values()], "maps": found[1]})
            return Measurement(np.array(value["vector"], dtype=np.float64), value["maps"], names)

        def spreads(ref: ImageRef) -> Matrix:
            # In half precision, 48 KB an image, as those that the model was fitted on.
            def reading() -> str:
                shown = resample(pixels(ref), pixels(image))
                return base64.b64encode(network.spreads(shown).astype("<f2").tobytes()).decode()

            at = "" if (ref.width, ref.height) == size else "/{}x{}".format(*size)
            packed = base64.b64decode(self._kept(f"spreads/{ref.sha256}{at}", reading))
            return np.frombuffer(packed, "<f2").astype(float).reshape(2, -1)

        size, pixels = (image.width, image.height), partial(IMAGES.pixels, at_most=LARGEST)
        measured = measurement(lambda: measure(pixels(image)), FEATURE_NAMES, image.sha256)
        key = (image.sha256, reference.sha256 if reference else "")
        if reference is None:
            found = partial(measurement, lambda: signs(pixels(image)), SIGN_NAMES, f"signs/{image.sha256}")
            return View(key, measured, size, np.concatenate([spreads(image).ravel(), measured.vector]), signs=found)
        difference = measurement(
            lambda: reference_differences(pixels(image), pixels(reference)), DIFFERENCE_NAMES, "/".join(key)
        )
        moved = spreads(image)[0] - spreads(reference)[0]
        view = View(key, measured, size, np.concatenate([moved, difference.vector]), difference)
        if any(shift := shift_of(image, reference)):
            shared = overlap(shift, pixels(image), pixels(reference))
            left = measurement(lambda: reference_differences(*shared), DIFFERENCE_NAMES, f"{'/'.join(key)}/{shift}")
            first, second = (network.spreads(each)[0] for each in shared)
            vector = np.concatenate([first - second, left.vector])
            view.shift, view.shared = shift, View(key, measured, size, vector, left)
        return view

    @classmethod
    def forget(cls) -> None:
        """Give back the memory of all views; one that is asked for again is read anew."""
        cls._view.cache_clear()
        give_back_memory()

    def _kept(self, key: str, work: Callable[[], Any]) -> Any:
        """Return what the folder holds under a key, or else work it out and keep it there."""
        if self._disk is None:
            return work()
        if (value := self._disk.get(f"{_LAYOUT}/{key}")) is None:
            self._disk.set(f"{_LAYOUT}/{key}", value := work())
        return value


def image_of(value: Any) -> ImageRef:
    """Return the image an input stands for; ImageError when it holds none that can be read here."""
    if isinstance(value, ImageRef):
        return value
    text = str(getattr(value, "url", value))
    if match := _URL.search(text):
        return IMAGES.find(match[0])
    if data := re.search(r"data:image/[\w.+-]+;base64,([A-Za-z0-9+/=\s]+)", text):
        return IMAGES.add(base64.b64decode(data[1]))
    raise ImageError(f"image {text[:60]!r}: not an image reference; give an image opened with program.images.store")


_PROJECTED = 128
"""Random directions in place of some 18,000 measurements: distances stay within about a tenth (Johnson & Lindenstrauss
1984)."""
_USUAL = 1.92
"""Median squared distance of the standardised measurements of two of BIQ2021's train photographs."""
_QUALITY_SHARE = 0.3
"""What a squared difference of one level between the qualities that the expert sees counts, of a usual distance. Mean
label of the 16 nearest of BIQ2021's 400 train photographs, on its 200 validation ones: SRCC .689, RMSE .535 without;
.740, .467 with .3; .1 to 1 hardly differ."""
WIDTH = _PROJECTED + 1


def likeness(view: "View") -> NDArray[np.float16]:
    """Return `WIDTH` numbers; the closer (Euclid) those of two images of a kind, the more alike these look."""
    projected = view.seen.points[0] @ _directions(view.seen.points.shape[1])
    return np.append(projected, np.sqrt(_QUALITY_SHARE * _USUAL) * view.own_quality).astype(np.float16)


def damage(view: "View") -> NDArray[np.float16]:
    """Return how strong each of `SEVERITIES` is, 0 .. 4; the closer (Euclid), the more alike two images are damaged."""
    return np.asarray(view.seen.severities[0], dtype=np.float16)


_LATE = 4608
"""Filters of the network's last four blocks: they tell what is shown rather than how well."""
_SEEN = 192


def appearance(view: "View") -> NDArray[np.float16]:
    """Return a unit vector of what an image alone shows: the cosine of two is 1 for one scene, about 0 for others.

    Blur, exposure and small shifts change it little (`benchmarks/gallery_bursts.py`).
    """
    points, ends = view.seen.points[0], (network.SPREADS, 2 * network.SPREADS)
    shown = np.concatenate([points[end - _LATE : end] for end in ends])
    projected = shown @ _directions(len(shown), _SEEN)
    return np.asarray(projected / max(float(np.linalg.norm(projected)), 1e-9), dtype=np.float16)


@functools.lru_cache(maxsize=4)
def _directions(count: int, kept: int = _PROJECTED) -> Matrix:
    # RandomState's stream never changes between versions: saved vectors stay comparable.
    drawn = np.random.RandomState(0).standard_normal((count, kept))
    return np.asarray(drawn / np.sqrt(kept), dtype=np.float32)


_EDGE = 0.02
"""Positions stay this far from 0 and 1 when they are added up: an odd image must not outvote everything else."""

PROPERTIES: Mapping[str, Mapping[str, float]] = stored_table("words.yaml")["properties"]
"""What is read straight from one measurement, and what each adds up."""
COMPOSITES: Mapping[str, Mapping[str, float]] = stored_table("words.yaml")["composites"]
"""What questions ask after, and the properties whose positions each adds up."""


def probit(share: float) -> float:
    """Return the normal deviate of a share, which is first clipped to 0.02 .. 0.98."""
    return float(special.ndtri(min(max(share, _EDGE), 1 - _EDGE)))


def population() -> Mapping[str, Sequence[float]]:
    """Return each property's values at 0, 5 .. 100 per cent of natural photographs, from the shipped file."""
    return dict(stored_table(POPULATION_FILE)["quantiles"])


def share_below(value: float, quantiles: Sequence[float]) -> float:
    """Return the share of the population below a value; in a run of equal quantiles its middle.

    >>> share_below(2.0, [0.0, 0.0, 0.0, 2.0, 4.0]), share_below(0.0, [0.0, 0.0, 0.0, 2.0, 4.0])
    (0.75, 0.25)
    """
    at = np.linspace(0, 1, len(quantiles))
    spread = np.asarray(quantiles, dtype=float)
    equal = spread == value
    return float(at[equal].mean() if equal.any() else np.interp(value, spread, at))


def reading(view: View, name: str) -> float:
    """Return one of `PROPERTIES` of an image."""
    known: Mapping[Any, float] = {"quality": view.prior.mean, **view.severities}
    return sum(w * (known[of] if of in known else view.measured[of]) for of, w in PROPERTIES[name].items())


def composite(view: View, name: str, quantiles: Mapping[str, Sequence[float]]) -> float:
    """Return a composite's sum of normal deviates, before it is placed."""
    return sum(w * probit(share_below(reading(view, p), quantiles[p])) for p, w in COMPOSITES[name].items())


def position(view: View, name: str) -> float:
    """Return where an image stands among natural photographs in one of `COMPOSITES`: 0 .. 1."""
    known = population()
    return share_below(composite(view, name, known), known[f"sum of {name}"])
