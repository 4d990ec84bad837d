"""Fusion fitted on human scores, without a language model: eta, the model's weight, and a monotone map.

Eta and weight are chosen on a grid by SRCC + PLCC on training samples that are no demos of the program, each judged
without the demos of its own photograph: beliefs are as sure as they will be of new photographs. The map is a line, a
four-parameter logistic or an isotonic fit of the same samples, whichever has the highest PLCC (then the lowest RMSE) on
validation. Whether one is taken is decided on validation, where it has to gain clearly (see selection.py).
"""

import logging
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.manifest import Sample
from data.splits import group_of
from optimizers.bench import Candidate
from optimizers.lessons import image_url
from optimizers.memory import Memory
from optimizers.parallel import in_order
from optimizers.selection import PLCC_STEP
from optimizers.taught import Replayed
from program.agent import AgenticIQA
from program.budget import BudgetSpent
from program.errors import InputError
from program.evaluation.logistic import fit_logistic
from program.evaluation.metrics import plcc, rmse, srcc
from program.fitted_fusion import FittedFusion
from program.fusion import Precisions, ScoreFusion
from program.images import IMAGES
from program.saving import program_sha256

__all__ = ("ETAS", "WEIGHTS", "fitted_curve", "tuned")

logger = logging.getLogger(__name__)

ETAS = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
_LEAST = 30
"""Scored samples that a fit needs."""
_MARGIN = 0.002
"""What a grid point has to add to SRCC + PLCC to be preferred over the paper's values."""

Array = NDArray[np.float64]
Beliefs = tuple[Any, Any, Precisions]
"""What the Summarizer handed to the fusion: tool scores, level probabilities, and what each score adds."""

_SEEN: ContextVar[list[Beliefs] | None] = ContextVar("agentic_iqa_fusion_seen", default=None)


class _Recording(FittedFusion):
    """Fuses as its base does and keeps what it was given."""

    def fuse_scores(self, tool_scores: Any, vlm_probabilities: Any, precisions: Precisions = None) -> float:
        seen = _SEEN.get()
        if seen is not None:
            seen.append((tool_scores, vlm_probabilities, precisions))
        return super().fuse_scores(tool_scores, vlm_probabilities, precisions)


def tuned(
    base: Candidate,
    replay: "Any",
    train: Sequence[Sample],
    validation: Sequence[Sample],
    *,
    workers: int,
    memory: Memory | None = None,
) -> tuple[list[Candidate], str]:
    """Return candidates with a fitted fusion (the map alone; eta, weight and map), and what was fitted, in words.

    `replay(program)` makes what runs a program on the gathered evidence. No candidate where fewer than 30 scored
    training samples can be judged by demos of other photographs, with a note that says so.
    """
    program = base.program
    unseen = _unseen(program, train)
    count = sum(len(samples) for _, samples in unseen)
    scored = [s for s in validation if s.task == "scoring"]
    if count < _LEAST or len(scored) < 10:
        told = f"{count} scored training samples can be judged by demos of other photographs; {_LEAST} are needed"
        return [], f"fusion: {told}, so nothing is fitted"
    memory = memory if memory is not None else Memory(None)
    parts = [_remembered(judge, replay, samples, workers, memory) for judge, samples in unseen]
    given, truth = [beliefs for part, _ in parts for beliefs in part], np.concatenate([part for _, part in parts])
    held, held_truth = _remembered(program, replay, scored, workers, memory)
    plain = program.resources.fusion
    eta, weight = _grid(plain, given, truth)
    found, fitted_as = [], []
    for name, fusion in (("map", FittedFusion(plain)), ("fusion", FittedFusion(plain, eta=eta, model_weight=weight))):
        curve, kind = _best_curve(fusion, given, truth, held, held_truth)
        fitted = FittedFusion(plain, eta=fusion.eta, model_weight=fusion.model_weight, curve=curve)
        copy = program.deepcopy()
        copy.summarizer.fitted = fitted
        found.append(Candidate(f"{base.name}+{name}", copy))
        fitted_as.append(f"{name}: eta {fitted.eta:g}, model weight {fitted.model_weight:g}, map {kind}")
    return found, f"fusion fitted on {len(given)} samples ({'; '.join(fitted_as)})"


def fitted_curve(kind: str, fused: Array, truth: Array) -> list[tuple[float, float]]:
    """Return increasing knots over 1..5 of a "line", "logistic" or "isotonic" fit of truth on fused scores.

    Empty where the fit does not increase, or for "none". Values stay inside 1..5.
    """
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


def _unseen(program: AgenticIQA, train: Sequence[Sample]) -> list[tuple[AgenticIQA, list[Sample]]]:
    """Return the program without the demos of a photograph, and the scored samples of that photograph, by photograph.

    Photographs that no demo shows go together, with all demos. Demos are left out, and so are the samples of a
    photograph that all demos of a predictor show: untaught, it believes otherwise.
    """
    urls = [IMAGES.add(sample.image).url for sample in train]
    groups: dict[str | None, str] = {url: group_of(sample) for url, sample in zip(urls, train, strict=True)}
    shown = {image_url(demo) for predictor in program.predictors() for demo in predictor.demos}
    photographs = {groups[url] for url in shown if url in groups}
    samples: dict[str | None, list[Sample]] = {None: []}
    for url, sample in zip(urls, train, strict=True):
        if sample.task == "scoring" and url not in shown:
            group = groups[url] if groups[url] in photographs else None
            samples.setdefault(group, []).append(sample)
    found = []
    for group, members in samples.items():
        judge = program.deepcopy()
        for predictor in judge.predictors():
            predictor.demos = [d for d in predictor.demos if group is None or groups.get(image_url(d)) != group]
        still = zip(program.predictors(), judge.predictors(), strict=True)
        if members and all(bool(before.demos) == bool(after.demos) for before, after in still):
            found.append((judge, members))
    return found


def _remembered(
    program: AgenticIQA, replay: Any, samples: Sequence[Sample], workers: int, memory: Memory
) -> tuple[list[Beliefs], Array]:
    what = ["beliefs", program_sha256(program), samples]
    known = memory.get(*what)
    if known is not None:
        return [(tools, dict(levels) if levels is not None else None, added) for tools, levels, added in known[0]], (
            np.array(known[1])
        )
    given, truth = _beliefs(program, replay, samples, workers)
    if len(given) == len(samples):
        told = [[list(tools), list(levels.items()) if levels is not None else None, added]
                for tools, levels, added in given]  # fmt: skip
        memory.put(*what, value=[told, truth.tolist()])
    return given, truth


def _beliefs(program: AgenticIQA, replay: Any, samples: Sequence[Sample], workers: int) -> tuple[list[Beliefs], Array]:
    recording = program.deepcopy()
    recording.summarizer.fitted = _Recording(program.resources.fusion)
    run: Replayed = replay(recording)

    def ask(sample: Sample) -> Beliefs | None:
        token = _SEEN.set([])
        try:
            run.on(sample)
            seen = _SEEN.get() or []
            return seen[0] if seen else None
        except BudgetSpent:
            raise
        except InputError as error:
            logger.warning("sample %r left out of the fusion's fit: %s", sample.id, error)
            return None
        finally:
            _SEEN.reset(token)

    answers = in_order(ask, samples, workers=workers)
    pairs = [(given, sample.quality) for given, sample in zip(answers, samples, strict=True)]
    kept = [(given, quality) for given, quality in pairs if given is not None and quality is not None]
    return [given for given, _ in kept], np.array([quality for _, quality in kept])


def _fused(fusion: ScoreFusion, given: Sequence[Beliefs]) -> Array:
    return np.array([fusion.fuse_scores(*beliefs) for beliefs in given])


def _agreement(truth: Array, fused: Array) -> float:
    return float(np.nan_to_num(srcc(truth, fused)) + np.nan_to_num(plcc(truth, fused)))


def _grid(plain: ScoreFusion, given: Sequence[Beliefs], truth: Array) -> tuple[float, float]:
    best, chosen = _agreement(truth, _fused(FittedFusion(plain), given)) + _MARGIN, (plain.eta, 1.0)
    for eta in ETAS:
        for weight in WEIGHTS:
            if eta == 0 and weight == 0:
                continue
            found = _agreement(truth, _fused(FittedFusion(plain, eta=eta, model_weight=weight), given))
            if found > best:
                best, chosen = found, (eta, weight)
    return chosen


def _best_curve(
    fusion: FittedFusion, given: Sequence[Beliefs], truth: Array, held: Sequence[Beliefs], held_truth: Array
) -> tuple[list[tuple[float, float]], str]:
    fused, unseen = _fused(fusion, given), _fused(fusion, held)
    found = []
    for kind in ("none", "line", "logistic", "isotonic"):
        curve = fitted_curve(kind, fused, truth)
        if curve or kind == "none":
            mapped = np.array([FittedFusion(fusion, curve=curve).mapped(x) for x in unseen])
            found.append(
                (
                    round(float(np.nan_to_num(plcc(held_truth, mapped))) / PLCC_STEP),
                    -rmse(held_truth, mapped),
                    kind,
                    curve,
                )
            )
    best = max(found, key=lambda f: f[:2])
    return best[3], best[2]
