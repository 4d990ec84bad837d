"""Colours as a colour-managed viewer shows them: files made here, against lcms (Pillow's ImageCms)."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms

from program import AgenticIQA
from program.images.containers import nclx_of
from program.images.decoding import decode
from program.images.store import ImageStore
from tests.pictures import file_of, noise

SRGB = ImageCms.createProfile("sRGB")
# D50 colorants as published with the profiles of these spaces.
COLORANTS = {
    "sRGB": ((0.43607, 0.22249, 0.01392), (0.38515, 0.71687, 0.09708), (0.14307, 0.06061, 0.71410)),
    "Display P3": ((0.51512, 0.24120, -0.00105), (0.29198, 0.69225, 0.04189), (0.15710, 0.06657, 0.78407)),
    "BT.2020": ((0.67348, 0.27904, -0.00194), (0.16566, 0.67534, 0.02998), (0.12505, 0.04561, 0.79686)),
    "Adobe RGB": ((0.60974, 0.31111, 0.01947), (0.20528, 0.62567, 0.06087), (0.14919, 0.06322, 0.74457)),
}
CHROMATICITIES = {
    "sRGB": (0.3127, 0.329, 0.64, 0.33, 0.3, 0.6, 0.15, 0.06),
    "Adobe RGB": (0.3127, 0.329, 0.64, 0.33, 0.21, 0.71, 0.15, 0.06),
}
LINEAR = 1.0


def response(curve, x):
    if curve == "sRGB":
        return np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)
    if curve == "BT.709":
        return np.where(x < 0.081, x / 4.5, ((x + 0.099) / 1.099) ** (1 / 0.45))
    return x**curve


def profile(space, curve, colorants="sRGB", description="a"):
    """An ICC profile of version 2 written by hand, its curve as a table of 4096 values."""

    def padded(data):
        return data + bytes(-len(data) % 4)

    def xyz(values):
        return b"XYZ " + bytes(4) + b"".join(struct.pack(">i", round(v * 65536)) for v in values)

    table = np.rint(65535 * response(curve, np.linspace(0, 1, 4096))).astype(">u2").tobytes()
    words = description.encode() + b"\0"
    tags = {
        b"desc": b"desc" + bytes(4) + struct.pack(">I", len(words)) + words + bytes(78),
        b"cprt": b"text" + bytes(4) + b"none\0", b"wtpt": xyz((0.9642, 1, 0.8249)),
    }  # fmt: skip
    curves = [b"kTRC"] if space == "GRAY" else [b"rTRC", b"gTRC", b"bTRC"]
    tags |= dict.fromkeys(curves, b"curv" + bytes(4) + struct.pack(">I", 4096) + table)
    if space == "RGB ":
        tags |= zip((b"rXYZ", b"gXYZ", b"bXYZ"), map(xyz, COLORANTS[colorants]), strict=True)
    index, body, start = struct.pack(">I", len(tags)), b"", 132 + 12 * len(tags)
    for name, data in tags.items():
        index += name + struct.pack(">II", start + len(body), len(data))
        body += padded(data)
    head = struct.pack(">I4sI4s4s4s", start + len(body), b"none", 0x02400000, b"mntr", space.encode(), b"XYZ ")
    head += bytes(12) + b"acsp" + bytes(28) + struct.pack(">iii", 63190, 65536, 54061)
    return head.ljust(128, b"\0") + index + body


def judged(pixels, icc):
    """What lcms makes of pixels with a profile."""
    source = ImageCms.ImageCmsProfile(io.BytesIO(icc))
    return np.asarray(ImageCms.profileToProfile(Image.fromarray(pixels), source, SRGB, outputMode="RGB"), dtype=int)


def chunked(data, *chunks):
    """A PNG with chunks put in behind its head."""
    parts = [struct.pack(">I", len(d)) + kind + d + struct.pack(">I", zlib.crc32(kind + d)) for kind, d in chunks]
    return data[:33] + b"".join(parts) + data[33:]


@pytest.fixture
def shades(rng):
    """Every shade, dark ones too, and colours at random."""
    ramp = np.repeat(np.arange(256, dtype=np.uint8)[:, None, None], 3, axis=2)
    return np.concatenate([np.tile(ramp, (1, 8, 1)), noise(rng, 256, 56)], axis=1)


def farthest(found, expected):
    return np.abs(found.pixels.astype(int) - expected).max()


@pytest.mark.spec("D31/colour-as-it-is-shown")
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_a_profile_counts_by_what_it_does_whatever_it_is_called(shades, kind):
    options = {"PNG": {}, "JPEG": {"quality": 90}, "TIFF": {}, "WEBP": {"lossless": True}}[kind]
    stored = np.asarray(Image.open(io.BytesIO(file_of(shades, kind, **options))).convert("RGB"))
    for icc in (
        profile("RGB ", LINEAR, description="GIMP built-in Linear sRGB"),
        profile("RGB ", "sRGB", "Display P3", "sRGB IEC61966-2.1"),
        profile("RGB ", 2.19921875, "Adobe RGB", "not srgb"),
    ):
        found = decode(file_of(shades, kind, icc_profile=icc, **options), "i")
        assert farthest(found, judged(stored, icc)) <= 1
        assert found.notes == ("colours converted to sRGB from the embedded profile",)
    plain = decode(file_of(shades, kind, icc_profile=profile("RGB ", "sRGB", description="camera"), **options), "i")
    assert np.array_equal(plain.pixels, stored)
    assert plain.notes == ()


@pytest.mark.spec("D31/colour-as-it-is-shown")
def test_a_grey_profile_counts_for_every_kind_of_grey(shades):
    grey, icc = np.ascontiguousarray(shades[:, :, 0]), profile("GRAY", 1.8)
    expected, notes = judged(grey, icc), ("colours converted to sRGB from the embedded profile",)
    palette = Image.fromarray(grey).convert("P")
    palette.putpalette(np.repeat(np.arange(256), 3).tolist())
    palette.frombytes(grey.tobytes())
    opaque = Image.fromarray(np.dstack([grey, np.full_like(grey, 255)]))
    files = [file_of(image, icc_profile=icc) for image in (grey, opaque, palette, grey.astype(np.uint16) * 257)]
    files += [file_of(grey, "TIFF", icc_profile=icc), file_of(grey.astype(np.uint16) * 257, "TIFF", icc_profile=icc)]
    files += [file_of(Image.fromarray(grey.astype(">u2") * 257), "TIFF", icc_profile=icc)]
    for data in files:
        found = decode(data, "g")
        assert farthest(found, expected) <= 1
        assert found.notes[:1] == notes
    half = decode(file_of(np.dstack([grey, np.full_like(grey, 128)]), icc_profile=icc), "g")
    assert np.abs(half.pixels - (expected * 128 + 255.0 * 127) / 255).max() <= 1
    srgb = decode(file_of(grey.astype(np.uint16) * 257, icc_profile=profile("GRAY", "sRGB")), "g")
    assert np.array_equal(srgb.pixels, np.repeat(grey[:, :, None], 3, axis=2))


@pytest.mark.spec("D31/colour-as-it-is-shown")
def test_a_profile_that_does_not_fit_the_pixels_is_noted(shades):
    found = decode(file_of(shades, icc_profile=profile("GRAY", 1.8)), "i")
    assert np.array_equal(found.pixels, shades)
    assert found.notes == ("the embedded profile: cannot be used; the colours are taken for sRGB",)
    grey, icc = np.ascontiguousarray(shades[:, :, 0]), profile("RGB ", 1.8)
    found = decode(file_of(grey, "JPEG", quality=100, icc_profile=icc), "i")
    stored = np.asarray(Image.open(io.BytesIO(file_of(grey, "JPEG", quality=100))).convert("RGB"))
    assert farthest(found, judged(stored, icc)) <= 1


def gama(gamma):
    return b"gAMA", struct.pack(">I", round(100000 * gamma))


def chrm(space):
    return b"cHRM", b"".join(struct.pack(">I", round(100000 * v)) for v in CHROMATICITIES[space])


def cicp(*codes):
    return b"cICP", bytes(codes)


def iccp(icc):
    return b"iCCP", b"a\0\0" + zlib.compress(icc)


SRGB_CHUNK = (b"sRGB", b"\0")
STATED = [
    ([gama(1.0)], LINEAR, "sRGB", "gAMA"),
    ([gama(0.55556)], 1.8, "sRGB", "gAMA"),
    ([gama(0.45471), chrm("Adobe RGB")], 2.19921875, "Adobe RGB", "gAMA and cHRM"),
    ([chrm("Adobe RGB")], "sRGB", "Adobe RGB", "cHRM"),
    ([SRGB_CHUNK, gama(1.0), chrm("Adobe RGB")], None, None, None),
    ([gama(1.0), iccp(profile("RGB ", 1.8))], 1.8, "sRGB", "the embedded profile"),
    ([SRGB_CHUNK, iccp(profile("RGB ", 1.8))], 1.8, "sRGB", "the embedded profile"),
    ([cicp(12, 13, 0, 1)], "sRGB", "Display P3", "cICP"),
    ([cicp(9, 1, 0, 1)], "BT.709", "BT.2020", "cICP"),
    ([cicp(1, 8, 0, 1)], LINEAR, "sRGB", "cICP"),
    ([cicp(12, 13, 0, 1), iccp(profile("RGB ", LINEAR)), gama(1.0)], "sRGB", "Display P3", "cICP"),
    ([cicp(1, 13, 0, 1), iccp(profile("RGB ", LINEAR)), gama(1.0)], None, None, None),
]  # fmt: skip


@pytest.mark.spec("D31/colour-as-it-is-shown")
@pytest.mark.parametrize(("chunks", "curve", "colorants", "source"), STATED)
def test_what_a_png_states_counts_in_the_order_of_its_specification(shades, chunks, curve, colorants, source):
    for order in (chunks, chunks[::-1]):
        found = decode(chunked(file_of(shades), *order), "p")
        expected = shades if curve is None else judged(shades, profile("RGB ", curve, colorants))
        assert farthest(found, expected) <= (0 if curve is None else 1)
        assert found.notes == (() if curve is None else (f"colours converted to sRGB from {source}",))


@pytest.mark.spec("D31/colour-as-it-is-shown")
def test_what_a_png_states_counts_for_grey_palettes_and_transparency_too(shades):
    grey = np.ascontiguousarray(shades[:, :, 0])
    expected = judged(np.repeat(grey[:, :, None], 3, axis=2), profile("RGB ", 1.8))
    for image in (grey, grey.astype(np.uint16) * 257, np.dstack([grey, np.full_like(grey, 255)])):
        assert farthest(decode(chunked(file_of(image), gama(0.55556)), "p"), expected) <= 1
    flat = Image.fromarray(shades).quantize(16)
    colours = np.asarray(flat.convert("RGB"))
    assert farthest(decode(chunked(file_of(flat), gama(1.0)), "p"), judged(colours, profile("RGB ", LINEAR))) <= 1


@pytest.mark.spec("D31/colour-as-it-is-shown")
@pytest.mark.parametrize(("code", "name"), [(16, "PQ"), (18, "HLG")])
def test_high_dynamic_range_is_noted_on_the_result(shades, code, name):
    data = chunked(file_of(shades), cicp(9, code, 0, 1))
    result = AgenticIQA()(image=data)
    note = f"cICP: {name} (high dynamic range) cannot be converted"
    assert result.state.image_notes == [f"{note}; the colours are taken for sRGB"]
    assert np.array_equal(decode(data, "h").pixels, shades)
    # A profile beside it is for those who cannot read it.
    icc = profile("RGB ", 1.8)
    found = decode(chunked(file_of(shades), cicp(9, code, 0, 1), iccp(icc)), "h")
    assert farthest(found, judged(shades, icc)) <= 1
    assert found.notes == ("colours converted to sRGB from the embedded profile", note)


@pytest.mark.spec("D31/colour-as-it-is-shown")
@pytest.mark.parametrize("kind", ["AVIF", "HEIF"])
def test_the_nclx_codes_of_avif_and_heif_are_applied(shades, kind):
    if kind == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener(thumbnails=False)
    if kind not in Image.registered_extensions().values():
        pytest.skip(f"this Pillow writes no {kind}")
    plain = file_of(shades, kind, quality=95)
    at = plain.index(b"colrnclx") + 8
    stored = np.asarray(Image.open(io.BytesIO(plain)).convert("RGB"))
    assert np.array_equal(decode(plain, "a").pixels, stored)
    for codes, curve, colorants in (((12, 13), "sRGB", "Display P3"), ((9, 1), "BT.709", "BT.2020")):
        found = decode(plain[:at] + struct.pack(">HH", *codes) + plain[at + 4 :], "a")
        assert farthest(found, judged(stored, profile("RGB ", curve, colorants))) <= 1
        assert found.notes == ("colours converted to sRGB from nclx",)
    found = decode(plain[:at] + struct.pack(">HH", 9, 16) + plain[at + 4 :], "a")
    assert found.notes == ("nclx: PQ (high dynamic range) cannot be converted; the colours are taken for sRGB",)
    # Property 0 is none: not the last one.
    box = plain.index(b"ipma") - 4
    size, several = int.from_bytes(plain[box : box + 4]), plain[box + 18]
    nothing = plain[: box + 19] + bytes(several) + plain[box + 19 + several :]
    assert size == 19 + several
    assert nclx_of(nothing) is None
    assert nclx_of(plain) is not None
    # A profile of its own counts before them.
    icc = profile("RGB ", 1.8)
    found = decode(file_of(shades, kind, quality=95, icc_profile=icc), "a")
    assert farthest(found, judged(stored, icc)) <= 1


@pytest.mark.spec("D31/colour-as-it-is-shown")
def test_a_pil_image_keeps_the_colours_that_its_file_stated(shades):
    store, expected = ImageStore(), judged(shades, profile("RGB ", 1.8))
    for data in (chunked(file_of(shades), gama(0.55556)), file_of(shades, icc_profile=profile("RGB ", 1.8))):
        pixels = store.pixels(store.add(Image.open(io.BytesIO(data))))
        assert np.abs(pixels.astype(int) - expected).max() <= 1


@pytest.mark.spec("D31/colour-as-it-is-shown")
def test_codes_and_chunks_that_mean_nothing_are_noted_and_change_nothing(shades):
    nowhere = (b"cHRM", struct.pack(">8I", *[10000] * 8))
    for chunk in (cicp(77, 13, 0, 1), cicp(1, 13, 0, 0), gama(0.00001), nowhere):
        found = decode(chunked(file_of(shades), chunk), "p")
        assert np.array_equal(found.pixels, shades)
        assert len(found.notes) == 1
        assert found.notes[0].endswith("; the colours are taken for sRGB")
    for chunk in ((b"cICP", b"\1"), (b"gAMA", bytes(4))):
        assert np.array_equal(decode(chunked(file_of(shades), chunk), "p").pixels, shades)
