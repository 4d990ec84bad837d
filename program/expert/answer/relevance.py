"""Whether a question is about anything that measurements see, and in a language that is read. Pure text."""

import re

from program.common.questions import asks_for_score, is_chinese, parse_options
from program.expert.answer.tool_choice import named_tools
from program.expert.answer.vocabulary import form
from program.expert.answer.wording import terms_in, topic_in

__all__ = ("is_about_quality", "is_read")

_OTHER_SCRIPT = re.compile(r"[\u0370-\u1fff\u3040-\u30ff\uac00-\ud7af]")
"""Greek to the Latin supplements (Cyrillic, Arabic, the scripts of India ...), kana and Hangul."""


def is_about_quality(query: str) -> bool:
    """Return whether a question names a property, a distortion, a tool or a judgement, or the image as such.

    Taste (composition, mood) is none of them: nothing measured speaks of it.

    >>> is_about_quality("How sharp is the dog?"), is_about_quality("Is there a dog?"), is_about_quality("画质如何？")
    (True, False, True)
    """
    text = query.strip()
    if not text or (parse_options(text) is None and asks_for_score(text)) or form("general").search(text):
        return True
    topic = topic_in(text)
    if form("content").search(text) and (topic is None or topic.axis != "distortion"):
        return False
    named = [claim.axis for claim in terms_in(text)] + ([topic.axis] if topic is not None else [])
    if any(axis not in {"taste", "quality"} for axis in named) or named_tools(text, []):
        return True
    return "taste" not in named and form("judgement").search(text) is not None


def is_read(query: str) -> bool:
    """Return whether a question is in a language that is read: English or Chinese.

    >>> is_read("Is she happy?"), is_read("图里有狗吗？"), is_read("¿Es borrosa la imagen?")
    (True, True, False)
    """
    return not _OTHER_SCRIPT.search(query) and (is_chinese(query) or form("english").search(query) is not None)
