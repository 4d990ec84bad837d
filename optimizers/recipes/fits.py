"""What is fitted to labels without a language model: a correction, a fusion, a rubric's sentences.

`finetune` is a ridge correction of the embedded expert's reading, fitted on what every label differs from it by: what
fine-tuning is to a network. How strongly is chosen on train, each group left out, down to not at all.

`fusion` chooses eta and the model's weight on a grid by SRCC + PLCC on training samples of photographs that no demo of
the program shows: beliefs are as sure as they will be of new photographs.
Where the model or the tools alone agree as well on validation, nothing is fused. A monotone map follows: a line, a
four-parameter logistic or an isotonic fit of the same samples, whichever has the highest PLCC (then the lowest RMSE) on
validation, where the whole has to gain clearly (see selection.py).

`rubric` says what counts on these images in sentences (see `signatures.rubric`). What the model believes of training
images that are no demos, corrected as the sentences say, has to come nearer to the labels: the sentence that lowers the
squared error most goes first, then the next, for as long as chance would not do as much. After each, sentences are
exchanged for others while that lowers the error: an early choice that spoke for several faults at once gives way. The
embedded expert measures severities and properties, whichever model learns. How many sentences are taken, if any, is
decided on validation.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from operator import itemgetter
from typing import Any, NamedTuple

import dspy
import numpy as np

from optimizers.learner import MOST_ASKED
from optimizers.recipes import Bound, Recipe
from optimizers.search import Array, Beliefs, Candidate, Search, beliefs, drawn, unseen
from optimizers.selection import PLCC_STEP
from program.agent.labels import Corrections
from program.agent.loop import AgenticIQA
from program.common.text import counted
from program.evaluation.metrics import fit_logistic, plcc, rmse, srcc
from program.expert import Correction, Labels, QualityBelief, View, belief, properties_of
from program.fusion import ScoreFusion
from program.fusion.levels import expected_level
from program.fusion.scores import FittedFusion
from signatures.rubric import SENTENCES, TRAITS, rubric_in, with_rubric
from signatures.schemas import DISTORTION_CATEGORIES

LEAST = 30
"""Scored samples of train that a fit needs; below, no penalty can be chosen."""
ETAS = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
WEIGHTS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
_LEAST_VALIDATION = 10
"""Scored samples that the choice needs."""
_MARGIN = 0.002
"""What a grid point has to add to SRCC + PLCC to be preferred over the paper's values."""
_MOST = 8
"""Sentences of the longest rubric."""
_CHANCE = 10.8
"""What a sentence has to lower n log(squared error) by: chance does so once in 1,000 (chi-squared, one degree)."""


def fitted_corrections(
    search: Search, reading: Callable[[dspy.Example, View], QualityBelief], *, of_tools: bool = False
) -> dict[str, Correction]:
    """Return what the labels of the training examples add to a reading of them, by kind, where it carries over.

    The reading is the expert's, or with `of_tools` the tools' mean.
    """
    viewer, corrections = search.base.program.resources.viewer, {}
    by_kind: dict[str, list[dspy.Example]] = {"nr": [], "fr": []}
    for example in search.train.examples:
        if example.get("quality") is not None:
            by_kind["nr" if example.get("reference") is None else "fr"].append(example)
    for kind, examples in by_kind.items():
        if len(examples) < LEAST:
            continue
        labels = Labels(of_tools=of_tools)
        for example in examples:
            search.advance()
            view = viewer.view(example.image, example.get("reference"))
            label = min(5.0, max(1.0, float(example.quality)))
            labels.add(view, reading(example, view), label, example.group)
        if (correction := labels.correction(search.seed)) is not None:
            corrections[kind] = correction
    return corrections


def _finetune(search: Search) -> list[Candidate]:
    program, parameters = search.base.program, dict(search.student.named_parameters())
    scoring = [name for name in ("summarizer.score", "summarizer.classify") if name in parameters]
    if not scoring:
        return search.nothing("finetune: corrects scores alone, and no label is one")
    instructions = parameters[scoring[0]].signature.instructions
    by_kind = fitted_corrections(search, lambda _, view: belief(view, instructions))
    if not by_kind:
        return search.nothing("finetune: the labels say nothing that carries over to other photographs")
    corrections = Corrections(**by_kind)
    copy = program.deepcopy()
    copy.summarizer.corrections = corrections
    search.note = f"finetune: fitted on {corrections.count} labels"
    return [Candidate(search.candidate_name("finetune"), copy)]


FINETUNE = Recipe(
    name="finetune",
    run=_finetune,
    bound=lambda budget, sizes: Bound(sizes.train),
    teaches="evidence",
    fits_scores=True,
    takes_all="scores",
    expert_only=True,
    least=LEAST,
)


def unseen_beliefs(search: Search, program: AgenticIQA) -> Beliefs:
    """Return what a program fuses for samples of train that no demo shows, few where a call costs; nothing of few."""
    samples = unseen(search, program)
    if search.learner.most_asked is not None:
        samples = drawn(samples, search.learner.most_asked, search.seed)
    return beliefs(search, program, samples) if len(samples) >= LEAST else Beliefs()


def _fusion(search: Search) -> list[Candidate]:
    """Return candidates with a fitted fusion: the map alone; eta, weight and map."""
    program = search.base.program
    scored = [example for example in search.validation.examples if example.get("answer") is None]
    count = len(unseen(search, program))
    if count < LEAST or len(scored) < _LEAST_VALIDATION:
        return search.nothing(
            f"fusion: not fitted: {count} scored training samples are of photographs that no demo shows; "
            f"{LEAST} are needed"
        )
    train = unseen_beliefs(search, program)
    held = beliefs(search, program, scored)
    plain = program.summarizer.fusion
    eta, weight = _worth_it(plain, best_on_grid(plain, train, ETAS, WEIGHTS), held)
    candidates = []
    for name, fusion in (("map", FittedFusion(plain)), ("fusion", FittedFusion(plain, eta=eta, model_weight=weight))):
        fitted = _with_best_map(fusion, train, held)
        copy = program.deepcopy()
        # One that changes nothing is none: then the candidate is known to be the program it started as.
        if (fitted.eta, fitted.model_weight, fitted.bends) != (plain.eta, plain.model_weight, False):
            copy.summarizer.fitted = fitted
        candidates.append(Candidate(search.candidate_name(name), copy))
    search.note = f"fusion: fitted on {len(train)} scores"
    return candidates


FUSION = Recipe(
    name="fusion",
    run=_fusion,
    bound=lambda budget, sizes: Bound(
        (sizes.train if sizes.free else min(sizes.train, MOST_ASKED)) + sizes.validation, candidates=2
    ),
    teaches="fusion",
    fits_scores=True,
    least=LEAST,
    least_validation=_LEAST_VALIDATION,
)


def fitted_curve(kind: str, fused: Array, truth: Array) -> list[tuple[float, float]]:
    """Return increasing knots within 1..5 of a "line", "logistic" or "isotonic" fit; [] where it does not increase."""
    grid = np.linspace(1.0, 5.0, 17)
    if kind == "none" or np.ptp(fused) < 1e-6:
        return []
    slope, offset = np.polyfit(fused, truth, 1)
    line = slope * grid + offset
    if kind == "line":
        values = line
    elif kind == "logistic":
        values = np.asarray(fit_logistic(truth, fused)(grid))
    else:
        from sklearn.isotonic import IsotonicRegression

        # Smoothed by a line through a fifth of its weight: steps of a few samples are noise.
        steps = IsotonicRegression(out_of_bounds="clip").fit(fused, truth).predict(grid)
        values = 0.8 * np.convolve(np.pad(steps, 1, mode="edge"), [0.25, 0.5, 0.25], "valid") + 0.2 * line
    if not np.all(np.isfinite(values)) or values[-1] - values[0] < 0.1:
        return []
    # Strictly increasing inside the scale, whatever the fit does at its ends: ranks must not be tied.
    values = np.maximum.accumulate(np.clip(values, 1.0, 5.0)) * (1 - 1e-3) + grid * 1e-3
    return [(float(x), round(float(y), 6)) for x, y in zip(grid, values, strict=True)]


def _agreement(samples: Beliefs, plain: ScoreFusion, eta: float | None = None, weight: float | None = None) -> float:
    """Return how well scores that are fused with another eta and model weight agree with people: SRCC + PLCC."""
    truth, fused = samples.truth, samples.fuse(FittedFusion(plain, eta=eta, model_weight=weight))
    return float(np.nan_to_num(srcc(truth, fused)) + np.nan_to_num(plcc(truth, fused)))


def best_on_grid(
    plain: ScoreFusion, train: Beliefs, etas: Sequence[float], weights: Sequence[float]
) -> tuple[float, float]:
    """Return the eta and model weight whose fused scores agree best with people; the plain ones unless others gain."""
    best, most = (plain.eta, plain.model_weight), _agreement(train, plain) + _MARGIN
    for eta, weight in product(etas, weights):
        if eta or weight:
            agreement = _agreement(train, plain, eta, weight)
            if agreement > most:
                best, most = (eta, weight), agreement
    return best


def _worth_it(plain: ScoreFusion, fused: tuple[float, float], held: Beliefs) -> tuple[float, float]:
    """Return eta and model weight of the better part alone, unless both fused agree better on validation."""
    ways = [(0.0, 1.0), (plain.eta or 1.0, 0.0), fused]  # the model alone, the tools alone
    return max(ways, key=lambda way: _agreement(held, plain, *way))  # of equal ones the first


def _with_best_map(fusion: FittedFusion, train: Beliefs, held: Beliefs) -> FittedFusion:
    """Return the fusion with the map that comes nearest to people on held samples."""
    fused, unseen, truth = train.fuse(fusion), held.fuse(fusion), held.truth
    ranked = []
    for kind in ("none", "line", "logistic", "isotonic"):
        curve = fitted_curve(kind, fused, train.truth)
        if curve or kind == "none":
            fitted = FittedFusion(fusion, curve=curve, kind=kind)
            mapped = np.array([fitted.map_score(x) for x in unseen])
            rank = round(float(np.nan_to_num(plcc(truth, mapped))) / PLCC_STEP), -rmse(truth, mapped)
            ranked.append((rank, fitted))
    return max(ranked, key=itemgetter(0))[1]


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
        shorter = (sentences[:place] + sentences[place + 1 :] for place in range(len(sentences)))
        best = min((_best_added(images, rest, SENTENCES) for rest in shorter), key=images.error)
        if images.error(best) >= images.error(sentences):
            return sentences
        sentences = best


def with_sentences(program: AgenticIQA, sentences: Sequence[str]) -> AgenticIQA:
    """Return a copy whose Summarizer has these sentences in every question's instructions."""
    copy: AgenticIQA = program.deepcopy()
    for _, predictor in copy.summarizer.named_predictors():
        instructions = with_rubric(predictor.signature.instructions, sentences)
        predictor.signature = predictor.signature.with_instructions(instructions)
    return copy


def _speaks_of_the_same(sentence: str, others: Sequence[str]) -> bool:
    one, rest = rubric_in(sentence), rubric_in("\n".join(others))
    shared = (one.weights.keys() & rest.weights.keys()) or (one.likes.keys() & rest.likes.keys())
    return bool(shared or (one.mildness and rest.mildness) or (one.stretch != 1 and rest.stretch != 1))


def _labelled(search: Search) -> Labelled:
    program, by_id = search.base.program, {example.id: example for example in search.train.examples}
    judged = beliefs(search, program, unseen(search, program))
    held = Beliefs(each for each in judged if each.levels is not None)
    examples = [by_id[each.sample] for each in held]
    views = [program.resources.viewer.view(example.image, example.get("reference")) for example in examples]
    believed = np.array([expected_level(each.levels or {}) for each in held])
    severities = _columns([view.severities for view in views], DISTORTION_CATEGORIES)
    return Labelled(believed, severities, _columns([properties_of(view) for view in views], TRAITS), held.truth)


def _columns(rows: Sequence[Mapping[Any, float]], names: Iterable[str]) -> dict[str, Array]:
    return {name: np.array([row[name] for row in rows]) for name in names}


def _rubric(search: Search) -> list[Candidate]:
    images = _labelled(search)
    if len(images.truth) < LEAST:
        return search.nothing(f"rubric: {len(images.truth)} scored training samples are no demos; {LEAST} are needed")
    sentences = chosen_sentences(images)
    if not sentences:
        return search.nothing("rubric: no sentence brings scores nearer to the labels by more than chance")
    search.note = f"rubric: up to {counted(len(sentences), 'sentence')} fitted on {len(images.truth)} scores"
    lengths = sorted({1, 2, 3, 5, len(sentences)} & set(range(1, len(sentences) + 1)), reverse=True)
    programs = {n: with_sentences(search.base.program, sentences[:n]) for n in lengths}
    return [Candidate(search.candidate_name(f"rubric/{n}"), program) for n, program in programs.items()]


RUBRIC = Recipe(
    name="rubric",
    run=_rubric,
    bound=lambda budget, sizes: Bound(sizes.train, candidates=5),
    teaches="rubric",
    fits_scores=True,
    least=LEAST,
)
