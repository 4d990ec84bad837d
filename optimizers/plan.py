"""A compile's plan before it starts (runs, calls, time, cost), and the log from which one that was stopped resumes."""

import json
import math
import statistics
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import dspy
from PIL import Image

from data.manifest import Sample
from optimizers.job import CHOICE_FOLDS, Job
from optimizers.learner import LANGUAGE_MODEL
from optimizers.recipes import Sizes, recipe_named
from optimizers.search import Candidate
from program.agent.loop import AgenticIQA
from program.agent.resources import Resources
from program.agent.saving import save
from program.common.errors import InputError
from program.common.files import plain_file
from program.common.outputs import PROGRAM, remove_outputs
from program.running.journal import LineLog

_TOKENS_IN, _TOKENS_OUT = 1500, 200
"""Assumed of a call with an image and eight demos, for the cost."""
_SECONDS_IMAGE, _SECONDS_MEGAPIXEL, _MOST_MEGAPIXELS = 0.05, 0.7, 4.0
"""Of an image's tools and measurements; those of larger images are measured averaged down."""
_LOOKED_AT = 16
"""Images whose size stands for all."""
_SECONDS_AROUND = 6.0
"""To start, to report and to log."""
CROSSED = "cross-validation"


@dataclass(frozen=True)
class Phase:
    """One phase: runs of the program at most, and calls as expected."""

    name: str
    runs: int
    calls: int


@dataclass(frozen=True)
class CallPlan:
    """The phases of a compile, in order; `paid` is whether any call goes to a model that is not free."""

    phases: tuple[Phase, ...]
    expected_calls: int
    paid: bool
    seconds: float
    cost_usd: float | None
    """Expected; None where the price is unknown."""
    images: int
    """Distinct ones that are trained, chosen or tested on."""

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {**asdict(self), "seconds": round(self.seconds)}

    def lines(self) -> Iterator[str]:
        """Yield the plan as lines for people; what is free and asks no model is one."""
        if not self.paid:
            yield f"{self.images:,} images, about {_time_words(self.seconds)}, free"
            return
        for phase in self.phases:
            yield f"{phase.name:<24}{phase.runs:>8,} runs   about {phase.calls:>7,} model calls"
        price = ", price unknown" if self.cost_usd is None else f", about {self.cost_usd:.2f} USD"
        pace = f"if a call takes {LANGUAGE_MODEL.seconds_per_call:g} s"
        yield f"in all: about {self.expected_calls:,} model calls, about {_time_words(self.seconds)} {pace}{price}"


def call_plan(job: Job, *, champion: bool = False) -> CallPlan:
    """Return the plan of a job; with `champion`, another program is judged on test beside it."""
    chosen = job.settings.compile
    train, validation = job.samples("train", job.optimizers), job.samples("validation")
    tested = len(job.splits["test"])
    full = _calls_of_a_run(job)
    phases: list[Phase] = []
    used = job.splits["test"]
    if job.kept is None:
        used = [*train, *validation, *used]
        asked = len(train) + len(validation) - len(job.measured_ids)
        calls = full * asked
        if not job.needs_answers:
            calls -= asked - len(validation)
        phases = [Phase("evidence", asked, calls)]
        phases += _searches(job, len(train), len(validation))
    runs = 2 * tested
    if job.folds or job.kept is not None or set(job.optimizers) <= {"none"}:
        runs = tested
    calls = full * runs
    if chosen.baselines:
        calls += tested
    phases.append(Phase("test", runs, calls))
    if champion:
        phases.append(Phase("champion on test", tested, full * tested))
    expected = sum(phase.calls for phase in phases)
    seconds_per_call, cost_usd = job.learner.seconds_per_call, None
    if job.learner.is_paid:
        seconds_per_call, cost_usd = seconds_per_call / chosen.workers, _cost(job, expected)
    images = len({sample.image for sample in used})
    seconds = _SECONDS_AROUND + images * _seconds_of_image(used) / chosen.workers
    return CallPlan(
        tuple(phases), expected, paid=job.learner.is_paid, seconds=seconds + expected * seconds_per_call,
        cost_usd=cost_usd, images=images,
    )  # fmt: skip


def within_calls(job: Job, max_calls: int) -> Job:
    """Return the job with searches as large as so many model calls allow, and a note on what gave way.

    InputError where they allow none, with the least that is needed; not where a compile is resumed, which has answers.
    """

    def planned(percent: int) -> CallPlan:
        return call_plan(replace(job, share=percent / 100))

    whole = planned(100)
    if not whole.paid or whole.expected_calls <= max_calls:
        return job
    searches = [(name, key) for name in job.optimizers for key in recipe_named(name).scales]
    if job.resume and not searches:
        return job
    percent = bisect_right(range(100), max_calls, key=lambda percent: planned(percent).expected_calls) - 1
    if percent < 0 and not job.resume:
        plan = planned(0)
        phases = ", ".join(f"{phase.name} {phase.calls:,}" for phase in plan.phases if phase.calls)
        raise InputError(
            f"--max-calls {max_calls}: {job.optimizer} needs about {plan.expected_calls} model calls at least "
            f"({phases}); allow as many, or give fewer samples, as with compile: {{train_scoring: 40}} in --config"
        )
    scaled = replace(job, share=max(0, percent) / 100)
    changes = ", ".join(f"{name} with {key} {getattr(scaled.budget(name), key)}" for name, key in searches)
    return replace(scaled, notes=(*job.notes, f"{changes}, as --max-calls {max_calls} allows"))


def _searches(job: Job, train: int, validation: int) -> list[Phase]:
    """Return the phases of the recipes, of the choice and of the folds, for so many samples."""
    full = _calls_of_a_run(job)
    one = 1 if job.roles == ("summarizer",) else full
    tasks = {sample.task for sample in job.splits["train"]}
    predictors = {"planner": 1, "executor": _diagnoses(job) + 1, "summarizer": len(tasks)}
    sizes = Sizes(train, validation, sum(predictors[role] for role in job.roles), not job.learner.is_paid)
    phases, judged = [], validation
    if job.is_chosen_in_folds:
        judged = train + validation
    ranked = judged
    for recipe in map(recipe_named, job.optimizers):
        bound = recipe.bound(job.budget(recipe.name), sizes)
        asking = bound.asked if recipe.teaches == "evidence" else bound.runs
        calls = bound.reflections + asking * (full if recipe.bootstraps else one)
        # A fusion is fitted anew for each fold; evidence of labels leaves those of an image's own group out.
        times = 1 + CHOICE_FOLDS if job.is_chosen_in_folds and recipe.teaches == "fusion" else 1
        phases.append(Phase(recipe.name, bound.runs, times * calls))
        ranked += min(job.settings.compile.rerank, bound.candidates) * judged
    # The uncompiled program's answers are those of the evidence, from the cache.
    phases.append(Phase("choose on validation", ranked, one * (ranked - judged)))
    if job.folds:
        # The search of a fold is at most as large as the one over all.
        tested, folds = len(job.splits["test"]), len(job.folds)
        runs = folds * sum(phase.runs for phase in phases) + tested
        phases.append(Phase(CROSSED, runs, folds * sum(phase.calls for phase in phases) + one * tested))
    return phases


def _seconds_of_image(samples: Sequence[Sample]) -> float:
    """Return what tools and measurements take, by the size of a few images."""
    sizes = []
    for sample in samples[:: max(1, len(samples) // _LOOKED_AT)]:
        with (
            suppress(OSError, ValueError, Image.DecompressionBombError),
            open(sample.image, "rb", opener=plain_file) as file, Image.open(file) as image,
        ):  # fmt: skip
            sizes.append(image.width * image.height / 1e6)
    megapixels = min(_MOST_MEGAPIXELS, statistics.median(sizes)) if sizes else 1.0
    return _SECONDS_IMAGE + _SECONDS_MEGAPIXEL * megapixels


def _calls_of_a_run(job: Job) -> int:
    """Return the calls of one whole run, as expected: plans and tool choices are mostly cached."""
    if Resources(job.settings, job.lm).answers_alone:
        return 1
    return 2 + (0 if job.settings.assessment.diagnosis == "answer" else _diagnoses(job))


def _diagnoses(job: Job) -> int:
    return 2 if job.settings.assessment.diagnosis == "separate" else 1


def _cost(job: Job, calls: int) -> float | None:
    if job.settings.models.summarizer.api_base is not None:
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


def _time_words(seconds: float) -> str:
    """Return a duration in one unit, as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


_LOGS = ("candidates.jsonl",)
"""Files of a program's folder that outlive its replacement by a better candidate."""
_MEND = "give another --out"


class CompileLog:
    """Writes the log of one compile into its folder, which no other compile writes until `close`."""

    def __init__(self, folder: Path, *, resume: bool = False) -> None:
        """Lock the folder; nothing is written before `begin`.

        Raises InputError where another compile writes it, or where there is none to resume.
        """
        self.folder, self._resume = folder, resume
        self.curve: list[tuple[str, float, float]] = []
        """Candidate, its score and the best score so far, in the order they were scored."""
        self._lm = dspy.settings.lm
        """What plays every role, if anything: an optimizer scores its candidates with another model set there."""
        self._started = time.perf_counter()
        self._saved_score: float | None = None
        """Search score of the program in the folder; None for the uncompiled one."""
        # Its lock lies beside the folder, which every better candidate replaces.
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._lock = LineLog(folder.with_name(f".{folder.name}.lock"), mend=_MEND, name=f"folder {str(folder)!r}")
        if resume and not (folder / "candidates.jsonl").is_file():
            self.close()
            raise InputError(f"folder {str(folder)!r}: no compile was begun there; start it without --resume")

    def begin(self, program: AgenticIQA) -> None:
        """Save the uncompiled program, unless a resumed compile left a better one, until something is better."""
        if self._resume:
            self._saved_score = self._score_there()
        if self._saved_score is not None:
            return
        files = {}
        if not self._resume:
            files["candidates.jsonl"] = ""  # the folder is known to hold it before its first line
        record = {"chosen": "uncompiled", "finished": False}
        save(program, self.folder, record=record, keep=_LOGS if self._resume else (), files=files)

    def withdraw(self) -> None:
        """Leave no folder behind of a compile whose data turned out to be unusable."""
        if not self._resume:
            remove_outputs(self.folder, PROGRAM)

    def close(self) -> None:
        """Let another compile have the folder."""
        self._lock.remove()

    def log_score(self, candidate: Candidate) -> None:
        """Log a candidate with its search score (higher is better); the best so far becomes the folder's program."""
        score = float(candidate.search_score or 0.0)
        is_best = all(score > best for _, _, best in self.curve[-1:])
        self.curve.append((candidate.name, score, score if is_best else self.curve[-1][2]))
        if is_best and (self._saved_score is None or score > self._saved_score):
            record = {"chosen": candidate.name, "search_score": score, "finished": False}
            with dspy.context(lm=self._lm):
                save(candidate.program, self.folder, record=record, keep=_LOGS)
        # After the program, so that whatever ends the process in between, the folder holds the best that was logged.
        line = {
            "event": "candidate", "seconds": round(time.perf_counter() - self._started, 2), "name": candidate.name,
            "score": round(score, 6), "best": is_best,
        }  # fmt: skip
        with closing(LineLog(self.folder / "candidates.jsonl", mend=_MEND)) as log:
            log.append(json.dumps(line, ensure_ascii=False))

    def finish(self, program: AgenticIQA, record: Mapping[str, Any], files: Mapping[str, str] | None = None) -> None:
        """Save the chosen program with its record and further files, and mark the compile as done."""
        save(program, self.folder, record={**record, "finished": True}, keep=_LOGS, files=files)

    def _score_there(self) -> float | None:
        """Return the search score of the program that is there; infinite for a finished one, which stays."""
        try:
            record = json.loads((self.folder / "program.json").read_text("utf-8"))["record"]
            return math.inf if record["finished"] else record.get("search_score")
        except (OSError, ValueError, KeyError, TypeError):  # it is written again
            return None
