"""Training examples: samples with their evidence and, as each role would answer it, the human label."""

import logging
import math
import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import dspy

from data.manifest import Sample
from program.agent import DEFAULT_QUERY, AgenticIQA
from program.errors import InputError
from program.evidence import findings_json, scores_json, tool_scores
from program.images import IMAGES
from signatures.schemas import LEVEL_WORDS, LevelProbabilities

__all__ = ("choose_samples", "label_probabilities", "taught_examples", "to_example")

logger = logging.getLogger(__name__)

PROGRAM_INPUTS = ("image", "query", "reference", "options", "regions")


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
    """Return a sample as an optimizer's example: the program's inputs and the label, images as references."""
    fields = {
        "id": sample.id,
        "image": dspy.Image(IMAGES.add(sample.image).url),
        "query": sample.query or DEFAULT_QUERY,
    }
    if sample.reference is not None:
        fields["reference"] = dspy.Image(IMAGES.add(sample.reference).url)
    if sample.options:
        fields["options"] = "\n".join(f"{letter}. {text}" for letter, text in sample.options.items())
        fields["answer"] = sample.answer
    else:
        fields["quality"] = sample.quality
    if sample.regions:
        fields["regions"] = sample.regions
    return dspy.Example(**fields).with_inputs(*(name for name in PROGRAM_INPUTS if name in fields))


def taught_examples(
    program: AgenticIQA, samples: Sequence[Sample], *, workers: int, advance: Callable[[], None]
) -> list[dspy.Example]:
    """Return examples that show the Summarizer's questions with their evidence, answered as people did.

    The evidence is the program's own, from one pass over the samples; a sample that cannot be assessed is left out
    with a warning. Raises InputError when none is left.
    """

    def taught(sample: Sample) -> dspy.Example | None:
        try:
            example = to_example(sample)
            result = program(**example.inputs())
        except InputError as error:
            logger.warning("sample %r left out of teaching: %s", sample.id, error)
            return None
        finally:
            advance()
        evidence = result.state.executor_evidence
        columns: dict[str, object] = {
            "distortion_analysis": findings_json(evidence.distortion_analysis) if evidence else None,
            "quality_scores": scores_json(evidence.quality_scores) if evidence else None,
        }
        scores = tool_scores(evidence.quality_scores) if evidence else []
        if scores:
            columns["tool_mean"] = math.fsum(scores) / len(scores)
        labelled = example.copy(**{k: v for k, v in {**columns, **_label_columns(sample)}.items() if v is not None})
        return labelled.with_inputs(*example.inputs().keys())

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(copy_context().run, taught, sample) for sample in samples]
        examples = [example for future in futures if (example := future.result()) is not None]
    if not examples:
        raise InputError("training samples: none could be assessed; run python -m data.check on the manifest")
    return examples


def _label_columns(sample: Sample) -> dict[str, object]:
    if sample.options and sample.answer:
        return {
            "final_answer": sample.answer,
            "quality_reasoning": f"People chose {sample.answer}. {sample.options[sample.answer]}.",
        }
    if sample.quality is None:
        return {}
    return {
        "quality_probs": label_probabilities(sample.quality),
        "quality_reasoning": f"People rated images like this {sample.quality:.2f} of 5.",
    }


def label_probabilities(quality: float) -> LevelProbabilities:
    """Return the narrowest belief over the levels whose mean is a human score (1..5): its two nearest levels.

    >>> label_probabilities(2.9).by_level()[3]
    0.9
    """
    quality = min(5.0, max(1.0, quality))
    lower = min(4, math.floor(quality))
    share = round(quality - lower, 6)
    masses = dict.fromkeys(LEVEL_WORDS, 0.0)
    masses[LEVEL_WORDS[lower - 1]] = round(1 - share, 6)
    masses[LEVEL_WORDS[lower]] = share
    return LevelProbabilities(**masses)
