"""The quickstart data: distorted photographs with scores and questions, made on first use. Nothing is downloaded."""

import hashlib
import io
import json
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import product
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args

import numpy as np
import yaml
from numpy.typing import NDArray
from PIL import Image, ImageOps

from data.distortions import (
    CATEGORIES,
    DISTORTIONS,
    IDENTITIES,
    LEVELS,
    distort,
    distortions_for,
    generator_for,
    level_mean,
    level_means_sha256,
    severity_of,
)
from data.manifest import GENERATED, Sample, Split, write_manifest
from program.common.errors import DataError
from program.common.files import CONFIGS, path_lock, write_whole
from program.common.pool import in_order
from program.common.pool import progress as progress_bar
from signatures.schemas import SEVERITIES, DistortionCategory, Severity

T = TypeVar("T")
QuestionKind = Literal["which", "severity", "yes_no"]
PER_LABEL = 2
"""Questions per photograph and right answer, for "which" and "severity"."""


class Photograph(NamedTuple):
    """Where a photograph is, whose it is, and which split it belongs to."""

    name: str
    package: str
    path: str
    split: Split
    licence: str
    source: str


_WORDS: Mapping[str, Any] = yaml.safe_load((CONFIGS / "quickstart.yaml").read_text("utf-8"))
PHOTOGRAPHS: Mapping[str, Photograph] = {name: Photograph(name, **each) for name, each in _WORDS["photographs"].items()}
"""By name, as configs/quickstart.yaml lists them."""
_OPTIONS: Mapping[str, str] = _WORDS["options"]
_PLAIN = "No visible distortion"


class Version(NamedTuple):
    """One version of a photograph: distorted at a level, or as it was (no distortion, level 0)."""

    distortion: str | None = None
    level: int = 0

    @property
    def category(self) -> str | None:
        """The agent's category of the distortion; None for spatial ones and for the photograph itself."""
        return CATEGORIES[self.distortion] if self.distortion else None

    @property
    def severity(self) -> Severity:
        """How severe people found the distortion at this level, on average."""
        return severity_of(level_mean(self.distortion, self.level).mos) if self.distortion else "none"

    @property
    def is_clear(self) -> bool:
        """Whether people found it at least slightly annoying, so that it can be asked after."""
        return self.severity in {"moderate", "severe", "extreme"}


class MadeQuestion(NamedTuple):
    """A question about one version of a photograph, with lettered options."""

    kind: QuestionKind
    photograph: str
    version: Version
    query: str
    options: Mapping[str, str]
    answer: str


_Draft: TypeAlias = tuple[Version, str, str, Sequence[str]]
"""A question before its options have letters: version, query, right answer, wrong answers."""


def make_questions(versions: Mapping[str, Sequence[Version]]) -> list[MadeQuestion]:
    """Make the questions of one split from each photograph's versions; the same input gives the same questions.

    "Which" and "severity" ask twice per photograph and right answer, "yes_no" once per subject and
    answer, where the versions allow it. Versions include the photograph itself where it may be asked about.
    """
    questions: list[MadeQuestion] = []
    places: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for (photograph, every), (kind, make) in product(versions.items(), _MAKERS.items()):
        for version, query, right, wrong in make(every, generator_for("questions", photograph, kind)):
            # Per kind and right answer, the right one goes round the letters.
            place = places[kind].setdefault(right, len(places[kind])) % (len(wrong) + 1)
            places[kind][right] += 1
            texts = _pick(generator_for("questions", photograph, kind, len(questions)), wrong, len(wrong))
            texts.insert(place, right)
            options = dict(zip(ascii_uppercase, texts, strict=False))
            questions.append(MadeQuestion(kind, photograph, version, query, options, ascii_uppercase[place]))
    return questions


def _which(versions: Sequence[Version], rng: np.random.Generator) -> Iterator[_Draft]:
    labels = [label for category, label in _OPTIONS.items() if any(v.category == category for v in versions)]
    for category, label in (*_OPTIONS.items(), (None, _PLAIN)):
        fitting = [v for v in versions if v.category == category and (v.is_clear if category else not v.distortion)]
        # The photograph itself is one version only: it is asked about in both wordings.
        chosen = _pick(rng, fitting, PER_LABEL) if category else fitting * PER_LABEL
        for query, version in zip(_WORDS["which"], chosen, strict=False):
            right = {label, _WORDS["also_true"].get(version.distortion)}
            others = [each for each in (*labels, _PLAIN) if each not in right]
            if len(others) >= 3:
                yield version, query, label, _pick(rng, others, 3)


def _severity(versions: Sequence[Version], rng: np.random.Generator) -> Iterator[_Draft]:
    words = [word.capitalize() for word in SEVERITIES]
    for severity in SEVERITIES:
        right = severity.capitalize()
        wrong = [word for word in words if word != right]
        for version in _pick(rng, [v for v in versions if v.category and v.severity == severity], PER_LABEL):
            yield version, f"How severe {_WORDS['severity'][version.category]} in this image?", right, wrong


def _yes_no(versions: Sequence[Version], rng: np.random.Generator) -> Iterator[_Draft]:
    for question in _WORDS["yes_no"]:
        yes = _pick(rng, [v for v in versions if v.distortion in question["yes"] and v.is_clear], 1)
        no = _pick(rng, [v for v in versions if v.distortion is None or v.distortion in question["no"]], 1)
        # One without the other would make one answer the better guess.
        if yes and no:
            yield yes[0], question["query"], "Yes", ["No"]
            yield no[0], question["query"], "No", ["Yes"]


_MAKERS: Mapping[QuestionKind, Callable[[Sequence[Version], np.random.Generator], Iterator[_Draft]]] = {
    "which": _which, "severity": _severity, "yes_no": _yes_no,
}  # fmt: skip


def _pick(rng: np.random.Generator, items: Sequence[T], count: int) -> list[T]:
    return [items[i] for i in rng.permutation(len(items))[:count]]


LONGEST_SIDE_PX = 384


def photograph_bytes(name: str) -> bytes:
    """Return the photograph's file as it ships; DataError when its package lacks it."""
    photograph = PHOTOGRAPHS[name]
    try:
        return files(photograph.package).joinpath(photograph.path).read_bytes()
    except ModuleNotFoundError as error:
        fault = f"{photograph.package} is not installed; `pip install .`"
        raise DataError(f"photograph {name!r}: {fault}") from error
    except OSError as error:
        distributions = {"skimage": "scikit-image", "sklearn": "scikit-learn"}
        mend = f"pip install --force-reinstall {distributions.get(photograph.package, photograph.package)}"
        fault = f"{photograph.package}/{photograph.path} is not installed; install its package again: {mend}"
        raise DataError(f"photograph {name!r}: {fault}") from error


def load_photograph(name: str) -> NDArray[np.uint8]:
    """Return the photograph as H x W x 3 uint8, longest side 384 (Lanczos)."""
    with Image.open(io.BytesIO(photograph_bytes(name))) as picture:
        rgb = picture.convert("RGB")
    return np.array(ImageOps.contain(rgb, (LONGEST_SIDE_PX, LONGEST_SIDE_PX), Image.Resampling.LANCZOS))


GENERATOR_VERSION = 4
"""Raise it when the same inputs would give other images, questions or lines: old folders are then left aside."""

Images: TypeAlias = Mapping[str, Mapping[Version, str]]
"""File name by photograph and version; each photograph's own (undistorted) version is among them."""

PEOPLE_NOTE = "mean human score of this distortion and level over KADID-10k's 81 references, not a score of this image"
HOUSE_NOTE = "made up: a house standard, which weighs what a distortion takes off KADID-10k's mean human scores"
UNDISTORTED = 4.6
"""What people give the photographs as they are, on average (`data.distortions.IDENTITIES`)."""

_RECORD = "quickstart.json"

logger = logging.getLogger(__name__)


class HouseStandard(NamedTuple):
    """A made-up standard: how much each category of distortion counts, and how much stricter it is than people."""

    weights: Mapping[DistortionCategory | None, float]
    """On what a distortion takes off; 1 for the categories that are not named, and the spatial ones without a name."""
    shift: float
    """On every score, in points of 1..5."""

    def score(self, distortion: str, level: int) -> float:
        """Return the standard's score of a distortion at a level, 1..5."""
        lost = UNDISTORTED - level_mean(distortion, level).mos
        scored = UNDISTORTED - self.weights.get(CATEGORIES[distortion], 1.0) * lost + self.shift
        return round(min(5.0, max(1.0, scored)), 4)


HOUSE = HouseStandard({"Noise": 0.0, "Compression": 2.0, "Color distortions": 0.5}, shift=-0.25)
"""A picture desk for documentary photography. Grain belongs to the style; prints are large, so compression shows twice
as much; colours are graded anyway, so wrong ones count half; and the desk is a quarter of a level stricter. Written
down before anything was compiled with it, and not changed since."""


class QuickstartPlan(NamedTuple):
    """What to generate; a part of the whole is for tests and quick trials, in a folder of its own."""

    photographs: tuple[str, ...] = tuple(PHOTOGRAPHS)
    distortions: tuple[str, ...] = DISTORTIONS
    levels: tuple[int, ...] = LEVELS

    def revision(self) -> str:
        """Return 12 hex digits that change with the generator, the plan, the photographs and the scores."""
        parts: dict[str, Any] = {
            "generator": GENERATOR_VERSION,
            "distortions": self.distortions,
            "levels": self.levels,
            "longest_side_px": LONGEST_SIDE_PX,
            "photographs": {name: hashlib.sha256(photograph_bytes(name)).hexdigest() for name in self.photographs},
            "scores": [level_means_sha256(), sorted((str(c), w) for c, w in HOUSE.weights.items()), HOUSE.shift],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


FULL = QuickstartPlan()


def build_quickstart(cache_dir: Path, *, progress: bool = True, plan: QuickstartPlan = FULL) -> Path:
    """Return the quickstart's manifest.jsonl, made first where it is not there whole.

    Of several runs at once one makes it and the others wait. The same package versions give the same bytes. Raises
    DataError when a photograph is missing or the folder cannot be written.
    """
    folder = cache_dir / f"quickstart-{plan.revision()}"
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with path_lock(cache_dir / "quickstart.lock"):
            if not _is_whole(folder):
                _build(folder, plan, progress=progress)
    except OSError as error:
        raise DataError(
            f"quickstart data in {str(cache_dir)!r}: cannot be written ({error.strerror or error}); "
            "free space, check its permissions, or set another cache folder"
        ) from error
    return folder / "manifest.jsonl"


def _build(folder: Path, plan: QuickstartPlan, *, progress: bool) -> None:
    if folder.exists():  # damaged, or left by a run that did not end; the lock keeps out others
        logger.warning("quickstart folder %s is incomplete; it is made again", folder.name)
    (folder / _RECORD).unlink(missing_ok=True)
    place = folder / "images"
    place.mkdir(parents=True, exist_ok=True)
    images = _make_images(place, plan, progress=progress)
    scoring = list(_scoring_lines(images, place))
    write_manifest(folder / "manifest-fr.jsonl", _in_hash_order(scoring))
    made_up = [*map(_by_the_house, scoring), *_question_lines(images, place)]
    write_manifest(folder / "manifest.jsonl", _in_hash_order(made_up))
    record = {"images": _images_in(folder), "revision": plan.revision()}
    # Last: without it the folder is not whole.
    write_whole(folder / _RECORD, json.dumps(record) + "\n")


def _images_in(folder: Path) -> int:
    return sum(1 for _ in (folder / "images").glob("[0-9a-f]" * 20 + ".png"))


def _is_whole(folder: Path) -> bool:
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        is_whole = _images_in(folder) == record["images"]
    except (OSError, ValueError, TypeError, KeyError):
        return False
    return is_whole and all((folder / name).is_file() for name in GENERATED.values())


def _make_images(folder: Path, plan: QuickstartPlan, *, progress: bool) -> Images:
    photographs = {name: load_photograph(name) for name in plan.photographs}
    jobs: list[tuple[str, Version]] = []
    for name, pixels in photographs.items():
        fitting = distortions_for(pixels)
        jobs.append((name, Version()))
        jobs += [(name, Version(d, level)) for d in plan.distortions if d in fitting for level in plan.levels]
    with progress_bar("Making quickstart images", len(jobs), shown=progress) as advance:

        def make(job: tuple[str, Version]) -> str:
            name, version = job
            pixels = photographs[name]
            if version.distortion is not None:
                rng = generator_for(name, version.distortion, version.level)
                pixels = distort(pixels, version.distortion, version.level, rng)
            file = _store(folder, pixels)
            advance(facts=version.distortion or "undistorted")
            return file

        files = in_order(make, jobs, workers=os.cpu_count() or 1)
    images: dict[str, dict[Version, str]] = {name: {} for name in photographs}
    for (name, version), file in zip(jobs, files, strict=True):
        images[name][version] = file
    return images


def _store(folder: Path, pixels: NDArray[np.uint8]) -> str:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    name = f"{hashlib.sha256(buffer.getvalue()).hexdigest()[:20]}.png"
    # Two threads may hold the same image (identities); each writes the same bytes.
    (folder / name).write_bytes(buffer.getvalue())
    return name


def _scoring_lines(images: Images, folder: Path) -> Iterator[Sample]:
    queries = _WORDS["scoring"]
    for name, versions in images.items():
        for number, (version, file) in enumerate((v, f) for v, f in versions.items() if v.distortion):
            yield Sample(
                id=f"{name}/{version.distortion}/{version.level}",
                image=folder / file,
                reference=folder / versions[Version()],
                query=queries[number % len(queries)],
                mos=level_mean(version.distortion or "", version.level).mos,
                **_facts(name, version),
            )


def _by_the_house(line: Sample) -> Sample:
    """Return a line without its reference and with the house standard's score; people's stays as "people_mean"."""
    facts = {"labels": "made-up", "label_note": HOUSE_NOTE, "people_mean": line.mos}
    score = HOUSE.score(str(line.distortion), line.metadata["level"])
    return line.model_copy(update={"reference": None, "mos": score, "metadata": line.metadata | facts})


def _question_lines(images: Images, folder: Path) -> Iterator[Sample]:
    for split in get_args(Split):
        versions = {n: tuple(v) for n, v in images.items() if PHOTOGRAPHS[n].split == split}
        for number, question in enumerate(make_questions(versions)):
            yield Sample(
                id=f"{question.photograph}/{question.kind}/{number:03d}",
                image=folder / images[question.photograph][question.version],
                query=question.query,
                options=dict(question.options),
                answer=question.answer,
                **_facts(question.photograph, question.version, question_type=question.kind, labels="made-up"),
            )


def _facts(name: str, version: Version, **more: str) -> dict[str, Any]:
    """Return the fields of an image beside its score and question; `more` goes to the metadata.

    "label_std" is the deviation of KADID-10k's images from the score, not of people's opinions of this one.
    """
    photograph = PHOTOGRAPHS[name]
    metadata: dict[str, Any] = {"photograph": name, "licence": photograph.licence, "source": photograph.source}
    if version.distortion:
        mean = level_mean(version.distortion, version.level)
        metadata |= {
            "level": version.level,
            "category": version.category,
            "severity": version.severity,
            "label_std": mean.mos_std,
            "identity": (version.distortion, version.level) in IDENTITIES,
            "label_note": PEOPLE_NOTE,
        }
    fields = {"group": name, "split": photograph.split, "distortion": version.distortion}
    return fields | {"metadata": metadata | more}


def _in_hash_order(samples: Iterable[Sample]) -> list[Sample]:
    """Order lines by a hash of their id, so that the first n of a split are a fair draw from it."""
    return sorted(samples, key=lambda sample: hashlib.sha256(sample.id.encode()).digest())
