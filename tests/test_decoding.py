"""Every kind of file against pixels that were made without the decoder."""

import contextlib
import io
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from benchmarks.soak import scans, strips
from program.common.errors import ImageError
from program.images import decode_worker
from program.images.decoding import decode
from program.images.refs import reduced_size, reduction
from program.images.store import LARGE, ImageStore
from tests.pictures import file_of, noise

KINDS = ["PNG", "TIFF", "WEBP"]


def packed(values, depth):
    """Samples of 1 to 8 bits, side by side and filled up to whole bytes."""
    bits = "".join(f"{value:0{depth}b}" for value in values)
    bits += "0" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8)


def png(samples, colour_type, *, depth=16, chunks=()):
    """A PNG written by hand from H x W x channels samples (ISO 15948, filter 0)."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = samples.shape[:2]
    rows = (row.astype(">u2").tobytes() if depth == 16 else packed(row.ravel().tolist(), depth) for row in samples)
    raw = b"".join(b"\0" + row for row in rows)
    head = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    middle = b"".join(chunk(kind, data) for kind, data in chunks)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + middle + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
    )


def tiff(samples):
    """A little-endian 16-bit RGB TIFF written by hand (TIFF 6.0, one strip)."""
    height, width, _ = samples.shape
    data = samples.astype("<u2").tobytes()
    bits_at = 8 + len(data)
    entries = [
        (256, 3, 1, width), (257, 3, 1, height), (258, 3, 3, bits_at), (259, 3, 1, 1), (262, 3, 1, 2), (273, 4, 1, 8),
        (277, 3, 1, 3), (278, 3, 1, height), (279, 4, 1, len(data)),
    ]  # fmt: skip
    directory = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *e) for e in entries) + bytes(4)
    return struct.pack("<2sHI", b"II", 42, bits_at + 6) + data + struct.pack("<HHH", 16, 16, 16) + directory


def over_white(colour, alpha):
    """The definition, in exact arithmetic."""
    return colour * (alpha / 255.0) + 255.0 * (1 - alpha / 255.0)


def test_alpha_is_laid_over_white(photo, rng):
    alpha = rng.integers(0, 256, (40, 60), dtype=np.uint8)
    expected = over_white(photo.astype(float), alpha[:, :, None])
    for kind in KINDS:
        found = decode(
            file_of(np.dstack([photo, alpha]), kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {})),
            "a",
        )
        assert np.abs(found.pixels - expected).max() <= 0.5 + 1e-9, kind
        assert found.notes == ("transparency laid over white",)
    grey = decode(file_of(np.dstack([photo[:, :, 0], alpha])), "la").pixels
    expected = over_white(photo[:, :, :1].astype(float), alpha[:, :, None])
    assert np.abs(grey - expected).max() <= 0.5 + 1e-9


def test_palettes_and_their_transparency(rng):
    indexes = rng.integers(0, 4, (12, 18), dtype=np.uint8)
    colours = np.array([[10, 20, 30], [200, 0, 90], [0, 255, 0], [7, 7, 7]], np.uint8)
    image = Image.frombytes("P", (18, 12), indexes.tobytes())
    image.putpalette(colours.ravel().tolist())
    assert np.array_equal(decode(file_of(image), "p").pixels, colours[indexes])
    one = decode(file_of(image, transparency=1), "p").pixels
    expected = colours.copy()
    expected[1] = 255
    assert np.array_equal(one, expected[indexes])
    several = decode(file_of(image, transparency=bytes([255, 0, 128, 255])), "p").pixels
    expected = over_white(colours.astype(float), np.array([[255], [0], [128], [255]]))
    assert np.abs(several - expected[indexes]).max() <= 0.5 + 1e-9
    assert np.array_equal(decode(file_of(image, "GIF"), "g").pixels, colours[indexes])


def test_a_colour_key_is_transparent(photo):
    photo = photo.copy()
    photo[3, 4] = key = (1, 2, 3)
    found = decode(png(photo, 2, depth=8, chunks=[(b"tRNS", struct.pack(">3H", *key))]), "k").pixels
    expected = photo.copy()
    expected[(photo == key).all(axis=2)] = 255
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_a_grey_key_is_compared_with_the_samples_as_they_are_stored(depth):
    highest = 2**depth - 1
    samples = np.arange(16 * 17).reshape(16, 17) % (highest + 1)
    for key in {0, 1, highest // 2 + 1, highest}:
        for written in (key, key + 0xFFFF - highest):  # only the lowest bits count
            found = decode(png(samples, 0, depth=depth, chunks=[(b"tRNS", struct.pack(">H", written))]), "k")
            expected = np.where(samples == key, 255, samples * 255 // highest)
            assert np.array_equal(found.pixels, np.repeat(expected[:, :, None], 3, axis=2))
            assert found.notes == ("transparency laid over white",)


def test_a_key_of_16_bit_colour_is_compared_with_both_bytes_of_each_sample(rng):
    values = rng.integers(0, 65536, (12, 20, 3), dtype=np.uint16)
    values[2, 3], values[4, 5] = key, near = (4660, 22136, 39612), (4660, 22136, 39613)
    keyed = decode(png(values, 2, chunks=[(b"tRNS", struct.pack(">3H", *key))]), "k")
    expected = decode(png(values, 2), "k").pixels.copy()
    expected[2, 3] = 255
    assert np.array_equal(keyed.pixels, expected)
    assert keyed.pixels[4, 5].tolist() == [value >> 8 for value in near]
    assert keyed.notes == ("transparency laid over white",)
    none = decode(png(values, 2, chunks=[(b"tRNS", struct.pack(">3H", 4660, 22136, 39614))]), "k")
    assert none.notes == ()
    dark = np.full((9, 9, 3), 5, np.uint16)  # a key below 256 is no colour of 8 bits
    assert decode(png(dark * 257, 2, chunks=[(b"tRNS", struct.pack(">3H", 5, 5, 5))]), "k").notes == ()


def test_16_bit_grey_is_rounded(rng):
    values = rng.integers(0, 65536, (30, 20), dtype=np.uint16)
    values[0, :3] = (0, 65535, 256)
    expected = np.rint(values / 257.0).astype(np.uint8)
    for data in (png(values, 0), file_of(values, "TIFF")):
        assert np.array_equal(decode(data, "g").pixels, np.repeat(expected[:, :, None], 3, axis=2))
    keyed = decode(png(values, 0, chunks=[(b"tRNS", struct.pack(">H", 256))]), "g").pixels
    assert keyed[0, 2].tolist() == [255] * 3
    assert np.array_equal(keyed[0, :2, 0], expected[0, :2])


def test_16_bit_colour_is_within_one_level(rng):
    values = rng.integers(0, 65536, (30, 20, 3), dtype=np.uint16)
    values[0, 0], values[0, 1] = 0, 65535
    for data in (png(values, 2), tiff(values)):
        found = decode(data, "c").pixels
        assert np.abs(found - values / 257.0).max() <= 1.0
        assert found[0, :2].tolist() == [[0] * 3, [255] * 3]
    eight = rng.integers(0, 256, (30, 20, 3), dtype=np.uint16)
    for data in (png(eight * 257, 2), tiff(eight * 257)):
        assert np.array_equal(decode(data, "c").pixels, eight)
    alpha = rng.integers(0, 65536, (30, 20, 1), dtype=np.uint16)
    deep = decode(png(np.dstack([values, alpha]), 6), "c").pixels
    share = alpha / 65535.0
    assert np.abs(deep - (values / 257.0 * share + 255 * (1 - share))).max() <= 2.0


def test_cmyk_is_read_as_ink(rng):
    inks = rng.integers(0, 256, (16, 16, 4), dtype=np.uint8)
    expected = (255.0 - inks[:, :, :3]) * (255.0 - inks[:, :, 3:]) / 255.0
    image = Image.frombytes("CMYK", (16, 16), inks.tobytes())
    assert np.abs(decode(file_of(image, "TIFF"), "c").pixels - expected).max() <= 1.0
    flat = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    red = decode(file_of(flat, "JPEG", quality=100), "c").pixels.reshape(-1, 3).mean(axis=0)
    assert np.abs(red - (255, 0, 0)).max() <= 3


def displayed(stored, orientation):
    """What EXIF says of where row 0 and column 0 are on display, written out pixel by pixel."""
    height, width = stored.shape[:2]
    shape = (height, width) if orientation <= 4 else (width, height)
    shown = np.empty((*shape, 3), np.uint8)
    for y in range(height):
        for x in range(width):
            row, column = {
                1: (y, x), 2: (y, width - 1 - x), 3: (height - 1 - y, width - 1 - x), 4: (height - 1 - y, x),
                5: (x, y), 6: (x, height - 1 - y), 7: (width - 1 - x, height - 1 - y), 8: (width - 1 - x, y),
            }[orientation]  # fmt: skip
            shown[row, column] = stored[y, x]
    return shown


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_every_orientation_is_turned_upright(photo, orientation, kind):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"WEBP": {"lossless": True}, "JPEG": {"quality": 95, "subsampling": 0}}.get(kind, {})
    data = file_of(photo, kind, exif=exif, **options)
    stored = np.asarray(Image.open(io.BytesIO(file_of(photo, kind, **options))).convert("RGB"))
    expected = displayed(stored, orientation)
    store = ImageStore()
    ref = store.add(data)
    assert np.array_equal(store.pixels(ref), expected)
    assert (ref.height, ref.width) == expected.shape[:2]
    part = decode(data, "o", area=(5, 7, 21, 36)).pixels
    assert np.array_equal(part, expected[7:36, 5:21])


def test_a_rotated_pil_image_is_stored_upright(photo):
    exif = Image.Exif()
    exif[0x0112] = 6
    opened = Image.open(io.BytesIO(file_of(photo, exif=exif)))
    store = ImageStore()
    assert np.array_equal(store.pixels(store.add(opened)), displayed(photo, 6))


def test_a_deep_pil_image_is_not_clipped():
    store = ImageStore()
    deep = Image.fromarray(np.full((9, 9), 32896, np.int32))
    assert store.pixels(store.add(deep)).tolist() == np.full((9, 9, 3), 128).tolist()


def test_a_pil_image_of_32_bit_integers_is_read_by_its_range_or_refused(rng):
    store, values = ImageStore(), rng.integers(0, 256, (9, 9)).astype(np.int32)
    values[0, :2] = 0, 255
    for wide, expected in ((values, values), (values * 257, values)):
        found = store.pixels(store.add(Image.fromarray(wide)))
        assert np.array_equal(found, np.repeat(expected[:, :, None], 3, axis=2))
    for wide, told in (
        (values * 65537 - 5, "from -5 to"),
        (values - 1, "from -1 to 254"),
        (values * 70000, "17850000"),
    ):
        with pytest.raises(ImageError, match=told):
            store.add(Image.fromarray(wide))


def grey_tiff(samples, bits, *, photometric=1, sample_format=1):
    """A TIFF of one strip of grey, in the byte order of its samples; `samples` may be bytes of 64 x 64 pixels."""
    order = ">" if isinstance(samples, np.ndarray) and samples.dtype.str[0] == ">" else "<"
    data = samples if isinstance(samples, bytes) else samples.tobytes()
    entries = [
        (256, 64), (257, 64), (258, bits), (259, 1), (262, photometric), (273, 8), (277, 1), (278, 64),
        (279, len(data)), (339, sample_format),
    ]  # fmt: skip
    packed = [struct.pack(f"{order}HHI", tag, 4, 1) + struct.pack(f"{order}I", value) for tag, value in entries]
    directory = struct.pack(f"{order}H", len(entries)) + b"".join(packed) + bytes(4)
    head = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HI", 42, 8 + len(data))
    return head + data + directory


GREYS = np.arange(4096).reshape(64, 64)


def test_greys_of_12_bits_and_greys_that_begin_at_white_are_read_by_their_range():
    packed = b"".join(bytes([a >> 4, (a & 15) << 4 | b >> 8, b & 255]) for a, b in GREYS.reshape(-1, 2).tolist())
    expected = np.repeat(np.rint(GREYS * 255 / 4095)[:, :, None], 3, axis=2)
    assert np.abs(decode(grey_tiff(packed, 12), "t").pixels - expected).max() <= 1
    deep = (GREYS * 16).astype("<u2")
    white_first = decode(grey_tiff(deep, 16, photometric=0), "t").pixels
    assert np.array_equal(white_first, 255 - decode(grey_tiff(deep, 16), "t").pixels)


@pytest.mark.parametrize("dtype", ["<u4", "<i4", ">i4", "<i2", "<i1"])
def test_integers_of_32_bits_or_with_a_sign_are_refused_in_a_line(dtype):
    kind = np.dtype(dtype)
    for scale in (1, 1 << max(0, kind.itemsize * 8 - 13)):
        data = grey_tiff((GREYS * scale).astype(kind), kind.itemsize * 8, sample_format=2 if kind.kind == "i" else 1)
        with pytest.raises(ImageError, match="integer pixels of 32 bits or with a sign are not read here; convert it"):
            ImageStore().add(data)


def test_the_note_on_transparency_speaks_of_pixels_that_are_not_opaque(photo):
    opaque = np.dstack([photo, np.full((40, 60), 255, np.uint8)])
    clear = opaque.copy()
    clear[3, 4, 3] = 254
    flat = Image.fromarray(photo).quantize(8)
    unused = flat.copy()
    unused.putpalette([*flat.getpalette()[:24], 1, 2, 3])
    for image, options, notes in (
        (opaque, {}, ()), (clear, {}, ("transparency laid over white",)),
        (unused, {"transparency": 8}, ()), (flat, {"transparency": 0}, ("transparency laid over white",)),
        (flat, {"transparency": bytes([255] * 8)}, ()),
    ):  # fmt: skip
        assert decode(file_of(image, **options), "t").notes == notes
    deep = np.full((9, 9), 700, np.uint16)
    for key, notes in ((699, ()), (700, ("transparency laid over white",))):
        assert decode(png(deep, 0, chunks=[(b"tRNS", struct.pack(">H", key))]), "t").notes == notes


def test_floating_point_pixels_are_refused():
    image = Image.fromarray(np.full((9, 9), 0.5, np.float32))
    with pytest.raises(ImageError, match="floating-point pixels are not read here; convert it to an 8- or 16-bit PNG"):
        ImageStore().add(file_of(image, "TIFF"))
    with pytest.raises(ImageError, match="image of mode F: cannot be read"):
        ImageStore().add(image)


def bmp(width, height):
    """The head of a BMP of such a size, and no more of it than 100 bytes."""
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 100, 2835, 2835, 0, 0)
    return b"BM" + struct.pack("<IHHI", 154, 0, 0, 54) + head + bytes(100)


def test_a_row_that_is_too_long_for_the_decoder_is_the_images_error():
    long = bytearray(png(np.zeros((1, 1, 3)), 2))
    long[16:20] = struct.pack(">I", 49_000_000)
    long[29:33] = struct.pack(">I", zlib.crc32(long[12:29]))
    for data in (bmp(119_999_999, 1), bytes(long)):
        with pytest.raises(ImageError, match=r"image 'long': .*scale it down"):
            decode(data, "long")


FAULTS = [MemoryError(), RecursionError("deep"), struct.error("short"), zlib.error("stream"), OverflowError("int"),
          IndexError("list"), KeyError("key"), AttributeError("None"), RuntimeError("two\nlines")]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_whatever_a_decoder_raises_is_the_images_error(photo, monkeypatch, fault):
    def broken(self):
        raise fault

    data, opened = file_of(photo), Image.open(io.BytesIO(file_of(photo)))
    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", broken)
    with pytest.raises(ImageError, match=r"^image 'x': .+") as caught:
        decode(data, "x")
    assert "\n" not in str(caught.value)
    with pytest.raises(ImageError):
        ImageStore().add(opened)


def test_an_interrupt_is_no_fault_of_the_image(photo, monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", interrupted)
    with pytest.raises(KeyboardInterrupt):
        decode(file_of(photo), "x")


def swapped_profile():
    """An ICC profile whose red and green primaries are sRGB's green and red: conversion swaps the two channels."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    count = struct.unpack(">I", data[128:132])[0]
    places = {bytes(data[132 + 12 * i : 136 + 12 * i]): 132 + 12 * i for i in range(count)}
    red, green = places[b"rXYZ"], places[b"gXYZ"]
    data[red + 4 : red + 12], data[green + 4 : green + 12] = data[green + 4 : green + 12], data[red + 4 : red + 12]
    return bytes(data).replace("sRGB".encode("utf-16-be"), "qqqq".encode("utf-16-be"))


def test_a_colour_profile_is_applied(photo):
    found = decode(file_of(photo, icc_profile=swapped_profile()), "i")
    assert np.abs(found.pixels.astype(int) - photo[:, :, [1, 0, 2]]).max() <= 2
    assert found.notes == ("colours converted to sRGB from the embedded profile",)
    alpha = np.full((40, 60), 128, np.uint8)
    half = decode(file_of(np.dstack([photo, alpha]), icc_profile=swapped_profile()), "i").pixels
    assert np.abs(half - over_white(photo[:, :, [1, 0, 2]].astype(float), 128)).max() <= 2


def test_srgb_and_broken_profiles_change_nothing_and_the_broken_ones_are_noted(photo):
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    unusable = ("the embedded profile: cannot be used; the colours are taken for sRGB",)
    for profile, notes in ((srgb, ()), (b"no profile at all", unusable), (srgb[:200], unusable)):
        found = decode(file_of(photo, icc_profile=profile), "i")
        assert np.array_equal(found.pixels, photo)
        assert found.notes == notes


def test_of_an_animation_the_first_frame_is_read(photo):
    frames = [Image.fromarray(p) for p in (photo, 255 - photo, photo[::-1])]
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {})):
        found = decode(file_of(frames[0], kind, save_all=True, append_images=frames[1:], **options), "a")
        assert np.array_equal(found.pixels, photo), kind
        assert found.notes == ("the first of several frames is judged",)


def tiff_of_pages(count):
    """One strip of 16 x 16 grey pixels, and `count` directories that show it."""
    entries = [
        (256, 3, 1, 16), (257, 3, 1, 16), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 8),
        (277, 3, 1, 1), (278, 3, 1, 16), (279, 4, 1, 256),
    ]  # fmt: skip
    entry = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *e) for e in entries)
    first, size = 8 + 256, len(entry) + 4
    following = [*(first + size * (number + 1) for number in range(count - 1)), 0]
    pages = b"".join(entry + struct.pack("<I", number) for number in following)
    return struct.pack("<2sHI", b"II", 42, first) + bytes(256) + pages


def behind_the_head(kind, part, length):
    """A small image with a part repeated up to `length` bytes behind its first bytes."""
    whole = file_of(np.zeros((16, 16, 3), np.uint8), kind)
    head = {"PNG": 33, "JPEG": 2}[kind]
    return whole[:head] + part * (length // len(part)) + whole[head:]


def profile_chunk():
    data = b"iCCP" + b"a\0\0" + zlib.compress(bytes(2**20 - 1))
    return struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))


BOMBS = {
    "PNG profiles": lambda: behind_the_head("PNG", profile_chunk(), 2**20),
    "JPEG Exif": lambda: behind_the_head("JPEG", b"\xff\xe1\0\x0cExif\0\0abcd", 2 * 2**20),
    "JPEG scans": lambda: scans(200_000),
    "PBM comments": lambda: b"P1 2 2\n" + b"#\n" * 2**18 + b"1 0 0 1",
    "TIFF strips": lambda: strips(500_000),
}


@pytest.mark.parametrize(
    "kind", [name if name == "JPEG scans" else pytest.param(name, marks=pytest.mark.slow) for name in BOMBS]
)
def test_a_small_file_made_to_take_long_is_given_up_and_the_next_one_read(kind, photo):
    data, store = BOMBS[kind](), ImageStore()
    with pytest.raises(ImageError, match=r"^image 'bytes:\w+': takes too long to decode; save it again"):
        store.add(data)
    assert np.array_equal(store.pixels(store.add(file_of(photo))), photo)


def test_a_tiff_of_many_pages_is_read_at_once():
    begun = time.process_time()
    assert decode(tiff_of_pages(3 * 2**20 // 114), "a").notes == ("the first of several frames is judged",)
    assert time.process_time() - begun < 0.5


def workers():
    """The processes that decode for this one."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid() and b"serve_decoding" in (folder / "cmdline").read_bytes():
                found[int(folder.name)] = folder
    return found


needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the system shows no processes")


@needs_proc
def test_a_worker_that_was_ended_is_replaced(photo):
    store = ImageStore()
    store.add(file_of(photo))
    before = workers()
    assert before
    for process, folder in before.items():
        os.kill(process, signal.SIGKILL)
        while ") Z " not in (folder / "stat").read_text():
            time.sleep(0.01)
    assert np.array_equal(store.pixels(store.add(file_of(255 - photo))), 255 - photo)
    assert not set(before) & set(workers())


@needs_proc
def test_a_decoder_that_ends_its_process_costs_one_image(photo):
    store = ImageStore()
    store.add(file_of(photo))
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(store.add, strips(500_000))
        while not slow.done():
            for process in workers():
                os.kill(process, signal.SIGSEGV)
            time.sleep(0.01)
    with pytest.raises(ImageError, match=r"^image 'bytes:\w+': ends its decoder \(exit code -11\); save it again"):
        slow.result()
    assert store.add(file_of(255 - photo)).width == 60


@needs_proc
def test_a_worker_that_is_kept_waiting_is_given_time_and_a_stuck_one_is_ended(photo, monkeypatch):
    store, timer = ImageStore(), threading.Timer
    store.add(file_of(photo))

    def stopped(data):
        """Add an image while no worker gets any processor time for a second."""
        for process in workers():
            os.kill(process, signal.SIGSTOP)
        timer(1.0, lambda: [os.kill(process, signal.SIGCONT) for process in workers()]).start()
        return store.add(data)

    with monkeypatch.context() as patch:  # a second is two minutes to the clock that ends workers
        patch.setattr(threading, "Timer", lambda seconds, call: timer(seconds / 120, call))
        assert stopped(file_of(255 - photo)).width == 60
    with monkeypatch.context() as patch:
        patch.setattr(decode_worker, "_STUCK_S", 0.2)
        with pytest.raises(ImageError, match="takes too long to decode"):
            stopped(file_of(photo[:-1]))
    assert store.add(file_of(photo[:-2])).width == 60


@needs_proc
def test_a_worker_that_is_ended_while_the_clock_starts_took_too_long(photo, monkeypatch):
    class HeldUp(threading.Timer):
        def start(self):
            time.sleep(self.interval)
            self.function()

    monkeypatch.setattr(decode_worker, "_STUCK_S", 0.05)
    monkeypatch.setattr(threading, "Timer", HeldUp)
    with pytest.raises(ImageError, match="takes too long to decode"):
        ImageStore().add(file_of(photo[1:]))


def test_where_no_process_can_be_started_images_are_read_all_the_same(photo, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("program.images.decode_worker._WORKERS", decode_worker._Workers())
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    store = ImageStore()
    for pixels in (photo, 255 - photo):
        assert np.array_equal(store.pixels(store.add(file_of(pixels))), pixels)
    assert len([record for record in caplog.records if "without a bound" in record.getMessage()]) == 1
    with pytest.raises(ImageError, match="damaged or truncated"):
        store.add(file_of(photo)[:999])


@needs_proc
def test_workers_are_few_and_hold_no_key(photo, monkeypatch):
    for process in workers():
        os.kill(process, signal.SIGKILL)
    while workers():  # one that is still ending would be taken for an idle one
        time.sleep(0.01)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-a-decoder")
    store, data = ImageStore(), [file_of(np.roll(photo, shift)) for shift in range(24)]
    with ThreadPoolExecutor(12) as pool:
        assert [ref.width for ref in pool.map(store.add, data)] == [60] * 24
    assert 1 <= len(workers()) <= 4
    assert not any(b"sk-not" in (folder / "environ").read_bytes() for folder in workers().values())


PROCESSES = """
import io, multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
from PIL import Image
from program.images.store import IMAGES

def width_of(side):
    file = io.BytesIO()
    Image.new("RGB", (side, 9)).save(file, "PNG")
    return IMAGES.add(file.getvalue()).width

if __name__ == "__main__":
    width_of(1)
    for method in ("fork", "spawn"):
        with ProcessPoolExecutor(2, multiprocessing.get_context(method)) as pool:
            print(method, list(pool.map(width_of, range(10, 18))), width_of(9))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_forked_and_spawned_processes_decode_for_themselves(tmp_path):
    script = tmp_path / "processes.py"
    script.write_text(PROCESSES, "utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=240)
    assert done.stdout.splitlines() == [f"{method} {list(range(10, 18))} 9" for method in ("fork", "spawn")], (
        done.stderr
    )


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "TIFF", "WEBP", "GIF"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.98])
def test_truncated_files_are_a_line(photo, kind, share):
    whole = file_of(photo, kind)
    with pytest.raises(ImageError, match=r"cut': (damaged or truncated|not an image)") as caught:
        decode(whole[: int(len(whole) * share)], "cut")
    assert "\n" not in str(caught.value)


def blocks(pixels, factor):
    """Mean over blocks, each written out."""
    height, width = -(-pixels.shape[0] // factor), -(-pixels.shape[1] // factor)
    out = np.empty((height, width, 3))
    for i in range(height):
        for j in range(width):
            out[i, j] = pixels[i * factor : (i + 1) * factor, j * factor : (j + 1) * factor].mean(axis=(0, 1))
    return out


@pytest.mark.parametrize("factor", [2, 3, 7])
def test_a_large_image_is_averaged_in_blocks(photo, factor, monkeypatch):
    import program.images.decoding

    width, height = reduced_size(60, 40, factor)
    assert reduction(60, 40, width * height) == factor
    expected = blocks(photo.astype(float), factor)
    for strip in (2**22, 60 * factor, 1):
        monkeypatch.setattr(program.images.decoding, "_STRIP_PIXELS", strip)
        found = decode(file_of(photo), "big", at_most=width * height)
        assert found.pixels.shape == (height, width, 3)
        assert (found.width, found.height) == (60, 40)
        assert np.abs(found.pixels - expected).max() <= 0.7  # Pillow's block means are off by up to 0.67


@pytest.mark.parametrize(
    ("size", "factor"), [((1920, 1080), 1), ((2049, 1024), 2), ((10000, 10000), 7), ((1, 10**7), 5)]
)
def test_the_factor_is_the_smallest_that_suits(size, factor):
    assert reduction(*size, LARGE) == factor
    width, height = reduced_size(*size, factor)
    assert width * height <= LARGE
    assert reduction(*size, None) == 1


def test_too_many_pixels_are_refused_before_decoding(photo):
    store = ImageStore()
    with pytest.raises(
        ImageError, match=r"60x40 is over 0\.002 megapixels; scale it down, or raise images\.max_pixels"
    ):
        store.add(file_of(photo), max_pixels=2000)
    assert store.add(file_of(photo), max_pixels=2400).width == 60


def test_pillows_own_limit_neither_warns_nor_stays_changed(photo, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert np.array_equal(decode(file_of(photo), "p").pixels, photo)
    assert Image.MAX_IMAGE_PIXELS == 1000


def test_a_box_of_a_large_image_is_cut_at_full_size(photo, monkeypatch):
    import program.images.store

    store = ImageStore()
    ref = store.add(file_of(photo))
    small = store.pixels(ref, (10, 5, 30, 25))
    monkeypatch.setattr(program.images.store, "LARGE", 600)
    for at_most in (None, 600):
        assert np.array_equal(store.pixels(ref, (10, 5, 30, 25), at_most=at_most), small)
    cut = store.pixels(ref, (10, 5, 30, 25), at_most=100)
    assert np.abs(cut - blocks(photo[5:25, 10:30].astype(float), 2)).max() <= 0.7


def test_a_resized_reference_is_an_image_of_its_own(photo):
    store = ImageStore()
    ref = store.add(file_of(photo))
    assert store.match_size(ref, ref, resample=False) is ref
    other = store.match_size(ref, store.add(file_of(photo[:20, :30])), resample=True)
    assert (other.width, other.height) == (30, 20)
    expected = np.asarray(Image.fromarray(photo).resize((30, 20), Image.Resampling.LANCZOS))
    assert np.array_equal(store.pixels(other), expected)


def test_bytes_over_the_limit_go_to_disk_and_come_back(rng):
    store = ImageStore(held_mb=1)
    photos = [noise(rng, 400, 400) for _ in range(5)]
    data = [file_of(p) for p in photos]
    refs = [store.add(d) for d in data]
    assert sum(isinstance(entry.source, bytes) for entry in store._entries.values()) <= 2
    assert [store.read(ref) for ref in refs] == data
    assert all(np.array_equal(store.pixels(ref), p) for ref, p in zip(refs, photos, strict=True))
