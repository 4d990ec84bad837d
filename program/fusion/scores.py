"""Score fusion: the tools' mean and level probabilities become one score on 1..5. Pure."""

import bisect
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from program.fusion.levels import LETTERS, LEVELS, Mode, expected_level, level_probabilities, nearest_level, softmax
from signatures.schemas import LEVEL_WORDS, LEVELS_CHINESE

logger = logging.getLogger(__name__)

ToolWeights = Literal["equal", "reliability"]
Scores = Sequence[float]
Precisions = Sequence[float] | None
Belief = Mapping[int, float] | None
"""Probability of each level."""
REACH = 1.96
"""Standard deviations from a score to either end of its interval, which holds 95 %."""

_PHRASES: Mapping[str, tuple[str, str]] = {
    "overall": ("Overall the quality is {}.", "整体质量{}。"),
    "headline": ("{} ({} of 5{})", "{}（{}/5{}）"),
    "likely": (", likely {:.1f} to {:.1f}", "，约 {:.1f} 至 {:.1f}"),
    "score": ("Score {score:.2f} {source}.", "分数 {score:.2f} {source}。"),
    "fitted": (
        "Score {score:.2f} is {before:.2f} on the fitted scale; {before:.2f} {source}.",
        "分数 {score:.2f} 是 {before:.2f} 在拟合尺度上的值；{before:.2f} {source}。",
    ),
    "mean": ("is the mean of {tools}", "是 {tools}的平均值"),
    "weighted": ("is the mean of {tools}, weighted by their reliability", "是 {tools}的平均值（按可靠性加权）"),
    "level": ("is from the model only", "仅来自模型"),
    "unweighed": ("is from the model only; {tools} did not count", "仅来自模型；{tools}没有分量"),
    "fused": ("combines the tools' {span} with {level}", "融合了工具评分 {span} 与{level}"),
    "model": ("the model's expected level of {:.2f}", "模型的期望等级 {:.2f}"),
    "weight": (" at weight {:g}", "（权重 {:g}）"),
    "higher": ("By the labels people rate it {:.1f} higher than the tools do.", "按标注，人们的评价比工具高 {:.1f}。"),
    "lower": ("By the labels people rate it {:.1f} lower than the tools do.", "按标注，人们的评价比工具低 {:.1f}。"),
    "tool": ("1 tool score", "1 个工具评分"),
    "tools": ("{} tool scores", "{} 个工具评分"),
    "to": (" to ", " 至 "),
}
"""English and Chinese."""


class ScoreFusion:
    """Fuse calibrated tool scores (1..5) with a belief over the five quality levels.

    With the tools' mean m, alpha_c = softmax_c(-eta (m - c)^2) and level probabilities p_c, the
    score is sum(alpha_c p_c c) / sum(alpha_c p_c): the mean of the product of the two beliefs.
    `normalize=False` gives the formula as the paper prints it, sum(alpha_c p_c c), clipped to [1,
    5]; it leaves the scale (uniform alpha and p give 0.6), and is kept for comparison.
    `tool_weights="reliability"`: where each score comes with its precision g (what the tool's
    calibration says that it adds, as 1 / variance), m = sum(g s) / sum(g), and eta is multiplied by
    sum(g) / 2: alpha is a normal density of that precision. A tool with g = 0 is left out; where
    all are, the model's opinion stands alone.

    A language model's belief is mixed with an even spread by `smoothing` (0 .. 1), so that no level
    that it rules out is lost, and raised to `model_weight` (0: the tools alone decide, 1: as it
    is); both only where tools speak too.

    >>> fusion = ScoreFusion()
    >>> p = fusion.extract_vlm_probabilities({1: -3.2, 2: -0.5, 3: -0.1, 4: -2.1, 5: -4.5})
    >>> round(fusion.fuse_scores([2.6], p), 2)
    2.66
    """

    bends = False
    """Whether there is a map."""
    curve: tuple[tuple[float, float], ...] = ()
    """The map's knots."""
    kind = "none"
    """What sort of map was fitted."""

    def __init__(
        self,
        eta: float = 1.0,
        normalize: bool = True,
        tool_weights: ToolWeights = "equal",
        model_weight: float = 1.0,
        smoothing: float = 0.0,
    ) -> None:
        self.eta = _finite("eta", eta)
        self.normalize = normalize
        self.tool_weights = tool_weights
        self.model_weight = _finite("model_weight", model_weight)
        self.smoothing = _finite("smoothing", smoothing)

    def tool_mean(self, tool_scores: Scores, precisions: Precisions = None) -> float:
        """Return the mean of tool scores (each 1..5), weighted by precisions where those count.

        >>> ScoreFusion(tool_weights="reliability").tool_mean([2.0, 4.0], [3.0, 1.0])
        2.5
        """
        if not all(math.isfinite(s) for s in tool_scores):
            raise ValueError(f"tool scores {list(tool_scores)}: not all finite")
        weights = self._weights(tool_scores, precisions)
        if weights is None or not any(weights):
            return math.fsum(tool_scores) / len(tool_scores)
        return math.fsum(w * s for w, s in zip(weights, tool_scores, strict=True)) / math.fsum(weights)

    def compute_perceptual_weights(self, tool_scores: Scores, precisions: Precisions = None) -> dict[int, float]:
        """Return alpha_c for the mean of `tool_scores` (each 1..5); uniform without any.

        `precisions`: one per score, finite and not below 0; they count with
        `tool_weights="reliability"` only.
        """
        if not tool_scores:
            return dict.fromkeys(LEVELS, 1 / len(LEVELS))
        mean, weights = self.tool_mean(tool_scores, precisions), self._weights(tool_scores, precisions)
        width = self.eta if weights is None else self.eta * (math.fsum(weights) / 2)
        return softmax({c: -width * (mean - c) ** 2 for c in LEVELS})

    def extract_vlm_probabilities(self, vlm_output: Any, mode: Mode = "auto") -> dict[int, float]:
        """Return level probabilities (sum 1) from what a model answered.

        `vlm_output`: a mapping or list of probabilities, percents or log-probabilities (any
        negative value means log-probabilities); a mapping with `quality_probs` or `quality_level`;
        an object with `by_level()`; or text (JSON, or a level's word, letter or number). A missing
        level has no mass. `mode` "probabilities" or "classification" accepts only that kind. Raises
        ValueError for NaN, infinity, no mass or nothing readable: no opinion is invented.
        """
        return level_probabilities(vlm_output, mode)

    def fuse_scores(self, tool_scores: Scores, vlm_probabilities: Belief, precisions: Precisions = None) -> float:
        """Return the fused score in [1, 5], mapped; precisions as for the weights.

        Without probabilities: the tools' mean. Without tools: the expected level. Raises ValueError
        with neither.
        """
        return self.map_score(self.unmapped_score(tool_scores, vlm_probabilities, precisions))

    def unmapped_score(self, tool_scores: Scores, vlm_probabilities: Belief, precisions: Precisions = None) -> float:
        """Return the fused score in [1, 5], before the map."""
        vlm_probabilities = self._beside_tools(vlm_probabilities, tool_scores, precisions)
        if not vlm_probabilities:
            if not tool_scores:
                raise ValueError("nothing to fuse: neither tool scores nor level probabilities")
            return self._clip(self.tool_mean(tool_scores, precisions))
        weights = self.compute_perceptual_weights(tool_scores, precisions)
        products = {c: weights[c] * vlm_probabilities.get(c, 0.0) for c in LEVELS}
        total = math.fsum(products.values())
        weighted = math.fsum(mass * c for c, mass in products.items())
        if not self.normalize and tool_scores:
            return self._clip(weighted)
        if total < 1e-300:
            logger.warning("fusion: tools and model share no level (mass %.1e); the tools' mean stands", total)
            if tool_scores:
                return self._clip(self.tool_mean(tool_scores, precisions))
            return self._clip(weighted)
        return self._clip(weighted / total)

    def posterior(
        self, tool_scores: Scores, vlm_probabilities: Belief, precisions: Precisions = None
    ) -> dict[int, float]:
        """Return the fused belief over the levels, unmapped: alpha_c p_c / sum(alpha p)."""
        p = self._beside_tools(vlm_probabilities, tool_scores, precisions)
        weights = self.compute_perceptual_weights(tool_scores, precisions)
        products = {c: weights[c] * (p.get(c, 0.0) if p else 1.0) for c in weights}
        total = math.fsum(products.values())
        if total >= 1e-300:
            return {c: mass / total for c, mass in products.items()}
        return weights

    def _beside_tools(self, belief: Belief, tool_scores: Scores, precisions: Precisions) -> Belief:
        """Return a model's belief as it counts beside tools: smoothed, raised to its weight."""
        weights, power = self._weights(tool_scores, precisions), self.model_weight
        alone = not tool_scores or (weights is not None and not any(weights))
        if not belief or alone or (power == 1 and not self.smoothing):
            return belief
        masses = {c: p**power if p > 0 else float(power == 0) for c, p in even_out(belief, self.smoothing).items()}
        total = math.fsum(masses.values())
        if total > 0:
            return {c: mass / total for c, mass in masses.items()}
        return belief

    def map_score(self, score: float) -> float:
        """Return a fused score on the scale of the answers, in [1, 5]: here the same."""
        return score

    def deviation(
        self, score: float, tool_scores: Scores, vlm_probabilities: Belief, precisions: Precisions = None
    ) -> float:
        """Return how far the fused belief lies from its score: the root mean square.

        Where the score is the belief's mean this is the belief's standard deviation.
        """
        belief = self.posterior(tool_scores, vlm_probabilities, precisions)
        return math.sqrt(math.fsum(p * (self.map_score(c) - score) ** 2 for c, p in belief.items()))

    def interval(
        self, score: float, tool_scores: Scores, vlm_probabilities: Belief, precisions: Precisions = None
    ) -> tuple[float, float]:
        """Return score -+ 1.96 deviations of the belief it was fused from, cut to [1, 5]."""
        reach = REACH * self.deviation(score, tool_scores, vlm_probabilities, precisions)
        return max(1.0, score - reach), min(5.0, score + reach)

    def map_to_level(self, score: float) -> str:
        """Return the letter of the nearest level, halves up: 5 -> "A" .. 1 -> "E".

        >>> ScoreFusion().map_to_level(2.7), ScoreFusion().map_to_level(3.5)
        ('C', 'B')
        """
        if not math.isfinite(score):
            raise ValueError(f"score {score!r}: must be a finite number on 1..5")
        return LETTERS[nearest_level(score) - 1]

    def _weights(self, tool_scores: Scores, precisions: Precisions) -> Sequence[float] | None:
        if self.tool_weights == "equal" or precisions is None:
            return None
        if len(precisions) != len(tool_scores) or not all(math.isfinite(g) and g >= 0 for g in precisions):
            raise ValueError(f"precisions {list(precisions)}: give one per tool score, finite and not below 0")
        return precisions

    def _clip(self, score: float) -> float:
        # A mean of values at an end can pass it by a rounding error; that is no news.
        if score < 1 - 1e-9 or score > 5 + 1e-9:
            logger.warning("score %.3f is off the scale; clipped to [1, 5]", score)
        return min(5.0, max(1.0, score))


def _finite(name: str, value: float) -> float:
    """Return a number that is finite and not below 0; ValueError for others."""
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} {value!r}: must be a finite number >= 0")
    return value


def even_out(probabilities: Mapping[int, float], share: float) -> dict[int, float]:
    """Return level probabilities mixed with an even spread, whose share is 0..1.

    >>> even_out({5: 1.0}, 0.5)
    {1: 0.1, 2: 0.1, 3: 0.1, 4: 0.1, 5: 0.6}
    """
    return {c: (1 - share) * probabilities.get(c, 0.0) + share / len(LEVELS) for c in LEVELS}


def level_note(score: float, *, chinese: bool = False) -> str:
    """Say which level a score is nearest to, in a sentence.

    >>> level_note(3.3)
    'Overall the quality is fair.'
    """
    return _PHRASES["overall"][chinese].format(_level_word(score, chinese=chinese))


def score_line(score: float, interval: tuple[float, float] | None, *, chinese: bool = False) -> str:
    """Say a score in a line: its level, itself to a tenth, and where people's mean likely lies.

    A score that would round into the next level is rounded down.

    >>> score_line(3.32, (2.31, 4.33)), score_line(2.47, None)
    ('Fair (3.3 of 5, likely 2.3 to 4.3)', 'Poor (2.4 of 5)')
    """
    likely = _PHRASES["likely"][chinese].format(*interval) if interval else ""
    word, shown = _level_word(score, chinese=chinese), f"{score:.1f}"
    if _level_word(float(shown), chinese=chinese) != word:
        shown = f"{math.floor(10 * score) / 10:.1f}"
    return _PHRASES["headline"][chinese].format(word.capitalize(), shown, likely)


def _level_word(score: float, *, chinese: bool) -> str:
    return (LEVELS_CHINESE if chinese else LEVEL_WORDS)[nearest_level(score) - 1]


def fusion_note(
    fusion: ScoreFusion,
    score: float,
    tool_scores: Scores,
    vlm_probabilities: Belief,
    precisions: Precisions = None,
    *,
    chinese: bool = False,
) -> str:
    """Say what `fusion` made the score of; a tool that weighs nothing is no source.

    >>> fusion_note(ScoreFusion(), 2.7, [2.6, 2.8], None)
    'Score 2.70 is the mean of 2 tool scores.'
    """
    phrases = {name: pair[chinese] for name, pair in _PHRASES.items()}
    weights = precisions if fusion.tool_weights == "reliability" else None
    counted = [s for s, g in zip(tool_scores, weights, strict=True) if g > 0] if weights else tool_scores
    if fusion.normalize and not fusion.eta:
        counted = []
    elif not fusion.normalize:
        counted = counted or tool_scores
    if not vlm_probabilities:
        kind = "weighted" if weights and any(weights) else "mean"
    elif counted:
        kind = "fused"
    else:
        kind = "unweighed" if tool_scores else "level"
    number = "tool" if len(tool_scores) == 1 else "tools"
    ends = [min(counted), max(counted)][: len(counted)] if counted else []
    level = phrases["model"].format(expected_level(vlm_probabilities or {}))
    if fusion.model_weight != 1:
        level += phrases["weight"].format(fusion.model_weight)
    source = phrases[kind].format(
        tools=phrases[number].format(len(tool_scores)),
        span=phrases["to"].join(f"{end:.2f}" for end in ends),
        level=level,
    )
    if not fusion.bends:
        return phrases["score"].format(score=score, source=source)
    before = fusion.unmapped_score(tool_scores, vlm_probabilities, precisions)
    return phrases["fitted"].format(score=score, before=before, source=source)


def moved_note(before: float, after: float, *, chinese: bool = False) -> str:
    """Say by how much labels moved the tools' mean; an empty text where it is less than a tenth.

    >>> moved_note(3.2, 2.9)
    'By the labels people rate it 0.3 lower than the tools do.'
    """
    moved = after - before
    if abs(moved) < 0.1:
        return ""
    way = "higher" if moved > 0 else "lower"
    return _PHRASES[way][chinese].format(abs(moved))


FIELDS = ("eta", "model_weight", "curve")
"""What a fitted fusion adds to a saved program, beside the kind of its map."""


class FittedFusion(ScoreFusion):
    """A score fusion with three fitted parts, each that of the fusion it is built on by default.

    `eta` is the width of the tools' belief; the model's level probabilities are raised to
    `model_weight` (0: the tools alone decide, 1: as they are, more: the model is trusted more);
    `curve` maps the fused score to the scale of the people who rated: increasing knots (x, y) on
    1..5, straight lines between them, so the order of images stays; `kind` says what sort of fit
    they were taken from.

    >>> fitted = FittedFusion(ScoreFusion(), curve=[(1, 2), (5, 4)])
    >>> fitted.fuse_scores([3.0], None)
    3.0
    >>> fitted.fuse_scores([5.0], None)
    4.0
    """

    def __init__(
        self,
        base: ScoreFusion,
        *,
        eta: float | None = None,
        model_weight: float | None = None,
        curve: Sequence[tuple[float, float]] = (),
        kind: str = "knots",
    ) -> None:
        self.__dict__.update(base.__dict__)
        self.eta = self.eta if eta is None else _finite("eta", eta)
        self.model_weight = self.model_weight if model_weight is None else _finite("model_weight", model_weight)
        self.curve = tuple((float(x), float(y)) for x, y in curve)
        for (x0, y0), (x1, y1) in zip(self.curve, self.curve[1:], strict=False):
            if not (x0 < x1 and y0 < y1):
                raise ValueError(f"curve {self.curve}: the knots must increase in both coordinates")
        self.bends = len(self.curve) > 1
        self.kind = kind if self.bends else "none"

    def map_score(self, score: float) -> float:
        """Return a fused score on the scale of the fitted people, in [1, 5]."""
        if not self.bends:
            return score
        place = min(max(bisect.bisect_right([x for x, _ in self.curve], score), 1), len(self.curve) - 1)
        (x0, y0), (x1, y1) = self.curve[place - 1], self.curve[place]
        return min(5.0, max(1.0, y0 + (y1 - y0) * (score - x0) / (x1 - x0)))

    def to_json(self) -> dict[str, Any]:
        """Return what a saved program holds of it."""
        knots = [list(knot) for knot in self.curve]
        fitted = {"eta": self.eta, "model_weight": self.model_weight, "map": self.kind, "curve": knots}
        if self.smoothing:
            return {**fitted, "smoothing": self.smoothing}
        return fitted

    @classmethod
    def from_json(cls, base: ScoreFusion, fitted: Mapping[str, Any]) -> "FittedFusion":
        """Make the fusion a saved program holds. Raises ValueError for other fields or values."""
        if set(fitted) - {"map", "smoothing"} != set(FIELDS):
            raise ValueError(f"fusion holds {', '.join(sorted(fitted))}; {', '.join(FIELDS)} are needed")
        curve, kind = [(float(x), float(y)) for x, y in fitted["curve"]], str(fitted.get("map", "knots"))
        fusion = cls(base, eta=float(fitted["eta"]), model_weight=float(fitted["model_weight"]), curve=curve, kind=kind)
        fusion.smoothing = _finite("smoothing", float(fitted.get("smoothing", 0.0)))
        return fusion


DISAGREEMENT = 1.5
"""Levels between the tools' mean and the model's belief from which on an answer says so."""


def disagreement(mean: float | None, probabilities: Mapping[int, float] | None, *, chinese: bool = False) -> str:
    """Say where tools and model lie `DISAGREEMENT` levels apart or more; else "".

    >>> disagreement(4.2, {1: 0.2, 2: 0.8})
    'The tools say 4.2 of 5 and the model 1.8: they disagree.'
    """
    if mean is None or not probabilities or abs(mean - expected_level(probabilities)) < DISAGREEMENT:
        return ""
    words = "The tools say {:.1f} of 5 and the model {:.1f}: they disagree."
    if chinese:
        words = "工具评分为 {:.1f}，模型判断为 {:.1f}：两者不一致。"
    return words.format(mean, expected_level(probabilities))
