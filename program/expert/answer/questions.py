"""Answers to questions: which option, yes or no, how much; with the reasons."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from program.expert.answer import findings
from program.expert.answer.claims import (
    MUCH,
    Claim,
    Look,
    amount,
    axis_of,
    cells_in,
    degree_in,
    entries,
    form,
    local,
    look_at,
    predicate,
    property_in,
    severity_place,
    shown_by,
    support,
    terms_in,
    topic_in,
    verdict,
)
from program.expert.answer.findings import Phrases, VisibleFault
from program.expert.answer.planning import is_read, region_pattern
from program.expert.judge.views import View


class OptionMasses(NamedTuple):
    """What options were decided on, whether that was measured, and what each letter weighs."""

    topic: str
    is_measured: bool
    masses: dict[str, float]


_WIDTH, _FAULT_WIDTH = 0.22, 0.08
"""How far people's place for an image scatters around the measured one, on an axis of 0..1; for the
degree of a fault, so little that the finding decides."""


def degrees(look: Look, text: str, options: Mapping[str, str]) -> OptionMasses | None:
    """Choose among words on one scale: each option owns the stretch around its place."""
    topic = property_in(text)
    axis, places = on_one_axis(topic, options)
    if axis is None or len({round(place, 3) for place in places.values()}) < 2:
        return None
    at = np.unique(list(places.values()))
    bounds, width = 0.5 * (at[:-1] + at[1:]), _FAULT_WIDTH
    is_of_fault = axis_of(axis).is_fault
    if not is_of_fault:
        # Degrees of a fault mean what they say; of a property they are relative to what is usual.
        bounds = 0.5 * (bounds + np.arange(1, len(at)) / len(at))
    # Bent so that 0.5 is where opinions part: most photographs are called bright and clear enough.
    measured = float(amount(look, axis) ** (np.log(0.5) / np.log(axis_of(axis).parting)))
    if axis == "sharpness" and topic is not None and topic.axis == axis and not topic.more:
        is_of_fault = bool(at[-1] == 1)  # an option "none" asks whether there is any blur at all
        measured = _unblurred(look, measured, by_severity=is_of_fault)
    if not is_of_fault:
        width = _WIDTH
    edges = np.array([-np.inf, *bounds, np.inf])
    shares = np.diff(special.ndtr((edges - measured) / width)).tolist()
    by_place, count = dict(zip(at, shares, strict=True)), Counter(places.values())
    masses = {letter: by_place[place] / count[place] + 1e-6 for letter, place in places.items()}
    return OptionMasses(axis, axis != "taste", masses)


def _unblurred(look: Look, measured: float, *, by_severity: bool) -> float:
    """Return sharpness as people grade blur: by its severity, or by the usual where none is there.

    Where "none" is an option (`by_severity`), or there is a reference, by the severity alone.
    """
    severity = look.severities["Blurs"]
    if look.paired or by_severity:
        return 1 - severity_place(severity)
    share = float(np.clip(severity / 2, 0.3, 1.0))
    return share * (1 - severity_place(severity)) + (1 - share) * measured


def on_one_axis(topic: Claim | None, options: Mapping[str, str]) -> tuple[str | None, dict[str, float]]:
    """Return the axis that all options are places on, with their places; (None, {}) if none is."""
    own = _shared(_first_terms(options))
    axis = _common_axis(topic, options, own)
    if axis is None:
        return None, {}
    places = {}
    for letter, text in options.items():
        if letter in own:
            places[letter] = own[letter].place
            continue
        place = _degree_place(text, axis, topic, beside=bool(own))
        if place is None:
            return None, {}
        places[letter] = place
    return axis, places


def _common_axis(topic: Claim | None, options: Mapping[str, str], own: Mapping[str, Claim]) -> str | None:
    axes = {claim.axis for claim in own.values()}
    if len(axes) > 1:
        return None
    if axes:
        axis = axes.pop()
        # One fault among other things is a claim, not a scale.
        is_claim = axis_of(axis).is_fault and len(own) == 1 and len(options) > 2
        return None if is_claim else axis
    if topic is None:
        if all(degree_in(text) for text in options.values()):
            return "quality"
        return None
    if topic.axis in {"lighting", "brightness"}:
        if any(form("too").search(text) for text in options.values()):
            return "exposure"
    return topic.axis


def _first_terms(options: Mapping[str, str]) -> dict[str, Claim]:
    terms = {letter: terms_in(text) for letter, text in options.items()}
    return {letter: claims[0] for letter, claims in terms.items() if claims}


def _shared(own: Mapping[str, Claim]) -> dict[str, Claim]:
    """Bring claims of related axes onto one, where there are several."""
    axes = {claim.axis for claim in own.values()}
    is_exposure = axes <= {"exposure", "underexposure", "overexposure"}
    shared = dict(own)
    if len(axes) <= 1 and not is_exposure:
        return shared
    for letter, claim in own.items():
        onto = axis_of(claim.axis).onto
        if onto is None or (is_exposure and claim.axis == "exposure"):
            continue
        axis, place = onto
        if is_exposure:
            axis = "exposure"
        place = 0.5 + (place - 0.5) * (claim.place - 0.5) / 0.35
        shared[letter] = Claim(axis, place, claim.at)
    return shared


def _degree_place(text: str, axis: str, topic: Claim | None, *, beside: bool) -> float | None:
    """Return where a word of degree stands on an axis, `beside` options that name places or not."""
    degree = degree_in(text)
    if degree is None:
        return None
    if degree.kind == "merit" and (axis == "exposure" or (axis == "brightness" and beside)):
        # Beside "dark" and "bright", what is good lies between them.
        return 0.5
    if axis == "exposure":
        return float(np.sign(degree.place - 0.5)) / 2 + 0.5
    if degree.kind == "merit":
        is_turned = axis_of(axis).is_fault
    else:
        is_turned = topic is not None and topic.axis == axis and not topic.more
    return 1 - degree.place if is_turned else degree.place


class ChosenOption(NamedTuple):
    """An option's letter, what it was decided on and of what, and each option's probability."""

    letter: str
    topic: str
    measured: bool
    probabilities: Mapping[str, float]
    look: Look


_ANSWERED_YES = 0.55
"""How often "yes" is right where nothing can be measured: askers name what they see."""
_LEAST_ODDS = 0.5
"""Log-odds of "yes" or "no" where the findings decide a question."""
_USUAL = 0.4
"""Share of photographs with less of a property below which there is little of it."""


def _without_options(query: str, texts: Iterable[str]) -> str:
    """Return a question in lower case without its options, whose `texts` are in lower case."""
    head = query.casefold()
    for text in sorted(texts, key=len, reverse=True):
        # A question that repeats its options in its text names none of them.
        if len(text) > 1:
            option = rf"[(（]?(?<![a-z])[a-z][).:、．]\s*{re.escape(text)}"
            head = re.sub(option, " ", head)
    return " ".join(head.split())


def answer_choice(
    view: View, query: str, options: Mapping[str, str], evidence: Mapping[str, str], scores: Sequence[float]
) -> ChosenOption:
    """Choose an option; `evidence` (category -> severity word) and tool scores count, too."""
    texts = {}
    for letter, text in options.items():
        texts[letter] = " ".join(text.casefold().strip(" .。!！").split())
    question = _without_options(query, texts.values())
    ordered = dict(sorted(texts.items(), key=lambda pair: pair[1]))
    look = look_at(view, evidence, scores, question)
    decided = OptionMasses("content", False, dict.fromkeys(texts, 1.0))
    for decide in (_yes_or_no, degrees, _claims, _places, _tones):
        masses = decide(look, question, ordered)
        if masses is not None:
            decided = masses
            break
    shares = _shares(decided.masses)
    letter = max(ordered, key=lambda letter: shares[letter])
    probabilities = {letter: shares[letter] for letter in texts}
    return ChosenOption(letter, decided.topic, decided.is_measured, probabilities, look)


def _shares(masses: Mapping[str, float]) -> dict[str, float]:
    total = sum(masses.values())
    return {letter: mass / total for letter, mass in masses.items()}


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
    shares = _shares(_masses(odds))
    letter = max(shares, key=lambda each: shares[each])
    return ChosenOption(letter, claim.axis, True, shares, looks[letter])


def _compared(question: str) -> Claim | None:
    """Return what is to be truest of the region that is asked for."""
    is_ranked, is_worse = form("ranked").search(question), form("worse").search(question)
    place = _WORSE if is_worse else MUCH
    claims = predicate(question)
    if not claims:
        degree = degree_in(question)
        if degree is not None and degree.kind == "merit":
            return Claim("quality", degree.place)
        if is_ranked or degree is not None:
            return Claim("quality", place)
        return None
    claim = claims[0]
    if claim.end:  # a word of a property, such as "sharp"
        before, behind = question[: claim.at], question[claim.end :]
        is_turned = form("little_before").search(before) or form("little_behind").search(behind)
        return Claim(claim.axis, 1 - claim.place) if is_turned else claim
    if claim.axis == "lighting" and is_ranked:  # good light is neither too much nor too little
        right, wrong = 0.5, 1.0
        return Claim("exposure", wrong if is_worse else right)
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


def _yes_or_no(look: Look, question: str, options: Mapping[str, str]) -> OptionMasses | None:
    yes = [letter for letter, text in options.items() if form("says_yes").match(text)]
    no = [letter for letter, text in options.items() if form("says_no").match(text)]
    if len(yes) != 1 or len(no) != 1:
        return None
    claims = predicate(question)
    odds = float(special.logit(_ANSWERED_YES))
    if claims:
        odds = min(support(look, claim) for claim in claims)
    ruling = verdict(look, claims) if look.cells is None else ""
    if ruling == "agree":
        odds = max(odds, _LEAST_ODDS)
    elif ruling == "disagree":
        odds = min(odds, -_LEAST_ODDS)
    share = float(np.clip(special.expit(_SURENESS * odds), 0.03, 0.97))
    is_measured = bool(claims) and claims[-1].axis != "taste"
    topic = claims[-1].axis if is_measured else "content"
    if topic == "sharpness" and (share > 0.5) == claims[-1].more and look.position(topic) < _USUAL:
        # People call photographs sharp that have less detail than most, and no blur.
        topic = "defocus"
    masses = {yes[0]: share, no[0]: 1 - share}
    for letter in options:
        masses.setdefault(letter, _MASS_OF_OTHERS)
    return OptionMasses(topic, is_measured, masses)


_SURENESS = 0.7
"""What log-odds of a claim count as log-odds of an option."""
_MASS_OF_OTHERS = 0.04
"""Of an option beside yes and no."""


def _claims(look: Look, question: str, options: Mapping[str, str]) -> OptionMasses | None:
    """Choose the claim with the most support; "no distortion" holds when no other does."""
    sign = -1.0 if form("reversed").search(question) else 1.0
    odds = {}
    decided = 0
    says_nothing = False
    for letter, text in options.items():
        claim = _claim(text)
        if form("says_none").match(text):
            odds[letter], says_nothing = 0.0, True
        elif claim is None:
            odds[letter] = _ODDS_OF_NO_CLAIM
        else:
            odds[letter] = sign * _claim_odds(look, claim)
            decided += 1
    if decided == 0 or (decided == 1 and not says_nothing):
        return None
    return OptionMasses("distortion", True, _masses(odds))


_ODDS_OF_NO_CLAIM = -3.0


def _masses(odds: Mapping[str, float]) -> dict[str, float]:
    """Return how much each option weighs by its log-odds, the most likely 1."""
    top = max(odds.values())
    return {letter: float(np.exp(_SURENESS * (value - top))) for letter, value in odds.items()}


def _claim_odds(look: Look, claim: Claim) -> float:
    odds = support(look, claim)
    if claim.axis == "defocus" or (claim.axis == "sharpness" and not claim.more):
        # Darkness hides detail: what it explains is no sign of blur.
        return odds - 0.5 * max(support(look, Claim("underexposure", MUCH)), 0.0)
    return odds


def _claim(text: str) -> Claim | None:
    if terms := terms_in(text):
        return terms[0]
    topic = topic_in(text)
    if topic is None or topic.axis in {"quality", "distortion"}:
        return None
    if (degree := degree_in(text)) is not None:
        return Claim(topic.axis, degree.place)
    wrong = axis_of(topic.axis).wrong
    return Claim(wrong, MUCH) if wrong else None


def _places(look: Look, question: str, options: Mapping[str, str]) -> OptionMasses | None:
    """Choose the place where the property asked about is strongest; objects count as the centre."""
    topic = property_in(question)
    if topic is None:
        return None
    key, is_high = shown_by(topic)
    cells = {letter: cells_in(text) for letter, text in options.items()}
    if not key or not any(cells.values()):
        return None
    grid = look.view.measured.maps[key]
    spread = float(np.std(grid)) + 1e-6
    values = {}
    for letter, place in cells.items():
        here, mean = local(grid, place or _CENTRE)
        value = (here - mean) / spread
        if not is_high:
            value = -value
        if not place:
            value -= _OBJECT_HANDICAP
        values[letter] = value
    top = max(values.values())
    masses = {letter: float(np.exp(value - top)) for letter, value in values.items()}
    return OptionMasses(topic.axis, True, masses)


_CENTRE = ((1, 1),)
_OBJECT_HANDICAP = 0.5
"""What an option that names no place lacks, in deviations over the cells."""


def _tones(look: Look, question: str, options: Mapping[str, str]) -> OptionMasses | None:
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
    return OptionMasses("colour tone", True, masses)


_DETAIL = frozenset({"sharpness", "motion", "defocus", "oversharp"})
_LIGHT = frozenset({"overexposure", "underexposure", "exposure", "lighting"})
_RATHER, _TOO = 0.35, 0.6
"""Probability of wrong exposure from which it is called rather, and too, dark or bright."""
_OF_LIGHT = {"underexposure": {"too dark", "crushed shadows"}, "overexposure": {"too bright", "blown highlights"}}
_NEUTRAL = 0.02
"""Casts below which light has no colour to name."""
_UNDECIDED, _SURE = 0.25, 2.0
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
    if axis in _LIGHT - {"lighting"}:
        of_light = [each for each in _visible(look) if each.fault in _OF_LIGHT.get(axis, ())]
        return _spoiled(look, of_light, phrases, denied=denied) or _exposure(look, axis, phrases)
    if axis == "sharpness" and "Blurs" in findings.present(look.view):
        axis = "defocus"
    if axis_of(axis).is_fault and axis != "uneven":
        return _fault(look, axis, phrases, denied=denied)
    return _step(look.position(axis), axis, phrases)


def _tone(view: View) -> str:
    red, yellow = view.measured["cast_red_green"], view.measured["cast_yellow_blue"]
    if max(abs(red), abs(yellow)) <= _NEUTRAL:
        return "none"
    if abs(red) >= abs(yellow):
        return "red" if red > 0 else "green"
    return "yellow" if yellow > 0 else "blue"


def _visible(look: Look) -> list[VisibleFault]:
    """Return the visible faults of the whole picture; of a part of it they say nothing."""
    if look.cells is not None:
        return []
    return findings.visible_faults(look.view)


def _step(share: float, axis: str, phrases: Phrases) -> str:
    name, word = phrases.say(f"axis.{axis}"), _share_word(share, axis, phrases)
    return phrases.say("fact.step", name=name, step=word)


def _share_word(share: float, axis: str, phrases: Phrases) -> str:
    """Name a place among photographs by its fifth; low or high is what people agree to be so."""
    high, low = axis_of(axis).agreed
    bounds = (0.2, min(_USUAL, low), max(1 - _USUAL, high), 0.8)
    return phrases.say(f"share.{int(np.digitize(share, bounds))}")


def _exposure(look: Look, axis: str, phrases: Phrases) -> str:
    """Say how the exposure is: on the side that an axis names, if wrong, else on the worse."""
    odds = {side: support(look, Claim(side, MUCH)) for side in ("underexposure", "overexposure")}
    side = axis if odds.get(axis, 0.0) > 0 else max(odds, key=lambda each: odds[each])
    how_far = int(np.digitize(special.expit(odds[side]), (_RATHER, _TOO)))
    if side == "underexposure":
        how_far = -how_far
    return phrases.say("answer.exposure", step=phrases.say(f"exposure.{2 + how_far}"))


def _spoiled(look: Look, faults: list[VisibleFault], phrases: Phrases, *, denied: bool) -> str:
    """Say where some of the visible faults are and how strong, "" of none."""
    items = [findings.item(look.view, each, phrases) for each in faults]
    if items and denied and all(each.severity == "slight" for each in faults):
        return phrases.say("sentence.at_most", items=phrases.say("sentence.list").join(items))
    return findings.sentence_of(items, phrases)


def _fault(look: Look, axis: str, phrases: Phrases, *, denied: bool) -> str:
    fault, category = axis_of(axis), look.category(axis)
    faults = [each for each in _visible(look) if each.category == category]
    if faults:
        return _spoiled(look, faults, phrases, denied=denied)
    stated = findings.severity_word(look.severity(axis))
    if category and stated != "none":
        if stated != findings.severity_word(look.view.severities[category]):
            return phrases.say("sentence.in_part")  # of the whole image it cannot be told
    claim = Claim(axis, MUCH)
    is_undecided = look.cells is not None or not verdict(look, [claim])
    if fault.composite and is_undecided and not look.paired and support(look, claim) > 0:
        return _step(look.position(fault.composite), axis, phrases)
    nothing = phrases.say("opening.none", name=phrases.say(f"axis.{axis}"))
    return findings.sentence_of([nothing], phrases)


def is_guessed(choice: ChosenOption, options: Mapping[str, str]) -> bool:
    """Return whether nothing that can be measured speaks for the option that was chosen."""
    return not choice.measured or bool(choice.look.view.unjudged and _axis_of(choice, options) in _DETAIL)


def _axis_of(choice: ChosenOption, options: Mapping[str, str]) -> str:
    """Return the axis that a choice was made on: among claims that of the chosen one."""
    if choice.topic == "distortion":
        claim = property_in(options.get(choice.letter, ""))
        if claim is not None:
            return claim.axis
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
        about = words if topic == "content" else ""
        return phrases.join(why, phrases.say("choice.guess"), about)
    claim = property_in(text) if topic == "distortion" else None
    folded = query.casefold()
    if topic != "distortion" or form("reversed").search(folded):
        denied = _is_denied(text, predicate(folded))
        sentences = [fact(look, axis, phrases, denied=denied)]
        if topic in {"distortion", "quality"}:
            sentences.append(words)
    elif claim is None or claim.axis == "taste":
        sentences = [words]
    elif support(look, claim) < 0:
        sentences = [phrases.say("choice.unclear"), words]
    else:
        sentences = [fact(look, axis, phrases)]
    if look.cells:
        sentences.append(phrases.say("sentence.grid_place", place=place_name(query)))
    sureness = _sureness(choice, options, phrases)
    return phrases.say(
        "choice.measured", letter=choice.letter, text=text, sureness=sureness,
        sentence=phrases.join(*sentences),
    )  # fmt: skip


def labelled_reason(letter: str, view: View, options: Mapping[str, str], phrases: Phrases, quality: float) -> str:
    """Say which option similar photographs' right answers chose, and what the image is like."""
    chosen = phrases.say("choice.voted", letter=letter, text=options[letter])
    return phrases.join(chosen, findings.summary(view, quality, phrases))


def _is_denied(text: str, claims: Sequence[Claim]) -> bool:
    """Return whether yes or no denies the fault that the last of some claims names, or a lack."""
    folded = text.casefold()
    says_yes, says_no = (form(f"says_{word}").match(folded) for word in ("yes", "no"))
    if not claims or not (says_yes or says_no):
        return False
    names_fault = axis_of(claims[-1].axis).is_fault == claims[-1].more
    return names_fault != bool(says_yes)


def _sureness(choice: ChosenOption, options: Mapping[str, str], phrases: Phrases) -> str:
    shares = dict(choice.probabilities)
    share = shares.pop(choice.letter)
    if share >= 0.75:
        return phrases.say("choice.sure")
    if share >= 0.55:
        return phrases.say("choice.likely")
    second = max(shares, key=lambda letter: shares[letter])
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
    if not is_closed:
        if form("where").search(text):
            return [_location(look, last, phrases)]
        return [_degree(look, last, phrases)]
    if ruling := verdict(look, claims):
        return [phrases.say(f"answer.{ruling}")]
    odds = min(support(look, claim) for claim in claims)
    if abs(odds) < _UNDECIDED:
        answer = "unclear"
    else:
        answer = "agree" if odds >= 0 else "disagree"
        if abs(odds) < _SURE:
            answer = f"probably_{answer}"
    return [phrases.say(f"answer.{answer}"), fact(look, last.axis, phrases)]


def _location(look: Look, topic: Claim, phrases: Phrases) -> str:
    key, is_high = shown_by(topic)
    if not key:
        return fact(look, topic.axis, phrases)
    place = findings.place_phrase(look.view.measured.maps[key], phrases, lowest=not is_high)
    return phrases.say("sentence.at_place", place=place)


def _degree(look: Look, topic: Claim, phrases: Phrases) -> str:
    if topic.axis in _LIGHT:
        return _exposure(look, topic.axis, phrases)
    is_blur = topic.axis == "sharpness" and not topic.more
    name = "damage.Blurs" if is_blur else f"axis.{topic.axis}"
    if not is_blur and not axis_of(topic.axis).is_fault:
        share = _share_word(amount(look, topic.axis), topic.axis, phrases)
        return phrases.say("answer.share", name=phrases.say(name), step=share)
    word = look.named_severity(topic.axis) or "none"
    if word == "none" and support(look, topic) > 0:
        word = findings.severity_word(look.severity(topic.axis))
    severity = phrases.say(f"severity.{word}")
    return phrases.say("answer.fault", severity=severity, name=phrases.say(name))


def place_name(text: str) -> str:
    """Return the words by which a text names a place, or ""."""
    folded = text.casefold().strip()
    for words, _ in entries("places"):
        if match := words.search(folded):
            return match[0]
    return ""
