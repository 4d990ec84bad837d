"""The right answer to each question that a role was asked: by rules, known distortions, measured strengths, people."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dspy

from data.kadid import category_named, severity_of
from data.manifest import Sample
from optimizers.demos import LabelledDemo, as_references
from program.agent.planner import apply_rules
from program.agent.resources import Resources
from program.common.errors import InputError
from program.expert.answer.planning import plan_assessment
from program.fusion import LETTERS
from signatures.schemas import (
    LEVEL_WORDS,
    DistortionFinding,
    LevelProbabilities,
    Plan,
    RegionDistortions,
    ToolChoice,
)

__all__ = ("distortion_truth", "label_probabilities", "labelled_demos", "plan_by_rule")

Inputs = Mapping[str, Any]
Label = tuple["float | str", dict[str, Any]]
"""What demo sets are spread over, and the outputs."""


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


def labelled_demos(
    sample: Sample, example: dspy.Example, questions: Sequence[tuple[str, Inputs]], resources: Resources
) -> list[LabelledDemo]:
    """Return a demo of every question of a run whose right answer is known."""
    demos: dict[str, LabelledDemo] = {}
    for name, raw in questions:
        inputs = {field: as_references(value) for field, value in raw.items()}
        label = _LABELS[name](example, inputs, resources) if name in _LABELS else None
        if label is not None:
            value, outputs = label
            key = json.dumps({k: getattr(v, "url", v) for k, v in inputs.items()}, sort_keys=True, default=str)
            # Of questions repeated while replanning, the last one had all the evidence.
            demos[name] = LabelledDemo(name, sample.id, key, value, dspy.Example(**inputs, **outputs))
    return list(demos.values())


def plan_by_rule(questions: Sequence[tuple[str, Inputs]], resources: Resources) -> dict[str, Any] | None:
    """Return the plan that the rules give for the question that was asked, as JSON values; None if none was."""
    inputs = next((inputs for name, inputs in questions if name == "planner.plan"), None)
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


def _ruled_plan(inputs: Inputs, resources: Resources) -> Plan:
    boxes = [str(name) for name in inputs.get("region_names") or []]
    stated = Plan.model_validate(plan_assessment(inputs))
    has_reference = bool(inputs.get("has_reference"))
    return apply_rules(stated, has_reference=has_reference, boxes=boxes, registry=resources.registry)[0]


def _plan(example: dspy.Example, inputs: Inputs, resources: Resources) -> Label | None:
    if inputs.get("feedback"):
        return None
    plan = _ruled_plan(inputs, resources)
    return f"{plan.query_type} {plan.distortion_source} {len(plan.query_scope)}", {"plan": plan}


def _findings(example: dspy.Example, inputs: Inputs) -> tuple[str, list[DistortionFinding]] | None:
    truth = example.get("distortion_truth")
    if truth is None or list(inputs.get("regions") or ["Global"]) != ["Global"]:
        return None
    rated = f"; people rated such images {example.quality:.1f} of 5" if example.get("quality") is not None else ""
    findings = [
        DistortionFinding(
            region="Global", type=category, severity=severity,
            explanation=f"{severity.capitalize()} {category.casefold()} over the whole image{rated}.",
        )
        for category, severity in truth.items()
        if severity != "none"
    ]  # fmt: skip
    return " ".join(f"{f.type} {f.severity}" for f in findings) or "none", findings


def _diagnosed(example: dspy.Example, inputs: Inputs, resources: Resources) -> Label | None:
    truth = _findings(example, inputs)
    return None if truth is None or inputs.get("distortion_set") else (truth[0], {"findings": truth[1]})


def _analysed(example: dspy.Example, inputs: Inputs, resources: Resources) -> Label | None:
    truth = _findings(example, inputs)
    return None if truth is None else (truth[0], {"distortion_analysis": truth[1]})


def _detected(example: dspy.Example, inputs: Inputs, resources: Resources) -> Label | None:
    truth = _findings(example, inputs)
    if truth is None:
        return None
    kinds = RegionDistortions(region="Global", distortions=[finding.type for finding in truth[1]])
    return truth[0], {"distortion_set": [kinds]}


def _selected(example: dspy.Example, inputs: Inputs, resources: Resources) -> Label | None:
    wanted, listed = json.loads(inputs["distortion_set"]), json.loads(inputs["tools"])
    registry = resources.registry
    try:
        ready = [registry.get(tool["name"]) for tool in listed]
    except InputError:
        return None
    choices = [
        ToolChoice(region=region, distortion=kind, tool=registry.best(None if kind == "Overall" else kind, ready).name)
        for region, kinds in wanted.items()
        for kind in kinds or ["Overall"]
    ]
    return " ".join(sorted({c.distortion for c in choices})), {"selected_tools": choices}


def _scored(example: dspy.Example, inputs: Inputs, resources: Resources) -> Label | None:
    if example.get("quality") is None:
        return None
    quality = float(example.quality)
    return quality, {"quality_probs": label_probabilities(quality), "quality_reasoning": _rated(quality)}


def _classified(example: dspy.Example, inputs: Inputs, resources: Resources) -> Label | None:
    if example.get("quality") is None:
        return None
    quality = float(example.quality)
    letter = LETTERS[min(5, max(1, math.floor(quality + 0.5))) - 1]
    return quality, {"quality_level": letter, "quality_reasoning": _rated(quality)}


def _answered(example: dspy.Example, inputs: Inputs, resources: Resources) -> Label | None:
    letter = example.get("answer")
    if letter is None:
        return None
    text = example.options[letter]
    outputs = {"final_answer": letter, "quality_reasoning": f"People chose {letter}. {text}."}
    return f"{example.query} {text}", outputs


def _rated(quality: float) -> str:
    return f"People rated images like this {quality:.2f} of 5."


_LABELS: dict[str, Callable[[dspy.Example, Inputs, Resources], Label | None]] = {
    "planner.plan": _plan,
    "executor.detect": _detected,
    "executor.analyse": _analysed,
    "executor.diagnose": _diagnosed,
    "executor.select_tools": _selected,
    "summarizer.score": _scored,
    "summarizer.classify": _classified,
    "summarizer.answer": _answered,
}
"""The right answer to a question that a predictor was asked, or None where nobody knows it."""
