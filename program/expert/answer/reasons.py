"""Why the expert answers as it does, in sentences: what was measured, how strong, where, and how sure that makes it."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from program.expert.answer.amounts import Look, amount, support, verdict
from program.expert.answer.findings import (
    POOR,
    PRESENT,
    describe,
    is_changed,
    item,
    present,
    severity_word,
    undetailed,
    where,
)
from program.expert.answer.phrases import Phrases, capitalised, uncapitalised
from program.expert.answer.questions import Choice, predicate, shown_by
from program.expert.answer.relevance import is_read
from program.expert.answer.scales import property_in
from program.expert.answer.vocabulary import Claim, axis_of, form
from program.expert.answer.wording import place_name
from program.expert.judge.attributes import position
from program.expert.judge.quality import Belief
from program.expert.judge.views import View
from signatures.schemas import DistortionCategory

__all__ = ("choice_reason", "details", "direct_answer", "fact", "region_summary", "summary", "unseen")

_DETAIL = frozenset({"sharpness", "motion", "defocus", "oversharp"})
_LIGHT = frozenset({"overexposure", "underexposure", "exposure", "lighting"})
_MOST = 3
"""Distortions that are named."""
_TRAITS: Mapping[str, DistortionCategory] = {
    "sharpness": "Blurs", "lighting": "Brightness change", "colour": "Color distortions", "contrast": "Contrast"
}  # fmt: skip
"""Properties that are worth a word, and the distortion that says more of each."""
_HIGH, _LOW, _GOOD = 0.7, 0.25, 3.5
"""Positions among natural photographs from which they are, and the quality from which a low one is no fault."""
_NEUTRAL, _GREY, _BURNT = 0.02, 0.01, 0.12
"""Casts and saturation without a colour to name; the place of a claim that asks for much of a fault; the share of
pixels near white from which no light is called good."""


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
    if axis_of(axis).is_fault and axis != "uneven":
        return _fault(look, axis, say)
    return say("fact.step", name=say(f"axis.{axis}"), step=_step(look.position(axis), say))


def _step(share: float, say: Phrases) -> str:
    return say(f"share.{int(np.clip(share * 5, 0, 4))}")


def _exposure(look: Look, say: Phrases) -> str:
    step = int(np.digitize(amount(look, "exposure"), (0.25, 0.4, 0.6, 0.75)))
    return say("answer.exposure", step=say(f"exposure.{step}"))


def _fault(look: Look, axis: str, say: Phrases) -> str:
    view, category, fault = look.view, look.category(axis), axis_of(axis)
    if category and severity_word(view.severities[category]) != "none":
        return say("sentence.spoiled", items=capitalised(item(view, category, say)))
    if severity_word(look.severity(axis)) != "none":
        return say("sentence.in_part")  # of the whole image it cannot be told
    if fault.composite and not look.paired and look.position(fault.composite) >= fault.visible_from:
        return say("fact.step", name=say(f"axis.{axis}"), step=_step(look.position(fault.composite), say))
    return say("sentence.spoiled", items=capitalised(say("opening.none", name=say(f"axis.{axis}"))))


def choice_reason(
    letter: str, choice: Choice, options: Mapping[str, str], query: str, say: Phrases, quality: float,
    evidence: Collection[str] = (),
) -> str:  # fmt: skip
    """Say which option was chosen, how sure that is, and the reading that decided it; the rest as for `summary`."""
    text, look, topic = options.get(letter, ""), choice.look, choice.topic
    words = functools.partial(summary, look.view, quality, say)
    if letter != choice.letter:
        return say.join(say("choice.voted", letter=letter, text=text), words(evidence))
    claim = property_in(text) if topic == "distortion" else None
    axis = topic if claim is None else claim.axis
    blind = undetailed(look.view, say) if axis in _DETAIL else ""
    if blind or not choice.measured:
        return say.join(blind or unseen(query, say), say("choice.guess"), words(evidence) if topic == "content" else "")
    if topic == "distortion" and not form("reversed").search(query.casefold()):
        sentences = _diagnosis(look, claim, words, evidence, say)
    elif axis == "sharpness" and "Blurs" in present(look.view):
        sentences = [_fault(look, "defocus", say)]
    else:
        sentences = [fact(look, axis, say), words(evidence) if topic in {"distortion", "quality"} else ""]
    if look.cells:
        sentences.append(say("sentence.grid_place", place=place_name(query)))
    sureness = _sureness(choice, options, say)
    return say("choice.measured", letter=letter, text=text, sureness=sureness, sentence=say.join(*sentences))


def _diagnosis(
    look: Look, claim: Claim | None, words: Callable[[Collection[str]], str], evidence: Collection[str], say: Phrases
) -> list[str]:
    """Say why an option names what is wrong: what spoils the image, or the reading that speaks for this alone."""
    if claim is None or claim.axis == "taste":
        return [words(evidence)]
    category = axis_of(claim.axis).category
    if category and severity_word(look.view.severities[category]) != "none":
        return [words({*evidence, category})]
    return [say("choice.likeliest"), words(evidence)] if support(look, claim) < 0 else [fact(look, claim.axis, say)]


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


def summary(view: View, quality: float, say: Phrases, evidence: Collection[str] = ()) -> str:
    """Say in few words what spoils an image, strongest first; where nothing does, what is good about it and what not.

    `quality` is what the image is believed to be, 1..5; `evidence` names categories that were looked for besides.
    """
    if any(view.shift):
        by = say("sentence.pair").join(
            say(f"shift.{axis}{int(np.sign(size))}", size=abs(size))
            for axis, size in zip("xy", view.shift, strict=True)
            if size
        )
        besides = present(view.aligned) or view.aligned.displaced >= PRESENT
        told = summary(view.aligned, quality, say, evidence) if besides else ""
        return say.join(say("sentence.shifted", by=by), told)
    sought = [c for c, s in view.severities.items() if c in evidence and severity_word(s) != "none"]
    there = sorted({*present(view), *sought}, key=lambda category: -view.severities[category])
    items = [item(view, category, say) for category in there[:_MOST]]
    if view.difference is not None:
        if view.displaced >= PRESENT:
            place = sum(view.severities[category] > view.displaced for category in there)
            words = {"severity": say(f"severity.{severity_word(view.displaced)}"), "name": say("change.spatial")}
            items.insert(place, say("item.plain", **words))
        if not items:
            return say("sentence.differs" if is_changed(view) else "sentence.same")
        return say("sentence.changed", items=say("sentence.list").join(items[:_MOST]))
    if view.unjudged:
        return undetailed(view, say)
    strong, weak, usual = _traits(view, quality)
    if items:
        items += [say(f"weakness.{name}") for name in weak if quality < _GOOD][: _MOST - len(items)]
        like = say("sentence.spoiled", items=capitalised(say("sentence.list").join(items)))
        slight = all(severity_word(view.severities[category]) == "slight" for category in there)
        return say.join(like, say("sentence.unexplained") if slight and quality < POOR else "")
    good = say("sentence.pair").join(say(f"strength.{name}") for name in strong)
    bad = say("sentence.pair").join(say(f"weakness.{name}") for name in weak)
    if good and bad:
        like = say("sentence.mixed", good=capitalised(good), bad=bad)
    else:
        alike = say("sentence.usual", items=say("sentence.pair").join(say(f"usual.{name}") for name in usual))
        like = say("sentence.spoiled", items=capitalised(good or bad)) if good or bad else alike if usual else ""
    return say.join(say("sentence.clean" if quality >= POOR else "sentence.unexplained"), like)


@functools.lru_cache(maxsize=1024)  # an image is asked about several times, and this takes as long as all the rest
def _traits(view: View, quality: float) -> tuple[list[str], list[str], list[str]]:
    """Return properties that are high among natural photographs, low, and neither: up to two of each."""
    # What the findings say or deny is not said again: an image without blur is not soft, nor a blurred one sharp.
    places = {
        name: position(view, name)
        for name, category in _TRAITS.items()
        if severity_word(view.severities[category]) == "none"
    }
    if places.get("sharpness", 1.0) < 0.5:
        del places["sharpness"]
    if places.get("lighting", 0.0) > 0.5 and view.measured["light_share"] > _BURNT:
        del places["lighting"]
    if view.measured["saturation"] < _GREY:
        places.pop("colour", None)
    high = sorted((name for name in places if places[name] > _HIGH and quality >= POOR), key=lambda n: -places[n])
    low = sorted((name for name in places if places[name] < _LOW), key=lambda n: places[n])
    usual = [name for name in places if name != "sharpness" and _LOW <= places[name] <= _HIGH]
    return high[:2], low[:2], usual[:2]


def details(view: View, belief: Belief, scores: Sequence[tuple[str, float]], say: Phrases) -> str:
    """Quote the measurements, the tools' scores, the score believed in with its width, and how familiar that is."""
    listed = ", ".join(f"{tool} {score:.2f}" for tool, score in scores)
    basis = say("grounds.paired" if view.difference is not None else "grounds.alone")
    familiarity = "grounds.unlike" if belief.novelty > 0.5 else "grounds.usual"
    return say.join(
        *(describe(view, category, say) for category in present(view)),
        say("sentence.scores", listed=listed) if scores else "",
        say(familiarity, basis=basis, mean=belief.mean, deviation=belief.deviation),
    )


def region_summary(region: str, view: View, say: Phrases) -> str:
    """Say what stands out in one region, cut out and measured by itself."""
    strongest = present(view)[:1]
    sentence = say("sentence.spoiled", items=item(view, strongest[0], say)) if strongest else say("sentence.clean")
    return say("sentence.region", region=region, sentence=uncapitalised(sentence))
