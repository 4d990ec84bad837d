"""What a score was fused from, in a sentence. Pure."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from program.fusion.scores import Belief, Precisions, ScoreFusion

__all__ = ("fusion_note",)


def fusion_note(
    fusion: ScoreFusion,
    score: float,
    tool_scores: Sequence[float],
    vlm_probabilities: Belief,
    precisions: Precisions = None,
    *,
    chinese: bool = False,
) -> str:
    """Say what `fusion` made the score of, in English or Chinese; a tool that weighs nothing is no source.

    >>> fusion_note(ScoreFusion(), 2.7, [2.6, 2.8], None)
    'Score 2.70 is the mean of 2 tool scores.'
    """
    source = (_chinese_source if chinese else _source)(_made(fusion, tool_scores, vlm_probabilities, precisions))
    if not fusion.bends:
        return f"分数 {score:.2f} {source}。" if chinese else f"Score {score:.2f} {source}."
    before = fusion.unmapped(tool_scores, vlm_probabilities, precisions)
    if chinese:
        return f"分数 {score:.2f} 是 {before:.2f} 在人类评分拟合尺度上的值；{before:.2f} {source}。"
    return f"Score {score:.2f} is {before:.2f} on the fitted scale of human scores; {before:.2f} {source}."


class _Made(NamedTuple):
    """What went into a score: all tool scores, those that counted, and the model's expected level with its weight."""

    scores: Sequence[float]
    counted: Sequence[float]
    weighted: bool
    level: float | None
    model_weight: float


def _made(fusion: ScoreFusion, scores: Sequence[float], probabilities: Belief, precisions: Precisions) -> _Made:
    weighted = precisions if fusion.tool_weights == "reliability" else None
    counted = [s for s, g in zip(scores, weighted, strict=True) if g > 0] if weighted else scores
    level = math.fsum(c * p for c, p in probabilities.items()) if probabilities else None
    if fusion.normalize and not fusion.eta:
        counted = []
    elif not fusion.normalize:
        counted = counted or scores
    return _Made(scores, counted, bool(weighted and any(weighted)), level, fusion.model_weight)


def _source(made: _Made) -> str:
    if made.level is None:
        return f"is the mean of {_several(made.scores)}{', weighted by their reliability' if made.weighted else ''}"
    level = f"the model's expected level of {made.level:.2f}"
    level += f" at weight {made.model_weight:g}" if made.model_weight != 1 else ""
    if not made.scores:
        return f"is {level}; no tool score was available"
    if not made.counted:
        return f"is {level}; {_several(made.scores)} weighed nothing"
    return f"fuses tool scores of {_span(made.counted, ' to ')} with {level}"


def _chinese_source(made: _Made) -> str:
    if made.level is None:
        return f"是 {len(made.scores)} 个工具评分的平均值{'（按可靠性加权）' if made.weighted else ''}"
    level = f"模型的期望等级 {made.level:.2f}" + (f"（权重 {made.model_weight:g}）" if made.model_weight != 1 else "")
    if not made.scores:
        return f"是{level}；没有工具评分"
    if not made.counted:
        return f"是{level}；{len(made.scores)} 个工具评分没有分量"
    return f"融合了工具评分 {_span(made.counted, ' 至 ')} 与{level}"


def _span(scores: Sequence[float], to: str) -> str:
    return f"{min(scores):.2f}" if len(scores) == 1 else f"{min(scores):.2f}{to}{max(scores):.2f}"


def _several(scores: Sequence[float]) -> str:
    return "1 tool score" if len(scores) == 1 else f"{len(scores)} tool scores"
