"""What counts on these images, fitted on their scores and said in sentences (see `signatures.rubric`).

What the model believes of training images that are no demos, corrected as the sentences say, has to come nearer to the
labels: the sentence that lowers the squared error most goes first, then the next, for as long as chance would not do as
much. After each, sentences are exchanged for others while that lowers the error: an early choice that spoke for several
faults at once gives way. The embedded expert measures severities and properties, whichever model is taught. How many
sentences are taken, if any, is decided on validation.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimizers.recipes import Bound, Recipe
from optimizers.search import Candidate, Search, beliefs, unseen
from optimizers.student import role_of
from program.agent.loop import AgenticIQA
from program.expert import properties_of
from signatures.rubric import SENTENCES, TRAITS, rubric_in, with_rubric
from signatures.schemas import DISTORTION_CATEGORIES

_LEAST = 30
"""Scored training samples that a fit needs."""
_MOST = 8
"""Sentences of the longest rubric."""
_CHANCE = 10.8
"""What a sentence has to lower n log(squared error) by: chance does so once in 1,000 (chi-squared, one degree)."""

Array = NDArray[np.float64]


class Labelled(NamedTuple):
    """N images as a model judges them, what was measured of them, and their labels, 1..5."""

    believed: Array
    severities: Mapping[str, Array]
    traits: Mapping[str, Array]
    truth: Array

    def error(self, sentences: Sequence[str]) -> float:
        """Return the mean squared error of the beliefs as these sentences correct them."""
        judged = rubric_in("\n".join(sentences)).judged(self.believed, self.severities, self.traits)
        return float(np.mean((np.clip(judged, 1, 5) - self.truth) ** 2))


def chosen_sentences(images: Labelled) -> list[str]:
    """Return the sentences that bring beliefs nearer to the labels, the most useful first."""
    sentences: list[str] = []
    error = images.error(sentences)
    while len(sentences) < _MOST and error > 0:
        longer = _best_added(images, sentences, SENTENCES)
        if len(images.truth) * np.log(error / max(images.error(longer), 1e-12)) < _CHANCE:
            break
        sentences = _exchanged(images, longer)
        error = images.error(sentences)
    ordered: list[str] = []
    while len(ordered) < len(sentences):
        ordered = _best_added(images, ordered, [s for s in sentences if s not in ordered])
    return ordered


def _best_added(images: Labelled, sentences: Sequence[str], offered: Iterable[str]) -> list[str]:
    """Return the sentences and that one of those offered with which the error is least."""
    longer = [[*sentences, s] for s in offered if not _speaks_of_the_same(s, sentences)]
    return min(longer, key=images.error)


def _exchanged(images: Labelled, sentences: list[str]) -> list[str]:
    """Return as many sentences, of which no exchange of one for another lowers the error."""
    while True:
        without = [[s for s in sentences if s != one] for one in sentences]
        best = min((_best_added(images, rest, SENTENCES) for rest in without), key=images.error)
        if images.error(best) >= images.error(sentences):
            return sentences
        sentences = best


def with_sentences(program: AgenticIQA, sentences: Sequence[str]) -> AgenticIQA:
    """Return a copy whose Summarizer has these sentences in every question's instructions."""
    copy: AgenticIQA = program.deepcopy()
    for _, predictor in copy.summarizer.named_predictors():
        told = with_rubric(predictor.signature.instructions, sentences)
        predictor.signature = predictor.signature.with_instructions(told)
    return copy


def _speaks_of_the_same(sentence: str, others: Sequence[str]) -> bool:
    one, rest = rubric_in(sentence), rubric_in("\n".join(others))
    shared = (one.weights.keys() & rest.weights.keys()) or (one.likes.keys() & rest.likes.keys())
    return bool(shared or (one.mildness and rest.mildness) or (one.stretch != 1 and rest.stretch != 1))


def _labelled(search: Search) -> Labelled:
    viewer = search.base.program.resources.viewer
    by_id = {example.id: example for example in search.train.examples}
    believed, views, truth = [], [], []
    for judge, examples in unseen(search.base.program, search.train.examples):
        for belief in beliefs(search, judge, examples):
            if belief.levels is not None:
                example = by_id[belief.sample]
                believed.append(sum(level * p for level, p in belief.levels.items()))
                views.append(viewer.view(example.image, example.get("reference")))
                truth.append(belief.truth)
    traits = [properties_of(view) for view in views]
    return Labelled(
        np.array(believed),
        {c: np.array([view.severities[c] for view in views]) for c in DISTORTION_CATEGORIES},
        {name: np.array([of_view[name] for of_view in traits]) for name in TRAITS},
        np.array(truth),
    )


def _run(search: Search) -> list[Candidate]:
    if all(role_of(name) != "summarizer" for name in search.student.names):
        search.note = "rubric: changes the Summarizer alone, which --roles leaves out"
        return []
    images = _labelled(search)
    if len(images.truth) < _LEAST:
        search.note = f"rubric: {len(images.truth)} scored training samples are no demos; {_LEAST} are needed"
        return []
    sentences = chosen_sentences(images)
    if not sentences:
        search.note = "rubric: no sentence brings scores nearer to the labels by more than chance"
        return []
    plural = "s" * (len(sentences) != 1)
    search.note = f"rubric: {len(sentences)} sentence{plural} fitted on {len(images.truth)} scores"
    lengths = sorted({1, 2, 3, 5, len(sentences)} & set(range(1, len(sentences) + 1)), reverse=True)
    programs = {n: with_sentences(search.base.program, sentences[:n]) for n in lengths}
    return [Candidate(search.named(f"rubric/{n}"), program) for n, program in programs.items()]


RECIPE = Recipe(
    name="rubric",
    run=_run,
    bound=lambda budget, sizes: Bound(sizes.train, candidates=5),
    teaches="instructions",
    fits_scores=True,
    least=lambda budget: _LEAST,
)
