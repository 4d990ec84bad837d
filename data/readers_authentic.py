"""Readers of the datasets without reference images: photographs as people took them, and generated images.

The group is the image itself; in AGIQA-3K it is the prompt, since several generators drew the same.
"""

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data.manifest import Sample, Split
from data.release import ImageFolder, Release, Row, read_csv, read_mat, read_xlsx
from program.common.errors import DataError

__all__ = ("agiqa3k", "bid", "biq2021", "clive", "koniq10k", "spaq")

CLIVE_TRAINING_PICTURES = 7
"""The first rows of LIVE In the Wild: pictures that the raters practised on."""

KONIQ_SETS: dict[str, Split] = {"training": "train", "validation": "validation", "test": "test"}
SPAQ_ATTRIBUTES = ("Brightness", "Colorfulness", "Contrast", "Noisiness", "Sharpness")


def clive(release: Release) -> Iterator[Sample]:
    """Read LIVE In the Wild: 1,162 photographs; MOS 0..100, higher is better."""
    labels: dict[str, Any] = {}
    for name in ("AllImages_release", "AllMOS_release", "AllStdDev_release"):
        labels |= read_mat(release.file(f"Data/{name}.mat"), name)
    names, scores, stds = labels.values()
    table = release.root / "Data"
    if not len(names) == len(scores) == len(stds):
        raise DataError(f"table {str(table)!r}: has {len(scores)} scores for {len(names)} names; fetch again")
    images = release.image_files("Images")
    for index in range(CLIVE_TRAINING_PICTURES, len(names)):
        name = str(names[index].item())
        row = Row(table, f"entry {index + 1}", {"MOS": scores[index], "SD": stds[index]})
        yield _photograph(release, images, name, row, identity=name, mos_std=row.number("SD"))


def bid(release: Release) -> Iterator[Sample]:
    """Read BID: 586 blurred photographs; MOS 0..5, higher is better; the spread is that of the single grades."""
    images, score = release.image_files(".", "ImageDatabase"), "Average Subjective Grade"
    for row in read_xlsx(release.file("DatabaseGrades.xlsx"), ("Image Number", score)):
        identity = f"{int(row.number('Image Number')):04d}"
        grades = [float(v) for v in row.values[3:] if isinstance(v, int | float) and not isinstance(v, bool)]
        yield release.sample(
            identity,
            images.find(f"DatabaseImage{identity}.JPG"),
            mos=row.number(score),
            mos_std=statistics.stdev(grades) if len(grades) > 1 else None,
            distortion="authentic",
            group=identity,
        )


def koniq10k(release: Release) -> Iterator[Sample]:
    """Read KonIQ-10k: 10,073 photographs; z-score MOS 1..100, higher is better; official train, validation, test.

    The standard deviation of the release is on the raters' scale of 1..5, not on that of the MOS: metadata `acr_std`.
    """
    table = release.file("koniq10k_distributions_sets.csv", "koniq10k_scores_and_distributions.csv")
    with_sets = table.name == "koniq10k_distributions_sets.csv"
    score = "MOS" if with_sets else "MOS_zscore"
    folder = release.file(
        "1024x768", "koniq10k_1024x768", "koniq10k_1024x768/1024x768", "512x384", "koniq10k_512x384/512x384"
    )
    images = ImageFolder([folder])
    for row in read_csv(table, ("image_name", score, "SD", *(("set",) if with_sets else ()))):
        if with_sets and row["set"] not in KONIQ_SETS:
            raise row.error(f"set {row['set']!r} is none of {', '.join(KONIQ_SETS)}")
        split = KONIQ_SETS[row["set"]] if with_sets else None
        metadata = {"acr_std": row.number("SD"), "resolution": folder.name}
        yield _photograph(release, images, row["image_name"], row, score, split=split, metadata=metadata)


def spaq(release: Release) -> Iterator[Sample]:
    """Read SPAQ: 11,125 smartphone photographs; MOS 0..100, higher is better; attributes as metadata."""
    name = "MOS and Image attribute scores.xlsx"
    table = release.file(f"Annotations/{name}", name, f"annotations/{name}")
    images = release.image_files("TestImage", "SPAQ/TestImage")
    for row in read_xlsx(table, ("Image name", "MOS", *SPAQ_ATTRIBUTES)):
        metadata = {attribute.lower(): row.number(attribute) for attribute in SPAQ_ATTRIBUTES}
        yield _photograph(release, images, str(row["Image name"]), row, metadata=metadata)


def agiqa3k(release: Release) -> Iterator[Sample]:
    """Read AGIQA-3K: 2,982 generated images; perceptual quality 0..5, higher is better; alignment as metadata."""
    images = release.image_files("images", "AGIQA-3K", "file", "Image", ".")
    columns = ("name", "prompt", "adj1", "adj2", "style", "mos_quality", "std_quality", "mos_align", "std_align")
    for row in read_csv(release.file("data.csv"), columns):
        generator, setting = [*row["name"].split("_"), ""][:2]
        yield release.sample(
            Path(row["name"]).stem,
            images.find(row["name"]),
            mos=row.number("mos_quality"),
            mos_std=row.number("std_quality"),
            distortion="generated",
            group=" ".join(row["prompt"].casefold().split()) or row["name"],
            metadata={
                "generator": generator, "setting": setting, "prompt": row["prompt"],
                "mos_align": row.number("mos_align"), "std_align": row.number("std_align"),
            },
        )  # fmt: skip


def biq2021(release: Release) -> Iterator[Sample]:
    """Read BIQ2021: 12,000 photographs; MOS about 0..1, higher is better; official train and test."""
    images = release.image_files("Images")
    tables: tuple[tuple[Split, Path], ...] = (
        ("train", release.file("Train (Images and MOS).csv", "Train.csv")),
        ("test", release.file("Test (Images and MOS).csv", "Test.csv")),
    )
    for split, table in tables:
        for row in read_csv(table, ("Image Name", "MOS")):
            name = row["Image Name"]
            yield _photograph(release, images, name, row, split=split, metadata={"subset": name[:4]})


def _photograph(
    release: Release, images: ImageFolder, name: str, row: Row, score: str = "MOS", *, identity: str = "", **more: Any
) -> Sample:
    """Return the sample of a photograph that is known, and grouped, by its file's name."""
    stem = Path(name).stem
    return release.sample(
        identity or stem, images.find(name), mos=row.number(score), distortion="authentic", group=stem, **more
    )
