"""Pixels in any mode of Pillow as 8-bit sRGB, transparency laid over white; and pixels as a lossless PNG."""

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from program.common.errors import ImageError

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage

__all__ = ("as_rgb", "encode_png", "is_transparent", "srgb_conversion")

_BACKGROUND = 255
"""What transparent pixels are laid over: white."""
_PNG_MODES = {"1", "L", "LA", "P", "RGB", "RGBA", "I;16"}

Conversion: TypeAlias = "Callable[[PILImage], PILImage] | None"


def is_transparent(image: "PILImage") -> bool:
    """Return whether an image has an alpha channel, or a colour that is not to be seen."""
    return "A" in image.getbands() or "a" in image.getbands() or "transparency" in image.info


def as_rgb(image: "PILImage", to_srgb: Conversion) -> NDArray[np.uint8]:
    """Return H x W x 3 pixels; `to_srgb` is the image's `srgb_conversion`."""
    if image.mode.startswith("I"):
        return _deep_grey(image)
    if not is_transparent(image):
        if to_srgb is not None:
            image = to_srgb(image if image.mode in {"RGB", "CMYK", "L"} else image.convert("RGB"))
        return np.array(image if image.mode == "RGB" else image.convert("RGB"))
    rgba = image.convert("RGBA")
    alpha = np.asarray(rgba.getchannel("A"), dtype=np.uint32)[:, :, None]
    opaque = rgba.convert("RGB")
    colours = np.asarray(to_srgb(opaque) if to_srgb is not None else opaque, dtype=np.uint32)
    return ((colours * alpha + _BACKGROUND * (255 - alpha) + 127) // 255).astype(np.uint8)


def srgb_conversion(image: "PILImage") -> Conversion:
    """Return the conversion that the embedded profile asks for; None without one, for sRGB, or when it is unusable."""
    profile = image.info.get("icc_profile")
    if not profile or image.mode.startswith("I"):
        return None
    from PIL import ImageCms

    try:
        embedded = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if "srgb" in ImageCms.getProfileDescription(embedded).lower():
            return None
        mode = {"CMYK": "CMYK", "L": "L"}.get(image.mode, "RGB")
        intent = ImageCms.Intent.RELATIVE_COLORIMETRIC
        transform = ImageCms.buildTransform(embedded, ImageCms.createProfile("sRGB"), mode, "RGB", intent)
    except (ImportError, OSError, TypeError, ValueError, ImageCms.PyCMSError):
        return None

    def convert(part: "PILImage") -> "PILImage":
        result = ImageCms.applyTransform(part, transform)
        if result is None:
            raise ValueError("the embedded colour profile gave nothing")
        return result

    return convert


def encode_png(source: object) -> bytes:
    """Return a PIL image or an H x W x 3 uint8 array as a PNG, without loss. Raises ImageError for anything else."""
    from PIL import Image, ImageOps

    if isinstance(source, np.ndarray):
        if source.dtype != np.uint8 or source.ndim != 3 or source.shape[2] != 3 or 0 in source.shape:
            raise ImageError(
                f"image array: shape {source.shape}, {source.dtype}; give a non-empty H x W x 3 uint8 array"
            )
        source = Image.fromarray(source)
    if not isinstance(source, Image.Image):
        raise ImageError(
            f"image of type {type(source).__name__}: give a path, bytes, a PIL image or an H x W x 3 uint8 array"
        )
    buffer = io.BytesIO()
    try:
        upright = ImageOps.exif_transpose(source)
        if upright.mode == "I":
            upright = Image.fromarray(np.clip(np.asarray(upright), 0, 65535).astype(np.uint16))
        elif upright.mode not in {*_PNG_MODES, "F"}:  # floating-point pixels have no white: saving refuses them
            upright = Image.fromarray(as_rgb(upright, srgb_conversion(upright)))
        upright.save(buffer, "PNG")
    except Exception as error:  # an image opened from a file is decoded only now, and a broken one may fail in any way
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise ImageError(f"image of mode {source.mode}: cannot be read ({reason}); load it whole first") from error
    return buffer.getvalue()


def _deep_grey(image: "PILImage") -> NDArray[np.uint8]:
    """Read grey of 16 bits: 0..65535."""
    values = np.asarray(image, dtype=np.float64)
    grey = np.clip(values / 65535.0 * 255.0 + 0.5, 0, 255).astype(np.uint8)
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        grey[values == clear] = _BACKGROUND
    return np.repeat(grey[:, :, None], 3, axis=2)
