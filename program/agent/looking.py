"""Looking again: a reading that was not there, of what is missing or in doubt."""

import math
from collections.abc import Sequence

from program.agent.executor import read_tool, weigh
from program.agent.notes import note
from program.agent.replan import CLOSER
from program.agent.resources import Resources
from program.agent.state import AssessmentState, ExecutorOutput, Gap, ImagePair, ToolLog
from program.agent.tool_choice import OVERALL, distortion_in
from program.fusion.scores import REACH
from program.images.store import Box, ImageRef
from program.tools import network
from program.tools.registry import Mode, ToolSpec
from signatures.schemas import GLOBAL

CLOSER_PRECISION = 1.0
"""Of the middle in full size, as 1 / variance: what it adds to a belief about the reduced whole.

By 75 validation photographs of CLIVE and 100 of BIQ2021, seen at half their size: RMSE .468 -> .447 and
.688 -> .655, SRCC .810 -> .830 and .548 -> .588, and the narrower intervals hold people's means as often
(.97 and .97, .84 and .82)."""

LEAST_GAIN = 0.02
"""Share by which a further tool must narrow the interval."""


class SecondLook:
    """One image that is looked at again, and the evidence on it so far."""

    def __init__(self, state: AssessmentState, images: ImagePair, resources: Resources) -> None:
        self.state, self.images, self.resources = state, images, resources
        self.evidence = state.evidence
        self.mode: Mode = "NR" if images[1] is None else "FR"
        self.belief = resources.known_traits("summarizer").errors.get(self.mode)

    def at(self, gap: Gap) -> ExecutorOutput | None:
        """Return the evidence with what closes a gap or narrows the interval; None without any.

        Of a picture that was judged reduced: its middle in full size, beside the reference's. Else
        another tool's reading, of the region that the gap is about and of all that failed there.
        """
        region, boxes = gap.regions[0], dict(self.evidence.region_boxes or {})
        if gap.kind == "reduced":
            region, boxes[CLOSER] = CLOSER, middle_of(self.images[0])
        box = boxes.get(region)
        if region != GLOBAL and box is None:
            return None
        before = [log for log in self.evidence.tool_logs if log.region == region]
        failed = [log for log in before if log.error and not gap.is_doubt]
        labels = list(dict.fromkeys(log.distortion for log in failed))
        labels = labels or gap.distortions or [OVERALL]
        must_narrow = gap.kind in {"disagreement", "wide"}
        tried, logs = {log.tool for log in before}, []
        for spec in self._by_strength(labels[0]):
            if spec.name in tried or (must_narrow and not self._is_worth(spec)):
                continue
            for label in labels:
                if label.startswith(f"{OVERALL} ("):
                    label = f"{OVERALL} ({spec.name})"
                logs.append(read_tool(self.resources, spec.name, self.images, region, label, box))
            if any(log.score is not None for log in logs):
                notes = []
                for log in failed:
                    log.alternative = None  # it has been taken
                    notes.append(note("other tool", self.state.query, tool=log.tool, best=spec.name))
                notes = [*self.evidence.notes, *dict.fromkeys(notes)]
                update = {"region_boxes": boxes or None, "notes": notes}
                return self._with(logs).model_copy(update=update)
        return None

    def _by_strength(self, distortion: str) -> list[ToolSpec]:
        """Return the ready tools, the strongest for a distortion first."""
        category = distortion_in(distortion)
        rest, ordered = list(self.resources.runner.ready(self.mode)), []
        while rest:
            ordered.append(self.resources.registry.best(category, rest))
            rest.remove(ordered[-1])
        return ordered

    def _is_worth(self, spec: ToolSpec) -> bool:
        """Return whether a tool's reading would narrow the interval; one without figures may."""
        result = self.state.summarizer_result
        logs = self.evidence.tool_logs
        readings = [(log.tool, log.distortion) for log in logs if log.score is not None]
        readings.append((spec.name, OVERALL))
        precision = self.resources.runner.precisions(readings, self.belief)[-1]
        if precision is None or result is None or result.score_interval is None:
            return True
        low, high = result.score_interval
        variance = ((high - low) / (2 * REACH)) ** 2
        return 1 - 1 / math.sqrt(1 + precision * variance) >= LEAST_GAIN

    def _with(self, logs: Sequence[ToolLog]) -> ExecutorOutput:
        """Return the evidence with further readings; what each counts is worked out again."""
        earlier = (self.evidence.quality_scores or {}).items()
        scores = {region: dict(readings) for region, readings in earlier}
        for log in logs:
            own = scores.setdefault(log.region, {})
            if log.distortion in own:
                log.distortion = f"{log.distortion} ({log.tool})"
            if log.score is not None:
                own[log.distortion] = (log.tool, log.score)
        every = [*self.evidence.tool_logs, *logs]
        weigh(self.resources.runner, every, self.belief)
        for log in every:
            if log.region == CLOSER and log.score is not None:
                log.precision = CLOSER_PRECISION
        failed = [step for step in self.evidence.failed_steps if step != "tools"]
        update = {"quality_scores": scores, "tool_logs": every, "failed_steps": failed}
        return self.evidence.model_copy(update=update)


def middle_of(image: ImageRef) -> Box:
    """Return the middle of an image, as large as the network sees it in full size, in pixels."""
    width, height = (min(network.SHOWN_PX, side) for side in (image.width, image.height))
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return left, top, left + width, top + height
