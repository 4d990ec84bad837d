"""Score fusion: the tools' mean and the model's level probabilities become one score on 1..5. Pure."""

import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from signatures.schemas import LEVEL_WORDS

__all__ = ("LETTERS", "Precisions", "ScoreFusion", "ToolWeights", "level_in_text")

logger = logging.getLogger(__name__)

LETTERS = "EDCBA"
"""Letter of each level, 1 (E, bad) to 5 (A, excellent)."""
SMOOTHING = 0.15
"""Mass taken from a single named level and shared by the four others."""

Mode = Literal["auto", "probabilities", "classification"]
ToolWeights = Literal["equal", "reliability"]
Precisions = Sequence[float] | None


class ScoreFusion:
    """Fuse calibrated tool scores (1..5) with a belief over the five quality levels.

    With the tools' mean m, alpha_c = softmax_c(-eta (m - c)^2) and level probabilities p_c, the score is
    sum(alpha_c p_c c) / sum(alpha_c p_c): the mean of the product of the two beliefs.
    `normalize=False` gives the formula as the paper prints it, sum(alpha_c p_c c), clipped to [1, 5]; it leaves the
    scale (uniform alpha and p give 0.6), and is kept for comparison.
    `tool_weights="reliability"`: where each score comes with its precision g (what the tool's calibration says that
    it adds, as 1 / variance), m = sum(g s) / sum(g), and eta is multiplied by sum(g) / 2: alpha is a normal density of
    that precision. A tool with g = 0 is left out; where all are, the model's opinion stands alone.

    >>> fusion = ScoreFusion()
    >>> p = fusion.extract_vlm_probabilities({1: -3.2, 2: -0.5, 3: -0.1, 4: -2.1, 5: -4.5})
    >>> round(fusion.fuse_scores([2.6], p), 2)
    2.66
    """

    def __init__(
        self,
        eta: float = 1.0,
        quality_levels: Sequence[int] = (1, 2, 3, 4, 5),
        normalize: bool = True,
        tool_weights: ToolWeights = "equal",
    ) -> None:
        if not (math.isfinite(eta) and eta >= 0):
            raise ValueError(f"eta {eta!r}: must be a finite number >= 0")
        self.eta = eta
        self.quality_levels = tuple(quality_levels)
        self.normalize = normalize
        self.tool_weights = tool_weights

    def tool_mean(self, tool_scores: Sequence[float], precisions: Precisions = None) -> float:
        """Return the mean of one or more tool scores (each 1..5), weighted by their precisions where those count.

        >>> ScoreFusion(tool_weights="reliability").tool_mean([2.0, 4.0], [3.0, 1.0])
        2.5
        """
        return _tool_mean(tool_scores, self._weights(tool_scores, precisions))

    def compute_perceptual_weights(
        self, tool_scores: Sequence[float], precisions: Precisions = None
    ) -> dict[int, float]:
        """Return alpha_c for the mean of `tool_scores` (each 1..5); uniform when there are none, or none says anything.

        `precisions`: one per score, finite and not below 0; they count with `tool_weights="reliability"` only.
        """
        if not tool_scores:
            return dict.fromkeys(self.quality_levels, 1 / len(self.quality_levels))
        weights = self._weights(tool_scores, precisions)
        mean = _tool_mean(tool_scores, weights)
        width = self.eta
        if weights is not None:
            width *= math.fsum(weights) / 2
        return _softmax({c: -width * (mean - c) ** 2 for c in self.quality_levels})

    def extract_vlm_probabilities(self, vlm_output: Any, mode: Mode = "auto") -> dict[int, float]:
        """Return level probabilities (sum 1) from what a model answered.

        `vlm_output`: a mapping or list of probabilities, percents or log-probabilities (any negative value
        means log-probabilities); a mapping with `quality_probs` or `quality_level`; an object with
        `by_level()`; or text (JSON, or a level's word, letter or number). A missing level has no mass.
        `mode` "probabilities" or "classification" accepts only that kind. Raises ValueError for NaN, infinity, no mass
        or nothing readable: no opinion is invented.
        """
        if isinstance(vlm_output, str):
            vlm_output = _json_or_text(vlm_output)
        if hasattr(vlm_output, "by_level"):
            vlm_output = vlm_output.by_level()
        masses = self._masses(vlm_output) if mode != "classification" else None
        if masses is not None:
            return self._normalise(masses)
        if mode == "probabilities":
            raise ValueError(f"no level probabilities in {_short(vlm_output)}")
        return self._smoothed(vlm_output)

    def fuse_scores(
        self,
        tool_scores: Sequence[float],
        vlm_probabilities: Mapping[int, float] | None,
        precisions: Precisions = None,
    ) -> float:
        """Return the fused score in [1, 5]; `precisions` as in `compute_perceptual_weights`.

        Without probabilities: the tools' mean. Without tools: the expected level. Raises ValueError with neither.
        """
        if not vlm_probabilities:
            if not tool_scores:
                raise ValueError("nothing to fuse: neither tool scores nor level probabilities")
            return self._clip(self.tool_mean(tool_scores, precisions))
        weights = self.compute_perceptual_weights(tool_scores, precisions)
        products = {c: weights[c] * vlm_probabilities.get(c, 0.0) for c in self.quality_levels}
        total = math.fsum(products.values())
        weighted = math.fsum(mass * c for c, mass in products.items())
        if not self.normalize and tool_scores:
            return self._clip(weighted)
        if total < 1e-300:
            logger.warning("fusion: tools and model share no level (mass %.1e); the tools' mean stands", total)
            return self._clip(self.tool_mean(tool_scores, precisions)) if tool_scores else self._clip(weighted)
        return self._clip(weighted / total)

    def posterior(
        self,
        tool_scores: Sequence[float],
        vlm_probabilities: Mapping[int, float] | None,
        precisions: Precisions = None,
    ) -> dict[int, float]:
        """Return the fused belief over the levels: alpha_c p_c / sum(alpha p), alpha alone without p."""
        weights = self.compute_perceptual_weights(tool_scores, precisions)
        products = {c: weights[c] * (vlm_probabilities.get(c, 0.0) if vlm_probabilities else 1.0) for c in weights}
        total = math.fsum(products.values())
        return {c: mass / total for c, mass in products.items()} if total >= 1e-300 else weights

    def mapped(self, score: float) -> float:
        """Return a fused score on the scale of the answers, in [1, 5]: here the same."""
        return score

    def deviation(
        self,
        score: float,
        tool_scores: Sequence[float],
        vlm_probabilities: Mapping[int, float] | None,
        precisions: Precisions = None,
    ) -> float:
        """Return how far the fused belief lies from its score: the root mean square of level - score, mapped levels.

        Where the score is the belief's mean this is the belief's standard deviation.
        """
        belief = self.posterior(tool_scores, vlm_probabilities, precisions)
        return math.sqrt(math.fsum(p * (self.mapped(c) - score) ** 2 for c, p in belief.items()))

    def interval(
        self,
        score: float,
        tool_scores: Sequence[float],
        vlm_probabilities: Mapping[int, float] | None,
        precisions: Precisions = None,
    ) -> tuple[float, float]:
        """Return score -+ 1.96 deviations of the belief it was fused from, cut to [1, 5]; the score lies in it."""
        reach = 1.96 * self.deviation(score, tool_scores, vlm_probabilities, precisions)
        return max(1.0, score - reach), min(5.0, score + reach)

    def map_to_level(self, score: float) -> str:
        """Return the letter of the nearest level, halves up: 5 -> "A" .. 1 -> "E".

        >>> ScoreFusion().map_to_level(2.7), ScoreFusion().map_to_level(3.5)
        ('C', 'B')
        """
        if not math.isfinite(score):
            raise ValueError(f"score {score!r}: must be a finite number on 1..5")
        return LETTERS[min(5, max(1, math.floor(score + 0.5))) - 1]

    def _weights(self, tool_scores: Sequence[float], precisions: Precisions) -> Sequence[float] | None:
        if self.tool_weights == "equal" or precisions is None:
            return None
        if len(precisions) != len(tool_scores) or not all(math.isfinite(g) and g >= 0 for g in precisions):
            raise ValueError(f"precisions {list(precisions)}: give one per tool score, finite and not below 0")
        return precisions

    def _masses(self, output: Any) -> dict[int, float] | None:
        if isinstance(output, Mapping):
            for key in ("quality_probs", "probabilities"):
                if key in output:
                    return self._masses(output[key].by_level() if hasattr(output[key], "by_level") else output[key])
            masses = {level: mass for key, mass in output.items() if (level := _level_of_key(key)) is not None}
            return {level: _number(mass) for level, mass in masses.items()} or None
        if isinstance(output, list | tuple):
            if len(output) != len(self.quality_levels):
                raise ValueError(f"{len(output)} level probabilities; {len(self.quality_levels)} are needed")
            return {level: _number(mass) for level, mass in zip(self.quality_levels, output, strict=True)}
        return None

    def _normalise(self, masses: Mapping[int, float]) -> dict[int, float]:
        if not all(math.isfinite(mass) for mass in masses.values()):
            raise ValueError(f"level probabilities {dict(masses)}: not all finite")
        if any(mass < 0 for mass in masses.values()):
            known = _softmax(masses)
            return {level: known.get(level, 0.0) for level in self.quality_levels}
        total = sum(masses.values())
        if not (math.isfinite(total) and total > 0):
            raise ValueError(f"level probabilities {dict(masses)}: no mass")
        if min(abs(total - 1), abs(total / 100 - 1)) > 0.01:
            logger.warning("level probabilities sum to %.3g; renormalised", total)
        return {level: masses.get(level, 0.0) / total for level in self.quality_levels}

    def _smoothed(self, output: Any) -> dict[int, float]:
        named = output.get("quality_level") if isinstance(output, Mapping) else output
        level = level_in_text(str(named)) if named is not None else None
        if level is None:
            raise ValueError(f"no quality level in {_short(output)}")
        others = SMOOTHING / (len(self.quality_levels) - 1)
        return {c: 1 - SMOOTHING if c == level else others for c in self.quality_levels}

    def _clip(self, score: float) -> float:
        low, high = float(self.quality_levels[0]), float(self.quality_levels[-1])
        # A mean of values at an end can pass it by a rounding error; that is no news.
        if score < low - 1e-9 or score > high + 1e-9:
            logger.warning("score %.3f is off the scale; clipped to [%g, %g]", score, low, high)
        return min(high, max(low, score))


_WORD_LEVELS = {
    "excellent": 5, "perfect": 5, "outstanding": 5, "good": 4, "fair": 3, "average": 3, "moderate": 3, "poor": 2,
    "bad": 1, "terrible": 1, "awful": 1,
    "优秀": 5, "极好": 5, "很好": 5, "优": 5, "良好": 4, "好": 4, "良": 4, "一般": 3, "中等": 3, "普通": 3, "中": 3,
    "较差": 2, "差": 2, "很差": 1, "极差": 1, "糟糕": 1, "非常差": 1, "劣": 1,
}  # fmt: skip
_WORD = "|".join(sorted(map(re.escape, _WORD_LEVELS), key=len, reverse=True))
_LEAD = r"(?:quality|level|rating|rate|rated|score|grade|answer|overall|judg\w*|质量|等级|评级|级别|评分|得分|答案)"
_REFUSAL = re.compile(
    r"\b(?:sorry|cannot|can't|can not|unable|not able|won't|impossible|refuse)\b|无法|不能|抱歉", re.IGNORECASE
)
# One token a turn and no nested repeats: a model that runs off into blanks must not cost seconds here.
_LINK = r"(?:of|for|the|this|image|picture|photo|is|as|be|it|would|i|a|an|to|at|是|为|图像|图片|整体|的|[\s=:：*\"'])*"
_VALUE = (
    r"(?:level\s*)?(?:(?P<number>[1-5](?:\.\d+)?)(?!\d|\.\d)(?:\s*(?:/|out\s+of|分，?满分)\s*(?P<top>\d+))?"
    rf"|(?P<word>{_WORD})|(?P<letter>[A-E])(?![\w']))"
)
_WHOLE = re.compile(
    rf"[\s\"'`*(\[]*(?:level\s*|等级\s*|grade\s*)?{_VALUE}"
    rf"(?:\s*(?:[.．:：)\]、-]+|分)\s*(?:(?P<after>{_WORD}|[1-5])\b)?)?(?:\s*quality)?[\s\"'`*.)\]。]*",
    re.IGNORECASE,
)
_LEVEL_KEY = re.compile(rf"""["'](?:level[ _]?)?(?:[1-5A-E]|{_WORD})["']\s*[:：]""", re.IGNORECASE)
"""A level as the key of broken JSON says nothing of how likely it is."""
_LED = re.compile(rf"{_LEAD}{_LINK}{_VALUE}", re.IGNORECASE)


def level_in_text(text: str) -> int | None:
    """Return the quality level (1..5) a text names, or None if it names none, several, or refuses.

    The text is a level on its own (word, letter A..E = 5..1, number 1..5) or holds one after a word such as
    "quality", "rating" or "level". Fractions go to the nearest level, halves up. English and Chinese.

    >>> level_in_text("B. Good"), level_in_text("I would rate the quality as poor."), level_in_text("I cannot rate it")
    (4, 2, None)
    """
    if _REFUSAL.search(text):
        return None
    text = _LEVEL_KEY.sub(" ", text)
    whole = _WHOLE.fullmatch(text)
    if whole:
        level = _level_of_match(whole)
        after = whole["after"]
        stated = None if after is None else (int(after) if after.isdigit() else _WORD_LEVELS[after.casefold()])
        return level if stated in {None, level} else None
    levels = {level for match in _LED.finditer(text) if (level := _level_of_match(match)) is not None}
    return levels.pop() if len(levels) == 1 else None


def _level_of_match(match: re.Match[str]) -> int | None:
    if match["number"]:
        if match["top"] not in {None, "5"}:
            return None
        value = float(match["number"])
        return math.floor(value + 0.5) if 1 <= value <= 5 else None
    if match["word"]:
        return _WORD_LEVELS[match["word"].casefold()]
    return LETTERS.index(match["letter"].upper()) + 1


def _level_of_key(key: Any) -> int | None:
    text = str(key).strip().casefold().removeprefix("level").strip(" _-")
    if text in LEVEL_WORDS:
        return LEVEL_WORDS.index(text) + 1
    if len(text) == 1 and text in "12345":
        return int(text)
    return LETTERS.index(text.upper()) + 1 if len(text) == 1 and text in "abcde" else None


def _number(value: Any) -> float:
    if isinstance(value, bool) or value is None:
        raise ValueError(f"level probability {value!r}: not a number")
    try:
        return float(value.strip().rstrip("%") if isinstance(value, str) else value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"level probability {_short(value)}: not a number") from error


def _tool_mean(scores: Sequence[float], weights: Sequence[float] | None = None) -> float:
    if not all(math.isfinite(s) for s in scores):
        raise ValueError(f"tool scores {list(scores)}: not all finite")
    total = math.fsum(weights) if weights is not None else 0.0
    if weights is None or total == 0:
        return math.fsum(scores) / len(scores)
    return math.fsum(w * s for w, s in zip(weights, scores, strict=True)) / total


def _softmax(logits: Mapping[int, float]) -> dict[int, float]:
    top = max(logits.values())
    exponentials = {c: math.exp(v - top) for c, v in logits.items()}
    total = math.fsum(exponentials.values())
    return {c: e / total for c, e in exponentials.items()}


def _json_or_text(text: str) -> Any:
    start, stop = text.find("{"), text.rfind("}")
    if 0 <= start < stop:
        try:
            return json.loads(text[start : stop + 1])
        except (ValueError, RecursionError):
            return text
    return text


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
