"""Datasets without reference images: miniature releases in the exact file formats, read by the real readers."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from data.manifest import Layout
from data.preparing import load
from program.common.errors import DataError
from tests.releases import MINIATURES, Miniature, check


def picture(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = "JPEG" if path.suffix.casefold() == ".jpg" else path.suffix[1:].upper()
    Image.new("RGB", (4, 3), (90, 120, 150)).save(path, format=kind)
    return path


def clive(root: Path) -> None:
    """Nine entries: seven pictures for practice, then two photographs."""
    names = [f"t{n}.bmp" for n in range(1, 8)] + ["3.bmp", "1000.JPG"]
    cells = np.empty((len(names), 1), dtype=object)
    cells[:, 0] = names
    (root / "Data").mkdir()
    savemat(root / "Data/AllImages_release.mat", {"AllImages_release": cells})
    savemat(root / "Data/AllMOS_release.mat", {"AllMOS_release": np.arange(9.0)[None] * 10})
    savemat(root / "Data/AllStdDev_release.mat", {"AllStdDev_release": np.arange(9.0)[None] + 15})
    for name in names:
        picture(root / "Images" / ("trainingImages" if name.startswith("t") else ".") / name)


def workbook(path: Path, *rows: tuple[object, ...]) -> None:
    import openpyxl

    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(list(row))
    path.parent.mkdir(parents=True, exist_ok=True)
    book.save(path)


def test_clive_leaves_the_practice_pictures_out(tmp_path: Path) -> None:
    clive(tmp_path)
    first, second = load("clive", tmp_path)
    assert (first.id, first.mos, first.mos_std) == ("clive/3.bmp", 70, 22)
    assert (second.image, second.group) == (tmp_path / "Images/1000.JPG", "1000")
    assert (second.mos_range, second.higher_is_better, second.distortion) == ((0, 100), True, "authentic")


def test_clive_refuses_tables_of_different_lengths(tmp_path: Path) -> None:
    clive(tmp_path)
    savemat(tmp_path / "Data/AllMOS_release.mat", {"AllMOS_release": np.arange(8.0)})
    with pytest.raises(DataError, match=r"AllMOS_release\.mat': has 8 rows for 9 beside it"):
        list(load("clive", tmp_path))


@pytest.mark.parametrize("folder", [".", "ImageDatabase"])
def test_bid(tmp_path: Path, folder: str) -> None:
    rows = (
        ("Image Number", "Average Subjective Grade", None, "Grades"),
        (4, 3.5, None, 3, 4, 3.5, None),
        (586, 1, None, 1),
    )
    workbook(tmp_path / "DatabaseGrades.xlsx", *rows)
    for number in (4, 586):
        picture(tmp_path / folder / f"DatabaseImage{number:04d}.JPG")
    first, second = load("bid", tmp_path)
    assert (first.id, first.mos, first.mos_range) == ("bid/0004", 3.5, (0, 5))
    assert second.image.name == "DatabaseImage0586.JPG"


def test_spaq(tmp_path: Path) -> None:
    header = ("Image name", "MOS", "Brightness", "Colorfulness", "Contrast", "Noisiness", "Sharpness")
    workbook(
        tmp_path / "Annotations/MOS and Image attribute scores.xlsx", header, ("00001.jpg", 38.6, 50, 51, 52, 53, 54)
    )
    picture(tmp_path / "TestImage/00001.jpg")
    (sample,) = load("spaq", tmp_path)
    assert (sample.id, sample.mos, sample.quality) == ("spaq/00001", 38.6, pytest.approx(1 + 4 * 0.386))
    expected = {"brightness": 50, "colorfulness": 51, "contrast": 52, "noisiness": 53, "sharpness": 54}
    assert sample.metadata == expected


def test_agiqa3k_groups_by_prompt(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(
        "name,prompt,adj1,adj2,style,mos_quality,std_quality,mos_align,std_align\n"
        "AttnGAN_normal_000.jpg,statue of a man,,,,0.9656,0.2233,0.4089,0.6156\n"
        'sd1.5_lowstep_060.jpg,"artwork, anime style",,,anime style,2.5,0.7,0.8,0.8\n'
        "midjourney_normal_000.jpg,Statue  of a man,,,,3.9,0.5,4.1,0.6\n",
        "utf-8",
    )  # fmt: skip
    for name in ("AttnGAN_normal_000", "sd1.5_lowstep_060", "midjourney_normal_000"):
        picture(tmp_path / "images" / f"{name}.jpg")
    first, second, third = load("agiqa3k", tmp_path)
    assert (first.mos, first.mos_std, first.mos_range) == (0.9656, 0.2233, (0, 5))
    assert first.group == third.group != second.group
    assert (second.metadata["generator"], second.metadata["setting"]) == ("sd1.5", "lowstep")
    assert (third.metadata["mos_align"], third.distortion) == (4.1, "generated")


@pytest.mark.parametrize("miniature", MINIATURES, ids=lambda miniature: miniature.dataset)
def test_a_release_whose_labels_are_text(tmp_path: Path, miniature: Miniature) -> None:
    check(miniature, tmp_path)


def test_a_workbook_without_the_headers_is_refused(tmp_path: Path) -> None:
    workbook(tmp_path / "DatabaseGrades.xlsx", ("Image", "Grade"), (1, 2))
    with pytest.raises(DataError, match="line 2: has no 'Image Number' but Image, Grade"):
        list(load("bid", tmp_path))
    workbook(tmp_path / "DatabaseGrades.xlsx", ("Image Number", "Average Subjective Grade"), (1, "good"))
    with pytest.raises(DataError, match="line 2: mos 'good' is no number"):
        list(load("bid", tmp_path))


def test_an_unknown_set_is_refused(tmp_path: Path) -> None:
    text = "image_name,MOS,SD,set\n1.jpg,70,0.5,spare\n"
    (tmp_path / "koniq10k_distributions_sets.csv").write_text(text, "utf-8")
    (tmp_path / "1024x768").mkdir()
    with pytest.raises(DataError, match='line 2: "split": Input should be'):
        list(load("koniq10k", tmp_path))


def test_columns_and_scales_are_for_tables_of_ones_own(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has columns and a scale of its own"):
        list(load("spaq", tmp_path, layout=Layout(mos_range=(0, 1))))
