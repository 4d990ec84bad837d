"""Options that are words on one scale: which axis they stand on, where, and which stretch of it an image falls in."""

from collections import Counter
from collections.abc import Mapping

import numpy as np
from scipy import special

from program.expert.answer.amounts import Look, amount, severity_place
from program.expert.answer.vocabulary import Claim, axis_of, form
from program.expert.answer.wording import degree_in, terms_in, topic_in

__all__ = ("Verdict", "degrees", "on_one_axis", "property_in")

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


def property_in(text: str) -> Claim | None:
    """Return the property that a question names first, by a word that says how much of it, or by its name."""
    return next(iter(terms_in(text)), None) or topic_in(text)


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
