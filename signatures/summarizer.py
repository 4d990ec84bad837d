"""What the Summarizer asks: an answer from evidence and image, or a belief over the quality levels."""

from typing import Literal

import dspy

from signatures.schemas import LevelProbabilities

__all__ = ("AnswerQuestion", "ClassifyQuality", "ExplainQuality", "ScoreQuality")


class AnswerQuestion(dspy.Signature):
    """You are a visual quality assessment assistant. Select the most appropriate answer to the user's question.

    You are given the distortion analysis (severity and visual impact), the tools' responses (quality scores of IQA
    models on 1..5, higher is better) and the image.
    1. Understand what kind of visual information the question needs.
    2. Check whether the distortion analysis or the tools' responses already hold it.
    3. If they do, answer from them.
    4. If they are unclear or insufficient, look at the image itself to find the best answer.
    """

    image: dspy.Image = dspy.InputField(desc="the image to judge")
    reference: dspy.Image | None = dspy.InputField(desc="the undistorted reference image")
    region_crops: dict[str, dspy.Image] | None = dspy.InputField(desc="the regions in question, cut out of the image")
    query: str = dspy.InputField(desc="the user's question")
    options: str = dspy.InputField(desc="the answers to choose from, one a line")
    distortion_analysis: str | None = dspy.InputField(desc="findings per region, as JSON")
    quality_scores: str | None = dspy.InputField(desc="tool and score per region and distortion, as JSON")
    final_answer: str = dspy.OutputField(desc="the letter of the best option")
    quality_reasoning: str = dspy.OutputField(
        desc="brief explanation from the distortion analysis, the tools' responses or direct observation"
    )


class ExplainQuality(dspy.Signature):
    """You are a visual quality assessment assistant. Answer the user's question about the image's quality.

    You are given the distortion analysis (severity and visual impact), the tools' responses (quality scores of IQA
    models on 1..5, higher is better) and the image.
    1. Understand what kind of visual information the question needs.
    2. Check whether the distortion analysis or the tools' responses already hold it.
    3. If they do, answer from them.
    4. If they are unclear or insufficient, look at the image itself to find the best answer.
    """

    image: dspy.Image = dspy.InputField(desc="the image to judge")
    reference: dspy.Image | None = dspy.InputField(desc="the undistorted reference image")
    region_crops: dict[str, dspy.Image] | None = dspy.InputField(desc="the regions in question, cut out of the image")
    query: str = dspy.InputField(desc="the user's question")
    distortion_analysis: str | None = dspy.InputField(desc="findings per region, as JSON")
    quality_scores: str | None = dspy.InputField(desc="tool and score per region and distortion, as JSON")
    final_answer: str = dspy.OutputField(desc="the answer, in one to four sentences")
    quality_reasoning: str = dspy.OutputField(
        desc="brief explanation from the distortion analysis, the tools' responses or direct observation"
    )


class ScoreQuality(dspy.Signature):
    """You are a visual quality assessment assistant. Assess the image's quality and say how likely each level is.

    You are given the question, the tools' scores (1..5, higher is better) with their mean, and the distortion
    analysis. The levels are
    excellent (5): no visible distortion
    good (4): minor distortions, minimal impact
    fair (3): moderate distortions, noticeable impact
    poor (2): severe distortions, significant impact
    bad (1): extreme distortions, unusable quality
    Give a probability for each level, five numbers that sum to one; log-probabilities are accepted too.
    """

    image: dspy.Image = dspy.InputField(desc="the image to judge")
    reference: dspy.Image | None = dspy.InputField(desc="the undistorted reference image")
    region_crops: dict[str, dspy.Image] | None = dspy.InputField(desc="the regions in question, cut out of the image")
    query: str = dspy.InputField(desc="the user's question")
    quality_scores: str | None = dspy.InputField(desc="tool and score per region and distortion, as JSON")
    tool_mean: float | None = dspy.InputField(desc="mean of the tools' scores, 1..5")
    distortion_analysis: str | None = dspy.InputField(desc="findings per region, as JSON")
    quality_probs: LevelProbabilities = dspy.OutputField(desc="how likely each quality level is")
    quality_reasoning: str = dspy.OutputField(desc="concise justification referencing distortions and tool scores")


class ClassifyQuality(dspy.Signature):
    """You are a visual quality assessment assistant. Given the question and the analysis, assess the image's quality.

    You must select one single answer from the following:
    A. Excellent
    B. Good
    C. Fair
    D. Poor
    E. Bad
    """

    image: dspy.Image = dspy.InputField(desc="the image to judge")
    reference: dspy.Image | None = dspy.InputField(desc="the undistorted reference image")
    region_crops: dict[str, dspy.Image] | None = dspy.InputField(desc="the regions in question, cut out of the image")
    query: str = dspy.InputField(desc="the user's question")
    quality_scores: str | None = dspy.InputField(desc="tool and score per region and distortion, as JSON")
    tool_mean: float | None = dspy.InputField(desc="mean of the tools' scores, 1..5")
    distortion_analysis: str | None = dspy.InputField(desc="findings per region, as JSON")
    quality_level: Literal["A", "B", "C", "D", "E"] = dspy.OutputField(desc="one letter")
    quality_reasoning: str = dspy.OutputField(desc="concise justification referencing distortions or tool scores")
