"""What a call of the program returns, as a record and as a notebook's card."""

from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import dspy
from pydantic import Field, PrivateAttr

from program.agent.query import QueryType
from program.agent.state import AssessmentState, Finding, SummarizerOutput
from program.common.backends import Usage
from program.common.errors import ImageError
from program.common.text import is_chinese
from program.fusion.scores import score_line
from program.images.refs import ImageRef
from program.images.store import data_url, thumbnail
from signatures.schemas import CATEGORY_WORDS, GLOBAL, SEVERITIES, Severity, faults_explained

if TYPE_CHECKING:
    from PIL import Image

_SIDE_PX = 320


def card(result: "Assessment") -> str:
    """Return the HTML, which fetches nothing; what comes from data or a model is escaped."""
    import jinja2

    evidence = result.state.evidence
    findings = []
    for region, finding in result.findings:
        if finding.severity != "none":
            name = finding.fault or CATEGORY_WORDS[finding.type]
            findings.append(f"{name}: {finding.severity}{evidence.place_after(region)}")
    low, high = result.score_interval or (result.rating, result.rating)
    text = files("program.agent").joinpath("card.html").read_text("utf-8")
    return (
        jinja2.Environment(autoescape=True)
        .from_string(text)
        .render(
            result=result,
            pictures=_pictures(result),
            low=low,
            high=high,
            lines=[result.summary, result.advice, *result.notes, result.error],
            findings=findings,
        )
    )


def _pictures(result: "Assessment") -> dict[str, str]:
    """Return the image and its map; none where its bytes are not at hand any more."""
    try:
        return {
            "the image": thumbnail(result.images[0], _SIDE_PX),
            "where quality is lost": data_url(result.heatmap(), _SIDE_PX),
        }
    except ImageError:
        return {}


_STRENGTHS = {"slight": "slight", "moderate": "moderate", "severe": "strong", "extreme": "strong"}
"""A photographer's words for the paper's severities."""
_STATUS_WORDS = {"degraded": "The answer rests on less than usual", "failed": "There is no usable answer"}
_SURELY_SHARP, _SURELY_BLURRED = 0.6, 0.4
"""From which probability on, and up to which, a subject is called sharp or not."""
_LISTED = ("final_answer", "level", "quality_score", "quality_reasoning", "status", "error")
"""The fields of an assessment that fit a table's row."""


class Assessment(SummarizerOutput, dspy.Prediction):
    """The result of one assessment: the Summarizer's answer, the state it came from, its cost.

    A pydantic record and a `dspy.Prediction` in one. What DSPy lists, in tables and prompts, are
    the fields that people read; every field is an attribute (`r.state`, `r["state"]`), and
    `model_dump` returns them all.
    """

    state: AssessmentState
    """What was asked, planned and measured."""
    not_judged: str | None = None
    """Why the image is not judged as a photograph, so that the score is a guess: `black frame`, `white frame`,
    `flat frame`, `noise`, `document`, `screenshot or graphic`, `drawing`, `view through an instrument` or
    `too small`; empty where it is judged."""
    usage: Usage = Field(default_factory=Usage)
    """What it cost: calls, tokens, seconds by stage."""
    # Where DSPy's predictions keep what they hold (tests/test_dspy_private.py).
    _completions: None = PrivateAttr(None)
    _lm_usage: dict[str, Any] | None = PrivateAttr(None)
    _images: "tuple[ImageRef, ImageRef | None] | None" = PrivateAttr(None)

    __eq__ = dspy.Prediction.__eq__

    @property
    def _store(self) -> dict[str, Any]:
        return self.__dict__

    @classmethod
    def of(
        cls,
        answer: SummarizerOutput,
        state: AssessmentState,
        usage: Usage,
        images: "tuple[ImageRef, ImageRef | None]",
        not_judged: str | None = None,
    ) -> "Assessment":
        """Return the Summarizer's answer with what it came from."""
        assessment = cls(**dict(answer), state=state, usage=usage, not_judged=not_judged)
        assessment._images = images
        return assessment

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
        return "\n".join(filter(None, (self.headline, self.summary, self.advice, self.shortfall)))

    @property
    def images(self) -> "tuple[ImageRef, ImageRef | None]":
        """The image and its reference. Raises ImageError in a record that was read from a file."""
        if self._images is None:
            name = self.state.image_path
            raise ImageError(f"image {name!r}: is not part of this record; assess it again")
        return self._images

    def heatmap(self, distortion: str | None = None) -> "Image.Image":
        """Return the image in grey with red where quality is lost; see `AgenticIQA.heatmap`."""
        from program.expert import heatmap

        return heatmap(*self.images, distortion)

    def _repr_html_(self) -> str:
        return card(self)

    def __repr__(self) -> str:
        return f"Assessment({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    @property
    def headline(self) -> str:
        """The answer in one line: "Fair (3.3 of 5, likely 2.3 to 4.3)" for a score, else itself."""
        chinese = is_chinese(self.state.query)
        if self.rating is not None:
            line = score_line(self.rating, self.score_interval, chinese=chinese)
            return unjudged_line(self.not_judged, line, chinese=chinese)
        return answer_line(str(self.final_answer), self.option, self.guess, chinese=chinese)

    @property
    def shortfall(self) -> str:
        """What the answer lacks and why, in a sentence; empty where it lacks nothing."""
        if self.status == "ok":
            return ""
        fault = f": {self.error.rstrip('.')}" if self.error else ""
        return f"{_STATUS_WORDS[self.status]}{fault}."

    @property
    def option(self) -> str | None:
        """The text of the option that was chosen; empty for other answers."""
        if self.query_type is not QueryType.MCQ:
            return None
        return (self.state.reading.options or {}).get(str(self.final_answer))

    @property
    def findings(self) -> list[tuple[str, Finding]]:
        """What was found and is not meant, with its region; nothing where the image is not judged."""
        if self.not_judged:
            return []
        explained = faults_explained(self.state.intended)
        return [pair for pair in self.state.evidence.findings() if pair[1].fault not in explained]

    def severities(self, name: Callable[[Finding], str]) -> dict[tuple[str, str], Severity]:
        """Return the worst severity of the findings that share a region and a `name`, by both."""
        worst: dict[tuple[str, str], Severity] = {}
        for region, finding in self.findings:
            key = region, name(finding)
            worst[key] = max(finding.severity, worst.get(key, "none"), key=SEVERITIES.index)
        return worst

    @property
    def faults(self) -> list[tuple[str, str]]:
        """The whole image's faults as a photographer names them, with strengths, worst first."""
        of_whole = [each for region, each in self.findings if region == GLOBAL]
        of_whole.sort(key=lambda finding: SEVERITIES.index(finding.severity), reverse=True)
        faults = []
        for finding in of_whole:
            strength = _STRENGTHS.get(finding.severity)
            if finding.fault and strength:
                faults.append((finding.fault, strength))
        return faults

    @property
    def advice(self) -> str | None:
        """What to do about the faults, in their order, or about a subject that is not sharp; else empty."""
        return self.state.advice

    @property
    def subject_sharp(self) -> str | None:
        """Whether the subject is sharp: `yes`, `no` or `not clear`; empty where nothing was measured."""
        probability = self.state.subject_sharp
        if probability is None:
            return None
        if probability >= _SURELY_SHARP:
            return "yes"
        return "no" if probability <= _SURELY_BLURRED else "not clear"

    @property
    def notes(self) -> list[str]:
        """What was judged, where it is not the image as it is: transparency laid over white, ..."""
        measured = [log.note for log in self.state.evidence.tool_logs if log.note]
        return list(dict.fromkeys([*self.state.image_notes, *measured]))


def unjudged_line(not_judged: str | None, line: str, *, chinese: bool = False) -> str:
    """Return a score's line, which says of an image that cannot be judged that it is a guess.

    >>> unjudged_line("black frame", "Poor (2.4 of 5)")
    'Not judged: black frame. A guess: poor (2.4 of 5)'
    """
    if not_judged is None:
        return line
    if chinese:
        return f"不作评判。猜测：{line}"
    return f"Not judged: {not_judged}. A guess: {line[:1].lower()}{line[1:]}"


def answer_line(answer: str, option: str | None, guess: str | None, *, chinese: bool = False) -> str:
    """Return the answer to a question in one line, which says of a guess that it is one.

    >>> answer_line("A", "Yes", None), answer_line("Sharp.", None, None)
    ('A. Yes', 'Sharp.')
    """
    if not option:
        return answer
    line = f"{answer}. {option}"
    if not guess:
        return line
    if chinese:
        return f"无法判断（猜测：{line}）"
    return f"Cannot tell (a guess: {line})"
