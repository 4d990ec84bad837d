"""The expert's answer to each of the program's signatures, chosen by the names of the output fields."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from program.errors import ModelError
from program.lms.perceptual.amounts import TOOLS
from program.lms.perceptual.asked import is_about_quality, unseen
from program.lms.perceptual.findings import findings, present
from program.lms.perceptual.planning import choose_tools, parsed_json, plan_assessment
from program.lms.perceptual.quality import Belief, level_probabilities
from program.lms.perceptual.questions import Choice, answer_choice, asked_of, look_at
from program.lms.perceptual.reasons import chosen, direct_answer, grounds, level_word, region_told, summary
from program.lms.perceptual.views import View, Viewer
from program.query import is_chinese, options_shown
from signatures.schemas import (
    DISTORTION_CATEGORIES,
    GLOBAL,
    SEVERITIES,
    DistortionCategory,
    LevelProbabilities,
    category_of,
)

__all__ = ("ANSWERED", "answer_fields")

Inputs = Mapping[str, Any]
Demos = Sequence[Mapping[str, Any]]
_LETTERS = "EDCBA"


def answer_fields(viewer: Viewer, outputs: frozenset[str], demos: Demos, inputs: Inputs) -> dict[str, Any]:
    """Answer one structured call; ModelError when no signature of the program has these output fields."""
    answering = ANSWERED.get(outputs)
    if answering is None:
        raise ModelError(
            "perceptual/expert answers only this program's own signatures, not one with the "
            f"outputs {sorted(outputs)}; "
            "give a language model for this step (--reflection-lm PROVIDER/MODEL)"
        )
    return answering(viewer, demos, inputs)


def _plan(viewer: Viewer, demos: Demos, inputs: Inputs) -> dict[str, Any]:
    return {"plan": plan_assessment(inputs)}


def _select(viewer: Viewer, demos: Demos, inputs: Inputs) -> dict[str, Any]:
    return {"selected_tools": choose_tools(inputs)}


def _locate(viewer: Viewer, demos: Demos, inputs: Inputs) -> dict[str, Any]:
    # It measures pixels and knows no objects: no box is better than an invented one.
    return {"region_boxes": []}


def _detect(viewer: Viewer, demos: Demos, inputs: Inputs) -> dict[str, Any]:
    view = _view(viewer, inputs)
    found = present(view)
    return {"distortion_set": [{"region": region, "distortions": found} for region in _regions(inputs)]}


def _analyse(viewer: Viewer, demos: Demos, inputs: Inputs) -> dict[str, Any]:
    return {"distortion_analysis": _judged(viewer, inputs)}


def _diagnose(viewer: Viewer, demos: Demos, inputs: Inputs) -> dict[str, Any]:
    return {"findings": _judged(viewer, inputs)}


def _judged(viewer: Viewer, inputs: Inputs) -> list[dict[str, str]]:
    view, chinese = _view(viewer, inputs), is_chinese(str(inputs.get("query", "")))
    asked = _asked(inputs.get("distortion_set"))
    regions = _regions(inputs) if "regions" in inputs else list(asked) or [GLOBAL]
    return [
        finding for region in regions for finding in findings(view, region, asked.get(region), chinese=chinese)
    ]  # fmt: skip


def _asked(text: Any) -> dict[str, list[DistortionCategory]]:
    given = parsed_json(text)
    if not isinstance(given, dict):
        return {}
    return {
        str(region): list(
            dict.fromkeys(c for n in (names if isinstance(names, list) else [names]) if (c := category_of(str(n))))
        )
        for region, names in given.items()
        if names
    }


def _choose(viewer: Viewer, demos: Demos, inputs: Inputs) -> dict[str, Any]:
    view, query = _view(viewer, inputs), str(inputs.get("query", ""))
    options, scores = _options(inputs), _scores(inputs)
    if not options:
        raise ModelError('perceptual/expert: the options cannot be read; write each on a line of its own, as "A. Yes"')
    evidence = _evidence(inputs, query)
    choice = answer_choice(view, query, options, evidence, [s for _, s in scores])
    letter = _outvoted(viewer, view, demos, query, options, choice)
    chinese, voted = is_chinese(query), letter != choice.letter
    look = look_at(view, evidence, [s for _, s in scores], asked_of(query, options).text)
    told = chosen(look, letter, choice, options, query, chinese=chinese, voted=voted)
    if choice.topic in {"content", "distortion", "quality"} or voted:
        told += ("" if chinese else " ") + summary(view, scores, chinese=chinese, limit=2, besides=told)
    return {"final_answer": letter, "quality_reasoning": told}


def _outvoted(viewer: Viewer, view: View, demos: Demos, query: str, options: Mapping[str, str], choice: Choice) -> str:
    """Let demos that ask the same question of similar images vote beside the measurement (one vote)."""
    top = max(choice.probabilities.values())
    votes = {letter: (1.0 if choice.measured else 0.3) * p / top for letter, p in choice.probabilities.items()}
    by_text = {text.casefold().strip(" ."): letter for letter, text in options.items()}
    for demo in demos:
        if " ".join(str(demo.get("query", "")).split()).casefold() != " ".join(query.split()).casefold():
            continue
        answer = str(demo.get("final_answer", "")).strip()
        text = _options(demo).get(answer[:1].upper(), answer).casefold().strip(" .")
        if text not in by_text or demo.get("image") is None:
            continue
        other = _view(viewer, demo)
        if (other.difference is None) != (view.difference is None):
            continue
        distance = float(np.square(other.tilt - view.tilt).sum())
        votes[by_text[text]] = votes.get(by_text[text], 0.0) + 0.9 * float(np.exp(-distance / (2 * 0.5**2)))
    return max([choice.letter, *votes], key=lambda letter: votes[letter])


def _explain(viewer: Viewer, demos: Demos, inputs: Inputs) -> dict[str, Any]:
    view, query = _view(viewer, inputs), str(inputs.get("query", ""))
    chinese, scores = is_chinese(query), _scores(inputs)
    belief = view.belief(_labelled(viewer, view, demos))
    crops = {} if view.difference is not None else _region_crops(inputs)
    asked = [region for region in crops if region.casefold() in query.casefold()]
    one = viewer.view(crops[asked[0]]) if len(asked) == 1 else None
    # The only region asked about is looked at itself; a place that its name tells is no place inside it.
    look = look_at(one or view, _evidence(inputs, query), [s for _, s in scores], "" if one else query)
    mean = belief.mean if not scores else (1 - TOOLS) * belief.mean + TOOLS * float(np.mean([s for _, s in scores]))
    word, gap = level_word(mean, chinese=chinese), "" if chinese else " "
    seen = is_about_quality(query)
    direct = direct_answer(look, query, chinese=chinese) if seen else unseen(query)
    overall = f"整体质量{word}（约 {mean:.1f}/5）。" if chinese else f"The quality is {word} (about {mean:.1f} of 5)."
    named = [c for c in DISTORTION_CATEGORIES if category_of(query) == c and not direct]
    rest = summary(view, scores, chinese=chinese, limit=2 if direct else 3, first=named, besides=direct)
    parts = [region_told(region, viewer.view(crop), chinese=chinese) for region, crop in list(crops.items())[:3]]
    told = gap.join(part for part in (direct, overall, rest, *parts) if part)
    reasoning = grounds(view, belief, chinese=chinese)
    if not seen:
        reasoning = ("没有测量结果与问题有关。" if chinese else "Nothing measured bears on the question. ") + reasoning
    return {"final_answer": told, "quality_reasoning": reasoning}


def _score(viewer: Viewer, demos: Demos, inputs: Inputs) -> dict[str, Any]:
    _, belief, reasoning = _judgement(viewer, demos, inputs)
    return {"quality_probs": belief.by_word(), "quality_reasoning": reasoning}


def _classify(viewer: Viewer, demos: Demos, inputs: Inputs) -> dict[str, Any]:
    _, belief, reasoning = _judgement(viewer, demos, inputs)
    masses = level_probabilities(belief.mean, belief.deviation)
    return {"quality_level": _LETTERS[int(np.argmax(masses))], "quality_reasoning": reasoning}


def _judgement(viewer: Viewer, demos: Demos, inputs: Inputs) -> tuple[View, Belief, str]:
    view, query = _view(viewer, inputs), str(inputs.get("query", ""))
    belief, scores, chinese = view.belief(_labelled(viewer, view, demos)), _scores(inputs), is_chinese(query)
    told = [summary(view, scores, chinese=chinese, limit=2), grounds(view, belief, chinese=chinese)]
    told = told if is_about_quality(query) else [unseen(query), *told]
    return view, belief, ("" if chinese else " ").join(told)


def _labelled(viewer: Viewer, view: View, demos: Demos) -> list[tuple[View, float]]:
    """Return the demos that carry a level belief and an image of the same kind (with or without reference)."""
    kept: list[tuple[View, float]] = []
    for demo in demos:
        label = _label(demo)
        if label is None or demo.get("image") is None:
            continue
        other = _view(viewer, demo)
        if (other.difference is None) == (view.difference is None):
            kept.append((other, label))
    return kept


def _label(demo: Mapping[str, Any]) -> float | None:
    """Return the level 1..5 a demo states: its expected level, or its letter."""
    letter = str(demo.get("quality_level") or "").strip().upper()[:1]
    if letter and letter in _LETTERS:
        return float(_LETTERS.index(letter) + 1)
    given = demo.get("quality_probs")
    if isinstance(given, str):
        given = parsed_json(given)
    try:
        stated = given if isinstance(given, LevelProbabilities) else LevelProbabilities.model_validate(given)
    except ValueError:
        return None
    masses = {level: mass for level, mass in stated.by_level().items() if np.isfinite(mass)}
    if masses and min(masses.values()) < 0:
        top = max(masses.values())
        masses = {level: float(np.exp(mass - top)) for level, mass in masses.items()}
    total = sum(masses.values())
    return sum(level * mass for level, mass in masses.items()) / total if total > 0 else None


def _view(viewer: Viewer, inputs: Inputs) -> View:
    if inputs.get("image") is None:
        raise ModelError("perceptual/expert: the question has no image; give one")
    return viewer.view(inputs["image"], inputs.get("reference"))


def _region_crops(inputs: Inputs) -> dict[str, Any]:
    """Return the regions that were cut out of the image, to be measured as images are."""
    crops = inputs.get("region_crops")
    return {str(name): crop for name, crop in crops.items()} if isinstance(crops, Mapping) else {}


def _regions(inputs: Inputs) -> list[str]:
    given = inputs.get("regions")
    names = parsed_json(given) if isinstance(given, str) else given
    if isinstance(names, str):
        names = [names]
    return [str(name) for name in names] if names else [GLOBAL]


def _options(inputs: Inputs) -> dict[str, str]:
    given = inputs.get("options")
    if isinstance(given, Mapping):
        return {str(letter): str(text) for letter, text in given.items()}
    return options_shown(str(given or "")) or {}


def _evidence(inputs: Inputs, query: str) -> dict[str, str]:
    """Return the strongest severity word per category in the given analysis: of the regions asked about, or of all."""
    given = parsed_json(inputs.get("distortion_analysis"))
    regions = given if isinstance(given, dict) else {}
    asked = [name for name in regions if name != GLOBAL and name.casefold() in query.casefold()]
    strongest: dict[str, str] = {}
    for region in [regions[name] for name in asked or regions]:
        for finding in region if isinstance(region, list) else []:
            if isinstance(finding, dict) and finding.get("severity") in SEVERITIES:
                name, word = str(finding.get("type")), str(finding["severity"])
                if SEVERITIES.index(word) >= SEVERITIES.index(strongest.get(name, "none")):
                    strongest[name] = word
    return strongest


def _scores(inputs: Inputs) -> list[tuple[str, float]]:
    """Return each distinct tool and its score, in the order given."""
    given = parsed_json(inputs.get("quality_scores"))
    found: dict[tuple[str, float], None] = {}
    for by in given.values() if isinstance(given, dict) else []:
        for reading in by.values() if isinstance(by, dict) else []:
            if isinstance(reading, list) and len(reading) == 2 and isinstance(reading[1], int | float):
                found[str(reading[0]), float(reading[1])] = None
    return list(found)


_EXPLAINING = frozenset({"final_answer", "quality_reasoning"})


def _respond(viewer: Viewer, demos: Demos, inputs: Inputs) -> dict[str, Any]:
    return (_choose if inputs.get("options") else _explain)(viewer, demos, inputs)


ANSWERED: Mapping[frozenset[str], Callable[[Viewer, Demos, Inputs], dict[str, Any]]] = {
    frozenset({"plan"}): _plan,
    frozenset({"distortion_set"}): _detect,
    frozenset({"distortion_analysis"}): _analyse,
    frozenset({"findings"}): _diagnose,
    frozenset({"selected_tools"}): _select,
    frozenset({"region_boxes"}): _locate,
    _EXPLAINING: _respond,
    frozenset({"quality_probs", "quality_reasoning"}): _score,
    frozenset({"quality_level", "quality_reasoning"}): _classify,
}
"""Output field names -> what answers them."""
