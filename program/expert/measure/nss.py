"""Natural-scene statistics: locally normalised images and the shape of their value distributions. Pure numpy/scipy."""

import numpy as np
from numpy.typing import NDArray
from scipy import special

__all__ = ("Plane", "aggd_of_products", "gaussian", "ggd_shape", "halve", "normalise")

Plane = NDArray[np.float32]
"""One image channel, H x W."""

_TAPS = np.exp(-0.5 * (np.arange(-3, 4) / (7 / 6)) ** 2)
_TAPS = (_TAPS / _TAPS.sum()).astype(np.float32)
"""The 7-tap Gaussian (sigma 7/6) of Mittal et al. 2012."""
_ROWS = 64
"""Blurred at a time, so that they stay in the processor's cache: three times as fast as whole large planes."""
_SHAPES = np.geomspace(0.2, 10.0, 600)
_RATIOS = np.exp(2 * special.gammaln(2 / _SHAPES) - special.gammaln(1 / _SHAPES) - special.gammaln(3 / _SHAPES))
"""(E|x|)^2 / E[x^2] of generalised Gaussians of these shapes."""


def gaussian(plane: Plane) -> Plane:
    """Blur with the separable 7-tap Gaussian of the statistics; the edge is repeated."""
    (height, width), reach = plane.shape, len(_TAPS) // 2
    padded, blurred = np.pad(plane, reach, mode="edge"), np.empty((height, width), np.float32)
    for top in range(0, height, _ROWS):
        across = blurred[top : top + _ROWS]
        rows = len(across)
        above = padded[top : top + rows + 2 * reach]
        down = above[reach : reach + rows] * _TAPS[reach]
        for at in range(reach):
            down += _TAPS[at] * (above[at : at + rows] + above[2 * reach - at : 2 * reach - at + rows])
        np.multiply(down[:, reach : reach + width], _TAPS[reach], out=across)
        for at in range(reach):
            across += _TAPS[at] * (down[:, at : at + width] + down[:, 2 * reach - at : 2 * reach - at + width])
    return blurred


def halve(plane: Plane) -> Plane:
    """Average 2 x 2 pixels; a side of one pixel stays."""
    height, width = plane.shape
    if height >= 2:
        plane = 0.5 * (plane[0 : height - 1 : 2] + plane[1:height:2])
    if width >= 2:
        plane = 0.5 * (plane[:, 0 : width - 1 : 2] + plane[:, 1:width:2])
    return np.asarray(plane, dtype=np.float32)


def normalise(plane: Plane) -> tuple[Plane, Plane, Plane]:
    """Return mean-subtracted, contrast-normalised values, the local deviation and the difference to the local mean.

    `(I - mu) / (sigma + 1)`, `sigma` and `I - mu` with a 7 x 7 Gaussian window, the last two on the 0..255 scale.
    Source: Mittal, Moorthy & Bovik 2012, eq. 1-3.
    """
    mean = gaussian(plane)
    # Differences to the local mean, not E[I^2] - E[I]^2: the latter cancels badly in float32.
    centred = plane - mean
    deviation = np.sqrt(np.maximum(gaussian(centred * centred), 0.0))
    return np.asarray(centred / (deviation + 1.0), dtype=np.float32), np.asarray(deviation, dtype=np.float32), centred


def ggd_shape(ratio: float) -> float:
    """Return the shape (0.2..10; 2 is Gaussian, 1 Laplacian) whose (E|x|)^2 / E[x^2] is `ratio`."""
    return float(np.interp(ratio, _RATIOS, _SHAPES))


def aggd_of_products(values: Plane) -> dict[str, float]:
    """Fit asymmetric generalised Gaussians to products of neighbours along four directions.

    Of each the mean ("eta"), shape, left and right deviation. Source: Mittal et al. 2012, eq. 7-11 (Lasmar et al.
    2009). A plane of zeros gives zeros and shape 10.
    """
    pairs = {
        "h": (values[:, :-1], values[:, 1:]),
        "v": (values[:-1], values[1:]),
        "d1": (values[:-1, :-1], values[1:, 1:]),
        "d2": (values[:-1, 1:], values[1:, :-1]),
    }
    return {
        f"{way}_{part}": value
        for way, (one, other) in pairs.items()
        for part, value in zip(("eta", "shape", "left", "right"), _aggd((one * other).ravel()), strict=True)
    }


def _aggd(product: Plane) -> list[float]:
    negative = np.minimum(product, 0.0)
    total, left_total = float(product @ product), float(negative @ negative)
    if not product.size or total < 1e-9:
        return [0.0, 10.0, 0.0, 0.0]
    left_count = max(int(np.count_nonzero(product < 0)), 1)
    right_count = max(product.size - left_count, 1)
    left = max(left_total / left_count, 1e-12) ** 0.5
    right = max((total - left_total) / right_count, 1e-12) ** 0.5
    absolute = (float(product.sum()) - 2 * float(negative.sum())) / product.size
    gamma = left / right
    ratio = absolute**2 / (total / product.size)
    corrected = ratio * (gamma**3 + 1) * (gamma + 1) / (gamma**2 + 1) ** 2
    shape = ggd_shape(corrected)
    spread = np.exp(special.gammaln(2 / shape) - 0.5 * (special.gammaln(1 / shape) + special.gammaln(3 / shape)))
    return [float((right - left) * spread), shape, left, right]
