"""Readers of the datasets of scored images and of compared pairs, which are made into scores within each split."""

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from data.catalogue import ImageFolder, Release, TableRow, read_csv, read_lines, read_mat, read_xlsx, side_by_side
from data.distortions import DISTORTIONS, LIVE_NAMES
from data.manifest import Sample, Split
from data.tables import scan_rows
from program.common.errors import DataError
from program.common.files import named_in

_SHARES = {"image": 1.0, "other": 0.0, "tie": 0.5}

_PRIOR_SD = 2.0
"""Of strengths in logits: an image that won every vote stays finite. Scores of LIVE In the Wild spread by 1.3."""

_POINTS_PER_LOGIT = 0.6
"""By Thurstone's case V, one logit is sqrt(2) s / 1.702 points; single opinions of LIVE In the Wild spread by s = 0.77
points of 1..5 on average."""


def pairs(release: Release) -> Iterator[Sample]:
    """Read a table of pairs: `image`, `other`, `better`, and optionally `votes`, and `reference`, `group` of both.

    `better` is "image", "other", "tie", or the share of votes for `image`, 0..1. A sample has no score yet.
    """
    folder = release.root.resolve().parent
    names: dict[str, str] = {}
    shared: dict[str, dict[str, Any]] = {}
    votes: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for number, cells in scan_rows(release.root, release.columns):
        if not isinstance(cells, dict):
            raise TableRow(release.root, f"line {number}", {}).error(f"{cells}; give one pair a line")
        row = TableRow(release.root, f"line {number}", cells)
        a, b = (_end(row, column, folder, names) for column in ("image", "other"))
        if a == b:
            raise row.error(f"{a!r} is compared with itself; name two images")
        content = {"group": cells.get("group"), "reference": cells.get("reference")}
        if any(shared.setdefault(end, content) != content for end in (a, b)):
            raise row.error("an image had another reference or group in an earlier line; correct one of them")
        share, count = _share(row), row.number("votes") if cells.get("votes") is not None else 1.0
        if count <= 0:
            raise row.error(f"votes {count:g}: give a number above 0")
        votes[a][b] += count * share
        votes[b][a] += count * (1 - share)
    for path, name in names.items():
        reference, group = shared[name]["reference"], shared[name]["group"]
        # Named as the table does, so that the splits are the same wherever it lies.
        group = next(str(each) for each in (group, reference, name) if each is not None)
        won = {f"{release.entry.name}/{other}": round(n, 6) for other, n in votes[name].items() if n}
        yield release.sample(
            name, Path(path), preferred_over=won, group=group,
            reference=None if reference is None else named_in(folder, str(reference), None),
        )  # fmt: skip


def score_within_splits(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield samples with a score on 1..5 from the votes inside their split; those with no such vote are left out.

    The score is `1 + 4 / (1 + exp(-0.6 s))` of the Bradley-Terry strength s: 3 for the mean of images that votes
    connect, 0.6 points a logit there. Holds all samples in memory. Raises DataError where no vote is inside a split.
    """
    by_split: defaultdict[str | None, dict[str, Sample]] = defaultdict(dict)
    for sample in samples:
        by_split[sample.split][sample.id] = sample
    inside = 0
    for members in by_split.values():
        won = {name: {k: n for k, n in (s.preferred_over or {}).items() if k in members} for name, s in members.items()}
        for name, strength in fit_strengths(won, prior_sd=_PRIOR_SD).items():
            score = 1 + 4 / (1 + np.exp(-_POINTS_PER_LOGIT * strength))
            inside += 1
            yield members[name].model_copy(update={"mos": round(float(score), 4), "preferred_over": won[name]})
    if not inside:
        raise DataError("pairs: none lies inside one split; give more pairs, or --fractions 0,0,1 to keep all")


def parts_apart(samples: Iterable[Sample]) -> dict[str, int]:
    """Return by split into how many parts its images fall, with no vote between them; only splits of several.

    Each part's strengths have a mean of 0 of their own, so that scores of two parts do not compare.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    members = list(samples)
    place = {sample.id: i for i, sample in enumerate(members)}
    votes = np.array([(place[s.id], place[other]) for s in members for other in s.preferred_over or {}])
    graph = coo_matrix((np.ones(len(votes)), votes.T), shape=(len(members), len(members)))
    one_of_each = dict(zip(connected_components(graph, directed=False)[1], members, strict=True))
    return {split: n for split, n in Counter(str(s.split) for s in one_of_each.values()).items() if n > 1}


def fit_strengths(won: Mapping[str, Mapping[str, float]], *, prior_sd: float = float("inf")) -> dict[str, float]:
    """Return the Bradley-Terry strength of each name that has a vote, in logits, of mean 0: P(a beats b) = s(a - b).

    `won[a][b]` is the number of votes for a over b, s the logistic function; a tie is half a vote for each. With
    `prior_sd` strengths have a normal prior around 0, without one a name that won every vote has no finite strength.
    Source: Bradley & Terry 1952, Biometrika 39; as a logistic regression Agresti 2013, 11.6.

    >>> {name: round(s, 2) for name, s in fit_strengths({"a": {"b": 3}, "b": {"a": 1}}).items()}  # ln 3 apart
    {'a': 0.55, 'b': -0.55}
    """
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression

    votes = [(a, b, n) for a, row in sorted(won.items()) for b, n in sorted(row.items()) if n]
    if not votes:
        return {}
    place = {name: i for i, name in enumerate(sorted({name for *ends, _ in votes for name in ends}))}
    columns = np.array([[place[a], place[b]] for a, b, _ in votes]).ravel()
    signs, starts = np.tile([1.0, -1.0], len(votes)), np.arange(0, columns.size + 1, 2)
    design = sparse.csr_matrix((signs, columns, starts), shape=(len(votes), len(place)))
    # Each vote stands twice, mirrored, with half its weight: a regression asks for both outcomes.
    model = LogisticRegression(C=prior_sd**2, fit_intercept=False, tol=1e-8, max_iter=10_000)
    outcomes, weights = np.repeat([1, 0], len(votes)), np.tile([n / 2 for *_, n in votes], 2)
    strengths = model.fit(sparse.vstack([design, -design]), outcomes, weights).coef_[0]
    return {name: float(strengths[i] - strengths.mean()) for name, i in place.items()}


def _end(row: TableRow, column: str, folder: Path, names: dict[str, str]) -> str:
    """Return the name of one of a row's images; two spellings of one path are one image."""
    text = row.cells.get(column)
    if not isinstance(text, str) or not text.strip():
        raise row.error(f"has no {column!r}; give image, other and better (or --columns)")
    return names.setdefault(str(row.image(folder, column)), text)


def _share(row: TableRow) -> float:
    better = row.cells.get("better")
    with suppress(ValueError):
        word = str(better).strip().casefold()
        share = _SHARES[word] if word in _SHARES else float(word)
        if 0 <= share <= 1:
            return share
    raise row.error(f"better {better!r}: give image, other, tie, or the share of votes for image, 0..1")


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
        spread = statistics.stdev(grades) if len(grades) > 1 else None
        name = f"DatabaseImage{identity}.JPG"
        yield _photograph(release, images, name, row, score, identity=identity, group=identity, mos_std=spread)


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
    names: dict[Split, str] = {"train": "Train", "test": "Test"}
    tables = {split: release.file(f"{name} (Images and MOS).csv", f"{name}.csv") for split, name in names.items()}
    for split, table in tables.items():
        for row in read_csv(table, ("Image Name", "MOS")):
            name = row["Image Name"]
            yield _photograph(release, images, name, row, split=split, metadata={"subset": name[:4]})


def _photograph(
    release: Release,
    images: ImageFolder,
    name: str,
    row: TableRow,
    score: str = "MOS",
    *,
    identity: str = "",
    **more: Any,
) -> Sample:
    """Return the sample of a photograph, which is known and grouped by its file's name where nothing else is said."""
    fields = {"mos": row.number(score), "distortion": "authentic", "group": Path(name).stem, **more}
    return release.sample(identity or Path(name).stem, images.find(name), **fields)
