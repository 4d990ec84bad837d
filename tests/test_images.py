import hashlib
import io
import threading

import numpy as np
import pytest
from PIL import Image

from program.common.errors import ImageError
from program.images.refs import whole_pixels
from program.images.store import HOST, IMAGES, ImageStore, parse_url
from tests.pictures import file_of
from tests.tables import as_lines


def test_bytes_are_kept_as_they_are(tmp_path, photo) -> None:
    file = tmp_path / "photo.jpg"
    file.write_bytes(file_of(photo, "JPEG", quality=60))
    store = ImageStore()
    ref = store.add(file)
    assert store.read(ref) == file.read_bytes()
    assert ref.url == f"{HOST}{hashlib.sha256(file.read_bytes()).hexdigest()}.jpg"
    assert (ref.width, ref.height, ref.media_type) == (60, 40, "image/jpeg")
    assert store.add(file.read_bytes()).sha256 == ref.sha256 == store.find(ref.url).sha256


def test_pixels_of_arrays_and_pil_images_are_stored_without_loss(photo) -> None:
    store = ImageStore()
    assert np.array_equal(store.pixels(store.add(photo)), photo)
    assert np.array_equal(store.pixels(store.add(Image.fromarray(photo))), photo)


@pytest.mark.spec("D30/image-and-reference-are-the-same")
def test_the_same_pixels_are_told_from_those_that_only_average_the_same(photo, monkeypatch) -> None:
    monkeypatch.setattr("program.images.store.LARGE", 300)  # so 3 x 3 pixels are averaged
    store = ImageStore()
    swapped = photo.copy()
    swapped[0, :2] = photo[0, 1::-1]
    one, copy, other = (store.add(file_of(a, kind)) for a, kind in ((photo, "PNG"), (photo, "BMP"), (swapped, "PNG")))
    assert np.array_equal(store.pixels(one, at_most=300), store.pixels(other, at_most=300))
    assert store.same_pixels(one, one)
    assert store.same_pixels(one, copy)
    assert not store.same_pixels(one, other)
    assert not store.same_pixels(one, store.add(photo[:, :30]))


def test_pixels_are_upright_composited_and_8_bit(photo) -> None:
    store = ImageStore()
    turned = Image.fromarray(photo)
    exif = turned.getexif()
    exif[0x0112] = 6  # displayed rotated by 90 degrees clockwise
    buffer = io.BytesIO()
    turned.save(buffer, "PNG", exif=exif)
    ref = store.add(buffer.getvalue())
    assert (ref.width, ref.height) == (40, 60)
    assert np.array_equal(store.pixels(ref), np.rot90(photo, -1))

    half = np.dstack([np.full((8, 8, 3), 100, np.uint8), np.full((8, 8), 128, np.uint8)])
    expected = round(100 * 128 / 255 + 255 * (1 - 128 / 255))
    assert abs(int(store.pixels(store.add(file_of(half, "PNG")))[0, 0, 0]) - expected) <= 1

    deep = np.linspace(0, 65535, 64, dtype=np.uint16).reshape(8, 8)
    assert np.array_equal(store.pixels(store.add(file_of(deep, "PNG")))[:, :, 1], (deep / 257 + 0.5).astype(np.uint8))

    grey = photo[:, :, 0]
    assert np.array_equal(store.pixels(store.add(file_of(grey, "PNG"))), np.repeat(grey[:, :, None], 3, axis=2))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"x\.png': is empty \(0 bytes\)"),
        (b"not an image", r"x\.png': not an image that can be read"),
    ],
)
def test_unusable_files_are_named_in_one_line(tmp_path, content, message) -> None:
    file = tmp_path / "x.png"
    file.write_bytes(content)
    with pytest.raises(ImageError, match=message) as caught:
        IMAGES.add(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "TIFF", "WEBP"])
def test_truncated_files_are_refused(tmp_path, photo, kind) -> None:
    whole = file_of(photo, kind)
    file = tmp_path / "cut"
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ImageError, match=r"cut': (damaged or truncated|not an image)"):
        IMAGES.add(file)


def test_missing_folder_and_wrong_arrays_are_refused(tmp_path) -> None:
    with pytest.raises(ImageError, match="no such file; check the path"):
        IMAGES.add(tmp_path / "none.png")
    with pytest.raises(ImageError, match="is a folder"):
        IMAGES.add(tmp_path)
    with pytest.raises(ImageError, match="H x W x 3 uint8"):
        IMAGES.add(np.zeros((4, 4, 3)))
    with pytest.raises(ImageError, match="give a path, bytes"):
        IMAGES.add(3)


def test_a_changed_file_is_noticed(tmp_path, photo) -> None:
    file = tmp_path / "photo.png"
    file.write_bytes(file_of(photo, "PNG"))
    store = ImageStore()
    ref = store.add(file)
    file.write_bytes(file_of(255 - photo, "PNG"))
    with pytest.raises(ImageError, match="changed since it was opened"):
        store.read(ref)
    file.unlink()
    with pytest.raises(ImageError, match="cannot be read any more"):
        store.read(ref)


def test_references_are_checked() -> None:
    with pytest.raises(ImageError, match="not of the form"):
        parse_url("https://images.invalid/sha256/../../etc/passwd")
    with pytest.raises(ImageError, match="not of the form"):
        parse_url(f"{HOST}{'0' * 64}.exe")
    with pytest.raises(ImageError, match="not known here"):
        IMAGES.find(f"{HOST}{'0' * 64}.png")


def test_a_box_grows_to_the_minimum_and_stays_inside(photo) -> None:
    store = ImageStore()
    ref = store.add(photo)
    assert np.array_equal(store.pixels(ref, (10, 5, 20, 15)), photo[5:15, 10:20])
    assert whole_pixels((0.3, 0.0, 3.2, 4.0), 60, 40, minimum_px=16) == (0, 0, 16, 16)
    assert whole_pixels((56, 36, 60, 40), 60, 40, minimum_px=16) == (44, 24, 60, 40)
    with pytest.raises(ImageError, match="60x40 image"):
        whole_pixels((100, 0, 120, 10), 60, 40)
    with pytest.raises(ImageError, match="x0 < x1"):
        store.pixels(ref, (20, 0, 10, 10))


def test_borrowed_images_are_forgotten_and_others_stay(tmp_path, picture):
    from program.images.store import ImageStore

    store = ImageStore()
    path = tmp_path / "a.png"
    Image.fromarray(picture(1)).save(path)
    kept = store.add(picture(2))
    with store.borrow():
        first = store.add(path)
        store.add(picture(2))
        with store.borrow():
            assert store.add(path) == first
        assert store.pixels(first).shape == (32, 48, 3)
    with pytest.raises(ImageError, match="not known here"):
        store.read(first)
    assert store.read(kept)
    with store.borrow():
        assert store.pixels(store.add(path)).shape == (32, 48, 3)
        held = store.add(path)
    with store.borrow():
        store.add(path)
        thread = threading.Thread(target=store.add, args=(path,))  # somebody keeps it meanwhile
        thread.start()
        thread.join()
    assert store.read(held) == path.read_bytes()


@pytest.mark.parametrize(("way", "seed"), [("evaluate", 300), ("batch", 310), ("bulk", 320)])
def test_a_run_over_many_samples_holds_no_image_of_any(way, seed, service_program, tmp_path, picture):

    from data.manifest import read_manifest
    from program.batch.inputs import find_items
    from program.evaluation.evaluating import run_samples
    from tests.rows import judged

    steps = ("distortion_detection", "distortion_analysis", "tool_selection", "tool_execute")
    plan = {"query_type": "IQA", "query_scope": ["car"], **dict.fromkeys(steps, True)}
    program = service_program(script={"plan": {"plan": plan}})
    box = {"car": (2, 3, 30, 28)}
    lines = []
    for number in range(4):
        Image.fromarray(picture(seed + number)).save(tmp_path / f"{number}.png")
        asked = {"query": "Rate the car.", "regions": box}
        lines.append({"id": str(number), "image": f"{number}.png", "mos": 3.0, **asked})
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_text(as_lines(lines), "utf-8")
    before = set(IMAGES._entries), IMAGES._room
    if way == "evaluate":
        answered = run_samples(program, list(read_manifest(manifest)), progress=False).rows
    elif way == "bulk":
        answered = judged(program, find_items([str(manifest)]))
    else:
        arrays = ({"image": picture(seed + n), "query": "Rate the car.", "regions": box} for n in range(4))
        answered = program.batch(arrays, workers=2)
    assert [row.status for row in answered] == ["ok"] * 4
    sent = {url for request in program.engine.requests for url in program.engine.images(request)}
    assert len(sent) == 8  # each image and its crop
    assert (set(IMAGES._entries), IMAGES._room) == before
    assert not any(entry.borrowers for entry in IMAGES._entries.values())


def test_two_files_of_the_same_bytes_keep_their_own_names(tmp_path, picture):
    data = file_of(picture(77), "PNG")
    for name in ("first.png", "second.png"):
        (tmp_path / name).write_bytes(data)
    first, second, again = (IMAGES.add(tmp_path / name) for name in ("first.png", "second.png", "first.png"))
    assert [ref.name for ref in (first, second, again)] == ["first.png", "second.png", "first.png"]
    assert first.url == second.url


def test_an_image_is_read_from_where_its_file_was_seen_last(tmp_path, picture):
    data = file_of(picture(78), "PNG")
    for name in ("first.png", "second.png"):
        (tmp_path / name).write_bytes(data)
    store = ImageStore()
    refs = [store.add(tmp_path / name) for name in ("first.png", "second.png")]
    (tmp_path / "first.png").unlink()
    assert store.read(refs[0]) == data
    (tmp_path / "first.png").write_bytes(data)
    store.add(tmp_path / "first.png")
    (tmp_path / "second.png").unlink()
    assert store.read(refs[1]) == data


def test_a_url_is_told_from_a_path_that_is_mistyped() -> None:
    with pytest.raises(ImageError, match="download it first"):
        IMAGES.add("https://example.com/a.jpg")
    with pytest.raises(ImageError, match="check the path"):
        IMAGES.add("a.jpg")
