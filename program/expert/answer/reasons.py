"""Why the expert answers as it does, in sentences: what was measured, how strong, where, and how sure that makes it."""

from collections.abc import Mapping, Sequence

import numpy as np

from program.expert.answer.findings import (
    POOR,
    PRESENT,
    Found,
    Look,
    amount,
    describe,
    found,
    is_changed,
    item,
    severity_word,
    support,
    undetailed,
    verdict,
    where,
)
from program.expert.answer.planning import is_read
from program.expert.answer.questions import Choice, predicate, property_in, shown_by
from program.expert.answer.vocabulary import Claim, Phrases, axis_of, capitalised, form, place_name, uncapitalised
from program.expert.judge.faults import KINDS, MOST, kind_of, probability_of, sharpness_of
from program.expert.judge.quality import Belief
from program.expert.judge.views import View, position

_DETAIL = frozenset({"sharpness", "motion", "defocus", "oversharp"})
_LIGHT = frozenset({"overexposure", "underexposure", "exposure", "lighting"})
_RICH, _NEUTRAL = 0.7, 0.02
"""The position among natural photographs from which colours are rich, and casts without a colour to name."""
_EVEN = 0.25
"""Log-odds within which an answer could as well be yes as no."""
_CLEAR = 0.6
"""Probability from which a subject is called sharp or not, and an exposure right."""


def unseen(query: str, say: Phrases) -> str:
    """Say that measurements do not answer a question: its subject or its language is the reason."""
    return say("sentence.unseen" if is_read(query) else "sentence.unread")


def fact(look: Look, axis: str, say: Phrases) -> str:
    """Say in one sentence how much of an axis there is, beside what photographs have. Detail has to be judged."""
    view = look.view
    if axis == "colour tone":
        red, yellow = view.measured["cast_red_green"], view.measured["cast_yellow_blue"]
        far = max(abs(red), abs(yellow))
        tone = ("red" if red > 0 else "green") if far == abs(red) else ("yellow" if yellow > 0 else "blue")
        return say("sentence.tone", tone=say(f"tone.{tone if far > _NEUTRAL else 'none'}"))
    if axis in _LIGHT:
        return _exposure(look, say)
    is_blurred = axis == "sharpness" and any(each.category == "Blurs" for each in found(view))
    if is_blurred or (axis_of(axis).is_fault and axis != "uneven"):
        return _fault(look, "defocus" if is_blurred else axis, say)
    return say("fact.step", name=say(f"axis.{axis}"), step=_step(look.position(axis), say))


def _step(share: float, say: Phrases) -> str:
    return say(f"share.{int(np.clip(share * 5, 0, 4))}")


def _exposure(look: Look, say: Phrases) -> str:
    step = int(np.digitize(amount(look, "exposure"), (0.25, 0.4, 0.6, 0.75)))
    return say("answer.exposure", step=say(f"exposure.{step}"))


def _fault(look: Look, axis: str, say: Phrases) -> str:
    fault, category = axis_of(axis), look.category(axis)
    if told := [item(look.view, each, say) for each in found(look.view) if each.category == category]:
        return say("sentence.spoiled", items=capitalised(say("sentence.list").join(told)))
    if category and severity_word(look.severity(axis)) != severity_word(look.view.severities[category]):
        return say("sentence.in_part")  # of the whole image it cannot be told
    if fault.composite and not look.paired and look.position(fault.composite) >= fault.visible_from:
        return say("fact.step", name=say(f"axis.{axis}"), step=_step(look.position(fault.composite), say))
    return say("sentence.spoiled", items=capitalised(say("opening.none", name=say(f"axis.{axis}"))))


def choice_reason(
    letter: str, choice: Choice, options: Mapping[str, str], query: str, say: Phrases, quality: float
) -> str:
    """Say which option was chosen, how sure that is, and the reading that decided it; the rest as for `summary`."""
    text, look, topic = options.get(letter, ""), choice.look, choice.topic
    words = summary(look.view, quality, say)
    if letter != choice.letter:
        return say.join(say("choice.voted", letter=letter, text=text), words)
    claim = property_in(text) if topic == "distortion" else None
    axis = topic if claim is None else claim.axis
    blind = undetailed(look.view, say) if axis in _DETAIL else ""
    if blind or not choice.measured:
        return say.join(blind or unseen(query, say), say("choice.guess"), words if topic == "content" else "")
    if topic == "distortion" and not form("reversed").search(query.casefold()):
        known = claim is not None and claim.axis != "taste"
        sentences = [fact(look, axis, say) if known else words]
        if claim is not None and known and support(look, claim) < 0:
            sentences = [say("choice.unclear"), words]
    else:
        sentences = [fact(look, axis, say), words if topic in {"distortion", "quality"} else ""]
    if look.cells:
        sentences.append(say("sentence.grid_place", place=place_name(query)))
    sureness = _sureness(choice, options, say)
    return say("choice.measured", letter=letter, text=text, sureness=sureness, sentence=say.join(*sentences))


def _sureness(choice: Choice, options: Mapping[str, str], say: Phrases) -> str:
    shares = dict(choice.probabilities)
    share = shares.pop(choice.letter)
    if share >= 0.75:
        return say("choice.sure")
    if share >= 0.55:
        return say("choice.likely")
    second = max(shares, key=lambda letter: shares[letter])
    return say("choice.close", letter=second, text=options.get(second, ""))


def direct_answer(look: Look, query: str, say: Phrases) -> str:
    """Answer an open question about a property in its own terms, or return "" when it asks for none."""
    text = " ".join(query.casefold().split())
    is_closed = form("yes_or_no").search(text) is not None
    claims = predicate(text) if is_closed else [topic] if (topic := property_in(text)) else []
    unanswered = {"taste"} if is_closed else {"quality", "distortion", "taste"}
    if not claims or claims[-1].axis in unanswered:
        return ""
    if claims[-1].axis in _DETAIL and look.view.unjudged:
        return undetailed(look.view, say)
    if not is_closed:
        return (_location if form("where").search(text) else _degree)(look, claims[-1], say)
    if said := verdict(look, claims):
        return say(f"answer.{said}")
    odds = min(support(look, claim) for claim in claims)
    if abs(odds) < _EVEN:
        return say.join(say("answer.unclear"), fact(look, claims[-1].axis, say))
    sure = ("" if abs(odds) >= 2 else "probably_") + ("agree" if odds >= 0 else "disagree")
    return say.join(say(f"answer.{sure}"), fact(look, claims[-1].axis, say))


def _location(look: Look, topic: Claim, say: Phrases) -> str:
    key, is_high = shown_by(topic)
    if not key:
        return fact(look, topic.axis, say)
    return say("sentence.at_place", place=where(look.view.measured.maps[key], say, lowest=not is_high))


def _degree(look: Look, topic: Claim, say: Phrases) -> str:
    if topic.axis in _LIGHT:
        return _exposure(look, say)
    is_blur = topic.axis == "sharpness" and not topic.more
    name = say("damage.Blurs" if is_blur else f"axis.{topic.axis}")
    if is_blur or axis_of(topic.axis).is_fault:
        word = severity_word(look.severity(topic.axis))
        return say("answer.fault", severity=say(f"severity.{word}"), name=name)
    return say("answer.share", name=name, step=_step(amount(look, topic.axis), say))


def summary(view: View, quality: float, say: Phrases) -> str:
    """Say in few words what spoils an image, the worst first; where nothing does, what is good about it.

    `quality` is what the image is believed to be, 1..5.
    """
    if any(view.shift):
        by = say("sentence.pair").join(
            say(f"shift.{axis}{int(np.sign(size))}", size=abs(size))
            for axis, size in zip("xy", view.shift, strict=True)
            if size
        )
        besides = found(view.aligned) or view.aligned.displaced >= PRESENT
        told = summary(view.aligned, quality, say) if besides else ""
        return say.join(say("sentence.shifted", by=by), told)
    there = found(view)
    items = [item(view, each, say) for each in there]
    if view.difference is not None:
        return _changes(view, there, items, say)
    if view.unjudged:
        return undetailed(view, say)
    if not KINDS[kind := kind_of(view)]:
        return say("sentence.kind", kind=say(f"kind.{kind}"))
    sharp, blurred = sharpness_of(view), any(each.category == "Blurs" for each in there)
    if sharp is not None and sharp <= 1 - _CLEAR and not blurred and len(items) < MOST:
        items.append(say("sentence.unsharp"))  # what made it so is not clear
    if items:
        return say("sentence.spoiled", items=capitalised(say("sentence.list").join(items)))
    if quality < POOR:
        return say("sentence.unexplained")
    good = say("sentence.and").join(say(f"strength.{name}") for name in _strengths(view))
    return say("sentence.spoiled", items=capitalised(good)) if good else say("sentence.clean")


def _changes(view: View, there: Sequence[Found], items: list[str], say: Phrases) -> str:
    if view.displaced >= PRESENT:
        place = sum(view.severities[each.category] > view.displaced for each in there)
        words = {"severity": say(f"severity.{severity_word(view.displaced)}"), "name": say("change.spatial")}
        items = [*items[:place], say("item.plain", **words), *items[place:]]
    if not items:
        return say("sentence.differs" if is_changed(view) else "sentence.same")
    return say("sentence.changed", items=say("sentence.list").join(items[:MOST]))


def _strengths(view: View) -> list[str]:
    """Return what is good about a photograph with nothing wrong."""
    wrong = probability_of(view, "too dark", "too bright", "blown highlights", "crushed shadows")
    good = {
        "sharp": (sharpness_of(view) or 0.0) >= _CLEAR, "exposed": wrong < 1 - _CLEAR,
        "colour": position(view, "colour") > _RICH,
    }  # fmt: skip
    return [name for name, is_so in good.items() if is_so]


def details(view: View, belief: Belief, scores: Sequence[tuple[str, float]], say: Phrases) -> str:
    """Quote the measurements, the tools' scores, the score believed in with its width, and how familiar that is."""
    listed = ", ".join(f"{tool} {score:.2f}" for tool, score in scores)
    basis = say("grounds.paired" if view.difference is not None else "grounds.alone")
    familiarity = "grounds.unlike" if belief.novelty > 0.5 else "grounds.usual"
    return say.join(
        *(describe(view, each, say) for each in found(view)),
        say("sentence.scores", listed=listed) if scores else "",
        say(familiarity, basis=basis, mean=belief.mean, deviation=belief.deviation),
    )


def region_summary(region: str, view: View, say: Phrases) -> str:
    """Say what stands out in one region, cut out and measured by itself."""
    worst = found(view)[:1]
    sentence = say("sentence.spoiled", items=item(view, worst[0], say)) if worst else say("sentence.clean")
    return say("sentence.region", region=region, sentence=uncapitalised(sentence))
