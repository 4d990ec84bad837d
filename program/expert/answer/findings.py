"""What is wrong with an image and what is good about it, in English and Chinese."""

import functools
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from program.common.text import is_chinese
from program.expert.judge import faults as judged
from program.expert.judge.faults import (
    CLEAR,
    MOST,
    faults_of,
    is_in_corner,
    light_to_move,
    likeliest_of,
    local_faults,
    not_judged,
    place_of,
    probability_of,
    sharpness_of,
    tint_of,
    way_of,
)
from program.expert.judge.quality import OUTPUTS, UNDISTORTED, QualityBelief
from program.expert.judge.views import Measurements, View, position
from program.expert.store import Matrix, stored_table
from signatures.schemas import (
    DISTORTION_CATEGORIES,
    FAULTS,
    GLOBAL,
    SEVERITIES,
    DistortionCategory,
    Severity,
    faults_explained,
)

PRESENT = 0.8
"""Severity from which a distortion is there: between imperceptible (0.1) and slightly annoying
(1.1)."""
POOR = 2.5
"""Quality below which something is wrong with an image."""
_COSTLY, _FAIR, _GOOD = 3.5, 3.3, 4.2
"""Quality below which something costs points even where nothing stands out; from which nothing spoils
the whole picture; and from which nothing is plainly wrong with it."""
_LIMITS_ALONE = np.array([0.9, 0.9, 0.7, 0.7, 0.9, 0.7, 0.45])
_LIMITS_PAIRED = np.array([0.75, 0.8, 0.8, 0.75, 0.8, 0.8, 0.45])
"""Severity from which each category (in their order) is reported, without a reference and with one:
by F1 on distorted CLIVE train photographs out of fold. What became of the contrast is hard to tell
from the image alone."""
STEPS: tuple[tuple[float, Severity], ...] = (
    (0.45, "none"), (1.0, "slight"), (1.9, "moderate"), (2.8, "severe"),
)  # fmt: skip
"""Severities below which each word stands; from the last on it is extreme."""
SAME = UNDISTORTED - STEPS[0][0]
"""Quality beside a reference from which no difference can be seen."""
_A_LEVEL, _LEAST_SHARE = 1.0, 0.001
"""Grey levels of noise below which it is not quoted, and the least share of pixels that is."""
_EVEN, _PLACED = 0.08, 0.35
"""Deviation over the cells, relative to their mean, up to which they are alike, and from which one
stands out."""
_MADE = 0.4
"""How surely an image was altered after it was taken (-1 .. 1) where severities say by what."""
_SEVERITY: Mapping[str, Severity] = {"slight": "slight", "moderate": "moderate", "strong": "severe"}
"""The documents' word for a photographer's strength."""
_CLIPPED = {"blown highlights": "clipped_any", "crushed shadows": "black"}
"""Faults of which the share of pixels is told, by the sign that it is."""
_CHANGE_MAPS: Mapping[DistortionCategory, str] = {
    "Noise": "residual", "Brightness change": "shift", "Color distortions": "colour",
}  # fmt: skip
"""The map of changes that shows a category; "difference" shows the others."""


class Phrases:
    """Sentences, templates and words by name ("section.name"), in one language."""

    def __init__(self, column: int) -> None:
        """Take the column of the file: 0 English, 1 Chinese."""
        self._column = column

    def say(self, name: str, /, **values: Any) -> str:
        """Return a phrase with its values filled in."""
        return _table()[name][self._column].format(**values)

    def join(self, *sentences: str) -> str:
        """Join sentences that follow each other; empty ones are left out."""
        return self.say("sentence.gap").join(filter(None, sentences))


@functools.cache
def _table() -> Mapping[str, tuple[str, str]]:
    table = {}
    for section, pairs in stored_table("phrases.yaml").items():
        for name, (english, chinese) in pairs.items():
            table[f"{section}.{name}"] = (english, chinese)
    return table


ENGLISH, CHINESE = Phrases(0), Phrases(1)


def phrases_for(query: str) -> Phrases:
    """Return the phrases of a question's language: Chinese, or else English."""
    return CHINESE if is_chinese(query) else ENGLISH


def capitalise(sentence: str) -> str:
    """Return a sentence with its first letter large; Chinese stays as it is."""
    return sentence[:1].upper() + sentence[1:]


def severity_word(severity: float) -> Severity:
    """Return none, slight, moderate, severe or extreme for a severity (4.6 minus the human score).

    >>> severity_word(0.2), severity_word(2.0)
    ('none', 'severe')
    """
    for bound, word in STEPS:
        if severity < bound:
            return word
    return "extreme"


def reported_categories(severities: Matrix, *, paired: bool) -> NDArray[np.bool_]:
    """Say which of the seven categories (last axis) are reported, alone or beside a reference."""
    limits = _LIMITS_PAIRED if paired else _LIMITS_ALONE
    return np.asarray(severities >= limits)


class VisibleFault(NamedTuple):
    """What is wrong with an image: a photographer's fault, or a category where none is known."""

    category: DistortionCategory
    severity: Severity
    fault: str = ""


@functools.lru_cache(maxsize=1024)
def visible_faults(view: View) -> tuple[VisibleFault, ...]:
    """Return what is wrong, the strongest first: every answer tells of these and of no others."""
    if not_judged(view) is not None:
        return ()
    damages = _damages(view)
    if view.difference is not None:
        return tuple(each for each in damages if each.severity != "none")
    local = local_faults(view)
    faults = []
    for fault, strength, _ in faults_of(view):
        severity = _SEVERITY[strength]
        if fault not in local:
            severity = min(severity, _most_beside(view.prior.mean), key=SEVERITIES.index)
        faults.append(VisibleFault(FAULTS[fault], severity, fault))
    if view.features.values[0, OUTPUTS["nr"].index("altered")] >= _MADE:
        named = {each.category for each in faults} | {FAULTS[name] for name in faults_explained(view.intended)}
        others = [each for each in damages if each.category not in named]
        faults += [each._replace(fault=likeliest_of(view, each.category)) for each in others]
    faults.sort(key=lambda each: -SEVERITIES.index(each.severity))
    return tuple(faults[:MOST])


def _most_beside(quality: float) -> Severity:
    """Return how severe a fault of the whole picture can be at most beside a quality, 1..5."""
    if quality >= _GOOD:
        return "slight"
    return "moderate" if quality >= _FAIR else "extreme"


def _damages(view: View) -> list[VisibleFault]:
    """Return the categories that are reported by their severity alone, the strongest first."""
    paired = view.difference is not None
    reported = reported_categories(np.array(list(view.severities.values())), paired=paired)
    there = list(compress(view.severities, reported))
    there.sort(key=lambda category: -view.severities[category])
    if paired and not there and is_changed(view) and view.displaced < PRESENT:
        there = [strongest(view.severities)]
    return [VisibleFault(category, severity_word(view.severities[category])) for category in there]


def strongest(severities: Mapping[DistortionCategory, float]) -> DistortionCategory:
    """Return the category of the highest severity."""
    return max(severities, key=lambda category: severities[category])


def present(view: View) -> list[DistortionCategory]:
    """Return the categories of what is wrong, the worst first."""
    return list(dict.fromkeys(each.category for each in visible_faults(view)))


def is_changed(view: View) -> bool:
    """Return whether an image visibly differs from its reference."""
    return view.prior.mean < SAME


def findings(
    view: View,
    region: str,
    categories: Sequence[DistortionCategory],
    phrases: Phrases,
    faint: Sequence[VisibleFault] = (),
) -> list[dict[str, str]]:
    """Return a finding for each thing wrong of these categories; one of "none" if nothing is.

    `faint`: what does not stand out, but is there for who asks for it.
    """
    listed = [each for each in (*visible_faults(view), *faint) if each.category in categories]
    there = {each.category for each in listed}
    listed += [VisibleFault(category, "none") for category in categories if category not in there]
    return [
        {
            "region": region or GLOBAL, "type": each.category, "severity": each.severity,
            "fault": each.fault, "explanation": describe(view, each, phrases),
        }
        for each in listed
    ]  # fmt: skip


def place_phrase(cells: Sequence[Sequence[float]] | Matrix, phrases: Phrases, *, lowest: bool = False) -> str:
    """Return the place of the strongest (or weakest) of 3 x 3 cells, or "all over"."""
    values = np.array(cells, dtype=float)
    if float(values.std()) / (abs(float(values.mean())) + 1e-6) < _EVEN:
        return phrases.say("place.everywhere")
    if lowest:
        values = -values
    return phrases.say("place.strongest", cell=phrases.say(f"cell.{int(values.argmax())}"))


def unjudged_text(view: View, phrases: Phrases) -> str:
    """Say why nothing can be said of an image's sharpness, or return ""."""
    if not view.unjudged:
        return ""
    width, height = view.size
    shown = phrases.say("shown.region" if view.is_part else "shown.image")
    return phrases.say(f"sentence.{view.unjudged}", shown=shown, width=width, height=height)


def describe(view: View, fault: VisibleFault, phrases: Phrases) -> str:
    """Say in one sentence what was found of a fault or a category, and what was measured."""
    category = fault.category
    if category in {"Blurs", "Sharpness"} and view.unjudged:
        return unjudged_text(view, phrases)
    if view.difference is not None:
        return _against_reference(view, view.difference, fault, phrases)
    if fault.severity == "none":
        lead = phrases.say("opening.none", name=phrases.say(f"damage.{category}"))
    else:
        lead = item(view, fault, phrases)
    shown = judged.seen_in(view, fault.fault)
    n = shown.measured.by_name()
    noise = np.expm1(n["noise_p20"])
    if category == "Noise" and fault.severity != "none" and noise < _A_LEVEL:
        return sentence_of([lead], phrases)  # it is in other places than the quiet ones that are measured
    if fault.fault in _CLIPPED:
        clipped = max(shown.signs[_CLIPPED[fault.fault]], _LEAST_SHARE)
        return phrases.say(f"alone.{fault.fault}", opening=capitalise(lead), clipped=clipped)
    return phrases.say(
        f"alone.{category}", opening=capitalise(lead), n=n, noise=noise, ratio=np.exp(n["blocking"]),
        mean=255 * n["brightness"], edges=np.expm1(n["edge1_p99"]),
    )  # fmt: skip


@functools.lru_cache(maxsize=1024)
def item(view: View, fault: VisibleFault, phrases: Phrases) -> str:
    """Name what is wrong in few words: how strong, of what kind, and where.

    Beside a reference, faults have no photographer's name.
    """
    if fault.fault:
        return _fault_item(view, fault, phrases)
    severity, name = phrases.say(f"severity.{fault.severity}"), phrases.say(f"change.{fault.category}")
    cells = np.abs(_cells(view, fault.category))
    deviation = float(cells.std()) / (float(cells.mean()) + 1e-6)
    place = ("everywhere", "plain", "there")[int(np.digitize(deviation, (_EVEN, _PLACED)))]
    cell = phrases.say(f"cell.{int(cells.argmax())}")
    return phrases.say(f"item.{place}", severity=severity, name=name, cell=cell)


def _fault_item(view: View, fault: VisibleFault, phrases: Phrases) -> str:
    place = place_of(view, fault.fault)
    if place is not None:
        cell = phrases.say(f"cell.{place}")
        where, at = phrases.say("place.cell", cell=cell), phrases.say("place.at", cell=cell)
    else:
        whole = "place.part" if view.is_part else "place.picture"
        where, at = phrases.say(whole), phrases.say("place.all")
    tone = phrases.say(f"tone.{tint_of(view)}") if fault.fault == "colour cast" else ""
    way = ""
    if fault.fault == "motion blur" and place is None:
        way = phrases.say(f"way.{way_of(view) or 'unclear'}")
    text = phrases.say(
        f"fault.{fault.fault}", tone=tone, place=where, at=at, way=way,
        strength=phrases.say(f"strongly.{fault.severity}"),
        degree=phrases.say(f"degree.{fault.severity}"), very=phrases.say(f"very.{fault.severity}"),
    )  # fmt: skip
    return " ".join(text.split())


_MENDED_BY: Mapping[str, str] = {"crushed shadows": "too dark", "too bright": "blown highlights"}
"""Faults that what is done about another one mends, too."""


def advice_on(faults: Mapping[str, str], query: str, view: View | None = None) -> str:
    """Say what to do about faults, given with their strengths; a `view` of the image tells how much."""
    phrases, clauses = phrases_for(query), []
    for fault, strength in faults.items():
        name, halves, tone = fault, 0, "none"
        if view is not None:
            halves = round(2 * light_to_move(view, fault, strength))
            if fault == "colour cast":
                tone = tint_of(view)
            if fault == "defocus blur" and (sharpness_of(view) or 0.0) >= CLEAR:
                name = "around"
            if is_in_corner(view, fault):
                name = "crop"
        if fault == "blown highlights" and "too dark" in faults:
            name = "both ends"
        if _MENDED_BY.get(fault) not in faults:
            by, tone = phrases.say(f"stops.{halves}"), phrases.say(f"balance.{tone}")
            clauses.append(phrases.say(f"advice.{name}", by=by, tone=tone))
    if view is not None and _is_unsharp(view, [FAULTS.get(fault) for fault in faults]):
        clauses.append(phrases.say("advice.unsharp"))
    return sentence_of(list(dict.fromkeys(clauses)), phrases)


def _is_unsharp(view: View, named: Sequence[str | None]) -> bool:
    """Return whether a subject is not sharp, while no blur is among the categories that are named."""
    sharp = None if view.is_part else sharpness_of(view)  # a part has no subject
    return sharp is not None and sharp <= 1 - CLEAR and len(named) < MOST and "Blurs" not in named


def _cells(view: View, category: DistortionCategory) -> Matrix:
    """Return the 3 x 3 map of the changes from the reference that shows a category; zeros without one."""
    if view.difference is None:
        return np.zeros((3, 3))
    return np.asarray(view.difference.maps[_CHANGE_MAPS.get(category, "difference")], dtype=float)


def _against_reference(view: View, difference: Measurements, fault: VisibleFault, phrases: Phrases) -> str:
    category, d = fault.category, difference.by_name()
    name = phrases.say(f"change.{category}")
    lead = "none" if fault.severity == "none" else "some"
    opening = phrases.say(f"opening.{lead}", name=name, severity=phrases.say(f"severity.{fault.severity}"))
    change = phrases.say(
        f"against.{category}", d=d, gain=4.343 * d["detail_gain"], noise=np.expm1(d["residual_quiet"]),
        rise=100 * np.expm1(max(d["blocking_rise"], 0)), shift=255 * d["brightness_shift"],
        colour=np.expm1(d["colour_shift"]), contrast=np.exp(d["contrast_change"]),
    )  # fmt: skip
    place = place_phrase(np.abs(_cells(view, category)), phrases)
    return phrases.say("against.reference", opening=opening, change=change, place=place)


_RICH = 0.7
"""The position among natural photographs from which colours are rich."""
_SHARP, _EXPOSED, _PERHAPS = 0.75, 0.35, 0.15
"""Probability of a sharp subject from which a picture is praised as sharp, of wrong exposure up to which an exposure is
right, and of a fault from which it may cost points."""


def sentence_of(items: Sequence[str], phrases: Phrases) -> str:
    """Return one sentence of a few items, of which the first begins with a capital; "" of none."""
    if not items:
        return ""
    return phrases.say("sentence.spoiled", items=capitalise(phrases.say("sentence.list").join(items)))


def summary(view: View, quality: float, phrases: Phrases, *, faults_asked: bool = False) -> str:
    """Say in few words what spoils an image, the worst first; if nothing does, what is good.

    `quality` is what the image is believed to be, 1..5. `faults_asked`: that nothing spoils it is
    said, too.
    """
    if any(view.shift):
        return _shift_summary(view, quality, phrases)
    faults = visible_faults(view)
    items = [item(view, each, phrases) for each in faults]
    if view.difference is not None:
        return _changes(view, faults, items, phrases)
    if view.unjudged == "small" or (view.unjudged and view.is_part):
        return unjudged_text(view, phrases)
    if kind := not_judged(view):
        return phrases.say("sentence.kind", kind=phrases.say(f"kind.{kind}"))
    if _is_unsharp(view, [each.category for each in faults]):
        items.append(phrases.say("sentence.unsharp"))  # what made it so is not clear
    if items:
        return sentence_of(items, phrases)
    cost = likeliest_of(view, *DISTORTION_CATEGORIES) if quality < _COSTLY else ""
    costs = _costs(view, quality, cost, phrases)
    if quality < POOR:
        return costs
    strengths = [phrases.say(f"strength.{name}") for name in _strengths(view, cost)]
    good = sentence_of([phrases.say("sentence.and").join(strengths)], phrases) if strengths else ""
    clean = phrases.say("sentence.clean") if faults_asked or not (good or costs) else ""
    return phrases.join(clean, good, costs)


def _costs(view: View, quality: float, fault: str, phrases: Phrases) -> str:
    """Say what may cost an image points of which no fault stands out: `fault`, if any; "" if none does."""
    if not fault:
        return ""
    unexplained = phrases.say("sentence.unexplained")
    if probability_of(view, fault) < _PERHAPS:
        return unexplained
    items = item(view, VisibleFault(FAULTS[fault], "slight", fault), phrases)
    costs = phrases.say("sentence.costs", items=items)
    return phrases.join(unexplained, costs) if quality < POOR else costs


def _shift_summary(view: View, quality: float, phrases: Phrases) -> str:
    """Say how far an image is shifted against its reference, and what else became of it."""
    ways = []
    for axis, size in zip("xy", view.shift, strict=True):
        if size:
            ways.append(phrases.say(f"shift.{axis}{int(np.sign(size))}", size=abs(size)))
    shifted = phrases.say("sentence.shifted", by=phrases.say("sentence.pair").join(ways))
    if visible_faults(view.aligned) or view.aligned.displaced >= PRESENT:
        return phrases.join(shifted, summary(view.aligned, quality, phrases))
    return shifted


def without_repeats(words: str, sentences: Sequence[str], phrases: Phrases) -> str:
    """Return a summary without what other sentences say already."""
    before = {sentence[:-1].casefold() for sentence in sentences}
    items = words[:-1].split(phrases.say("sentence.list"))
    rest = [item for item in items if item.casefold() not in before]
    return words if rest == items else sentence_of(rest, phrases)


def _changes(view: View, faults: Sequence[VisibleFault], items: list[str], phrases: Phrases) -> str:
    if view.displaced >= PRESENT:
        stronger = [each for each in faults if view.severities[each.category] > view.displaced]
        severity = phrases.say(f"severity.{severity_word(view.displaced)}")
        moved = phrases.say("item.plain", severity=severity, name=phrases.say("change.spatial"))
        items.insert(len(stronger), moved)
    if items:
        listed = phrases.say("sentence.list").join(items[:MOST])
        return phrases.say("sentence.changed", items=listed)
    if is_changed(view):
        return phrases.say("sentence.differs")
    return phrases.say("sentence.same")


def _strengths(view: View, cost: str) -> list[str]:
    """Return what is good about an image, apart from what a fault may cost it."""
    wrong = probability_of(view, "too dark", "too bright", "blown highlights", "crushed shadows")
    good = {
        "sharp": ("Blurs", (sharpness_of(view) or 0.0) >= _SHARP),
        "exposed": ("Brightness change", wrong < _EXPOSED),
        "colour": ("Color distortions", position(view, "colour") > _RICH),
    }
    return [name for name, (category, is_good) in good.items() if is_good and FAULTS.get(cost) != category]


def details(view: View, belief: QualityBelief, scores: Sequence[tuple[str, float]], phrases: Phrases) -> str:
    """Quote the measurements, the tools' scores, the score believed in, and how sure it is."""
    sentences = [describe(view, each, phrases) for each in visible_faults(view)]
    if scores:
        listed = ", ".join(f"{tool} {score:.2f}" for tool, score in scores)
        sentences.append(phrases.say("sentence.scores", listed=listed))
    basis = "grounds.alone" if view.difference is None else "grounds.paired"
    familiarity = "grounds.unlike" if belief.is_rough else "grounds.usual"
    score = phrases.say(familiarity, basis=phrases.say(basis), mean=belief.mean, deviation=belief.deviation)
    return phrases.join(*sentences, score)


def region_sentence(view: View, phrases: Phrases) -> str:
    """Say what is worst in a region, without its name; beside a reference, what became of it."""
    if view.difference is not None:
        return summary(view, view.prior.mean, phrases)
    items = [item(view, fault, phrases) for fault in visible_faults(view)[:1]]
    return sentence_of(items, phrases) or unjudged_text(view, phrases) or phrases.say("sentence.clean")


def name_region(region: str, sentence: str, phrases: Phrases) -> str:
    """Return a sentence that names its region."""
    start = sentence[:1].lower()
    return phrases.say("sentence.region", region=region, sentence=start + sentence[1:])
