"""Fit the heads that name a photograph's faults: `python -m benchmarks.fit_faults DATA FAULTS MEASURED`.

DATA holds clive/, FAULTS is a JSONL of annotated photographs of its train split: a line for each pair of eyes with
{"id", "eyes", "faults": [{"fault", "strength", "where"}], "main", "subject_sharp"}. MEASURED keeps
what was measured (ten minutes). Made damage and whole subjects before soft backgrounds teach as well, with less weight.
Prints the figures of ten folds first, in which nothing of a photograph is in two; thresholds are chosen by them. Then
writes the arrays, fitted on all.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter
from scipy import linalg, ndimage, signal, special
from sklearn.linear_model import LogisticRegression

from benchmarks.training.capture import camera_noise, defocus, expose, motion
from data.distortions import distort, generator_for
from data.manifest import read_manifest
from program.common.files import whole_file
from program.common.pool import progress
from program.expert.judge.faults import CLEAN, DOUBT, LEAST, cells_of, faults_to_name, place_in, unsupported
from program.expert.judge.heads import OUTPUTS, Heads, heads_from, overall
from program.expert.judge.views import Viewer
from program.expert.measure.features import FEATURE_NAMES
from program.expert.store import FAULTS_FILE, Matrix
from program.images.store import IMAGES
from signatures.schemas import FAULTS

FOLDS, MADE_NOISE, NOISE = 10, 4.0, 0.4
"""Noise of a label relative to what is explained, and how many times as much of one of a made picture."""
MEANT, VARIED = 5.0, {"red_green1_deviation_cv": 0.12, "detail_p10": -0.12}
"""What an effect that is meant counts for nothing being wrong; and what detail that varies over a picture, and places
without any, count for an effect. Chosen, with `LIMITS`, on photographs of other people (`--choose`)."""
SEEN, PLAIN, SHRUNK = 0.4, 0.44, 3.0
"""Share of photographs in which a person sees a fault from which it is named; that it is moderate or strong, from
which it is called so; and how far limits of faults are drawn together. Compression, which few name, has limits by made
pictures."""
OFTEN_SLIGHT = ("noise", "haze or flare", "oversaturated", "oversharpened", "low resolution")
STRICT = {"crushed shadows": 0.3, "low contrast": 0.25}
SEEN_OF = dict.fromkeys(OFTEN_SLIGHT, 0.49) | {"colour cast": 0.64} | STRICT
"""The same share for faults that are seldom moderate or often wrong, and for those that pixels must show as well."""
WEIGHT_OF_TAUGHT = 0.4
"""Of what each pair of eyes sees in a photograph that teaches, beside another one, where limits are chosen."""
MADE = 36
"""Made pictures of each kind."""
CELLS = ("tl", "t", "tr", "l", "c", "r", "bl", "b", "br")
STRENGTHS = {"slight": 1.0, "moderate": 2.0, "strong": 3.0}
Pixels = NDArray[np.uint8]


class Pictures(NamedTuple):
    """N pictures as measured, and what two pairs of eyes said of each (twice the same of made ones)."""

    points: Matrix
    """N x the network's and the expert's standardised numbers."""
    numbers: Matrix
    """N x what `View.numbers` are."""
    cells: Matrix
    """N x 9 x what `cells_of` reads."""
    barred: NDArray[np.bool_]
    """N x faults that the pixels do not allow."""
    strengths: Matrix
    """2 x N x faults, 0 (none) .. 3."""
    where: NDArray[np.bool_]
    """2 x N x faults x 9: in which cells each is seen; nothing is known of what is made."""
    main: NDArray[np.intp]
    """2 x N places in FAULTS: -1 for none, -2 for a fault that is none of these."""
    sharp: Matrix
    """N: the share of eyes that call the subject sharp."""
    meant: Matrix
    """N: 1 where the picture was made to show an effect that is meant."""
    group: NDArray[np.str_]
    made: NDArray[np.bool_]

    def among(self, rows: NDArray[np.bool_]) -> "Pictures":
        """Return some of them."""
        pairs = {"strengths", "main", "where"}
        return Pictures(*(np.compress(rows, value, axis=int(name in pairs)) for name, value in self._asdict().items()))


def _tinted(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
    amount, warm = rng.uniform(0.1, 0.4), rng.choice([-1, 1])
    gains = np.exp(np.array([warm, rng.uniform(-0.3, 0.3), -warm]) * amount)
    return _rounded(pixels * gains), amount * 7


def _rounded(values: Any) -> Pixels:
    return np.asarray(np.clip(np.rint(values), 0, 255), dtype=np.uint8)


def _hazy(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
    amount = rng.uniform(0.2, 0.6)
    return _rounded((1 - amount) * pixels + amount * rng.uniform(150, 235)), 5 * amount


def _smaller(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
    factor, image = rng.uniform(1.8, 4), Image.fromarray(pixels)
    small = image.resize([round(side / factor) for side in image.size], Image.Resampling.BOX)
    return np.asarray(small.resize(image.size, Image.Resampling.BICUBIC)), factor - 0.8


def _shallow(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
    image = Image.fromarray(pixels)
    mask, (width, height) = Image.new("L", image.size, 0), image.size
    left, top = rng.uniform(0.1, 0.35), rng.uniform(0.05, 0.3)
    right, bottom = rng.uniform(0.6, 0.9), rng.uniform(0.7, 1.0)
    ImageDraw.Draw(mask).ellipse((left * width, top * height, right * width, bottom * height), fill=255)
    soft = image.filter(ImageFilter.GaussianBlur(rng.uniform(5, 14)))
    return np.asarray(Image.composite(image, soft, mask.filter(ImageFilter.GaussianBlur(width / 30)))), 0.0


def _lit_place(shape: tuple[int, ...], rng: np.random.Generator) -> Matrix:
    """Return H x W x 1 weights of a soft ellipse about a subject."""
    height, width = shape[:2]
    down, across = np.mgrid[:height, :width] / np.array([height, width])[:, None, None]
    aside = (across - rng.uniform(0.35, 0.65)) / rng.uniform(0.2, 0.4)
    below = (down - rng.uniform(0.4, 0.6)) / rng.uniform(0.3, 0.5)
    return np.asarray(special.expit(rng.uniform(4, 9) * (1 - np.hypot(aside, below)))[..., None])


def _low_key(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
    lit, linear = _lit_place(pixels.shape, rng), (pixels / 255.0) ** 2.2
    dark = linear * rng.uniform(0.003, 0.04)
    return _encoded(dark + lit * (rng.uniform(0.6, 1.2) * linear - dark)), 0.0


def _high_key(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
    lit, linear = _lit_place(pixels.shape, rng), (pixels / 255.0) ** 2.2
    paper, light = rng.uniform(0.85, 1.05, 1) + rng.uniform(-0.03, 0.03, 3), 1 - np.exp(-2.2 * linear)
    return _encoded(paper + lit * (light - paper) * rng.uniform(0.85, 1.0)), 0.0


def _low_curve(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
    """Darken all but the lights, which an exposure that is too short would not spare."""
    values = pixels / 255.0
    values = np.clip(values / (np.percentile(values, 99.5) + 1e-3), 0, 1)
    return _rounded(255 * values ** rng.uniform(1.6, 3) * rng.uniform(0.85, 1)), 0.0


def _stage(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
    light = np.exp(-rng.uniform(0.3, 2.5) * rng.permutation([0.0, rng.uniform(0, 1), 1.0]))
    lit = _lit_place(pixels.shape, rng) * rng.uniform(0.6, 1.6) * light / light.mean()
    return _encoded((pixels / 255.0) ** 2.2 * (rng.uniform(0.002, 0.02) + lit)), 0.0


def _subject(shape: tuple[int, ...], rng: np.random.Generator) -> Matrix:
    """Return H x W x 1 weights of a subject with an uneven outline."""
    height, width = shape[:2]
    down, across = np.mgrid[:height, :width] / np.array([height, width])[:, None, None]
    aside = (across - rng.uniform(0.35, 0.65)) / rng.uniform(0.18, 0.38)
    below = (down - rng.uniform(0.4, 0.65)) / rng.uniform(0.25, 0.5)
    angle = np.arctan2(below, aside)
    outline = 1 + 0.15 * np.sin(3 * angle + rng.uniform(0, 6)) + 0.1 * np.sin(5 * angle + rng.uniform(0, 6))
    return np.asarray(special.expit(rng.uniform(12, 40) * (outline - np.hypot(aside, below)))[..., None])


def _panning(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
    angle = rng.normal(0, 0.12)
    if rng.random() > 0.8:
        angle = rng.uniform(0, np.pi)
    subject, smeared = _subject(pixels.shape, rng), motion(pixels, _log_uniform(rng, 12, 70), angle)
    return _rounded(subject * pixels + (1 - subject) * smeared), 0.0


def _bokeh(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
    height, width = pixels.shape[:2]
    down, across = np.mgrid[:height, :width]
    ground = (defocus(pixels, rng.uniform(6, 16)) / 255.0) ** 2.2
    for _ in range(int(rng.integers(4, 30))):
        away = np.hypot(down - rng.uniform(0, height), across - rng.uniform(0, width))
        disc = special.expit(rng.uniform(0.012, 0.04) * width - away)[..., None]
        ground = ground + disc * (1.0, rng.uniform(0.6, 1), rng.uniform(0.3, 1)) * rng.uniform(0.1, 0.6)
    subject = _subject(pixels.shape, rng)
    return _encoded(subject * (pixels / 255.0) ** 2.2 + (1 - subject) * ground), 0.0


def _on_dark(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
    subject, falls = _subject(pixels.shape, rng), 1 + 0.5 * np.linspace(-1, 1, pixels.shape[0])[:, None, None]
    ground = rng.uniform(0.002, 0.03) * np.exp(rng.uniform(-0.5, 0.5, 3)) * falls
    return _encoded(subject * (pixels / 255.0) ** 2.2 * rng.uniform(0.6, 1.2) + (1 - subject) * ground), 0.0


def _shaken(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
    """Smear all of a picture along a path that bends, as a hand's does."""
    path = rng.normal(size=(60, 2)).cumsum(axis=0).cumsum(axis=0) * 0.3 + np.outer(np.arange(60), rng.normal(0, 2, 2))
    path -= path.mean(axis=0)
    size = _log_uniform(rng, 4, 18)
    reach = int(np.ceil(size)) + 1
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1))
    at = np.rint(reach + path * size / np.abs(path).max()).astype(int)
    np.add.at(kernel, (at[:, 0], at[:, 1]), 1.0)
    kernel = ndimage.gaussian_filter(kernel, 0.6)
    padded = np.pad(pixels.astype(float), ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    smeared = signal.fftconvolve(padded, (kernel / kernel.sum())[..., None], mode="valid", axes=(0, 1))
    return _rounded(smeared), 1 + size / 6


def _blown(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
    linear = (pixels / 255.0) ** 2.2
    shown = _encoded(linear / max(np.quantile(linear.max(axis=2), 1 - rng.uniform(0.03, 0.2)), 0.02))
    return shown, 2.0 if (shown.min(axis=2) >= 250).mean() > 0.06 else 1.0


def _crushed(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
    values = pixels / 255.0
    black = np.quantile(values.max(axis=2), rng.uniform(0.08, 0.4))
    return _rounded(255 * (values - black) / (1 - black)), 2.0 if black > 0.2 else 1.0


def _saturated(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
    grey, factor = pixels.mean(axis=2, keepdims=True), rng.uniform(1.6, 3)
    return _rounded(grey + (pixels - grey) * factor), 2.0 if factor > 2 else 1.0


def _flat(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
    factor = rng.uniform(0.3, 0.65)
    return _rounded(rng.uniform(80, 170) + (pixels - pixels.mean()) * factor), 2.0 if factor < 0.5 else 1.0


def _crisp(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
    """Sharpen as a telephone does: much, within a pixel or two."""
    amount, width, values = rng.uniform(1.2, 4), rng.uniform(0.7, 1.8), pixels.astype(float)
    fine = values - ndimage.gaussian_filter(values, (width, width, 0))
    return _rounded(values + amount * fine), 2.0 if amount > 2.4 else 1.0


def _log_uniform(rng: np.random.Generator, least: float, most: float) -> float:
    return float(np.exp(rng.uniform(np.log(least), np.log(most))))


def _night(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
    linear = (pixels / 255.0) ** 2.2 * 2.0 ** -rng.uniform(2, 4) * (0.8, 0.9, 1.2)
    height, width = pixels.shape[:2]
    down, across = np.mgrid[:height, :width]
    for _ in range(int(rng.integers(5, 40))):
        radius = rng.uniform(0.003, 0.04) * width
        away = np.hypot(down - rng.uniform(0, 0.8) * height, across - rng.uniform(0, 1) * width)
        lamp = special.expit(radius - away) + 0.3 * np.exp(-away / (4 * radius))
        linear = linear + lamp[..., None] * (1.0, rng.uniform(0.4, 0.9), rng.uniform(0.1, 0.8)) * rng.uniform(0.3, 1)
    return _encoded(linear), 0.0


def _coloured_light(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
    grey = ((pixels / 255.0) ** 2.2).mean(axis=2, keepdims=True) * rng.uniform(0.4, 1.5)
    side = np.linspace(0, 1, pixels.shape[1])[None, :, None] ** rng.uniform(0.5, 2)
    one, other = (np.exp(-rng.uniform(1, 4) * rng.permutation([0.0, rng.uniform(0.2, 1), 1.0])) for _ in range(2))
    return _encoded(grey * 1.5 * (side * one + (1 - side) * other)), 0.0


def _monochrome(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
    grey = (pixels / 255.0) @ rng.dirichlet((4, 6, 3))
    tone = np.array([1.0, *(1 - rng.uniform(0, 0.12, 2).cumsum())])
    return _rounded(255 * special.expit(rng.uniform(4, 7) * (grey - grey.mean()))[..., None] * tone), 0.0


def _graded(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
    values, grey = pixels / 255.0, pixels.mean(axis=2, keepdims=True) / 255.0
    values = grey + (values - grey) * rng.uniform(0.4, 1.1)
    tones = rng.uniform(-0.06, 0.06, 3), rng.uniform(-0.06, 0.06, 3)
    values = values + (1 - grey) * tones[0] + grey * tones[1]
    least = rng.uniform(0, 0.12)
    return _rounded(255 * (least + (rng.uniform(0.88, 1.0) - least) * values)), 0.0


def _sunset(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
    down = np.linspace(0, 1, pixels.shape[0])[:, None, None]
    amount = rng.uniform(0.3, 0.9) * np.exp(-(((down - rng.uniform(0.2, 0.6)) / 0.3) ** 2))
    warm = (1.0, rng.uniform(0.45, 0.7), rng.uniform(0.1, 0.45))
    linear = (pixels / 255.0) ** 2.2 * 2.0 ** -rng.uniform(0, 1.2)
    return _encoded(linear * (1 - amount) + amount * np.multiply(warm, 0.3 + linear.mean(axis=2, keepdims=True))), 0.0


def _encoded(linear: Any) -> Pixels:
    return _rounded(255 * np.clip(linear, 0, 1) ** (1 / 2.2))


def _silhouette(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
    down = np.linspace(0, 1, 500)[:, None, None]
    sky = rng.uniform(90, 255, 3) * down + rng.uniform(60, 220, 3) * (1 - down)
    shape = ndimage.gaussian_filter(rng.standard_normal((500, 700)), rng.uniform(25, 50))
    shape = shape * 1.5 / shape.std() + np.linspace(-1, 1.5, 500)[:, None] > 1
    picture = np.where(shape[..., None], rng.uniform(0, 14, 3), np.repeat(sky, 700, axis=1))
    return _rounded(picture + rng.normal(0, 1.5, (500, 700, 1))), 0.0


def _level(name: str, weakest: int = 2) -> Callable[[Pixels, np.random.Generator], tuple[Pixels, float]]:
    def made(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
        level = int(rng.integers(weakest, 6))
        return distort(pixels, name, level, rng), 0.6 * level

    return made


def _drawn(
    work: Callable[..., Pixels], least: float, most: float, *angle: float
) -> Callable[[Pixels, np.random.Generator], tuple[Pixels, float]]:
    def made(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
        amount = _log_uniform(rng, least, most)
        rest = [rng.uniform(0, np.pi)] if work is motion else [rng] if work is camera_noise else []
        return work(pixels, amount, *rest), 0.8 + 2.2 * np.log(amount / least) / np.log(most / least)

    return made


def _exposed(least: float, most: float) -> Callable[[Pixels, np.random.Generator], tuple[Pixels, float]]:
    def made(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, float]:
        stops = rng.uniform(least, most)
        return expose(pixels, stops), min(1.2 * abs(stops), 3.0)

    return made


MAKERS: Mapping[str, tuple[str, Callable[[Pixels, np.random.Generator], tuple[Pixels, float]]]] = {
    "motion": ("motion blur", _drawn(motion, 5, 40)), "defocus": ("defocus blur", _drawn(defocus, 1.5, 9)),
    "grain": ("noise", _drawn(camera_noise, 6, 30)), "white noise": ("noise", _level("white_noise")),
    "jpeg": ("compression", _level("jpeg")), "jpeg2000": ("compression", _level("jpeg2000", 3)),
    "dark": ("too dark", _exposed(-3, -1)), "bright": ("too bright", _exposed(0.8, 2.0)),
    "sharpened": ("oversharpened", _level("high_sharpen")), "tinted": ("colour cast", _tinted),
    "hazy": ("haze or flare", _hazy), "smaller": ("low resolution", _smaller),
    "shallow": ("", _shallow), "silhouette": ("", _silhouette), "low key": ("", _low_key),
    "high key": ("", _high_key), "night": ("", _night), "coloured light": ("", _coloured_light),
    "monochrome": ("", _monochrome), "graded": ("", _graded), "sunset": ("", _sunset),
    "low curve": ("", _low_curve), "stage": ("", _stage), "panning": ("", _panning), "bokeh": ("", _bokeh),
    "on dark": ("", _on_dark), "shaken": ("motion blur", _shaken), "blown": ("blown highlights", _blown),
    "crushed": ("crushed shadows", _crushed), "saturated": ("oversaturated", _saturated),
    "flat": ("low contrast", _flat), "crisp": ("oversharpened", _crisp),
}  # fmt: skip
"""What each kind of made picture shows, and how it is made: pixels and strength."""
FAULTS_STAY = {"shallow", "panning"}
"""Kinds without a fault of their own that show what else is wrong with a photograph."""


def _pictures(manifest: Path, faults: Path, folder: Path) -> Pictures:
    """Measure the annotated photographs and what is made of those with the least wrong; kept in `folder`."""
    said = defaultdict(list)
    for line in faults.read_text("utf-8").splitlines():
        said[(record := json.loads(line))["id"]].append(record)
    samples = [sample for sample in read_manifest(manifest) if sample.id in said]
    viewer, rows = Viewer(folder), []
    amounts = {name: sum(STRENGTHS[f["strength"]] for r in said[name] for f in r["faults"]) for name in said}
    with progress("measuring photographs", len(samples)) as advance:
        for sample in samples:
            rows.append((*_numbers(viewer, sample.image), *_labels(said[sample.id]), 0.0, sample.group, False))
            advance(1)
    best = sorted(samples, key=lambda sample: (amounts[sample.id], sample.id))[: 4 * MADE]
    with progress("measuring made pictures", MADE * len(MAKERS)) as advance:
        for kind, (fault, make) in MAKERS.items():
            draws = generator_for("faults", kind)
            for at in draws.permutation(len(best))[:MADE]:
                pixels, strength = make(IMAGES.pixels(IMAGES.add(best[at].image)), draws)
                labels = _labels(said[best[at].id], fault, strength, bare=not fault and kind not in FAULTS_STAY)
                rows.append((*_numbers(viewer, pixels), *labels, float(not fault), best[at].group, True))
                advance(1)
    columns = (np.array(column) for column in zip(*rows, strict=True))
    points, numbers, cells, barred, strengths, where, worst, *rest = columns
    return Pictures(points, numbers, cells, barred, strengths.swapaxes(0, 1), where.swapaxes(0, 1), worst.T, *rest)


def _numbers(viewer: Viewer, image: Any) -> tuple[Matrix, Matrix, Matrix, NDArray[np.bool_]]:
    with IMAGES.borrow():
        view = viewer.view(IMAGES.add(image))
        barred = np.isin(list(FAULTS), list(unsupported(view)))
        return view.features.points[0], view.numbers, cells_of(view), barred


def _labels(
    said: Sequence[Mapping[str, Any]], fault: str = "", strength: float = 0.0, *, bare: bool = False
) -> tuple[Matrix, NDArray[np.bool_], list[int], float]:
    """Return strengths and places by both pairs of eyes, the worst fault, and whether the subject is sharp."""
    names = list(FAULTS)
    strengths, worst = np.zeros((len(said), len(names))), []
    where = np.zeros((len(said), len(names), len(CELLS)), bool)
    for row, places, record in zip(strengths, where, said, strict=True):
        for each in [] if bare else record["faults"]:
            if each["fault"] in FAULTS:
                row[names.index(each["fault"])] = STRENGTHS[each["strength"]]
                places[names.index(each["fault"])] = [cell in each["where"] or "all" in each["where"] for cell in CELLS]
        main = None if bare else record["main"]
        worst.append(-1 if main is None else names.index(main) if main in FAULTS else -2)
    if fault:
        strengths[:, names.index(fault)] = np.maximum(strengths[:, names.index(fault)], min(strength, 3.0))
        worst = [names.index(fault)] * len(said)
    sharp = float(np.mean([0.5 if r["subject_sharp"] is None else r["subject_sharp"] for r in said]))
    if fault in {"motion blur", "defocus blur", "low resolution"}:
        sharp = 0.0
    return strengths, where, worst, sharp


def _folds(group: NDArray[np.str_]) -> NDArray[np.intp]:
    names = np.unique(group)
    drawn = dict(zip(names, np.random.default_rng(0).permutation(len(names)) % FOLDS, strict=True))
    return np.array([drawn[name] for name in group])


def regression(pictures: Pictures, learn: NDArray[np.bool_]) -> dict[str, Any]:
    """Fit the outputs on some pictures: half a line on all standardised numbers, half Gaussians around all numbers.

    What is meant is a line on the network's alone, which carries over best.
    """
    p = pictures.among(learn)
    photographs = p.numbers[~p.made]
    heads = {"centre": photographs.mean(axis=0), "spread": photographs.std(axis=0) + 1e-9}
    kept = np.clip((p.numbers - heads["centre"]) / heads["spread"], -3, 3).astype(np.float16).astype(float)
    square = (kept * kept).sum(axis=1)
    square = np.maximum(square[:, None] + square - 2 * kept @ kept.T, 0)
    width = float(np.median(square))
    points, own = p.points.astype(float), p.points.shape[1] - len(FEATURE_NAMES)
    products, of_network = points @ points.T, points[:, :own] @ points[:, :own].T
    scale, scale_of_network = 0.5 * len(points) / np.trace(products), len(points) / np.trace(of_network)
    kernel = scale * products + 0.5 * np.exp(-square / width)
    nothing = (p.strengths.sum(axis=2) == 0).mean(axis=0)
    worst = [(p.main == fault).mean(axis=0) for fault in range(len(FAULTS))]
    targets = np.column_stack([p.strengths.mean(axis=0), nothing, p.sharp, *worst, p.meant])
    noise = NOISE * np.where(p.made, MADE_NOISE, 1.0)
    offset = np.average(targets, axis=0, weights=1 / noise)
    apart = targets - offset
    dual = linalg.solve(kernel + np.diag(noise), apart, assume_a="pos")
    lines = scale * points.T @ dual
    dual[:, -1] = 0.0
    line = linalg.solve(scale_of_network * of_network + np.diag(noise), apart[:, -1], assume_a="pos")
    lines[:, -1] = scale_of_network * points.T @ line
    lines[own:, -1] = 0.0
    for name, weight in VARIED.items():
        at = lines.shape[0] - len(FEATURE_NAMES) + FEATURE_NAMES.index(name)
        lines[at, -1] += weight / p.points[~p.made, at].std()
        offset[-1] -= weight * p.points[~p.made, at].mean() / p.points[~p.made, at].std()
    return {**heads, "kept": kept, "width": np.array(width), "weights": 0.5 * dual, "lines": lines, "offset": offset}


def _values(found: Mapping[str, Any], pictures: Pictures, rows: NDArray[np.bool_]) -> Matrix:
    rest = {name: np.zeros(1) for name in Heads._fields if name not in found}
    return heads_from({**found, **rest}).values(pictures.points[rows].astype(float), pictures.numbers[rows])


def _left_out(pictures: Pictures) -> Matrix:
    """Return the outputs of every picture by regressions that saw none of its photograph."""
    fold, held = _folds(pictures.group), np.zeros((len(pictures.group), len(OUTPUTS)))
    for each in range(FOLDS):
        held[fold == each] = _values(regression(pictures, fold != each), pictures, fold == each)
    return held


_MEANT_AT = 4
"""The column of `overall` that says whether an effect is meant."""


def curves(pictures: Pictures, held: Matrix, learn: NDArray[np.bool_]) -> dict[str, Any]:
    """Fit what turns outputs of pictures left out into probabilities, on the photographs among some."""
    rows, made = np.flatnonzero(learn & ~pictures.made), np.flatnonzero(learn & pictures.made)
    strengths = np.concatenate(pictures.strengths[:, rows])
    x = np.tile(held[rows], (2, 1))
    scale = x.std(axis=0) + 1e-9
    found = np.zeros((3, 2, len(FAULTS)))
    for level in range(3):
        for fault in range(len(FAULTS)):
            there, values = strengths[:, fault] > level, x[:, fault]
            if not there.any():  # nobody saw one so strong: what is made says how it would read
                there = np.append(there, pictures.strengths[0, made, fault] > level)
                values = np.append(values, held[made, fault])
            # A dozen pictures bend no curve: those of few keep to the slope of a weak prior.
            line = LogisticRegression(C=1.0).fit(values[:, None] / scale[fault], there) if there.any() else None
            found[level, :, fault] = (line.coef_[0, 0] / scale[fault], line.intercept_[0]) if line else (0, -6)
    whole = np.delete(overall(x), _MEANT_AT, axis=1)
    spread = whole.std(axis=0) + 1.0 * (whole.std(axis=0) == 0)
    line = LogisticRegression(fit_intercept=False, C=10.0).fit(
        (whole - np.append(whole[:, :-1].mean(axis=0), 0)) / spread, strengths.sum(axis=1) == 0
    )
    clean = line.coef_[0] / spread
    clean[-1] -= clean[:-1] @ whole[:, :-1].mean(axis=0)
    clean = np.insert(clean, _MEANT_AT, MEANT)
    at, sharp = OUTPUTS.index("subject sharp"), np.repeat(pictures.sharp[rows], 2)
    eyes = np.tile([0, 1], len(rows)) < np.round(2 * sharp)
    line = LogisticRegression().fit(np.repeat(held[rows][:, [at]], 2, axis=0), eyes)
    return {"curves": found, "clean": clean, "sharp": np.append(line.coef_[0], line.intercept_)}


def places(pictures: Pictures, learn: NDArray[np.bool_]) -> Matrix:
    """Fit where faults are, on those that are seen in the photographs among some: F x log-odds of a cell."""
    found = np.zeros((len(FAULTS), pictures.cells.shape[2]))
    found[:, -1] = 4.0  # all over, of a fault that nobody saw in a part
    seen = (pictures.strengths > 0) & (learn & ~pictures.made)[:, None]
    for fault, weights in enumerate(found):
        eyes, rows = np.nonzero(seen[..., fault])
        there = pictures.where[eyes, rows, fault].ravel()
        if there.all():
            continue
        x = pictures.cells[rows].reshape(len(there), -1)[:, :-1]
        centre, spread = x.mean(axis=0), x.std(axis=0) + 1e-9
        line = LogisticRegression(C=0.02, max_iter=1000).fit((x - centre) / spread, there)
        weights[:-1] = line.coef_[0] / spread
        weights[-1] = line.intercept_[0] - centre @ weights[:-1]
    return found


def figures(pictures: Pictures, held: Matrix) -> dict[str, str]:
    """Return what is named in folds of the photographs, against each pair of eyes: share and number."""
    fold, counts, names = _folds(pictures.group), defaultdict(list), list(FAULTS)
    for each in range(FOLDS):
        found = curves(pictures, held, fold != each)
        rest = {name: np.zeros(1) for name in Heads._fields if name not in found}
        heads, where = heads_from({**found, **rest}), places(pictures, fold != each)
        for row in np.flatnonzero((fold == each) & ~pictures.made):
            barred = frozenset(np.compress(pictures.barred[row], names))
            told = [names.index(named.fault) for named in faults_to_name(heads, held[row], barred)]
            cells = [place_in(special.expit(pictures.cells[row] @ line)) for line in where]
            for strengths, seen, main in zip(
                pictures.strengths[:, row], pictures.where[:, row], pictures.main[:, row], strict=True
            ):
                counts["place"] += [
                    seen[f].sum() >= 6 if (cell := cells[f]) is None else seen[f, cell] and not seen[f].all()
                    for f in np.flatnonzero(strengths > 1)
                ]
                counts["main first"] += [told[:1] == [main]] if main != -1 else []
                counts["found"] += [fault in told for fault in np.flatnonzero(strengths > 1)]
                counts["right"] += [strengths[fault] > 0 for fault in told]
                counts["clean wrong"] += [bool(told)] if main == -1 and not strengths.any() else []
                counts["silent"] += [not told] if (strengths > 1).any() else []
    return {name: f"{np.mean(of):.3f} of {len(of)}" for name, of in counts.items()}


def limits(
    heads: Heads, pictures: Pictures, held: Matrix, annotations: Path, images: Path, folder: Path
) -> dict[str, tuple[float, float]]:
    """Return the `LIMITS` at which people see a fault in `SEEN`, and a plain one in `PLAIN`, of all photographs."""
    said, viewer = [json.loads(line) for line in annotations.read_text("utf-8").splitlines()], Viewer(folder)
    rows = [_numbers(viewer, images / record["image"])[:2] for record in said]
    points, numbers = (np.array(column, float) for column in zip(*rows, strict=True))
    values = np.concatenate([heads.values(points, numbers), *[held[~pictures.made]] * 2])
    own = np.array([_labels([record])[0][0] for record in said])
    strengths = np.concatenate([own, *pictures.strengths[:, ~pictures.made]])
    weights = np.where(np.arange(len(values)) < len(own), 1.0, WEIGHT_OF_TAUGHT)[:, None]
    doubt = DOUBT * np.clip(overall(values) @ heads.clean, LEAST, CLEAN)
    pairs = []
    for level, share in enumerate(([SEEN_OF.get(fault, SEEN) for fault in FAULTS], PLAIN)):
        lines = [slope * values[:, : len(FAULTS)] + offset for slope, offset in heads.curves[: level + 1]]
        odds, shift = np.min(lines, axis=0) - doubt[:, None], np.zeros(len(FAULTS))
        for _ in range(30):
            chance = special.expit(odds + shift)
            slope = (weights * (chance - (strengths > level))).sum(axis=0) + SHRUNK * (shift - shift.mean())
            shift -= np.clip(slope / ((weights * chance * (1 - chance)).sum(axis=0) + SHRUNK), -1, 1)
        pairs.append(special.expit(special.logit(share) - shift).round(2).tolist())
    return dict(zip(FAULTS, zip(*pairs, strict=True), strict=True))


def main(argv: Sequence[str] | None = None) -> int:
    """Fit, print the folds' figures, and write the arrays."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fit_faults", description=str(__doc__).split("\n")[0])
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("faults", type=Path, metavar="FAULTS")
    parser.add_argument("measured", type=Path, metavar="MEASURED")
    parser.add_argument("--choose", type=Path, nargs=2, metavar=("ANNOTATIONS", "IMAGES"), help="print LIMITS by these")
    options = parser.parse_args(argv)
    pictures = _pictures(options.data / "clive" / "manifest.jsonl", options.faults, options.measured)
    held = _left_out(pictures)
    every = np.ones(len(held), bool)
    arrays = regression(pictures, every) | curves(pictures, held, every) | {"places": places(pictures, every)}
    for name, value in figures(pictures, held).items():
        print(f"{name:14}{value}")
    with whole_file(Path(__file__).parents[1] / "program" / "expert" / FAULTS_FILE) as part, part.open("wb") as stream:
        np.savez_compressed(stream, **{name: value.astype(np.float16) for name, value in arrays.items()})
    if options.choose:
        annotations, images = options.choose
        print(limits(heads_from(arrays), pictures, held, annotations, images, options.measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
