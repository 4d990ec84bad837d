"""What is wrong with an image and what is good about it: category, severity and place, in English and Chinese."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from program.common.text import is_chinese
from program.expert.judge.faults import KINDS, MOST, faults_of, kind_of, place_of, probability_of, sharpness_of, tint_of
from program.expert.judge.quality import OUTPUTS, UNDISTORTED, Belief
from program.expert.judge.views import Measurement, View, position
from program.expert.store import Matrix, stored_table
from signatures.schemas import FAULTS, GLOBAL, DistortionCategory, Severity

PRESENT = 0.8
"""Severity from which a distortion is there: between imperceptible (0.1) and slightly annoying (1.1)."""
POOR = 2.5
"""Quality below which something is wrong with an image."""
_LIMITS = {
    False: np.array([0.9, 0.9, 0.7, 0.7, 0.9, 0.7, 0.45]),
    True: np.array([0.75, 0.8, 0.8, 0.75, 0.8, 0.8, 0.45]),
}
"""Severity from which each category (in their order) is reported, without a reference and with one: by F1 on distorted
CLIVE train photographs out of fold. What became of the contrast is hard to tell from the image alone."""
STEPS: tuple[tuple[float, Severity], ...] = ((0.45, "none"), (1.0, "slight"), (1.9, "moderate"), (2.8, "severe"))
"""Severities below which each word stands; from the last on it is extreme."""
SAME = UNDISTORTED - STEPS[0][0]
"""Quality beside a reference from which no difference can be seen."""
_EVEN, _PLACED = 0.08, 0.35
"""Deviation over the cells, relative to their mean, up to which they are alike, and from which one stands out."""
_MADE = 0.4
"""How surely an image was distorted after it was taken ("altered", -1 .. 1) where severities say with what."""
_SEVERITY: Mapping[str, Severity] = {"slight": "slight", "moderate": "moderate", "strong": "severe"}
"""The documents' word for a photographer's strength."""
_MAPS: Mapping[DistortionCategory, str] = {"Noise": "noise", "Compression": "blocking"}
"""The map that shows where a category is in an image alone."""
_CHANGE_MAPS: Mapping[DistortionCategory, str] = {
    "Noise": "residual", "Brightness change": "shift", "Color distortions": "colour",
}  # fmt: skip
"""The map of changes that shows a category; "difference" shows the others."""


class Phrases:
    """Sentences, templates and words by name ("section.name"), in one language."""

    def __init__(self, column: int) -> None:
        """Take the column of the file: 0 English, 1 Chinese."""
        self._column = column

    def __call__(self, name: str, /, **values: Any) -> str:
        """Return a phrase with its values filled in."""
        return _table()[name][self._column].format(**values)

    def join(self, *sentences: str) -> str:
        """Join sentences that follow each other; empty ones are left out."""
        return self("sentence.gap").join(sentence for sentence in sentences if sentence)


@functools.cache
def _table() -> Mapping[str, tuple[str, str]]:
    sections = stored_table("phrases.yaml").items()
    return {f"{section}.{name}": tuple(pair) for section, pairs in sections for name, pair in pairs.items()}


ENGLISH, CHINESE = Phrases(0), Phrases(1)


def phrases_for(query: str) -> Phrases:
    """Return the phrases of a question's language: Chinese, or else English."""
    return CHINESE if is_chinese(query) else ENGLISH


def capitalise(sentence: str) -> str:
    """Return a sentence with its first letter large; Chinese stays as it is."""
    return sentence[:1].upper() + sentence[1:]


def severity_word(severity: float) -> Severity:
    """Return none, slight, moderate, severe or extreme for a severity (4.6 minus the mean human score).

    >>> severity_word(0.2), severity_word(2.0)
    ('none', 'severe')
    """
    return next((word for bound, word in STEPS if severity < bound), "extreme")


def reported_categories(severities: Matrix, *, paired: bool) -> NDArray[np.bool_]:
    """Say which of the seven categories (last axis) are reported, of an image alone or beside its reference."""
    return np.asarray(severities >= _LIMITS[paired])


class Found(NamedTuple):
    """What is wrong with an image: a photographer's fault, or a category of the documents where only that is known."""

    category: DistortionCategory
    severity: Severity
    fault: str = ""


def visible_faults(view: View) -> list[Found]:
    """Return what is wrong with an image, the worst first: every answer tells of these and of no others."""
    if view.unjudged is not None:
        return []
    there = reported_categories(np.array(list(view.severities.values())), paired=view.difference is not None)
    made = [
        Found(category, severity_word(severity))
        for (category, severity), is_there in zip(view.severities.items(), there, strict=True)
        if is_there
    ]
    made = sorted(made, key=lambda each: -view.severities[each.category])
    if view.difference is not None:
        if not made and is_changed(view) and view.displaced < PRESENT:
            likeliest = max(view.severities, key=lambda category: view.severities[category])
            made = [Found(likeliest, severity_word(view.severities[likeliest]))]
        return [each for each in made if each.severity != "none"]
    named = [Found(FAULTS[fault], _SEVERITY[strength], fault) for fault, strength, _ in faults_of(view)]
    if view.seen.values[0, OUTPUTS["nr"].index("altered")] >= _MADE:
        known = {each.category for each in named}
        named = [*named, *(each for each in made if each.category not in known)]
    return named[:MOST]


def present(view: View) -> list[DistortionCategory]:
    """Return the categories of what is wrong, the worst first."""
    return list(dict.fromkeys(each.category for each in visible_faults(view)))


def is_changed(view: View) -> bool:
    """Return whether an image visibly differs from its reference."""
    return view.prior.mean < SAME


def findings(view: View, region: str, categories: Sequence[DistortionCategory], say: Phrases) -> list[dict[str, str]]:
    """Return a finding for each thing that is wrong, of the categories listed, and one of "none" where nothing is."""
    there = visible_faults(view)
    return [
        {
            "region": region or GLOBAL, "type": each.category, "severity": each.severity, "fault": each.fault,
            "explanation": describe(view, each, say),
        }
        for category in categories
        for each in [each for each in there if each.category == category] or [Found(category, "none")]
    ]  # fmt: skip


def where(cells: Sequence[Sequence[float]] | Matrix, say: Phrases, *, lowest: bool = False) -> str:
    """Return the place of the strongest (or weakest) of 3 x 3 cells, or "all over" when they hardly differ."""
    values = np.array(cells, dtype=float)
    if float(values.std()) / (abs(float(values.mean())) + 1e-6) < _EVEN:
        return say("place.everywhere")
    return say("place.strongest", cell=say(f"cell.{int(values.argmin() if lowest else values.argmax())}"))


def unjudged_text(view: View, say: Phrases) -> str:
    """Say why nothing can be said of an image's sharpness, or return ""."""
    return say(f"sentence.{view.unjudged}", width=view.size[0], height=view.size[1]) if view.unjudged else ""


def describe(view: View, found: Found, say: Phrases) -> str:
    """Say in one sentence what was found of a fault or a category, and what was measured."""
    category = found.category
    if category in {"Blurs", "Sharpness"} and view.unjudged:
        return unjudged_text(view, say)
    if view.difference is not None:
        return _against_reference(view, view.difference, found, say)
    n = view.measured
    lead = item(view, found, say) if found.severity != "none" else say("opening.none", name=say(f"damage.{category}"))
    return say(
        f"alone.{category}", opening=capitalise(lead), n=n, noise=np.expm1(n["noise_p20"]),
        ratio=np.exp(n["blocking"]), mean=255 * n["brightness"], edges=np.expm1(n["edge1_p99"]),
    )  # fmt: skip


def item(view: View, found: Found, say: Phrases) -> str:
    """Name what is wrong in few words: how strong, of what kind and, where that shows, at which place."""
    if found.fault:
        words = {"strength": "strongly", "degree": "degree", "very": "very"}
        parts = {name: say(f"{table}.{found.severity}") for name, table in words.items()}
        at = place_of(view, found.fault)
        cell = "" if at is None else say(f"cell.{at}")
        parts |= {
            "place": say("place.cell" if cell else "place.part" if view.is_part else "place.picture", cell=cell),
            "at": say("place.at" if cell else "place.all", cell=cell),
        }
        tone = say(f"tone.{tint_of(view)}") if found.fault == "colour cast" else ""
        return " ".join(say(f"fault.{found.fault}", tone=tone, **parts).split())
    words = {"severity": say(f"severity.{found.severity}"), "name": _name(view, found.category, say)}
    if view.difference is None and found.category not in {"Noise", "Compression"}:
        return say("item.plain", **words)  # the picture itself differs from place to place
    cells = np.abs(_cells(view, found.category))
    deviation = float(cells.std()) / (float(cells.mean()) + 1e-6)
    if deviation < _EVEN:
        return say("item.everywhere", **words)
    return say("item.there" if deviation > _PLACED else "item.plain", **words, cell=say(f"cell.{int(cells.argmax())}"))


def _name(view: View, category: DistortionCategory, say: Phrases) -> str:
    return say(f"{'damage' if view.difference is None else 'change'}.{category}")


def _cells(view: View, category: DistortionCategory) -> Matrix:
    """Return the 3 x 3 map that shows a category: of the changes, where there is a reference."""
    if view.difference is not None:
        return np.asarray(view.difference.maps[_CHANGE_MAPS.get(category, "difference")], dtype=float)
    return np.asarray(view.measured.maps[_MAPS[category]], dtype=float)


def _against_reference(view: View, d: Measurement, found: Found, say: Phrases) -> str:
    category, name = found.category, _name(view, found.category, say)
    opening = say(f"opening.{'none' if found.severity == 'none' else 'some'}", name=name,
                  severity=say(f"severity.{found.severity}"))  # fmt: skip
    change = say(
        f"against.{category}", d=d, gain=4.343 * d["detail_gain"], noise=np.expm1(d["residual_quiet"]),
        rise=100 * np.expm1(max(d["blocking_rise"], 0)), shift=255 * d["brightness_shift"],
        colour=np.expm1(d["colour_shift"]), contrast=np.exp(d["contrast_change"]),
    )  # fmt: skip
    place = where(np.abs(_cells(view, category)), say)
    return say("against.reference", opening=opening, change=change, place=place)


_RICH = 0.7
"""The position among natural photographs from which colours are rich."""
_CLEAR = 0.6
"""Probability from which a subject is called sharp or not, and an exposure right."""


def sentence_of(items: Sequence[str], say: Phrases) -> str:
    """Return one sentence of a few items, of which the first begins with a capital."""
    return say("sentence.spoiled", items=capitalise(say("sentence.list").join(items)))


def summary(view: View, quality: float, say: Phrases, *, faults_asked: bool = False) -> str:
    """Say in few words what spoils an image, the worst first; where nothing does, what is good about it.

    `quality` is what the image is believed to be, 1..5. `faults_asked`: that nothing spoils it is said, too.
    """
    if any(view.shift):
        by = say("sentence.pair").join(
            say(f"shift.{axis}{int(np.sign(size))}", size=abs(size))
            for axis, size in zip("xy", view.shift, strict=True)
            if size
        )
        besides = visible_faults(view.aligned) or view.aligned.displaced >= PRESENT
        rest = summary(view.aligned, quality, say) if besides else ""
        return say.join(say("sentence.shifted", by=by), rest)
    there = visible_faults(view)
    items = [item(view, each, say) for each in there]
    if view.difference is not None:
        return _changes(view, there, items, say)
    if view.unjudged:
        return unjudged_text(view, say)
    if not KINDS[kind := kind_of(view)]:
        return say("sentence.kind", kind=say(f"kind.{kind}"))
    sharp = None if view.is_part else sharpness_of(view)  # a part has no subject
    blurred = any(each.category == "Blurs" for each in there)
    if sharp is not None and sharp <= 1 - _CLEAR and not blurred and len(items) < MOST:
        items.append(say("sentence.unsharp"))  # what made it so is not clear
    if items:
        return sentence_of(items, say)
    if quality < POOR:
        return say("sentence.unexplained")
    good = say("sentence.and").join(say(f"strength.{name}") for name in _strengths(view))
    clean = say("sentence.clean") if faults_asked or not good else ""
    return say.join(clean, sentence_of([good], say) if good else "")


def unsaid(words: str, said: Sequence[str], say: Phrases) -> str:
    """Return a summary without what other sentences have said."""
    before = {sentence[:-1].casefold() for sentence in said}
    items = words[:-1].split(say("sentence.list"))
    rest = [item for item in items if item.casefold() not in before]
    return words if rest == items else sentence_of(rest, say) if rest else ""


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
        *(describe(view, each, say) for each in visible_faults(view)),
        say("sentence.scores", listed=listed) if scores else "",
        say(familiarity, basis=basis, mean=belief.mean, deviation=belief.deviation),
    )


def region_summary(region: str, view: View, say: Phrases) -> str:
    """Say what stands out in one region, cut out and measured by itself."""
    return of_region(region, region_sentence(view, say), say)


def region_sentence(view: View, say: Phrases) -> str:
    """Say what is worst in a region, without its name."""
    worst = visible_faults(view)[:1]
    return sentence_of([item(view, worst[0], say)], say) if worst else say("sentence.clean")


def of_region(region: str, sentence: str, say: Phrases) -> str:
    """Return a sentence that names its region."""
    return say("sentence.region", region=region, sentence=sentence[:1].lower() + sentence[1:])
