"""The faults of a photograph, as a photographer names them: which, how strong, and how surely.

Fitted on photographs that two pairs of eyes annotated (`benchmarks/fit_faults.py`): a regression
on the network's and the expert's numbers gives a strength of each fault, which calibrated curves
turn into probabilities. What is no photograph has no such faults.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from program.expert.judge.views import Measurements, View
from program.expert.measure.features import MAXIMUM_SIDE
from program.expert.store import FAULTS_FILE, Matrix, stored_arrays
from program.images.store import IMAGES
from signatures.schemas import FAULTS, faults_explained

OUTPUTS = (*FAULTS, "nothing", "subject sharp", *(f"{name} worst" for name in FAULTS))
"""What the regression gives: strengths 0 .. 3, whether nothing is wrong, whether the subject is
sharp, and which fault is the worst."""
STRENGTHS = ("slight", "moderate", "strong")
MOST = 3
"""Faults that are named."""
FIRST, NAMED, CLEAN, THERE = 0.35, 0.6, 0.3, 0.2
"""Probabilities: of being there from which the worst fault is named, and any other; of nothing
being wrong, from which none is; and what being there counts beside being the worst. By folds of
the annotated photographs."""


class NamedFault(NamedTuple):
    """One fault of an image."""

    fault: str
    strength: str
    probability: float
    """That people who look for it see it."""


class Heads(NamedTuple):
    """What was fitted; T are `OUTPUTS`, F faults."""

    centre: Matrix
    spread: Matrix
    kept: Matrix
    """N x H standardised numbers of the images that teach."""
    width: Matrix
    weights: Matrix
    """N x T."""
    lines: Matrix
    """Of the model's standardised measurements, x T."""
    offset: Matrix
    curves: Matrix
    """3 x 2 x F: slope and offset of the log-odds that a fault is there, at least moderate, and
    strong."""
    clean: Matrix
    """Log-odds that nothing is wrong, of `overall`."""
    sharp: Matrix
    """Slope and offset of the log-odds that the subject is sharp."""
    places: Matrix
    """F x what `cells_of` tells of a cell: log-odds that a fault is in it, if there is one."""

    def values(self, points: Matrix, numbers: Matrix) -> Matrix:
        """Return the N x T outputs of N measured images."""
        z = self.standardise(numbers)
        lengths = (z * z).sum(axis=1)[:, None] + np.einsum("ij,ij->i", self.kept, self.kept)
        near = np.exp(-(lengths - 2 * z @ self.kept.T) / self.width)
        return np.asarray(self.offset + points @ self.lines + near @ self.weights)

    def standardise(self, numbers: Matrix) -> Matrix:
        """Return N x H numbers less their centre, by their spread, within 3."""
        return np.asarray(np.clip((numbers - self.centre) / self.spread, -3, 3))


@functools.cache
def load_heads() -> Heads:
    """Return what ships, read once per process."""
    return heads_from(stored_arrays(FAULTS_FILE))


def heads_from(arrays: Mapping[str, Any]) -> Heads:
    """Build heads from arrays that ship."""
    return Heads(**{name: np.asarray(arrays[name], dtype=float) for name in Heads._fields})


def numbers_of(view: View) -> Matrix:
    """Return the numbers of an image that the regression compares with those of others."""
    maps = [np.ravel(cells) for _, cells in sorted(view.measured.maps.items())]
    return np.concatenate([view.measured.vector, view.signs.vector, *maps, view.features.values[0]])


def likelihoods(heads: Heads, values: Matrix) -> tuple[Matrix, Matrix, float]:
    """Return what an image's T outputs mean.

    3 x F probabilities of each strength or more, how far each fault is the worst, and the
    probability that nothing is wrong.
    """
    there = special.expit(heads.curves[:, 0] * values[: len(FAULTS)] + heads.curves[:, 1])
    nothing = special.expit(overall(values[None])[0] @ heads.clean)
    return np.minimum.accumulate(there, axis=0), values[-len(FAULTS) :], float(nothing)


def overall(values: Matrix) -> Matrix:
    """Return what of N x T outputs says whether anything is wrong at all: N x 5."""
    strengths, (nothing, sharp) = values[:, : len(FAULTS)], values[:, len(FAULTS) :][:, :2].T
    most, ones = strengths.max(axis=1), np.ones(len(values))
    return np.column_stack([strengths.sum(axis=1), most, nothing, sharp, ones])


def faults_to_name(heads: Heads, values: Matrix, barred: frozenset[str] = frozenset()) -> list[NamedFault]:
    """Return the faults to name of an image's outputs, the worst first, none of the `barred`."""
    there, worst, nothing = likelihoods(heads, values)
    if nothing >= CLEAN:
        return []
    names = list(FAULTS)
    is_open = np.array([name not in barred for name in names])
    first = int(np.argmax(np.where(is_open, worst + THERE * there[0], _NEVER)))
    named = [first] if is_open[first] and there[0, first] >= FIRST else []
    others = sorted(np.flatnonzero(is_open & (there[0] >= NAMED)), key=lambda fault: -there[1, fault])
    named += [int(fault) for fault in others if fault != first]
    return [NamedFault(names[at], strength_of(there[:, at]), float(there[0, at])) for at in named[:MOST]]


_NEVER = -9.0


def strength_of(there: NDArray[np.float64]) -> str:
    """Return the strength that is likeliest to be reached where there is any."""
    return STRENGTHS[int((there[1:] >= 0.5 * there[0]).sum())]


@functools.lru_cache(maxsize=1024)  # an image is asked about several times
def _values(view: View) -> Matrix:
    return np.asarray(load_heads().values(view.features.points.astype(float), numbers_of(view)[None])[0])


def faults_of(view: View) -> tuple[NamedFault, ...]:
    """Return the faults to name of an image alone, the worst first, then those of one cell alone."""
    local = local_faults(view)
    of_whole = [each for each in _faults_of_whole(view) if each.fault not in local]
    return (*of_whole, *(each.named for each in local.values()))


@functools.lru_cache(maxsize=1024)
def _faults_of_whole(view: View) -> tuple[NamedFault, ...]:
    """Return what is named by all pixels alike; nothing of what is not judged."""
    if not_judged(view) is not None:
        return ()
    barred = _BARRED if kind_of(view) == "packshot" else frozenset[str]()
    barred |= faults_explained(view.intended)
    if view.measured["saturation"] < _GREY:
        barred |= _COLOUR
    return tuple(faults_to_name(load_heads(), _values(view), barred))


class LocalFault(NamedTuple):
    """A fault that only a part of an image has, as it is there."""

    named: NamedFault
    part: View
    cell: int


_SHOWN_BY: Mapping[str, tuple[str, float]] = {"noise": ("noise", 2.4), "compression": ("blocking", 2.7)}
"""Faults that are looked for in single cells: the map that shows each, and by how much a cell differs
from the median one where a look is worth its time. Blur and wrong exposure are none of them, as
undamaged photographs have soft grounds and shadows."""
_SHOWN_SMALL, _HINT = 0.25, 0.25
"""The same in an image that was scaled down before it was measured; and the severity of the whole
that makes a look worth its time, too."""
_LEAST_CELL, _APART, _FAR_APART = 64, 0.4, 0.8
"""Pixels of a side from which a cell can be judged; and by how much its severity is above the whole's
where it was damaged: a fault that the whole lacks, and one that it has. Of 140 train photographs of
BIQ2021 and CLIVE none has such a cell."""


@functools.lru_cache(maxsize=1024)
def local_faults(view: View) -> Mapping[str, LocalFault]:
    """Return by name the faults of an image alone that one of 3 x 3 cells has, and the rest hardly."""
    local: dict[str, LocalFault] = {}
    if view.cell is None or min(view.size) < 3 * _LEAST_CELL or not_judged(view) is not None:
        return local
    of_whole = {each.fault for each in _faults_of_whole(view)}
    for fault, (shown_by, least) in _SHOWN_BY.items():
        cells, category = np.ravel(view.measured.maps[shown_by]), FAULTS[fault]
        apart = cells - np.median(cells)
        if fault == "compression":  # a grid that lies elsewhere than the rest's lowers the map
            apart = np.abs(apart)
        if max(view.size) > MAXIMUM_SIDE:
            least = _SHOWN_SMALL
        if apart.max() < least and view.severities[category] < _HINT:
            continue
        at = int(apart.argmax())
        least_apart = _FAR_APART if fault in of_whole else _APART
        with IMAGES.borrow():
            part = view.cell(at).within(view)
            if part.severities[category] - view.severities[category] < least_apart:
                continue
            for named in _faults_of_whole(part):
                if named.fault == fault:
                    local[fault] = LocalFault(named, part, at)
    return local


def seen_in(view: View, fault: str) -> View:
    """Return the view that shows a fault: of a single cell, or of all."""
    local = local_faults(view).get(fault)
    return view if local is None else local.part


@functools.lru_cache(maxsize=1024)
def probability_of(view: View, *faults: str) -> float:
    """Return how probably people see one of some faults in an image alone; 0 in what is not judged."""
    if not_judged(view) is not None:
        return 0.0
    there = likelihoods(load_heads(), _values(view))[0][0]
    return float(max(there[list(FAULTS).index(fault)] for fault in faults))


_REGAINED = 0.8
"""Levels that an intention gives back, for the probability that people see one of the faults that it explains.
By 145 photographs of BIQ2021's training part that show one: without it they score .43 lower beside their labels
than others."""


def regained(view: View) -> float:
    """Return how far the score of an image alone is too low where its effects are meant, in levels."""
    explained = faults_explained(view.intended)
    if not explained or view.difference is not None:
        return 0.0
    return _REGAINED * probability_of(view, *explained)


@functools.lru_cache(maxsize=1024)
def clean_of(view: View) -> float | None:
    """Return how probably people see nothing wrong in a photograph, if anything tells."""
    if view.difference is not None or not_judged(view) is not None:
        return None
    if local_faults(view):
        return 0.0
    return likelihoods(load_heads(), _values(view))[2]


@functools.lru_cache(maxsize=1024)
def sharpness_of(view: View) -> float | None:
    """Return how probably people call the subject of a photograph sharp, if anything tells."""
    if view.difference is not None or not_judged(view) is not None:
        return None
    slope, offset = load_heads().sharp
    return float(special.expit(slope * _values(view)[OUTPUTS.index("subject sharp")] + offset))


KINDS: Mapping[str, bool] = {
    "photograph": True, "packshot": True, "screenshot or graphic": False, "document": False,
    "drawing": False, "view through an instrument": False, "black frame": False, "white frame": False,
    "flat frame": False, "noise": False,
}  # fmt: skip
"""Kinds of pictures, and whether the faults of photographs apply to them."""
TOO_SMALL = "too small"
"""Why an image of few pixels is not judged."""
_LITTLE = 0.06
"""Share of pixels that are neither black nor white below which an image has hardly any."""
_GREY = 0.01
"""Saturation below which a picture has no colours to be wrong."""
_COLOUR = frozenset({"colour cast", "oversaturated", "muted colours"})
_BARRED = frozenset({
    "too dark", "too bright", "blown highlights", "crushed shadows", "colour cast", "haze or flare",
    "low contrast",
})  # fmt: skip
"""Faults that are none in a packshot: white paper is no overexposure."""


_ALIKE, _UNTEXTURED, _FALL = 0.02, 0.02, 3.6
"""Spread of the gradients' log power over the ninths of an image up to which all are alike (of noise three
times that), share of textured blocks below which nothing is shown, and how far the local deviation of noise
falls to a quarter of the size (white noise: by 4). Photographs of BIQ2021 and CLIVE have .1, .037 and 2.5."""
_DARKEST, _LIGHTEST, _SMOOTH = 0.05, 0.95, 1.6
"""Mean brightness of a black and a white frame, and log of the local deviation in a flat one."""


def frame_of(measured: Measurements, signs: Measurements) -> str | None:
    """Return which of `KINDS` an image is that shows nothing: black, white, flat or noise; else None."""
    deviation, of_quarter = measured["luma1_deviation_log"], measured["luma3_deviation_log"]
    spread, textured = signs["power_spread"], measured["textured_share"]
    is_even = spread < _ALIKE or textured < _UNTEXTURED
    is_noise = spread < 3 * _ALIKE and np.expm1(deviation) > _FALL * np.expm1(of_quarter)
    if not (is_even or is_noise):
        return None
    if measured["brightness"] < _DARKEST:
        return "black frame"
    if measured["brightness"] > _LIGHTEST:
        return "white frame"
    if deviation < _SMOOTH:
        return "flat frame"
    return "noise" if is_noise else None


def _paper_kind(measured: Measurements, signs: Measurements) -> str | None:
    """Return "document" of crisp letters, or "screenshot or graphic" of a few marks on an even ground."""
    crisp, sparse = signs["fine_best"], measured["luma1_deviation_cv"]
    if crisp > 0.63 and crisp + sparse > 1.6 and measured["luma1_deviation_log"] > 2:
        return "document"
    ground = measured["light_share"]
    if signs["same"] > 0.85:  # a night is not so even
        ground = max(ground, signs["black"])
    if 2.5 * (1 - ground) < measured["textured_share"] < 0.6 and crisp + sparse > 1.2:
        return "screenshot or graphic"
    return None


@functools.lru_cache(maxsize=1024)
def kind_of(view: View) -> str:
    """Return one of `KINDS` for an image alone, by a person's word, or how even it is, its border, and its marks.

    Of 1,275 photographs of LIVE In the Wild and BIQ2021 two are taken for no photographs: one all
    but black, and one without detail. Neighbouring pixels are equal in at most .71 of a photograph,
    before a smooth backdrop.
    """
    if view.kind is not None:
        return view.kind
    if view.whole is not None and KINDS[kind := kind_of(view.whole)]:
        return kind  # a sign in a photograph is no document
    if view.unjudged == "small":
        return "photograph"
    n, signs = view.measured, view.signs
    even_or_paper = frame_of(n, signs) or _paper_kind(n, signs)
    if even_or_paper is not None:
        return even_or_paper
    rest = 1 - signs["white"] - signs["black"]
    # What is clipped is even anyway.
    even = (signs["same"] - signs["white"] - signs["black"]) / max(rest, _LITTLE)
    if rest < _LITTLE and signs["grey_levels"] < 0.1:
        return "drawing"
    if signs["white_edge"] > 0.9 and _LITTLE < rest and even < 0.3:
        return "packshot"
    if signs["white_edge"] > 0.9 or even > 0.75:
        return "screenshot or graphic"
    dim = np.array(signs.maps["dim_at"])
    corners, sides, centre = dim[::2, ::2], (dim[0, 1], dim[1, 0], dim[1, 2], dim[2, 1]), dim[1, 1]
    if corners.min() > 0.25 and max(sides) < 0.45 and centre < 0.02 and signs["black_edge"] > 0.8:
        return "view through an instrument"
    return "photograph"


def not_judged(view: View) -> str | None:
    """Return why an image alone is not judged as a photograph; None where it is, or beside a reference."""
    if view.difference is not None:
        return None
    if view.unjudged == "small":
        return TOO_SMALL
    kind = kind_of(view)
    if not KINDS[kind]:
        return kind
    return "flat frame" if view.unjudged == "flat" and view.kind is None else None


_WHOLE = 0.3
"""Probability that a fault is in the least likely cell from which it is all over. By folds, like
the places."""
_IS_CENTRE = [0, 0, 0, 0, 1, 0, 0, 0, 0]
_IS_CORNER = [1, 0, 1, 0, 0, 0, 1, 0, 1]
_HEIGHT = [-1, -1, -1, 0, 0, 0, 1, 1, 1]
_POSITION = np.array(list(zip(_IS_CENTRE, _HEIGHT, _IS_CORNER, [1] * 9, strict=True)), float)


def cells_of(view: View) -> Matrix:
    """Return what tells where faults are: 9 cells, row by row, x numbers.

    These are its measurements less the image's, the image's, and its place.
    """
    maps = [*sorted(view.signs.maps.items()), *sorted(view.measured.maps.items())]
    apart = np.transpose([np.ravel(cells) for _, cells in maps])
    whole = apart.mean(axis=0)
    return np.column_stack([apart - whole, np.broadcast_to(whole, apart.shape), _POSITION])


def _spread(view: View, fault: str) -> Matrix:
    """Return how probably people who see a fault see it in each cell."""
    return np.asarray(special.expit(cells_of(view) @ load_heads().places[list(FAULTS).index(fault)]))


def place_of(view: View, fault: str) -> int | None:
    """Return the cell 0 .. 8 of a 3 x 3 grid where a fault is likeliest; None if it is all over."""
    local = local_faults(view).get(fault)
    if local is not None:
        return local.cell
    return place_in(_spread(view, fault))


def place_in(spread: Matrix) -> int | None:
    """Return the place that nine probabilities tell, as `place_of`."""
    return None if spread.min() >= _WHOLE else int(spread.argmax())


def fault_map(view: View, fault: str) -> Matrix:
    """Return 4 less what a fault takes in each of 3 x 3 cells: most where it is likeliest."""
    if view.unjudged is not None:
        return np.full((3, 3), 4.0)
    spread = _spread(view, fault)
    return np.asarray(4 - 3 * probability_of(view, fault) * (spread / spread.max()).reshape(3, 3))


def tint_of(view: View) -> str:
    """Return the colour that an image's light leans to."""
    estimates = ("shades", "edge", "lights")
    red = float(np.mean([view.signs[f"{name}_r"] for name in estimates]))
    blue = float(np.mean([view.signs[f"{name}_b"] for name in estimates]))
    leans = {
        "yellow": -blue, "red": red - max(blue, 0), "green": -red - blue, "blue": blue - red,
        "magenta": min(red, blue) * 2,
    }  # fmt: skip
    if red > 0 > blue:
        leans["orange"] = red - blue
    return max(leans, key=lambda tone: leans[tone])
