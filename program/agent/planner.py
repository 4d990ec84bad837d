"""The Planner: a question becomes a plan, and the rules are checked after the model answered."""

import logging
import re
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import dspy
from pydantic import BaseModel

from program.agent.notes import note
from program.agent.resources import Resources
from program.agent.state import AssessmentState
from program.common.errors import ToolError
from program.expert import named_distortions, named_tools, region_pattern
from program.lms.ask import ask
from program.lms.call import stage
from program.tools.registry import ToolRegistry
from signatures.planner import PLAN, PlanAssessment
from signatures.schemas import GLOBAL, Plan, steps

logger = logging.getLogger(__name__)


class PlanReading(NamedTuple):
    """The plan by the rules, and what became of the model's answer."""

    plan: Plan
    repairs: list[str]
    """What the rules changed, a line each."""
    unusable_tools: list[str]
    """The repairs that concern named tools which cannot be used."""
    error: str | None = None
    """Why the answer could not be used; None where it could."""


class Planner(dspy.Module):
    """Decide from the question alone what to look at: text only, so one call serves many images."""

    def __init__(self, resources: Resources) -> None:
        super().__init__()
        self.resources = resources
        self.plan = dspy.Predict(PlanAssessment)

    def forward(self, state: AssessmentState, tool_names: Sequence[str], feedback: str | None = None) -> PlanReading:
        """Return the plan, its repairs and the model's fault; `feedback` says what was lacking."""
        query, boxes, has_reference = state.query, list(state.regions or {}), state.reference_path is not None
        named = named_tools(query, tool_names)
        error = plan = None
        if not self.resources.one_word(state.reading):
            inputs: dict[str, Any] = {
                "query": query,
                "has_reference": has_reference,
                "region_names": boxes or None,
                "tool_names": list(tool_names),
                "feedback": feedback,
                "previous_plan": None,
            }
            if feedback and state.plan:
                inputs["previous_plan"] = state.plan.model_dump_json()
            with stage("planner"):
                lm = self.resources.lm("planner")
                wordings = self.resources.wordings("planner", state)
                answer = ask(self.plan, inputs, PLAN, lambda p: p.plan, lm=lm, wordings=wordings)
            plan = answer.value
            if plan is None:
                error = answer.errors[-1]
        if plan is None:  # every step is taken, with the tools that the question names
            plan = Plan(query_type="IQA", query_scope=boxes or [GLOBAL], required_tools=named)
        plan, left_out = as_asked(plan, query, boxes)
        reading = apply_rules(
            plan, has_reference=has_reference, boxes=boxes, registry=self.resources.registry,
            asked_for=named, query=query,
        )  # fmt: skip
        ruled, repairs = reading.plan, reading.repairs or "none"
        logger.info("plan: %s, scope %s, repairs: %s", ruled.query_type, ruled.query_scope, repairs)
        return reading._replace(repairs=[*left_out, *reading.repairs], error=error)


def as_asked(plan: Plan, query: str, boxes: Collection[str]) -> tuple[Plan, list[str]]:
    """Return a plan with what its question names, and a line on the regions left out.

    A region shares a word with the question (in another script it may be a translation) or is a
    box's name. Models are not asked whether a distortion was named: the question tells.
    """
    changes: dict[str, Any] = {}
    left_out = []
    unnamed = [region for region in plan.query_scope if not _is_named(region, query, boxes)]
    if unnamed:
        scope = [region for region in plan.query_scope if region not in unnamed]
        changes["query_scope"] = scope or [GLOBAL]
        left_out.append(f"query_scope: the question does not name {', '.join(unnamed)}; left out")
    if "distortion_source" not in plan.model_fields_set:
        asked = named_distortions(query)
        changes |= {"distortions": [], "distortion_source": "inferred"}
        for region in plan.distortions:
            kinds = [kind for kind in region.distortions if kind in asked]
            if kinds:
                changes["distortions"].append(region.model_copy(update={"distortions": kinds}))
                changes["distortion_source"] = "explicit"
    return plan.model_copy(update=changes), left_out


def _is_named(region: str, query: str, boxes: Collection[str]) -> bool:
    if region == GLOBAL or _own_name(region, boxes) in boxes:
        return True
    if not (region.isascii() and query.isascii()):
        return True
    return not _stems(query).isdisjoint(_stems(region))


def _stems(text: str) -> set[str]:
    return {word.rstrip("s") for word in re.findall(r"\w+", text.casefold())}


def apply_rules(
    plan: Plan,
    *,
    has_reference: bool,
    boxes: Collection[str],
    registry: ToolRegistry,
    asked_for: Collection[str] | None = None,
    query: str = "",
) -> PlanReading:
    """Return the plan as the paper's rules allow it, with one line per change.

    `signatures.schemas.steps` says which steps a plan takes. A known box makes a region measurable,
    so it counts like the whole image; regions get the names of their boxes. `asked_for` are the
    tools that the question names: a model that requires others is not followed. What cannot be used
    is said in the language of the `query`.
    """
    scope = list(dict.fromkeys(_own_name(region, boxes) for region in plan.query_scope))
    if len(scope) > 1 and GLOBAL in scope:
        scope.remove(GLOBAL)
    tools, unusable = _usable_tools(plan.required_tools, registry, query, has_reference=has_reference)
    changes = list(unusable)
    if asked_for is not None:
        listed = {spec.name for name in asked_for if (spec := registry.find(name))}
        unnamed = [tool for tool in tools if tool not in listed]
        tools = [tool for tool in tools if tool in listed]
        if unnamed:
            names = ", ".join(unnamed)
            changes.append(f"required_tools: the question does not name {names}; left out")
    is_iqa = plan.query_type == "IQA"
    named = []
    if is_iqa and plan.distortion_source == "explicit":
        for part in plan.distortions:
            if part.distortions:
                region = _own_name(part.region, boxes)
                named.append(part.model_copy(update={"region": region}))
    wanted: dict[str, Any] = {
        "query_scope": scope,
        "distortion_source": "explicit" if named else "inferred",
        "distortions": named,
        "reference_mode": "Full-Reference" if has_reference else "No-Reference",
        "required_tools": tools,
        **steps(
            is_iqa=is_iqa,
            names_distortions=bool(named),
            names_tools=bool(tools),
            is_measurable=any(region == GLOBAL or region in boxes for region in scope),
        ),
    }
    for field, value in wanted.items():
        given = getattr(plan, field)
        if given != value and field != "required_tools":
            changes.append(f"{field}: {_shown(given)} -> {_shown(value)}")
    return PlanReading(plan.model_copy(update=wanted), changes, unusable)


def _own_name(region: str, boxes: Collection[str]) -> str:
    """Return the caller's own name of a region, however the model wrote it."""
    if region in boxes:
        return region
    for name in boxes:
        if region_pattern(name).fullmatch(region):
            return name
    return region


def _usable_tools(
    names: Sequence[str], registry: ToolRegistry, query: str, *, has_reference: bool
) -> tuple[list[str], list[str]]:
    """Return which tools can be used, by the registry's names, and a line for each that cannot."""
    usable, unusable = [], []
    for name in names:
        try:
            spec = registry.get(name)
        except ToolError as error:
            unusable.append(note("unknown tool", query, error=error, tool=name))
            continue
        if spec.mode == "FR" and not has_reference:
            unusable.append(note("needs reference", query, tool=spec.name))
        elif spec.name not in usable:
            usable.append(spec.name)
    return usable, unusable


def _shown(value: object) -> str:
    if isinstance(value, list):
        value = [each.model_dump() if isinstance(each, BaseModel) else each for each in value]
    return str(value)
