"""The Executor: distortions found and analysed by the model, measured by tools; each step behind its flag."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeVar

import dspy

from program.agent.resources import Resources
from program.agent.state import AssessmentState, ExecutorOutput, Finding, ToolLog
from program.images.store import IMAGES, Box, ImageRef
from program.lms.ask import ask
from program.lms.metering import stage
from program.tools.registry import Mode, ToolSpec
from signatures.executor import AnalyseDistortions, DetectDistortions, DiagnoseDistortions, LocateRegions, SelectTools
from signatures.schemas import DISTORTION_CATEGORIES, GLOBAL, DistortionFinding, Plan, RegionDistortions

__all__ = ("OVERALL", "Executor")

logger = logging.getLogger(__name__)

OVERALL = "Overall"
"""What a tool measures in a region where no distortion was found or named."""

_LOST = "was asked for and gave no score"

_DETECTED = {"distortion_set": [{"region": GLOBAL, "distortions": ["Blurs"]}]}
_FINDINGS = [{"region": GLOBAL, "type": "Blurs", "severity": "moderate", "explanation": "Edges appear soft."}]
_CHOSEN = {"selected_tools": [{"region": GLOBAL, "distortion": "Blurs", "tool": "PSNR"}]}
_LOCATED = {"region_boxes": [{"region": "vehicle", "x0": 0.1, "y0": 0.2, "x1": 0.6, "y1": 0.9}]}


class _View(NamedTuple):
    """What the model looks at in one question: an image (or a region's crop) and the regions it stands for."""

    image: ImageRef
    reference: ImageRef | None
    regions: tuple[str, ...]
    is_crop: bool = False

    def inputs(self, query: str, **others: Any) -> dict[str, Any]:
        """Return the inputs of a question about it."""
        return {"image": self.image, "reference": self.reference, "query": query, **others}


@dataclass
class _Evidence:
    findings: dict[str, list[Finding]] = field(default_factory=dict)
    distortions: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failed_steps: list[str] = field(default_factory=list)


class Executor(dspy.Module):
    """Gather evidence as the plan asks for it. A step that fails is recorded and the others go on."""

    def __init__(self, resources: Resources) -> None:
        super().__init__()
        self.resources = resources
        self.detect = dspy.Predict(DetectDistortions)
        self.analyse = dspy.Predict(AnalyseDistortions)
        self.diagnose = dspy.Predict(DiagnoseDistortions)
        self.select_tools = dspy.Predict(SelectTools)
        self.locate = dspy.Predict(LocateRegions)

    def forward(
        self,
        state: AssessmentState,
        image: ImageRef,
        reference: ImageRef | None = None,
        avoid: Sequence[str] = (),
    ) -> ExecutorOutput:
        """Return the evidence for a planned state. `avoid` names tools that failed on this image before."""
        plan = state.plan
        if plan is None:
            raise ValueError("the state has no plan; call the Planner first")
        if plan.query_type == "Other":
            return ExecutorOutput()
        with stage("executor"):
            boxes = self._boxes(plan, state, image)
            evidence = _Evidence()
            if state.plan_error is not None:
                evidence.notes.append(
                    f"no usable plan came ({state.plan_error}): the general plan stands in, and a region that only the "
                    "question names is not looked at for itself"
                )
                evidence.failed_steps.append("plan")
            self._diagnose(plan, state.query, _views(plan.query_scope, boxes, image, reference), evidence)
            # A tool that the user named and that cannot be used is never replaced in silence.
            evidence.notes += [repair for repair in state.plan_repairs if repair.startswith("tool ")]
            evidence.notes += [
                f"region {region!r}: no box is known, so no tool measures it"
                for region in plan.query_scope
                if region != GLOBAL and region not in boxes
            ]
            chosen = self._chosen_tools(plan, evidence, boxes, avoid)
            with stage("tools"):
                scores, logs = self._measurements(chosen, image, reference, boxes, avoid)
            if logs and not scores:
                evidence.failed_steps.append("tools")
            evidence.notes += _lost_tools(plan, logs, state.executor_evidence)
        return ExecutorOutput(
            distortion_set=evidence.distortions or None,
            distortion_analysis=evidence.findings or None,
            region_boxes=boxes or None,
            selected_tools=chosen or None,
            quality_scores=scores or None,
            tool_logs=logs,
            notes=evidence.notes,
            failed_steps=evidence.failed_steps,
        )

    def tool_names(self, reference: ImageRef | None, avoid: Sequence[str] = ()) -> list[str]:
        """Return the tools that are ready for an image, those that compare with a reference first."""
        modes: tuple[Mode, ...] = ("NR",) if reference is None else ("FR", "NR")
        return [spec.name for mode in modes for spec in self.resources.runner.ready(mode) if spec.name not in avoid]

    def _boxes(self, plan: Plan, state: AssessmentState, image: ImageRef) -> dict[str, Box]:
        """Return the known boxes of the plan's regions, in pixels; the model is asked for those nobody gave."""
        boxes = {r: box for r, box in (state.regions or {}).items() if r in plan.query_scope}
        missing = [region for region in plan.query_scope if region != GLOBAL and region not in boxes]
        if missing:
            inputs = {"image": image, "query": state.query, "regions": missing}
            width, height = image.width, image.height
            for place in self._ask(self.locate, inputs, _LOCATED) or ():
                if place.region in missing:
                    boxes[place.region] = (place.x0 * width, place.y0 * height, place.x1 * width, place.y1 * height)
        return boxes

    def _diagnose(self, plan: Plan, query: str, views: Sequence[_View], evidence: _Evidence) -> None:
        named: dict[str, list[str]] = {r.region: list(r.distortions) for r in plan.distortions}
        for view in views:
            asked = {region: named[region] for region in view.regions if region in named}
            if not asked and len(named) == 1 and plan.query_scope != [GLOBAL]:
                # Named for the whole image, or in words that differ from the region's: it is meant for each region.
                asked = dict.fromkeys(view.regions, next(iter(named.values())))
            if plan.distortion_detection and self.resources.settings.assessment.diagnosis == "separate":
                asked = self._detected(view, query, evidence)
                if not any(asked.values()):
                    evidence.distortions |= asked
                    evidence.findings |= {region: [] for region in asked}
                    continue
            if plan.distortion_analysis:
                self._analyse(view, query, asked, evidence)
            evidence.distortions |= asked

    def _detected(self, view: _View, query: str, evidence: _Evidence) -> dict[str, list[str]]:
        inputs = view.inputs(query, regions=list(view.regions))
        sets = self._ask(self.detect, inputs, _DETECTED, evidence, "detection")
        if sets is None:
            return {}
        return {
            region: list(dict.fromkeys(name for entry in entries for name in entry.distortions))
            for region, entries in _by_region(view, sets, evidence).items()
        }

    def _analyse(self, view: _View, query: str, asked: dict[str, list[str]], evidence: _Evidence) -> None:
        listed = json.dumps(asked, ensure_ascii=False) if asked else None
        if self.resources.settings.assessment.diagnosis == "separate" and listed:
            predictor, inputs = self.analyse, view.inputs(query, distortion_set=listed)
            example = {"distortion_analysis": _FINDINGS}
        else:
            predictor, inputs = self.diagnose, view.inputs(query, regions=list(view.regions), distortion_set=listed)
            example = {"findings": _FINDINGS}
        answer = self._ask(predictor, inputs, example, evidence, "analysis")
        if answer is None:
            return
        for region, entries in _by_region(view, answer, evidence).items():
            evidence.findings[region] = [
                Finding(type=f.type, severity=f.severity, explanation=f.explanation.strip()) for f in entries
            ]
            if region not in asked:
                present = [f.type for f in evidence.findings[region] if f.severity != "none"]
                asked[region] = list(dict.fromkeys(present))

    def _chosen_tools(
        self, plan: Plan, evidence: _Evidence, boxes: Mapping[str, Box], avoid: Sequence[str]
    ) -> dict[str, dict[str, str]]:
        """Return region -> distortion -> tool for the regions that can be measured.

        A tool that the user named measures the whole image where no region can be.
        """
        regions = [r for r in plan.query_scope if r == GLOBAL or r in boxes]
        mode: Mode = "FR" if plan.reference_mode == "Full-Reference" else "NR"
        ready = [spec for spec in self.resources.runner.ready(mode) if spec.name not in avoid]
        if plan.required_tools and plan.tool_execute:
            named = self._stand_ins(plan.required_tools, ready, avoid, evidence)
            if named and not regions:
                evidence.notes.append(f"the whole image is measured with {', '.join(named)} instead")
            labels = {OVERALL if len(named) == 1 else f"{OVERALL} ({tool})": tool for tool in named}
            return {region: dict(labels) for region in regions or [GLOBAL] if labels}
        if not (plan.tool_selection or (boxes and plan.distortion_analysis)) or not regions:
            return {}
        if not ready:
            evidence.notes.append("no tool is ready for this image")
            return {}
        wanted = {region: _ordered(evidence.distortions.get(region, [])) for region in regions}
        inputs = {"distortion_set": json.dumps(wanted, ensure_ascii=False), "tools": _tool_list(ready)}
        choices = self._ask(self.select_tools, inputs, _CHOSEN, evidence, "tool selection") or ()
        picked = {(c.region, c.distortion): c.tool for c in choices}
        return {
            region: {
                distortion: self._checked(picked.get((region, distortion)), distortion, ready, evidence)
                for distortion in distortions or [OVERALL]
            }
            for region, distortions in wanted.items()
        }

    def _checked(self, name: str | None, distortion: str, ready: Sequence[ToolSpec], evidence: _Evidence) -> str:
        """Return the picked tool if it is ready and fits, else the registry's best one, saying so."""
        names = {spec.name for spec in ready}
        spec = self.resources.registry.find(name) if name else None
        if spec is not None and spec.name in names:
            return spec.name
        best = self.resources.registry.best(None if distortion == OVERALL else distortion, ready)
        if name:
            evidence.notes.append(f"tool {name!r}: not ready for this image; {best.name} measures {distortion} instead")
        return best.name

    def _stand_ins(
        self, named: Sequence[str], ready: Sequence[ToolSpec], avoid: Sequence[str], evidence: _Evidence
    ) -> list[str]:
        """Return the tools the user named; one that failed before gives its place to the best ready one."""
        tools: list[str] = []
        for tool in named:
            others = [spec for spec in ready if spec.name not in {*named, *tools}]
            if tool not in avoid:
                tools.append(tool)
            elif others:
                tools.append(self.resources.registry.best(None, others).name)
                evidence.notes.append(f"tool {tool!r}: failed on this image; {tools[-1]} measures instead")
        return tools

    def _measurements(
        self,
        chosen: Mapping[str, Mapping[str, str]],
        image: ImageRef,
        reference: ImageRef | None,
        boxes: Mapping[str, Box],
        avoid: Sequence[str],
    ) -> tuple[dict[str, dict[str, tuple[str, float]]], list[ToolLog]]:
        scores: dict[str, dict[str, tuple[str, float]]] = {}
        logs: list[ToolLog] = []
        for region, by_distortion in chosen.items():
            for distortion, tool in by_distortion.items():
                spec = self.resources.registry.get(tool)
                target = reference if spec.mode == "FR" else None
                reading = self.resources.runner.measure(tool, image, target, box=boxes.get(region), category=distortion)
                log = ToolLog(region=region, distortion=distortion, **{**asdict(reading), "tool": tool})
                if reading.error:
                    log.alternative = self._alternative(spec, distortion, reference is not None, [*avoid, tool])
                    logger.warning("tool %s failed for %s in %s: %s", tool, distortion, region, reading.error)
                elif reading.score is not None:
                    scores.setdefault(region, {})[distortion] = (tool, reading.score)
                logs.append(log)
        scored = [log for log in logs if log.score is not None]
        shares = self.resources.runner.precisions([(log.tool, log.distortion) for log in scored])
        for log, share in zip(scored, shares, strict=True):
            log.precision = share
        return scores, logs

    def _alternative(self, failed: ToolSpec, distortion: str, has_reference: bool, avoid: Sequence[str]) -> str | None:
        others = [s for s in self.resources.runner.ready("FR" if has_reference else "NR") if s.name not in avoid]
        category = distortion if distortion in DISTORTION_CATEGORIES else None
        return self.resources.registry.best(category, others).name if others else None

    def _ask(
        self,
        predictor: dspy.Predict,
        inputs: Mapping[str, Any],
        example: Mapping[str, Any],
        evidence: _Evidence | None = None,
        step: str = "",
    ) -> Any:
        """Return what a model answers in the one field of an example; None, and a failed step, for no usable answer."""
        (name,) = example
        answer = ask(predictor, inputs, lm=self.resources.lm("executor"), check=lambda p: p[name], example=example)
        if answer.value is None and evidence is not None:
            evidence.notes.append(f"{step} failed: {answer.errors[-1]}")
            evidence.failed_steps.append(step)
        return answer.value


def _lost_tools(plan: Plan, logs: Sequence[ToolLog], earlier: ExecutorOutput | None) -> list[str]:
    """Return a note for each tool that the user named and that gave no score; a later plan may leave such a one out."""
    notes = [note for note in (earlier.notes if earlier else ()) if _LOST in note]
    lost = [log for log in logs if log.error and log.tool in plan.required_tools]
    notes += [f"tool {log.tool!r} {_LOST} ({str(log.error).removeprefix(f'tool {log.tool!r}: ')})" for log in lost]
    return list(dict.fromkeys(notes))


def _views(scope: Sequence[str], boxes: Mapping[str, Box], image: ImageRef, reference: ImageRef | None) -> list[_View]:
    """Return one view per boxed region (its crop) and one of the whole image for all the others."""
    whole = tuple(region for region in scope if region not in boxes)
    views = [_View(image, reference, whole)] if whole else []
    for region in scope:
        if box := boxes.get(region):
            cropped = IMAGES.cropped(reference, box) if reference else None
            views.append(_View(IMAGES.cropped(image, box), cropped, (region,), is_crop=True))
    return views


_Entry = TypeVar("_Entry", DistortionFinding, RegionDistortions)


def _by_region(view: _View, answered: Sequence[_Entry], evidence: _Evidence) -> dict[str, list[_Entry]]:
    """Return what was answered by the region that it names; a name that is none of the view's is noted, not moved.

    No answer at all is "nothing" for every region; otherwise a region that nothing was said of is left out.
    """
    if not answered:
        return {region: [] for region in view.regions}
    names = {_folded(region): region for region in view.regions}
    if len(view.regions) == 1 and view.is_crop:
        names[_folded(GLOBAL)] = view.regions[0]  # the whole of what was shown is the region
    entries: dict[str, list[_Entry]] = {}
    for entry in answered:
        # An entry that names nothing speaks of what was asked about, where that is one region.
        unnamed = "region" not in entry.model_fields_set and len(view.regions) == 1
        region = view.regions[0] if unnamed else names.get(_folded(entry.region))
        if region is not None:
            entries.setdefault(region, []).append(entry)
        elif (note := f"the model spoke of {entry.region!r}, which is no region of the question") not in evidence.notes:
            evidence.notes.append(note)
    return entries


def _folded(name: str) -> str:
    return " ".join(name.casefold().split()).removeprefix("the ")


def _ordered(distortions: Sequence[str]) -> list[str]:
    """Return categories in their fixed order, so that equal sets ask the model the same question."""
    return [category for category in DISTORTION_CATEGORIES if category in distortions]


def _tool_list(ready: Sequence[ToolSpec]) -> str:
    fields = ("name", "mode", "description", "strengths", "general")
    return json.dumps([{field: getattr(spec, field) for field in fields} for spec in ready], ensure_ascii=False)
