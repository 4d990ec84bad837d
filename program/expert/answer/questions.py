"""How a question becomes an answer: which option, yes or no, how much; with the reasons.

1. Words are read by the tables of `words.yaml` as claims (`claims`): of a property, how much of it, and of what (the
   image, a part of it, a region). `_yes_or_no` .. `_tones` are the ways in which options answer a question.
2. What is believed of the image (`beliefs.support`) says how surely people agree with each claim: its log-odds.
3. The option of the highest log-odds is chosen; a question without options gets them in words.
4. The same beliefs, and the faults that can be seen (`findings`), say why.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from program.expert.answer import findings
from program.expert.answer.beliefs import MUCH, Look, above, faint, support
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
)
from program.expert.answer.findings import Phrases
from program.expert.answer.planning import is_read, region_pattern, without_options
from program.expert.judge.views import View

_CONTENT = "content"
"""Topic of a question that nothing measured answers."""
_EXPOSURES = frozenset({"exposure", "underexposure", "overexposure"})
_DETAIL = frozenset({"sharpness", "blur", "motion", "defocus", "oversharp", "low resolution"})
_SURENESS = 0.7
"""What log-odds of a claim count as log-odds of an option."""
_SAID_YES, _SUREST = 0.3, 5.0
"""Log-odds of "yes" where nothing can be measured, as askers name what they see; and the most that count."""
_NO_CLAIM = -2.0
"""Log-odds of an option among others that claims nothing."""
_FIRST = 0.8
"""Log-odds by which the fault named first among the findings leads where one of several is asked for."""
_NO_PLACE = 0.5
"""What an option that names no place lacks, in deviations over the cells: objects count as the centre."""
_RATHER, _TOO = 0.5, 0.75
"""Probability of wrong exposure from which it is called rather, and too, dark or bright."""
_SHARE_STEPS = (-2.5, -0.4, 0.4, 2.5)
"""Log-odds of much of a property between "very low", "low", "average", "high" and "very high"."""
_UNDECIDED, _SURE = 0.25, 1.5
"""Log-odds within which an answer could as well be yes as no, and from which one is sure."""

Reading = tuple[str, dict[str, float]]
"""What options are decided on, and the log-odds of each by its letter."""


class ChosenOption(NamedTuple):
    """An option's letter, what it was decided on and of what, and each option's probability."""

    letter: str
    topic: str
    measured: bool
    probabilities: Mapping[str, float]
    look: Look


def answer_choice(view: View, query: str, options: Mapping[str, str], scores: Sequence[float] = ()) -> ChosenOption:
    """Choose an option; tools' scores count, too."""
    texts = {letter: " ".join(text.casefold().strip(" .。!！").split()) for letter, text in options.items()}
    question = without_options(query.casefold(), texts.values())
    look = Look(view, scores, cells_in(question, with_subject=False))
    # Sorted, so that neither the order nor the letters decide anything.
    ordered = dict(sorted(texts.items(), key=lambda pair: pair[1]))
    for read in (_yes_or_no, _claims, _places, _tones):
        if reading := read(look, question, ordered):
            return _choose(reading, dict.fromkeys(ordered, look))
    return _choose((_CONTENT, dict.fromkeys(ordered, 0.0)), dict.fromkeys(ordered, look))


def choose_region(looks: Mapping[str, Look], query: str, names: Mapping[str, str]) -> ChosenOption | None:
    """Choose the region, by option letter, that a question asks for; None if it compares none."""
    question = without_options(query.casefold(), map(str.casefold, names.values()))
    for name in names.values():
        question = region_pattern(name).sub(" ", question)
    claims = predicate(question)
    if not (form("which").search(question) and claims) or claims[0].axis == "taste":
        return None
    return _choose((claims[0].axis, {letter: _agreed(look, claims) for letter, look in looks.items()}), looks)


def _choose(reading: Reading, looks: Mapping[str, Look]) -> ChosenOption:
    topic, odds = reading
    shares = special.softmax(_SURENESS * np.array(list(odds.values())))
    probabilities = dict(zip(odds, shares.tolist(), strict=True))
    letter = max(probabilities, key=probabilities.__getitem__)
    return ChosenOption(letter, topic, topic not in {_CONTENT, "taste"}, probabilities, looks[letter])


def _agreed(look: Look, claims: Iterable[Claim]) -> float:
    """Return the log-odds that people agree with all of some claims: those of the least likely one."""
    return min(support(look, claim) for claim in claims)


def _told_by(claim: Claim) -> str:
    """Return the axis that a claim is told by: who asks for blur is told of blur."""
    return "blur" if claim.axis == "sharpness" and not claim.more else claim.axis


def _yes_or_no(look: Look, question: str, options: Mapping[str, str]) -> Reading | None:
    """Yes claims what the question does, no denies it."""
    yes = [letter for letter, text in options.items() if form("says_yes").match(text)]
    no = [letter for letter, text in options.items() if form("says_no").match(text)]
    if len(yes) != 1 or len(no) != 1:
        return None
    topic, agreed = _CONTENT, _SAID_YES
    if claims := predicate(question):
        topic, agreed = _told_by(claims[-1]), float(np.clip(_agreed(look, claims), -_SUREST, _SUREST))
    return topic, {**dict.fromkeys(options, -_SUREST), yes[0]: agreed, no[0]: 0.0}


def _claims(look: Look, question: str, options: Mapping[str, str]) -> Reading | None:
    """Each option claims a property or a fault: degrees of one share it out, of several each is for itself."""
    topic, own = property_in(question), {letter: _claimed(text) for letter, text in options.items()}
    axes = {claim.axis for claims in own.values() for claim in claims}
    if len(axes) <= 1 or axes <= _EXPOSURES:
        axis = min(axes) if axes else topic.axis if topic else "quality"
        graded = {letter: _degree(text, axis, topic, own, options) for letter, text in options.items()}
        degrees = map(degree_in, options.values())
        is_of_amounts = all(degree is not None and degree.kind == "amount" for degree in degrees)
        if len(axes) > 1 or not is_of_amounts:  # unlike "slight blur" and "strong blur"
            graded |= {letter: claims for letter, claims in own.items() if claims}
        if all(graded.values()):
            own = graded
    firsts = {letter: claims[0] for letter, claims in own.items() if claims}
    if len(firsts) == len(options) and len({claim.axis for claim in firsts.values()}) == 1:
        return _shared_out(look, topic, firsts)
    return _each_for_itself(look, question, options, own)


def _claimed(text: str) -> list[Claim]:
    """Return what an option claims: of several things joined by "or", each; a bare topic that it is wrong."""
    claims = []
    for part in form("or").split(text):
        for claim in (terms_in(part) or predicate(part))[:1]:
            if claim.kind == "term":
                claims.append(claim)
            elif wrong := axis_of(claim.axis).wrong:
                claims.append(Claim(wrong, MUCH, kind="topic"))
    return claims


def _degree(
    text: str, axis: str, topic: Claim | None, own: Mapping[str, list[Claim]], options: Mapping[str, str]
) -> list[Claim]:
    """Return what a word of degree alone claims of an axis, beside what other options claim on their `own`."""
    degree, beside = degree_in(text), [claim for claims in own.values() for claim in claims]
    if degree is None:
        return []
    is_merit = degree.kind == "merit"
    is_too = not beside and any(map(form("too").search, options.values()))
    if (is_too and axis in {"lighting", "brightness"}) or (axis in _EXPOSURES and (beside or is_too)):
        side = "overexposure" if degree.more else "underexposure"
        return [Claim("exposure", 0.5) if is_merit else Claim(side, MUCH)]
    if is_merit and beside and axis == "brightness":
        return [Claim(axis, 0.5)]  # beside "dark" and "bright", what is good lies between them
    is_turned = axis_of(axis).is_fault
    if not is_merit:
        asked = [topic] if topic and topic.axis == axis else beside
        is_turned = bool(asked) and not any(claim.more for claim in asked)
    return [Claim(axis, 1 - degree.place if is_turned else degree.place)]


def _shared_out(look: Look, topic: Claim | None, claims: Mapping[str, Claim]) -> Reading | None:
    """Options are places on one axis: each claims the stretch around its place."""
    axis = next(iter(claims.values())).axis
    places = {letter: claim.place for letter, claim in claims.items()}
    if topic is not None and axis == "sharpness" and _told_by(topic) == "blur":
        axis, places = "blur", {letter: 1 - place for letter, place in places.items()}
    at = np.unique(np.round(list(places.values()), 3))
    if len(at) < 2:
        return None
    bounds = 0.5 * (at[:-1] + at[1:])
    if not axis_of(axis).is_fault:
        # Degrees of a fault mean what they say; of a property they are relative to what is usual.
        bounds = 0.5 * (bounds + np.arange(1, len(at)) / len(at))
    beyond = special.expit([above(look, axis, bound) for bound in bounds])
    masses = -np.diff(np.concatenate([[1.0], np.minimum.accumulate(beyond), [0.0]]))
    nearest = {letter: int(np.abs(at - place).argmin()) for letter, place in places.items()}
    count = Counter(nearest.values())
    return axis, {letter: float(np.log(masses[n] / count[n] + 1e-6)) / _SURENESS for letter, n in nearest.items()}


def _each_for_itself(
    look: Look, question: str, options: Mapping[str, str], own: Mapping[str, list[Claim]]
) -> Reading | None:
    """Each option claims a fault or a property; "no distortion" holds when no other does."""
    sign = -1.0 if form("reversed").search(question) else 1.0
    none = [letter for letter, text in options.items() if form("says_none").match(text)]
    claimed = {letter: claims for letter, claims in own.items() if claims and letter not in none}
    if len(claimed) < (1 if none else 2):
        return None
    odds = dict.fromkeys(options, _NO_CLAIM)
    for letter, claims in claimed.items():
        odds[letter] = max(sign * support(look, claim) for claim in claims)
    odds |= dict.fromkeys(none, 0.0)
    first = look.told("distortion")[:1] if sign > 0 else []
    named = [letter for letter, claims in claimed.items() if _are_about(look, claims, first)]
    if named:
        odds[max(named, key=odds.__getitem__)] = _FIRST + max(odds.values())
    is_exposure = all(claim.axis in _EXPOSURES for claims in own.values() for claim in claims)
    return "exposure" if is_exposure else "distortion", odds


def _are_about(look: Look, claims: Iterable[Claim], first: list[findings.VisibleFault]) -> bool:
    """Return whether some claims are about the fault that the findings name first, if any."""
    for claim in claims if first else ():
        is_of_family = claim.kind == "topic" and first[0].category == look.category(claim.axis)
        if is_of_family or look.told(claim.axis)[:1] == first:
            return True
    return False


def _places(look: Look, question: str, options: Mapping[str, str]) -> Reading | None:
    """Options are places: each claims that what is asked after is there."""
    topic, cells = property_in(question), {letter: cells_in(text) for letter, text in options.items()}
    if topic is None or not axis_of(topic.axis).map or not any(cells.values()):
        return None
    grid, sign = np.array(look.view.measured.maps[axis_of(topic.axis).map]), 1 if _shows_by_high(topic) else -1
    deviations = sign * (grid - grid.mean()) / (grid.std() + 1e-6)
    odds = {}
    for letter, place in cells.items():
        here = [deviations[cell] for cell in place or ((1, 1),)]
        odds[letter] = float(np.mean(here)) - (0 if place else _NO_PLACE)
    return topic.axis, odds


def _shows_by_high(claim: Claim) -> bool:
    """Return whether the map of a claim's axis shows it by high values."""
    axis = axis_of(claim.axis)
    return not axis.falls if axis.is_fault else claim.more


def _tones(look: Look, question: str, options: Mapping[str, str]) -> Reading | None:
    """Options are colours: each claims to be near the picture's mean colour."""
    n = look.view.measured
    own = np.array([2.5 * n["cast_red_green"], 2.5 * n["cast_yellow_blue"], n["brightness"]])
    odds = {}
    for letter, text in options.items():
        for words, row in entries("tones"):
            if words.search(text):
                odds[letter] = -4 * float(np.linalg.norm(own - row["colour"])) / _SURENESS
    return ("tone", {**dict.fromkeys(options, -_SUREST), **odds}) if len(odds) > 1 else None


# The words of an answer


def unseen(query: str, phrases: Phrases) -> str:
    """Say that measurements do not answer a question: its subject or its language is the reason."""
    return phrases.say("sentence.unseen" if is_read(query) else "sentence.unread")


def fact(look: Look, axis: str, phrases: Phrases, *, denied: bool = False) -> str:
    """Say in one sentence how much of an axis there is, beside what photographs have.

    Where the answer has `denied` a fault, a slight one is the most that there is.
    """
    visible, category = look.told(axis), look.category(axis)
    if axis in _EXPOSURES and not visible:
        return _exposure(look, axis, phrases)
    is_property = axis == "uneven" or not axis_of(axis).is_fault
    if is_property and not (visible and axis in {"sharpness", "exposure"}):
        return _amount(look, axis, phrases)
    name = phrases.say(f"axis.{axis}")
    if not visible and above(look, axis) > 0:
        visible = faint(look, [category]) if category else []
        if not visible:
            return phrases.say("sentence.signs", name=name)
    if not visible:
        return findings.sentence_of([phrases.say("opening.none", name=name)], phrases)
    items = [findings.item(look.view, each, phrases) for each in visible]
    if denied and all(each.severity == "slight" for each in visible):
        return phrases.say("sentence.at_most", items=phrases.say("sentence.list").join(items))
    return findings.sentence_of(items, phrases)


def _exposure(look: Look, axis: str, phrases: Phrases) -> str:
    """Say how the exposure is: on the side that an axis names, if wrong, else on the worse."""
    odds = {side: above(look, side) for side in ("underexposure", "overexposure")}
    side = axis if odds.get(axis, 0.0) > 0 else max(odds, key=odds.__getitem__)
    if named := look.told("exposure"):
        side = "underexposure" if named[0].fault == "too dark" else "overexposure"
    how_far = int(np.digitize(special.expit(odds[side]), (_RATHER, _TOO)))
    step = 2 - how_far if side == "underexposure" else 2 + how_far
    return phrases.say("answer.exposure", step=phrases.say(f"exposure.{step}"))


def _amount(look: Look, axis: str, phrases: Phrases) -> str:
    """Say how much there is of an axis, in a word."""
    name, odds = phrases.say(f"axis.{axis}"), above(look, axis)
    if not axis_of(axis).is_fault or axis == "uneven":
        step = phrases.say(f"share.{int(np.digitize(odds, _SHARE_STEPS))}")
        return phrases.say("answer.share", name=name, step=step)
    word = look.stated(axis)
    if word == "none" and odds > 0:
        word = "slight"
    return phrases.say("answer.fault", severity=phrases.say(f"severity.{word}"), name=name)


def is_guessed(choice: ChosenOption, options: Mapping[str, str]) -> bool:
    """Return whether nothing that can be measured speaks for the option that was chosen."""
    return not choice.measured or bool(choice.look.view.unjudged and _axis_of(choice, options) in _DETAIL)


def _axis_of(choice: ChosenOption, options: Mapping[str, str]) -> str:
    """Return the axis that a choice was made on: among claims that of the chosen one."""
    claim = property_in(options.get(choice.letter, ""))
    return _told_by(claim) if choice.topic == "distortion" and claim else choice.topic


def choice_reason(
    choice: ChosenOption, options: Mapping[str, str], query: str, phrases: Phrases, quality: float
) -> str:
    """Say which option was chosen, how sure that is, and which reading decided it."""
    text, look, axis = options.get(choice.letter, ""), choice.look, _axis_of(choice, options)
    words = findings.summary(look.view, quality, phrases)
    if is_guessed(choice, options):
        why = findings.unjudged_text(look.view, phrases) if axis in _DETAIL else ""
        about = words if choice.topic == _CONTENT else ""
        return phrases.join(why or unseen(query, phrases), phrases.say("choice.guess"), about)
    is_reversed = form("reversed").search(query.casefold()) is not None
    sentences = [words]
    if axis == "quality":
        sentences = [fact(look, axis, phrases), words]
    elif axis not in {"distortion", "tone", "taste"}:
        sentences = [fact(look, axis, phrases, denied=_is_denied(text, predicate(query.casefold())))]
        is_told = bool(look.told(axis)) or is_reversed
        if choice.topic == "distortion" and not is_told and _agreed(look, _claimed(text.casefold())) < 0:
            sentences = [phrases.say("choice.unclear"), words]
    if look.cells:
        sentences.append(phrases.say("sentence.grid_place", place=_place_name(query)))
    return _stated(choice, options, phrases.join(*sentences), phrases)


def region_reason(choice: ChosenOption, looks: Mapping[str, Look], names: Mapping[str, str], phrases: Phrases) -> str:
    """Say which region was chosen, how sure that is, and what decided it in each."""
    sentences = {}
    for letter, look in looks.items():
        if choice.topic == "quality":
            sentences[letter] = findings.region_sentence(look.view, phrases)
        else:
            sentences[letter] = fact(look, choice.topic, phrases)
    chosen = _stated(choice, names, sentences.pop(choice.letter), phrases)
    others = [findings.name_region(names[letter], sentence, phrases) for letter, sentence in sentences.items()]
    return phrases.join(chosen, *others)


def _stated(choice: ChosenOption, options: Mapping[str, str], sentence: str, phrases: Phrases) -> str:
    """Say which option was chosen, how surely, and why."""
    shares = dict(choice.probabilities)
    share = shares.pop(choice.letter)
    if share >= 0.55:
        sureness = phrases.say("choice.sure" if share >= 0.75 else "choice.likely")
    else:
        second = max(shares, key=shares.__getitem__)
        sureness = phrases.say("choice.close", letter=second, text=options.get(second, ""))
    text = options.get(choice.letter, "")
    return phrases.say("choice.measured", letter=choice.letter, text=text, sureness=sureness, sentence=sentence)


def labelled_reason(letter: str, view: View, options: Mapping[str, str], phrases: Phrases, quality: float) -> str:
    """Say which option similar photographs' right answers chose, and what the image is like."""
    chosen = phrases.say("choice.voted", letter=letter, text=options[letter])
    return phrases.join(chosen, findings.summary(view, quality, phrases))


def _is_denied(text: str, claims: Sequence[Claim]) -> bool:
    """Return whether yes or no denies the fault that the last of some claims names, or a lack."""
    says_yes, says_no = (form(f"says_{word}").match(text.casefold()) for word in ("yes", "no"))
    return bool(claims and (says_yes or says_no)) and _names_fault(claims[-1]) != bool(says_yes)


def _names_fault(claim: Claim) -> bool:
    return axis_of(claim.axis).is_fault == claim.more


def direct_answer(look: Look, query: str, phrases: Phrases) -> list[str]:
    """Answer an open question about a property in its own terms; nothing if it asks for none."""
    text = " ".join(query.casefold().split())
    is_closed = form("yes_or_no").search(text) is not None and not _names_both_sides(text)
    claims, unanswered = predicate(text), {"taste"}
    if not is_closed:
        claims, unanswered = terms_in(text)[:1] or predicate(text), {"distortion", "taste"}
        if not form("how").search(text):
            unanswered.add("quality")  # what the findings tell
    if not claims or claims[-1].axis in unanswered:
        return []
    last = claims[-1]
    if last.axis in _DETAIL and look.view.unjudged:
        return [findings.unjudged_text(look.view, phrases)]
    if is_closed:
        return _verdict(look, claims, phrases)
    if form("where").search(text) and axis_of(last.axis).map:
        cells = look.view.measured.maps[axis_of(last.axis).map]
        place = findings.place_phrase(cells, phrases, lowest=not _shows_by_high(last))
        return [phrases.say("sentence.at_place", place=place)]
    if last.axis in {"lighting", *_EXPOSURES}:
        return [_exposure(look, last.axis, phrases)]
    return [_amount(look, _told_by(last), phrases)]


def _names_both_sides(text: str) -> bool:
    """Return whether a question offers two sides of one property ("warm or cool")."""
    terms = terms_in(text) if form("alternatives").search(text) else []
    is_one = len({claim.axis for claim in terms}) == 1 or all(claim.axis in _EXPOSURES for claim in terms)
    return is_one and len({(claim.axis, claim.more) for claim in terms}) > 1


def _verdict(look: Look, claims: Sequence[Claim], phrases: Phrases) -> list[str]:
    """Say yes or no, how surely, and why where the findings do not say it themselves."""
    last, odds = claims[-1], _agreed(look, claims)
    stated, is_told = look.stated(last.axis), look.category(last.axis) is not None
    why = fact(look, _told_by(last), phrases)
    if last.axis != "distortion" and stated == "slight":
        return [phrases.say("answer.slightly" if _names_fault(last) else "answer.mostly")]
    if stated != "none" or (is_told and odds < -_SURE):
        return [phrases.say("answer.agree" if odds >= 0 else "answer.disagree")]
    if is_told and _names_fault(last) and odds > 0 and not (look.paired or look.cells):
        return [phrases.say("answer.slightly"), why]  # it is there, but does not stand out
    answer = "agree" if odds >= 0 else "disagree"
    if abs(odds) < _UNDECIDED:
        answer = "unclear"
    elif abs(odds) < _SURE:
        answer = f"probably_{answer}"
    return [phrases.say(f"answer.{answer}"), why]


def _place_name(text: str) -> str:
    """Return the words by which a text names a place, or ""."""
    folded = text.casefold().strip()
    return next((match[0] for words, _ in entries("places") if (match := words.search(folded))), "")
