"""Readers of the datasets without reference images: photographs as people took them, and generated images.

The group is the image itself; in AGIQA-3K it is the prompt, since several generators drew the same.
"""

import statistics
from collections.abc import Iterator
from pathlib import Path

from data.errors import DataError
from data.manifest import Sample, Split
from data.release import ImageFolder, Release, as_number, read_csv, read_mat, read_xlsx

__all__ = ("agiqa3k", "bid", "biq2021", "clive", "koniq10k", "spaq")

CLIVE_TRAINING_PICTURES = 7
"""The first rows of LIVE In the Wild: pictures that the raters practised on."""

KONIQ_SETS: dict[str, Split] = {"training": "train", "validation": "validation", "test": "test"}
SPAQ_ATTRIBUTES = ("Brightness", "Colorfulness", "Contrast", "Noisiness", "Sharpness")


def clive(release: Release) -> Iterator[Sample]:
    """Read LIVE In the Wild: 1,162 photographs; MOS 0..100, higher is better."""
    tables = {
        name: release.file(f"Data/{name}.mat") for name in ("AllImages_release", "AllMOS_release", "AllStdDev_release")
    }
    names, scores, stds = (read_mat(path, name)[name] for name, path in tables.items())
    if not len(names) == len(scores) == len(stds):
        raise DataError(
            f"table {str(tables['AllMOS_release'])!r}: has {len(scores)} scores for {len(names)} names; fetch again"
        )
    images = ImageFolder([release.folder("Images")])
    for index in range(CLIVE_TRAINING_PICTURES, len(names)):
        name, where = str(names[index].item()), f"entry {index + 1}"
        yield release.sample(
            name,
            images.find(name),
            mos=as_number(scores[index], tables["AllMOS_release"], where),
            mos_std=as_number(stds[index], tables["AllStdDev_release"], where),
            distortion="authentic",
            group=Path(name).stem,
        )


def bid(release: Release) -> Iterator[Sample]:
    """Read BID: 586 blurred photographs; MOS 0..5, higher is better; the spread is that of the single grades."""
    table = release.file("DatabaseGrades.xlsx")
    images = ImageFolder([p for p in (release.root, release.root / "ImageDatabase") if p.is_dir()])
    columns = ("Image Number", "Average Subjective Grade")
    for index, (identity, grade, row) in enumerate(read_xlsx(table, columns), start=1):
        if identity is None:
            continue
        where = f"row {index} below the header"
        number = int(as_number(identity, table, where))
        grades = [float(value) for value in row[3:] if isinstance(value, int | float) and not isinstance(value, bool)]
        yield release.sample(
            f"{number:04d}",
            images.find(f"DatabaseImage{number:04d}.JPG"),
            mos=as_number(grade, table, where),
            mos_std=statistics.stdev(grades) if len(grades) > 1 else None,
            distortion="authentic",
            group=f"{number:04d}",
        )


def koniq10k(release: Release) -> Iterator[Sample]:
    """Read KonIQ-10k: 10,073 photographs; z-score MOS 1..100, higher is better; official train, validation, test.

    The standard deviation of the release is on the raters' scale of 1..5, not on that of the MOS: metadata `acr_std`.
    """
    with_sets = (release.root / "koniq10k_distributions_sets.csv").is_file()
    table = release.file("koniq10k_distributions_sets.csv", "koniq10k_scores_and_distributions.csv")
    score = "MOS" if with_sets else "MOS_zscore"
    folder = release.folder(
        "1024x768", "koniq10k_1024x768", "koniq10k_1024x768/1024x768", "512x384", "koniq10k_512x384/512x384"
    )
    images = ImageFolder([folder])
    for number, row in enumerate(
        read_csv(table, ("image_name", score, "SD", *(("set",) if with_sets else ()))), start=2
    ):
        if with_sets and row["set"] not in KONIQ_SETS:
            raise DataError(
                f"table {str(table)!r}, line {number}: set {row['set']!r} is none of {', '.join(KONIQ_SETS)}"
            )
        name = row["image_name"]
        yield release.sample(
            Path(name).stem,
            images.find(name),
            mos=as_number(row[score], table, f"line {number}"),
            distortion="authentic",
            group=Path(name).stem,
            split=KONIQ_SETS[row["set"]] if with_sets else None,
            metadata={"acr_std": as_number(row["SD"], table, f"line {number}"), "resolution": folder.name},
        )


def spaq(release: Release) -> Iterator[Sample]:
    """Read SPAQ: 11,125 smartphone photographs; MOS 0..100, higher is better; attributes as metadata."""
    name = "MOS and Image attribute scores.xlsx"
    table = release.file(f"Annotations/{name}", name, f"annotations/{name}")
    images = ImageFolder([release.folder("TestImage", "SPAQ/TestImage")])
    for index, (image, mos, *values, _) in enumerate(
        read_xlsx(table, ("Image name", "MOS", *SPAQ_ATTRIBUTES)), start=1
    ):
        if image is None:
            continue
        where = f"row {index} below the header"
        yield release.sample(
            Path(str(image)).stem,
            images.find(str(image)),
            mos=as_number(mos, table, where),
            distortion="authentic",
            group=Path(str(image)).stem,
            metadata={
                attribute.lower(): as_number(value, table, where)
                for attribute, value in zip(SPAQ_ATTRIBUTES, values, strict=True)
            },
        )


def agiqa3k(release: Release) -> Iterator[Sample]:
    """Read AGIQA-3K: 2,982 generated images; perceptual quality 0..5, higher is better; alignment as metadata."""
    table = release.file("data.csv")
    places = ("images", "AGIQA-3K", "file", "Image", ".")
    images = ImageFolder([release.root / place for place in places if (release.root / place).is_dir()])
    columns = ("name", "prompt", "adj1", "adj2", "style", "mos_quality", "std_quality", "mos_align", "std_align")
    for number, row in enumerate(read_csv(table, columns), start=2):
        generator, setting = [*row["name"].split("_"), ""][:2]
        yield release.sample(
            Path(row["name"]).stem,
            images.find(row["name"]),
            mos=as_number(row["mos_quality"], table, f"line {number}"),
            mos_std=as_number(row["std_quality"], table, f"line {number}"),
            distortion="generated",
            group=" ".join(row["prompt"].casefold().split()) or row["name"],
            metadata={
                "generator": generator, "setting": setting, "prompt": row["prompt"],
                "mos_align": as_number(row["mos_align"], table, f"line {number}"),
                "std_align": as_number(row["std_align"], table, f"line {number}"),
            },
        )  # fmt: skip


def biq2021(release: Release) -> Iterator[Sample]:
    """Read BIQ2021: 12,000 photographs; MOS about 0..1, higher is better; official train and test."""
    images = ImageFolder([release.folder("Images")])
    tables: tuple[tuple[Split, Path], ...] = (
        ("train", release.file("Train (Images and MOS).csv", "Train.csv")),
        ("test", release.file("Test (Images and MOS).csv", "Test.csv")),
    )
    for split, table in tables:
        for number, row in enumerate(read_csv(table, ("Image Name", "MOS")), start=2):
            name = row["Image Name"]
            yield release.sample(
                Path(name).stem,
                images.find(name),
                mos=as_number(row["MOS"], table, f"line {number}"),
                distortion="authentic",
                group=Path(name).stem,
                split=split,
                metadata={"subset": name[:4]},
            )
