"""What a change of an image left behind: what got through at each size, the texture of the residual, texture energy.

Differences tell how much changed; these tell what kind of change it was, which decides how much people mind, and they
depend less on what is shown: a blur lets the same share of fine detail through in any photograph. All values are 0 for
identical images. Sources: transfer and coherence, Bendat & Piersol 2010, ch. 6 (here between images, by bands, over the
whole); signal gain and noise as in Sheikh & Bovik 2006; residual moments and neighbour products as in Mittal et al.
2012, applied to the residual; change of local texture energy after Ding et al. 2020 (variance terms, on luma).
"""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from program.expert.measure.nss import Plane, gaussian, halve

__all__ = ("local_variances", "residual", "slopes", "texture", "transfer")


def local_variances(one: Plane, two: Plane) -> tuple[Plane, Plane, Plane]:
    """Return the Gaussian-weighted variances of two H x W planes around every pixel, and their covariance."""
    centred_one, centred_two = one - gaussian(one), two - gaussian(two)
    return gaussian(centred_one**2), gaussian(centred_two**2), gaussian(centred_one * centred_two)


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
