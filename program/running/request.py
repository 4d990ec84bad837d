"""One question about one image, as commands, services and optimizers put it, and the kind of answer it wants. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, field_validator

from program.common.files import place_of
from program.common.text import asks_for_score, letter_options, listed_options, parse_options

DEFAULT_QUERY = "Rate the perceptual quality of this image."
"""What is asked of an image that comes without a question."""
ARGUMENTS = ("image", "query", "reference", "options", "regions")
"""Names of a program's arguments."""


class Request(BaseModel):
    """One image and what is asked of it; or `error`, why there is nothing to ask."""

    model_config = ConfigDict(frozen=True)

    id: str = ""
    image: Any = None
    """Path or URI; in a process also whatever else the program takes. Likewise the reference."""
    reference: Any = None
    query: str | None = None
    """None asks for a quality score."""
    options: dict[str, str] | list[str] | None = None
    regions: dict[str, tuple[float, float, float, float]] | None = None
    """Boxes of named regions, in pixels: left, top, right, bottom."""
    group: str | None = None
    split: str | None = None
    """Content and split, as a manifest says."""
    error: str | None = None

    def arguments(self) -> dict[str, Any]:
        """Return what a program is called with."""
        asked = {name: getattr(self, name) for name in ARGUMENTS}
        return {**asked, "query": self.query or DEFAULT_QUERY}

    def to_json(self) -> str:
        """Return the request as ASCII text for another process; its images are paths or URIs."""
        # Only ASCII: names may hold bytes that are no UTF-8.
        return json.dumps(self.model_dump(), default=str)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the request of such a text."""
        return cls.model_validate(json.loads(text))

    def stamp(self) -> list[Any]:
        """Return JSON that changes when its images do: sizes and times in ns; zeros where there is no file."""
        stamp: list[Any] = []
        for place in (self.image, self.reference):
            try:
                facts = place.stat() if isinstance(place, Path) else None
            except (OSError, ValueError):  # ValueError: a name that no file can have
                facts = None
            stamp += [facts.st_size, facts.st_mtime_ns] if facts else [0, 0]
        return stamp

    @field_validator("image", "reference", mode="before")
    @classmethod
    def _place(cls, value: Any) -> Any:
        return place_of(value) if isinstance(value, str) else value


class QueryType(Enum):
    """What the Summarizer must answer with."""

    SCORING = "scoring"
    MCQ = "mcq"
    EXPLANATION = "explanation"


@dataclass(frozen=True, slots=True)
class QueryReading:
    """A query's type, the rule that decided it, and its options by letter (None without options)."""

    type: QueryType
    rule: str
    options: dict[str, str] | None = None


_CHOOSE_FROM = re.compile(
    r"\bchoose\s+(?:\w+\s+){0,3}?from\b|\bpick\s+(?:one\s+)?from\b|从.{0,20}(?:选择|选出|选一|中选)", re.IGNORECASE
)
_ASKS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\?|？",
        r"^\W*(?:what|which|why|how|where|who|when|is|are|was|were|does|do|did|can|could|has|have|had|will|would|should|am)\b",
        r"\b(?:describe|explain|why|tell\s+me|comment\s+on|identify|list|point\s+out|summari[sz]e|discuss|analy[sz]e|elaborate|discover|find|name|mention|compare)\b",
        r"\bwhether\b|\b(?:assess|evaluate|judge|check|see|determine|decide)\s+if\b",
        r"为什么|为何|什么|哪|吗|呢|是否|有没有|怎么|怎样|如何|描述|解释|说明|分析|指出|列出|说说|谈谈|介绍|原因",
    )
)  # fmt: skip


def detect_query_type(query: str, options: Mapping[str, str] | Sequence[str] | None = None) -> QueryType:
    """Return whether a query wants a score, one of its options, or an explanation (English, Chinese).

    >>> detect_query_type("Rate the perceptual quality of this image.").value
    'scoring'
    >>> detect_query_type("Is it blurry? A. Yes B. No").value, detect_query_type("Is it blurry?").value
    ('mcq', 'explanation')
    """
    return read_query(query, options).type


def read_query(query: str, options: Mapping[str, str] | Sequence[str] | None = None) -> QueryReading:
    """Return a query's type with the rule that fired and its options by letter.

    The order of the rules: given options; two or more lettered options in the text; "choose from";
    a scoring phrase; an interrogative or "describe"/"explain"; otherwise scoring. Raises ValueError for options that
    `letter_options` refuses.
    """
    if options:
        return QueryReading(QueryType.MCQ, "options given", letter_options(options))
    parsed = parse_options(query)
    if parsed is not None:
        return QueryReading(QueryType.MCQ, "lettered options in the text", letter_options(parsed))
    if _CHOOSE_FROM.search(query):
        return QueryReading(QueryType.MCQ, "choose from", listed_options(query))
    if asks_for_score(query):
        return QueryReading(QueryType.SCORING, "scoring phrase")
    if any(pattern.search(query.strip()) for pattern in _ASKS):
        return QueryReading(QueryType.EXPLANATION, "interrogative or describe/explain")
    return QueryReading(QueryType.SCORING, "no rule fired")
