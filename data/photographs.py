"""The quickstart's photographs: natural ones that ship inside installed packages.

Textures, medical and astronomical images of those packages are left out, and so are the second
picture of a stereo pair and drawings. Nothing is downloaded, and no image is stored in the project.
"""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from data.sample import Split
from program.common.errors import DataError

__all__ = ("LONGEST_SIDE_PX", "PHOTOGRAPHS", "Photograph", "load_photograph", "photograph_bytes")

LONGEST_SIDE_PX = 384


@dataclass(frozen=True, slots=True)
class Photograph:
    """Where a photograph is, whose it is, and which split it belongs to."""

    name: str
    package: str
    """Import name of the package that ships it."""
    distribution: str
    """What to install to get that package."""
    path: str
    """Path inside the package."""
    split: Split
    content: str
    licence: str
    source: str


_NASA = "NASA Great Images (flic.kr/p/r9qvLn)"
_NO_NOTE = "not stated in the package; "

PHOTOGRAPHS: Mapping[str, Photograph] = MappingProxyType({
    photograph.name: photograph
    for photograph in (
        Photograph("astronaut", "skimage", "scikit-image", "data/astronaut.png", "train", "portrait",
                   "public domain", _NASA),
        Photograph("camera", "skimage", "scikit-image", "data/camera.png", "train", "person outdoors, greyscale", "CC0",
                   "Lav Varshney"),
        Photograph("flower", "sklearn", "scikit-learn", "datasets/images/flower.jpg", "train", "flower, close",
                   "CC BY 2.0", "vultilion (flickr.com/photos/vultilion/6056698931)"),
        Photograph("motorcycle", "skimage", "scikit-image", "data/motorcycle_left.png", "train", "workshop indoors",
                   _NO_NOTE + "published for research, to be cited",
                   "Middlebury 2014 stereo benchmark (Scharstein et al., GCPR 2014)"),
        Photograph("rocket", "skimage", "scikit-image", "data/rocket.jpg", "train", "launch against the sky",
                   "public domain", "SpaceX (flickr.com/photos/spacexphotos/16511594820)"),
        Photograph("coffee", "skimage", "scikit-image", "data/coffee.png", "validation", "still life", "CC0",
                   "Rachel Michetti, Pikolo Espresso Bar"),
        Photograph("grace_hopper", "matplotlib", "matplotlib", "mpl-data/sample_data/grace_hopper.jpg", "validation",
                   "portrait", _NO_NOTE + "portrait by the US Navy, a work of the US government", "US Navy, 1984"),
        Photograph("chelsea", "skimage", "scikit-image", "data/chelsea.png", "test", "animal, close", "CC0",
                   "Stefan van der Walt"),
        Photograph("china", "sklearn", "scikit-learn", "datasets/images/china.jpg", "test", "architecture outdoors",
                   "CC BY 2.0", "danielbuechele (flickr.com/photos/danielbuechele/6061409035)"),
    )
})  # fmt: skip
"""By name. The split is fixed by hand: with nine photographs a random one may leave validation or test with two
of a kind. Validation and test each have one picture of near things before a soft background and one with
another subject, all in colour, so that every distortion is in both; the greyscale one is for training."""


def photograph_bytes(name: str) -> bytes:
    """Return the photograph's file as it ships; DataError when the name is unknown or the package lacks it."""
    if name not in PHOTOGRAPHS:
        raise DataError(f"photograph {name!r}: is not known; choose among {', '.join(PHOTOGRAPHS)}")
    photograph = PHOTOGRAPHS[name]
    try:
        return files(photograph.package).joinpath(photograph.path).read_bytes()
    except ModuleNotFoundError as error:
        raise _unusable(photograph, f"the package {photograph.distribution} is not installed") from error
    except OSError as error:
        raise _unusable(photograph, f"{photograph.path} is missing in its package") from error


def load_photograph(name: str) -> tuple[NDArray[np.uint8], str]:
    """Return the photograph as H x W x 3 uint8, longest side 384 (Lanczos), and its file's SHA-256."""
    data = photograph_bytes(name)
    try:
        with Image.open(io.BytesIO(data)) as picture:
            rgb = picture.convert("RGB")
    except OSError as error:
        raise _unusable(PHOTOGRAPHS[name], "is damaged") from error
    scale = min(1.0, LONGEST_SIDE_PX / max(rgb.size))
    size = (round(rgb.width * scale), round(rgb.height * scale))
    return np.array(rgb.resize(size, Image.Resampling.LANCZOS)), hashlib.sha256(data).hexdigest()


def _unusable(photograph: Photograph, fault: str) -> DataError:
    mend = f"pip install --force-reinstall {photograph.distribution}"
    return DataError(f"photograph {photograph.name!r}: {fault}; install its package anew: {mend}")
