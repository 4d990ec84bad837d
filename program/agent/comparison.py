"""Two images compared: which is better, how sure that is, and what differs."""

import math
from typing import Literal

from program.agent.assessment import Assessment
from program.agent.loop import AgenticIQA
from program.common.backends import Frozen
from program.common.errors import InputError
from program.images.refs import ImageRef
from program.images.store import show_the_same
from signatures.schemas import CATEGORY_WORDS, GLOBAL, SEVERITIES

_SMALLEST_SPREAD = 0.05
"""Levels are a step apart: a belief wholly in one is still not known to the hundredth."""


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
            raise InputError(f"image {image.name!r}: got no score ({result.error}); nothing to compare")
        scores.append(result.quality_score)
        spreads.append(spread(program, result))
    if image_a.sha256 == image_b.sha256:
        probability, reasons = 0.5, ["Both are the same file."]
    else:
        probability, reasons = sureness(scores, spreads), _reasons(*results)
        if not show_the_same(image_a, image_b):
            reasons.append("They show different things: each is judged by itself.")
    difference = scores[1] - scores[0]
    better: Literal["A", "B"] | None = None if difference == 0 else "B" if difference > 0 else "A"
    return Comparison(
        better=better, score_a=scores[0], score_b=scores[1], difference=difference, probability_b_better=probability,
        verdict=verdict(probability), reasons=reasons,
    )  # fmt: skip


def sureness(scores: list[float], spreads: list[float]) -> float:
    """Return the probability that the second quality is above the first: Phi((b - a) / sqrt(sd_a^2 + sd_b^2)).

    >>> round(sureness([2.0, 3.0], [0.5, 0.5]), 3), sureness([2.0, 2.0], [0.5, 0.1])
    (0.921, 0.5)
    """
    spread = math.hypot(*(max(s, _SMALLEST_SPREAD) for s in spreads))
    return 0.5 * (1 + math.erf((scores[1] - scores[0]) / spread / math.sqrt(2)))


def verdict(probability: float) -> str:
    """Put a probability that B is better into words.

    >>> verdict(0.97), verdict(0.12), verdict(0.55)
    ('B is clearly better', 'A is probably better', 'no clear difference')
    """
    name, sure = ("B", probability) if probability >= 0.5 else ("A", 1 - probability)
    for least, word in ((0.95, "clearly"), (0.8, "probably"), (0.65, "perhaps")):
        if sure >= least:
            return f"{name} is {word} better"
    return "no clear difference"


def spread(program: AgenticIQA, result: Assessment) -> float:
    """Return the standard deviation of the belief that a score was fused from. Raises ValueError without a score."""
    if result.quality_score is None:
        raise ValueError("the assessment has no score")
    scores, precisions = program.summarizer.tool_readings(result.state.evidence, *result.images)
    return program.summarizer.fusion.deviation(result.quality_score, scores, result.level_probabilities, precisions)


def _reasons(a: Assessment, b: Assessment) -> list[str]:
    """Name what differs: severities first, then tools that measured both, the largest difference first."""
    severities = [result.state.evidence.severities(lambda found: found.fault or found.type) for result in (a, b)]
    differing = []
    for region, kind in dict.fromkeys([*severities[0], *severities[1]]):
        if region != GLOBAL:
            continue
        ranks = [SEVERITIES.index(of_image.get((region, kind), "none")) for of_image in severities]
        if ranks[0] != ranks[1]:
            words = [SEVERITIES[rank] for rank in ranks]
            name = str(CATEGORY_WORDS.get(kind, kind)).capitalize()  # type: ignore[call-overload]
            differing.append((abs(ranks[1] - ranks[0]), f"{name}: {words[0]} in A, {words[1]} in B."))
    reasons = [text for _, text in sorted(differing, key=lambda entry: -entry[0])]
    readings = [_readings(result) for result in (a, b)]
    shared = [(tool, readings[0][tool], readings[1][tool]) for tool in readings[0] if tool in readings[1]]
    for tool, first, second in sorted(shared, key=lambda entry: -abs(entry[2] - entry[1])):
        reasons.append(f"{tool} scores A {first:.2f} and B {second:.2f}.")
    return reasons or ["Nothing measured tells them apart."]


def _readings(result: Assessment) -> dict[str, float]:
    by_tool: dict[str, list[float]] = {}
    for log in result.state.evidence.tool_logs:
        if log.score is not None and log.region == GLOBAL:
            by_tool.setdefault(log.tool, []).append(log.score)
    return {tool: math.fsum(scores) / len(scores) for tool, scores in by_tool.items()}
