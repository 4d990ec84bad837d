"""The plan of a compile before it starts: program runs, model calls, time and cost, as expected and at most."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from optimizers.job import Job
from optimizers.recipes import Sizes, recipe_named

__all__ = ("call_plan",)

_TOKENS_IN, _TOKENS_OUT = 1500, 200
"""Assumed of a call with an image and eight demos, for the cost."""
_SECONDS_PER_CALL, _SECONDS_EMBEDDED, _SECONDS_EVIDENCE = 2.0, 0.006, 0.35
"""Assumed: of a remote call; measured: of an embedded answer, and of an image's tools and measurements, on one core."""


@dataclass(frozen=True)
class Phase:
    """One phase: runs of the program (at most), and calls as expected and at most."""

    name: str
    runs: int
    expected: int
    most: int


@dataclass(frozen=True)
class CallPlan:
    """The phases of a compile, in order; `paid` is whether any call goes to a model that is not embedded."""

    phases: tuple[Phase, ...]
    expected_calls: int
    most_calls: int
    paid: bool
    seconds: float
    cost_usd: float | None
    """Expected; None where the price is unknown."""

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {**vars(self), "phases": [vars(phase) for phase in self.phases], "seconds": round(self.seconds)}

    def lines(self) -> Iterator[str]:
        """Yield the plan as lines for people."""
        kind = "model calls" if self.paid else "embedded answers (free)"
        for phase in self.phases:
            yield f"{phase.name:<24}{phase.runs:>8,} runs   about {phase.expected:>7,}, at most {phase.most:>8,} {kind}"
        price = ", price unknown" if self.cost_usd is None else f", about {self.cost_usd:.2f} USD"
        cost = price if self.paid else ""
        calls = f"about {self.expected_calls:,}, at most {self.most_calls:,} {kind}"
        yield f"in all: {calls}, about {_time(self.seconds)}{cost}"


def call_plan(job: Job, *, seeds: int = 1, champion: bool = False) -> CallPlan:
    """Return the plan of a job with so many seeds; with `champion`, another program is judged on test beside it."""
    chosen, attempts = job.settings.compile, job.settings.wire.attempts
    sizes = Sizes(len(job.samples("train")), len(job.samples("validation")), _predictors(job))
    gathered, tested = sizes.train + sizes.validation, len(job.splits["test"])
    full, full_most = _calls_of_a_run(job)
    one, one_most = (1, attempts) if job.roles == ("summarizer",) else (full, full_most)
    phases = [Phase("evidence", gathered, full * gathered, full_most * gathered)]
    ranked = sizes.validation
    for recipe in map(recipe_named, job.optimizers):
        bound = recipe.bound(job.budget(recipe.name), sizes)
        calls, most = (full, full_most) if recipe.runs_whole_program else (one, one_most)
        phases.append(Phase(recipe.name, bound.runs, calls * bound.runs + bound.reflections // 2,
                            most * bound.runs + bound.reflections))  # fmt: skip
        ranked += min(chosen.rerank, bound.candidates) * sizes.validation
    phases.append(Phase("choose on validation", ranked, one * ranked, one_most * ranked))
    beside, beside_most = (tested, attempts * tested) if chosen.baselines else (0, 0)
    phases.append(Phase("test", 2 * tested, 2 * full * tested + beside, 2 * full_most * tested + beside_most))
    phases = [Phase(p.name, seeds * p.runs, seeds * p.expected, seeds * p.most) for p in phases]
    if champion:
        phases.append(Phase("champion on test", tested, full * tested, full_most * tested))
    expected = sum(phase.expected for phase in phases)
    if job.embedded:
        # A tool reads an image once, whatever the seeds: they can only draw other ones.
        drawn = min(seeds * gathered, len(job.splits["train"]) + len(job.splits["validation"]))
        seconds = (drawn + tested) * _SECONDS_EVIDENCE / chosen.workers + expected * _SECONDS_EMBEDDED
    else:
        seconds = expected * _SECONDS_PER_CALL / chosen.workers
    most = sum(phase.most for phase in phases)
    return CallPlan(tuple(phases), expected, most, not job.embedded, seconds, _cost(job, expected))


def _calls_of_a_run(job: Job) -> tuple[int, int]:
    """Return the calls of one whole run: as expected (plans and tool choices are mostly cached) and at most."""
    chosen = job.settings.assessment
    diagnosis = _diagnoses(job)
    regions = max((len(s.regions or {}) for members in job.splits.values() for s in members), default=0)
    asked = 1 + 1 + diagnosis * (1 + regions) + 1 + 1  # plan, locate, diagnose each view, choose tools, answer
    return diagnosis + 2, asked * job.settings.wire.attempts * (1 + chosen.max_replan_iterations)


def _predictors(job: Job) -> int:
    tasks = {s.task for s in job.splits["train"]}
    return sum({"planner": 1, "executor": _diagnoses(job) + 1, "summarizer": len(tasks)}[role] for role in job.roles)


def _diagnoses(job: Job) -> int:
    return 1 if job.settings.assessment.diagnosis == "merged" else 2


def _cost(job: Job, calls: int) -> float | None:
    if job.embedded or job.settings.models.summarizer.api_base is not None:
        return None
    from dspy import lm15

    from program.lms.dspy_private import estimated_cost_usd

    provider, _, model = job.settings.models.summarizer.backend.replace(".", "/", 1).partition("/")
    response = lm15.Response(
        id=None, model=model, message=lm15.Message.assistant("x"), finish_reason="stop",
        usage=lm15.Usage(input_tokens=_TOKENS_IN, output_tokens=_TOKENS_OUT),
    )  # fmt: skip
    price = estimated_cost_usd(response, provider=provider, model=model)
    return None if price is None else price * calls


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
