"""The faults of a photograph, as a photographer names them: which, how strong, and how surely.

Fitted on photographs that two pairs of eyes annotated (`benchmarks/fit_faults.py`): a regression
on the network's and the expert's numbers gives a strength of each fault, which calibrated curves
turn into probabilities. What is no photograph has no such faults.
"""

import functools
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Literal, NamedTuple

import numpy as np
from cachetools import LRUCache, cached
from scipy import special

from program.expert.judge.heads import OUTPUTS, Heads, likelihoods, load_heads
from program.expert.judge.views import REMEMBERED, View, Viewer
from program.expert.measure.features import MAXIMUM_SIDE
from program.expert.measure.naturalness import Numbers
from program.expert.store import Matrix
from program.images.store import ImageRef
from signatures.schemas import FAULTS, DistortionCategory, faults_explained

STRENGTHS = ("slight", "moderate", "strong")
MOST = 3
"""Faults that are named."""
THERE = 0.4
"""What being there counts beside being the worst."""
LIMITS: Mapping[str, tuple[float, float]] = {
    "motion blur": (0.70, 0.72), "defocus blur": (0.62, 0.67), "noise": (0.69, 0.59),
    "too dark": (0.70, 0.79), "too bright": (0.50, 0.35), "blown highlights": (0.61, 0.57),
    "crushed shadows": (0.46, 0.63), "colour cast": (0.87, 0.74), "low contrast": (0.44, 0.64),
    "haze or flare": (0.71, 0.69), "oversaturated": (0.60, 0.61), "muted colours": (0.63, 0.64),
    "oversharpened": (0.63, 0.46), "low resolution": (0.77, 0.75), "compression": (0.70, 0.74),
}  # fmt: skip
"""Probabilities that a fault is there from which it is named, and that it is moderate or strong
from which it is called so, where it is as likely as not that anything is wrong. These and the next
ones are chosen on other people's photographs (`benchmarks/fit_faults.py`)."""
CLEAN, SURE = -0.6, 0.7
"""Log-odds of nothing being wrong from which no fault is named, unless one is so probably there."""
DOUBT, LEAST = 0.35, -5.0
"""What those log-odds, from the least that annotated photographs have, raise the log-odds of limits by."""
FIRST = 1.0
"""By how much lower they are for the worst fault to be named."""


class NamedFault(NamedTuple):
    """One fault of an image."""

    fault: str
    strength: str
    probability: float
    """That people who look for it see it."""


def faults_to_name(heads: Heads, values: Matrix, barred: frozenset[str] = frozenset()) -> list[NamedFault]:
    """Return the faults to name of an image's outputs, none of the `barred`.

    The worst comes first, and what is moderate otherwise is slight after a slight one.
    """
    there, worst, nothing = likelihoods(heads, values)
    is_open = np.array([fault not in barred for fault in LIMITS])
    is_sure = there[0, is_open].max(initial=0) >= SURE  # whatever is meant, this is there
    nothing = float(special.logit(nothing))
    if nothing >= CLEAN and not is_sure:
        return []
    odds = special.logit(there) - DOUBT * np.clip(nothing, LEAST, CLEAN)
    least, moderate = special.logit(np.transpose(list(LIMITS.values())))
    rank, named = np.where(is_open, worst + THERE * there[0], -np.inf), []
    least[rank.argmax()] -= FIRST
    for at, fault in enumerate(LIMITS):
        if not is_open[at] or odds[0, at] < least[at]:
            continue
        strength = STRENGTHS[0]
        if odds[1, at] >= moderate[at]:
            strength = STRENGTHS[2 if there[2, at] >= 0.5 * there[0, at] else 1]
        named.append((rank[at], NamedFault(fault, strength, float(there[0, at]))))
    named.sort(key=lambda each: -each[0])
    faults = [fault for _, fault in named[:MOST]]
    if faults and faults[0].strength == "slight":  # what is strong comes first all the same
        faults = [each._replace(strength="slight") if each.strength == "moderate" else each for each in faults]
    return faults


def faults_of(view: View) -> tuple[NamedFault, ...]:
    """Return the faults to name of an image alone: the strongest first, of equal ones the likelier worst."""
    local = local_faults(view)
    faults = [each for each in _faults_of_whole(view) if each.fault not in local]
    faults += [each.named for each in local.values()]
    return tuple(sorted(faults, key=lambda each: -STRENGTHS.index(each.strength)))


@functools.lru_cache(maxsize=1024)
def _faults_of_whole(view: View) -> tuple[NamedFault, ...]:
    """Return what is named by all pixels alike; nothing of what is not judged."""
    if not_judged(view) is not None:
        return ()
    return tuple(faults_to_name(load_heads(), view.outputs, unsupported(view)))


def unsupported(view: View) -> frozenset[str]:
    """Return the faults that are none here: meant effects, highlights that do not clip, and so on."""
    known = view.measured.by_name() | view.signs.by_name()
    barred = set(faults_explained(view.intended))
    if kind_of(view) == "packshot":
        barred |= _BARRED
    barred |= {
        fault for fault, needs in _NEEDED.items() if not all(low <= known[name] <= high for name, low, high in needs)
    }
    if known["power_most"] > _TEXTURED and known["noise_flat"] < _QUIET:
        barred.add("noise")
    estimates = _lights(known)
    lights = [_hue_of(light) for light in estimates]
    hue, _ = _hue_of(estimates.mean(axis=0))
    apart = max(abs((each - hue + 180) % 360 - 180) for each, _ in lights)
    least = min(chroma for _, chroma in lights)
    if least < _TINTED or apart > _ONE_HUE:
        barred.add("colour cast")
    return frozenset(barred)


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
_LIKELY = 0.5
"""Probability from which a single cell's fault is named: nothing else speaks for it."""


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
        part = view.cell(at).within(view)
        if part.severities[category] - view.severities[category] < least_apart:
            continue
        for named in _faults_of_whole(part):
            if named.fault == fault and named.probability >= _LIKELY:
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
    there = likelihoods(load_heads(), view.outputs)[0][0]
    return float(max(there[list(FAULTS).index(fault)] for fault in faults))


def likeliest_of(view: View, *categories: DistortionCategory) -> str:
    """Return the fault of some categories that people most probably see, of those that the pixels allow."""
    faults = [fault for fault, its in FAULTS.items() if its in categories]
    barred = unsupported(view) | {"too bright" if view.measured["brightness"] < _MIDDLE else "too dark"}
    able = [fault for fault in faults if fault not in barred]
    return max(able or faults, key=lambda fault: probability_of(view, fault))


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
    return likelihoods(load_heads(), view.outputs)[2]


@functools.lru_cache(maxsize=1024)
def sharpness_of(view: View) -> float | None:
    """Return how probably people call the subject of a photograph sharp, if anything tells."""
    if view.difference is not None or not_judged(view) is not None:
        return None
    slope, offset = load_heads().sharp
    return float(special.expit(slope * view.outputs[OUTPUTS.index("subject sharp")] + offset))


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
_MIDDLE = 0.45
"""Mean brightness below which a picture is too dark, if anything, and else too bright."""
_COLOURED = ("saturation", 0.01, 1.0)
"""Below it a picture has no colours to be wrong."""
_NEEDED: Mapping[str, Sequence[tuple[str, float, float]]] = {
    "motion blur": [("all_apart_median", 0.15, np.inf)],
    "too dark": [("brightness", 0.0, 0.55)],
    "too bright": [("brightness", 0.4, 1.0)],
    "blown highlights": [("clipped_any", 0.0005, 1.0), ("stops_99", -0.17, np.inf)],
    "crushed shadows": [("black", 0.0005, 1.0), ("dim", 0.25, 1.0)],
    "low contrast": [("clipped_any", 0.0, 0.001)],
    "oversharpened": [("bend", -0.15, np.inf)],
    "colour cast": [_COLOURED, ("strong_colour", 0.0, 0.15)],
    "oversaturated": [_COLOURED],
    "muted colours": [_COLOURED],
}  # fmt: skip
"""What is measured of a picture that has a fault, from .. to. Motion keeps more detail along one direction
than across it, in the median ninth. Of pictures brighter than .55 people call 1 of 216 too dark, of those
darker than .4 none of 489 too bright. Where lights are blown, they clip, and a hundredth of the picture is
nearly white (stops); where shadows are crushed, they clip, and a quarter is dark; where lights clip, contrast
is not low; where edges are sharpened too much, lines bend nearly as strongly as they rise; and where vivid
pixels are more than a share of .15, colour is what the picture shows."""
_TEXTURED, _QUIET = 8.0, 1.5
"""Log power of the gradient in the most detailed ninth above which texture hides noise, and noise of flat parts
from which it shows all the same."""
_TINTED, _ONE_HUE = 0.5, 15
"""Chroma from which light is tinted by each of its estimates, and degrees within which these must agree."""
_BARRED = frozenset({
    "too dark", "too bright", "blown highlights", "crushed shadows", "colour cast", "haze or flare",
    "low contrast",
})  # fmt: skip
"""Faults that are none in a packshot: white paper is no overexposure."""


_ALIKE, _UNTEXTURED, _FALL = 0.02, 0.02, 3.6
"""Spread of the gradients' log power over the ninths of an image up to which all are alike (of noise three
times that), share of textured blocks below which nothing is shown, and how far the local deviation of noise
falls to a quarter of the size (white noise: by 4). Photographs of BIQ2021 and CLIVE have .1, .037 and 2.5."""
_PAPER = 0.2
"""Saturation of paper, at most: cream has .14, and sand under a blue sky, which is as crisp as letters, .31."""
_DARKEST, _LIGHTEST, _SMOOTH = 0.05, 0.95, 1.6
"""Mean brightness of a black and a white frame, and log of the local deviation in a flat one."""


@cached(LRUCache(REMEMBERED), key=lambda _, image: image.sha256, lock=Lock())
def frame_of(viewer: Viewer, image: ImageRef) -> str | None:
    """Return which of `KINDS` an image is that shows nothing, without the network; None for any other."""
    spread, textured = viewer.evenness(image)  # a tenth of the work, which settles nearly all images
    if spread > 1.1 * 3 * _ALIKE and textured > 1.1 * _UNTEXTURED:
        return None
    measured, signs = viewer.features_and_signs(image)
    return _frame(measured.by_name(), signs.by_name())


def _frame(measured: Numbers, signs: Numbers) -> str | None:
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


def _paper_kind(measured: Numbers, signs: Numbers) -> str | None:
    """Return "document" of crisp letters, or "screenshot or graphic" of a few marks on an even ground."""
    crisp, sparse = signs["fine_best"], measured["luma1_deviation_cv"]
    is_crisp = crisp > 0.63 and crisp + sparse > 1.6 and measured["luma1_deviation_log"] > 2
    if is_crisp and measured["saturation"] < _PAPER:
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
    measured, signs = view.measured.by_name(), view.signs.by_name()
    even_or_paper = _frame(measured, signs) or _paper_kind(measured, signs)
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
    dim = np.array(view.signs.maps["dim_at"])
    corners, sides, centre = dim[::2, ::2], (dim[0, 1], dim[1, 0], dim[1, 2], dim[2, 1]), dim[1, 1]
    if corners.min() > 0.25 and max(sides) < 0.45 and centre < 0.02 and signs["black_edge"] > 0.8:
        return "view through an instrument"
    return "photograph"


CLEAR = 0.6
"""Probability from which a subject is called sharp or not."""


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


@functools.lru_cache(maxsize=1024)
def _spread(view: View, fault: str) -> Matrix:
    """Return how probably people who see a fault see it in each cell; not to be changed."""
    if (local := local_faults(view).get(fault)) is not None:
        return np.asarray(np.eye(9)[local.cell])
    spread = np.asarray(special.expit(cells_of(view) @ load_heads().places[list(FAULTS).index(fault)]))
    if fault in {"motion blur", "defocus blur"} and (sharpness_of(view) or 0.0) >= CLEAR:
        spread[4] = 0.0  # around a sharp subject
    return spread


def place_of(view: View, fault: str) -> int | None:
    """Return the cell 0 .. 8 of a 3 x 3 grid where a fault is likeliest; None if it is all over."""
    return place_in(_spread(view, fault))


def place_in(spread: Matrix) -> int | None:
    """Return the place that nine probabilities tell, as `place_of`."""
    return None if spread.min() >= _WHOLE else int(spread.argmax())


def is_in_corner(view: View, fault: str) -> bool:
    """Return whether a fault is in one corner, and in no other part nearly as surely."""
    spread, place = _spread(view, fault), place_of(view, fault)
    return place is not None and bool(_IS_CORNER[place]) and np.sort(spread)[-2] < _ALONE * spread[place]


def light_to_move(view: View, fault: str, strength: str) -> float:
    """Return the stops by which light is to be raised, or lowered, against a fault of it; 0 of others."""
    if fault not in {"too dark", "too bright", "crushed shadows"}:
        return 0.0
    signs = view.signs.by_name()
    mean, dark = signs["light_mean"], signs["stops_25"]
    stops = {"too dark": _USUAL_LIGHT - mean, "too bright": mean - _BRIGHT_LIGHT, "crushed shadows": _SHADOWS - dark}
    return float(np.clip(stops[fault], 0.5, 1 + 0.5 * STRENGTHS.index(strength)))


_ALONE = 0.5
"""Part of its probability up to which a fault that is in a corner may be elsewhere."""
_USUAL_LIGHT, _BRIGHT_LIGHT, _SHADOWS = -2.5, -2.0, -7.0
"""Stops below white of the mean of a usual picture and of a bright one, and of its darkest quarter."""


def fault_map(view: View, fault: str) -> Matrix:
    """Return 4 less what a fault takes in each of 3 x 3 cells: most where it is likeliest."""
    if view.unjudged is not None:
        return np.full((3, 3), 4.0)
    spread = _spread(view, fault)
    return np.asarray(4 - 3 * probability_of(seen_in(view, fault), fault) * (spread / spread.max()).reshape(3, 3))


def _lights(signs: Numbers) -> Matrix:
    """Return three estimates of the colour of the light: logs of red and of blue over green."""
    names = ("grey_world", "shades", "lights")
    return np.array([[signs[f"{name}_r"], signs[f"{name}_b"]] for name in names])


def _hue_of(light: Matrix) -> tuple[float, float]:
    """Return the hue, in degrees from red by way of green, and the chroma of a light."""
    red, blue = light
    along, across = 2 * red - blue, -(3**0.5) * blue
    return float(np.degrees(np.arctan2(across, along)) % 360), float(np.hypot(along, across))


_ALONG = ("h", "v", "d1", "d2")
"""Across, down, and aslant both ways: directions in which neighbouring details are compared."""
_USUALLY_ALIKE = np.array([0.15, 0.17, -0.03, -0.01])
"""How far neighbours along each are alike in undamaged photographs."""
_MORE_ALIKE = 0.1
"""How much more alike they must be along one direction than along the next. From then on motion of 8 to 24 pixels that
was made on 30 photographs is told in .88, and always rightly."""


def way_of(view: View) -> Literal["across", "down", "aslant", ""]:
    """Return the direction in which motion smears a picture as a whole, if its details tell."""
    alike = [view.measured[f"luma2_{way}_right"] - view.measured[f"luma2_{way}_left"] for way in _ALONG]
    apart = np.array(alike) - _USUALLY_ALIKE
    next_most, most = np.sort(apart)[-2:]
    if most - next_most < _MORE_ALIKE:
        return ""
    ways: tuple[Literal["across", "down", "aslant"], ...] = ("across", "down", "aslant", "aslant")
    return ways[int(apart.argmax())]


_TONES = {20: "red", 40: "orange", 60: "yellow", 165: "green", 230: "blue", 335: "magenta", 360: "red"}
"""Colours by the hue up to which they reach, as annotators' words for 154 casts tell."""


def tint_of(view: View) -> str:
    """Return the colour that an image's light leans to."""
    hue, _ = _hue_of(_lights(view.signs.by_name()).mean(axis=0))
    return next(tone for most, tone in _TONES.items() if hue <= most)
