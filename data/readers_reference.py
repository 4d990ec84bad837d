"""Readers of the datasets with reference images: a photograph, distorted on purpose, is scored against the original.

Distortions get the names of `data.distortions` where they are the same kind; what a release calls them is kept as
metadata. The group is the reference.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from data.distortions import DISTORTIONS
from data.errors import DataError
from data.manifest import Sample
from data.names import LIVE_NAMES
from data.release import ImageFolder, Release, as_number, read_csv, read_mat, read_xlsx

__all__ = ("csiq", "kadid10k", "live", "pipal", "tid2013")

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


def tid2013(release: Release) -> Iterator[Sample]:
    """Read TID2013: 25 references x 24 distortions x 5 levels; MOS 0..9, higher is better."""
    table, deviations = release.file("mos_with_names.txt"), release.file("mos_std.txt")
    images = ImageFolder([release.folder("distorted_images")])
    references = ImageFolder([release.folder("reference_images")])
    rows = [line.split() for line in table.read_text(encoding="ascii", errors="replace").splitlines() if line.strip()]
    stds = deviations.read_text(encoding="ascii", errors="replace").split()
    if len(rows) != len(stds):
        raise DataError(f"table {str(deviations)!r}: has {len(stds)} lines for {len(rows)} scores; fetch both again")
    for number, (row, std) in enumerate(zip(rows, stds, strict=True), start=1):
        where = f"line {number}"
        match = re.fullmatch(r"i(\d\d)_(\d\d)_(\d)\.bmp", row[-1].casefold()) if len(row) == 2 else None
        kind = int(match[2]) if match else 0
        if match is None or not 1 <= kind <= len(TID2013_DISTORTIONS):
            raise DataError(
                f"table {str(table)!r}, {where}: {' '.join(row)!r} is no score and name as '5.5 i01_01_1.bmp'"
            )
        yield release.sample(
            f"i{match[1]}_{match[2]}_{match[3]}",
            images.find(row[1]),
            reference=references.find(f"I{match[1]}.BMP"),
            mos=as_number(row[0], table, where),
            mos_std=as_number(std, deviations, where),
            distortion=TID2013_DISTORTIONS[kind - 1],
            group=f"I{match[1]}",
            metadata={"level": int(match[3]), "type": kind},
        )


def kadid10k(release: Release) -> Iterator[Sample]:
    """Read KADID-10k: 81 references x 25 distortions x 5 levels; score 1..5, higher is better, whatever `dmos` says."""
    table = release.file("dmos.csv")
    images = ImageFolder([release.folder("images")])
    for number, row in enumerate(read_csv(table, ("dist_img", "ref_img", "dmos", "var")), start=2):
        where = f"line {number}"
        match = re.fullmatch(r"(I\d\d)_(\d\d)_(\d\d)\.png", row["dist_img"])
        if match is None or not 1 <= int(match[2]) <= len(KADID10K_DISTORTIONS):
            raise DataError(
                f"table {str(table)!r}, {where}: {row['dist_img']!r} is no name as I01_01_01.png; fetch it again"
            )
        yield release.sample(
            row["dist_img"].removesuffix(".png"),
            images.find(row["dist_img"]),
            reference=images.find(row["ref_img"]),
            mos=as_number(row["dmos"], table, where),
            # Named a variance, it is the standard deviation: 0.496 at 4.57 is that of thirty votes of 4 and 5.
            mos_std=as_number(row["var"], table, where),
            distortion=KADID10K_DISTORTIONS[int(match[2]) - 1],
            group=match[1],
            metadata={"level": int(match[3]), "type": int(match[2])},
        )


def live(release: Release) -> Iterator[Sample]:
    """Read LIVE release 2: 29 references, five distortions; realigned DMOS about 0..100, lower is better."""
    realigned = (release.root / "dmos_realigned.mat").is_file()
    table = release.file("dmos_realigned.mat", "dmos.mat")
    names = ("dmos_new", "orgs", "dmos_std") if realigned else ("dmos", "orgs")
    labels = read_mat(table, *names)
    references_of = read_mat(release.file("refnames_all.mat"), "refnames_all")["refnames_all"]
    places = [(folder, n) for folder, count in LIVE_FOLDERS for n in range(1, count + 1)]
    if not len(places) == len(references_of) == len(labels["orgs"]) == len(labels[names[0]]):
        raise DataError(
            f"table {str(table)!r}: has {len(labels['orgs'])} labels for {len(places)} images; fetch the release again"
        )
    folders = {folder: ImageFolder([release.folder(folder)]) for folder, _ in LIVE_FOLDERS}
    references = ImageFolder([release.folder("refimgs")])
    for index, (folder, n) in enumerate(places):
        if labels["orgs"][index]:
            continue
        name = str(references_of[index].item())
        yield release.sample(
            f"{folder}/img{n}",
            folders[folder].find(f"img{n}.bmp"),
            reference=references.find(name),
            mos=as_number(labels[names[0]][index], table, f"entry {index + 1}"),
            mos_std=as_number(labels["dmos_std"][index], table, f"entry {index + 1}") if realigned else None,
            distortion=LIVE_NAMES.get(folder, folder),
            group=Path(name).stem.casefold(),
            metadata={"realigned": realigned},
        )


def csiq(release: Release) -> Iterator[Sample]:
    """Read CSIQ: 30 references, six distortions at four or five levels; DMOS 0..1, lower is better."""
    table = release.file("csiq.DMOS.xlsx")
    folders = {kind: ImageFolder([release.folder(f"dst_imgs/{kind}")]) for kind, _, _ in CSIQ_TYPES.values()}
    references = ImageFolder([release.folder("src_imgs")])
    columns = ("image", "dst_type", "dst_lev", "dmos_std", "dmos")
    for number, (image, kind, level, std, dmos, _) in enumerate(read_xlsx(table, columns, "all_by_image"), start=1):
        if image is None:
            continue
        where = f"row {number} below the header"
        if str(kind).strip() not in CSIQ_TYPES:
            raise DataError(f"table {str(table)!r}, {where}: dst_type {kind!r} is none of {', '.join(CSIQ_TYPES)}")
        folder, part, distortion = CSIQ_TYPES[str(kind).strip()]
        # One reference is called 1600, which a spreadsheet holds as a number.
        name = str(int(image)) if isinstance(image, int | float) else str(image).strip()
        step = int(as_number(level, table, where))
        yield release.sample(
            f"{name}.{part}.{step}",
            folders[folder].find(f"{name}.{part}.{step}.png"),
            reference=references.find(f"{name}.png"),
            mos=as_number(dmos, table, where),
            mos_std=as_number(std, table, where),
            distortion=distortion,
            group=name,
            metadata={"level": step},
        )


def pipal(release: Release) -> Iterator[Sample]:
    """Read PIPAL's training part: 200 references x 116 restorations and distortions; Elo, higher is better."""
    labels = release.folder("Train_Label", "training/MOS_Scores_train", "MOS_Scores_train")
    references = ImageFolder([release.folder("Train_Ref", "training/Reference_train", "Reference_train")])
    parts = [
        f"{parent}Distortion_{n}"
        for parent in ("", "training/Distortion/", "Distortion/", "Train_Dist/")
        for n in range(1, 5)
    ]
    images = ImageFolder(release.folders(*parts, "Train_Dist"))
    tables = sorted(labels.glob("*.txt"))
    if not tables:
        raise DataError(f"dataset 'pipal' in {str(labels)!r}: no .txt with scores; fetch the training labels")
    for table in tables:
        for number, line in enumerate(table.read_text(encoding="ascii", errors="replace").splitlines(), start=1):
            if not line.strip():
                continue
            name, _, score = (part.strip() for part in line.partition(","))
            match = re.fullmatch(r"(A\d{4})_(\d\d)_(\d\d)\.bmp", name)
            if match is None or int(match[2]) >= len(PIPAL_CLASSES):
                raise DataError(
                    f"table {str(table)!r}, line {number}: {line.strip()!r} is not 'A0001_00_00.bmp,1500.0'"
                )
            yield release.sample(
                name.removesuffix(".bmp"),
                images.find(name),
                reference=references.find(f"{match[1]}.bmp"),
                mos=as_number(score, table, f"line {number}"),
                distortion=PIPAL_CLASSES[int(match[2])],
                group=match[1],
                metadata={"class": int(match[2]), "variant": int(match[3])},
            )
