"""Tools' readings as the log of an assessment has them."""

from collections.abc import Iterable

from program.agent.resources import Resources
from program.agent.state import ToolLog
from program.images.store import Box, ImageRef
from program.tools.calibration import BeliefError
from program.tools.runner import ToolRunner

ImagePair = tuple[ImageRef, ImageRef | None]
"""An image and the reference beside it."""


def read_tool(resources: Resources, tool: str, pair: ImagePair, region: str, label: str, box: Box | None) -> ToolLog:
    """Measure a region, or all without a `box` in pixels, by one tool; `label` says what the reading is taken for."""
    image, reference = pair
    target = reference if resources.registry.get(tool).mode == "FR" else None
    reading = resources.runner.measure(tool, image, target, box=box, category=label)
    return ToolLog(**{**dict(reading), "tool": tool, "region": region, "distortion": label})


def weigh(runner: ToolRunner, logs: Iterable[ToolLog], belief: BeliefError | None) -> None:
    """Write into each reading with a score what it adds beside the others and a model's belief."""
    scored = [log for log in logs if log.score is not None]
    readings = [(log.tool, log.distortion) for log in scored]
    for log, precision in zip(scored, runner.precisions(readings, belief), strict=True):
        log.precision = precision
