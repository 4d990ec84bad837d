"""The recipes that let a language model rewrite instructions: MIPROv2, GEPA, SIMBA and COPRO, each on one bench."""

import random
from collections.abc import Sequence
from typing import Any

import dspy
from dspy.teleprompt import COPRO, GEPA, SIMBA, MIPROv2

from optimizers.bench import Bench, Candidate, grouped
from optimizers.search import chosen_lessons, size_of
from optimizers.taught import TaughtProgram
from program.settings import RecipeSettings

__all__ = ("copro", "gepa", "mipro", "search_examples", "simba")

_DEMO_SETS = ("spread", "ends", "thirds", "random")


class _RoleMIPRO(MIPROv2):
    """MIPROv2 that chooses among sets of role-level lessons: DSPy's own labelled demos reach only one role."""

    def __init__(self, bench: Bench, **settings: Any) -> None:
        super().__init__(**settings)
        self._bench = bench

    def _bootstrap_fewshot_examples(self, program: Any, *_: Any, **__: Any) -> dict[int, list[list[dspy.Example]]]:
        bench, rng = self._bench, random.Random(self._bench.seed)
        found: dict[int, list[list[dspy.Example]]] = {}
        for place, (name, predictor) in enumerate(program.named_predictors()):
            lessons = bench.course.lessons.get(name, [])
            count = size_of(name, lessons, bench.budget)
            sets = [list(predictor.demos)]
            for number in range(bench.budget.candidates - 1):
                chosen = chosen_lessons(lessons, count, _DEMO_SETS[number % len(_DEMO_SETS)], rng)
                sets.append([lessons[i].demo for i in chosen])
            found[place] = sets
        return found


def mipro(bench: Bench) -> list[Candidate]:
    """Search instructions and sets of lessons together by Bayesian optimization."""
    optimizer = _RoleMIPRO(
        bench, metric=bench.metric, prompt_model=bench.reflection, task_model=bench.student.get_lm(), auto=None,
        num_candidates=bench.budget.candidates, num_threads=bench.workers, seed=bench.seed + 1,
        max_bootstrapped_demos=1, max_labeled_demos=1, max_errors=_ALL,
    )  # fmt: skip
    final = optimizer.compile(
        bench.student, trainset=_train(bench), valset=bench.scored, num_trials=bench.budget.trials, minibatch=False
    )
    return _candidates("mipro", bench, final)


def gepa(bench: Bench) -> list[Candidate]:
    """Evolve instructions from feedback in words. Its state is a pickle, so none is written or read (no log_dir)."""
    optimizer = GEPA(
        metric=bench.metric_with_feedback, max_metric_calls=bench.budget.metric_calls,
        reflection_minibatch_size=bench.budget.minibatch, reflection_lm=bench.reflection, num_threads=bench.workers,
        seed=bench.seed, log_dir=None, warn_on_score_mismatch=False,
    )  # fmt: skip
    return _candidates("gepa", bench, optimizer.compile(bench.student, trainset=_train(bench), valset=bench.scored))


def simba(bench: Bench) -> list[Candidate]:
    """Add demos and rules from what separates the best of several sampled answers from the worst."""
    # SIMBA asks for as many samples as a batch holds; groups and a small search have fewer.
    batch = min(bench.budget.minibatch, len(bench.scored))
    optimizer = SIMBA(
        metric=bench.metric, bsize=batch, num_candidates=bench.budget.candidates,
        max_steps=bench.budget.steps, max_demos=bench.budget.demos or 0, prompt_model=bench.reflection,
        num_threads=bench.workers,
    )  # fmt: skip
    return _candidates("simba", bench, optimizer.compile(bench.student, trainset=bench.scored, seed=bench.seed))


def copro(bench: Bench) -> list[Candidate]:
    """Rewrite each instruction in turn, from the scores of earlier ones."""
    optimizer = COPRO(
        prompt_model=bench.reflection, metric=bench.metric, breadth=bench.budget.candidates,
        depth=max(1, bench.budget.steps),
    )  # fmt: skip
    settings = {"num_threads": bench.workers, "display_progress": False}
    with dspy.context(max_errors=_ALL):
        final = optimizer.compile(bench.student, trainset=bench.scored, eval_kwargs=settings)
    return _candidates("copro", bench, final)


_ALL = 1_000_000
"""Failed runs an optimizer bears with; its default of ten loses every result."""


def search_examples(
    examples: Sequence[dspy.Example], budget: RecipeSettings, kind: str, seed: int
) -> list[dspy.Example]:
    """Return what scores each candidate: at most `search_samples` of the examples, drawn by seed; groups if asked."""
    pool = sorted(examples, key=lambda e: e.id)
    random.Random(seed).shuffle(pool)
    chosen = pool[: budget.search_samples]
    return grouped(chosen) if kind == "groups" else chosen


def _train(bench: Bench) -> list[dspy.Example]:
    shuffled = sorted(bench.course.examples, key=lambda e: e.id)
    random.Random(bench.seed).shuffle(shuffled)
    return grouped(shuffled) if bench.kind == "groups" else shuffled


def _candidates(name: str, bench: Bench, final: TaughtProgram) -> list[Candidate]:
    """Return every candidate with a whole score, best first, and the optimizer's own choice."""
    begun = bench.student.digest()
    found = [
        Candidate(f"{name}/{place}", scored.program, scored.mean, scored.digest)
        for place, scored in enumerate(bench.ledger.whole())
        if scored.digest != begun
    ]
    if final.digest() not in {c.digest for c in found} | {begun}:
        found.append(Candidate(f"{name}/final", final.program, None, final.digest()))
    return found
