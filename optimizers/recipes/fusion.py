"""Fusion fitted on human scores, without a language model: eta, the model's weight, and a monotone map.

Eta and weight are chosen on a grid by SRCC + PLCC on training samples that are no demos of the program, each judged
without the demos of its own photograph: beliefs are as sure as they will be of new photographs. The map is a line, a
four-parameter logistic or an isotonic fit of the same samples, whichever has the highest PLCC (then the lowest RMSE) on
validation. Whether one is taken is decided on validation, where it has to gain clearly (see selection.py).
"""

import logging
from collections.abc import Sequence
from operator import itemgetter

import dspy
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from optimizers.demos import image_url
from optimizers.recipes import Bound, Recipe
from optimizers.search import Candidate, Search
from optimizers.selection import PLCC_STEP
from optimizers.student import Replayed
from program.agent.evidence import tool_precisions, tool_scores
from program.agent.loop import AgenticIQA
from program.agent.saving import program_sha256
from program.common.errors import InputError
from program.common.pool import in_order
from program.evaluation.metrics import fit_logistic, plcc, rmse, srcc
from program.fusion import ScoreFusion
from program.fusion.fitted import FittedFusion
from program.lms.limits import BudgetSpent

logger = logging.getLogger(__name__)

ETAS = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
_LEAST, _LEAST_VALIDATION = 30, 10
"""Scored samples that a fit and its choice need."""
_MARGIN = 0.002
"""What a grid point has to add to SRCC + PLCC to be preferred over the paper's values."""

Array = NDArray[np.float64]


class Belief(BaseModel):
    """What the Summarizer fused for one sample, and the people's score of it."""

    tools: list[float]
    levels: dict[int, float] | None
    precisions: list[float] | None
    truth: float


class Beliefs(list[Belief]):
    """Of several samples."""

    @property
    def truth(self) -> Array:
        """The people's scores."""
        return np.array([belief.truth for belief in self])

    def fused(self, fusion: ScoreFusion) -> Array:
        """Return what a fusion makes of them."""
        return np.array([fusion.fuse_scores(b.tools, b.levels, b.precisions) for b in self])


def _run(search: Search) -> list[Candidate]:
    """Return candidates with a fitted fusion: the map alone; eta, weight and map."""
    program = search.base.program
    unseen = _unseen(program, search.train.examples)
    count = sum(len(examples) for _, examples in unseen)
    scored = [example for example in search.validation.examples if example.get("answer") is None]
    if count < _LEAST or len(scored) < _LEAST_VALIDATION:
        search.note = (
            f"fusion: {count} scored training samples can be judged by demos of other photographs; "
            f"{_LEAST} are needed, so nothing is fitted"
        )
        return []
    train = Beliefs(belief for judge, examples in unseen for belief in _beliefs(search, judge, examples))
    held = _beliefs(search, program, scored)
    plain = program.resources.fusion
    eta, weight = _grid(plain, train)
    candidates, words = [], []
    for name, fusion in (("map", FittedFusion(plain)), ("fusion", FittedFusion(plain, eta=eta, model_weight=weight))):
        curve, kind = _best_curve(fusion, train, held)
        fitted = FittedFusion(plain, eta=fusion.eta, model_weight=fusion.model_weight, curve=curve, kind=kind)
        copy = program.deepcopy()
        # One that changes nothing is none: then the candidate is known to be the program it started as.
        neutral = (fitted.eta, fitted.model_weight, fitted.bends) == (plain.eta, 1.0, False)
        copy.summarizer.fitted = None if neutral else fitted
        candidates.append(Candidate(f"{search.base.name}+{name}", copy))
        words.append(f"{name}: eta {fitted.eta:g}, model weight {fitted.model_weight:g}, map {kind}")
    search.note = f"fusion fitted on {len(train)} samples ({'; '.join(words)})"
    return candidates


RECIPE = Recipe(
    name="fusion",
    run=_run,
    bound=lambda budget, sizes: Bound(sizes.train + sizes.validation, candidates=2),
    teaches="fusion",
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


def _unseen(program: AgenticIQA, train: Sequence[dspy.Example]) -> list[tuple[AgenticIQA, list[dspy.Example]]]:
    """Return the program without the demos of a photograph, and the scored samples of that photograph, by photograph.

    Photographs that no demo shows go together, with all demos. Demos are left out, and so are the samples of a
    photograph that all demos of a predictor show: untaught, it believes otherwise.
    """
    groups: dict[str | None, str] = {example.image.url: example.group for example in train}
    in_demos = {image_url(demo) for predictor in program.predictors() for demo in predictor.demos}
    photographs = {groups[url] for url in in_demos if url in groups}
    unseen: dict[str | None, list[dspy.Example]] = {None: []}
    for example in train:
        if example.get("answer") is None and example.image.url not in in_demos:
            unseen.setdefault(example.group if example.group in photographs else None, []).append(example)
    judges = []
    for group, members in unseen.items():
        judge = program.deepcopy()
        for predictor in judge.predictors():
            predictor.demos = [d for d in predictor.demos if group is None or groups.get(image_url(d)) != group]
        still = zip(program.predictors(), judge.predictors(), strict=True)
        if members and all(bool(before.demos) == bool(after.demos) for before, after in still):
            judges.append((judge, members))
    return judges


def _beliefs(search: Search, program: AgenticIQA, examples: Sequence[dspy.Example]) -> Beliefs:
    """Return what a program fuses for the examples, on the gathered evidence; one that fails is left out."""
    key = ["beliefs", program_sha256(program), examples]
    stored = search.store.get(*key)
    if stored is not None:
        return Beliefs(map(Belief.model_validate, stored))
    plain = program.deepcopy()
    plain.summarizer.fitted = None
    replayed = Replayed(plain, search.train.gathered)

    def ask(example: dspy.Example) -> Belief | None:
        search.advance()
        try:
            answer = replayed(**example.inputs())
        except BudgetSpent:
            raise
        except InputError as error:
            logger.warning("sample %r left out of the fusion's fit: %s", example.id, error)
            return None
        evidence = answer.state.executor_evidence
        if answer.quality_score is None or evidence is None:
            return None
        tools, precisions = tool_scores(evidence.quality_scores), tool_precisions(evidence)
        return Belief(tools=tools, levels=answer.level_probabilities, precisions=precisions, truth=example.quality)

    answers = in_order(ask, examples, workers=search.workers)
    beliefs = Beliefs(belief for belief in answers if belief is not None)
    if len(beliefs) == len(examples):
        search.store.put(*key, value=[belief.model_dump() for belief in beliefs])
    return beliefs


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
    return best if agreement > least else (plain.eta, 1.0)


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
