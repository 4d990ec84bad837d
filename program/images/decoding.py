"""From an encoded image to the pixels a viewer sees: 8-bit sRGB, upright, opaque.

- Transparency (alpha channel, palette entry or colour key) is laid over white.
- 16 bits a channel become 8: grey by rounding v / 257, colour by its high byte (as Pillow reads it; at most 1 apart).
- CMYK, and colours that the file says are not sRGB's, are converted to sRGB (see `colour`); what cannot be is noted.
  What raters saw on a screen went through the same conversion.
- EXIF orientation is applied. Of an animation the first frame is read, of a TIFF the full picture (see `tiff`).
- Large images are averaged down in blocks of whole pixels while they are read (see `refs.reduction`).
"""

import io
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import IFDRational

from program.common.errors import ImageError, one_line
from program.images.colour import Colours, colours_of, png_chunk
from program.images.containers import is_unwritten, raw_kind, without_preview
from program.images.detail import Detail, detail_of
from program.images.jpeg import whole_jpeg
from program.images.refs import Area, reduced_size, reduction

READING_RULES = 4
"""Raised whenever the same bytes may give other pixels than before: part of the key of everything
measured."""
MAX_PIXELS = 120_000_000
"""Larger images are refused before they are decoded, unless told otherwise: decoding takes 4 bytes
a pixel."""
_MOST_WEBP = MAX_PIXELS // 2
"""Decoding a WebP takes 25 bytes a pixel. Where `max_pixels` is raised: half of that."""

_STRIP_PIXELS = 2**22
_SUFFIX_OF_FORMAT = {
    "AVIF": ".avif", "BMP": ".bmp", "GIF": ".gif", "HEIF": ".heic", "JPEG": ".jpg", "MPO": ".jpg", "PNG": ".png",
    "PPM": ".ppm", "TIFF": ".tif", "WEBP": ".webp",
}  # fmt: skip
_ORIENTATION = 0x0112
_BITS, _PHOTOMETRIC, _SAMPLE_FORMAT = 258, 262, 339
_TURNED, _MIRRORED, _UPSIDE_DOWN = {5, 6, 7, 8}, {2, 3, 6, 7}, {3, 4, 7, 8}
"""EXIF orientations (CIPA DC-008, table 4.6.4) whose stored rows are columns, as displayed, and
those whose columns or rows then run from right to left or upwards."""

_BACKGROUND = 255
"""What transparent pixels are laid over: white."""
_PNG_MODES = {"1", "L", "LA", "P", "RGB", "RGBA", "I;16"}
_EXIF = 0x8769
_MOST_XMP = 2**24


class DecodedImage(NamedTuple):
    """An image's pixels (H x W x 3, uint8), and what is known of the whole image."""

    pixels: NDArray[np.uint8]
    suffix: str
    width: int
    """As displayed, at full size."""
    height: int
    notes: tuple[str, ...]
    detail: Detail | None = None
    """At full size, where it was asked for."""


def decode(
    data: bytes,
    name: str,
    *,
    at_most: int | None = None,
    area: Area | None = None,
    detailed: bool = False,
    max_pixels: int = MAX_PIXELS,
    opened: Callable[[int], None] = lambda pixels: None,
) -> DecodedImage:
    """Decode an image, or an area (left, top, right, bottom in displayed pixels), to `at_most` px.

    With `detailed` the whole image's detail is measured as well, while its pixels are at hand.

    Memory: the file, 4 bytes for each of its pixels (25 of a WebP) and what is returned. `opened`
    gets the number of pixels before they are decoded. A file can be made to take any time and
    memory here: `bounded` sees to that. Raises ImageError naming the image when it is truncated,
    has more than `max_pixels`, holds pixels of no known range (floating-point, integers of 32 bits
    or with a sign) or is not an image.
    """
    if raw := raw_kind(data):
        raise ImageError(
            f"image {name!r}: is a raw file ({raw}), which holds no finished picture; export it as TIFF, PNG or JPEG"
        )
    data, preview = without_preview(data)
    try:
        with _opened(data) as image:
            if kind := _unread(image):
                raise ImageError(f"image {name!r}: {kind} are not read here; convert it to an 8- or 16-bit PNG")
            most = min(max_pixels, max(_MOST_WEBP, max_pixels // 2)) if image.format == "WEBP" else max_pixels
            if image.width * image.height > most:
                raise ImageError(
                    f"image {name!r}: {image.width}x{image.height} is over {most / 1e6:g} megapixels; "
                    "scale it down, or raise images.max_pixels"
                )
            suffix = _SUFFIX_OF_FORMAT[str(image.format)]
            opened(image.width * image.height)
            # How many frames is not asked for: counting them takes minutes in a file made for it.
            several = not preview and image.format != "MPO" and getattr(image, "is_animated", False)
            picture, lost = _loaded(image, data, known=area is not None)
            pixels, width, height, notes, detail = _read(picture, colours_of(picture, data), at_most, area, detailed)
    except UnidentifiedImageError as error:
        lacking = "" if find_spec("pillow_heif") else ", or for HEIF pip install 'agentic-iqa[heif]'"
        known = f"give a PNG, JPEG, BMP, TIFF, WebP, GIF, PPM or AVIF{lacking}"
        raise ImageError(f"image {name!r}: not an image that can be read; {known}") from error
    except ImageError:
        raise
    except MemoryError as error:  # Pillow's word for a row that is too long, too
        raise ImageError(f"image {name!r}: is more than its decoder can hold; scale it down") from error
    except Exception as error:  # the border to a file's bytes: a broken one may fail in any way
        raise ImageError(f"image {name!r}: damaged or truncated ({one_line(error)[:120]}); get a whole copy") from error
    if several:
        notes = ("the first of several frames is judged", *notes)
    return DecodedImage(pixels, suffix, width, height, (*((preview,) if preview else ()), *lost, *notes), detail)


def tags_of(data: bytes, opened: Callable[[int], None] = lambda pixels: None) -> tuple[dict[int, float | str], bytes]:
    """Return an image file's EXIF tags that are numbers or text, and its XMP packet.

    Both empty where there are none, or none that can be read. `opened` as `decode` has it: a file
    can be made to take any time and memory here, too.
    """
    try:
        with _opened(data) as image:
            opened(image.width * image.height)  # a PNG's may stand behind its pixels
            exif, packet = image.getexif(), image.info.get("xmp", b"")
            tags = {**exif, **exif.get_ifd(_EXIF)}
            plain: dict[int, float | str] = {}
            for tag, value in tags.items():
                if isinstance(value, IFDRational):
                    plain[tag] = float(value)  # NaN where it is over 0
                elif isinstance(value, int | str):
                    plain[tag] = value
            is_read = isinstance(packet, bytes) and len(packet) <= _MOST_XMP
            return plain, packet if is_read else b""
    except Exception:  # the border to a file's bytes: a broken one may fail in any way
        return {}, b""


def _loaded(image: Image.Image, data: bytes, *, known: bool) -> tuple[Image.Image, tuple[str, ...]]:
    """Return an opened image, decoded, and what there is to note; `known`: it is known to be whole.

    Raises ValueError, saying why, where a part of it is not there; what Pillow raises for other
    faults.
    """
    if image.format in {"JPEG", "MPO"}:
        return whole_jpeg(data, known=known)
    if image.format in {"AVIF", "HEIF", "WEBP"} and is_unwritten(data, image.width * image.height):
        raise ValueError("a part of it was never written")
    image.load()
    if image.format == "PNG" and "transparency" in image.info and image.mode != "P":
        _set_key(image, data)
    return image, ()


def _unread(image: Image.Image) -> str | None:
    """Return what an opened image holds that is not read here: values or a format."""
    if image.format not in _SUFFIX_OF_FORMAT:
        return f"pictures of format {image.format}"
    if image.mode == "F":
        return "floating-point pixels"
    if image.format == "TIFF" and (image.mode == "I" or 2 in getattr(image, "tag_v2", {}).get(_SAMPLE_FORMAT, ())):
        return "integer pixels of 32 bits or with a sign"
    return None


_opening = threading.Lock()


@contextmanager
def _opened(data: bytes) -> Iterator[Image.Image]:
    """Open an image with our own limit of pixels in place of Pillow's."""
    if data[4:8] == b"ftyp":
        _read_heif()
    with _opening:
        usual, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            image = Image.open(io.BytesIO(data))
        finally:
            Image.MAX_IMAGE_PIXELS = usual
    with image:
        yield image


@cache
def _read_heif() -> None:
    """Let Pillow read HEIF where the extra for it is installed."""
    with suppress(ImportError):
        from pillow_heif import register_heif_opener

        register_heif_opener(thumbnails=False)


def _read(
    image: Image.Image, colours: Colours, at_most: int | None, area: Area | None, detailed: bool
) -> tuple[NDArray[np.uint8], int, int, tuple[str, ...], Detail | None]:
    orientation = image.getexif().get(_ORIENTATION, 1)
    width, height = (image.height, image.width) if orientation in _TURNED else image.size
    notes = [*colours.notes]
    stored = (0, 0, *image.size) if area is None else _stored(area, orientation, width, height)
    factor = reduction(stored[2] - stored[0], stored[3] - stored[1], at_most)
    seen_through: list[bool] = []
    rgb = partial(_as_rgb, colours=colours, seen_through=seen_through)
    image = _of_full_range(image)

    def rows(top: int, bottom: int) -> NDArray[np.uint8]:
        return _upright(rgb(image.crop(_stored((0, top, width, bottom), orientation, width, height))), orientation)

    detail = detail_of(width, height, rows) if detailed else None
    if factor > 1 and image.mode == "RGB" and colours.transform is None and not image.has_transparency_data:
        pixels = np.asarray(image.reduce(factor, stored))  # the same pixels as below, with less copying
    else:
        pixels = _strips(image, stored, factor, rgb)
    if any(seen_through):
        notes.append("transparency laid over white")
    return np.ascontiguousarray(_upright(pixels, orientation)), width, height, tuple(notes), detail


def _stored(area: Area, orientation: int, width: int, height: int) -> Area:
    """Return where an area of the displayed image lies in the stored one."""
    left, top, right, bottom = area
    if orientation in _MIRRORED:
        left, right = width - right, width - left
    if orientation in _UPSIDE_DOWN:
        top, bottom = height - bottom, height - top
    if orientation in _TURNED:
        return (top, left, bottom, right)
    return (left, top, right, bottom)


def _upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Return stored rows and columns of an image as they are displayed."""
    pixels = pixels.transpose(1, 0, 2) if orientation in _TURNED else pixels
    down = -1 if orientation in _UPSIDE_DOWN else 1
    right = -1 if orientation in _MIRRORED else 1
    return pixels[::down, ::right]


def _strips(
    image: Image.Image, area: Area, factor: int, rgb: Callable[[Image.Image], NDArray[np.uint8]]
) -> NDArray[np.uint8]:
    left, top, right, bottom = area
    width, height = reduced_size(right - left, bottom - top, factor)
    rows = max(1, _STRIP_PIXELS // (right - left) // factor) * factor
    if factor == 1 and rows >= bottom - top:
        return rgb(image if area == (0, 0, *image.size) else image.crop(area))
    pixels = np.empty((height, width, 3), np.uint8)
    for start in range(top, bottom, rows):
        strip = rgb(image.crop((left, start, right, min(start + rows, bottom))))
        if factor > 1:
            strip = np.asarray(Image.fromarray(strip).reduce(factor))
        first = (start - top) // factor
        pixels[first : first + len(strip)] = strip
    return pixels


def _set_key(image: Image.Image, data: bytes) -> None:
    """Let a PNG's transparent colour be what it is in the samples as stored (PNG, 11.3.1.1)."""
    depth, stored = data[24], png_chunk(data, b"tRNS")
    highest = (1 << depth) - 1
    key = [sample & highest for sample in struct.unpack_from(f">{len(stored) // 2}H", stored)]
    if image.mode == "RGB" and depth == 16:  # of which the image holds the high bytes
        with PngImageFile(io.BytesIO(data)) as low:
            low.tile = [part._replace(args=str(part.args).replace("16B", "16L")) for part in low.tile]
            parts = np.asarray(image) == [sample >> 8 for sample in key], np.asarray(low) == [s & 255 for s in key]
        clear = np.logical_and(*parts).all(axis=2)
        image.putalpha(Image.fromarray(np.where(clear, 0, 255).astype(np.uint8)))
    elif image.mode == "RGB":
        image.info["transparency"] = tuple(key)
    elif image.mode in {"1", "L"}:
        image.info["transparency"] = key[0] * 255 // highest


def _of_full_range(image: Image.Image) -> Image.Image:
    """Return 16-bit grey of a TIFF from black to white, however few bits hold it."""
    tags = getattr(image, "tag_v2", {})
    bits, inverted = tags.get(_BITS, (16,))[0], tags.get(_PHOTOMETRIC) == 0
    if not image.mode.startswith("I;16") or (bits == 16 and not inverted):
        return image
    values = np.asarray(image, dtype=np.uint32) * 65535 // (2**bits - 1)
    scaled = Image.fromarray((65535 - values if inverted else values).astype(np.uint16))
    scaled.info = image.info
    return scaled


def _as_rgb(image: Image.Image, colours: Colours, seen_through: list[bool]) -> NDArray[np.uint8]:
    """Return H x W x 3 pixels, and add to `seen_through` whether one of them was not opaque."""
    if image.mode.startswith("I"):
        return _deep_grey(image, colours, seen_through)
    if not image.has_transparency_data:
        return np.array(colours.convert(image))
    rgba = image.convert("RGBA")
    alpha = np.asarray(rgba.getchannel("A"), dtype=np.uint32)[:, :, None]
    seen_through.append(bool((alpha < 255).any()))
    opaque = np.asarray(colours.convert(rgba.convert("RGB")), dtype=np.uint32)
    return ((opaque * alpha + _BACKGROUND * (255 - alpha) + 127) // 255).astype(np.uint8)


def encode_png(source: object) -> bytes:
    """Return a PIL image or an H x W x 3 uint8 array as a PNG, without loss; or ImageError."""
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
            upright = _of_few_bits(upright)
        colours = colours_of(upright)
        unsaid = colours.transform is not None and not upright.info.get("icc_profile")
        # Floating-point pixels have no white: saving refuses them.
        if unsaid or upright.mode not in {*_PNG_MODES, "F"}:
            upright = Image.fromarray(_as_rgb(upright, colours, []))
        upright.save(buffer, "PNG")
    except ImageError:
        raise
    except Exception as error:  # an image opened from a file is decoded only now, and a broken one may fail in any way
        reason = one_line(error)[:120]
        raise ImageError(f"image of mode {source.mode}: cannot be read ({reason}); load it whole first") from error
    return buffer.getvalue()


def _of_few_bits(image: Image.Image) -> Image.Image:
    """Return grey of 32-bit integers in the 8 or 16 bits that hold it; or ImageError."""
    values = np.asarray(image)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535:
        raise ImageError(f"image of mode I: holds values from {low} to {high}; scale them to 0..255 or 0..65535")
    return Image.fromarray(values.astype(np.uint8 if high < 256 else np.uint16))


def _deep_grey(image: Image.Image, colours: Colours, seen_through: list[bool]) -> NDArray[np.uint8]:
    """Read grey of 16 bits: 0..65535."""
    values = np.asarray(image, dtype=np.float64)
    if colours.mode == image.mode:
        pixels = np.array(colours.convert(image))
    else:
        grey = np.clip(values / 65535.0 * 255.0 + 0.5, 0, 255).astype(np.uint8)
        pixels = np.array(colours.convert(Image.fromarray(grey)))
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        seen_through.append(bool((values == clear).any()))
        pixels[values == clear] = _BACKGROUND
    return pixels
