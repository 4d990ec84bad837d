"""Answers to questions: options on one scale or matched to what was measured, yes or no, how much; with the reasons."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from program.expert.answer import findings
from program.expert.answer.claims import (
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
from program.expert.answer.findings import Found, Phrases
from program.expert.answer.planning import is_read, region_pattern
from program.expert.judge.views import View

Verdict = tuple[str, bool, dict[str, float]] | None
"""What options were decided on, whether that was measured, and each letter's mass; None where it does not apply."""
_WIDTH, _FAULT_WIDTH = 0.22, 0.08
"""How far people's place for an image scatters around the measured one, on an axis of 0..1; for the degree of a fault,
so little that the finding decides."""


def degrees(look: Look, text: str, options: Mapping[str, str]) -> Verdict:
    """Choose among words on one scale: each option owns the stretch of the axis around its place."""
    topic = property_in(text)
    axis, places = on_one_axis(topic, options)
    if axis is None or len({round(place, 3) for place in places.values()}) < 2:
        return None
    at, is_finding = np.unique(list(places.values())), axis_of(axis).is_fault
    middles, shares = 0.5 * (at[:-1] + at[1:]), np.arange(1, len(at)) / len(at)
    # Degrees of a fault mean what they say; degrees of a property are relative to what is usual.
    bounds = middles if is_finding else 0.5 * (middles + shares)
    # Bent so that 0.5 is where opinions part: most photographs are called bright enough and clear enough.
    measured = float(amount(look, axis) ** (np.log(0.5) / np.log(axis_of(axis).parting)))
    if axis == "sharpness" and topic is not None and topic.axis == axis and not topic.more:
        is_finding = bool(at[-1] == 1)  # an option "none" asks whether there is any blur at all
        measured = _unblurred(look, measured, by_severity=is_finding)
    edges = np.array([-np.inf, *bounds, np.inf])
    masses = np.diff(special.ndtr((edges - measured) / (_FAULT_WIDTH if is_finding else _WIDTH)))
    by_place = dict(zip(at, masses.tolist(), strict=True))
    count = Counter(places.values())
    return axis, axis != "taste", {letter: by_place[place] / count[place] + 1e-6 for letter, place in places.items()}


def _unblurred(look: Look, measured: float, *, by_severity: bool) -> float:
    """Return sharpness as people grade blur: by the severity that was detected, or by the usual where it was not.

    Where "none" is an option (`by_severity`), or there is a reference, by the severity alone.
    """
    severity = look.severities["Blurs"]
    share = 1.0 if look.paired or by_severity else float(np.clip(severity / 2, 0.3, 1.0))
    return share * (1 - severity_place(severity)) + (1 - share) * measured


def on_one_axis(topic: Claim | None, options: Mapping[str, str]) -> tuple[str | None, dict[str, float]]:
    """Return the axis that all options are places on, with their places; (None, {}) if there is none."""
    own = _shared({letter: claim[0] for letter, text in options.items() if (claim := terms_in(text))})
    axes = {claim.axis for claim in own.values()}
    if len(axes) > 1 or (not axes and topic is None and not all(degree_in(text) for text in options.values())):
        return None, {}
    axis = axes.pop() if axes else (topic.axis if topic is not None else "quality")
    if axis_of(axis).is_fault and len(own) == 1 and len(options) > 2:
        # One fault among other things is a claim, not a scale.
        return None, {}
    if axis in {"lighting", "brightness"} and not own and any(form("too").search(text) for text in options.values()):
        axis = "exposure"
    places = {
        letter: own[letter].place if letter in own else _degree_place(text, axis, topic, beside=bool(own))
        for letter, text in options.items()
    }
    complete = {letter: place for letter, place in places.items() if place is not None}
    return (axis, complete) if len(complete) == len(options) else (None, {})


def _shared(own: Mapping[str, Claim]) -> dict[str, Claim]:
    """Bring claims of related axes onto one, where there are several."""
    axes = {claim.axis for claim in own.values()}
    is_exposure = axes <= {"exposure", "underexposure", "overexposure"}
    if len(axes) <= 1 and not is_exposure:
        return dict(own)
    shared = dict(own)
    for letter, claim in own.items():
        if (onto := axis_of(claim.axis).onto) and not (is_exposure and claim.axis == "exposure"):
            axis, place = onto
            shared[letter] = Claim(
                "exposure" if is_exposure else axis, 0.5 + (place - 0.5) * (claim.place - 0.5) / 0.35, claim.at
            )
    return shared


def _degree_place(text: str, axis: str, topic: Claim | None, *, beside: bool) -> float | None:
    """Return where a word of degree stands on an axis; `beside` options that name places on it themselves."""
    degree = degree_in(text)
    if degree is None:
        return None
    if degree.kind == "merit" and (axis == "exposure" or (axis == "brightness" and beside)):
        # Beside "dark" and "bright", what is good lies between them.
        return 0.5
    if axis == "exposure":
        return float(np.sign(degree.place - 0.5)) / 2 + 0.5
    is_less = topic is not None and topic.axis == axis and not topic.more
    turned = axis_of(axis).is_fault if degree.kind == "merit" else is_less
    return 1 - degree.place if turned else degree.place


class Choice(NamedTuple):
    """An option's letter, what it was decided on, whether that was measured, each option's probability, and of what."""

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
            head = re.sub(rf"[(（]?(?<![a-z])[a-z][).:、．]\s*{re.escape(text)}", " ", head)
    return " ".join(head.split())


def answer_choice(
    view: View, query: str, options: Mapping[str, str], evidence: Mapping[str, str], scores: Sequence[float]
) -> Choice:
    """Choose an option letter from measurements; `evidence` (category -> severity word) and tool scores count too."""
    texts = {letter: " ".join(text.casefold().strip(" .。!！").split()) for letter, text in options.items()}
    text, ordered = _without_options(query, texts.values()), dict(sorted(texts.items(), key=lambda pair: pair[1]))
    look = look_at(view, evidence, scores, text)
    verdicts = (judge(look, text, ordered) for judge in (_yes_or_no, degrees, _claims, _places, _tones))
    topic, measured, masses = next(filter(None, verdicts), ("content", False, dict.fromkeys(texts, 1.0)))
    total = sum(masses.values())
    shares = {letter: masses[letter] / total for letter in texts}
    return Choice(max(ordered, key=lambda letter: shares[letter]), topic, measured, shares, look)


def choose_region(looks: Mapping[str, Look], query: str, names: Mapping[str, str]) -> Choice | None:
    """Choose the region, by option letter, that a question asks for; None where it compares nothing measured."""
    question = _without_options(query, [text.casefold() for text in names.values()])
    for name in names.values():
        question = region_pattern(name).sub(" ", question)
    claim = _compared(question) if form("which").search(question) else None
    if claim is None or claim.axis == "taste":
        return None
    masses = _masses({letter: support(look, claim) for letter, look in looks.items()})
    shares = {letter: mass / sum(masses.values()) for letter, mass in masses.items()}
    letter = max(shares, key=lambda each: shares[each])
    return Choice(letter, claim.axis, True, shares, looks[letter])


def _compared(question: str) -> Claim | None:
    """Return what is to be truest of the region that is asked for."""
    is_ranked, worse = form("ranked").search(question), form("worse").search(question)
    claim = next(iter(predicate(question)), None)
    if claim is None:
        degree = degree_in(question)
        place = degree.place if degree is not None and degree.kind == "merit" else 0.15 if worse else 0.85
        return Claim("quality", place) if is_ranked or degree is not None else None
    if claim.end:  # a word of a property, such as "sharp"
        before, behind = question[: claim.at], question[claim.end :]
        turned = form("little_before").search(before) or form("little_behind").search(behind)
        return Claim(claim.axis, 1 - claim.place) if turned else claim
    if claim.axis == "lighting" and is_ranked:  # good light is neither too much nor too little
        return Claim("exposure", 1.0 if worse else 0.5)
    return Claim(claim.axis, 0.15) if worse and claim.more and not axis_of(claim.axis).is_fault else claim


def region_reason(choice: Choice, looks: Mapping[str, Look], names: Mapping[str, str], say: Phrases) -> str:
    """Say which region was chosen, how sure that is, and what decided it in each."""

    def reading(look: Look) -> str:
        return findings.region_sentence(look.view, say) if choice.topic == "quality" else fact(look, choice.topic, say)

    others = [each for each in looks if each != choice.letter]
    chosen = say(
        "choice.measured", letter=choice.letter, text=names[choice.letter], sureness=_sureness(choice, names, say),
        sentence=reading(choice.look),
    )  # fmt: skip
    return say.join(chosen, *(findings.of_region(names[each], reading(looks[each]), say) for each in others))


def _yes_or_no(look: Look, question: str, options: Mapping[str, str]) -> Verdict:
    yes = [letter for letter, text in options.items() if form("says_yes").match(text)]
    no = [letter for letter, text in options.items() if form("says_no").match(text)]
    if len(yes) != 1 or len(no) != 1:
        return None
    claims = predicate(question)
    odds = min((support(look, claim) for claim in claims), default=float(special.logit(_ANSWERED_YES)))
    if look.cells is None:
        said = verdict(look, claims)
        odds = max(odds, _LEAST_ODDS) if said == "agree" else min(odds, -_LEAST_ODDS) if said == "disagree" else odds
    share = float(np.clip(special.expit(0.7 * odds), 0.03, 0.97))
    rest = {letter: 0.04 for letter in options if letter not in (*yes, *no)}
    measured = bool(claims) and claims[-1].axis != "taste"
    topic = claims[-1].axis if measured else "content"
    if topic == "sharpness" and (share > 0.5) == claims[-1].more and look.position(topic) < _USUAL:
        topic = "defocus"  # people call photographs sharp that have less detail than most, and no blur
    return topic, measured, {yes[0]: share, no[0]: 1 - share, **rest}


def _claims(look: Look, question: str, options: Mapping[str, str]) -> Verdict:
    """Choose the claim with the most support; "no distortion" holds when none of the others does."""
    claims = {letter: _claim(text) for letter, text in options.items()}
    nothing = {letter for letter, text in options.items() if form("says_none").match(text)}
    if sum(claim is not None for letter, claim in claims.items() if letter not in nothing) + bool(nothing) < 2:
        return None
    sign = -1.0 if form("reversed").search(question) else 1.0
    odds = {letter: sign * _claim_odds(look, claim) if claim else -3.0 for letter, claim in claims.items()}
    odds |= dict.fromkeys(nothing, 0.0)
    return "distortion", True, _masses(odds)


def _masses(odds: Mapping[str, float]) -> dict[str, float]:
    """Return how much each option weighs by its log-odds, the most likely 1."""
    top = max(odds.values())
    return {letter: float(np.exp(0.7 * (value - top))) for letter, value in odds.items()}


def _claim_odds(look: Look, claim: Claim) -> float:
    odds = support(look, claim)
    if claim.axis == "defocus" or (claim.axis == "sharpness" and not claim.more):
        # Darkness hides detail: what it explains is no sign of blur.
        return odds - 0.5 * max(support(look, Claim("underexposure", 0.85)), 0.0)
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
    return Claim(wrong, 0.85) if wrong else None


def _places(look: Look, question: str, options: Mapping[str, str]) -> Verdict:
    """Choose the place where the property asked about is strongest; objects count as the centre of the picture."""
    cells = {letter: cells_in(text) for letter, text in options.items()}
    topic = property_in(question)
    key, rising = shown_by(topic) if topic is not None else ("", False)
    if topic is None or not key or all(place is None for place in cells.values()):
        return None
    grid = look.view.measured.maps[key]
    spread = float(np.std(grid)) + 1e-6
    values = {}
    for letter, place in cells.items():
        here, mean = local(grid, place if place is not None else ((1, 1),))
        values[letter] = (here - mean) / spread * (1 if rising else -1) - (0.5 if place is None else 0.0)
    top = max(values.values())
    return topic.axis, True, {letter: float(np.exp(value - top)) for letter, value in values.items()}


def _tones(look: Look, question: str, options: Mapping[str, str]) -> Verdict:
    """Choose the colour word nearest to the picture's mean colour."""
    stands = {
        letter: row["colour"]
        for letter, text in options.items()
        for words, row in entries("tones")
        if words.search(text)
    }
    if len(stands) < 2:
        return None
    n = look.view.measured
    own = np.array([2.5 * n["cast_red_green"], 2.5 * n["cast_yellow_blue"], n["brightness"]])
    near = {letter: float(np.exp(-4 * np.linalg.norm(own - np.array(colour)))) for letter, colour in stands.items()}
    return "colour tone", True, dict.fromkeys(options, 0.02) | near


_DETAIL = frozenset({"sharpness", "motion", "defocus", "oversharp"})
_LIGHT = frozenset({"overexposure", "underexposure", "exposure", "lighting"})
_RATHER, _TOO = 0.35, 0.6
"""Probability of wrong exposure from which it is called rather, and too, dark or bright."""
_OF_LIGHT = {"underexposure": {"too dark", "crushed shadows"}, "overexposure": {"too bright", "blown highlights"}}
_NEUTRAL = 0.02
"""Casts below which light has no colour to name."""
_EVEN = 0.25
"""Log-odds within which an answer could as well be yes as no."""


def unseen(query: str, say: Phrases) -> str:
    """Say that measurements do not answer a question: its subject or its language is the reason."""
    return say("sentence.unseen" if is_read(query) else "sentence.unread")


def is_guess(reason: str) -> bool:
    """Return whether a reason says that its option is a guess, in either language.

    >>> is_guess("This is a guess from the prior, with low confidence. Sharp."), is_guess("B (No), probably: Sharp.")
    (True, False)
    """
    return any(say("choice.guess") in reason for say in (findings.ENGLISH, findings.CHINESE))


def fact(look: Look, axis: str, say: Phrases, *, denied: bool = False) -> str:
    """Say in one sentence how much of an axis there is, beside what photographs have. Detail has to be judged.

    Where the answer has `denied` a fault, a slight one is the most that there is.
    """
    view = look.view
    if axis == "colour tone":
        red, yellow = view.measured["cast_red_green"], view.measured["cast_yellow_blue"]
        far = max(abs(red), abs(yellow))
        tone = ("red" if red > 0 else "green") if far == abs(red) else ("yellow" if yellow > 0 else "blue")
        return say("sentence.tone", tone=say(f"tone.{tone if far > _NEUTRAL else 'none'}"))
    if axis in _LIGHT - {"lighting"}:
        named = _spoiled(look, lambda each: each.fault in _OF_LIGHT.get(axis, ()), say, denied=denied)
        return named or _exposure(look, axis, say)
    is_blurred = axis == "sharpness" and any(each.category == "Blurs" for each in findings.visible_faults(view))
    if is_blurred or (axis_of(axis).is_fault and axis != "uneven"):
        return _fault(look, "defocus" if is_blurred else axis, say, denied=denied)
    return say("fact.step", name=say(f"axis.{axis}"), step=_step(look.position(axis), axis, say))


def _step(share: float, axis: str, say: Phrases) -> str:
    """Name a place among photographs by its fifth; neither low nor high is what people do not agree to be so."""
    low, high = axis_of(axis).agreed[::-1]
    return say(f"share.{int(np.digitize(share, (0.2, min(_USUAL, low), max(1 - _USUAL, high), 0.8)))}")


def _exposure(look: Look, axis: str, say: Phrases) -> str:
    """Say how the exposure is: on the side that an axis names where that is wrong, else on the side that is worse."""
    odds = {side: support(look, Claim(side, 0.85)) for side in ("underexposure", "overexposure")}
    side = axis if odds.get(axis, 0.0) > 0 else max(odds, key=lambda each: odds[each])
    how_far = int(np.digitize(special.expit(odds[side]), (_RATHER, _TOO)))
    return say("answer.exposure", step=say(f"exposure.{2 + (how_far if side == 'overexposure' else -how_far)}"))


def _spoiled(look: Look, is_meant: Callable[[Found], bool], say: Phrases, *, denied: bool) -> str:
    """Say where and how strong those of the visible faults are that are meant, or return ""."""
    # They are of the whole picture: of a part of it they say nothing.
    meant = [each for each in findings.visible_faults(look.view) if is_meant(each) and look.cells is None]
    items = [findings.item(look.view, each, say) for each in meant]
    if items and denied and all(each.severity == "slight" for each in meant):
        return say("sentence.at_most", items=say("sentence.list").join(items))
    return findings.sentence_of(items, say) if items else ""


def _fault(look: Look, axis: str, say: Phrases, *, denied: bool) -> str:
    fault, category = axis_of(axis), look.category(axis)
    if named := _spoiled(look, lambda each: each.category == category, say, denied=denied):
        return named
    stated = findings.severity_word(look.severity(axis))
    if category and stated not in {"none", findings.severity_word(look.view.severities[category])}:
        return say("sentence.in_part")  # of the whole image it cannot be told
    claim = Claim(axis, 0.85)
    undecided = look.cells is not None or not verdict(look, [claim])
    if fault.composite and undecided and not look.paired and support(look, claim) > 0:
        return say("fact.step", name=say(f"axis.{axis}"), step=_step(look.position(fault.composite), axis, say))
    return findings.sentence_of([say("opening.none", name=say(f"axis.{axis}"))], say)


def choice_reason(
    letter: str, choice: Choice, options: Mapping[str, str], query: str, say: Phrases, quality: float, *,
    by_labels: bool = False,
) -> str:  # fmt: skip
    """Say which option was chosen, how sure that is, and what decided it: a reading, or `by_labels` right answers.

    The rest as for `summary`.
    """
    text, look, topic = options.get(letter, ""), choice.look, choice.topic
    words = findings.summary(look.view, quality, say)
    if by_labels:
        return say.join(say("choice.voted", letter=letter, text=text), words)
    claim = property_in(text) if topic == "distortion" else None
    axis = topic if claim is None else claim.axis
    blind = findings.unjudged_text(look.view, say) if axis in _DETAIL else ""
    if blind or not choice.measured:
        return say.join(blind or unseen(query, say), say("choice.guess"), words if topic == "content" else "")
    if topic == "distortion" and not form("reversed").search(query.casefold()):
        known = claim is not None and claim.axis != "taste"
        sentences = [fact(look, axis, say) if known else words]
        if claim is not None and known and support(look, claim) < 0:
            sentences = [say("choice.unclear"), words]
    else:
        denied = _is_denied(text, predicate(query.casefold()))
        sentences = [fact(look, axis, say, denied=denied), words if topic in {"distortion", "quality"} else ""]
    if look.cells:
        sentences.append(say("sentence.grid_place", place=place_name(query)))
    sureness = _sureness(choice, options, say)
    return say("choice.measured", letter=letter, text=text, sureness=sureness, sentence=say.join(*sentences))


def _is_denied(text: str, claims: Sequence[Claim]) -> bool:
    """Return whether yes or no denies the fault that the last of some claims names, or the lack of a property."""
    says = next((word for word in ("yes", "no") if form(f"says_{word}").match(text.casefold())), "")
    if not says or not claims:
        return False
    return (says == "no") == (axis_of(claims[-1].axis).is_fault == claims[-1].more)


def _sureness(choice: Choice, options: Mapping[str, str], say: Phrases) -> str:
    shares = dict(choice.probabilities)
    share = shares.pop(choice.letter)
    if share >= 0.75:
        return say("choice.sure")
    if share >= 0.55:
        return say("choice.likely")
    second = max(shares, key=lambda letter: shares[letter])
    return say("choice.close", letter=second, text=options.get(second, ""))


def direct_answer(look: Look, query: str, say: Phrases) -> list[str]:
    """Answer an open question about a property in its own terms, in sentences; none when it asks for none."""
    text = " ".join(query.casefold().split())
    is_closed = form("yes_or_no").search(text) is not None
    claims = predicate(text) if is_closed else [topic] if (topic := property_in(text)) else []
    unanswered = {"taste"} if is_closed else {"quality", "distortion", "taste"}
    if not claims or claims[-1].axis in unanswered:
        return []
    if claims[-1].axis in _DETAIL and look.view.unjudged:
        return [findings.unjudged_text(look.view, say)]
    if not is_closed:
        return [(_location if form("where").search(text) else _degree)(look, claims[-1], say)]
    if said := verdict(look, claims):
        return [say(f"answer.{said}")]
    odds = min(support(look, claim) for claim in claims)
    if abs(odds) < _EVEN:
        return [say("answer.unclear"), fact(look, claims[-1].axis, say)]
    sure = ("" if abs(odds) >= 2 else "probably_") + ("agree" if odds >= 0 else "disagree")
    return [say(f"answer.{sure}"), fact(look, claims[-1].axis, say)]


def _location(look: Look, topic: Claim, say: Phrases) -> str:
    key, is_high = shown_by(topic)
    if not key:
        return fact(look, topic.axis, say)
    return say("sentence.at_place", place=findings.where(look.view.measured.maps[key], say, lowest=not is_high))


def _degree(look: Look, topic: Claim, say: Phrases) -> str:
    if topic.axis in _LIGHT:
        return _exposure(look, topic.axis, say)
    is_blur = topic.axis == "sharpness" and not topic.more
    name = say("damage.Blurs" if is_blur else f"axis.{topic.axis}")
    if is_blur or axis_of(topic.axis).is_fault:
        word = look.named_severity(topic.axis) or "none"
        if word == "none" and support(look, topic) > 0:
            word = findings.severity_word(look.severity(topic.axis))
        return say("answer.fault", severity=say(f"severity.{word}"), name=name)
    return say("answer.share", name=name, step=_step(amount(look, topic.axis), topic.axis, say))


def place_name(text: str) -> str:
    """Return the words by which a text names a place, or ""."""
    folded = text.casefold().strip()
    return next((match[0] for words, _ in entries("places") if (match := words.search(folded))), "")
