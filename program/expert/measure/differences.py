"""What differs between an image and its reference."""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from program.expert.measure.features import Maps, blocking, finite, grid_of, resample
from program.expert.measure.naturalness import Numbers, Plane, gaussian, halve
from program.tools import network


def reference_differences(pixels: NDArray[np.uint8], reference: NDArray[np.uint8]) -> tuple[Numbers, Maps]:
    """Measure how H x W x 3 uint8 pixels differ from their reference; deterministic."""
    reference = resample(reference, pixels)
    numbers, maps = _compare(pixels, reference)
    distances = network.distances(pixels, reference)
    return finite(numbers | dict(zip(network.DISTANCES, distances, strict=True)), maps)


def _compare(pixels: NDArray[np.uint8], reference: NDArray[np.uint8]) -> tuple[Numbers, Maps]:
    same = reference == pixels
    one, two = _channels(reference), _channels(pixels)
    numbers = {
        "error_log": float(np.log1p(((one[0] - two[0]) ** 2).mean())),
        "blocking_rise": blocking(two[0])[0]["blocking"] - blocking(one[0])[0]["blocking"],
        "changed": 1 - float(same.all(axis=2).mean()), "changed_channels": 1 - float(same.mean()),
    } | _transfer(one, two, 0)  # fmt: skip
    one, two = list(map(halve, one)), list(map(halve, two))
    halved, maps = _compare_halved(one, two)
    numbers |= _transfer(one, two, 1) | halved
    for scale in (2, 3):
        one, two = list(map(halve, one)), list(map(halve, two))
        numbers |= _transfer(one, two, scale)
    return numbers, maps


def _compare_halved(one: list[Plane], two: list[Plane]) -> tuple[Numbers, Maps]:
    """Measure what is compared at half size only."""
    fine, edges = [_detail(one[0]), _detail(two[0])], _slopes(one[0])
    # Gaussian-weighted variances around every pixel, and their covariance.
    var1, var2 = gaussian(fine[0] * fine[0]), gaussian(fine[1] * fine[1])
    joint = gaussian(fine[0] * fine[1])
    maps: Maps = {"difference": grid_of(_loss(one, two, edges))}
    numbers = _nature(one, two, fine, var1, maps) | _residual(one[0], two[0], edges)
    numbers |= _texture(var1, var2) | _tones(one[0], two[0])
    numbers["structure_loss1"] = float(1 - ((2 * joint + 58.5) / (var1 + var2 + 58.5)).mean())
    return numbers, maps


def _channels(pixels: NDArray[np.uint8]) -> list[Plane]:
    """Return luma and two opponent colours (Gaussian colour model), 0..255 scale."""
    weights = np.array(
        [[0.299, 0.587, 0.114], [0.30, 0.04, -0.35], [0.34, -0.60, 0.17]], dtype=np.float32
    )  # fmt: skip
    planes = pixels.astype(np.float32) @ weights.T
    return [np.ascontiguousarray(planes[:, :, i]) for i in range(3)]


def _slopes(plane: Plane) -> Plane:
    """Return the gradient magnitude (Prewitt)."""
    dx = ndimage.prewitt(plane, axis=1, output=np.float32, mode="nearest") / 3
    dy = ndimage.prewitt(plane, axis=0, output=np.float32, mode="nearest") / 3
    return np.asarray(np.sqrt(dx**2 + dy**2))


def _transfer(one: list[Plane], two: list[Plane], scale: int) -> Numbers:
    """Return what got through at one scale (0: native), of fine detail in luma and colour.

    At scale 3 also of the opponent colours as wholes: their gain, their turn, and what is
    unrelated.
    """
    numbers = _through("", str(scale), 1.0, (_detail(one[0]), _detail(two[0])))
    if scale < 2:
        across, down = (_steps(one[0], 1), _steps(two[0], 1)), (_steps(one[0], 0), _steps(two[0], 0))
        numbers |= _through("", f"_across{scale}", 2.0, across)
        numbers |= _through("", f"_down{scale}", 2.0, down)
    if scale:
        colours = zip(map(_detail, one[1:]), map(_detail, two[1:]), strict=True)
        numbers |= _through("colour_", str(scale), 0.5, *colours)
    if scale == 3:
        numbers |= _colours(one, two)
    return numbers


def _detail(plane: Plane) -> Plane:
    return plane - gaussian(plane)


def _steps(plane: Plane, axis: int) -> Plane:
    """Return the differences of neighbours, or one of 0 where there is none."""
    if plane.shape[axis] == 1:
        return np.zeros((1, 1), dtype=np.float32)
    return np.diff(plane, axis=axis)


def _colours(one: list[Plane], two: list[Plane]) -> Numbers:
    numbers: Numbers = {}
    for opponent in (1, 2):
        first, second = one[opponent], two[opponent]
        whole = (first - first.mean(), second - second.mean())
        numbers |= _through("opponent_", str(opponent), 4.0, whole)
    power = float((one[1] ** 2 + one[2] ** 2).mean()) + 4
    along = float((one[1] * two[1] + one[2] * two[2]).mean()) + 4
    across = float((one[1] * two[2] - one[2] * two[1]).mean())
    return numbers | {"saturation_transfer": along / power - 1, "hue_turn": across / power}


def _through(before: str, after: str, noise: float, *pairs: tuple[Plane, Plane]) -> Numbers:
    """Return gain - 1 and 1 - coherence of planes together; below a power `noise` neither."""
    one = sum(float((first * first).mean()) for first, _ in pairs) + noise
    two = sum(float((second * second).mean()) for _, second in pairs) + noise
    joint = sum(float((first * second).mean()) for first, second in pairs) + noise
    return {
        f"{before}transfer{after}": joint / one - 1,
        f"{before}incoherence{after}": 1 - max(joint, noise) ** 2 / (one * two),
    }


def _residual(one: Plane, two: Plane, edges: Plane) -> Numbers:
    """Describe the luma residual: peaked, oriented, fine or coarse, in light parts, at edges."""
    whole = two - one
    whole = whole - whole.mean()
    fine = whole - gaussian(whole)
    half = halve(whole)
    power, all_power, half_power = _power(fine), _power(whole), _power(half)
    size, square = np.abs(fine), fine * fine
    edge = edges >= np.percentile(edges[::2, ::2], 75)
    return {
        "residual_peaks": float(np.log1p(_power(square) / (power * power + 1))),
        "residual_across": _along(fine, power),
        "residual_down": _along(fine.T, power),
        "residual_coarse": float(np.log((half_power + 1) / (all_power + 1))),
        "residual_coarser": float(np.log((_power(halve(half)) + 1) / (half_power + 1))),
        "residual_fine": float(np.log((power + 1) / (all_power + 1))),
        "residual_in_light": _correlation(size, one),
        "residual_at_edges": _correlation(size, edges),
        "residual_on_edges": float(np.log((_mean(square, edge) + 1) / (_mean(square, ~edge) + 1))),
    }


def _along(plane: Plane, power: float) -> float:
    """Return the mean product of neighbours across for a power, 0 where there are none."""
    if plane.shape[1] < 2:
        return 0.0
    return float((plane[:, 1:] * plane[:, :-1]).mean() / (power + 1))


def _texture(one: Plane, two: Plane) -> Numbers:
    """Compare local variances: how far they changed, and where they fell and rose most."""
    change = np.log((two + 5) / (one + 5))
    # Every third pixel both ways says as much.
    low, high = np.percentile(change[::3, ::3], [10, 90])
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


def _loss(one: list[Plane], two: list[Plane], edges: Plane) -> Plane:
    """Return the map of gradients and colours lost or added; `edges` are the slopes of `one`."""
    other = _slopes(two[0])
    similar = (2 * edges * other + 170.0) / (edges**2 + other**2 + 170.0)
    power = one[1] ** 2 + two[1] ** 2 + one[2] ** 2 + two[2] ** 2
    chroma = (2 * (one[1] * two[1] + one[2] * two[2]) + 550.0) / (power + 550.0)
    return np.asarray(1 - (0.6 * similar + 0.4 * chroma))


def _tones(one: Plane, two: Plane) -> Numbers:
    """Measure how far each eighth of the range of luma moved: contrast bends, exposure shifts it.

    An eighth that few pixels of `one` lie in counts as unmoved.
    """
    eighth = np.clip(one / 32, 0, 7).astype(np.intp).ravel()
    count = np.bincount(eighth, minlength=8) + 0.002 * one.size
    moves = np.bincount(eighth, weights=(two - one).ravel(), minlength=8) / count / 255
    return {f"tone{number}": float(value) for number, value in enumerate(moves, 1)}


def _nature(one: list[Plane], two: list[Plane], fine: list[Plane], variance: Plane, maps: Maps) -> Numbers:
    """Measure what changed: detail (`fine`, of both lumas), noise, brightness, colours."""
    power1, power2 = map(_power, fine)
    cross = float((fine[0] * fine[1]).mean())
    residual = two[0] - one[0]
    quick = residual - gaussian(residual)
    colour = np.sqrt((two[1] - one[1]) ** 2 + (two[2] - one[2]) ** 2)
    spread1, spread2 = float(one[0].std()), float(two[0].std())
    chroma1 = float(np.sqrt(one[1] ** 2 + one[2] ** 2).mean())
    chroma2 = float(np.sqrt(two[1] ** 2 + two[2] ** 2).mean())
    quiet = variance <= np.percentile(variance, 40)
    quiet_noise = float(np.log1p(np.sqrt((quick[quiet] ** 2).mean()))) if quiet.any() else 0.0
    maps["residual"], maps["shift"] = grid_of(np.abs(quick)), grid_of(residual)
    maps["colour"] = grid_of(colour)
    return {
        "detail_gain": float(np.log((power2 + 1.0) / (power1 + 1.0))),
        "detail_kept": 1.0 - (cross + 1.0) / (power1 + 1.0),
        "detail_added": float(np.log1p(max(power2 - cross**2 / (power1 + 1e-6), 0.0))),
        "residual_quiet": quiet_noise,
        "brightness_shift": float(residual.mean()) / 255,
        "contrast_change": float(np.log((spread2 + 2.0) / (spread1 + 2.0))),
        "colour_shift": float(np.log1p(colour.mean())),
        "colour_noise": float(np.log1p(np.std(two[2] - one[2] - gaussian(two[2] - one[2])))),
        "saturation_change": float(np.log((chroma2 + 2.0) / (chroma1 + 2.0))),
        "worst_part": float(np.log1p(np.percentile(np.abs(residual).ravel()[::3], 99))),
    }


_BLACK = np.zeros((16, 16, 3), np.uint8)
DIFFERENCE_NAMES: tuple[str, ...] = (*_compare(_BLACK, _BLACK)[0], *network.DISTANCES)
"""The order of every difference vector."""
