"""Which of a file's pictures is the photograph: TIFFs and raw files written by hand, as cameras and editors do."""

import struct

import numpy as np
import pytest

from program import AgenticIQA
from program.common.errors import ImageError
from program.images.decoding import decode
from program.images.store import ImageStore

NEW_SUBFILE, SUBFILE, PHOTOMETRIC, SUB_IFDS, DNG_VERSION, CFA = 254, 255, 262, 330, 50706, 32803


class Tiff:
    """A TIFF (or BigTIFF) in the making, of either byte order."""

    def __init__(self, order="<", big=False):
        self.order, self.big = order, big
        mark = b"II" if order == "<" else b"MM"
        self.data = bytearray(
            mark + struct.pack(f"{order}HHHQ" if big else f"{order}HI", *((43, 8, 0, 0) if big else (42, 0)))
        )

    def pack(self, number):
        return struct.pack(self.order + ("Q" if self.big else "I"), number)

    def picture(self, pixels, *, tags=(), children=()):
        """Add the data and the directory of an H x W x 3 picture; return where the directory is."""
        height, width = pixels.shape[:2]
        strip = len(self.data)
        self.data += pixels.tobytes()
        bits = len(self.data)
        self.data += struct.pack(f"{self.order}3H", 8, 8, 8)
        listed = {256: [width], 257: [height], 258: bits, 259: [1], PHOTOMETRIC: [2], 273: [strip], 277: [3],
                  278: [height], 279: [pixels.nbytes], **dict(tags)}  # fmt: skip
        if children:
            listed[SUB_IFDS] = list(children)
        return self.directory(listed)

    def directory(self, listed):
        entries, room = [], 8 if self.big else 4
        for tag, values in sorted(listed.items()):
            if tag == 258:  # three numbers of 16 bits, which only a BigTIFF holds in place
                place = struct.pack(f"{self.order}3H", 8, 8, 8) if self.big else self.pack(values)
                entries.append((tag, 3, 3, place))
            elif isinstance(values, bytes):
                entries.append((tag, 1, len(values), values))
            elif 4 * len(values) > room:
                entries.append((tag, 4, len(values), self.pack(len(self.data))))
                self.data += struct.pack(f"{self.order}{len(values)}I", *values)
            else:
                entries.append((tag, 4, len(values), struct.pack(f"{self.order}{len(values)}I", *values)))
        at = len(self.data)
        head = f"{self.order}HH" + ("Q" if self.big else "I")
        self.data += struct.pack(self.order + ("Q" if self.big else "H"), len(entries))
        for tag, kind, count, place in entries:
            self.data += struct.pack(head, tag, kind, count) + place.ljust(room, b"\0")
        self.data += self.pack(0)
        return at

    def file(self, *pages):
        """Return the file with these directories one after the other."""
        place = 8 if self.big else 4
        for page in pages:
            self.data[place : place + len(self.pack(0))] = self.pack(page)
            size, head = (20, 8) if self.big else (12, 2)
            (count,) = struct.unpack_from(self.order + ("Q" if self.big else "H"), self.data, page)
            place = page + head + count * size
        return bytes(self.data)


@pytest.fixture
def preview(photo):
    return np.ascontiguousarray(photo[::6, ::6])


REDUCED = {NEW_SUBFILE: [1]}
NOTE = ("the full picture is judged, not the preview of 10x7 before it",)


@pytest.mark.parametrize(("order", "big"), [("<", False), (">", False), ("<", True)])
def test_a_preview_before_the_picture_is_not_the_photograph(photo, preview, order, big):
    for tags in (REDUCED, {SUBFILE: [2]}):
        made = Tiff(order, big)
        small = made.picture(preview, tags=tags)
        data = made.file(small, made.picture(preview[:5], tags=REDUCED), made.picture(photo), made.picture(photo[:9]))
        found = decode(data, "t")
        assert np.array_equal(found.pixels, photo)
        assert (found.width, found.height, found.notes) == (60, 40, NOTE)
        made = Tiff(order, big)
        full, mask = made.picture(photo), made.picture(photo, tags={NEW_SUBFILE: [4]})
        data = made.file(made.picture(preview, tags=tags, children=[mask, made.picture(photo[:9]), full]))
        found = decode(data, "t")
        assert np.array_equal(found.pixels, photo)
        assert found.notes == NOTE
    store = ImageStore()
    ref = store.add(data)
    assert np.array_equal(store.pixels(ref, (10, 20, 50, 40)), photo[20:40, 10:50])
    assert AgenticIQA()(image=data).state.image_notes == list(NOTE)


def test_reduced_copies_behind_the_picture_change_nothing(photo, preview):
    made = Tiff()
    data = made.file(made.picture(photo, children=[made.picture(preview, tags=REDUCED), made.picture(preview)]))
    assert np.array_equal(decode(data, "t").pixels, photo)
    assert decode(data, "t").notes == ()
    made = Tiff()
    data = made.file(made.picture(preview), made.picture(photo))
    assert np.array_equal(decode(data, "t").pixels, preview)  # nothing says that it is a preview
    assert decode(data, "t").notes == ("the first of several frames is judged",)
    made = Tiff()
    found = decode(made.file(made.picture(preview, tags=REDUCED)), "t")
    assert np.array_equal(found.pixels, preview)
    assert found.notes == ("the file holds a reduced copy of the picture alone",)


@pytest.mark.parametrize("order", "<>")
def test_an_address_that_no_file_reaches_is_a_damaged_file(order):
    data = bytes(Tiff(order, big=True).data[:8]) + struct.pack(f"{order}Q", 2**63 + 9) + bytes(64)
    with pytest.raises(ImageError, match="image 't'"):
        decode(data, "t")


@pytest.mark.parametrize("order", "<>")
def test_raw_files_are_refused_as_what_they_are(photo, preview, order):
    def sensor(made):
        return made.picture(photo, tags={PHOTOMETRIC: [CFA]})

    def dng(made):
        return made.file(made.picture(preview, tags={**REDUCED, DNG_VERSION: b"\1\4\0\0"}, children=[sensor(made)]))

    def finished_dng(made):  # its whole picture is a preview, too
        return made.file(made.picture(photo, tags={DNG_VERSION: b"\1\4\0\0"}))

    def nef(made):
        jpeg = made.picture(photo[:30], tags=REDUCED)
        return made.file(made.picture(preview, tags=REDUCED, children=[jpeg, sensor(made)]))

    def unflagged(made):
        return made.file(made.picture(preview, children=[sensor(made)]))

    def second_page(made):
        return made.file(made.picture(preview, tags=REDUCED), sensor(made))

    def linear(made):
        return made.file(made.picture(preview, children=[made.picture(photo, tags={PHOTOMETRIC: [34892]})]))

    for make, kind in ((dng, "DNG"), (finished_dng, "DNG"), (nef, "as NEF and ARW"), (unflagged, "as NEF and ARW"),
                       (second_page, "as NEF and ARW"), (linear, "as NEF and ARW")):  # fmt: skip
        for big in (False, True):
            with pytest.raises(
                ImageError, match=rf"^image 'r': is a raw file \({kind}\).*; export it as TIFF, PNG or JPEG"
            ):
                decode(make(Tiff(order, big)), "r")


@pytest.mark.parametrize(("head", "kind"), [
    (b"FUJIFILMCCD-RAW 0201", "RAF"), (b"IIRO\x08\0\0\0", "ORF"), (b"IIU\0\x18\0\0\0", "RW2"),
    (b"\0\0\0\x18ftypcrx \0\0\0\1", "CR3"), (b"II*\0\x10\0\0\0CR\2\0" + bytes(90), "CR2"),
])  # fmt: skip
def test_raw_files_that_are_no_tiff_are_named_too(head, kind):
    with pytest.raises(ImageError, match=rf"is a raw file \({kind}\)"):
        ImageStore().add(head + bytes(64))


def test_directories_that_lead_nowhere_or_round_in_circles_are_left_alone(photo, preview):
    made = Tiff()
    small = made.picture(preview, tags=REDUCED, children=[10**9, 4])
    data = bytearray(made.file(small, made.picture(photo)))
    assert np.array_equal(decode(bytes(data), "t").pixels, photo)
    made = Tiff()
    small = made.picture(preview, tags=REDUCED)
    assert np.array_equal(decode(made.file(small, small), "t").pixels, preview)
