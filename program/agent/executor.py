"""The Executor: distortions found by the model, measured by tools; each step behind its flag."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import dspy

from program.agent.notes import note
from program.agent.resources import Resources
from program.agent.state import AssessmentState, ExecutorOutput, Finding, ImagePair, ToolLog, compact_json
from program.agent.tool_choice import OVERALL, Choice, as_a_whole, distortion_in, listed, wanted_of
from program.fusion import ScoreFusion
from program.images.store import IMAGES, Box, ImageRef
from program.lms.ask import ask
from program.lms.call import stage
from program.tools.calibration import BeliefError
from program.tools.choice import tools_that_add
from program.tools.registry import Mode, ToolSpec
from program.tools.runner import ToolRunner
from signatures import executor as questions
from signatures.forms import QuestionForm
from signatures.schemas import GLOBAL, DistortionFinding, Plan, RegionDistortions, ToolChoice

logger = logging.getLogger(__name__)

_NOT_ASKED = "not asked, as the answers before could not be read"


class _View(NamedTuple):
    """What the model looks at in one question: an image or a crop, and the regions it stands for."""

    image: ImageRef
    reference: ImageRef | None
    regions: tuple[str, ...]
    whole: ImageRef | None = None
    """Of a crop, the image that it was cut from."""

    def inputs(self, query: str, **others: Any) -> dict[str, Any]:
        shown = {"image": self.image, "reference": self.reference, "whole": self.whole}
        return {**shown, "query": query, **others}


@dataclass
class _Work:
    """One image on its way through the steps, and what they gave so far."""

    state: AssessmentState
    plan: Plan
    image: ImageRef
    reference: ImageRef | None
    boxes: dict[str, Box]
    wordings: int | None
    """In how many wordings the model is asked; None: in all of them."""
    fusion: ScoreFusion
    belief: BeliefError | None = None
    """Of the model that scores, where it is known and counts."""
    findings: dict[str, list[Finding]] = field(default_factory=dict)
    distortions: dict[str, list[str]] = field(default_factory=dict)
    scores: dict[str, dict[str, tuple[str, float]]] = field(default_factory=dict)
    logs: list[ToolLog] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failed_steps: list[str] = field(default_factory=list)

    @property
    def mode(self) -> Mode:
        """Whether tools compare with a reference."""
        return "FR" if self.plan.reference_mode == "Full-Reference" else "NR"

    @property
    def unboxed_regions(self) -> list[str]:
        """The plan's regions whose place nobody knows."""
        scope = self.plan.query_scope
        return [region for region in scope if region != GLOBAL and region not in self.boxes]

    def note(self, name: str, **values: object) -> None:
        """Write down, once, what could not be done as asked."""
        text = note(name, self.state.query, **values)
        if text not in self.notes:
            self.notes.append(text)

    def views(self) -> list[_View]:
        """Return a view of each boxed region (its crop), and of the whole image for all others."""
        whole = tuple(region for region in self.plan.query_scope if region not in self.boxes)
        views = []
        if whole:
            views.append(_View(self.image, self.reference, whole))
        for region in self.plan.query_scope:
            if box := self.boxes.get(region):
                reference = IMAGES.crop(self.reference, box) if self.reference else None
                views.append(_View(IMAGES.crop(self.image, box), reference, (region,), self.image))
        return views


class Executor(dspy.Module):
    """Gather evidence as the plan asks for it. A step that fails is recorded and the others go on."""

    def __init__(self, resources: Resources) -> None:
        super().__init__()
        self.resources = resources
        self.detect = dspy.Predict(questions.DetectDistortions)
        self.analyse = dspy.Predict(questions.AnalyseDistortions)
        self.diagnose = dspy.Predict(questions.DiagnoseDistortions)
        self.select_tools = dspy.Predict(questions.SelectTools)
        self.locate = dspy.Predict(questions.LocateRegions)

    def forward(
        self,
        state: AssessmentState,
        image: ImageRef,
        reference: ImageRef | None = None,
        with_diagnosis: bool = True,
        fusion: ScoreFusion | None = None,
        tools_alone: bool = False,
    ) -> ExecutorOutput:
        """Return the evidence for a planned state.

        Without `with_diagnosis` the distortions come with the answer. The `fusion` (else that of
        the settings) makes the score; `tools_alone`: without a model's belief.
        """
        plan = state.plan
        if plan is None:
            raise ValueError("the state has no plan; call the Planner first")
        if plan.query_type == "Other":
            return ExecutorOutput()
        given = (state.regions or {}).items()
        boxes = {region: box for region, box in given if region in plan.query_scope}
        wordings = self.resources.wordings("executor", state)
        fusion = fusion or self.resources.fusion
        work = _Work(state, plan, image, reference, boxes, wordings, fusion)
        if fusion.model_weight and not tools_alone:
            work.belief = self.resources.known_traits("summarizer").errors.get(work.mode)
        with stage("executor"):
            self._locate(work)
            if state.plan_error is not None:
                work.note("general plan", error=state.plan_error)
                work.failed_steps.append("plan")
            if with_diagnosis:
                for view in work.views():
                    self._diagnose(work, view)
            # A tool that the user named and that cannot be used is never replaced in silence.
            work.notes += state.unusable_tools
            for region in work.unboxed_regions:
                work.note("no box", region=region)
            chosen = self._chosen_tools(work)
            with stage("tools"):
                self._measure(work, chosen)
            lost = _lost_tools(work)
            work.notes += lost
        return ExecutorOutput(
            distortion_set=work.distortions or None,
            distortion_analysis=work.findings or None,
            region_boxes=work.boxes or None,
            selected_tools=chosen or None,
            quality_scores=work.scores or None,
            tool_logs=work.logs,
            notes=work.notes,
            lost_tools=lost,
            failed_steps=work.failed_steps,
        )

    def tool_names(self, reference: ImageRef | None) -> list[str]:
        """Return the tools that are ready for an image, those that compare with a reference first."""
        ready = self.resources.runner.ready("NR")
        if reference is not None:
            ready = self.resources.runner.ready("FR") + ready
        return [spec.name for spec in ready]

    def _locate(self, work: _Work) -> None:
        """Ask the model for the boxes (in pixels) of the plan's regions that nobody gave."""
        regions = work.unboxed_regions
        if not regions:
            return
        inputs = {"image": work.image, "query": work.state.query, "regions": regions}
        width, height = work.image.width, work.image.height
        for place in self._ask(work, None, self.locate, inputs, questions.PLACES) or ():
            if place.region in regions:
                box = (place.x0 * width, place.y0 * height, place.x1 * width, place.y1 * height)
                work.boxes[place.region] = box

    def _diagnose(self, work: _Work, view: _View) -> None:
        plan = work.plan
        named: dict[str, list[str]] = {r.region: list(r.distortions) for r in plan.distortions}
        present = {region: named[region] for region in view.regions if region in named}
        if not present and len(named) == 1 and plan.query_scope != [GLOBAL]:
            # Named for the whole image, or in other words than the region: it is meant for each.
            present = dict.fromkeys(view.regions, next(iter(named.values())))
        if plan.distortion_detection and self.resources.settings.assessment.diagnosis == "separate":
            present = self._detected(work, view)
            if not any(present.values()):
                work.findings |= {region: [] for region in present}
                work.distortions |= present
                return
        if plan.distortion_analysis:
            self._analyse(work, view, present)
        work.distortions |= present

    def _detected(self, work: _Work, view: _View) -> dict[str, list[str]]:
        inputs = view.inputs(work.state.query, regions=list(view.regions))
        sets = self._ask(work, "detection", self.detect, inputs, questions.DETECTION)
        if sets is None:
            return {}
        present: dict[str, list[str]] = {}
        for region, entries in _by_region(work, view, sets).items():
            names = [name for entry in entries for name in entry.distortions]
            present[region] = list(dict.fromkeys(names))
        return present

    def _analyse(self, work: _Work, view: _View, present: dict[str, list[str]]) -> None:
        """Add findings, and what they name to the distortions of regions where none was named."""
        listed = compact_json(present) if present else None
        inputs = view.inputs(work.state.query, distortion_set=listed)
        if self.resources.settings.assessment.diagnosis == "separate" and listed:
            answer = self._ask(work, "analysis", self.analyse, inputs, questions.ANALYSIS)
        else:
            inputs["regions"] = list(view.regions)
            answer = self._ask(work, "analysis", self.diagnose, inputs, questions.DIAGNOSIS)
        if answer is None:
            return
        for region, entries in _by_region(work, view, answer).items():
            findings = work.findings[region] = Finding.all_in(entries)
            visible = [finding.type for finding in findings if finding.severity != "none"]
            present.setdefault(region, list(dict.fromkeys(visible)))

    def _ask(
        self,
        work: _Work,
        step: str | None,
        predictor: dspy.Predict,
        inputs: Mapping[str, Any],
        form: QuestionForm,
    ) -> Any:
        """Return what a model answers in the one field of a form; None for nothing usable.

        Then the step (if it has a name) failed, too. Where the model does not look itself, the
        embedded expert does.
        """
        (name,) = form.example
        lm, wordings = self.resources.lm("executor"), work.wordings
        if "image" in inputs and self.resources.distortion_model is not lm:
            lm, wordings = self.resources.distortion_model, None
            # Its demos are the model's, and the expert has its own wording.
            predictor = dspy.Predict(predictor.signature)
        inputs = {**inputs, **work.state.description}
        answer = ask(predictor, inputs, form, lambda p: p[name], lm=lm, wordings=wordings)
        if answer.value is None and step is not None:
            error = answer.errors[-1] if answer.errors else _NOT_ASKED
            work.note("step failed", step=step, error=error)
            work.failed_steps.append(step)
        return answer.value

    def _chosen_tools(self, work: _Work) -> Choice:
        """Return region -> label -> tool; a named tool measures the whole where no region can be."""
        plan = work.plan
        regions = [region for region in plan.query_scope if region not in work.unboxed_regions]
        ready = self.resources.runner.ready(work.mode)
        if plan.required_tools and plan.tool_execute:
            if not regions:
                work.note("whole measured", tools=", ".join(plan.required_tools))
            return {region: as_a_whole(plan.required_tools) for region in regions or [GLOBAL]}
        # A region may have been located since the plan was made.
        if not regions or not (plan.tool_selection or work.boxes):
            return {}
        if not ready:
            work.note("no tool")
            return {}
        wanted = wanted_of(regions, work.distortions)
        if self.resources.settings.executor.selection == "model":
            return self._picked_tools(work, ready, wanted)
        useful: list[str] = []
        if work.belief is None or work.fusion.eta:
            useful = tools_that_add(ready, self.resources.runner.calibration, work.belief)
        return {region: as_a_whole(useful, wanted[region]) for region in regions}

    def _picked_tools(self, work: _Work, ready: Sequence[ToolSpec], wanted: Mapping[str, Sequence[str]]) -> Choice:
        """Return the tool that a model picks for each distortion, else the strongest."""
        choices: Sequence[ToolChoice] = ()
        is_brief = self.resources.one_word(work.state.reading)
        if not is_brief and work.wordings is None:
            inputs = {"distortion_set": compact_json(wanted), "tools": listed(ready, wanted)}
            form = questions.TOOL_CHOICE
            choices = self._ask(work, "tool selection", self.select_tools, inputs, form) or ()
        picked: dict[tuple[str, str], str] = {}
        for choice in choices:
            picked.setdefault((choice.region, choice.distortion), choice.tool)
        chosen: Choice = {}
        for region, distortions in wanted.items():
            chosen[region] = {}
            for distortion in distortions or [OVERALL]:
                best = self.resources.registry.best(distortion, ready)
                name = picked.get((region, distortion), best.name)
                spec = self.resources.registry.find(name)
                if spec is None or spec not in ready:
                    work.note("not ready", tool=name, best=best.name, distortion=distortion)
                    spec = best
                chosen[region][distortion] = spec.name
        return chosen

    def _measure(self, work: _Work, chosen: Choice) -> None:
        for region, tools in chosen.items():
            for label, tool in tools.items():
                self._read(work, region, label, tool)
        weigh(self.resources.runner, work.logs, work.belief)
        if work.logs and not work.scores:
            work.failed_steps.append("tools")

    def _read(self, work: _Work, region: str, label: str, tool: str) -> None:
        pair, box = (work.image, work.reference), work.boxes.get(region)
        log = read_tool(self.resources, tool, pair, region, label, box)
        if log.error:
            logger.warning("tool %s failed for %s in %s: %s", tool, label, region, log.error)
            ready = self.resources.runner.ready("NR" if work.reference is None else "FR")
            others = [spec for spec in ready if spec.name != tool]
            if others:
                log.alternative = self.resources.registry.best(distortion_in(label), others).name
        elif log.score is not None:
            work.scores.setdefault(region, {})[label] = (tool, log.score)
        work.logs.append(log)


def read_tool(resources: Resources, tool: str, images: ImagePair, region: str, label: str, box: Box | None) -> ToolLog:
    """Measure a region (a `box` in pixels; None: all) by one tool; `label` says what for."""
    image, reference = images
    if resources.registry.get(tool).mode == "NR":
        reference = None
    reading = resources.runner.measure(tool, image, reference, box=box, category=label)
    return ToolLog(**{**dict(reading), "tool": tool, "region": region, "distortion": label})


def weigh(runner: ToolRunner, logs: Iterable[ToolLog], belief: BeliefError | None) -> None:
    """Write into each reading with a score what it adds beside the others and a model's belief."""
    scored = [log for log in logs if log.score is not None]
    readings = [(log.tool, log.distortion) for log in scored]
    for log, precision in zip(scored, runner.precisions(readings, belief), strict=True):
        log.precision = precision


def _lost_tools(work: _Work) -> list[str]:
    """Return a note for each named tool that gave no score, under this plan or an earlier one."""
    notes = list(work.state.evidence.lost_tools)
    for log in work.logs:
        if log.error and log.tool in work.plan.required_tools:
            why = log.error.removeprefix(f"tool {log.tool!r}: ")
            notes.append(note("lost tool", work.state.query, tool=log.tool, error=why))
    return list(dict.fromkeys(notes))


_Entry = TypeVar("_Entry", DistortionFinding, RegionDistortions)


def _by_region(work: _Work, view: _View, answer: Sequence[_Entry]) -> dict[str, list[_Entry]]:
    """Return what was answered by the region that it names; a name of no region is noted, not moved.

    An empty answer is "nothing" for every region; else a region that nothing was said of is left
    out.
    """
    if not answer:
        return {region: [] for region in view.regions}
    names = {_folded(region): region for region in view.regions}
    if view.whole is not None:
        names[_folded(GLOBAL)] = view.regions[0]  # the whole of what was shown is the region
    entries: dict[str, list[_Entry]] = {}
    for entry in answer:
        # An entry that names nothing speaks of what was asked about, where that is one region.
        region = names.get(_folded(entry.region))
        if "region" not in entry.model_fields_set and len(view.regions) == 1:
            region = view.regions[0]
        if region is None:
            work.note("other region", region=entry.region)
        else:
            entries.setdefault(region, []).append(entry)
    return entries


def _folded(name: str) -> str:
    return " ".join(name.casefold().split()).removeprefix("the ")
