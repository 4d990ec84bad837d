"""What datasets call their distortions, and the agent's category of each name."""

from collections.abc import Mapping
from types import MappingProxyType

from data.distortions import CATEGORIES
from signatures.schemas import DistortionCategory, category_of

__all__ = ("LIVE_NAMES", "category_named")

LIVE_NAMES: Mapping[str, str] = MappingProxyType({
    "jp2k": "jpeg2000", "wn": "white_noise", "gblur": "gaussian_blur", "fastfading": "jpeg2000_transmission_errors",
})  # fmt: skip
"""LIVE's abbreviations as other datasets write them; its fast fading is TID2013's JPEG 2000 transmission errors."""


def category_named(distortion: str | None) -> DistortionCategory | None:
    """Return the category of a distortion by a dataset's name for it; None for no distortion or one outside the seven.

    >>> category_named("wn"), category_named("mean_shift"), category_named("authentic")
    ('Noise', 'Brightness change', None)
    """
    name = LIVE_NAMES.get((distortion or "").casefold(), distortion or "")
    return CATEGORIES[name] if name in CATEGORIES else category_of(name.replace("_", " "))
