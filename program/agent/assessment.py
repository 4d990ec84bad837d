"""What a call of the program returns: one record, read as pydantic's and as DSPy's."""

from typing import TYPE_CHECKING, Any

import dspy
from pydantic import Field, PrivateAttr

from program.agent.query import QueryType, read_query
from program.agent.state import AssessmentState, SummarizerOutput
from program.common.errors import ImageError
from program.common.questions import is_chinese
from program.fusion.scores import headline
from program.images.refs import ImageRef
from program.lms.usage import Usage
from signatures.schemas import GLOBAL

if TYPE_CHECKING:
    from PIL import Image

__all__ = ("Assessment",)

_STRENGTHS = {"slight": "slight", "moderate": "moderate", "severe": "strong", "extreme": "strong"}
"""A photographer's words for the documents' severities."""
_LISTED = ("final_answer", "level", "quality_score", "quality_reasoning", "status", "error")
"""The fields of an assessment that fit a table's row."""


class Assessment(SummarizerOutput, dspy.Prediction):
    """The result of one assessment: the Summarizer's answer, with the state it came from and what it cost.

    A pydantic record and a `dspy.Prediction` in one. What DSPy lists, in tables and prompts, are the fields that people
    read; every field is an attribute (`r.state`, `r["state"]`), and `model_dump` returns them all.
    """

    state: AssessmentState
    usage: Usage = Field(default_factory=Usage)
    # Where DSPy's predictions keep what they hold (tests/test_dspy_private.py).
    _completions: None = PrivateAttr(None)
    _lm_usage: dict[str, Any] | None = PrivateAttr(None)
    _images: "tuple[ImageRef, ImageRef | None] | None" = PrivateAttr(None)

    __eq__ = dspy.Prediction.__eq__

    @property
    def _store(self) -> dict[str, Any]:
        return self.__dict__

    def copy(self, **fields: Any) -> "Assessment":
        """Return a copy with other values of these fields, as DSPy's predictions do."""
        return self.model_copy(update=fields)

    def keys(self, include_dspy: bool = False) -> list[str]:
        """Return the names of the fields that people read."""
        return list(_LISTED)

    def values(self, include_dspy: bool = False) -> list[Any]:
        """Return the values of the fields that people read."""
        return [getattr(self, name) for name in _LISTED]

    def items(self, include_dspy: bool = False) -> list[tuple[str, Any]]:
        """Return the fields that people read."""
        return list(zip(self.keys(), self.values(), strict=True))

    def toDict(self) -> dict[str, Any]:  # noqa: N802 - DSPy's name
        """Return the fields that people read, as a row of `dspy.Evaluate`'s table."""
        return dict(self.items())

    def __str__(self) -> str:
        return "\n".join(filter(None, (self.headline, self.summary)))

    @property
    def images(self) -> "tuple[ImageRef, ImageRef | None]":
        """The image and its reference. Raises ImageError in a record that was read from a file."""
        if self._images is None:
            raise ImageError(f"image {self.state.image_path!r}: is not part of this record; assess it again")
        return self._images

    def heatmap(self, distortion: str | None = None) -> "Image.Image":
        """Return the image in grey with red where quality is lost; see `AgenticIQA.heatmap`. Raises InputError."""
        from program.expert import heatmap

        return heatmap(*self.images, distortion)

    def _repr_html_(self) -> str:
        from program.agent.card import card

        return card(self)

    def __repr__(self) -> str:
        return f"Assessment({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    @property
    def headline(self) -> str:
        """The answer in one line: "Fair (3.3 of 5, likely 2.3 to 4.3)" for a score, else the answer itself."""
        if self.rating is not None:
            return headline(self.rating, self.score_interval, chinese=is_chinese(self.state.query))
        return f"{self.final_answer}. {self.option}" if self.option else str(self.final_answer)

    @property
    def option(self) -> str | None:
        """The text of the option that was chosen; None for other answers."""
        options = read_query(self.state.query, self.state.options).options or {}
        return options.get(str(self.final_answer)) if self.query_type is QueryType.MCQ else None

    @property
    def faults(self) -> list[tuple[str, str]]:
        """What is wrong with the whole image as a photographer names it, the worst first: fault and strength."""
        found = [finding for region, finding in self.state.evidence.findings() if region == GLOBAL]
        return [(f.fault, _STRENGTHS[f.severity]) for f in found if f.fault and f.severity in _STRENGTHS]

    @property
    def subject_sharp(self) -> str | None:
        """Whether the subject is sharp: "yes", "no", or "not clear"; None where nothing was measured."""
        sure = self.state.subject_sharp
        return None if sure is None else "yes" if sure >= 0.6 else "no" if sure <= 0.4 else "not clear"

    @property
    def notes(self) -> list[str]:
        """What was judged, where it is not the image as it is: transparency laid over white, pixels averaged, ..."""
        measured = [log.note for log in self.state.evidence.tool_logs if log.note]
        return list(dict.fromkeys([*self.state.image_notes, *measured]))
