"""Questions and answers as text: language, options, the final answer. Pure; linear."""

import functools
import json
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

_THOUGHT = re.compile(
    r"(?P<opens><(?:think|thinking|thought)>|\[think\]|◁think▷|<\|channel\|>analysis<\|message\|>)"
    r"|</(?:think|thinking|thought)>|\[/think\]|◁/think▷|<\|channel\|>final<\|message\|>",
    re.IGNORECASE,
)
"""Where a thought begins and ends: Qwen and DeepSeek, Magistral, Kimi, gpt-oss."""
_QUOTES = "[\"'“”‘’`*]"
_STRING = r'"(?:[^"\\\n]|\\.|\n(?![ \t]{0,8}\{)|"(?!\s*[,:}\]]|[ \t]*(?:\n|\Z)))*+(?:"|\Z|(?=\n))'
"""A string in an object. A quote that nothing of an object follows is its text's ("the "soft"
edges"); one that breaks off ends where the next object begins."""
_LONGEST = 50_000
"""An answer is looked for in so many of a text's last characters: what runs longer is none."""


def counted(count: int, noun: str) -> str:
    """Return how many of a thing there are.

    >>> counted(1, "photograph"), counted(1200, "photograph")
    ('1 photograph', '1200 photographs')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


_ENDED = re.compile(r"[.!?:…。！？：][\"'”’)）\]]*\Z")


def in_sentences(*texts: str) -> str:
    """Return texts one after the other; one without a full stop gets one before the next.

    >>> in_sentences("The bottom is too dark", "", "Score 2.5."), in_sentences("Dark.", "Soft")
    ('The bottom is too dark. Score 2.5.', 'Dark. Soft')
    """
    said = [text for text in map(str.strip, texts) if text]
    for place, text in enumerate(said[:-1]):
        if not _ENDED.search(text):
            said[place] += "。" if is_chinese(text) else "."
    return " ".join(said)


def final_answer(text: str, names: Collection[str] = ()) -> str:
    r"""Return an answer without thoughts and, where an object or tags hold the fields, all else.

    >>> final_answer('<think>{"level": 1}?</think>\n```json\n{"level": 2}\n``` {sic}', ["level"])
    '{"level": 2}'
    >>> final_answer("<level>2</level>", ["level"]), final_answer("<think>1 or 2?</think>2")
    ('{"level": "2"}', '2')
    """
    start, stop = answer_span(text, names)
    said = text[start:stop]
    if not names or said.startswith("{"):
        return said
    tagged = {name: _tagged(said, name) for name in names}
    if None in tagged.values():
        return said
    return json.dumps(tagged, ensure_ascii=False)


def _tagged(text: str, name: str) -> str | None:
    start = text.rfind(f"<{name}>")
    stop = text.find(f"</{name}>", start)
    if start < 0 or stop < 0:
        return None
    return text[start + len(name) + 2 : stop].strip()


def answer_span(text: str, names: Collection[str] = ()) -> tuple[int, int]:
    """Return where the final answer lies: the last object with most of these fields, else all.

    What stands in a thought is no answer, unless nothing follows the thought and it ends with an
    object.
    """
    if names and _holds(text, names):
        return 0, len(text)
    start, stop, is_thought = _said(text)
    best: tuple[int, int] = (0, -1)
    answer = (stop, stop) if is_thought else (start, stop)
    for begin, end, held in _objects(text, start, stop, tuple(names)):
        in_place = not is_thought or (end is not None and not text[end:stop].strip("` \t\r\n"))
        if held and in_place and (held, begin) > best:
            best, answer = (held, begin), (begin, stop if end is None else end)
    return answer


def _holds(text: str, names: Collection[str]) -> bool:
    """Return whether a text is one JSON object with these fields, and no more."""
    if not text.startswith("{"):
        return False
    try:
        return bool(json.loads(text).keys() >= set(names))
    except (ValueError, RecursionError):
        return False


def _said(text: str) -> tuple[int, int, bool]:
    """Return where the text after the last thought lies; or that thought, and True."""
    last, opened = None, 0
    for last in _THOUGHT.finditer(text):
        opened = last.end() if last["opens"] else opened
    if last is None:
        return 0, len(text), False
    if last["opens"] or text[last.end() :].strip():
        return last.end(), len(text), bool(last["opens"])
    return opened, last.start(), True


def ends_in_thought(text: str) -> bool:
    """Return whether a text holds nothing besides thoughts, or breaks off in one.

    >>> ends_in_thought("<think>It is"), ends_in_thought(" "), ends_in_thought("<think>Soft.</think>{")
    (True, True, False)
    """
    start, stop, is_thought = _said(text)
    return is_thought or not text[start:stop].strip()


def _objects(text: str, start: int, stop: int, names: tuple[str, ...]) -> Iterator[tuple[int, int | None, int]]:
    """Yield where each object begins and ends (None: it breaks off), and how many names it has."""
    opened: list[int] = []
    keys: list[frozenset[str]] = []
    position, tokens = max(start, stop - _LONGEST), _tokens(names)
    while token := (tokens if opened else _opening(names)).search(text, position, stop):
        position = token.end()
        match token[0][0]:
            case "{":
                opened.append(token.start())
                keys.append(frozenset())
            case "}":
                yield opened.pop(), position, len(keys.pop())
            case _ if token["key"]:
                keys[-1] |= {token["key"]}
    for begin, held in zip(opened, keys, strict=True):
        yield begin, None, len(held)


@functools.lru_cache(maxsize=256)
def _opening(names: tuple[str, ...]) -> re.Pattern[str]:
    """Return what an object of these names begins with in prose: a brace before a key."""
    return re.compile(rf"\{{(?=\s*(?:{_QUOTES}|(?:{'|'.join(map(re.escape, names))})\b))" if names else r"\{")


@functools.lru_cache(maxsize=256)
def _tokens(names: tuple[str, ...]) -> re.Pattern[str]:
    keys = "|".join(map(re.escape, names)) or "(?!)"
    return re.compile(rf"[{{}}]|{_QUOTES}{{0,2}}(?<!\w)(?P<key>{keys}){_QUOTES}{{0,2}}\s*+[:：]|{_STRING}", re.DOTALL)


def breaks_off(text: str) -> bool:
    """Return whether a JSON object in a text is opened and not closed.

    >>> breaks_off('{"a": [1, 2'), breaks_off('```json {"a": "}"} ```'), breaks_off("no object")
    (True, False, False)
    """
    if text.rstrip("` \t\r\n").endswith("}") and text.count("{") == text.count("}"):
        return False
    return any(end is None for _, end, _ in _objects(text, 0, len(text), ()))


_MARKER = re.compile(
    r"(?:(?<=^)|(?<=[\s,;:?!，；：？。！（(\[]))[(（]?([A-Ha-h])(?:[)）]|[.．、:：](?!\w\.))\s*", re.MULTILINE
)
_LOOSE_END = re.compile(r"(?:[\s,;，；.。?？(（\[]|\s(?:or|and)|[或和])+\Z", re.IGNORECASE)
_LISTED = re.compile(
    r"(?:\b(?:choose|pick)\s+(?:\w+\s+){0,3}?from\b|从)(?:\s*(?:the following|these)(?:\s+options)?)?"
    r"\s*[:：]?\s*(.+?)(?:[.。?？]|中选|里选|$)",
    re.IGNORECASE | re.DOTALL,
)
_LISTED_AFTER = re.compile(r"从.{0,12}?[中里](?:选择?|挑)[^:：]{0,10}[:：]\s*(.+?)(?:[。.?？]|$)", re.DOTALL)

_SUBJECT = r"(?:quality|image|picture|photo|photograph|screenshot|shot|frame|it|this|sharpness|clarity|noise|blur)"
_SCORING = re.compile(
    rf"\b(?:rate|score|assess|evaluate|grade|judge)\b(?!\s+(?:whether|if|why|how))[^?]{{0,120}}?\b{_SUBJECT}\b"
    r"|\bhow\s+would\s+you\s+(?:rate|score|grade|judge|assess|evaluate)\b"
    r"|\b(?:give|assign|provide|output|return|predict|estimate|report)\b[^?.]{0,40}\b(?:score|rating|grade|mos)\b"
    r"|\bwhat(?:'s|\s+is|\s+are|\s+would\s+be|\s+would\s+you\s+say\s+is)?\b[^?]{0,40}\bquality\b[^?]{0,25}\b(?:score|level|rating|grade)\b"
    r"|\bwhat(?:'s|\s+is)\s+(?:the|its|your)\s+(?:\w+\s+){0,3}?(?:score|rating|mos)\b"
    r"|\bwhat\s+(?:score|rating|grade|mos)\b"
    r"|\bhow\s+(?:good|bad|high|low|poor)\s+is\s+(?:the\s+|this\s+|its\s+)?[^?]{0,120}?\b(?:quality|image|picture|photo)\b"
    r"|\bhow(?:'s|\s+is)\s+the\s+(?:\w+\s+){0,2}?quality\b"
    r"|^\W*what(?:'s|\s+is)\s+(?:the|its|this\s+\w+'s)\s+(?:\w+\s+){0,2}?quality(?:\s+like)?(?:\s+(?:of|in)\b(?!.*\bwhy\b)[^?]*)?\W*$"
    r"|\b(?:on\s+a\s+scale|from\s+1\s+to\s+(?:5|10|100)|out\s+of\s+(?:5|10|100)|1\s*-\s*5)\b"
    r"|\b(?:quality|overall)\s+(?:score|rating|assessment)\s*(?:[:.]|please|$)"
    r"|评分|打分|评个?分|多少分|几分|给出?.{0,12}(?:分数|得分|评级|分$)|得分"
    r"|(?:评价|评估|评判|衡量|判断)(?:一下)?.{0,15}(?:质量|画质)(?!.{0,6}(?:为什么|原因))"
    r"|(?:质量|画质).{0,6}(?:分数|等级|评级|级别)|(?:质量|画质)(?:是多少|如何|怎么样|怎样|有多好|有多高)",
    re.IGNORECASE,
)
_NO_REQUEST = re.compile(
    r"^\W*why\b[^?？.!]*\W*$"
    r"|^\W*(?:(?:please|can\s+you|could\s+you)\s+)?(?:explain|describe|justify|discuss)\s+(?:how|why|what|your)\b"
    r"(?!.*\b(?:and|then)\s+(?:also\s+)?(?:rate|score|grade|give|assign)\b)"
    r"|^\W*请?(?:解释|说明|描述)(?:一下)?(?:你)?(?:会|是)?(?:如何|怎么|怎样|为什么)[^?？。!！]*\W*$"
    r"|^\W*(?:is|are|was|were|am|does|do|did|has|have|had|would|should|will)\b(?!n't)(?!\s+you\b)[^?？.!]*[?？]\W*$"
    r"|^\W*(?:为什么|为何)[^?？。!！]*\W*$"
    r"|^(?!.{0,6}(?:请|可以|能|可否|麻烦))[^?？。!！]*吗\W*$",
    re.IGNORECASE,
)
"""Asks why, how one would rate, or yes or no: it may speak of a score without asking for one."""


def is_chinese(text: str) -> bool:
    """Return whether a text holds Chinese characters.

    >>> is_chinese("这张图片清晰吗？"), is_chinese("Is it sharp?")
    (True, False)
    """
    return re.search(r"[一-鿿]", text) is not None


def asks_for_score(query: str) -> bool:
    """Return whether a text holds a phrase that asks for a score.

    >>> asks_for_score("Rate this photo."), asks_for_score("Why is the quality score so low?")
    (True, False)
    """
    return not _NO_REQUEST.search(query) and _SCORING.search(query) is not None


def parse_options(query: str) -> dict[str, str] | None:
    """Read two or more lettered options (`A)`, `A.`, `A:`, `(A)`, `A、`) from a text, or None.

    >>> parse_options("Which is worst? A) Blur B) Noise C) Blocking")
    {'A': 'Blur', 'B': 'Noise', 'C': 'Blocking'}
    """
    options: dict[str, str] = {}
    run: list[re.Match[str]] = []
    for marker in _MARKER.finditer(query):
        if marker[1].upper() == chr(ord("A") + len(run)):
            run.append(marker)
    if len(run) < 2 or _labels(query, run):
        return None
    for marker, following in zip(run, [*run[1:], None], strict=True):
        stop = following.start() if following else len(query)
        options[marker[1].upper()] = query[marker.end() : stop].strip()
    last = run[-1][1].upper()
    if all("\n" in query[a.end() : b.start()] for a, b in pairwise(run)):
        # One option a line: what follows the last one's line is no part of it ("Answer with the letter.").
        options[last] = options[last].split("\n", 1)[0]
    options = {letter: _trimmed(text) for letter, text in options.items()}
    if all(options.values()):
        return options
    return None


def _trimmed(text: str) -> str:
    text = _LOOSE_END.sub("", text)
    for left, right in ("()", "（）", "[]"):
        if text.endswith(right) and text.count(left) < text.count(right):
            text = _LOOSE_END.sub("", text[:-1])
    return text


def _labels(query: str, run: Sequence[re.Match[str]]) -> bool:
    """Return whether the letters name things ("image A: ... image B: ...") instead of options."""
    before = [re.search(r"([^\W\d]+)\s\Z", query[: marker.start()]) for marker in run]
    return len({match[1].casefold() if match else None for match in before}) == 1 and before[0] is not None


def listed_options(query: str) -> dict[str, str] | None:
    """Return the options of "choose from blur, noise or blocking" by letter, or None."""
    match = _LISTED_AFTER.search(query) or _LISTED.search(query)
    if match is None:
        return None
    words = [w.strip(" \"'“”‘’") for w in re.split(r"\s*[,，、;；/]\s*|\s+(?:or|and)\s+|或者?|和", match[1])]
    words = [re.sub(r"^(?:or|and)\s+", "", w) for w in words if w]
    if len(words) >= 2:
        return letter_options(words)
    return None


def letter_options(options: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """Return options by capital letter, in the letters' order, each text on one line.

    They come as a mapping (any letters A..Z), a sequence (A, B, C...) or text ("A. Yes B. No").
    Raises ValueError when there are not two or more, or one is empty, or two of a sequence are the
    same but for case: of two equal texts under letters, as published questions have them, the
    letter decides.
    """
    if isinstance(options, str):
        options = options_shown(options) or parse_options(options) or [options]
    if isinstance(options, Mapping):
        pairs = [(str(key).strip().upper(), _one_line(text)) for key, text in options.items()]
    else:
        pairs = [(chr(ord("A") + i), _one_line(text)) for i, text in enumerate(options)]
    lettered = dict(sorted(pairs))
    wrong = [key for key in lettered if not re.fullmatch(r"[A-Z]", key)]
    if wrong or len(lettered) < 2 or not all(lettered.values()) or len(lettered) != len(options):
        raise ValueError(
            f'options {dict(lettered)!r}: give two or more non-empty texts under letters, as {{"A": "Yes", "B": "No"}}'
        )
    if isinstance(options, Mapping):
        return lettered
    first: dict[str, str] = {}
    for letter, text in lettered.items():
        if (same := first.setdefault(text.casefold(), letter)) != letter:
            fault = f"are both {text!r}; give each a text of its own"
            raise ValueError(f"options {same} and {letter}: {fault}")
    return lettered


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def options_text(options: Mapping[str, str]) -> str:
    r"""Return options as a model is shown them, one a line; `options_shown` reads them back.

    >>> options_text({"A": "Not blurry: B. good", "C": "Very blurry"})
    'A. Not blurry: B. good\nC. Very blurry'
    """
    return "\n".join(f"{letter}. {text}" for letter, text in options.items())


def options_shown(text: str) -> dict[str, str] | None:
    r"""Return the options that `options_text` wrote into a text, or None for any other text.

    >>> options_shown("A. Not blurry: B. good\nC. Very blurry")
    {'A': 'Not blurry: B. good', 'C': 'Very blurry'}
    """
    lines = [re.fullmatch(r"([A-Z])\. (.+)", line) for line in text.split("\n")]
    if len(lines) > 1 and all(lines):
        return {line[1]: line[2] for line in lines if line}
    return None


_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
_CHINESE_NUMBERS = "一二三四五六七八"

_MASKS = "\ue000-\ue0ff"
"""What stands for an option's text while an answer is read: no word or letter of it counts as anything else."""
_ENDS = r"\n.,;:!?，。；：！？"
_CLAUSE_END = re.compile(rf"[{_ENDS}]|\b(?:but|however|although|though|while|whereas)\b|而(?!且)|但", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[\n.!?。！？]")
_DENIED = re.compile(
    r"\b(?:no|not(?!\s+(?:only|just|merely|simply)\b)|\w+n't|cannot|none|never|neither|nor|without|rather\s+than|"
    r"instead\s+of|free\s+(?:of|from)|lack(?:s|ing)?|absence\s+of|hardly|unable|exclud\w+|rul(?:es?|ed|ing)\s+out|whether|if)\b"
    r"|不(?![仅只但])|没|無|无(?!疑)|非(?!常)|未|别|否|排除",
    re.IGNORECASE,
)
_DENIED_AFTER = re.compile(
    rf"[)）\]]?(?:\s*+(?:(?:,|and|or|nor|[/、，和或与])\s*+)?[(（]?(?:[{_MASKS}]|\b[A-Z]\b)[)）]?){{0,8}}+"
    r"(?:\s*\b(?:is|are|was|were|be|can|could|would|should|seems?|appears?|looks?|does|do|did|to))*+"
    r"(?:n't\b|\s*\b(?:\w+n't|not|cannot|never|absent|wrong|incorrect|excluded|ruled\s+out|unlikely)\b"
    r"|\s*[是并都]*[不没错])",
    re.IGNORECASE,
)
_LEAD = (
    r"(?:(?<![a-zA-Z])(?:answer|choice|option|letter|choose|select|pick|go\s+with|say|think|believe|it's|(?:it|one)\s+is)\b"
    r"(?:is|be|would|should|must|option|choice|answer|letter|the|[\s:：=(（\[{-])*+"
    r"|(?:答案|选项|选择?)[是为\s:：=(（\[{]*+)"
)
_STATED = re.compile(
    rf"{_LEAD}(?:(?-i:([A-HJ-Z]|I(?!\s+[a-z])))(?![a-zA-Z0-9_'])|([a-z])(?=\s*(?:[{_ENDS})\]}}]|\Z)))", re.IGNORECASE
)
_MARKED = re.compile(
    r"\A[(（\[{]?((?i:[A-Z]))(?=[)）\]}.．、:：,，]|\s*[-–—])|[(（\[{]([A-Z])[)）\]}]"
    r"|(?<![\w.])([A-Z])(?=[)）.．、:：](?!\w)|\s+(?:is|because|since|as)\b)"
)
_GAP = rf"[^\w{_MASKS}]*+"
_ONLY = re.compile(rf"{_GAP}({_LEAD})?+{_GAP}([A-Z]){_GAP}(?:([{_MASKS}]){_GAP})?", re.IGNORECASE)
_ALSO = re.compile(
    r"[)）\]}]?\s*(?:[,，、/&+和或与及]|\b(?:and|or)\b)\s*(?:(?:and|or)\s+)?[(（\[]?(?:[Oo]ption\s+)?([A-Z])(?![a-zA-Z0-9_']|\s+(?:is|was)\b)"
)
_TAGGED = re.compile(
    r"\\boxed\s*\{(?:\s*\\\w+\s*\{)?([^{}<>]{1,500})\}|<(?:final_?)?answer>([^<]{1,500})</", re.IGNORECASE
)


def normalise_choice(answer: str, options: Mapping[str, str]) -> str | None:
    r"""Return the letter of the option an answer names, or None when it names none or several.

    Accepts the option's text, `\boxed{B}` or `<answer>B</answer>`, a letter on the first line, "the answer is B",
    "B. text", "(B)", "the second", 2 or "第二个", and an option's text in a sentence, in that order. An option that is
    denied, asked about or listed among others is no choice.

    >>> normalise_choice(" b. noise", {"A": "Blur", "B": "Noise"})
    'B'
    >>> normalise_choice("The image is not blurry.", {"A": "Blurry", "B": "Sharp"})
    """
    text = final_answer(answer).strip().strip("\"'`*“”‘’").strip()
    if tagged := [*_TAGGED.finditer(text)]:
        return normalise_choice(tagged[-1][1] or tagged[-1][2], options)
    same = [letter for letter, option in options.items() if fold_text(option) == fold_text(text)]
    if len(same) == 1:
        return same[0]
    letter, rest = _on_own_line(_masked(text, options), options)
    if letter is not None:
        return letter
    position = _position(text)
    placed = {list(options)[position - 1]} if position is not None and 1 <= position <= len(options) else set()
    letters = _stated(rest, options) or _marked(rest, options) or placed or _mentioned(rest)
    return letters.pop() if len(letters) == 1 else None


def _masked(text: str, options: Mapping[str, str]) -> str:
    """Return an answer without emphasis, each option's text in it as the masks of the letters that have this text."""
    text = re.sub(f"[{_MASKS}]", "", text).replace("’", "'")
    letters: dict[str, list[str]] = {}
    for letter, option in options.items():
        letters.setdefault(fold_text(option), []).append(letter)
    for option in sorted(filter(None, letters), key=len, reverse=True):  # "motion blur" before "blur"
        words = r"\s+".join(map(re.escape, option.replace("’", "'").split()))
        if option == "是" or _DENIED.fullmatch(option):  # "no": an answer alone, a denial among other words
            words = rf"(?:(?<![^{_ENDS}])|(?<=\bis))[ \t]*{words}(?=\s*(?:[{_ENDS}]|\Z))"
        elif not is_chinese(option):
            words = rf"(?<!\w){words}(?!\w)"
        masks = "".join(chr(0xE000 + ord(letter)) for letter in letters[option])
        text = re.sub(words, masks, text, flags=re.IGNORECASE)
    return re.sub(r"[*`#$\"“”]|__", "", text).strip()


def _on_own_line(text: str, options: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the letter that stands on a line of its own, and the text without lines that only repeat an option."""
    lines = [line for line in text.splitlines() if line.strip()]
    own: list[tuple[str, bool, bool] | None] = []
    for line in lines:
        match = _ONLY.fullmatch(line)
        letter = match[2].upper() if match else ""
        is_own = match is not None and letter in options and match[3] in {None, chr(0xE000 + ord(letter))}
        own.append((letter, bool(match[1]), match[3] is None) if match and is_own else None)
    letters = {entry[0] for entry in own if entry}
    answers = {letter for letter, has_lead, is_bare in filter(None, own) if has_lead or is_bare}
    first = own[0] if own else None
    if len(letters) == 1 or (first and answers == {first[0]} and (first[1] or first[2])):
        return (first[0] if first else letters.pop()), ""
    return None, "\n".join(line for line, entry in zip(lines, own, strict=True) if entry is None or entry[1])


def _affirmed(text: str, found: Iterable[re.Match[str]]) -> Iterator[re.Match[str]]:
    """Return the matches in a text that their clause does not deny and their sentence does not ask about."""
    ends = [match.end() for match in _CLAUSE_END.finditer(text)]
    for match in found:
        place = bisect_right(ends, match.start())
        before = text[max(ends[place - 1] if place else 0, match.start() - 100) : match.start()]
        stop = _SENTENCE_END.search(text, match.end())
        is_asked = stop is not None and stop[0] in "?？"
        if not (is_asked or _DENIED.search(before) or _DENIED_AFTER.match(text, match.end())):
            yield match


def _stated(text: str, options: Mapping[str, str]) -> set[str]:
    """Return the letters that follow "the answer is", with those listed beside them and a text that contradicts."""
    letters = set()
    for match in _affirmed(text, _STATED.finditer(text)):
        also, beside = _ALSO.match(text, match.end()), re.compile(f"{_GAP}([{_MASKS}])").match(text, match.end())
        letters |= {str(match[1] or match[2]).upper(), also[1] if also else "", _letter_of(beside[1]) if beside else ""}
    return letters & options.keys()


def _marked(text: str, options: Mapping[str, str]) -> set[str]:
    """Return the letters that stand as marks ("B.", "(B)", "B is"), and texts on the line that contradict."""
    marks = [match for match in _MARKED.finditer(text) if str(match[match.lastindex or 0]).upper() in options]
    affirmed = [*_affirmed(text, marks)]
    letters = {str(match[match.lastindex or 0]).upper() for match in marks}
    if len(letters) > 1 or not affirmed:
        return letters if affirmed else set()
    last = affirmed[-1].end()
    also = _ALSO.match(text, last)
    mentioned = _mentioned(text[last:].partition("\n")[0])
    return (letters | {also[1] if also else ""}) & options.keys() | (set() if letters <= mentioned else mentioned)


def _mentioned(text: str) -> set[str]:
    return {_letter_of(match[0]) for match in _affirmed(text, re.finditer(f"[{_MASKS}]", text))}


def _letter_of(mask: str) -> str:
    return chr(ord(mask) - 0xE000)


def _position(text: str) -> int | None:
    bare = text.casefold().strip(" .。")
    number = re.fullmatch(r"(?:option|choice|选项|第)?\s*([1-8])\s*(?:个|项|个选项)?", bare)
    if number:
        return int(number[1])
    ordinal = re.fullmatch(rf"(?:the\s+)?({'|'.join(_ORDINALS)})(?:\s+(?:one|option|choice))?", bare)
    if ordinal:
        return _ORDINALS.index(ordinal[1]) + 1
    chinese = re.fullmatch(rf"(?:选项|第)([{_CHINESE_NUMBERS}])(?:个|项|个选项)?", bare)
    return _CHINESE_NUMBERS.index(chinese[1]) + 1 if chinese else None


def fold_text(text: str) -> str:
    """Return a text without case, outer punctuation and doubled spaces, to compare it.

    >>> fold_text("Is this image  blurry?")
    'is this image blurry'
    """
    return re.sub(r"\s+", " ", text).strip().strip(".。!！?？,，;；:：").casefold()
