"""What the Executor asks: which distortions there are, how strong they are, and which tools measure them.

And what the doctor asks a model, to find out whether it sees.
"""

from typing import Literal

import dspy

from signatures import require_docstrings
from signatures.forms import QuestionForm
from signatures.schemas import GLOBAL, DistortionFinding, RegionBox, RegionDistortions, ToolChoice

require_docstrings()


class _Shown(dspy.Signature):
    image: dspy.Image = dspy.InputField(desc="the image to judge")
    reference: dspy.Image | None = dspy.InputField(desc="the undistorted reference image")
    query: str = dspy.InputField(desc="the user's question")


class DetectDistortions(_Shown):
    """You are an expert in image quality. Name the distortions that are visible in each region of the image.

    Use only these categories: Blurs, Color distortions, Compression, Noise, Brightness change, Sharpness, Contrast.
    A region without visible distortion gets an empty list. When a reference image is given, judge the differences
    from it.
    """

    regions: list[str] = dspy.InputField(desc='regions to look at; "Global" is the whole image')
    distortion_set: list[RegionDistortions] = dspy.OutputField(desc="categories per region, most visible first")


class AnalyseDistortions(_Shown):
    """You are an expert in image quality. For each listed distortion, judge how strong it is and what it does.

    severity is none, slight, moderate, severe or extreme. explanation is one sentence on what is visible, and where.
    fault is what a photographer would call it. When a reference image is given, judge the differences from it.
    """

    distortion_set: str = dspy.InputField(desc="distortion categories per region, as JSON")
    distortion_analysis: list[DistortionFinding] = dspy.OutputField(desc="one finding per listed distortion")


class DiagnoseDistortions(_Shown):
    """You are an expert in image quality. Find the distortions in each region and judge how strong each one is.

    Use only these categories: Blurs, Color distortions, Compression, Noise, Brightness change, Sharpness, Contrast.
    severity is none, slight, moderate, severe or extreme. explanation is one sentence on what is visible, and where.
    fault is what a photographer would call it. Judge every listed distortion when a list is given; otherwise report
    those that are visible. Name the region of each finding as it is listed, and speak of every region: of one without
    visible distortion say so with a finding of type none. When a reference image is given, judge the differences
    from it.
    """

    regions: list[str] = dspy.InputField(desc='regions to look at; "Global" is the whole image')
    distortion_set: str | None = dspy.InputField(desc="distortions to judge per region, as JSON")
    findings: list[DistortionFinding] = dspy.OutputField(desc="distortions, most visible first")


class SelectTools(dspy.Signature):
    """You choose quality assessment tools. For each distortion of each region, pick the tool that measures it best.

    Use the tools' descriptions and strengths (agreement with people per distortion, 0 to 1). Pick exactly one listed
    tool for each distortion; for a region without distortions pick one tool for "Overall", by its general strength.
    """

    distortion_set: str = dspy.InputField(desc="distortion categories per region, as JSON")
    tools: str = dspy.InputField(desc="the tools that are ready, as JSON")
    selected_tools: list[ToolChoice] = dspy.OutputField(desc="one tool per region and distortion")


class LocateRegions(dspy.Signature):
    """Find where each named object or region is in the image.

    Give one box per name, as fractions of the image's width and height from its upper left corner. Leave out a
    name that is not in the image.
    """

    image: dspy.Image = dspy.InputField(desc="the image")
    query: str = dspy.InputField(desc="the user's question")
    regions: list[str] = dspy.InputField(desc="names to find")
    region_boxes: list[RegionBox] = dspy.OutputField(desc="boxes of the regions that were found")


# The questions that are put with these signatures: a valid answer, and the tokens that it may take

_BLUR = {"region": GLOBAL, "type": "Blurs", "severity": "moderate", "explanation": "Edges appear soft."}

DETECTION = QuestionForm({"distortion_set": [{"region": GLOBAL, "distortions": ["Blurs"]}]}, 300)
ANALYSIS = QuestionForm({"distortion_analysis": [_BLUR]}, 800)
DIAGNOSIS = QuestionForm({"findings": [_BLUR]}, 800)
TOOL_CHOICE = QuestionForm({"selected_tools": [{"region": GLOBAL, "distortion": "Blurs", "tool": "PSNR"}]}, 400)
PLACES = QuestionForm({"region_boxes": [{"region": "vehicle", "x0": 0.1, "y0": 0.2, "x1": 0.6, "y1": 0.9}]}, 300)

Colour = Literal["red", "green", "blue", "yellow", "black", "white"]


class NameColours(dspy.Signature):
    """Look at the picture: its left half has one colour and its right half another. Name both."""

    image: dspy.Image = dspy.InputField(desc="the picture")
    left: Colour = dspy.OutputField(desc="the left half's colour")
    right: Colour = dspy.OutputField(desc="the right half's colour")
