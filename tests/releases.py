"""Miniature releases whose labels are text, with what their first sample is: a row for each dataset of that kind."""

from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from data.preparing import load


class Miniature(NamedTuple):
    """The text of a release's tables, its images, and the first sample."""

    dataset: str
    tables: dict[str, str]
    images: tuple[str, ...]
    first: dict[str, Any]


MINIATURES = (
    Miniature("kadid10k", {"dmos.csv": "dist_img,ref_img,dmos,var\nI01_10_02.png,I01.png,4.57,0.496\n"},
              ("images/I01_10_02.png", "images/I01.png"),
              {"id": "kadid10k/I01_10_02", "mos": 4.57, "mos_std": 0.496, "distortion": "jpeg", "group": "I01"}),
    Miniature("koniq10k",
              {"koniq10k_distributions_sets.csv": "image_name,MOS,SD,set\n10004.jpg,77.38,0.527,training\n"},
              ("1024x768/10004.jpg",),
              {"id": "koniq10k/10004", "mos": 77.38, "mos_range": (1, 100), "mos_std": None, "split": "train",
               "metadata": {"acr_std": 0.527, "resolution": "1024x768"}}),
    Miniature("koniq10k",
              {"koniq10k_scores_and_distributions.csv": 'image_name,MOS,SD,MOS_zscore\n"7.jpg",3.8,0.5,77.4\n'},
              ("512x384/7.jpg",),
              {"id": "koniq10k/7", "mos": 77.4, "split": None, "metadata": {"acr_std": 0.5, "resolution": "512x384"}}),
    Miniature("biq2021", {"Train (Images and MOS).csv": "Image Name,MOS,,\nss03 (3753).jpg,0.83292,,\n",
                          "Test (Images and MOS).csv": "Image Name,MOS\n"}, ("Images/ss03 (3753).jpg",),
              {"id": "biq2021/ss03 (3753)", "mos": 0.83292, "mos_range": (0, 1), "split": "train",
               "metadata": {"subset": "ss03"}}),
    Miniature("biq2021", {"Train.csv": "Image Name,MOS\n", "Test.csv": "Image Name,MOS\nss01 (151).jpg,-0.00468\n"},
              ("Images/ss01 (151).jpg",), {"id": "biq2021/ss01 (151)", "mos": -0.00468, "split": "test"}),
)  # fmt: skip


def check(miniature: Miniature, root: Path) -> None:
    """Write a release into a folder, read it, and hold its first sample against what is expected."""
    for name, text in miniature.tables.items():
        (root / name).write_text(text, "utf-8")
    for name in miniature.images:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 3), (90, 120, 150)).save(path)
    first = next(load(miniature.dataset, root)).model_dump()
    assert {name: first[name] for name in miniature.first} == miniature.first
    assert first["image"] == root / miniature.images[0]
