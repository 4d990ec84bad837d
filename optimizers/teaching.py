"""What is taught: samples as examples, and for every role the questions it was asked, rightly answered."""

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import dspy

from data.manifest import Sample
from data.splits import group_of
from optimizers.lessons import Lesson, distortion_truth, lessons_of, plan_by_rule
from optimizers.memory import Asked, Memory
from optimizers.parallel import in_order
from optimizers.taught import GatheredEvidence
from program.agent import DEFAULT_QUERY, AgenticIQA
from program.budget import BudgetSpent
from program.errors import InputError
from program.images import IMAGES
from program.state import AssessmentState

__all__ = ("Course", "choose_samples", "course_of", "to_example")

logger = logging.getLogger(__name__)

PROGRAM_INPUTS = ("image", "query", "reference", "options", "regions")


@dataclass
class Course:
    """What one pass over the training samples gave."""

    examples: list[dspy.Example] = field(default_factory=list)
    """The program's inputs with everything known of the sample."""
    lessons: dict[str, list[Lesson]] = field(default_factory=dict)
    """By predictor: a question it was asked and the answer people, rules or measured strengths give."""
    gathered: GatheredEvidence = field(default_factory=GatheredEvidence)
    lm_calls: int = 0

    @property
    def shares_content(self) -> bool:
        """Whether many samples show the same photograph: then one says too much of another to be scored on it."""
        groups = {example.group for example in self.examples}
        return 2 * len(groups) <= len(self.examples)


def choose_samples(samples: Iterable[Sample], *, scoring: int, mcq: int, seed: int) -> list[Sample]:
    """Return at most so many scoring and multiple-choice samples, spread evenly over the distortions, seeded."""
    chosen: list[Sample] = []
    pool = sorted(samples, key=lambda s: s.id)
    for task, count in (("scoring", scoring), ("mcq", mcq)):
        of_task = [sample for sample in pool if sample.task == task]
        random.Random(f"{seed}/{task}").shuffle(of_task)
        turn: dict[str, int] = {}
        ranked = []
        for place, sample in enumerate(of_task):
            kind = sample.distortion or ""
            turn[kind] = turn.get(kind, 0) + 1
            ranked.append((turn[kind], place))
        chosen += [of_task[place] for _, place in sorted(ranked)[:count]]
    return chosen


def to_example(sample: Sample) -> dspy.Example:
    """Return a sample as an optimizer's example: the program's inputs and what is known, images as references."""
    fields: dict[str, Any] = {
        "id": sample.id,
        "group": group_of(sample),
        "image": dspy.Image(IMAGES.add(sample.image).url),
        "query": sample.query or DEFAULT_QUERY,
    }
    if sample.reference is not None:
        fields["reference"] = dspy.Image(IMAGES.add(sample.reference).url)
    if sample.options:
        fields["options"] = sample.options
        fields["answer"] = sample.answer
    else:
        fields["quality"] = sample.quality
        if sample.mos_std is not None:
            low, high = sample.mos_range
            fields["quality_std"] = 4 * sample.mos_std / (high - low)
    if sample.regions:
        fields["regions"] = sample.regions
    truth = distortion_truth(sample)
    if truth is not None:
        fields["distortion_truth"] = truth
    return dspy.Example(**fields).with_inputs(*(name for name in PROGRAM_INPUTS if name in fields))


def course_of(
    program: AgenticIQA,
    samples: Sequence[Sample],
    *,
    workers: int,
    advance: Callable[[], None] = lambda: None,
    memory: Memory | None = None,
) -> Course:
    """Run the program once over the samples and return what it was asked, with the right answers.

    What the memory knows is not run again. A sample that cannot be assessed is left out with a warning. Raises
    InputError when none is left.
    """
    names = {id(predictor): name for name, predictor in program.named_predictors()}
    memory = memory if memory is not None else Memory(None)

    def attend(sample: Sample) -> tuple[dspy.Example, AssessmentState, Asked, int] | None:
        try:
            example = to_example(sample)
            known = memory.evidence(sample)
            if known is not None:
                return example, *known
            # Each thread gets a trace of its own: what was really asked, role by role.
            with dspy.context(trace=[]):
                result = program(**example.inputs())
                asked = [(names[id(p)], dict(inputs)) for p, inputs, _ in dspy.settings.trace if id(p) in names]
        except BudgetSpent:
            raise
        except InputError as error:
            logger.warning("sample %r left out of teaching: %s", sample.id, error)
            return None
        finally:
            advance()
        memory.keep_evidence(sample, result.state, asked, result.usage.lm_calls)
        return example, result.state, asked, result.usage.lm_calls

    course = Course()
    for sample, attended in zip(samples, in_order(attend, samples, workers=workers), strict=True):
        if attended is None:
            continue
        example, state, asked, calls = attended
        course.lm_calls += calls
        course.gathered.put(example.inputs(), state)
        for lesson in lessons_of(sample, example, asked, program.resources):
            course.lessons.setdefault(lesson.predictor, []).append(lesson)
        rule = plan_by_rule(asked, program.resources)
        course.examples.append(example.copy(**({"plan_by_rule": rule} if rule else {})).with_inputs(*example.inputs()))
    if not course.examples:
        raise InputError("training samples: none could be assessed; run python -m data.check on the manifest")
    _without_repeats(course)
    return course


def _without_repeats(course: Course) -> None:
    """Keep one lesson of each question: a plan asked for four hundred images is one lesson."""
    for name, lessons in course.lessons.items():
        course.lessons[name] = list({lesson.key: lesson for lesson in reversed(lessons)}.values())[::-1]
