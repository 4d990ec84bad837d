"""Samples as an optimizer's examples, and what the uncompiled program is asked and finds of them."""

import logging
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

import dspy

from data.manifest import Sample
from data.splits import group_of
from optimizers.demos import LabelledDemo, distortion_truth, labelled_demos, plan_by_rule
from optimizers.student import EvidenceByInput, inputs_key, role_of
from program.agent.loop import AgenticIQA
from program.agent.state import AssessmentState, SummarizerOutput
from program.common.errors import InputError
from program.common.pool import in_order
from program.common.request import ARGUMENTS, DEFAULT_QUERY
from program.evaluation.intervals import Figure, interval
from program.images.store import IMAGES
from program.running.runner import Asking

logger = logging.getLogger(__name__)

Evidence: TypeAlias = tuple[AssessmentState, list[tuple[str, dict[str, Any]]]]
"""What a run of the program ended with, and what it asked: predictors with inputs, in order."""


@dataclass
class ExampleSet:
    """What one pass over samples gave."""

    examples: list[dspy.Example] = field(default_factory=list)
    """The program's inputs with everything known of the sample."""
    demos: dict[str, list[LabelledDemo]] = field(default_factory=dict)
    """By predictor: a question it was asked and the answer people, rules or measured strengths give."""
    gathered: EvidenceByInput = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    """The predictors that were asked."""

    def add(self, program: AgenticIQA, sample: Sample, evidence: Evidence) -> None:
        """Add a sample that the program was run on; of demos that ask the same, the first stays."""
        state, questions = evidence
        example = to_example(sample)
        inputs = example.inputs()
        self.gathered[inputs_key(inputs)] = state
        self.asked.update(name for name, _ in questions)
        for demo in labelled_demos(sample, example, questions, program.resources, state):
            known = self.demos.setdefault(demo.predictor, [])
            if demo.key not in {each.key for each in known}:
                known.append(demo)
        rules = plan_by_rule(questions, program.resources)
        self.examples.append(example.copy(plan_by_rule=rules).with_inputs(*inputs))

    def of(self, samples: Iterable[Sample], *others: "ExampleSet") -> "ExampleSet":
        """Return what this pass and others gave on some samples alone."""
        ids, parts = {sample.id for sample in samples}, (self, *others)
        demos: dict[str, list[LabelledDemo]] = {}
        examples = []
        for part in parts:
            examples += [example for example in part.examples if example.id in ids]
            for demo in chain(*part.demos.values()):
                # A plan says nothing of an image, and one stands for all that were asked alike.
                if demo.sample in ids or role_of(demo.predictor) == "planner":
                    demos.setdefault(demo.predictor, []).append(demo)
        return ExampleSet(examples, demos, self.gathered, self.asked)

    def agreement(self) -> Figure:
        """Return the SRCC of the uncompiled program's scores with the labels."""
        scores = []
        for example in self.examples:
            state = self.gathered.get(inputs_key(example.inputs()))
            result = None if state is None else state.summarizer_result
            if example.get("quality") is not None and result is not None and result.rating is not None:
                scores.append((example.quality, result.rating, example.group))
        truth, rated, groups = zip(*scores, strict=True) if scores else ((), (), ())
        return interval("srcc", truth, rated, groups)


def choose_samples(samples: Iterable[Sample], *, scoring: int | None, mcq: int | None, seed: int) -> list[Sample]:
    """Return at most so many scoring and multiple-choice samples (None: all), spread over the distortions, seeded."""
    chosen: list[Sample] = []
    pool = sorted(samples, key=lambda s: s.id)
    for task, count in (("scoring", scoring), ("mcq", mcq)):
        of_task = [sample for sample in pool if sample.task == task]
        random.Random(f"{seed}/{task}").shuffle(of_task)
        turns, turn_of = Counter[str](), dict[str, int]()  # the first of each distortion, then the second of each
        for sample in of_task:
            turns[sample.distortion or ""] += 1
            turn_of[sample.id] = turns[sample.distortion or ""]
        chosen += sorted(of_task, key=lambda sample: turn_of[sample.id])[:count]
    return chosen


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
    if sample.regions:
        fields["regions"] = sample.regions
    if (truth := distortion_truth(sample)) is not None:
        fields["distortion_truth"] = truth
    return dspy.Example(**fields).with_inputs(*(name for name in ARGUMENTS if name in fields))


class Gathering(Asking[Evidence | str | None]):
    """From a sample to what the program ended with and what its predictors were asked, in order; or to why not.

    Of the samples that are only `measured` (their ids) to nothing: their images are measured, and no program runs.
    """

    context = staticmethod(nullcontext)  # demos show these images later

    def __init__(self, program: AgenticIQA, measured: Collection[str] = ()) -> None:
        super().__init__(program)
        self._measured = measured

    def row(self, request: Sample) -> Evidence | None:
        """Run the program."""
        example = to_example(request)
        if request.id in self._measured:
            self.program.resources.viewer.view(example.image, example.get("reference"))
            return None
        names = {id(predictor): name for name, predictor in self.program.named_parameters()}
        # Each thread gets a trace of its own: what was really asked, role by role.
        with dspy.context(trace=[]):
            state = self.program(**example.inputs()).state
            return state, [(names[id(p)], dict(inputs)) for p, inputs, _ in dspy.settings.trace if id(p) in names]

    def answer_in(self, row: Evidence | str | None) -> SummarizerOutput | None:
        """Return the program's answer to a sample; None where it was not asked."""
        if not isinstance(row, tuple):
            return None
        return row[0].summarizer_result

    def failed_row(self, request: Sample, error: str) -> str:
        """Return why a sample has no evidence."""
        return error


def collect_examples(
    program: AgenticIQA, samples: Sequence[Sample], *, workers: int, advance: Callable[[], None] = lambda: None,
    measured: Collection[str] = (),
) -> ExampleSet:  # fmt: skip
    """Run the program once over the samples and return what it was asked, with the right answers; not over `measured`.

    A sample that cannot be assessed is left out with a warning, as `running.runner` says. Raises InputError when none
    is left.
    """
    example_set, gather = ExampleSet(), Gathering(program, measured)

    def run(sample: Sample) -> Evidence | str | None:
        outcome = gather(sample)
        advance()
        return outcome

    for sample, outcome in zip(samples, in_order(run, samples, workers=workers), strict=True):
        if isinstance(outcome, str):
            logger.warning("sample %r left out of training: %s", sample.id, outcome)
        elif outcome is None:
            example_set.examples.append(to_example(sample))
        else:
            example_set.add(program, sample, outcome)
    if not example_set.examples:
        raise InputError("training samples: none could be assessed; run python -m data.check on the manifest")
    return example_set
