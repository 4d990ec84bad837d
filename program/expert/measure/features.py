"""What the expert measures of one image, and what differs between it and its reference: vectors of named features."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from program.expert.measure import measures
from program.expert.measure.measures import Maps, Named, Plane, finite, gaussian, grid_of, halve
from program.tools import network


def slopes(plane: Plane) -> Plane:
    """Return the gradient magnitude (Prewitt)."""
    dx, dy = (ndimage.prewitt(plane, axis=axis, output=np.float32, mode="nearest") / 3 for axis in (1, 0))
    return np.asarray(np.sqrt(dx**2 + dy**2))


def transfer(one: list[Plane], two: list[Plane], scale: int) -> dict[str, float]:
    """Return what got through at one scale (0: native), of fine detail in luma and colour, across and down.

    At scale 3 also of the opponent colours as wholes: their gain, their turn, and what of them is unrelated.
    """
    named = _through("", str(scale), 1.0, (one[0] - gaussian(one[0]), two[0] - gaussian(two[0])))
    if scale < 2:
        for name, axis in (("_across", 1), ("_down", 0)):
            named |= _through("", f"{name}{scale}", 2.0, (_steps(one[0], axis), _steps(two[0], axis)))
    if scale:
        colours = [(a - gaussian(a), b - gaussian(b)) for a, b in zip(one[1:], two[1:], strict=True)]
        named |= _through("colour_", str(scale), 0.5, *colours)
    return named | _colours(one, two) if scale == 3 else named


def _steps(plane: Plane, axis: int) -> Plane:
    """Return the differences of neighbours, or one of 0 where there is none."""
    return np.diff(plane, axis=axis) if plane.shape[axis] > 1 else np.zeros((1, 1), dtype=np.float32)


def _colours(one: list[Plane], two: list[Plane]) -> dict[str, float]:
    named: dict[str, float] = {}
    for number in (1, 2):
        a, b = one[number], two[number]
        named |= _through("opponent_", str(number), 4.0, (a - a.mean(), b - b.mean()))
    power = float((one[1] ** 2 + one[2] ** 2).mean()) + 4
    along = float((one[1] * two[1] + one[2] * two[2]).mean()) + 4
    across = float((one[1] * two[2] - one[2] * two[1]).mean())
    return named | {"saturation_transfer": along / power - 1, "hue_turn": across / power}


def _through(before: str, after: str, noise: float, *pairs: tuple[Plane, Plane]) -> dict[str, float]:
    """Return gain - 1 and 1 - coherence of planes taken together; `noise` is a power below which neither tells."""
    one, two, joint = (sum(float((p[i] * p[j]).mean()) for p in pairs) + noise for i, j in ((0, 0), (1, 1), (0, 1)))
    return {
        f"{before}transfer{after}": joint / one - 1,
        f"{before}incoherence{after}": 1 - max(joint, noise) ** 2 / (one * two),
    }


def residual(one: Plane, two: Plane, edges: Plane) -> dict[str, float]:
    """Describe the luma residual: peaked, oriented, fine or coarse, in light parts, at edges (slopes of `one`)."""
    whole = two - one
    whole = whole - whole.mean()
    fine = whole - gaussian(whole)
    half = halve(whole)
    power, all_power, half_power = _power(fine), _power(whole), _power(half)
    size, square = np.abs(fine), fine * fine
    edge = edges >= np.percentile(edges[::2, ::2], 75)
    return {
        "residual_peaks": float(np.log1p(_power(square) / (power * power + 1))),
        "residual_across": float((fine[:, 1:] * fine[:, :-1]).mean() / (power + 1)) if fine.shape[1] > 1 else 0.0,
        "residual_down": float((fine[1:] * fine[:-1]).mean() / (power + 1)) if fine.shape[0] > 1 else 0.0,
        "residual_coarse": float(np.log((half_power + 1) / (all_power + 1))),
        "residual_coarser": float(np.log((_power(halve(half)) + 1) / (half_power + 1))),
        "residual_fine": float(np.log((power + 1) / (all_power + 1))),
        "residual_in_light": _correlation(size, one),
        "residual_at_edges": _correlation(size, edges),
        "residual_on_edges": float(np.log((_mean(square, edge) + 1) / (_mean(square, ~edge) + 1))),
    }


def texture(one: Plane, two: Plane) -> dict[str, float]:
    """Compare local texture energy (variances): how far it moved, which way, and where it fell and rose most."""
    change = np.log((two + 5) / (one + 5))
    low, high = np.percentile(change[::3, ::3], [10, 90])  # every third pixel both ways says as much
    return {
        "texture_change": float(np.abs(change).mean()), "texture_gain": float(change.mean()),
        "texture_p10": float(low), "texture_p90": float(high),
    }  # fmt: skip


def _mean(plane: Plane, chosen: NDArray[np.bool_]) -> float:
    return float(plane[chosen].mean()) if chosen.any() else 0.0


def _power(plane: Plane) -> float:
    return float((plane * plane).mean())


def _correlation(one: Plane, two: Plane) -> float:
    a, b = one - one.mean(), two - two.mean()
    return float((a * b).sum() / np.sqrt((float((a * a).sum()) + 1) * (float((b * b).sum()) + 1)))


_ROWS = 256
MAXIMUM_SIDE = 1024
"""Longer sides are scaled down to this many pixels: the quality models saw images of about 500."""


def measure(pixels: NDArray[np.uint8]) -> tuple[Named, Maps]:
    """Measure H x W x 3 uint8 sRGB pixels; deterministic, touches nothing else."""
    parts = [pixels[top : top + _ROWS] for top in range(0, len(pixels), _ROWS)]  # whole, 8 megapixels take 100 MB more
    native = np.concatenate([_luma(part.astype(np.float32)) for part in parts])
    named = measures.blocking(native)
    shown = shrink(pixels, MAXIMUM_SIDE)
    channels = shown.transpose(2, 0, 1).astype(np.float32, order="C")
    luma = native if shown is pixels else _luma(shown.astype(np.float32))
    half = halve(luma)
    scales = (luma, half, halve(half))
    found, deviations, fines = zip(
        *(_scene_statistics(plane, f"luma{i}", pairs=i < 3) for i, plane in enumerate(scales, 1)), strict=True
    )
    sharp, maps = measures.sharpness(luma, fines[0], [measures.gradient(plane) for plane in scales], deviations[0])
    for part in (*found, _colour_statistics(*channels), sharp):
        named |= part
    for part, part_maps in (measures.noise(luma, *channels), measures.exposure(luma), measures.colour(*channels)):
        named |= part
        maps |= part_maps
    named |= measures.spectrum(luma)
    maps["blocking"] = grid_of(measures.blocking_map(native))
    maps["contrast"] = grid_of(deviations[1])
    return finite(named, maps)


def _luma(rgb: Plane) -> Plane:
    return np.asarray(rgb @ np.array([0.299, 0.587, 0.114], dtype=np.float32))


def shrink(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Return H x W x 3 pixels averaged down until the longer side has at most `side`."""
    longer = max(pixels.shape[:2])
    if longer <= side:
        return pixels
    height, width = (max(1, round(each * side / longer)) for each in pixels.shape[:2])
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BOX))


def _scene_statistics(plane: Plane, name: str, *, pairs: bool) -> tuple[dict[str, float], Plane, Plane]:
    values, deviation, fine = measures.normalise(plane)
    mean = float(deviation.mean())
    spread = {"deviation_log": float(np.log1p(mean)), "deviation_cv": float(deviation.std()) / (mean + 1.0)}
    named = _moments(values) | (measures.aggd_of_products(values) if pairs else {}) | spread
    return {f"{name}_{key}": value for key, value in named.items()}, deviation, fine


def _moments(values: Plane) -> dict[str, float]:
    flat = values.ravel()
    square = flat * flat
    power = float(square.mean())
    if power < 1e-9:
        return {"shape": 10.0, "power": 0.0, "kurtosis": 0.0, "skewness": 0.0}
    absolute = float(np.abs(flat).mean())
    fourth, third = float((square * square).mean()), float((square * flat).mean())
    return {
        "shape": measures.ggd_shape(absolute**2 / power),
        "power": power,
        "kurtosis": float(np.log1p(fourth / power**2)),
        "skewness": float(np.clip(third / power**1.5, -5, 5)),
    }


def _colour_statistics(*channels: Plane) -> dict[str, float]:
    """Statistics of opponent colours, linear and logarithmic (Ruderman et al. 1998), at half and quarter size."""
    red, green, blue = (halve(channel) for channel in channels)
    log_red, log_green, log_blue = (np.log(1 + halved) for halved in (red, green, blue))
    planes = {
        "red_green": red - green,
        "yellow_blue": 0.5 * (red + green) - blue,
        "log_yellow_blue": 32 * (log_red + log_green - 2 * log_blue) / 6**0.5,
        "log_red_green": 32 * (log_red - log_green) / 2**0.5,
    }
    named: dict[str, float] = {}
    for name, plane in planes.items():
        named |= _scene_statistics(plane, f"{name}1", pairs=False)[0]
        if not name.startswith("log"):
            named |= _scene_statistics(halve(plane), f"{name}2", pairs=False)[0]
        named[f"{name}_spread"] = float(np.log1p(plane.std()))
    return named


FEATURE_NAMES = tuple(measure(np.zeros((16, 16, 3), np.uint8))[0])
"""The order of every feature vector."""


def reference_differences(pixels: NDArray[np.uint8], reference: NDArray[np.uint8]) -> tuple[Named, Maps]:
    """Measure how H x W x 3 uint8 pixels differ from their reference; deterministic."""
    reference = resample(reference, pixels)
    named, maps = _compare(pixels, reference)
    return finite(named | dict(zip(network.DISTANCES, network.distances(pixels, reference), strict=True)), maps)


def resample(reference: NDArray[np.uint8], pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a reference at the size of what is compared with it."""
    if reference.shape == pixels.shape:
        return reference
    size = (pixels.shape[1], pixels.shape[0])
    return np.asarray(Image.fromarray(reference).resize(size, Image.Resampling.LANCZOS))


def _compare(pixels: NDArray[np.uint8], reference: NDArray[np.uint8]) -> tuple[dict[str, float], Maps]:
    same = reference == pixels
    one, two = _channels(reference), _channels(pixels)
    named = {
        "error_log": float(np.log1p(((one[0] - two[0]) ** 2).mean())),
        "blocking_rise": measures.blocking(two[0])["blocking"] - measures.blocking(one[0])["blocking"],
        "changed": 1 - float(same.all(axis=2).mean()), "changed_channels": 1 - float(same.mean()),
    } | transfer(one, two, 0)  # fmt: skip
    maps: Maps = {}
    for scale in (1, 2, 3):
        one, two = [halve(c) for c in one], [halve(c) for c in two]
        named |= transfer(one, two, scale)
        if scale == 1:
            fine, edges = [plane - gaussian(plane) for plane in (one[0], two[0])], slopes(one[0])
            # Gaussian-weighted variances around every pixel, and their covariance.
            var1, var2, joint = (gaussian(fine[i] * fine[j]) for i, j in ((0, 0), (1, 1), (0, 1)))
            maps["difference"] = grid_of(_loss(one, two, edges))
            named |= _nature(one, two, fine, var1, maps) | residual(one[0], two[0], edges) | texture(var1, var2)
            named |= _tones(one[0], two[0])
            named["structure_loss1"] = float(1 - ((2 * joint + 58.5) / (var1 + var2 + 58.5)).mean())
    return named, maps


def _channels(pixels: NDArray[np.uint8]) -> list[Plane]:
    """Return luma and two opponent colours (Gaussian colour model), 0..255 scale."""
    weights = np.array([[0.299, 0.587, 0.114], [0.30, 0.04, -0.35], [0.34, -0.60, 0.17]], dtype=np.float32)
    planes = pixels.astype(np.float32) @ weights.T
    return [np.ascontiguousarray(planes[:, :, i]) for i in range(3)]


def _loss(one: list[Plane], two: list[Plane], edges: Plane) -> Plane:
    """Return the map of gradients and colours that were lost or added; `edges` are the slopes of `one`."""
    other = slopes(two[0])
    similar = (2 * edges * other + 170.0) / (edges**2 + other**2 + 170.0)
    power = one[1] ** 2 + two[1] ** 2 + one[2] ** 2 + two[2] ** 2
    chroma = (2 * (one[1] * two[1] + one[2] * two[2]) + 550.0) / (power + 550.0)
    return np.asarray(1 - (0.6 * similar + 0.4 * chroma))


def _tones(one: Plane, two: Plane) -> dict[str, float]:
    """Say how far each eighth of the range of luma moved, of 255: contrast bends this curve, exposure shifts it.

    An eighth that few pixels of `one` lie in counts as unmoved.
    """
    eighth = np.clip(one / 32, 0, 7).astype(np.intp).ravel()
    count = np.bincount(eighth, minlength=8) + 0.002 * one.size
    moved = np.bincount(eighth, weights=(two - one).ravel(), minlength=8) / count / 255
    return {f"tone{number}": float(value) for number, value in enumerate(moved, 1)}


def _nature(one: list[Plane], two: list[Plane], fine: list[Plane], variance: Plane, maps: Maps) -> dict[str, float]:
    """Say what changed: detail (`fine`, of both lumas) lost or gained, noise added, brightness, contrast, colours."""
    power1, power2 = map(_power, fine)
    cross = float((fine[0] * fine[1]).mean())
    residual = two[0] - one[0]
    quick = residual - gaussian(residual)
    colour = np.sqrt((two[1] - one[1]) ** 2 + (two[2] - one[2]) ** 2)
    spread1, spread2 = float(one[0].std()), float(two[0].std())
    chroma1, chroma2 = (float(np.sqrt(first**2 + second**2).mean()) for _, first, second in (one, two))
    quiet = variance <= np.percentile(variance, 40)
    maps |= {"residual": grid_of(np.abs(quick)), "shift": grid_of(residual), "colour": grid_of(colour)}
    return {
        "detail_gain": float(np.log((power2 + 1.0) / (power1 + 1.0))),
        "detail_kept": 1.0 - (cross + 1.0) / (power1 + 1.0),
        "detail_added": float(np.log1p(max(power2 - cross**2 / (power1 + 1e-6), 0.0))),
        "residual_quiet": float(np.log1p(np.sqrt((quick[quiet] ** 2).mean()))) if quiet.any() else 0.0,
        "brightness_shift": float(residual.mean()) / 255,
        "contrast_change": float(np.log((spread2 + 2.0) / (spread1 + 2.0))),
        "colour_shift": float(np.log1p(colour.mean())),
        "colour_noise": float(np.log1p(np.std(two[2] - one[2] - gaussian(two[2] - one[2])))),
        "saturation_change": float(np.log((chroma2 + 2.0) / (chroma1 + 2.0))),
        "worst_part": float(np.log1p(np.percentile(np.abs(residual).ravel()[::3], 99))),
    }


DIFFERENCE_NAMES: tuple[str, ...] = (*_compare(*(np.zeros((16, 16, 3), np.uint8),) * 2)[0], *network.DISTANCES)
"""The order of every difference vector."""
