"""What the Summarizer asks: an answer from evidence and image, or a belief over the quality levels.

Order of the outputs (1.5b, text only, 60 photographs of BIQ2021's validation split, belief read from token
probabilities): level, then reasons: SRCC .60, RMSE .76; reasons, then level: .55, .98, as the model is certain of
what it has just argued for. So the level comes first where tokens are read, and the reasons where only text is.
"""

from dataclasses import replace

import dspy

from signatures import require_docstrings
from signatures.forms import QuestionForm, field_with_step
from signatures.schemas import LevelProbabilities, QualityLevel

require_docstrings()


_LOOK = "If they are unclear or insufficient, look at the image itself."


_SCORES = "the tools' scores of the overall quality, 1 bad to 5 excellent"


class _Shown(dspy.Signature):
    image: dspy.Image = dspy.InputField(desc="the image to judge")
    reference: dspy.Image | None = dspy.InputField(desc="the undistorted reference image")
    region_crops: dict[str, dspy.Image] | None = dspy.InputField(desc="the regions in question, cut out of the image")
    query: str = dspy.InputField(desc="the user's question")


class _Judged(_Shown):
    quality_scores: str | None = dspy.InputField(desc=_SCORES)
    distortion_analysis: str | None = dspy.InputField(desc="findings per region")


class AnswerQuestion(_Shown):
    """You are a visual quality assessment assistant. Select the best answer to the user's question.

    You are given the distortion analysis (severity and visual impact) and the tools' quality scores.
    1. Understand what visual information the question needs.
    2. Check whether the analysis or the scores hold it.
    3. If they do, answer from them.
    """

    image: dspy.Image = field_with_step("the image to judge", _LOOK)
    options: str = dspy.InputField(desc="the answers to choose from")
    quality_scores: str | None = dspy.InputField(desc=_SCORES)
    distortion_analysis: str | None = dspy.InputField(desc="findings per region")
    similar_photographs: str | None = dspy.InputField(desc="the right option, judging by others")
    final_answer: str = dspy.OutputField(desc="the letter of the best option")
    quality_reasoning: str = dspy.OutputField(desc="the evidence for it, in one sentence")


class ExplainQuality(_Judged):
    """You are a visual quality assessment assistant. Answer the user's question about the image's quality.

    You are given the distortion analysis (severity and visual impact) and the tools' quality scores.
    1. Understand what visual information the question needs.
    2. Check whether the analysis or the scores hold it.
    3. If they do, answer from them.
    """

    image: dspy.Image = field_with_step("the image to judge", _LOOK)
    final_answer: str = dspy.OutputField(desc="the answer, in one to four sentences")
    quality_reasoning: str = dspy.OutputField(desc="the evidence for it, in one sentence")


class ScoreQuality(_Judged):
    """You are a visual quality assessment assistant. Assess the image's quality and say how likely each level is.

    The levels are
    bad (1): extreme distortions, unusable quality
    poor (2): severe distortions, significant impact
    fair (3): moderate distortions, noticeable impact
    good (4): minor distortions, minimal impact
    excellent (5): no visible distortion
    Give a probability for each level; the five numbers sum to one.
    """

    similar_photographs: str | None = dspy.InputField(desc="what people's ratings of other photographs say of this one")
    quality_reasoning: str = dspy.OutputField(
        desc="the distortions found and how they look, in one sentence without numbers"
    )
    quality_probs: LevelProbabilities = dspy.OutputField(desc="how likely each quality level is")


class ClassifyQuality(_Judged):
    """You are a visual quality assessment assistant. Select the one level that names the image's quality best.

    The levels are
    bad (1): extreme distortions, unusable quality
    poor (2): severe distortions, significant impact
    fair (3): moderate distortions, noticeable impact
    good (4): minor distortions, minimal impact
    excellent (5): no visible distortion
    """

    similar_photographs: str | None = dspy.InputField(desc="what people's ratings of other photographs say of this one")
    quality_level: QualityLevel = dspy.OutputField(desc="one word: excellent, good, fair, poor or bad")
    quality_reasoning: str = dspy.OutputField(
        desc="the distortions found and how they look, in one sentence without numbers"
    )


# The questions that are put with these signatures: a valid answer, and the tokens that it may take

_LEVEL = {"quality_level": "fair"}
_REASONS = {"quality_reasoning": "Moderate blur softens edges; the tool score of 2.6 agrees."}
_FINDINGS = {"findings": [{"type": "Blurs", "severity": "moderate", "explanation": "Edges appear soft."}]}
_PROBABILITIES = {"quality_probs": {"bad": 0.02, "poor": 0.13, "fair": 0.6, "good": 0.2, "excellent": 0.05}}
_LETTER = {"final_answer": "B"}

PROBABILITIES = QuestionForm({**_REASONS, **_PROBABILITIES}, 300)
PROBABILITIES_WITH_FINDINGS = QuestionForm({**_FINDINGS, **_REASONS, **_PROBABILITIES}, 600)

LEVEL_WORD = QuestionForm(_LEVEL, 8, drops_others=True)  # eight tokens: all the pieces of a word
LEVEL_AND_REASONS = QuestionForm({**_LEVEL, **_REASONS}, 250)
LEVEL_THAT_COUNTS = replace(LEVEL_AND_REASONS, decisive_field="quality_level")
REASONS_THEN_LEVEL = replace(LEVEL_AND_REASONS, order=("quality_reasoning", "quality_level"))
_FOUND_LEVEL = QuestionForm({**_FINDINGS, **_LEVEL, **_REASONS}, 550)
LEVEL_FINDINGS_AND_REASONS = replace(_FOUND_LEVEL, order=("quality_level", "findings", "quality_reasoning"))
FINDINGS_REASONS_THEN_LEVEL = replace(_FOUND_LEVEL, order=("findings", "quality_reasoning", "quality_level"))

OPTION_LETTER = QuestionForm(_LETTER, 8, drops_others=True)
OPTION_AND_REASONS = QuestionForm({**_LETTER, "quality_reasoning": "Moderate blur, and a tool score of 2.6."}, 350)
OPTION_THAT_COUNTS = replace(OPTION_AND_REASONS, decisive_field="final_answer")

EXPLANATION = QuestionForm(
    {
        "final_answer": "The image is moderately blurred.",
        "quality_reasoning": "Edges are soft; the tool score is 2.6.",
    },
    350,
)
