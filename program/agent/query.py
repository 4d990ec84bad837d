"""The kind of answer that a question wants, and its options. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from program.common.text import asks_for_score, letter_options, listed_options, parse_options


class QueryType(Enum):
    """What the Summarizer must answer with."""

    SCORING = "scoring"
    MCQ = "mcq"
    EXPLANATION = "explanation"


@dataclass(frozen=True, slots=True)
class QueryReading:
    """A query's type, the rule that decided it, and its options by letter, if any."""

    type: QueryType
    rule: str
    options: dict[str, str] | None = None


_CHOOSE_FROM = re.compile(
    r"\bchoose\s+(?:\w+\s+){0,3}?from\b|\bpick\s+(?:one\s+)?from\b|从.{0,20}(?:选择|选出|选一|中选)", re.IGNORECASE
)
_ASKS = re.compile(
    r"\?|？"
    r"|^\W*(?:what|which|how|where|who|when|is|are|was|were|does|do|did|can|could|has|have|had|will|would|should|am)\b"
    r"|\b(?:describe|explain|why|tell\s+me|comment\s+on|identify|list|point\s+out|summari[sz]e|discuss|analy[sz]e"
    r"|elaborate|discover|find|name|mention|compare)\b"
    r"|\bwhether\b|\b(?:assess|evaluate|judge|check|see|determine|decide)\s+if\b"
    r"|为什么|为何|什么|哪|吗|呢|是否|有没有|怎么|怎样|如何|描述|解释|说明|分析|指出|列出|说说|谈谈|介绍|原因",
    re.IGNORECASE,
)


def detect_query_type(query: str, options: Mapping[str, str] | Sequence[str] | None = None) -> QueryType:
    """Return whether a query (English, Chinese) wants a score, an option or an explanation.

    >>> detect_query_type("Rate the perceptual quality of this image.").value
    'scoring'
    >>> detect_query_type("Is it blurry? A. Yes B. No").value, detect_query_type("Is it blurry?").value
    ('mcq', 'explanation')
    """
    return read_query(query, options).type


def read_query(query: str, options: Mapping[str, str] | Sequence[str] | None = None) -> QueryReading:
    """Return a query's type with the rule that fired and its options by letter.

    The order of the rules: given options; two or more lettered options in the text; "choose from";
    a scoring phrase; an interrogative or "describe"/"explain"; otherwise scoring. ValueError for
    options that `letter_options` refuses.
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
    if _ASKS.search(query.strip()):
        return QueryReading(QueryType.EXPLANATION, "interrogative or describe/explain")
    return QueryReading(QueryType.SCORING, "no rule fired")
