"""Why the expert answers as it does, in sentences: what was measured, how strong, where, and how sure that makes it."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from program.expert.answer.amounts import FAULTS, Look, amount, support
from program.expert.answer.findings import PRESENT, describe, present, severity_word, spread, undetailed, where
from program.expert.answer.phrases import Phrases, capitalised, uncapitalised
from program.expert.answer.questions import GRIDS, Choice, predicate, question_of
from program.expert.answer.relevance import is_read
from program.expert.answer.scales import property_in
from program.expert.answer.wording import Claim, place_name, terms_in, topic_in
from program.expert.judge.quality import Belief
from program.expert.judge.views import View
from signatures.schemas import DistortionCategory

__all__ = ("choice_reason", "direct_answer", "fact", "grounds", "level_word", "region_summary", "summary", "unseen")

_DETAIL = frozenset({"sharpness", "motion", "defocus", "oversharp"})
_LIGHT = frozenset({"overexposure", "underexposure", "exposure", "lighting"})
_ASKING = frozenset("is are was were does do did has have can isn't aren't doesn't don't".split())
"""First words of yes-or-no questions."""


def unseen(query: str, say: Phrases) -> str:
    """Say that measurements do not answer a question: its subject or its language is the reason."""
    return say("sentence.unseen" if is_read(query) else "sentence.unread")


def fact(look: Look, axis: str, say: Phrases) -> str:
    """Say in one sentence what was measured for an axis, how it compares and where it is strongest."""
    view = look.view
    if axis in _DETAIL and view.unjudged:
        return undetailed(view, say)
    if axis == "colour tone":
        red, yellow = 100 * view.measured["cast_red_green"], 100 * view.measured["cast_yellow_blue"]
        return say("sentence.tone", red=red, yellow=yellow)
    if axis in _LIGHT:
        return _light(look, say)
    if axis in FAULTS and axis != "uneven":
        return _fault(look, axis, say)
    share, key = look.position(axis), GRIDS[axis][0] if axis in GRIDS else ""
    cells = spread(say(f"map.{key}"), view.measured.maps[key], say) if key and not look.cells else ""
    place = say("fact.place", spread=cells) if cells else ""
    comparison = say(
        _side(share, "fact.higher", "fact.lower"), name=say(f"axis.{axis}"), share=_far(share), place=place
    )
    return capitalised(comparison)


def _side(share: float, above: str, below: str) -> str:
    return above if share >= 0.5 else below


def _far(share: float) -> float:
    """Return the share of photographs on the other side."""
    return share if share >= 0.5 else 1 - share


def _light(look: Look, say: Phrases) -> str:
    n, share = look.view.measured, look.position("brightness")
    return say(
        _side(share, "fact.brighter", "fact.darker"), mean=255 * n["brightness"], share=_far(share),
        dark=n["dark_share"], light=n["light_share"],
    )  # fmt: skip


def _fault(look: Look, axis: str, say: Phrases) -> str:
    view, category = look.view, FAULTS[axis].category
    if axis == "distortion":
        category = max(look.severities, key=lambda c: look.severities[c])
    if look.severities[category] > view.severities[category] and severity_word(view.severities[category]) == "none":
        # The analysis found it in a region; the whole image does not show it.
        return say("sentence.in_part")
    return say.join(describe(view, category, say), _direction(look, axis, say))


def _direction(look: Look, axis: str, say: Phrases) -> str:
    if axis not in {"motion", "defocus"} or support(look, Claim("sharpness", 0.15)) < 0:
        return ""
    one_way = look.position("direction") > FAULTS["motion"].visible_from
    return say("sentence.one_way" if one_way else "sentence.every_way")


def choice_reason(look: Look, letter: str, choice: Choice, options: Mapping[str, str], query: str, say: Phrases) -> str:
    """Say which option was chosen, how sure that is, and the reading that decided it."""
    text = options.get(letter, "")
    if letter != choice.letter:
        return say("choice.voted", letter=letter, text=text)
    axis = choice.topic if choice.topic != "distortion" else _claim_axis(text)
    blind = undetailed(look.view, say) if axis in _DETAIL else ""
    if blind or not choice.measured:
        return say.join(blind or unseen(query, say), say("choice.guess"))
    sentences = [fact(look, axis, say)]
    if axis == "sharpness" and look.view.severities["Blurs"] >= PRESENT:
        sentences.append(describe(look.view, "Blurs", say))
    if look.cells:
        sentences.append(say("sentence.grid_place", place=place_name(query)))
    sureness, sentence = _sureness(choice, letter, options, say), say.join(*sentences)
    return say("choice.measured", letter=letter, text=text, sureness=sureness, sentence=sentence)


def _claim_axis(text: str) -> str:
    claims = terms_in(text)
    if claims:
        return claims[0].axis
    topic = topic_in(text)
    return topic.axis if topic is not None else "distortion"


def _sureness(choice: Choice, letter: str, options: Mapping[str, str], say: Phrases) -> str:
    share = choice.probabilities.get(letter, 0.0)
    others = {other: p for other, p in choice.probabilities.items() if other != letter}
    second = max(others, key=lambda other: others[other], default="")
    if share >= 0.75:
        return say("choice.sure")
    if share >= 0.55 or not second:
        return say("choice.likely")
    return say("choice.close", letter=second, text=options.get(second, ""))


def direct_answer(look: Look, query: str, say: Phrases) -> str:
    """Answer an open question about a property in its own terms, or return "" when it asks for none."""
    text = question_of(query, {}).text
    if _asks_yes_or_no(text):
        claims = predicate(text)
        if not claims or claims[-1].axis == "taste":
            return ""
        if claims[-1].axis in _DETAIL and look.view.unjudged:
            return undetailed(look.view, say)
        odds = min(support(look, claim) for claim in claims)
        verdict = ("" if abs(odds) >= 2 else "probably_") + ("agree" if odds >= 0 else "disagree")
        return say.join(say(f"answer.{verdict}"), fact(look, claims[-1].axis, say))
    topic = property_in(text)
    if topic is None or topic.axis in {"quality", "distortion", "taste"}:
        return ""
    if topic.axis in _DETAIL and look.view.unjudged:
        return undetailed(look.view, say)
    if re.search(r"\bwhere\b|\bwh(?:ich|at) (?:part|area|region|place|side)|哪", text):
        return _location(look, topic, say)
    return say.join(_degree(look, topic, say), fact(look, topic.axis, say))


def _asks_yes_or_no(text: str) -> bool:
    first = text.lstrip("\"' ").split(" ")[0]
    return first in _ASKING or any(word in text for word in ("吗", "是否", "有没有"))


def _location(look: Look, topic: Claim, say: Phrases) -> str:
    if topic.axis not in GRIDS:
        return fact(look, topic.axis, say)
    key, high = GRIDS[topic.axis]
    lowest = not high if topic.axis in FAULTS else high != topic.more
    return say("sentence.at_place", place=where(look.view.measured.maps[key], say, lowest=lowest))


def _degree(look: Look, topic: Claim, say: Phrases) -> str:
    if topic.axis in _LIGHT:
        step = int(np.digitize(amount(look, "exposure"), (0.25, 0.4, 0.6, 0.75)))
        return say("answer.exposure", step=say(f"exposure.{step}"))
    name = say(f"axis.{topic.axis}")
    if topic.axis in FAULTS:
        category = FAULTS[topic.axis].category
        word = severity_word(look.severities[category])
        return say("answer.fault", severity=say(f"severity.{word}"), name=name)
    step = int(np.clip(amount(look, topic.axis) * 5, 0, 4))
    return say("answer.share", name=name, step=say(f"share.{step}"))


def summary(
    view: View, scores: Sequence[tuple[str, float]], say: Phrases, *, limit: int = 2,
    first: Sequence[DistortionCategory] = (), besides: str = "",
) -> str:  # fmt: skip
    """Name the strongest distortions with their readings, or say that there is none; then the tools.

    What `besides` says already is not said again.
    """
    sentences = [undetailed(view, say)]
    categories = list(dict.fromkeys([*first, *present(view)]))[:limit]
    sentences += [describe(view, category, say) for category in categories] or _nothing_present(view, say)
    if scores:
        listed = ", ".join(f"{tool} {score:.2f}" for tool, score in scores)
        sentences.append(say("sentence.scores", listed=listed))
    return say.join(*(sentence for sentence in dict.fromkeys(sentences) if sentence not in besides))


def _nothing_present(view: View, say: Phrases) -> list[str]:
    """Say that no distortion stands out, and which property is low among natural photographs: it is to mend first."""
    worst = max(view.severities, key=lambda category: view.severities[category])
    if severity_word(view.severities[worst]) != "none":
        sentence = describe(view, worst, say)
    else:
        sentence = "" if view.unjudged else say("sentence.clean")
    look = Look(view, view.severities)
    lowest = min(("sharpness", "lighting", "colour", "contrast"), key=look.position)
    weakest = fact(look, lowest, say) if look.position(lowest) < 0.35 and not look.paired else ""
    return [sentence, weakest]


def region_summary(region: str, view: View, say: Phrases) -> str:
    """Say what stands out in one region, cut out and measured by itself."""
    strongest = present(view)[:1]
    sentence = describe(view, strongest[0], say) if strongest else say("sentence.clean")
    return say("sentence.region", region=region, sentence=uncapitalised(sentence))


def grounds(view: View, belief: Belief, say: Phrases) -> str:
    """State the believed score with its width, and how familiar such images are."""
    basis = say("grounds.paired" if view.difference is not None else "grounds.alone")
    familiarity = "grounds.unlike" if belief.novelty > 0.5 else "grounds.usual"
    return say(familiarity, basis=basis, mean=belief.mean, deviation=belief.deviation)


def level_word(mean: float, say: Phrases) -> str:
    """Return the word of the level nearest to a score on 1..5."""
    return say(f"level.{int(np.clip(np.floor(mean + 0.5), 1, 5))}")
