"""Whether a question is about anything that measurements see, and in a language that is read. Pure text."""

import re

from program.common.questions import asks_for_score, is_chinese, parse_options
from program.expert.answer.tool_choice import named_tools
from program.expert.answer.vocabulary import pattern
from program.expert.answer.wording import terms_in, topic_in

__all__ = ("is_about_quality", "is_read")

_WHOLE = r"(?:(?:this|the|my|that|your|an?)\s+)?(?:whole\s+|entire\s+)?(?:image|picture|photo|photograph|shot|frame)"
_CHINESE_WHOLE = r"(?:[这该本此]?[张幅个]?(?:图片?|图像|照片|相片|画面))"
_JUDGED = re.compile(
    r"\b(?:quality|scor(?:e|ed|es|ing)|rat(?:e|ed|es|ing|ings)|grad(?:e|ed|es|ing)|mos|impression|appearance|overall|"
    r"improv\w*|better|worse|worst|good|great|bad|poor\w*|terrible|awful|excellent|perfect|fine|ok|okay|acceptable|"
    r"usable|wrong|faults?|faulty|retake|reshoot|publish\w*|print(?:s|ed|ing|able)?|delete|discard|reject)\b"
    r"|\bhow (?:does|do|did) .*\blook\W*$"
    r"|质量|画质|评分|打分|得分|分数|几分|评价|整体|效果|观感|好不好|不好|好吗|缺点|毛病|改进|改善|重拍"
    rf"|{_CHINESE_WHOLE}(?:拍得|看起来)?(?:怎么样|怎样|如何)",
    re.IGNORECASE,
)
"""Words of judgement that name no property."""
_GENERAL = re.compile(
    rf"^(?:please\s+)?(?:(?:describe|analy[sz]e|explain|comment on|tell me about|discuss|summari[sz]e|inspect|check|"
    rf"review|what do you think (?:of|about)|how(?:'s| is| are))\s+)?(?:it|{_WHOLE}s?)\W*$"
    rf"|^请?(?:帮我)?(?:描述|分析|评论|介绍|说说|谈谈|看看|检查)?(?:一下)?{_CHINESE_WHOLE}\W*$",
    re.IGNORECASE,
)
"""Requests that leave open what to say of the whole image."""
_CONTENT = re.compile(
    r"^(?:who|whose|whom)\b|\bhow many\b|^what(?:'s| is| are| was| were)\b.*\b(?:doing|holding|wearing|carrying|eating|"
    r"riding|playing|saying|called|looking at)\b"
    r"|^谁|是谁|做什么|干什么|拿着什么|穿着?什么|(?:多少|几)[个人只辆条张棵]",
    re.IGNORECASE,
)
"""Forms of questions about what is shown, whatever properties they name of it ("the man in the dark coat")."""
_OTHER_SCRIPT = re.compile(r"[\u0370-\u1fff\u3040-\u30ff\uac00-\ud7af]")
"""Greek to the Latin supplements (Cyrillic, Arabic, the scripts of India ...), kana and Hangul."""


def is_about_quality(query: str) -> bool:
    """Return whether a question names a property, a distortion, a tool or a judgement, or the image as such.

    Taste (composition, mood) is none of them: nothing measured speaks of it.

    >>> is_about_quality("How sharp is the dog?"), is_about_quality("Is there a dog?"), is_about_quality("画质如何？")
    (True, False, True)
    """
    text = query.strip()
    if not text or (parse_options(text) is None and asks_for_score(text)) or _GENERAL.search(text):
        return True
    topic = topic_in(text)
    if _CONTENT.search(text) and (topic is None or topic.axis != "distortion"):
        return False
    named = [claim.axis for claim in terms_in(text)] + ([topic.axis] if topic is not None else [])
    if any(axis not in {"taste", "quality"} for axis in named) or named_tools(text, []):
        return True
    return "taste" not in named and _JUDGED.search(text) is not None


def is_read(query: str) -> bool:
    """Return whether a question is in a language that is read: English or Chinese.

    >>> is_read("Is she happy?"), is_read("图里有狗吗？"), is_read("¿Es borrosa la imagen?")
    (True, True, False)
    """
    return not _OTHER_SCRIPT.search(query) and (is_chinese(query) or pattern("english").search(query) is not None)
