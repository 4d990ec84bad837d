"""Multiple-choice questions about distorted photographs whose truth is known.

Three kinds: which distortion, how severe (from the mean human score), and yes or no. Right answers are spread evenly
over their texts and over the letters, so a constant answer earns what chance does.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from string import ascii_uppercase
from typing import Literal, TypeAlias, TypeVar, get_args

import numpy as np

from data.distortions import generator_for
from data.kadid import CATEGORIES, Severity, level_mean, severity_of

__all__ = ("Question", "QuestionKind", "Version", "make_questions")

T = TypeVar("T")
QuestionKind = Literal["which", "severity", "yes_no"]
PER_LABEL = 2
"""Questions per photograph and right answer, for "which" and "severity"."""


@dataclass(frozen=True, slots=True)
class Version:
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


@dataclass(frozen=True, slots=True)
class Question:
    """A question about one version of a photograph, with lettered options."""

    kind: QuestionKind
    photograph: str
    version: Version
    query: str
    options: Mapping[str, str] = field(hash=False)
    answer: str


_Draft: TypeAlias = tuple[Version, str, str, Sequence[str]]
"""A question before its options have letters: version, query, right answer, wrong answers."""

_PLAIN = "No visible distortion"
_LABELS: Mapping[str, tuple[str, str]] = {
    "Blurs": ("Blur", "is the blur"),
    "Color distortions": ("Color distortion", "is the color distortion"),
    "Compression": ("Compression artifacts", "are the compression artifacts"),
    "Noise": ("Noise", "is the noise"),
    "Brightness change": ("Brightness change", "is the brightness problem"),
    "Sharpness": ("Over-sharpening", "is the over-sharpening"),
    "Contrast": ("Contrast change", "is the contrast problem"),
}
"""By category: its name as an option, and how its severity is asked after."""
_WHICH = ("Which distortion is most visible in this image?", "What is the main quality problem of this image?")
# What else a person might rightly answer is not offered beside the truth.
_ALSO_TRUE: Mapping[str, frozenset[str]] = {
    "jpeg2000": frozenset({"Blur"}),
    "brighten": frozenset({"Contrast change"}),
    "darken": frozenset({"Contrast change"}),
    "mean_shift": frozenset({"Contrast change"}),
    "contrast_change": frozenset({"Brightness change"}),
    "high_sharpen": frozenset({"Contrast change"}),
}
# Query, distortions for which the answer is yes, distortions for which it is no (or none at all).
_YES_NO: tuple[tuple[str, frozenset[str], frozenset[str]], ...] = (
    ("Is this image blurry?", frozenset({"gaussian_blur", "lens_blur", "motion_blur"}),
     frozenset({"color_saturation_1", "brighten", "mean_shift", "high_sharpen", "white_noise", "impulse_noise"})),
    ("Is there visible noise in this image?",
     frozenset({"white_noise", "color_component_noise", "impulse_noise", "multiplicative_noise"}),
     frozenset({"gaussian_blur", "lens_blur", "brighten", "darken", "color_saturation_1", "contrast_change"})),
    ("Does this image show compression artifacts?", frozenset({"jpeg", "jpeg2000"}),
     frozenset({"white_noise", "brighten", "darken", "color_saturation_1", "high_sharpen", "motion_blur"})),
    ("Do the colors of this image look wrong?",
     frozenset({"color_diffusion", "color_shift", "color_saturation_1", "color_saturation_2"}),
     frozenset({"gaussian_blur", "lens_blur", "motion_blur", "contrast_change"})),
    ("Is this image over-sharpened?", frozenset({"high_sharpen"}),
     frozenset({"gaussian_blur", "lens_blur", "brighten", "color_saturation_1", "white_noise", "jpeg"})),
    ("Is this image too bright?", frozenset({"brighten"}),
     frozenset({"darken", "gaussian_blur", "motion_blur", "white_noise", "jpeg"})),
    ("Is this image too dark?", frozenset({"darken"}),
     frozenset({"brighten", "gaussian_blur", "motion_blur", "white_noise", "jpeg"})),
)  # fmt: skip


def make_questions(versions: Mapping[str, Sequence[Version]]) -> list[Question]:
    """Make the questions of one split from each photograph's versions; the same input gives the same questions.

    "Which" and "severity" ask twice per photograph and right answer, "yes_no" once per subject and
    answer, where the versions allow it. Versions include the photograph itself where it may be asked about.
    """
    questions: list[Question] = []
    places: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for (photograph, every), (kind, make) in product(versions.items(), _MAKERS.items()):
        for version, query, right, wrong in make(every, generator_for("questions", photograph, kind)):
            # Per kind and right answer, the right one goes round the letters.
            place = places[kind].setdefault(right, len(places[kind])) % (len(wrong) + 1)
            places[kind][right] += 1
            texts = _pick(generator_for("questions", photograph, kind, len(questions)), wrong, len(wrong))
            texts.insert(place, right)
            options = dict(zip(ascii_uppercase, texts, strict=False))
            questions.append(Question(kind, photograph, version, query, options, ascii_uppercase[place]))
    return questions


def _which(versions: Sequence[Version], rng: np.random.Generator) -> Iterator[_Draft]:
    names = {category: label for category, (label, _) in _LABELS.items()}
    labels = [label for category, label in names.items() if any(v.category == category for v in versions)]
    for category, label in (*names.items(), (None, _PLAIN)):
        fitting = [v for v in versions if v.category == category and (v.is_clear if category else not v.distortion)]
        # The photograph itself is one version only: it is asked about in both wordings.
        chosen = _pick(rng, fitting, PER_LABEL) if category else fitting * PER_LABEL
        for query, version in zip(_WHICH, chosen, strict=False):
            others = [
                x for x in (*labels, _PLAIN) if x != label and x not in _ALSO_TRUE.get(version.distortion or "", ())
            ]
            if len(others) >= 3:
                yield version, query, label, _pick(rng, others, 3)


def _severity(versions: Sequence[Version], rng: np.random.Generator) -> Iterator[_Draft]:
    words = [word.capitalize() for word in get_args(Severity)]
    for severity in get_args(Severity):
        right = severity.capitalize()
        wrong = [word for word in words if word != right]
        for version in _pick(rng, [v for v in versions if v.category and v.severity == severity], PER_LABEL):
            query = f"How severe {_LABELS[version.category or ''][1]} in this image?"
            yield version, query, right, wrong


def _yes_no(versions: Sequence[Version], rng: np.random.Generator) -> Iterator[_Draft]:
    for query, for_yes, for_no in _YES_NO:
        yes = _pick(rng, [v for v in versions if v.distortion in for_yes and v.is_clear], 1)
        no = _pick(rng, [v for v in versions if v.distortion is None or v.distortion in for_no], 1)
        # One without the other would make one answer the better guess.
        if yes and no:
            yield yes[0], query, "Yes", ["No"]
            yield no[0], query, "No", ["Yes"]


_MAKERS: Mapping[QuestionKind, Callable[[Sequence[Version], np.random.Generator], Iterator[_Draft]]] = {
    "which": _which, "severity": _severity, "yes_no": _yes_no,
}  # fmt: skip


def _pick(rng: np.random.Generator, items: Sequence[T], count: int) -> list[T]:
    return [items[i] for i in rng.permutation(len(items))[:count]]
