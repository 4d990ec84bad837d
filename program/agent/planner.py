"""The Planner: a question becomes a plan, and the rules are checked after the model answered."""

import logging
import re
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import dspy

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
    """Of these, what they say of named tools that cannot be used."""
    error: str | None
    """Why the answer could not be used; None where it could."""


class Planner(dspy.Module):
    """Decide from the question alone what to look at: text only, so one call serves many images."""

    def __init__(self, resources: Resources) -> None:
        super().__init__()
        self.resources = resources
        self.plan = dspy.Predict(PlanAssessment)

    def forward(self, state: AssessmentState, tool_names: Sequence[str], feedback: str | None = None) -> PlanReading:
        """Return the plan, what the rules changed in the model's answer, and why that could not be used.

        `feedback` says what the evidence lacked; of which kind that is stands in the state.
        """
        has_reference = state.reference_path is not None
        boxes = list(state.regions or {})
        inputs = {
            "query": state.query,
            "has_reference": has_reference,
            "region_names": boxes or None,
            "tool_names": list(tool_names),
            "feedback": feedback,
            "gap": state.gap if feedback else None,
            "previous_plan": state.plan.model_dump_json() if feedback and state.plan else None,
        }
        named = named_tools(state.query, tool_names)
        error = plan = None
        if not self.resources.one_word(state.query, state.options):
            with stage("planner"):
                answer = ask(self.plan, inputs, PLAN, lambda p: p.plan, lm=self.resources.lm("planner"))
            plan = answer.value
            error = answer.errors[-1] if plan is None else None
        if plan is None:  # everything is looked at, with every step and the tools that the question names
            plan = Plan(query_type="IQA", query_scope=boxes or [GLOBAL], required_tools=named)
        plan, strange = of_question(plan, state.query, boxes)
        repaired, repairs = apply_rules(
            plan, has_reference=has_reference, boxes=boxes, registry=self.resources.registry, asked_for=named
        )
        logger.info("plan: %s, scope %s, repairs: %s", repaired.query_type, repaired.query_scope, repairs or "none")
        unusable = usable_tools(plan.required_tools, self.resources.registry, has_reference=has_reference)[1]
        return PlanReading(repaired, [*strange, *repairs], unusable, error)


def of_question(plan: Plan, query: str, boxes: Collection[str]) -> tuple[Plan, list[str]]:
    """Return a plan with the regions and distortions that its question names, and a line for each region left out.

    A region shares a word with the question (in another script it may be a translation) or is a box's name. Models
    are not asked whether a distortion was named: the question tells.
    """
    words = _stems(query)

    def is_named(region: str) -> bool:
        if region == GLOBAL or _called(region, boxes) in boxes or not (region.isascii() and query.isascii()):
            return True
        return not words.isdisjoint(_stems(region))

    strange = [region for region in plan.query_scope if not is_named(region)]
    scope = [region for region in plan.query_scope if region not in strange]
    found: dict[str, Any] = {"query_scope": scope or [GLOBAL]} if strange else {}
    if "distortion_source" not in plan.model_fields_set:
        asked = named_distortions(query)
        named = [
            r.model_copy(update={"distortions": [d for d in r.distortions if d in asked]}) for r in plan.distortions
        ]
        named = [r for r in named if r.distortions]
        found |= {"distortions": named, "distortion_source": "explicit" if named else "inferred"}
    left_out = [f"query_scope: the question does not name {', '.join(strange)}; left out"] if strange else []
    return plan.model_copy(update=found), left_out


def _stems(text: str) -> set[str]:
    return {word.rstrip("s") for word in re.findall(r"\w+", text.casefold())}


def apply_rules(
    plan: Plan,
    *,
    has_reference: bool,
    boxes: Collection[str],
    registry: ToolRegistry,
    asked_for: Collection[str] | None = None,
) -> tuple[Plan, list[str]]:
    """Return the plan as the paper's rules allow it, with one line per change.

    Rules: "Other" runs no step; detection only where no distortion is named; analysis always; tool+region or tool only:
    execute without selection; region without a known box: no tools; otherwise both. A known box makes
    a region measurable, so it counts like the whole image; regions get the names of their boxes. `asked_for` are the
    tools that the question names: a model that requires others is not followed.
    """
    changes: list[str] = []
    scope = list(dict.fromkeys(_called(region, boxes) for region in plan.query_scope))
    if len(scope) > 1 and GLOBAL in scope:
        scope.remove(GLOBAL)
    tools, unusable = usable_tools(plan.required_tools, registry, has_reference=has_reference)
    changes += unusable
    if asked_for is not None and (unnamed := [tool for tool in tools if tool not in asked_for]):
        tools = [tool for tool in tools if tool in asked_for]
        changes.append(f"required_tools: the question does not name {', '.join(unnamed)}; left out")
    is_iqa = plan.query_type == "IQA"
    named = [r for r in plan.distortions if r.distortions] if is_iqa and plan.distortion_source == "explicit" else []
    named = [r.model_copy(update={"region": _called(r.region, boxes)}) for r in named]
    unboxed = [region for region in scope if region != GLOBAL and region not in boxes]
    wanted: dict[str, Any] = {
        "query_scope": scope,
        "distortion_source": "explicit" if named else "inferred",
        "distortions": named,
        "reference_mode": "Full-Reference" if has_reference else "No-Reference",
        "required_tools": tools,
        **steps(
            is_iqa=is_iqa, names_distortions=bool(named), names_tools=bool(tools),
            is_measurable=len(unboxed) < len(scope),
        ),
    }  # fmt: skip
    for field, value in wanted.items():
        given = getattr(plan, field)
        if given != value and field != "required_tools":
            changes.append(f"{field}: {_shown(given)} -> {_shown(value)}")
    return plan.model_copy(update=wanted), changes


def _called(region: str, boxes: Collection[str]) -> str:
    """Return the caller's own name of a region, however the model wrote it."""
    if region in boxes:
        return region
    return next((name for name in boxes if region_pattern(name).fullmatch(region)), region)


def usable_tools(names: Sequence[str], registry: ToolRegistry, *, has_reference: bool) -> tuple[list[str], list[str]]:
    """Return which of these tools can be used, by the names that the registry has, and a line for each that cannot."""
    usable, unusable = [], []
    for name in names:
        try:
            spec = registry.get(name)
        except ToolError as error:
            unusable.append(str(error))
            continue
        if spec.mode == "FR" and not has_reference:
            unusable.append(f"tool {spec.name!r}: needs a reference image and none is given; left out")
        elif spec.name not in usable:
            usable.append(spec.name)
    return usable, unusable


def _shown(value: object) -> str:
    return str([getattr(v, "model_dump", lambda v=v: v)() for v in value]) if isinstance(value, list) else str(value)
