"""Baselines on the same samples: always one tool, and the mean of all that are ready."""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from program.agent import AgenticIQA
from program.errors import ToolError
from program.evaluation.record import EvaluationRecord
from program.evaluation.runner import SampleLike, evaluate
from program.images import IMAGES
from program.settings import Settings

__all__ = ("tool_baselines",)


def tool_baselines(
    program: AgenticIQA, samples: Sequence[SampleLike], settings: Settings
) -> dict[str, EvaluationRecord]:
    """Return a record per baseline over the scoring samples: each ready tool alone, and the mean of their scores.

    Full-reference tools are left out unless every sample has a reference.
    """
    scoring = [sample for sample in samples if sample.task == "scoring"]
    runner = program.resources.runner
    specs = list(runner.ready("NR"))
    if scoring and all(sample.reference for sample in scoring):
        specs = [*runner.ready("FR"), *specs]

    def reading(name: str, image: str, reference: str | None) -> float:
        original = IMAGES.add(reference) if reference and runner.registry.get(name).mode == "FR" else None
        measured = runner.measure(name, IMAGES.add(image), original)
        if measured.score is None:
            raise ToolError(f"tool {name!r}: {measured.error}")
        return measured.score

    def always(*names: str) -> Any:
        def assess(image: str, query: str, reference: str | None, **_: object) -> SimpleNamespace:
            score = math.fsum(reading(name, image, reference) for name in names) / len(names)
            return SimpleNamespace(final_answer=score, quality_score=score, status="ok")

        return assess

    programs = {f"always {spec.name}": always(spec.name) for spec in specs}
    if len(specs) > 1:
        programs["mean of these tools"] = always(*(spec.name for spec in specs))
    return {
        name: evaluate(assess, scoring, workers=settings.compile.workers, seed=settings.seed, label=name)
        for name, assess in programs.items()
        if scoring
    }
