"""Answers to questions: which option, yes or no, how much; with the reasons."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from program.expert.answer import findings
from program.expert.answer.beliefs import MUCH, Look, above, faint, local, look_at, support
from program.expert.answer.claims import (
    Claim,
    axis_of,
    cells_in,
    degree_in,
    entries,
    form,
    predicate,
    property_in,
    terms_in,
    topic_in,
)
from program.expert.answer.findings import Phrases, VisibleFault
from program.expert.answer.planning import is_read, region_pattern
from program.expert.judge.views import View
from signatures.schemas import category_of

_CONTENT = "content"
"""Topic of a question that nothing measured answers."""
_SURENESS = 0.7
"""What log-odds of a claim count as log-odds of an option."""


class Decision(NamedTuple):
    """What options were decided on, and the probability of each by its letter."""

    topic: str
    shares: dict[str, float]


class ChosenOption(NamedTuple):
    """An option's letter, what it was decided on and of what, and each option's probability."""

    letter: str
    topic: str
    measured: bool
    probabilities: Mapping[str, float]
    look: Look


def answer_choice(
    view: View, query: str, options: Mapping[str, str], evidence: Mapping[str, str], scores: Sequence[float]
) -> ChosenOption:
    """Choose an option; `evidence` (category -> severity word) and tool scores count, too."""
    texts = {letter: " ".join(text.casefold().strip(" .。!！").split()) for letter, text in options.items()}
    question = _without_options(query, texts.values())
    # Sorted, so that neither the order nor the letters decide anything.
    ordered = dict(sorted(texts.items(), key=lambda pair: pair[1]))
    look = look_at(view, evidence, scores, question)
    decision = Decision(_CONTENT, _shares(dict.fromkeys(texts, 1.0)))
    for decide in (_yes_or_no, _degrees, _claims, _places, _tones):
        decided = decide(look, question, ordered)
        if decided is not None:
            decision = decided
            break
    letter = max(ordered, key=decision.shares.__getitem__)
    probabilities = {each: decision.shares[each] for each in texts}
    return ChosenOption(letter, decision.topic, decision.topic not in {_CONTENT, "taste"}, probabilities, look)


def _without_options(query: str, texts: Iterable[str]) -> str:
    """Return a question in lower case without its options, whose `texts` are in lower case."""
    head = query.casefold()
    for text in sorted(texts, key=len, reverse=True):
        # A question that repeats its options in its text names none of them.
        if len(text) > 1:
            option = rf"[(（]?(?<![a-z])[a-z][).:、．]\s*{re.escape(text)}"
            head = re.sub(option, " ", head)
    return " ".join(head.split())


def _shares(masses: Mapping[str, float]) -> dict[str, float]:
    total = sum(masses.values())
    return {letter: mass / total for letter, mass in masses.items()}


def _shares_of_odds(odds: Mapping[str, float]) -> dict[str, float]:
    top = max(odds.values())
    return _shares({letter: float(np.exp(_SURENESS * (value - top))) for letter, value in odds.items()})


_ANSWERED_YES = 0.55
"""How often "yes" is right where nothing can be measured: askers name what they see."""
_MASS_OF_OTHERS = 0.04
"""Of an option beside yes and no."""


def _yes_or_no(look: Look, question: str, options: Mapping[str, str]) -> Decision | None:
    """Choose yes where everything that is claimed is likelier than not."""
    yes = [letter for letter, text in options.items() if form("says_yes").match(text)]
    no = [letter for letter, text in options.items() if form("says_no").match(text)]
    if len(yes) != 1 or len(no) != 1:
        return None
    topic, share = _CONTENT, _ANSWERED_YES
    if claims := predicate(question):
        topic = _topic_of(claims[-1])
        odds = min(support(look, claim) for claim in claims)
        share = float(np.clip(special.expit(_SURENESS * odds), 0.03, 0.97))
    masses = dict.fromkeys(options, _MASS_OF_OTHERS)
    return Decision(topic, _shares({**masses, yes[0]: share, no[0]: 1 - share}))


def _topic_of(claim: Claim) -> str:
    """Return the axis that a claim is told by: who asks for blur is told of blur."""
    return "blur" if claim.axis == "sharpness" and not claim.more else claim.axis


def _degrees(look: Look, question: str, options: Mapping[str, str]) -> Decision | None:
    """Choose among words on one scale: each option owns the stretch around its place."""
    topic = property_in(question)
    axis, places = _on_one_axis(topic, options)
    if axis is None or len({round(place, 3) for place in places.values()}) < 2:
        return None
    if axis == "sharpness" and topic is not None and _topic_of(topic) == "blur":
        axis, places = "blur", {letter: 1 - place for letter, place in places.items()}
    at = np.unique(list(places.values()))
    bounds = 0.5 * (at[:-1] + at[1:])
    if not axis_of(axis).is_fault and axis != "exposure":
        # Degrees of a fault mean what they say; of a property they are relative to what is usual.
        bounds = 0.5 * (bounds + np.arange(1, len(at)) / len(at))
    beyond = special.expit([_beyond(look, axis, bound) for bound in bounds])
    mass = -np.diff(np.concatenate([[1.0], np.minimum.accumulate(beyond), [0.0]]))
    by_place, count = dict(zip(at, mass, strict=True)), Counter(places.values())
    return Decision(axis, _shares({letter: by_place[at] / count[at] + 1e-6 for letter, at in places.items()}))


def _beyond(look: Look, axis: str, place: float) -> float:
    """Return the log-odds that an image is beyond a place; of exposure 0.5 is right."""
    if axis != "exposure":
        return above(look, axis, place)
    if place < 0.5:
        return -above(look, "underexposure")
    return above(look, "overexposure")


def _on_one_axis(topic: Claim | None, options: Mapping[str, str]) -> tuple[str | None, dict[str, float]]:
    """Return the axis that all options are places on, with their places; (None, {}) if none is."""
    own = _joined({letter: claims[0] for letter, text in options.items() if (claims := terms_in(text))})
    axis = _common_axis(topic, options, own)
    places = {}
    for letter, text in options.items():
        place = own[letter].place if letter in own else _degree_place(text, axis, topic, beside=bool(own))
        if axis is None or place is None:
            return None, {}
        places[letter] = place
    return axis, places


def _common_axis(topic: Claim | None, options: Mapping[str, str], own: Mapping[str, Claim]) -> str | None:
    axes = {claim.axis for claim in own.values()}
    if axes:
        axis = axes.pop()
        # One fault among other things is a claim, not a scale.
        is_claim = axis_of(axis).is_fault and len(own) == 1 and len(options) > 2
        return None if axes or is_claim else axis
    if topic is None or topic.axis == "distortion":
        return "quality" if all(degree_in(text) for text in options.values()) else None
    if topic.axis in {"lighting", "brightness"} and any(form("too").search(text) for text in options.values()):
        return "exposure"
    return topic.axis


def _joined(own: dict[str, Claim]) -> dict[str, Claim]:
    """Bring claims of related axes onto one, where there are several."""
    axes = {claim.axis for claim in own.values()}
    is_exposure = axes <= {"exposure", "underexposure", "overexposure"}
    for letter, claim in own.items():
        onto = axis_of(claim.axis).onto
        if onto and (len(axes) > 1 or is_exposure) and not (is_exposure and claim.axis == "exposure"):
            place = 0.5 + (onto[1] - 0.5) * (claim.place - 0.5) / 0.35
            own[letter] = Claim("exposure" if is_exposure else onto[0], place, claim.at)
    return own


def _degree_place(text: str, axis: str | None, topic: Claim | None, *, beside: bool) -> float | None:
    """Return where a word of degree stands on an axis, `beside` options that name places or not."""
    degree = degree_in(text)
    if degree is None or axis is None:
        return None
    if degree.kind == "merit":
        # Beside "dark" and "bright", what is good lies between them.
        if axis == "exposure" or (axis == "brightness" and beside):
            return 0.5
        return 1 - degree.place if axis_of(axis).is_fault else degree.place
    if axis == "exposure":
        return float(np.sign(degree.place - 0.5)) / 2 + 0.5
    is_turned = topic is not None and topic.axis == axis and not topic.more
    return 1 - degree.place if is_turned else degree.place


_ODDS_OF_NO_CLAIM = -2.0
_FIRST = 0.8
"""Log-odds that the fault named first among the findings gains where one of several is asked for."""


def _claims(look: Look, question: str, options: Mapping[str, str]) -> Decision | None:
    """Choose the claim with the most support; "no distortion" holds when no other does."""
    sign = -1.0 if form("reversed").search(question) else 1.0
    claims = {letter: _claim(text) for letter, text in options.items()}
    none = [letter for letter, text in options.items() if form("says_none").match(text)]
    if sum(claim is not None for letter, claim in claims.items() if letter not in none) < (1 if none else 2):
        return None
    odds = dict.fromkeys(options, _ODDS_OF_NO_CLAIM)
    for letter, claim in claims.items():
        if letter in none:
            odds[letter] = 0.0
        elif claim is not None:
            odds[letter] = sign * support(look, claim)
    faults = [] if look.cells else findings.visible_faults(look.view)
    if faults and sign > 0:
        names = {letter: _fits(text, faults[0]) for letter, text in options.items() if claims[letter]}
        letter = max(names, key=names.__getitem__)
        if names[letter] and faults[0].severity != "slight":
            odds[letter] = max(odds.values()) + _FIRST
        elif names[letter] == _BY_NAME:
            odds[letter] += _FIRST
    return Decision("distortion", _shares_of_odds(odds))


_BY_NAME, _BY_FAMILY = 2, 1


def _fits(text: str, fault: VisibleFault) -> int:
    """Return how an option names a fault: by its own name, by its family's, or (0) not at all."""
    claim = _claim(text)
    if claim is None:
        return 0
    kinds = axis_of(claim.axis).kinds or axis_of(_topic_of(claim)).kinds
    is_family = claim.axis in {"brightness", "sharpness"} or not claim.end
    if claim.axis == "brightness" and not form("brightness").search(text):
        kinds, is_family = ("too bright" if claim.more else "too dark",), False
    if fault.fault in kinds:
        return _BY_NAME
    if is_family and fault.category in {category_of(part) for part in form("or").split(text)}:
        return _BY_FAMILY
    return 0


def _claim(text: str) -> Claim | None:
    if terms := terms_in(text):
        return terms[0]
    topic, degree = topic_in(text), degree_in(text)
    if topic is None or topic.axis in {"quality", "distortion"}:
        return None
    if degree is not None:
        return Claim(topic.axis, degree.place)
    wrong = axis_of(topic.axis).wrong
    return Claim(wrong, MUCH) if wrong else None


_OBJECT_HANDICAP = 0.5
"""What an option that names no place lacks, in deviations over the cells: objects count as the centre."""


def _places(look: Look, question: str, options: Mapping[str, str]) -> Decision | None:
    """Choose the place where the property asked about is strongest."""
    topic = property_in(question)
    cells = {letter: cells_in(text) for letter, text in options.items()}
    if topic is None or not axis_of(topic.axis).map or not any(cells.values()):
        return None
    key, is_high = _shown_by(topic)
    grid, sign = look.view.measured.maps[key], 1 if is_high else -1
    spread = float(np.std(grid)) + 1e-6
    values = {}
    for letter, place in cells.items():
        here, mean = local(grid, place or ((1, 1),))
        values[letter] = sign * (here - mean) / spread - (0 if place else _OBJECT_HANDICAP)
    return Decision(topic.axis, _shares_of_odds(values))


def _shown_by(claim: Claim) -> tuple[str, bool]:
    """Return the map that shows a claim ("" where none does), and whether its high values do."""
    axis = axis_of(claim.axis)
    return axis.map, not axis.falls if axis.is_fault else claim.more


def _tones(look: Look, question: str, options: Mapping[str, str]) -> Decision | None:
    """Choose the colour word nearest to the picture's mean colour."""
    colours = {}
    for letter, text in options.items():
        for words, row in entries("tones"):
            if words.search(text):
                colours[letter] = row["colour"]
    if len(colours) < 2:
        return None
    n = look.view.measured
    own = np.array([2.5 * n["cast_red_green"], 2.5 * n["cast_yellow_blue"], n["brightness"]])
    masses = dict.fromkeys(options, 0.02)
    for letter, colour in colours.items():
        masses[letter] = float(np.exp(-4 * np.linalg.norm(own - np.array(colour))))
    return Decision("colour tone", _shares(masses))


def choose_region(looks: Mapping[str, Look], query: str, names: Mapping[str, str]) -> ChosenOption | None:
    """Choose the region, by option letter, that a question asks for; None if it compares none."""
    question = _without_options(query, map(str.casefold, names.values()))
    for name in names.values():
        question = region_pattern(name).sub(" ", question)
    if not form("which").search(question):
        return None
    claim = _compared(question)
    if claim is None or claim.axis == "taste":
        return None
    odds = {letter: support(look, claim) for letter, look in looks.items()}
    shares = _shares_of_odds(odds)
    letter = max(shares, key=lambda each: shares[each])
    return ChosenOption(letter, claim.axis, True, shares, looks[letter])


def _compared(question: str) -> Claim | None:
    """Return what is to be truest of the region that is asked for."""
    claims, is_worse = predicate(question), form("worse").search(question)
    place = _WORSE if is_worse else MUCH
    if not claims:
        is_ranked = form("ranked").search(question) or degree_in(question)
        return Claim("quality", place) if is_ranked else None
    claim = claims[0]
    if claim.end:  # a word of a property, such as "sharp"
        before, behind = question[: claim.at], question[claim.end :]
        is_turned = form("little_before").search(before) or form("little_behind").search(behind)
        return Claim(claim.axis, 1 - claim.place) if is_turned else claim
    if claim.axis == "lighting" and form("ranked").search(question):
        # Good light is neither too much nor too little.
        return Claim("exposure", 1.0 if is_worse else 0.5)
    if is_worse and claim.more and not axis_of(claim.axis).is_fault:
        return Claim(claim.axis, place)
    return claim


_WORSE = 0.15


def region_reason(choice: ChosenOption, looks: Mapping[str, Look], names: Mapping[str, str], phrases: Phrases) -> str:
    """Say which region was chosen, how sure that is, and what decided it in each."""
    sentences = {}
    for letter, look in looks.items():
        if choice.topic == "quality":
            sentences[letter] = findings.region_sentence(look.view, phrases)
        else:
            sentences[letter] = fact(look, choice.topic, phrases)
    chosen = phrases.say(
        "choice.measured", letter=choice.letter, text=names[choice.letter],
        sureness=_sureness(choice, names, phrases), sentence=sentences.pop(choice.letter),
    )  # fmt: skip
    others = []
    for letter, sentence in sentences.items():
        others.append(findings.name_region(names[letter], sentence, phrases))
    return phrases.join(chosen, *others)


_DETAIL = frozenset({"sharpness", "blur", "motion", "defocus", "oversharp", "low resolution"})
_OF_LIGHT: Mapping[str, set[str]] = {
    "underexposure": {"too dark", "crushed shadows"},
    "overexposure": {"too bright", "blown highlights"},
    "exposure": {"too dark", "too bright"},
}  # fmt: skip
_RATHER, _TOO = 0.5, 0.75
"""Probability of wrong exposure from which it is called rather, and too, dark or bright."""
_SHARE_STEPS = (-2.5, -0.4, 0.4, 2.5)
"""Log-odds of much of a property between "very low", "low", "average", "high" and "very high"."""
_NEUTRAL = 0.02
"""Casts below which light has no colour to name."""
_UNDECIDED, _SURE = 0.25, 1.5
"""Log-odds within which an answer could as well be yes as no, and from which one is sure."""


def unseen(query: str, phrases: Phrases) -> str:
    """Say that measurements do not answer a question: its subject or its language is the reason."""
    if is_read(query):
        return phrases.say("sentence.unseen")
    return phrases.say("sentence.unread")


def fact(look: Look, axis: str, phrases: Phrases, *, denied: bool = False) -> str:
    """Say in one sentence how much of an axis there is, beside what photographs have.

    Where the answer has `denied` a fault, a slight one is the most that there is.
    """
    if axis == "colour tone":
        return phrases.say("sentence.tone", tone=phrases.say(f"tone.{_tone(look.view)}"))
    if axis in _OF_LIGHT:
        of_light = _spoiled(look, _of_exposure(look, axis), phrases, denied=denied)
        return of_light or _exposure(look, axis, phrases)
    visible = [] if look.cells else findings.visible_faults(look.view)
    category = look.category(axis)
    of_category = [each for each in visible if category and each.category == category]
    if axis == "sharpness" and of_category:
        axis = "defocus"
    if not axis_of(axis).is_fault or axis == "uneven":
        return phrases.say("fact.step", name=phrases.say(f"axis.{axis}"), step=_share_word(look, axis, phrases))
    if of_category:
        return _spoiled(look, of_category, phrases, denied=denied)
    name = phrases.say(f"axis.{axis}")
    if category and category in look.disputed:
        return phrases.say("sentence.in_part")  # of the whole image it cannot be told
    if category and (slight := faint(look, [category])) and above(look, axis) > 0:
        return _spoiled(look, slight, phrases, denied=denied)
    if above(look, axis) > 0:
        return phrases.say("sentence.signs", name=name)
    return findings.sentence_of([phrases.say("opening.none", name=name)], phrases)


def _tone(view: View) -> str:
    red, yellow = view.measured["cast_red_green"], view.measured["cast_yellow_blue"]
    if max(abs(red), abs(yellow)) <= _NEUTRAL:
        return "none"
    if abs(red) >= abs(yellow):
        return "red" if red > 0 else "green"
    return "yellow" if yellow > 0 else "blue"


def _share_word(look: Look, axis: str, phrases: Phrases) -> str:
    return phrases.say(f"share.{int(np.digitize(above(look, axis), _SHARE_STEPS))}")


def _exposure(look: Look, axis: str, phrases: Phrases) -> str:
    """Say how the exposure is: on the side that an axis names, if wrong, else on the worse."""
    named = _of_exposure(look, "exposure")
    if named:
        side = "underexposure" if named[0].fault == "too dark" else "overexposure"
        how_far = 1 if named[0].severity == "slight" else 2
    else:
        odds = {side: above(look, side) for side in ("underexposure", "overexposure")}
        side = axis if odds.get(axis, 0.0) > 0 else max(odds, key=odds.__getitem__)
        how_far = int(np.digitize(special.expit(odds[side]), (_RATHER, _TOO)))
    if side == "underexposure":
        how_far = -how_far
    return phrases.say("answer.exposure", step=phrases.say(f"exposure.{2 + how_far}"))


def _of_exposure(look: Look, axis: str) -> list[VisibleFault]:
    """Return the visible faults that an axis of exposure is about; of a part none is known."""
    visible = [] if look.cells else findings.visible_faults(look.view)
    return [each for each in visible if each.fault in _OF_LIGHT[axis]]


def _spoiled(look: Look, faults: list[VisibleFault], phrases: Phrases, *, denied: bool) -> str:
    """Say where some of the visible faults are and how strong, "" of none."""
    items = [findings.item(look.view, each, phrases) for each in faults]
    if items and denied and all(each.severity == "slight" for each in faults):
        return phrases.say("sentence.at_most", items=phrases.say("sentence.list").join(items))
    return findings.sentence_of(items, phrases)


def is_guessed(choice: ChosenOption, options: Mapping[str, str]) -> bool:
    """Return whether nothing that can be measured speaks for the option that was chosen."""
    return not choice.measured or bool(choice.look.view.unjudged and _axis_of(choice, options) in _DETAIL)


def _axis_of(choice: ChosenOption, options: Mapping[str, str]) -> str:
    """Return the axis that a choice was made on: among claims that of the chosen one."""
    if choice.topic == "distortion":
        claim = property_in(options.get(choice.letter, ""))
        if claim is not None:
            return _topic_of(claim)
    return choice.topic


def choice_reason(
    choice: ChosenOption, options: Mapping[str, str], query: str, phrases: Phrases, quality: float
) -> str:
    """Say which option was chosen, how sure that is, and which reading decided it."""
    text, look, topic = options.get(choice.letter, ""), choice.look, choice.topic
    words = findings.summary(look.view, quality, phrases)
    axis = _axis_of(choice, options)
    if is_guessed(choice, options):
        why = unseen(query, phrases)
        if axis in _DETAIL and look.view.unjudged:
            why = findings.unjudged_text(look.view, phrases)
        return phrases.join(why, phrases.say("choice.guess"), words if topic == _CONTENT else "")
    claim, folded = property_in(text), query.casefold()
    worst = findings.visible_faults(look.view)[:1]
    if topic != "distortion" or form("reversed").search(folded):
        sentences = [fact(look, axis, phrases, denied=_is_denied(text, predicate(folded)))]
        if topic in {"distortion", "quality"}:
            sentences.append(words)
    elif claim is None or claim.axis == "taste":
        sentences = [words]
    elif support(look, claim) < 0 and not any(_fits(text.casefold(), each) for each in worst):
        sentences = [phrases.say("choice.unclear"), words]
    else:
        sentences = [fact(look, axis, phrases)]
    if look.cells:
        sentences.append(phrases.say("sentence.grid_place", place=place_name(query)))
    return phrases.say(
        "choice.measured", letter=choice.letter, text=text, sureness=_sureness(choice, options, phrases),
        sentence=phrases.join(*sentences),
    )  # fmt: skip


def labelled_reason(letter: str, view: View, options: Mapping[str, str], phrases: Phrases, quality: float) -> str:
    """Say which option similar photographs' right answers chose, and what the image is like."""
    chosen = phrases.say("choice.voted", letter=letter, text=options[letter])
    return phrases.join(chosen, findings.summary(view, quality, phrases))


def _is_denied(text: str, claims: Sequence[Claim]) -> bool:
    """Return whether yes or no denies the fault that the last of some claims names, or a lack."""
    says_yes, says_no = (form(f"says_{word}").match(text.casefold()) for word in ("yes", "no"))
    if not claims or not (says_yes or says_no):
        return False
    return _names_fault(claims[-1]) != bool(says_yes)


def _names_fault(claim: Claim) -> bool:
    return axis_of(claim.axis).is_fault == claim.more


def _sureness(choice: ChosenOption, options: Mapping[str, str], phrases: Phrases) -> str:
    shares = dict(choice.probabilities)
    share = shares.pop(choice.letter)
    if share >= 0.75:
        return phrases.say("choice.sure")
    if share >= 0.55:
        return phrases.say("choice.likely")
    second = max(shares, key=shares.__getitem__)
    return phrases.say("choice.close", letter=second, text=options.get(second, ""))


def direct_answer(look: Look, query: str, phrases: Phrases) -> list[str]:
    """Answer an open question about a property in its own terms; nothing if it asks for none."""
    text = " ".join(query.casefold().split())
    is_closed = form("yes_or_no").search(text) is not None
    if is_closed:
        claims, unanswered = predicate(text), {"taste"}
    else:
        claims = [topic for topic in [property_in(text)] if topic]
        unanswered = {"quality", "distortion", "taste"}
    if not claims or claims[-1].axis in unanswered:
        return []
    last = claims[-1]
    if last.axis in _DETAIL and look.view.unjudged:
        return [findings.unjudged_text(look.view, phrases)]
    if is_closed:
        return _verdict(look, claims, phrases)
    if form("where").search(text) and axis_of(last.axis).map:
        key, is_high = _shown_by(last)
        place = findings.place_phrase(look.view.measured.maps[key], phrases, lowest=not is_high)
        return [phrases.say("sentence.at_place", place=place)]
    return [_degree(look, last, phrases)]


def _verdict(look: Look, claims: Sequence[Claim], phrases: Phrases) -> list[str]:
    """Say yes or no, how surely, and why where the findings do not say it themselves."""
    last, odds = claims[-1], min(support(look, claim) for claim in claims)
    stated, topic = look.stated(last.axis), _topic_of(last)
    names_fault = _names_fault(last)
    is_faint = stated == "none" and axis_of(last.axis).category and not (look.paired or look.cells)
    if stated == "slight" or (is_faint and names_fault and odds > 0):
        if last.axis != "distortion":
            why = [] if stated == "slight" else [fact(look, topic, phrases)]
            return [phrases.say("answer.slightly" if names_fault else "answer.mostly"), *why]
    answer = "agree" if odds >= 0 else "disagree"
    if stated != "none" or (axis_of(last.axis).category and odds < -_SURE):
        return [phrases.say(f"answer.{answer}")]
    if abs(odds) < _UNDECIDED and not is_faint:
        answer = "unclear"
    elif abs(odds) < _SURE:
        answer = f"probably_{answer}"
    return [phrases.say(f"answer.{answer}"), fact(look, topic, phrases)]


def _degree(look: Look, topic: Claim, phrases: Phrases) -> str:
    if topic.axis in _OF_LIGHT or topic.axis == "lighting":
        return _exposure(look, topic.axis, phrases)
    axis = _topic_of(topic)
    name = phrases.say(f"axis.{axis}")
    if not axis_of(axis).is_fault:
        return phrases.say("answer.share", name=name, step=_share_word(look, axis, phrases))
    word = look.stated(axis)
    if word == "none" and above(look, axis) > 0:
        word = "slight"
    return phrases.say("answer.fault", severity=phrases.say(f"severity.{word}"), name=name)


def place_name(text: str) -> str:
    """Return the words by which a text names a place, or ""."""
    folded = text.casefold().strip()
    for words, _ in entries("places"):
        if match := words.search(folded):
            return match[0]
    return ""
