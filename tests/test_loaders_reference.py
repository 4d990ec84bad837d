"""Datasets with reference images: miniature releases in the exact file formats, read by the real readers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from data.catalogue import catalogue, entry_of
from data.distortions import DISTORTIONS
from data.preparing import load
from program.common.errors import DataError

LIVE_FOLDERS = (("jp2k", 227), ("jpeg", 233), ("wn", 174), ("gblur", 174), ("fastfading", 174))
"""In the order of the tables, with the number of images."""


def picture(path: Path, shade: int = 128) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 3), (shade, shade, shade)).save(path, format=path.suffix[1:].upper().replace("JPG", "JPEG"))
    return path


def tid2013(root: Path) -> None:
    """Two references; the last one is spelled small in the release, and so are some distorted images."""
    names = ["I01_01_1.bmp", "I01_24_5.bmp", "i25_08_3.bmp"]
    scores = [5.51429, 3.0, 4.25]
    (root / "mos_with_names.txt").write_text(
        "".join(f"{s} {n}\r\n" for s, n in zip(scores, names, strict=True)), "ascii"
    )
    (root / "mos_std.txt").write_text("0.13013\n0.2\n0.3\n", "ascii")
    for number, name in enumerate(("i01_01_1.bmp", "I01_24_5.bmp", "I25_08_3.BMP")):
        picture(root / "distorted_images" / name, number)
    picture(root / "reference_images/I01.BMP")
    picture(root / "reference_images/i25.bmp")


def kadid10k(root: Path) -> None:
    rows = ["dist_img,ref_img,dmos,var", "I01_01_01.png,I01.png,4.57,0.496", "I81_15_05.png,I81.png,1.2,0.4"]
    rows.append("I81_25_03.png,I81.png,3.3,0.9")
    root.joinpath("dmos.csv").write_text("\n".join(rows) + "\n", "utf-8")
    for name in ("I01_01_01", "I01", "I81_15_05", "I81_25_03", "I81"):
        picture(root / "images" / f"{name}.png")


def live(root: Path) -> None:
    """The whole table of 982 entries with 203 originals, and the images of two entries a folder."""
    total = sum(count for _, count in LIVE_FOLDERS)
    orgs = np.zeros((1, total))
    orgs[0, ::5] = 1
    names = np.empty((1, total), dtype=object)
    for index in range(total):
        names[0, index] = "Buildings.bmp" if index % 2 else "parrots.bmp"
    scores = np.linspace(-3, 111, total)[None]
    savemat(root / "dmos_realigned.mat", {"dmos_new": scores, "dmos_std": scores * 0 + 2.5, "orgs": orgs})
    savemat(root / "refnames_all.mat", {"refnames_all": names})
    for folder, count in LIVE_FOLDERS:
        for number in (2, count):
            picture(root / folder / f"img{number}.bmp")
    picture(root / "refimgs/buildings.bmp")
    picture(root / "refimgs/parrots.bmp")


def csiq(root: Path) -> None:
    """The sheet begins in D4, below a title, as the release's does."""
    import openpyxl

    book = openpyxl.Workbook()
    book.active.title = "readme"
    sheet = book.create_sheet("all_by_image")
    sheet["A1"] = "CSIQ DMOS"
    for column, name in enumerate(("image", "dst_idx", "dst_type", "dst_lev", "dmos_std", "dmos"), start=4):
        sheet.cell(4, column, name)
    rows = [
        (1600, 1, "noise", 1, 0.061, 0.062),
        ("lady_liberty", 3, "jpeg 2000", 5, 0.1, 0.9),
        ("lady_liberty", 6, "contrast", 2, 0.05, 0.2),
    ]
    for line, row in enumerate(rows, start=5):
        for column, value in enumerate(row, start=4):
            sheet.cell(line, column, value)
    book.save(root / "csiq.DMOS.xlsx")
    for name in (
        "awgn/1600.AWGN.1",
        "jpeg2000/lady_liberty.jpeg2000.5",
        "contrast/lady_liberty.contrast.2",
        "blur/x",
        "fnoise/x",
        "jpeg/x",
    ):
        picture(root / "dst_imgs" / f"{name}.png")
    for name in ("1600", "lady_liberty"):
        picture(root / "src_imgs" / f"{name}.png")


def pipal(root: Path) -> None:
    (root / "Train_Label").mkdir()
    (root / "Train_Label/A0001.txt").write_text("A0001_00_00.bmp,1520.0648\nA0001_06_26.bmp,1294.8478\n", "ascii")
    (root / "Train_Label/A0060.txt").write_text("A0060_03_23.bmp,1249.31\n", "ascii")
    for name in (
        "Distortion_1/A0001_00_00",
        "Distortion_1/A0001_06_26",
        "Distortion_2/A0060_03_23",
        "Train_Ref/A0001",
        "Train_Ref/A0060",
    ):
        picture(root / f"{name}.bmp")


MAKERS: dict[str, Callable[[Path], None]] = {"tid2013": tid2013, "kadid10k": kadid10k, "csiq": csiq, "pipal": pipal}


def distortions(name: str, word: str = "type") -> dict[int, str]:
    return dict(entry_of(name).read.words[word]["distortion"])


def test_every_dataset_says_where_it_comes_from() -> None:
    for entry in catalogue().values():
        assert entry.documented
        assert entry.citation
        assert entry.licence


def test_tid2013(tmp_path: Path) -> None:
    tid2013(tmp_path)
    first, second, third = load("tid2013", tmp_path)
    assert (first.id, first.mos, first.mos_std) == ("tid2013/i01_01_1", 5.51429, 0.13013)
    assert (first.mos_range, first.higher_is_better) == ((0, 9), True)
    assert first.image == tmp_path / "distorted_images/i01_01_1.bmp"
    assert first.reference == tmp_path / "reference_images/I01.BMP"
    assert (first.distortion, first.group, first.metadata) == ("white_noise", "I01", {"level": 1, "type": 1})
    assert (second.distortion, second.metadata["level"]) == ("sparse_sampling", 5)
    assert third.image == tmp_path / "distorted_images/I25_08_3.BMP"
    assert third.reference == tmp_path / "reference_images/i25.bmp"
    assert (third.distortion, third.group) == ("gaussian_blur", "I25")
    assert list(distortions("tid2013")) == list(range(1, 25))


def test_kadid10k(tmp_path: Path) -> None:
    kadid10k(tmp_path)
    first, second, third = load("kadid10k", tmp_path)
    assert (first.id, first.mos, first.mos_std, first.quality) == (
        "kadid10k/I01_01_01",
        4.57,
        0.496,
        pytest.approx(4.57),
    )
    assert (first.image, first.reference) == (tmp_path / "images/I01_01_01.png", tmp_path / "images/I01.png")
    assert (first.distortion, first.group, first.metadata) == ("gaussian_blur", "I01", {"level": 1, "type": 1})
    assert [second.distortion, third.distortion] == ["denoise", "contrast_change"]
    assert list(distortions("kadid10k").values()) == [*DISTORTIONS[:14], "denoise", *DISTORTIONS[14:]]


def test_live_leaves_originals_out_and_turns_dmos_round(tmp_path: Path) -> None:
    live(tmp_path)
    missing: list[Path] = []
    samples = list(load("live", tmp_path, on_missing=missing.append))
    total = sum(count for _, count in LIVE_FOLDERS)
    originals = len(range(0, total, 5))
    assert len(samples) + len(missing) == total - originals
    by_id = {sample.id: sample for sample in samples}
    second = by_id["live/jp2k/img2"]
    assert second.mos == pytest.approx(np.linspace(-3, 111, total)[1])
    assert (second.mos_std, second.higher_is_better) == (2.5, False)
    assert second.quality == pytest.approx(6 - (1 + 4 * second.mos / 100))
    assert second.reference == tmp_path / "refimgs/buildings.bmp"
    assert (second.distortion, second.group) == ("jpeg2000", "buildings")
    # The folders follow each other in the tables: 227 jp2k, then jpeg.
    assert by_id["live/jpeg/img2"].mos == pytest.approx(np.linspace(-3, 111, total)[228])
    assert {s.distortion for s in samples} == {
        "jpeg2000", "jpeg", "white_noise", "gaussian_blur", "jpeg2000_transmission_errors"
    }  # fmt: skip


def test_csiq(tmp_path: Path) -> None:
    csiq(tmp_path)
    first, second, third = load("csiq", tmp_path)
    assert (first.id, first.mos, first.mos_std, first.higher_is_better) == ("csiq/1600.AWGN.1", 0.062, 0.061, False)
    assert (first.image, first.reference) == (
        tmp_path / "dst_imgs/awgn/1600.AWGN.1.png",
        tmp_path / "src_imgs/1600.png",
    )
    assert (second.distortion, second.group, second.quality) == ("jpeg2000", "lady_liberty", pytest.approx(1.4))
    assert third.distortion == "contrast_change"


@pytest.mark.parametrize("layout", ["flat", "training"])
def test_pipal(tmp_path: Path, layout: str) -> None:
    pipal(tmp_path)
    if layout == "training":
        (tmp_path / "training/Distortion").mkdir(parents=True)
        (tmp_path / "Train_Label").rename(tmp_path / "training/MOS_Scores_train")
        (tmp_path / "Train_Ref").rename(tmp_path / "training/Reference_train")
        for part in ("Distortion_1", "Distortion_2"):
            (tmp_path / part).rename(tmp_path / "training/Distortion" / part)
    samples = list(load("pipal", tmp_path))
    assert [s.id for s in samples] == ["pipal/A0001_00_00", "pipal/A0001_06_26", "pipal/A0060_03_23"]
    assert [s.distortion for s in samples] == ["traditional_sr", "traditional", "gan_based_sr"]
    assert [s.group for s in samples] == ["A0001", "A0001", "A0060"]
    assert (samples[0].mos, samples[0].reference.name) == (1520.0648, "A0001.bmp")
    assert list(distortions("pipal", "class")) == list(range(7))


@pytest.mark.parametrize("name", MAKERS)
def test_a_missing_image_is_named_or_left_out(tmp_path: Path, name: str) -> None:
    MAKERS[name](tmp_path)
    whole = list(load(name, tmp_path))
    whole[-1].image.unlink()
    with pytest.raises(DataError, match="which is not there; unpack the whole release, or leave such lines out"):
        list(load(name, tmp_path))
    missing: list[Path] = []
    assert list(load(name, tmp_path, on_missing=missing.append)) == whole[:-1]
    assert [path.name.casefold() for path in missing] == [whole[-1].image.name.casefold()]


@pytest.mark.parametrize("name", [*MAKERS, "live"])
def test_another_folder_is_refused_with_what_is_wanted(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"no '.*'; --root is the folder that holds") as caught:
        list(load(name, tmp_path))
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=f"there is no .*; get it from {entry_of(name).source}"):
        list(load(name, tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("name", "file", "text", "message"),
    [
        ("tid2013", "mos_with_names.txt", "5.5 I01_99_1.bmp\n" * 3, "line 1: type 99 is none of 1, 2"),
        ("tid2013", "mos_with_names.txt", "nan I01_01_1.bmp\n" * 3, "line 1: mos 'nan' is no number"),
        ("tid2013", "mos_std.txt", "0.1\n", "has 1 rows for 3 beside it"),
        ("kadid10k", "dmos.csv", "dist_img,ref_img,mos\nI01_01_01.png,I01.png,3\n", "line 2: has no 'dmos' but"),
        ("kadid10k", "dmos.csv", "dist_img,ref_img,dmos,var\nI01.png,I01.png,1,1\n", "line 2: 'I01.png' is no name"),
        ("csiq", "csiq.DMOS.xlsx", "text", "is no workbook"),
        ("pipal", "Train_Label/A0001.txt", "A0001_09_00.bmp,1\n", "line 1: class 9 is none of 0, 1, 2"),
    ],
)  # fmt: skip
def test_damaged_tables_are_named_with_their_line(
    tmp_path: Path, name: str, file: str, text: str, message: str
) -> None:
    MAKERS[name](tmp_path)
    (tmp_path / file).write_text(text, "utf-8")
    with pytest.raises(DataError, match=message) as caught:
        list(load(name, tmp_path))
    assert "\n" not in str(caught.value)


def test_live_refuses_other_matlab_files(tmp_path: Path) -> None:
    live(tmp_path)
    savemat(tmp_path / "refnames_all.mat", {"names": np.zeros(3)})
    with pytest.raises(DataError, match="has no variable 'refnames_all'"):
        list(load("live", tmp_path))
    (tmp_path / "dmos_realigned.mat").write_bytes(b"no MATLAB file at all, only text")
    with pytest.raises(DataError, match="is no MATLAB file"):
        list(load("live", tmp_path))
    savemat(tmp_path / "dmos_realigned.mat", {"dmos_new": np.zeros(3), "dmos_std": np.zeros(3), "orgs": np.zeros(3)})
    savemat(tmp_path / "refnames_all.mat", {"refnames_all": np.array(["a", "b", "c"], dtype=object)})
    with pytest.raises(DataError, match="has 3 labels for 982 images"):
        list(load("live", tmp_path))


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(DataError, match=r"dataset 'kadid-10k': is not known \(did you mean 'kadid10k'"):
        list(load("kadid-10k", "."))
    with pytest.raises(DataError, match=r"known: .*tid2013"):
        list(load("zzzzzz", "."))
