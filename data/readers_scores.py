"""Readers of the datasets of scored images: photographs distorted on purpose, as people took them, or generated.

Distortions get the names of `data.kadid` where they are the same kind; what a release calls them is kept as metadata.
The group is the reference, else the image; in AGIQA-3K it is the prompt, since several generators drew the same.
"""

import re
import statistics
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from data.kadid import DISTORTIONS, LIVE_NAMES
from data.manifest import Sample, Split
from data.release import ImageFolder, Release, Row, read_csv, read_lines, read_mat, read_xlsx, side_by_side
from program.common.errors import DataError

__all__ = (
    "agiqa3k", "bid", "biq2021", "clive", "csiq", "kadid10k", "koniq10k", "live", "pipal", "spaq", "tid2013",
)  # fmt: skip

TID2013_DISTORTIONS = (
    "white_noise", "color_component_noise", "spatially_correlated_noise", "masked_noise", "high_frequency_noise",
    "impulse_noise", "quantization", "gaussian_blur", "denoise", "jpeg", "jpeg2000", "jpeg_transmission_errors",
    "jpeg2000_transmission_errors", "non_eccentricity_patch", "color_block", "mean_shift", "contrast_change",
    "color_saturation", "multiplicative_noise", "comfort_noise", "noisy_image_compression", "color_quantization",
    "chromatic_aberration", "sparse_sampling",
)  # fmt: skip
"""TID2013's types 1 to 24, in its order."""

KADID10K_DISTORTIONS = (*DISTORTIONS[:14], "denoise", *DISTORTIONS[14:])
"""KADID-10k's types 1 to 25; 15 is the one that `data.distortions` leaves out."""

LIVE_FOLDERS = (("jp2k", 227), ("jpeg", 233), ("wn", 174), ("gblur", 174), ("fastfading", 174))
"""LIVE's folders in the order of its tables, with their number of images (originals among them)."""

CSIQ_TYPES = {
    "noise": ("awgn", "AWGN", "white_noise"),
    "blur": ("blur", "BLUR", "gaussian_blur"),
    "contrast": ("contrast", "contrast", "contrast_change"),
    "fnoise": ("fnoise", "fnoise", "pink_noise"),
    "jpeg": ("jpeg", "JPEG", "jpeg"),
    "jpeg 2000": ("jpeg2000", "jpeg2000", "jpeg2000"),
}
"""CSIQ's types: folder, part of the file name, distortion."""

PIPAL_CLASSES = (
    "traditional_sr", "psnr_oriented_sr", "sr_kernel_mismatch", "gan_based_sr", "denoise", "sr_and_denoise",
    "traditional",
)  # fmt: skip
"""PIPAL's classes 00 to 06, with 12, 16, 10, 24, 13, 14 and 27 variants."""

CLIVE_TRAINING_PICTURES = 7
"""The first rows of LIVE In the Wild: pictures that the raters practised on."""

KONIQ_SETS: dict[str, Split] = {"training": "train", "validation": "validation", "test": "test"}
SPAQ_ATTRIBUTES = ("Brightness", "Colorfulness", "Contrast", "Noisiness", "Sharpness")


def tid2013(release: Release) -> Iterator[Sample]:
    """Read TID2013: 25 references x 24 distortions x 5 levels; MOS 0..9, higher is better."""
    scores = read_lines(release.file("mos_with_names.txt"), ("score", "name"))
    deviations = read_lines(release.file("mos_std.txt"), ("std",))
    images, references = release.image_files("distorted_images"), release.image_files("reference_images")
    for row in side_by_side(scores, deviations):
        match = re.fullmatch(r"i(\d\d)_(\d\d)_(\d)\.bmp", row["name"].casefold())
        kind = int(match[2]) if match else 0
        if match is None or not 1 <= kind <= len(TID2013_DISTORTIONS):
            raise row.error(f"{row['line']!r} is no score and name as '5.5 i01_01_1.bmp'")
        yield release.sample(
            f"i{match[1]}_{match[2]}_{match[3]}",
            images.find(row["name"]),
            reference=references.find(f"I{match[1]}.BMP"),
            mos=row.number("score"),
            mos_std=row.number("std"),
            distortion=TID2013_DISTORTIONS[kind - 1],
            group=f"I{match[1]}",
            metadata={"level": int(match[3]), "type": kind},
        )


def kadid10k(release: Release) -> Iterator[Sample]:
    """Read KADID-10k: 81 references x 25 distortions x 5 levels; score 1..5, higher is better, whatever `dmos` says."""
    images = release.image_files("images")
    for row in read_csv(release.file("dmos.csv"), ("dist_img", "ref_img", "dmos", "var")):
        match = re.fullmatch(r"(I\d\d)_(\d\d)_(\d\d)\.png", row["dist_img"])
        if match is None or not 1 <= int(match[2]) <= len(KADID10K_DISTORTIONS):
            raise row.error(f"{row['dist_img']!r} is no name as I01_01_01.png; fetch it again")
        yield release.sample(
            row["dist_img"].removesuffix(".png"),
            images.find(row["dist_img"]),
            reference=images.find(row["ref_img"]),
            mos=row.number("dmos"),
            # Named a variance, it is the standard deviation: 0.496 at 4.57 is that of thirty votes of 4 and 5.
            mos_std=row.number("var"),
            distortion=KADID10K_DISTORTIONS[int(match[2]) - 1],
            group=match[1],
            metadata={"level": int(match[3]), "type": int(match[2])},
        )


def live(release: Release) -> Iterator[Sample]:
    """Read LIVE release 2: 29 references, five distortions; realigned DMOS about 0..100, lower is better."""
    table = release.file("dmos_realigned.mat")
    labels = (read_mat(table, name) for name in ("dmos_new", "orgs", "dmos_std"))
    rows = side_by_side(*labels, read_mat(release.file("refnames_all.mat"), "refnames_all"))
    places = [(folder, n) for folder, count in LIVE_FOLDERS for n in range(1, count + 1)]
    if len(rows) != len(places):
        raise DataError(f"table {str(table)!r}: has {len(rows)} labels for {len(places)} images; fetch it again")
    folders = {folder: release.image_files(folder) for folder, _ in LIVE_FOLDERS}
    references = release.image_files("refimgs")
    for row, (folder, n) in zip(rows, places, strict=True):
        if row["orgs"]:
            continue
        reference = str(row["refnames_all"].item())
        yield release.sample(
            f"{folder}/img{n}",
            folders[folder].find(f"img{n}.bmp"),
            reference=references.find(reference),
            mos=row.number("dmos_new"),
            mos_std=row.number("dmos_std"),
            distortion=LIVE_NAMES.get(folder, folder),
            group=Path(reference).stem.casefold(),
        )


def csiq(release: Release) -> Iterator[Sample]:
    """Read CSIQ: 30 references, six distortions at four or five levels; DMOS 0..1, lower is better."""
    table = release.file("csiq.DMOS.xlsx")
    folders = {kind: release.image_files(f"dst_imgs/{kind}") for kind, _, _ in CSIQ_TYPES.values()}
    references = release.image_files("src_imgs")
    for row in read_xlsx(table, ("image", "dst_type", "dst_lev", "dmos_std", "dmos"), "all_by_image"):
        image, kind = row["image"], str(row["dst_type"]).strip()
        if kind not in CSIQ_TYPES:
            raise row.error(f"dst_type {row['dst_type']!r} is none of {', '.join(CSIQ_TYPES)}")
        folder, part, distortion = CSIQ_TYPES[kind]
        # One reference is called 1600, which a spreadsheet holds as a number.
        name = str(int(image)) if isinstance(image, int | float) else str(image).strip()
        step = int(row.number("dst_lev"))
        yield release.sample(
            f"{name}.{part}.{step}",
            folders[folder].find(f"{name}.{part}.{step}.png"),
            reference=references.find(f"{name}.png"),
            mos=row.number("dmos"),
            mos_std=row.number("dmos_std"),
            distortion=distortion,
            group=name,
            metadata={"level": step},
        )


def pipal(release: Release) -> Iterator[Sample]:
    """Read PIPAL's training part: 200 references x 116 restorations and distortions; Elo, higher is better."""
    labels = release.file("Train_Label", "training/MOS_Scores_train", "MOS_Scores_train")
    references = release.image_files("Train_Ref", "training/Reference_train", "Reference_train")
    parents = ("", "training/Distortion/", "Distortion/", "Train_Dist/")
    images = release.image_files(*(f"{parent}Distortion_{n}" for parent in parents for n in range(1, 5)), "Train_Dist")
    tables = sorted(labels.glob("*.txt"))
    if not tables:
        raise DataError(f"dataset 'pipal' in {str(labels)!r}: no .txt with scores; fetch the training labels")
    for row in chain.from_iterable(read_lines(table, ("name", "score"), separator=",") for table in tables):
        match = re.fullmatch(r"(A\d{4})_(\d\d)_(\d\d)\.bmp", row["name"])
        if match is None or int(match[2]) >= len(PIPAL_CLASSES):
            raise row.error(f"{row['line']!r} is not 'A0001_00_00.bmp,1500.0'")
        yield release.sample(
            row["name"].removesuffix(".bmp"),
            images.find(row["name"]),
            reference=references.find(f"{match[1]}.bmp"),
            mos=row.number("score"),
            distortion=PIPAL_CLASSES[int(match[2])],
            group=match[1],
            metadata={"class": int(match[2]), "variant": int(match[3])},
        )


def clive(release: Release) -> Iterator[Sample]:
    """Read LIVE In the Wild: 1,162 photographs; MOS 0..100, higher is better."""
    names, score, std = "AllImages_release", "AllMOS_release", "AllStdDev_release"
    tables = (read_mat(release.file(f"Data/{name}.mat"), name) for name in (names, score, std))
    images = release.image_files("Images")
    for row in side_by_side(*tables)[CLIVE_TRAINING_PICTURES:]:
        name = str(row[names].item())
        yield _photograph(release, images, name, row, score, identity=name, mos_std=row.number(std))


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
