"""Demos of predictors: a question with its right answer; which of them are shown, and in which form."""

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, pairwise, zip_longest
from operator import attrgetter
from typing import Any

import dspy

from data.distortions import category_named, severity_of
from data.manifest import Sample
from optimizers.student import inputs_key
from program.agent.loop import AgenticIQA
from program.agent.planner import apply_rules
from program.agent.resources import Resources
from program.agent.state import AssessmentState
from program.common.errors import InputError
from program.common.settings import RecipeSettings
from program.expert import plan_assessment
from program.fusion.levels import nearest_level
from program.lms.ask import with_references
from signatures.schemas import LEVEL_WORDS, DistortionFinding, LevelProbabilities, Plan, ToolChoice

Inputs = Mapping[str, Any]
Label = tuple["float | str", dict[str, Any]]
"""What demo sets are spread over, and the outputs."""


@dataclass(frozen=True)
class LabelledDemo:
    """One demo of one predictor, its answer given by rules, known distortions, measured strengths or the labels."""

    predictor: str
    sample: str
    """Id of the sample it came from."""
    key: str
    """Equal for equal questions."""
    value: float | str
    """What a set of demos is spread over: the human score, the answer, the distortion."""
    demo: dspy.Example


def choose_demos(
    name: str, demos: Sequence[LabelledDemo], budget: RecipeSettings, seed: int, taken: int = 0
) -> list[dspy.Example]:
    """Return the demos that a predictor is shown beside those `taken`, spread over what people or rules said.

    The Summarizer's are as many as `demos` of its budget (None: all), the other roles' `role_demos`.
    """
    wanted = budget.demos if name.startswith("summarizer.") else budget.role_demos
    count = len(demos)
    if wanted is not None:
        count = max(0, min(wanted - taken, count))
    rng = random.Random(f"{seed}/{name}")
    shuffled = rng.sample(demos, len(demos))
    ordered = sorted(shuffled, key=attrgetter("value"))
    if ordered and isinstance(ordered[0].value, str):
        kinds = [list(members) for _, members in groupby(ordered, key=attrgetter("value"))]
        rng.shuffle(kinds)
        turns = chain.from_iterable(zip_longest(*kinds))  # one of each value, however rare it is, then another
        return [each.demo for each in filter(None, turns)][:count]
    bounds = [len(ordered) * place // max(1, count) for place in range(count + 1)]
    return [rng.choice(ordered[low:high]).demo for low, high in pairwise(bounds)]


def showable_demos(program: AgenticIQA) -> None:
    """Keep, in place, the demos that answer their predictor's question, images as references."""
    for predictor in program.predictors():
        predictor.lm = None
        inputs, outputs = predictor.signature.input_fields, predictor.signature.output_fields
        shown = {*inputs, *outputs, "findings"}
        demos = []
        for demo in map(with_references, predictor.demos):
            fields = {name: value for name, value in demo.items() if name in shown and value is not None}
            # Which outputs a question asks for depends on how it is put: a level's word alone, say.
            if ("image" not in inputs or "image" in fields) and not fields.keys().isdisjoint(outputs):
                demos.append(dspy.Example(**fields))
        predictor.demos = demos


def image_url(demo: Mapping[str, Any]) -> str | None:
    """Return the reference that stands for a demo's image, or None where it has none."""
    return getattr(demo.get("image"), "url", None)


def distortion_truth(sample: Sample) -> dict[str, str] | None:
    """Return the distortions that are known to be there, category -> severity; None where the data does not say.

    Known from "category" and "severity" (quickstart), or from a distortion's name and a score: the severity then is
    the score's step on the impairment scale, as `data.distortions.severity_of` reads it. An undistorted image has {}.
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
    sample: Sample, example: dspy.Example, questions: Sequence[tuple[str, Inputs]], resources: Resources,
    state: AssessmentState | None = None,
) -> list[LabelledDemo]:  # fmt: skip
    """Return a demo of every question of a run, which ended in `state`, whose right answer is known."""
    demos: dict[str, LabelledDemo] = {}
    for name, inputs in questions:
        label = _LABELS[name](example, inputs, resources) if name in _LABELS else None
        if label is not None:
            value, outputs = label
            if name in {"summarizer.score", "summarizer.classify"} and inputs.get("distortion_analysis") is None:
                outputs = {**_named_distortions(example, state), **outputs}
            # Of questions repeated while replanning, the last one had all the evidence.
            demos[name] = LabelledDemo(name, sample.id, inputs_key(inputs), value, dspy.Example(**inputs, **outputs))
    return list(demos.values())


def _named_distortions(example: dspy.Example, state: AssessmentState | None) -> dict[str, Any]:
    """Return the findings of an answer that names the distortions too: those that are known, else the model's own."""
    findings = _known_findings(example)
    if findings is None and state is not None and state.evidence.distortion_analysis is not None:
        findings = [DistortionFinding(**finding.model_dump()) for _, finding in state.evidence.findings()]
    return {} if findings is None else {"findings": findings}


def plan_by_rule(questions: Sequence[tuple[str, Inputs]], resources: Resources) -> dict[str, Any] | None:
    """Return the plan that the rules give for the question that was asked, as JSON values; None if none was."""
    for name, inputs in questions:
        if name == "planner.plan":
            return _ruled_plan(inputs, resources).model_dump()
    return None


def label_probabilities(quality: float) -> LevelProbabilities:
    """Return the narrowest belief over the levels whose mean is a human score (1..5): its two nearest levels.

    >>> label_probabilities(2.9).by_level()[3]
    0.9
    """
    quality = min(5.0, max(1.0, quality))
    lower = min(4, math.floor(quality))
    share = round(quality - lower, 6)
    masses = {LEVEL_WORDS[lower - 1]: round(1 - share, 6), LEVEL_WORDS[lower]: share}
    return LevelProbabilities(**(dict.fromkeys(LEVEL_WORDS, 0.0) | masses))


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


def _known_findings(example: dspy.Example) -> list[DistortionFinding] | None:
    truth = example.get("distortion_truth")
    if truth is None:
        return None
    findings = []
    for kind, severity in truth.items():
        if severity != "none":
            words = f"{severity.capitalize()} {kind.casefold()} over the whole image."
            findings.append(DistortionFinding(region="Global", type=kind, severity=severity, explanation=words))
    return findings


def _diagnosed(example: dspy.Example, inputs: Inputs, resources: Resources) -> Label | None:
    findings = _known_findings(example)
    of_part = inputs.get("distortion_set") or list(inputs.get("regions") or ["Global"]) != ["Global"]
    if findings is None or of_part:
        return None
    return " ".join(f"{f.type} {f.severity}" for f in findings) or "none", {"findings": findings}


def _selected(example: dspy.Example, inputs: Inputs, resources: Resources) -> Label | None:
    wanted, listed = json.loads(inputs["distortion_set"]), json.loads(inputs["tools"])
    registry = resources.registry
    try:
        ready = [registry.get(tool["name"]) for tool in listed]
    except InputError:
        return None
    choices = []
    for region, kinds in wanted.items():
        for kind in kinds or ["Overall"]:
            tool = registry.best(None if kind == "Overall" else kind, ready).name
            choices.append(ToolChoice(region=region, distortion=kind, tool=tool))
    return " ".join(sorted({c.distortion for c in choices})), {"selected_tools": choices}


def _rated(
    example: dspy.Example, inputs: Inputs, resources: Resources, *, output: str, answer: Callable[[float], Any]
) -> Label | None:
    if example.get("quality") is None:
        return None
    quality = float(example.quality)
    # What the level means: a figure, or who gave it, would be recited of other images.
    return quality, {output: answer(quality), "quality_reasoning": _MEANING[nearest_level(quality) - 1]}


_MEANING = (
    "Extreme distortions make it unusable.", "Severe distortions have a significant impact.",
    "Moderate distortions have a noticeable impact.", "Minor distortions have little impact.",
    "No distortion is visible.",
)  # fmt: skip
"""Of the levels from 1 to 5, as the questions explain them."""


def _answered(example: dspy.Example, inputs: Inputs, resources: Resources) -> Label | None:
    letter = example.get("answer")
    if letter is None:
        return None
    judge, text = str(example.get("judge", "people")), example.options[letter]
    outputs = {"final_answer": letter, "quality_reasoning": f"{judge[0].upper()}{judge[1:]} chose {letter}. {text}."}
    return f"{example.query} {text}", outputs


_LABELS: dict[str, Callable[[dspy.Example, Inputs, Resources], Label | None]] = {
    "planner.plan": _plan,
    "executor.diagnose": _diagnosed,
    "executor.select_tools": _selected,
    "summarizer.score": partial(_rated, output="quality_probs", answer=label_probabilities),
    "summarizer.classify": partial(_rated, output="quality_level", answer=lambda q: LEVEL_WORDS[nearest_level(q) - 1]),
    "summarizer.answer": _answered,
}
"""The right answer to a question that a predictor was asked, or None where nobody knows it."""
