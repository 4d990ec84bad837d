"""The labelled photographs that look most like the one in question: their levels or right answers are evidence on it.

Nearest neighbours as context (kNN-ICL, Liu et al. 2022), by what the embedded expert measures of an image anyway. How
many are asked is chosen from labels and likeness alone, a photograph's own group left out; whether they are taken is
decided on validation.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Literal

import dspy
import numpy as np

from optimizers.learner import MOST_ASKED
from optimizers.recipes import Bound, Recipe, fits
from optimizers.search import Beliefs, Candidate, Search
from optimizers.student import inputs_key
from program.agent.labels import Corrections, Neighbour, Neighbours
from program.agent.loop import AgenticIQA
from program.common.text import fold_text
from program.expert import QualityBelief, View, damage, likeness
from program.fusion.levels import expected_level
from program.fusion.scores import FittedFusion, even_out
from program.images.refs import parse_url

COUNTS = (4, 8, 16)


def _neighbours(
    photographs: Sequence[Neighbour], views: Sequence[View], compared_by: Literal["likeness", "damage"]
) -> Neighbours:
    """Return the photographs, of which so many are asked as their own labels and answers say."""
    vector_of = likeness if compared_by == "likeness" else damage
    vectors = np.stack([vector_of(view) for view in views])
    known = partial(Neighbours, photographs=tuple(photographs), vectors=vectors, compared_by=compared_by)
    return known(count=chosen_count(known(count=max(COUNTS)), views))


def chosen_count(most: Neighbours, views: Sequence[View]) -> int:
    """Return the count by which the nearest photographs' labels and answers are nearest to each photograph's own.

    Of labels the mean's squared error counts, of answers whether the most frequent one is wrong; each as a share of
    what the best count leaves.
    """
    errors: dict[str, dict[int, list[float]]] = {}
    for photograph, view in zip(most.photographs, views, strict=True):
        label, query = photograph.label, photograph.query
        near = most.nearest(view, lambda each, asked=query: each.query == asked)  # type: ignore[misc]
        for count in COUNTS if near else ():
            if label is not None:
                wrong = (float(np.mean([each.label for each in near[:count] if each.label])) - label) ** 2
            else:
                frequent = Counter(each.answer for each in near[:count]).most_common(1)[0][0]
                wrong = float(frequent != photograph.answer)
            errors.setdefault("answer" if label is None else "label", {}).setdefault(count, []).append(wrong)
    shares = dict.fromkeys(COUNTS, 0.0)
    for by_count in errors.values():
        means = {count: float(np.mean(each)) for count, each in by_count.items()}
        for count, mean in means.items():
            shares[count] += mean / (min(means.values()) or 1.0)
    return min(shares, key=shares.__getitem__)


def _neighbour(example: dspy.Example, kind: str) -> Neighbour | None:
    """Return a training example as a neighbour; None where it has no label that others can be told."""
    sha256, _ = parse_url(example.image.url)
    own = {"sha256": sha256, "group": example.group, "kind": kind}
    if example.get("quality") is not None:
        return Neighbour(**own, label=min(5.0, max(1.0, float(example.quality))))
    if example.get("answer") is None:
        return None
    return Neighbour(**own, query=fold_text(example.query), answer=fold_text(example.options[example.answer]))


def _reading(search: Search, example: dspy.Example, view: View) -> QualityBelief:
    """Return the tools' mean of a training example; where no tool read it, what the expert believes."""
    evidence = search.train.gathered[inputs_key(example.inputs())].evidence
    mean = search.base.program.summarizer.tools_mean(evidence)
    return view.prior if mean is None else view.prior._replace(mean=mean)


def _corrections(search: Search) -> Corrections | None:
    """Return what labels add to the expert's own reading, or to the tools' mean: which predicts other groups better."""
    by_kind = fits.fitted_corrections(search, lambda _, view: view.prior)
    for kind, each in fits.fitted_corrections(search, partial(_reading, search), of_tools=True).items():
        if kind not in by_kind or each.after < by_kind[kind].after:
            by_kind[kind] = each
    return Corrections(**by_kind) if by_kind else None


def _even_share(held: Beliefs) -> float:
    """Return the share of an even spread with which expected levels are nearest to the labels.

    Least squares on how far level and label lie from the middle, 3.
    """
    levels = np.array([expected_level(each.levels or {}) for each in held]) - 3
    slope = float(levels @ (held.truth - 3) / (levels @ levels)) if levels.any() else 1.0
    return round(min(1.0, max(0.0, 1 - slope)), 2)


def _calibrate(search: Search, program: AgenticIQA, near: Neighbours) -> None:
    """Let the levels of a program that is told what labels say count as much as they are sure, in place.

    By its answers on samples of train, told nothing of their own group.
    """
    held = Beliefs(each for each in fits.unseen_beliefs(search, program) if each.levels)
    if not held:
        return
    even_share, plain = _even_share(held), program.summarizer.fusion
    held = Beliefs(each._replace(levels=even_out(each.levels or {}, even_share)) for each in held)
    _, weight = fits.best_on_grid(plain, held, (plain.eta,), fits.WEIGHTS[1:])
    program.summarizer.neighbours = Neighbours(
        count=near.count, photographs=near.photographs, vectors=near.vectors, even_share=even_share
    )
    if weight != plain.model_weight:
        program.summarizer.fitted = FittedFusion(plain, model_weight=weight)


def _labelled(search: Search, *, answers_only: bool) -> tuple[list[Neighbour], list[View]]:
    """Return the labelled training photographs, or those with an answered question, and how the expert sees them."""
    program, photographs, views = search.base.program, [], []
    for example in search.train.examples:
        search.advance()
        view = program.resources.viewer.view(example.image, example.get("reference"))
        neighbour = _neighbour(example, view.model.kind)
        if neighbour is None or (answers_only and neighbour.answer is None):
            continue
        photographs.append(neighbour)
        views.append(view)
    return photographs, views


def _run(search: Search) -> list[Candidate]:
    program = search.base.program
    # The embedded expert's scores are for `finetune`, which reads more of an image.
    reads_words = "instructions" in search.learner.takes
    photographs, views = _labelled(search, answers_only=not reads_words)
    if len(photographs) < fits.LEAST:
        label = "a label" if reads_words else "an answered question"
        return search.nothing(f"nearest: {len(photographs)} training photographs have {label}; {fits.LEAST} are needed")
    near = _neighbours(photographs, views, "likeness" if reads_words else "damage")
    copy = program.deepcopy()
    copy.summarizer.neighbours = near
    search.note = f"nearest: what people said of the {near.count} most similar of {len(photographs)} photographs"
    if reads_words:
        copy.summarizer.corrections = _corrections(search)
        _calibrate(search, copy, near)
    return [Candidate(search.candidate_name("nearest"), copy)]


RECIPE = Recipe(
    name="nearest",
    run=_run,
    bound=lambda budget, sizes: Bound(
        3 * sizes.train + min(sizes.train, MOST_ASKED), asked=min(sizes.train, MOST_ASKED)
    ),
    teaches="evidence",
    takes_all="answers",
    least=fits.LEAST,
)
