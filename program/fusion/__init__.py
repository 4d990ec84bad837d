"""How tool scores and level probabilities become one score: printed, normalised, fitted. Pure."""

from program.fusion.levels import LETTERS, level_in_text
from program.fusion.scores import Precisions, ScoreFusion, ToolWeights

__all__ = ("LETTERS", "Precisions", "ScoreFusion", "ToolWeights", "level_in_text")
