"""Fusion fitted on human scores, without a language model: eta, the model's weight, and a monotone map.

Eta and weight are chosen on a grid by SRCC + PLCC on training samples that are no demos of the program, each judged
without the demos of its own photograph: beliefs are as sure as they will be of new photographs. Where the model or the
tools alone agree as well on validation, nothing is fused. The map is a line, a
four-parameter logistic or an isotonic fit of the same samples, whichever has the highest PLCC (then the lowest RMSE) on
validation. Whether one is taken is decided on validation, where it has to gain clearly (see selection.py).
"""

from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from optimizers.recipes import Bound, Recipe
from optimizers.search import Beliefs, Candidate, Search, beliefs, scored_examples, unseen
from optimizers.selection import PLCC_STEP
from program.evaluation.metrics import fit_logistic, plcc, rmse, srcc
from program.fusion import ScoreFusion
from program.fusion.scores import FittedFusion

ETAS = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
_LEAST, _LEAST_VALIDATION = 30, 10
"""Scored samples that a fit and its choice need."""
_MOST_ASKED = 150
"""Training samples that a model is asked about anew where a call costs: two numbers and a map need no more."""
_MARGIN = 0.002
"""What a grid point has to add to SRCC + PLCC to be preferred over the paper's values."""

Array = NDArray[np.float64]


def _run(search: Search) -> list[Candidate]:
    """Return candidates with a fitted fusion: the map alone; eta, weight and map."""
    program = search.base.program
    judges = unseen(program, search.train.examples)
    if not program.resources.known("summarizer").is_free:
        unseen_examples = [example for _, examples in judges for example in examples]
        asked = {example.id for example in scored_examples(unseen_examples, _MOST_ASKED, search.seed)}
        judges = [(judge, [each for each in examples if each.id in asked]) for judge, examples in judges]
    count = sum(len(examples) for _, examples in judges)
    scored = [example for example in search.validation.examples if example.get("answer") is None]
    if count < _LEAST or len(scored) < _LEAST_VALIDATION:
        search.note = (
            f"fusion: {count} scored training samples can be judged by demos of other photographs; "
            f"{_LEAST} are needed, so nothing is fitted"
        )
        return []
    train = Beliefs(belief for judge, examples in judges for belief in beliefs(search, judge, examples))
    held = beliefs(search, program, scored)
    plain = program.resources.fusion
    (eta, weight), compared = _worth_it(plain, _grid(plain, train), held)
    candidates, words = [], [compared]
    for name, fusion in (("map", FittedFusion(plain)), ("fusion", FittedFusion(plain, eta=eta, model_weight=weight))):
        curve, kind = _best_curve(fusion, train, held)
        fitted = FittedFusion(plain, eta=fusion.eta, model_weight=fusion.model_weight, curve=curve, kind=kind)
        copy = program.deepcopy()
        # One that changes nothing is none: then the candidate is known to be the program it started as.
        neutral = (fitted.eta, fitted.model_weight, fitted.bends) == (plain.eta, plain.model_weight, False)
        copy.summarizer.fitted = None if neutral else fitted
        candidates.append(Candidate(search.named(name), copy))
        words.append(f"{name}: eta {fitted.eta:g}, model weight {fitted.model_weight:g}, map {kind}")
    search.note = f"fusion fitted on {len(train)} samples ({'; '.join(words)})"
    return candidates


RECIPE = Recipe(
    name="fusion",
    run=_run,
    bound=lambda budget, sizes: Bound(
        (sizes.train if sizes.free else min(sizes.train, _MOST_ASKED)) + sizes.validation, candidates=2
    ),
    teaches="fusion",
    fits_scores=True,
    least=lambda budget: _LEAST,
    least_validation=_LEAST_VALIDATION,
    gains_clearly=True,
)


def fitted_curve(kind: str, fused: Array, truth: Array) -> list[tuple[float, float]]:
    """Return increasing knots within 1..5 of a "line", "logistic" or "isotonic" fit; [] where it does not increase."""
    grid = np.linspace(1.0, 5.0, 17)
    if kind == "none" or np.ptp(fused) < 1e-6:
        return []
    if kind == "line":
        slope, offset = np.polyfit(fused, truth, 1)
        values = slope * grid + offset
    elif kind == "logistic":
        values = np.asarray(fit_logistic(truth, fused, 4)(grid))
    else:
        from sklearn.isotonic import IsotonicRegression

        # Smoothed by a line through a fifth of its weight: steps of a few samples are noise.
        steps = IsotonicRegression(out_of_bounds="clip").fit(fused, truth).predict(grid)
        slope, offset = np.polyfit(fused, truth, 1)
        values = 0.8 * np.convolve(np.pad(steps, 1, mode="edge"), [0.25, 0.5, 0.25], "valid") + 0.2 * (
            slope * grid + offset
        )
    if not np.all(np.isfinite(values)) or values[-1] - values[0] < 0.1:
        return []
    # Strictly increasing inside the scale, whatever the fit does at its ends: ranks must not be tied.
    values = np.maximum.accumulate(np.clip(values, 1.0, 5.0)) * (1 - 1e-3) + grid * 1e-3
    return [(float(x), round(float(y), 6)) for x, y in zip(grid, values, strict=True)]


def _agreement(truth: Array, fused: Array) -> float:
    return float(np.nan_to_num(srcc(truth, fused)) + np.nan_to_num(plcc(truth, fused)))


def _grid(plain: ScoreFusion, train: Beliefs) -> tuple[float, float]:
    """Return the eta and model weight whose fused scores agree best with people."""
    least = _agreement(train.truth, train.fused(FittedFusion(plain))) + _MARGIN
    agreements = {
        (eta, weight): _agreement(train.truth, train.fused(FittedFusion(plain, eta=eta, model_weight=weight)))
        for eta in ETAS
        for weight in WEIGHTS
        if eta or weight
    }
    best, agreement = max(agreements.items(), key=itemgetter(1))
    return best if agreement > least else (plain.eta, plain.model_weight)


def _worth_it(plain: ScoreFusion, fused: tuple[float, float], held: Beliefs) -> tuple[tuple[float, float], str]:
    """Return the eta and model weight of the better part alone, unless both fused agree better on validation.

    Also what is told of it.
    """
    ways = {"model only": (0.0, 1.0), "tools only": (plain.eta or 1.0, 0.0), "both fused": fused}
    found = {
        name: _agreement(held.truth, held.fused(FittedFusion(plain, eta=eta, model_weight=weight)))
        for name, (eta, weight) in ways.items()
    }
    taken = max(found, key=lambda name: found[name])  # of equal ones the first
    told = ", ".join(f"{name} {agreement:.3f}" for name, agreement in found.items())
    return ways[taken], f"SRCC + PLCC on validation: {told}; {taken} is taken"


def _best_curve(fusion: FittedFusion, train: Beliefs, held: Beliefs) -> tuple[list[tuple[float, float]], str]:
    """Return the map that comes nearest to people on held samples, and its kind."""
    fused, unseen, truth = train.fused(fusion), held.fused(fusion), held.truth
    ranked = []
    for kind in ("none", "line", "logistic", "isotonic"):
        curve = fitted_curve(kind, fused, train.truth)
        if curve or kind == "none":
            mapped = np.array([FittedFusion(fusion, curve=curve).mapped(x) for x in unseen])
            rank = round(float(np.nan_to_num(plcc(truth, mapped))) / PLCC_STEP), -rmse(truth, mapped)
            ranked.append((rank, curve, kind))
    _, best, kind = max(ranked, key=lambda fit: fit[0])
    return best, kind
