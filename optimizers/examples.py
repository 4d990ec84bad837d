"""Samples as an optimizer's examples, and one pass of the program over them for its questions and evidence."""

import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import dspy

from data.manifest import Sample
from data.splits import group_of
from optimizers.demos import LabelledDemo, distortion_truth, labelled_demos, plan_by_rule
from optimizers.store import Questions, Store, evidence_json, evidence_of
from optimizers.student import Gathered, inputs_key, role_of
from program.agent.loop import DEFAULT_QUERY, AgenticIQA
from program.agent.state import AssessmentState
from program.common.errors import InputError
from program.common.pool import in_order
from program.evaluation.intervals import Figure, interval
from program.images.store import IMAGES
from program.lms.limits import BudgetSpent
from program.running.on_ray import Cluster, completed_on_ray, request_text
from program.running.request import ARGUMENTS

__all__ = ("Evidence", "ExampleSet", "asked", "choose_samples", "evidence_on_ray", "gather", "to_example")

logger = logging.getLogger(__name__)


@dataclass
class ExampleSet:
    """What one pass over samples gave."""

    examples: list[dspy.Example] = field(default_factory=list)
    """The program's inputs with everything known of the sample."""
    demos: dict[str, list[LabelledDemo]] = field(default_factory=dict)
    """By predictor: a question it was asked and the answer people, rules or measured strengths give."""
    gathered: Gathered = field(default_factory=dict)
    runs: int = 0
    """Program runs that this took."""

    @property
    def shares_content(self) -> bool:
        """Whether many samples show the same photograph: then one says too much of another to be scored on it."""
        groups = {example.group for example in self.examples}
        return 2 * len(groups) <= len(self.examples)

    def of(self, samples: Iterable[Sample], *others: "ExampleSet") -> "ExampleSet":
        """Return what this pass and others gave on some samples alone."""
        ids, parts = {sample.id for sample in samples}, (self, *others)
        demos: dict[str, list[LabelledDemo]] = {}
        for name, demo in ((name, demo) for part in parts for name, some in part.demos.items() for demo in some):
            # A plan says nothing of an image, and one stands for all that were asked alike.
            if demo.sample in ids or role_of(name) == "planner":
                demos.setdefault(name, []).append(demo)
        return ExampleSet([e for part in parts for e in part.examples if e.id in ids], demos, self.gathered)

    def agreement(self) -> Figure:
        """Return the SRCC of the uncompiled program's scores with the labels."""
        found = []
        for example in self.examples:
            result = self.gathered[inputs_key(example.inputs())].summarizer_result
            if example.get("quality") is not None and result is not None and result.rating is not None:
                found.append((example.quality, result.rating, example.group))
        truth, rated, groups = zip(*found, strict=True) if found else ((), (), ())
        return interval("srcc", truth, rated, groups)


def choose_samples(samples: Iterable[Sample], *, scoring: int, mcq: int, seed: int) -> list[Sample]:
    """Return at most so many scoring and multiple-choice samples, spread evenly over the distortions, seeded."""
    chosen: list[Sample] = []
    pool = sorted(samples, key=lambda s: s.id)
    for task, count in (("scoring", scoring), ("mcq", mcq)):
        of_task = [sample for sample in pool if sample.task == task]
        random.Random(f"{seed}/{task}").shuffle(of_task)
        turns: Counter[str] = Counter()
        ranked = []
        for place, sample in enumerate(of_task):
            turns[sample.distortion or ""] += 1
            ranked.append((turns[sample.distortion or ""], place))
        chosen += [of_task[place] for _, place in sorted(ranked)[:count]]
    return chosen


Evidence: TypeAlias = tuple[AssessmentState, Questions]
"""What a run of the program ended with, and what it asked."""


def to_example(sample: Sample) -> dspy.Example:
    """Return a sample as an optimizer's example: the program's inputs and what is known, images as references."""
    fields: dict[str, Any] = {
        "id": sample.id, "group": group_of(sample), "judge": sample.judge,
        "image": dspy.Image(IMAGES.add(sample.image).url), "query": sample.query or DEFAULT_QUERY,
    }  # fmt: skip
    if sample.reference is not None:
        fields["reference"] = dspy.Image(IMAGES.add(sample.reference).url)
    if sample.options:
        fields |= {"options": sample.options, "answer": sample.answer}
    else:
        fields["quality"] = sample.quality
        if sample.mos_std is not None:
            low, high = sample.mos_range
            fields["quality_std"] = 4 * sample.mos_std / (high - low)
    if sample.regions:
        fields["regions"] = sample.regions
    if (truth := distortion_truth(sample)) is not None:
        fields["distortion_truth"] = truth
    return dspy.Example(**fields).with_inputs(*(name for name in ARGUMENTS if name in fields))


def asked(program: AgenticIQA, example: dspy.Example) -> Evidence:
    """Run the program on an example; return what it ended with and what was asked of its predictors, in order."""
    names = {id(predictor): name for name, predictor in program.named_predictors()}
    # Each thread gets a trace of its own: what was really asked, role by role.
    with dspy.context(trace=[]):
        result = program(**example.inputs())
        return result.state, [(names[id(p)], dict(inputs)) for p, inputs, _ in dspy.settings.trace if id(p) in names]


def gather(
    program: AgenticIQA, samples: Sequence[Sample], *, workers: int, advance: Callable[[], None] = lambda: None,
    store: Store | None = None, made: Mapping[str, Evidence | str] | None = None,
) -> ExampleSet:  # fmt: skip
    """Run the program once over the samples and return what it was asked, with the right answers.

    What is in the store is not run again, nor what was `made` elsewhere (by sample's id: the evidence, or why there is
    none), which `advance` is not called for. A sample that cannot be assessed is left out with a warning. Raises
    InputError when none is left.
    """
    store, made = store or Store(), made or {}
    example_set = ExampleSet()

    def run(sample: Sample) -> tuple[dspy.Example, AssessmentState, Questions, bool] | None:
        try:
            example = to_example(sample)
            stored = store.evidence(sample)
            state, questions = stored or _usable(made.get(sample.id) or asked(program, example))
        except BudgetSpent:
            raise
        except InputError as error:
            logger.warning("sample %r left out of teaching: %s", sample.id, error)
            return None
        finally:
            if sample.id not in made:
                advance()
        if stored is None:
            store.put_evidence(sample, state, questions)
        return example, state, questions, stored is None

    for sample, of_sample in zip(samples, in_order(run, samples, workers=workers), strict=True):
        if of_sample is None:
            example_set.runs += 1
            continue
        example, state, questions, is_new = of_sample
        example_set.runs += is_new
        example_set.gathered[inputs_key(example.inputs())] = state
        for demo in labelled_demos(sample, example, questions, program.resources, state):
            example_set.demos.setdefault(demo.predictor, []).append(demo)
        ruled = example.copy(plan_by_rule=plan_by_rule(questions, program.resources))
        example_set.examples.append(ruled.with_inputs(*example.inputs()))
    if not example_set.examples:
        raise InputError("training samples: none could be assessed; run python -m data.check on the manifest")
    example_set.demos = _each_once(example_set.demos)
    return example_set


def evidence_on_ray(
    make: Callable[[], AgenticIQA], samples: Sequence[Sample], cluster: Cluster
) -> Iterator[tuple[str, Evidence | str]]:
    """Run samples in the workers of a cluster; yield the id of each with what it ended with, or why it failed.

    Each worker makes its program with `make`. A sample whose evidence JSON cannot hold is left out.
    """
    items = ((place, request_text(sample)) for place, sample in enumerate(samples))
    for place, _, result in completed_on_ray(partial(_Evidence, make), items, cluster):
        found = json.loads(result)
        if found is not None:
            yield samples[place].id, found if isinstance(found, str) else evidence_of(found)


class _Evidence:
    """A worker's part: from a sample to what the program ended with and was asked, or why that is nothing."""

    def __init__(self, make: Callable[[], AgenticIQA]) -> None:
        self._program = make()

    def __call__(self, item: str) -> str:
        try:
            return json.dumps(evidence_json(*asked(self._program, to_example(Sample.from_json(item)))))
        except InputError as error:
            return self.failed(item, str(error))

    def failed(self, item: str, error: str) -> str:
        return json.dumps(error)


def _usable(found: Evidence | str) -> Evidence:
    if isinstance(found, str):
        raise InputError(found)
    return found


def _each_once(demos: dict[str, list[LabelledDemo]]) -> dict[str, list[LabelledDemo]]:
    """Return one demo of each question: a plan asked for four hundred images is asked once."""
    return {name: list({demo.key: demo for demo in reversed(some)}.values())[::-1] for name, some in demos.items()}
