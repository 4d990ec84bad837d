"""Pictures that are not all there: JPEGs cut short, cut out, filled and patched up, each made here from a whole one."""

import io
import re

import numpy as np
import pytest
from PIL import Image, ImageDraw

from program import AgenticIQA, assess
from program.common.errors import ImageError
from program.images.decoding import decode
from program.images.store import ImageStore
from tests.pictures import file_of

KINDS = {
    "baseline": {"quality": 92}, "optimized": {"quality": 85, "optimize": True},
    "4:4:4": {"quality": 90, "subsampling": 0},
    "restarts": {"quality": 85, "restart_marker_rows": 1}, "few restarts": {"quality": 85, "restart_marker_rows": 4},
    "progressive": {"quality": 92, "progressive": True},
}  # fmt: skip
LACKING = ("the file lacks its last bytes: its end is shown as far as it goes",)


def scene(width=320, height=240, seed=5):
    """Waves of colour under noise that grows to the right, as a picture with flat and busy parts."""
    y, x = np.mgrid[:height, :width]
    waves = np.stack([np.sin(x / 17 + y / 40), np.cos(y / 23), np.sin((x + y) / 31)], axis=-1) * 80 + 128
    noise = np.random.default_rng(seed).normal(0, 1, (height, width, 1)) * (x[..., None] / width * 40)
    return Image.fromarray(np.clip(waves + noise, 0, 255).astype(np.uint8))


def flat():
    return Image.new("RGB", (200, 150), (90, 20, 200))


def letters():
    image = Image.new("RGB", (240, 160), (255, 255, 255))
    for row in range(4):
        ImageDraw.Draw(image).text((5, 12 * row), "black on white, and white below", fill=(0, 0, 0))
    return image


PICTURES = {"scene": scene, "flat": flat, "letters": letters, "grey": lambda: scene().convert("L"),
            "small": lambda: scene(24, 18)}  # fmt: skip


def as_shown(data):
    """What a viewer shows of a JPEG that lacks its end."""
    return np.asarray(Image.open(io.BytesIO(data + b"\xff\xd9")).convert("RGB"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("picture", PICTURES)
def test_a_whole_jpeg_is_read_without_a_note_whatever_it_shows(kind, picture):
    data = file_of(PICTURES[picture](), "JPEG", **KINDS[kind])
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    for padded in (data, data[:-2] + b"\0" * 2 + data[-2:], data + b"appended", data[:-2] + b"\xff" * 70 + data[-1:]):
        found = decode(padded, "w")
        assert np.array_equal(found.pixels, expected)
        assert found.notes == ()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("picture", PICTURES)
def test_a_jpeg_without_its_end_marker_is_shown_and_noted_whatever_it_shows(kind, picture):
    data = file_of(PICTURES[picture](), "JPEG", **KINDS[kind])
    whole = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    for cut in (1, 2):
        found = decode(data[:-cut], "e")
        assert np.array_equal(found.pixels, whole)
        assert found.notes == LACKING
    store = ImageStore()
    ref = store.add(data[:-2])
    assert np.array_equal(store.pixels(ref, (3, 3, 17, 16)), whole[3:16, 3:17])


@pytest.mark.parametrize("kind", KINDS)
def test_a_jpeg_a_few_bytes_short_is_shown_as_viewers_do_and_noted(kind):
    data = file_of(scene(), "JPEG", **KINDS[kind])
    for cut in (4, 6, 8):
        found = decode(data[:-cut], "e")
        assert np.array_equal(found.pixels, as_shown(data[:-cut]))
        assert found.notes == LACKING
    result = AgenticIQA()(image=data[:-6])
    assert result.state.image_notes == list(LACKING)


def restarts(data):
    return [found.start() for found in re.finditer(rb"\xff[\xd0-\xd7]", data)]


DAMAGE = {
    "cut short": lambda d, k, n: d[:k],
    "cut short and closed": lambda d, k, n: d[:k].rstrip(b"\xff") + b"\xff\xd9",
    "a fifth lacks, closed": lambda d, k, n: d[: n * 4 // 5].rstrip(b"\xff") + b"\xff\xd9",
    "its middle cut out": lambda d, k, n: d[:k] + d[n * 6 // 10 :],
    "never filled": lambda d, k, n: d[:k] + bytes(n - k - 2) + d[-2:],
    "never filled nor closed": lambda d, k, n: d[:k] + bytes(n - k),
    "a hole": lambda d, k, n: d[: n // 2] + bytes(600) + d[n // 2 + 600 :],
    "wiped": lambda d, k, n: d[: n // 2] + b"\xff" * 600 + d[n // 2 + 600 :],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_jpeg_that_lost_a_part_is_refused(kind, damage):
    for image in (scene(), scene(400, 300, seed=8).convert("L")):
        data = file_of(image, "JPEG", **KINDS[kind])
        with pytest.raises(ImageError, match=r"^image 'd': damaged or truncated \(.+\); get a whole copy$"):
            decode(DAMAGE[damage](data, int(len(data) * 0.35), len(data)), "d")


def test_restarts_that_are_missing_are_named():
    data = file_of(scene(), "JPEG", **KINDS["restarts"])
    places = restarts(data)
    assert len(places) == 14
    one, eight = data[: places[3]] + data[places[4] :], data[: places[2]] + data[places[10] :]
    for lost in (one, eight):
        with pytest.raises(ImageError, match="restarts are missing"):
            decode(lost, "r")
    within = data[: places[4] - 40] + data[places[4] :]  # all are there, and one part ends early
    with pytest.raises(ImageError, match="a scan ends before the picture does"):
        decode(within, "r")


def test_a_progressive_jpeg_without_its_last_scans_is_refused():
    data = file_of(scene(), "JPEG", **KINDS["progressive"])
    starts = [found.start() for found in re.finditer(rb"\xff\xda", data)]
    for count in (1, 4, len(starts) - 1):
        with pytest.raises(ImageError, match="its last scans are missing"):
            decode(data[: starts[count]] + b"\xff\xd9", "p")


def test_a_jpeg_that_lost_its_middle_passes_no_gate(tmp_path, capsys):
    data = file_of(scene(), "JPEG", quality=92)
    (tmp_path / "cut.jpg").write_bytes(data[: len(data) // 3] + b"\xff\xd9")
    assert assess.main([str(tmp_path / "cut.jpg"), "--min-score", "1.5"]) in {1, 2}
    assert "damaged or truncated" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "options"), [
    ("WEBP", {"quality": 80}), ("WEBP", {"lossless": True}), ("AVIF", {"quality": 70, "speed": 9}),
    ("HEIF", {"quality": 80}),
])  # fmt: skip
def test_webp_avif_and_heif_with_a_part_that_was_never_written_are_refused(kind, options):
    if kind == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener(thumbnails=False)
    if kind not in Image.registered_extensions().values():
        pytest.skip(f"this Pillow writes no {kind}")

    def saved(image, **extra):
        file = io.BytesIO()
        image.save(file, kind, **options, **extra)
        return file.getvalue()

    exif = Image.Exif()
    exif[0x010E] = "zeros that stand for nothing" + "\0" * 3000 + "here"
    for picture in (flat(), Image.new("RGB", (2000, 1500)), letters(), scene()):
        assert decode(saved(picture, exif=exif), "w").notes == ()
    with_alpha = scene().convert("RGBA")
    with_alpha.putalpha(Image.linear_gradient("L").resize(with_alpha.size))
    assert decode(saved(with_alpha), "w").notes == ("transparency laid over white",)
    data = saved(scene(400, 300))
    size = len(data)
    for first, last in ((size // 3, size * 2 // 3), (size // 2, size // 2 + 600), (size * 2 // 3, size)):
        with pytest.raises(ImageError, match=r"damaged or truncated \(a part of it was never written\)"):
            decode(data[:first] + bytes(last - first) + data[last:], "d")
