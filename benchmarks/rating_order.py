"""What choosing the pictures to rate saves, what 120 ratings gain, and whether the ceiling holds: a simulated rater.

    python -m benchmarks.rating_order MANIFEST [--draws 10] [--compile]

Only train and validation rows of MANIFEST are read. `HELD` of them, drawn once, are what all is judged on by their
labels. Each draw takes `POOL` of the others and rates them: a label with noise of `NOISE` levels, as whole stars. A
tenth of what is rated is for test, and never fitted. Fitted is the correction that `finetune` fits. Printed:

- labels after which SRCC is `GOAL`, at random as the program does and by doubt (`doubt_removed`): by draw the
  mean curve of three raters, made to rise (isotonic) and read between sizes; then the mean
  of the draws, and of their difference, with intervals;
- what `RATED` ratings gain over the uncompiled program on 1,000 of the others; with `--compile` that of the
  default recipe's own compile in place of the fit alone (some minutes a draw);
- in how many draws, and in how many of 1,000 more, the interval of the ceiling by 400 ratings with 40 repeats holds
  the SRCC of the labels and one rating.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import sem, t
from sklearn.isotonic import IsotonicRegression

from benchmarks.label_curve import compiled
from data.manifest import Sample, read_manifest
from program.agent.loop import AgenticIQA
from program.common.pool import progress
from program.evaluation.agreement import ceiling, self_agreement
from program.evaluation.metrics import srcc
from program.expert import Lesson, inputs_of, likeness
from program.images.store import IMAGES
from program.rating.choosing import next_place, split_of

HELD, POOL, READ, GOAL, NOISE, RATED, RATERS = 2000, 2000, 6000, 0.75, 0.5, 120, 3
SIZES = (*range(40, 401, 40), 500, 600, 800)
WAYS = ("by doubt", "at random")
LABEL_NOISE = 0.3
"""Variance of a label, of what two usual pictures differ by."""
FIRST_DRAW = 100
"""Draws before were those that the way to choose was found on."""
Places = NDArray[np.intp]
Array = NDArray[np.float64]


class Photographs:
    """Labelled photographs as the program reads them: those held first."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        viewer, inputs, near, readings = AgenticIQA().resources.viewer, [], [], []
        with progress("reading", len(samples)) as advance:
            for sample in samples:
                view = viewer.view(IMAGES.add(sample.image))
                inputs.append(inputs_of(view))
                near.append(likeness(view))
                readings.append(view.prior.mean)
                advance()
        single = np.array(inputs, np.float32)
        self.samples, self.covariance = samples, single @ single.T
        self.near, self.readings = np.array(near, np.float32), np.array(readings)
        self.labels = np.array([sample.quality for sample in samples], float)
        self.groups = [str(sample.group or sample.id) for sample in samples]
        self.held = np.arange(min(HELD, len(samples) // 3))
        self.before = self.agreement(self.readings[self.held], 1000)

    def rated(self, places: Places, rng: np.random.Generator) -> Array:
        """Return whole stars, a rating of each."""
        return np.clip(np.round(self.labels[places] + NOISE * rng.standard_normal(len(places))), 1, 5)

    def fitted(self, places: Places, stars: Array) -> Array:
        """Return the scores of the held photographs by a correction that is fitted on these stars."""
        lesson = Lesson(stars, self.readings[places], [self.groups[place] for place in places])
        own = self.covariance[np.ix_(places, places)].astype(float)
        penalty, readings = lesson.penalty(np.arange(len(places)), own), self.readings[self.held]
        if penalty is None:
            return readings
        fit, _ = lesson.fitted(np.arange(len(places)), np.asfortranarray(own), penalty)
        learned = self.covariance[np.ix_(self.held, places)].astype(float) @ fit.weights + fit.offset
        return np.asarray(readings + lesson.moves(readings, learned))

    def agreement(self, scores: Array, count: int | None = None) -> float:
        """Return the SRCC of scores of the held photographs, or of the first of them."""
        return float(srcc(self.labels[self.held][:count], scores[:count]))


def doubt_removed(features: NDArray[np.float32], rated: Sequence[int]) -> Array:
    """Return by how much a label of each of N pictures would lower the mean variance of what is predicted of all.

    That of a Gaussian process with the products of the N x D features as its covariance, after the labels of the M
    places that are rated: sum_j c(i, j)^2 / (c(i, i) + noise) / N. It is large where many pictures lie and none of
    them has a label, and does not depend on the labels themselves (Cohn 1996; Yu, Bi & Tresp 2006).
    """
    centred = features - features.mean(axis=0)
    usual = max(float(np.sqrt(np.mean(np.sum(centred**2, axis=1)))), 1e-9)
    read = np.column_stack([centred / usual, np.ones(len(centred))]).astype(np.float32)
    of_rated = read[list(rated)].astype(float)
    covariance = np.linalg.inv(np.eye(read.shape[1]) + of_rated.T @ of_rated / LABEL_NOISE)
    shared_by_all = covariance @ (read.T @ read) @ covariance / len(read)
    variances = np.sum(read @ covariance.astype(np.float32) * read, axis=1)
    shared = np.sum(read @ shared_by_all.astype(np.float32) * read, axis=1)
    return np.asarray(shared / (variances + LABEL_NOISE), float)


def ordered(photographs: Photographs, pool: Places, splits: Sequence[str], way: str, seed: int) -> list[int]:
    """Return the places within the pool as they are rated: the program's own order, or by doubt in train."""
    groups, rated = [photographs.groups[place] for place in pool], list[int]()
    while (place := next_place(groups, splits, rated, seed)) is not None and len(rated) < SIZES[-1]:
        if way == "by doubt" and splits[place] == "train":
            left = [n for n in range(len(pool)) if splits[n] == "train" and n not in rated]
            place = left[int(np.argmax(doubt_removed(photographs.near[pool], rated)[left]))]
        rated.append(place)
    return rated


def curve(photographs: Photographs, pool: Places, order: Sequence[int], splits: Sequence[str], stars: Array) -> Array:
    """Return the SRCC after each of the sizes."""
    values = []
    for size in SIZES:
        fit_on = [place for place in order[:size] if splits[place] != "test"]
        values.append(photographs.agreement(photographs.fitted(pool[fit_on], stars[fit_on])))
    return np.array(values)


def labels_for_goal(values: Array) -> float:
    """Return the labels at which a curve reaches the goal; the most of the sizes where it does not."""
    return float(np.interp(GOAL, IsotonicRegression().fit_transform(SIZES, values), SIZES))


def by_compile(photographs: Photographs, pool: Places, fit_on: Sequence[int], stars: Array, seed: int) -> float:
    """Return what the default recipe's compile gains on 1,000 held photographs."""
    own = []
    for place in fit_on:
        rating = {"mos": float(stars[place]), "mos_range": (1.0, 5.0)}
        own.append(photographs.samples[pool[place]].model_copy(update=rating))
    line = compiled("finetune", own, photographs.samples[:1000], seed)
    return float(line["srcc after"] - line["srcc before"])


def holds(photographs: Photographs, places: Places, truth: float, rng: np.random.Generator) -> bool:
    """Say whether the ceiling's interval by 400 ratings, of which a tenth is repeated, holds the true one."""
    again = rng.choice(places, 40, replace=False)
    own = self_agreement(photographs.rated(again, rng).tolist(), photographs.rated(again, rng).tolist())
    if own is None:
        return False
    most = ceiling(own)
    return most.low <= truth <= most.high


def told(name: str, values: Array, digits: int) -> None:
    """Print a mean over the draws with its interval (Student's t)."""
    low, high = t.interval(0.95, len(values) - 1, np.mean(values), sem(values))
    ends = f"[{low:+.{digits}f}, {high:+.{digits}f}]"
    each = " ".join(f"{value:+.{digits}f}" for value in values)
    sys.stdout.write(f"{name}: {np.mean(values):+.{digits}f} {ends}; by draw {each}\n")
    sys.stdout.flush()


def drawn(photographs: Photographs, seed: int, *, compiles: bool) -> tuple[dict[str, Array], dict[str, float]]:
    """Return by way the raters' mean SRCC after each of the sizes, and the gain of the first rater's ratings."""
    rng = np.random.default_rng(seed)
    others = np.arange(len(photographs.held), len(photographs.readings))
    pool = rng.choice(others, min(POOL, len(others)), replace=False)
    splits = split_of([photographs.groups[place] for place in pool], seed)
    raters = [photographs.rated(pool, rng) for _ in range(RATERS)]
    curves, gains = {}, {}
    for way in WAYS:
        orders = [ordered(photographs, pool, splits, way, seed * RATERS + n) for n in range(RATERS)]
        values = [curve(photographs, pool, o, splits, stars) for o, stars in zip(orders, raters, strict=True)]
        curves[way] = np.mean(values, axis=0)
        fit_on = [place for place in orders[0][:RATED] if splits[place] != "test"]
        if compiles:
            gains[way] = by_compile(photographs, pool, fit_on, raters[0], seed)
        else:
            after = photographs.fitted(pool[fit_on], raters[0][fit_on])
            gains[way] = photographs.agreement(after, 1000) - photographs.before
    return curves, gains


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures."""
    summary, _, rest = str(__doc__).partition("\n")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rating_order", description=summary, epilog=rest,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--compile", action="store_true", help="the gain of 120 ratings by compile itself")
    arguments = parser.parse_args(argv)
    samples = [s for s in read_manifest(arguments.manifest) if s.split != "test" and s.quality is not None]
    samples.sort(key=lambda sample: sample.id)
    random.Random(0).shuffle(samples)
    photographs = Photographs(samples[:READ])
    draws = [drawn(photographs, FIRST_DRAW + n, compiles=arguments.compile) for n in range(arguments.draws)]
    needed = {}
    for way in WAYS:
        means = np.mean([curves[way] for curves, _ in draws], axis=0)
        points = ", ".join(f"{size} {value:.3f}" for size, value in zip(SIZES, means, strict=True))
        sys.stdout.write(f"SRCC by ratings, {way}: {points}\n")
        needed[way] = np.array([labels_for_goal(curves[way]) for curves, _ in draws])
        told(f"ratings for {GOAL}, {way}", needed[way], 0)
        gains = np.array([gains[way] for _, gains in draws])
        told(f"gain of {RATED} ratings over {photographs.before:.3f}, {way}", gains, 3)
    told("ratings saved by doubt", needed["at random"] - needed["by doubt"], 0)
    told_of_ceiling(photographs, arguments.draws)
    return 0


def told_of_ceiling(photographs: Photographs, draws: int) -> None:
    """Print how often the ceiling's interval holds the SRCC that the labels themselves reach."""
    rng, every = np.random.default_rng(0), np.arange(len(photographs.labels))
    truth = float(srcc(photographs.labels, photographs.rated(every, rng)))
    held = [holds(photographs, every, truth, rng) for _ in range(draws + 1000)]
    first, more = sum(held[:draws]), sum(held[draws:])
    sys.stdout.write(f"ceiling {truth:.3f}: held in {first} of {draws} draws, in {more} of 1,000 more\n")


if __name__ == "__main__":
    sys.exit(main())
