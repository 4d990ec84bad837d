"""Lessons: a question one role was asked, with the answer that rules, known distortions, strengths or people give."""

import base64
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dspy

from data.kadid import severity_of
from data.manifest import Sample
from data.names import category_named
from program.errors import InputError
from program.fusion import LETTERS
from program.images import HOST, IMAGES
from program.lms.perceptual.planning import plan_assessment
from program.planner import apply_rules
from program.resources import Resources
from signatures.schemas import (
    LEVEL_WORDS,
    DistortionFinding,
    LevelProbabilities,
    Plan,
    RegionDistortions,
    ToolChoice,
)

__all__ = (
    "Lesson",
    "as_references",
    "distortion_truth",
    "image_url",
    "label_probabilities",
    "lessons_of",
    "plan_by_rule",
)


@dataclass(frozen=True)
class Lesson:
    """One demo of one predictor."""

    predictor: str
    sample: str
    """Id of the sample it came from."""
    key: str
    """Equal for equal questions."""
    value: float | str
    """What a set of demos is spread over: the human score, the answer, the distortion."""
    demo: dspy.Example


def distortion_truth(sample: Sample) -> dict[str, str] | None:
    """Return the distortions that are known to be there, category -> severity; None where the data does not say.

    Known from "category" and "severity" (quickstart), or from a distortion's name and a score: the severity then is
    the score's step on the impairment scale, as `data.kadid.severity_of` reads it. An undistorted image has {}.
    """
    about = sample.metadata
    if about.get("identity"):
        return {}
    category = about.get("category") or category_named(sample.distortion)
    severity = about.get("severity") or (severity_of(sample.quality) if sample.quality is not None else None)
    if category is None or severity is None:
        return None
    return {str(category): str(severity)}


def lessons_of(
    sample: Sample, example: dspy.Example, asked: Sequence[tuple[str, Mapping[str, Any]]], resources: Resources
) -> list[Lesson]:
    """Return a lesson for every question of a run whose right answer is known."""
    found: dict[str, Lesson] = {}
    for name, raw in asked:
        inputs = {field: as_references(value) for field, value in raw.items()}
        answering = _TRUTHS.get(name)
        truth = answering(example, inputs, resources) if answering else None
        if truth is not None:
            value, outputs = truth
            key = json.dumps({k: getattr(v, "url", v) for k, v in inputs.items()}, sort_keys=True, default=str)
            # Of questions repeated while replanning, the last one had all the evidence.
            found[name] = Lesson(name, sample.id, key, value, dspy.Example(**inputs, **outputs))
    return list(found.values())


def plan_by_rule(asked: Sequence[tuple[str, Mapping[str, Any]]], resources: Resources) -> dict[str, Any] | None:
    """Return the plan that the rules give for the question that was asked, as JSON values; None if none was."""
    inputs = next((inputs for name, inputs in asked if name == "planner.plan"), None)
    return _ruled_plan(inputs, resources).model_dump() if inputs is not None else None


def label_probabilities(quality: float) -> LevelProbabilities:
    """Return the narrowest belief over the levels whose mean is a human score (1..5): its two nearest levels.

    >>> label_probabilities(2.9).by_level()[3]
    0.9
    """
    quality = min(5.0, max(1.0, quality))
    lower = min(4, math.floor(quality))
    share = round(quality - lower, 6)
    masses = dict.fromkeys(LEVEL_WORDS, 0.0)
    masses[LEVEL_WORDS[lower - 1]] = round(1 - share, 6)
    masses[LEVEL_WORDS[lower]] = share
    return LevelProbabilities(**masses)


def as_references(value: Any) -> Any:
    """Return an image that was inlined for a model as a reference to the same bytes; other values as they are."""
    url = value.get("url") if isinstance(value, Mapping) else getattr(value, "url", value)
    if not isinstance(url, str):
        return value
    if url.startswith(HOST):
        return dspy.Image(url)
    inlined = re.fullmatch(r"data:image/[\w.+-]+;base64,([A-Za-z0-9+/=]+)", url)
    return dspy.Image(IMAGES.add(base64.b64decode(inlined[1])).url) if inlined else value


def image_url(demo: Mapping[str, Any]) -> str | None:
    """Return the reference that stands for a demo's image, or None where it has none."""
    return getattr(demo.get("image"), "url", None)


Truth = tuple["float | str", dict[str, Any]]


def _ruled_plan(inputs: Mapping[str, Any], resources: Resources) -> Plan:
    boxes = [str(name) for name in inputs.get("region_names") or []]
    stated = Plan.model_validate(plan_assessment(inputs))
    has_reference = bool(inputs.get("has_reference"))
    return apply_rules(stated, has_reference=has_reference, boxes=boxes, registry=resources.registry)[0]


def _plan(example: dspy.Example, inputs: Mapping[str, Any], resources: Resources) -> Truth | None:
    if inputs.get("feedback"):
        return None
    plan = _ruled_plan(inputs, resources)
    return f"{plan.query_type} {plan.distortion_source} {len(plan.query_scope)}", {"plan": plan}


def _findings(example: dspy.Example, inputs: Mapping[str, Any], resources: Resources) -> Truth | None:
    truth = example.get("distortion_truth")
    if truth is None or list(inputs.get("regions") or ["Global"]) != ["Global"]:
        return None
    rated = f"; people rated such images {example.quality:.1f} of 5" if example.get("quality") is not None else ""
    findings = [
        DistortionFinding(
            region="Global",
            type=category,
            severity=severity,
            explanation=f"{severity.capitalize()} {category.casefold()} over the whole image{rated}.",
        )
        for category, severity in truth.items()
        if severity != "none"
    ]
    kind = " ".join(f"{f.type} {f.severity}" for f in findings) or "none"
    return kind, {"findings": findings, "distortion_analysis": findings}


def _diagnosed(example: dspy.Example, inputs: Mapping[str, Any], resources: Resources) -> Truth | None:
    found = _findings(example, inputs, resources)
    return (found[0], {"findings": found[1]["findings"]}) if found and not inputs.get("distortion_set") else None


def _analysed(example: dspy.Example, inputs: Mapping[str, Any], resources: Resources) -> Truth | None:
    found = _findings(example, inputs, resources)
    return (found[0], {"distortion_analysis": found[1]["distortion_analysis"]}) if found else None


def _detected(example: dspy.Example, inputs: Mapping[str, Any], resources: Resources) -> Truth | None:
    found = _findings(example, inputs, resources)
    if found is None:
        return None
    seen = [f.type for f in found[1]["findings"]]
    return found[0], {"distortion_set": [RegionDistortions(region="Global", distortions=seen)]}


def _selected(example: dspy.Example, inputs: Mapping[str, Any], resources: Resources) -> Truth | None:
    wanted, listed = json.loads(inputs["distortion_set"]), json.loads(inputs["tools"])
    try:
        ready = [resources.registry.get(tool["name"]) for tool in listed]
    except InputError:
        return None
    choices = [
        ToolChoice(region=region, distortion=kind, tool=resources.registry.best(_known(kind), ready).name)
        for region, kinds in wanted.items()
        for kind in kinds or ["Overall"]
    ]
    return " ".join(sorted({c.distortion for c in choices})), {"selected_tools": choices}


def _known(kind: str) -> str | None:
    return None if kind == "Overall" else kind


def _scored(example: dspy.Example, inputs: Mapping[str, Any], resources: Resources) -> Truth | None:
    if example.get("quality") is None:
        return None
    quality = float(example.quality)
    return quality, {"quality_probs": label_probabilities(quality), "quality_reasoning": _rated(quality)}


def _classified(example: dspy.Example, inputs: Mapping[str, Any], resources: Resources) -> Truth | None:
    if example.get("quality") is None:
        return None
    quality = float(example.quality)
    letter = LETTERS[min(5, max(1, math.floor(quality + 0.5))) - 1]
    return quality, {"quality_level": letter, "quality_reasoning": _rated(quality)}


def _answered(example: dspy.Example, inputs: Mapping[str, Any], resources: Resources) -> Truth | None:
    if example.get("answer") is None:
        return None
    text = example.options[example.answer]
    return f"{example.query} {text}", {
        "final_answer": example.answer,
        "quality_reasoning": f"People chose {example.answer}. {text}.",
    }


def _rated(quality: float) -> str:
    return f"People rated images like this {quality:.2f} of 5."


_TRUTHS: dict[str, Callable[[dspy.Example, Mapping[str, Any], Resources], Truth | None]] = {
    "planner.plan": _plan,
    "executor.detect": _detected,
    "executor.analyse": _analysed,
    "executor.diagnose": _diagnosed,
    "executor.select_tools": _selected,
    "summarizer.score": _scored,
    "summarizer.classify": _classified,
    "summarizer.answer": _answered,
}
"""Predictor -> the right answer to a question it was asked, with what demo sets are spread over."""
