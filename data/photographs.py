"""The quickstart's photographs: natural ones that ship inside installed packages; nothing is downloaded or stored.

Textures, medical and astronomical images, drawings and the second picture of a stereo pair are left out.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from data.manifest import Split
from program.common.errors import DataError

__all__ = ("LONGEST_SIDE_PX", "PHOTOGRAPHS", "Photograph", "load_photograph", "photograph_bytes")

LONGEST_SIDE_PX = 384


@dataclass(frozen=True, slots=True)
class Photograph:
    """Where a photograph is, whose it is, and which split it belongs to."""

    name: str
    package: str
    distribution: str
    """What to install to get that package."""
    path: str
    split: Split
    licence: str
    source: str


_NO_NOTE = "not stated in the package; "

PHOTOGRAPHS: Mapping[str, Photograph] = {
    photograph.name: photograph
    for photograph in (
        Photograph("astronaut", "skimage", "scikit-image", "data/astronaut.png", "train", "public domain",
                   "NASA Great Images (flic.kr/p/r9qvLn)"),
        Photograph("camera", "skimage", "scikit-image", "data/camera.png", "train", "CC0", "Lav Varshney"),
        Photograph("flower", "sklearn", "scikit-learn", "datasets/images/flower.jpg", "train", "CC BY 2.0",
                   "vultilion (flickr.com/photos/vultilion/6056698931)"),
        Photograph("motorcycle", "skimage", "scikit-image", "data/motorcycle_left.png", "train",
                   _NO_NOTE + "published for research, to be cited",
                   "Middlebury 2014 stereo benchmark (Scharstein et al., GCPR 2014)"),
        Photograph("rocket", "skimage", "scikit-image", "data/rocket.jpg", "train", "public domain",
                   "SpaceX (flickr.com/photos/spacexphotos/16511594820)"),
        Photograph("coffee", "skimage", "scikit-image", "data/coffee.png", "validation", "CC0",
                   "Rachel Michetti, Pikolo Espresso Bar"),
        Photograph("grace_hopper", "matplotlib", "matplotlib", "mpl-data/sample_data/grace_hopper.jpg", "validation",
                   _NO_NOTE + "portrait by the US Navy, a work of the US government", "US Navy, 1984"),
        Photograph("chelsea", "skimage", "scikit-image", "data/chelsea.png", "test", "CC0", "Stefan van der Walt"),
        Photograph("china", "sklearn", "scikit-learn", "datasets/images/china.jpg", "test", "CC BY 2.0",
                   "danielbuechele (flickr.com/photos/danielbuechele/6061409035)"),
    )
}  # fmt: skip
"""By name. The split is fixed by hand: a random one may leave validation or test two of a kind. Both have a picture
of near things before a soft background and another, in colour, so that every distortion is in both."""


def photograph_bytes(name: str) -> bytes:
    """Return the photograph's file as it ships; DataError when its package lacks it."""
    photograph = PHOTOGRAPHS[name]
    try:
        return files(photograph.package).joinpath(photograph.path).read_bytes()
    except (ModuleNotFoundError, OSError) as error:
        raise DataError(
            f"photograph {name!r}: {photograph.package}/{photograph.path} is not installed; install its package anew: "
            f"pip install --force-reinstall {photograph.distribution}"
        ) from error


def load_photograph(name: str) -> NDArray[np.uint8]:
    """Return the photograph as H x W x 3 uint8, longest side 384 (Lanczos)."""
    with Image.open(io.BytesIO(photograph_bytes(name))) as picture:
        rgb = picture.convert("RGB")
    return np.array(ImageOps.contain(rgb, (LONGEST_SIDE_PX, LONGEST_SIDE_PX), Image.Resampling.LANCZOS))
