"""The lines of the quickstart's manifests: scores, questions, and facts about each image."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias, get_args

from data.distortions import CATEGORIES, IDENTITIES
from data.kadid import level_mean, severity_of
from data.photographs import PHOTOGRAPHS
from data.questions import Version, make_questions
from data.sample import Sample, Split

__all__ = ("LABEL_NOTE", "SCORING_QUERIES", "Images", "lines_with_reference", "lines_without_reference")

Images: TypeAlias = Mapping[str, Mapping[Version, str]]
"""File name by photograph and version; each photograph's own (undistorted) version is among them."""

SCORING_QUERIES = (
    "Rate the perceptual quality of this image.",
    "What is the quality score of this image?",
    "How would you rate the quality of this photo?",
    "How good is the quality of this image?",
)
LABEL_NOTE = "mean human score of this distortion and level over KADID-10k's 81 references, not a score of this image"


def lines_without_reference(images: Images, folder: Path) -> list[Sample]:
    """Return the scoring lines and the multiple-choice questions; the images lie in `folder`."""
    return _in_hash_order([*_scoring_lines(images, folder), *_question_lines(images, folder)])


def lines_with_reference(images: Images, folder: Path) -> list[Sample]:
    """Return the scoring lines with their undistorted photograph as reference."""
    return _in_hash_order(_scoring_lines(images, folder, with_reference=True))


def _scoring_lines(images: Images, folder: Path, *, with_reference: bool = False) -> Iterator[Sample]:
    for name, versions in images.items():
        reference = folder / versions[Version()] if with_reference else None
        for number, (version, file) in enumerate((v, f) for v, f in versions.items() if v.distortion):
            yield Sample(
                id=f"{name}/{version.distortion}/{version.level}",
                image=folder / file,
                reference=reference,
                query=SCORING_QUERIES[number % len(SCORING_QUERIES)],
                mos=level_mean(version.distortion or "", version.level).mos,
                **_facts(name, version),
            )


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
                **_facts(question.photograph, question.version, question_type=question.kind),
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
            "category": CATEGORIES[version.distortion],
            "severity": severity_of(mean.mos),
            "label_std": mean.mos_std,
            "identity": (version.distortion, version.level) in IDENTITIES,
            "label_note": LABEL_NOTE,
        }
    return {
        "group": name, "split": photograph.split, "distortion": version.distortion, "metadata": metadata | more
    }  # fmt: skip


def _in_hash_order(samples: Iterable[Sample]) -> list[Sample]:
    """Order lines by a hash of their id, so that the first n of a split are a fair draw from it."""
    return sorted(samples, key=lambda sample: hashlib.sha256(sample.id.encode()).digest())
