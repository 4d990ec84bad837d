"""Two images compared: which is better, how sure that is, and what differs."""

import math
from collections.abc import Sequence
from typing import Literal

from program.agent.assessment import Assessment
from program.agent.loop import AgenticIQA
from program.common.backends import Frozen
from program.common.errors import InputError
from program.fusion.scores import REACH
from program.images.refs import ImageRef
from program.images.store import show_the_same
from signatures.schemas import CATEGORY_WORDS, GLOBAL, SEVERITIES, Severity

_SMALLEST_SPREAD = 0.05
"""Levels are a step apart: a belief wholly in one is still not known to the hundredth."""

_CERTAINTIES = ((0.95, "clearly"), (0.8, "probably"), (0.65, "perhaps"))
"""Words for the probability that the better one is better, each from a smallest one on."""


class Comparison(Frozen):
    """Two images side by side; scores on 1..5."""

    better: Literal["A", "B"] | None
    """None where the scores are equal."""
    score_a: float
    score_b: float
    difference: float
    """Score of B minus score of A."""
    probability_b_better: float
    """By the two fused beliefs, taken as independent and normal."""
    verdict: str
    reasons: list[str]


def compare_images(
    program: AgenticIQA, image_a: ImageRef, image_b: ImageRef, reference: ImageRef | None = None
) -> Comparison:
    """Judge two images and compare. Raises InputError where one of them gets no score."""
    results = [program(image=image, reference=reference) for image in (image_a, image_b)]
    scores, spreads = [], []
    for image, result in zip((image_a, image_b), results, strict=True):
        if result.quality_score is None:
            fault = f"got no score ({result.error})"
            raise InputError(f"image {image.name!r}: {fault}; nothing to compare")
        scores.append(result.quality_score)
        spreads.append(spread(result))
    if image_a.sha256 == image_b.sha256:
        probability, reasons = 0.5, ["Both are the same file."]
    else:
        probability, reasons = sureness(scores, spreads), _reasons(*results)
        if not show_the_same(image_a, image_b):
            reasons.append("They show different things: each is judged by itself.")
    for letter, result in zip("AB", results, strict=True):
        if result.not_judged:
            reasons.append(f"{letter} is not judged ({result.not_judged}): its score is a guess.")
    difference = scores[1] - scores[0]
    better: Literal["A", "B"] | None = None
    if difference != 0:
        better = "B" if difference > 0 else "A"
    return Comparison(
        better=better,
        score_a=scores[0],
        score_b=scores[1],
        difference=difference,
        probability_b_better=probability,
        verdict=verdict(probability),
        reasons=reasons,
    )


def sureness(scores: list[float], spreads: list[float]) -> float:
    """Return the probability that the second quality is above the first.

    Phi((b - a) / sqrt(sd_a^2 + sd_b^2)), of both scores and their standard deviations.

    >>> round(sureness([2.0, 3.0], [0.5, 0.5]), 3), sureness([2.0, 2.0], [0.5, 0.1])
    (0.921, 0.5)
    """
    spread = math.hypot(*(max(each, _SMALLEST_SPREAD) for each in spreads))
    return 0.5 * (1 + math.erf((scores[1] - scores[0]) / spread / math.sqrt(2)))


def verdict(probability: float) -> str:
    """Put a probability that B is better into words.

    >>> verdict(0.97), verdict(0.12), verdict(0.55)
    ('B is clearly better', 'A is probably better', 'no clear difference')
    """
    name, certainty = "B", probability
    if probability < 0.5:
        name, certainty = "A", 1 - probability
    for least, word in _CERTAINTIES:
        if certainty >= least:
            return f"{name} is {word} better"
    return "no clear difference"


def spread(result: Assessment) -> float:
    """Return the deviation about a score, by its interval's longer side; ValueError without one."""
    if result.quality_score is None or result.score_interval is None:
        raise ValueError("the assessment has no score")
    low, high = result.score_interval
    return max(result.quality_score - low, high - result.quality_score) / REACH


def _reasons(a: Assessment, b: Assessment) -> list[str]:
    """Name what differs: severities, then scores of the same tools, largest difference first."""
    steps = []
    in_a, in_b = _severities(a), _severities(b)
    for kind in dict.fromkeys([*in_a, *in_b]):
        first, second = in_a.get(kind, "none"), in_b.get(kind, "none")
        if first != second:
            name = str(CATEGORY_WORDS.get(kind, kind))  # type: ignore[call-overload]
            distance = abs(SEVERITIES.index(second) - SEVERITIES.index(first))
            steps.append((distance, f"{name.capitalize()}: {first} in A, {second} in B."))
    reasons = _largest_first(steps)
    by_a, by_b = _readings(a), _readings(b)
    gaps = []
    for tool in by_a:
        if tool in by_b:
            text = f"{tool} scores A {by_a[tool]:.2f} and B {by_b[tool]:.2f}."
            gaps.append((abs(by_b[tool] - by_a[tool]), text))
    reasons += _largest_first(gaps)
    return reasons or ["Nothing measured tells them apart."]


def _largest_first(differences: Sequence[tuple[float, str]]) -> list[str]:
    ordered = sorted(differences, key=lambda difference: -difference[0])
    return [text for _, text in ordered]


def _severities(result: Assessment) -> dict[str, Severity]:
    """Return how severe what is wrong with the whole image is, by fault or category."""
    worst = result.severities(lambda finding: finding.fault or finding.type)
    return {kind: severity for (region, kind), severity in worst.items() if region == GLOBAL}


def _readings(result: Assessment) -> dict[str, float]:
    by_tool: dict[str, list[float]] = {}
    for log in result.state.evidence.tool_logs:
        if log.score is not None and log.region == GLOBAL:
            by_tool.setdefault(log.tool, []).append(log.score)
    return {tool: math.fsum(scores) / len(scores) for tool, scores in by_tool.items()}
