"""What colours an image's numbers stand for, and their conversion to sRGB by lcms.

The first of these that can be used counts: in a PNG cICP, iCCP, sRGB, gAMA and cHRM (PNG
specification, third edition, 4.3), elsewhere the ICC profile, then AVIF's and HEIF's nclx. Each
becomes an ICC profile, and a profile counts by what it does, whatever it is called: where it moves
no colour by more than 1 of 255, the numbers are sRGB's already.
"""

import io
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageCms

from program.images.containers import nclx_of


class Colours(NamedTuple):
    """How an image becomes sRGB, and what there is to say of that."""

    transform: ImageCms.ImageCmsTransform | None = None
    """None where the numbers are sRGB's, or taken for it."""
    mode: str = "RGB"
    """What the transform reads: RGB, L, CMYK or 16-bit grey."""
    notes: tuple[str, ...] = ()

    def convert(self, image: Image.Image) -> Image.Image:
        """Return an image without transparency as RGB."""
        if self.transform is not None:
            if image.mode != self.mode:
                image = image.convert(self.mode)
            image = self.transform.apply(image)
        if image.mode == "RGB":
            return image
        return image.convert("RGB")


class _UnusableError(Exception):
    """Why the colours that a file states cannot be converted."""


def colours_of(image: Image.Image, data: bytes = b"") -> Colours:
    """Return what makes an opened image sRGB; `data` is its file, or empty."""
    notes: list[str] = []
    for source, profile in _stated(image, data):
        try:
            found = _conversion(profile(), image)
        except _UnusableError as reason:
            notes.append(f"{source}: {reason}")
            continue
        converted = [] if found.transform is None else [f"colours converted to sRGB from {source}"]
        return Colours(found.transform, found.mode, (*converted, *notes))
    return Colours(notes=tuple(f"{note}; the colours are taken for sRGB" for note in notes))


# What a file states


def _stated(image: Image.Image, data: bytes) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield what a file states of its colours, what counts first at first.

    An empty profile stands for sRGB.
    """
    info = image.info
    if len(cicp := png_chunk(data, b"cICP")) == 4:
        yield "cICP", partial(_profile_of_codes, *cicp[:2], full_range=cicp[3] != 0)
    if "icc_profile" in info:
        yield "the embedded profile", lambda: info["icc_profile"] or b"broken"
    if "srgb" in info:
        yield "sRGB", lambda: b""
    elif "gamma" in info or "chromaticity" in info:
        names = [name for name, key in (("gAMA", "gamma"), ("cHRM", "chromaticity")) if key in info]
        yield " and ".join(names), partial(_profile_of_gamma, info.get("gamma"), info.get("chromaticity"))
    if nclx := info.get("nclx_profile"):
        yield "nclx", partial(_profile_of_codes, nclx["color_primaries"], nclx["transfer_characteristics"])
    elif nclx := nclx_of(data):
        yield "nclx", partial(_profile_of_codes, *nclx)


def png_chunk(data: bytes, kind: bytes) -> bytes:
    """Return the first chunk of a kind before a PNG's pixels; empty without one."""
    at = 8 if data.startswith(b"\x89PNG\r\n\x1a\n") else len(data)
    while (head := data[at : at + 8])[4:] not in {b"", b"IDAT"}:
        if head[4:] == kind:
            return data[at + 8 : at + 8 + int.from_bytes(head[:4])]
        at += 12 + int.from_bytes(head[:4])
    return b""


def _profile_of_codes(primaries: int, transfer: int, *, full_range: bool = True) -> bytes:
    """Return the profile that coded colours stand for (ITU-T H.273, tables 2 and 3)."""
    if transfer in _HIGH_RANGE:
        raise _UnusableError(f"{_HIGH_RANGE[transfer]} (high dynamic range) cannot be converted")
    if primaries not in _PRIMARIES or transfer not in _CURVES or not full_range:
        narrow = "" if full_range else " in a narrow range"
        raise _UnusableError(f"codes {primaries} and {transfer}{narrow} are not read")
    return _profile(_PRIMARIES[primaries], _CURVES[transfer])


def _profile_of_gamma(gamma: float | None, chromaticity: Sequence[float] | None) -> bytes:
    """Return the profile that a PNG's gAMA and cHRM stand for; sRGB's where one is open."""
    if gamma is not None and not _LEAST_GAMMA <= gamma <= 1 / _LEAST_GAMMA:
        raise _UnusableError(f"an exponent of {gamma:g} cannot be used")
    curve = _SRGB_CURVE if gamma is None else (1 / gamma,)
    # cHRM begins with the white point.
    points = _PRIMARIES[1] if chromaticity is None else (*chromaticity[2:8], *chromaticity[:2])
    return _profile(points, curve)


_D50, _D65 = np.array([0.9642, 1.0, 0.8249]), (0.3127, 0.3290)
_LEAST_GAMMA = 0.1
_SRGB_CURVE = (2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)
_BT709_CURVE = (1 / 0.45, 1 / 1.099, 0.099 / 1.099, 1 / 4.5, 0.081)
_CURVES: Mapping[int, tuple[float, ...]] = {
    **dict.fromkeys((1, 6, 14, 15), _BT709_CURVE), **dict.fromkeys((2, 13), _SRGB_CURVE),
    4: (2.2,), 5: (2.8,), 8: (1.0,),
}  # fmt: skip
"""The curve of each transfer characteristic, as an ICC profile's parameters; 2 is unspecified."""
_HIGH_RANGE = {16: "PQ", 18: "HLG"}
_BT709, _BT601 = (0.64, 0.33, 0.30, 0.60, 0.15, 0.06, *_D65), (0.63, 0.34, 0.31, 0.595, 0.155, 0.07, *_D65)
_PRIMARIES: Mapping[int, tuple[float, ...]] = {
    1: _BT709, 2: _BT709, 6: _BT601, 7: _BT601,
    4: (0.67, 0.33, 0.21, 0.71, 0.14, 0.08, 0.310, 0.316), 5: (0.64, 0.33, 0.29, 0.60, 0.15, 0.06, *_D65),
    9: (0.708, 0.292, 0.170, 0.797, 0.131, 0.046, *_D65), 11: (0.68, 0.32, 0.265, 0.69, 0.15, 0.06, 0.314, 0.351),
    12: (0.68, 0.32, 0.265, 0.69, 0.15, 0.06, *_D65), 22: (0.63, 0.34, 0.295, 0.605, 0.155, 0.077, *_D65),
}  # fmt: skip
"""The x and y of red, green, blue and white of each set of colour primaries; 2 is unspecified."""
_BRADFORD = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])
"""From XYZ to the responses in which a white point is adapted (ICC.1:2022, annex E)."""


def _profile(points: Sequence[float], curve: Sequence[float]) -> bytes:
    """Return an ICC profile (ICC.1:2022) for RGB with these primaries, white and curve.

    The curve's parameters: an exponent alone, or those of type 3, with a straight part near black.
    """
    xyz = np.array([(x / y, 1.0, (1 - x - y) / y) if y else (np.nan,) * 3 for x, y in np.reshape(points, (4, 2))]).T
    try:
        white = _BRADFORD @ xyz[:, 3]
        adapted = np.linalg.inv(_BRADFORD) @ np.diag(_BRADFORD @ _D50 / white) @ _BRADFORD
        colorants = adapted @ (xyz[:, :3] * np.linalg.solve(xyz[:, :3], xyz[:, 3]))
    except np.linalg.LinAlgError as error:
        raise _UnusableError("its primaries span no colours") from error
    if not np.abs(colorants).max() < 100:
        raise _UnusableError("its primaries span no colours")
    kind = {1: 0, 5: 3}[len(curve)]
    response = b"para" + bytes(4) + struct.pack(">HH", kind, 0) + _fixed(curve)
    tags = {b"wtpt": b"XYZ " + bytes(4) + _fixed(_D50)}
    for name, column in zip((b"r", b"g", b"b"), colorants.T, strict=True):
        tags |= {name + b"XYZ": b"XYZ " + bytes(4) + _fixed(column), name + b"TRC": response}
    table, body, start = struct.pack(">I", len(tags)), b"", 132 + 12 * len(tags)
    for name, value in tags.items():
        table += name + struct.pack(">II", start + len(body), len(value))
        body += value
    size = struct.pack(">I", start + len(body))
    head = size + bytes(4) + b"\x04\x30\0\0mntrRGB XYZ " + bytes(12) + b"acsp" + bytes(28) + _fixed(_D50)
    return head.ljust(128, b"\0") + table + body


def _fixed(values: Iterable[float]) -> bytes:
    return b"".join(struct.pack(">i", round(value * 65536)) for value in values)


# From an ICC profile to a transform


def _conversion(profile: bytes, image: Image.Image) -> Colours:
    if not profile:
        return Colours()
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        mode = _mode_read(source.profile.xcolor_space.strip(), image)
        shown = "L" if mode.startswith("I") else mode
        if mode != "CMYK" and not _moves(_transform(source, shown), shown):
            return Colours()
        return Colours(_transform(source, mode), mode)
    except (ImportError, OSError, TypeError, ValueError, ImageCms.PyCMSError) as error:
        raise _UnusableError("cannot be used") from error


def _mode_read(space: str, image: Image.Image) -> str:
    """Return the mode in which an image is given to a profile; or ValueError."""
    is_grey = image.mode in {"1", "L", "LA", "La"} or image.mode[0] == "I"
    if image.mode[0] == "P":
        colours = np.reshape(image.getpalette("RGB") or (), (-1, 3))
        is_grey = bool((colours == colours[:, :1]).all())
    if space == "GRAY" and is_grey:
        if image.mode.startswith("I;16"):
            return image.mode
        return "L"
    if space == "RGB" and image.mode not in {"CMYK", "LAB"}:
        return "RGB"
    if space == image.mode == "CMYK":
        return "CMYK"
    raise ValueError(f"a profile for {space}, pixels of mode {image.mode}")


def _transform(source: object, mode: str) -> ImageCms.ImageCmsTransform:
    intent = ImageCms.Intent.RELATIVE_COLORIMETRIC
    return ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB", intent)  # type: ignore[arg-type]


def _moves(transform: ImageCms.ImageCmsTransform, mode: str) -> bool:
    """Return whether a transform from RGB or L changes a value of a grid by more than 1."""
    if mode == "L":
        grid = np.arange(256, dtype=np.uint8)[:, None]
    else:
        steps = np.linspace(0, 255, 18).round()
        grid = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(-1, 18, 3).astype(np.uint8)
    before = Image.fromarray(grid)
    after = np.asarray(transform.apply(before), dtype=int)
    return bool(np.abs(after - np.asarray(before.convert("RGB"), dtype=int)).max() > 1)
