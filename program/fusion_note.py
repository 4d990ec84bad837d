"""What a score was fused from, in a sentence. Pure."""

import math
from collections.abc import Mapping, Sequence

from program.fitted_fusion import FittedFusion
from program.fusion import Precisions, ScoreFusion

__all__ = ("fusion_note",)


def fusion_note(
    fusion: ScoreFusion,
    score: float,
    tool_scores: Sequence[float],
    vlm_probabilities: Mapping[int, float] | None,
    precisions: Precisions = None,
) -> str:
    """Say what `fusion` made the score of; a tool that weighs nothing is no source.

    >>> fusion_note(ScoreFusion(), 2.7, [2.6, 2.8], None)
    'Score 2.70 is the mean of 2 tool scores.'
    """
    source = _source(fusion, tool_scores, vlm_probabilities, precisions)
    if not isinstance(fusion, FittedFusion) or not fusion.bends:
        return f"Score {score:.2f} {source}."
    before = fusion.unmapped(tool_scores, vlm_probabilities, precisions)
    return f"Score {score:.2f} is {before:.2f} on the fitted scale of human scores; {before:.2f} {source}."


def _source(
    fusion: ScoreFusion, scores: Sequence[float], probabilities: Mapping[int, float] | None, precisions: Precisions
) -> str:
    weighted = precisions if fusion.tool_weights == "reliability" else None
    if not probabilities:
        how = ", weighted by their reliability" if weighted and any(weighted) else ""
        return f"is the mean of {_several(scores)}{how}"
    level = f"the model's expected level of {math.fsum(c * p for c, p in probabilities.items()):.2f}"
    if isinstance(fusion, FittedFusion) and fusion.model_weight != 1:
        level += f" at weight {fusion.model_weight:g}"
    if not scores:
        return f"is {level}; no tool score was available"
    counted = [s for s, g in zip(scores, weighted, strict=True) if g > 0] if weighted else scores
    if fusion.normalize and not (counted and fusion.eta):
        return f"is {level}; {_several(scores)} weighed nothing"
    named = counted or scores
    span = f"{min(named):.2f}" if len(named) == 1 else f"{min(named):.2f} to {max(named):.2f}"
    return f"fuses tool scores of {span} with {level}"


def _several(scores: Sequence[float]) -> str:
    return "1 tool score" if len(scores) == 1 else f"{len(scores)} tool scores"
