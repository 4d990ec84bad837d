"""What a model is sent of an image: the original bytes, or a recorded picture that its service takes."""

import base64
import io

import numpy as np
import pytest
from cachetools import LRUCache, cached
from cachetools.keys import hashkey
from PIL import Image

from program.common.backends import ImageLimits
from program.common.errors import ImageError
from program.common.settings import load_settings
from program.images import sending
from program.images.store import IMAGES
from program.lms.call import meter
from program.lms.reference_engine import encoded_image
from tests.pictures import blocks, file_of, noise

TAKES_ALL = ImageLimits(formats=("png", "jpeg", "webp", "gif", "bmp", "tiff"))
STRICT = ImageLimits(formats=("png", "jpeg"))


def decoded(image):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(image.data))))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF"])
def test_a_format_that_the_service_takes_is_sent_byte_for_byte(kind, picture):
    data = file_of(picture(7), kind)
    sent = encoded_image(IMAGES.add(data), TAKES_ALL)
    assert base64.b64decode(sent.data) == data
    assert sent.media_type == f"image/{kind.lower()}"
    assert (sent.record.change, sent.record.size_bytes) == (None, len(data))
    assert sent.data_uri == f"data:{sent.media_type};base64,{sent.data}"


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        ("BMP", {}, "bmp"),
        ("TIFF", {}, "tiff"),
        ("WEBP", {"lossless": True}, "webp"),
        ("PPM", {}, "ppm"),
        ("GIF", {}, "gif"),
    ],
)
def test_other_formats_become_png_without_loss_and_say_so(kind, options, name, picture):
    pixels = picture(8)
    if kind == "GIF":
        pixels = np.repeat(pixels[:, :, :1] // 2, 3, axis=2)  # at most 256 colours, so that GIF itself loses nothing
    ref = IMAGES.add(file_of(pixels, kind, **options))
    sent = encoded_image(ref, STRICT)
    assert sent.media_type == "image/png"
    assert np.array_equal(decoded(sent), IMAGES.pixels(ref))
    assert np.array_equal(decoded(sent), pixels)
    assert sent.record.change == f"{name} as png"


def test_of_an_animation_the_frame_is_sent_that_the_tools_measure(picture):
    frames = [Image.fromarray(picture(seed)).convert("P") for seed in (1, 2)]
    ref = IMAGES.add(file_of(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    assert np.array_equal(decoded(encoded_image(ref, STRICT)), IMAGES.pixels(ref))


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bit_grey_is_sent_as_what_the_tools_see(kind, rng):
    ref = IMAGES.add(file_of(rng.integers(0, 65536, (40, 30), dtype=np.uint16), kind))
    sent = encoded_image(ref, STRICT)
    assert np.array_equal(decoded(sent), IMAGES.pixels(ref))
    assert sent.record.change in {"16-bit grey as 8-bit png", "tiff as png"}


def test_a_rotated_photograph_that_is_converted_is_sent_upright(picture):
    exif = Image.Exif()
    exif[0x0112] = 6
    ref = IMAGES.add(file_of(picture(3), "WEBP", lossless=True, exif=exif))
    sent = encoded_image(ref, STRICT)
    assert (sent.record.width, sent.record.height) == (ref.width, ref.height) == (32, 48)
    assert np.array_equal(decoded(sent), IMAGES.pixels(ref))


def test_a_side_over_the_limit_is_scaled_for_the_model_alone(rng):
    pixels = blocks(rng, 10, 20, 10)
    ref = IMAGES.add(file_of(pixels, "JPEG"))
    sent = encoded_image(ref, ImageLimits(formats=("jpeg",), max_side_px=64))
    assert decoded(sent).shape == (32, 64, 3)
    assert sent.record.change == "scaled from 200x100 to 64x32"
    assert IMAGES.pixels(ref).shape == (100, 200, 3)
    wanted = Image.fromarray(IMAGES.pixels(ref)).resize((64, 32), Image.Resampling.LANCZOS)
    assert np.array_equal(decoded(sent), np.asarray(wanted))


@pytest.mark.parametrize("limit", [10_000, 25_000, 60_000])
def test_too_many_bytes_are_scaled_to_just_fit(limit, rng):
    ref = IMAGES.add(file_of(noise(rng, 160, 240), "PNG"))
    sent = encoded_image(ref, ImageLimits(formats=("png",), max_bytes=limit))
    size = len(base64.b64decode(sent.data))
    assert 0.5 * limit < size <= limit
    assert sent.record.size_bytes == size
    assert sent.record.change == f"scaled from 240x160 to {sent.record.width}x{sent.record.height}"
    assert sent.record.width / sent.record.height == pytest.approx(1.5, abs=0.05)


def test_bytes_that_png_saves_cost_no_pixel(picture):
    ref = IMAGES.add(file_of(np.full((100, 200, 3), 7, np.uint8), "BMP"))
    sent = encoded_image(ref, ImageLimits(formats=("bmp",), max_bytes=10_000))
    assert decoded(sent).shape == (100, 200, 3)
    assert sent.record.change == "bmp as png, which is smaller"


def test_a_file_that_changed_is_not_sent(tmp_path, picture):
    file = tmp_path / "a.png"
    file.write_bytes(file_of(picture(21), "PNG"))
    ref = IMAGES.add(file)
    file.write_bytes(file_of(picture(22), "PNG"))
    with pytest.raises(ImageError, match="changed since it was opened"):
        encoded_image(ref, STRICT)


def bounded(monkeypatch, size):
    """Let encoded images take so many bytes, and return what they are kept in."""
    cache = LRUCache(size, sending.encode.cache.getsizeof)
    monkeypatch.setattr(sending, "encode", cached(cache)(sending.encode.__wrapped__))
    return cache


def test_encoded_images_are_kept_within_their_bound(monkeypatch, rng):
    cache = bounded(monkeypatch, 100_000)
    refs = [IMAGES.add(noise(rng, 64, 64)) for _ in range(20)]
    for ref in refs:
        encoded_image(ref, STRICT)
    assert 0 < sum(len(image.data) for image in cache.values()) == cache.currsize <= 100_000
    assert hashkey(refs[-1], STRICT) in cache
    assert hashkey(refs[0], STRICT) not in cache
    first = encoded_image(refs[-1], STRICT)
    assert encoded_image(refs[-1], STRICT) is first
    assert encoded_image(refs[-1], ImageLimits(max_side_px=64)) is not first


def test_an_image_larger_than_the_whole_cache_is_sent_all_the_same(monkeypatch, picture):
    cache = bounded(monkeypatch, 10)
    ref = IMAGES.add(picture(33))
    assert base64.b64decode(encoded_image(ref, STRICT).data) == IMAGES.read(ref)
    assert not cache


def test_each_image_is_recorded_once_for_each_way_it_was_sent(picture):
    refs = [IMAGES.add(picture(seed)) for seed in (31, 32)]
    with meter() as usage:
        for ref in (*refs, *refs):
            encoded_image(ref, STRICT)
    assert [image.sha256 for image in usage.wire_images] == [ref.sha256 for ref in refs]
    encoded_image(refs[0], STRICT)
    assert len(usage.wire_images) == 2


def test_limits_of_the_hosted_services():
    models = load_settings().models
    limits = {name: models.image_limits(name, None) for name in ("openai", "anthropic", "gemini", "somebody")}
    assert "webp" in limits["openai"].formats
    assert limits["anthropic"].max_side_px == 8000
    assert limits["somebody"].formats == models.image_limits("openai", "http://127.0.0.1/v1").formats == ("png", "jpeg")
    assert not any({"gif", "bmp", "tiff"} & set(each.formats) for each in limits.values())
