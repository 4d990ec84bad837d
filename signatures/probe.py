"""What the doctor asks a model to learn whether it sees."""

from typing import Literal

import dspy

Colour = Literal["red", "green", "blue", "yellow", "black", "white"]


class NameColours(dspy.Signature):
    """Look at the picture: its left half has one colour and its right half another. Name both."""

    image: dspy.Image = dspy.InputField(desc="the picture")
    left: Colour = dspy.OutputField(desc="the left half's colour")
    right: Colour = dspy.OutputField(desc="the right half's colour")
