"""Statistics of natural scenes: how values beside each other are distributed once contrast is taken out."""

import numpy as np
from numpy.typing import NDArray
from scipy import special

Plane = NDArray[np.float32]
"""One image channel, H x W."""
Numbers = dict[str, float]

_TAPS = np.exp(-0.5 * (np.arange(-3, 4) / (7 / 6)) ** 2)
_TAPS = (_TAPS / _TAPS.sum()).astype(np.float32)
"""The 7-tap Gaussian (sigma 7/6) of Mittal et al. 2012."""
_PIXELS = 2**16
"""Blurred at a time, as whole rows, so that they stay in the processor's cache: three times as fast
as whole planes."""
_SHAPES = np.geomspace(0.2, 10.0, 600)
_RATIOS = np.exp(
    2 * special.gammaln(2 / _SHAPES) - special.gammaln(1 / _SHAPES) - special.gammaln(3 / _SHAPES)
)  # fmt: skip
"""(E|x|)^2 / E[x^2] of generalised Gaussians of these shapes."""


def scene_statistics(plane: Plane, name: str, *, pairs: bool) -> tuple[Numbers, Plane, Plane]:
    """Return a plane's statistics, with those of `pairs` of neighbours; its deviation and detail."""
    values, deviation, fine = normalise(plane)
    mean = deviation.mean(keepdims=True)
    numbers = _moments(values)
    if pairs:
        numbers |= aggd_of_products(values)
    numbers["deviation_log"] = float(np.log1p(float(mean[0, 0])))
    numbers["deviation_cv"] = float(deviation.std(mean=mean)) / (float(mean[0, 0]) + 1.0)
    return {f"{name}_{key}": value for key, value in numbers.items()}, deviation, fine


def colour_statistics(*channels: Plane) -> Numbers:
    """Return statistics of opponent colours (Ruderman et al. 1998), at half and quarter size."""
    red, green, blue = map(halve, channels)
    log_red, log_green, log_blue = np.log(1 + red), np.log(1 + green), np.log(1 + blue)
    planes = {
        "red_green": red - green,
        "yellow_blue": 0.5 * (red + green) - blue,
        "log_yellow_blue": 32 * (log_red + log_green - 2 * log_blue) / 6**0.5,
        "log_red_green": 32 * (log_red - log_green) / 2**0.5,
    }
    numbers: Numbers = {}
    for name, plane in planes.items():
        numbers |= scene_statistics(plane, f"{name}1", pairs=False)[0]
        if not name.startswith("log"):
            numbers |= scene_statistics(halve(plane), f"{name}2", pairs=False)[0]
        numbers[f"{name}_spread"] = float(np.log1p(plane.std()))
    return numbers


def normalise(plane: Plane) -> tuple[Plane, Plane, Plane]:
    """Return contrast-normalised values, the local deviation and the difference to the local mean.

    `(I - mu) / (sigma + 1)`, `sigma` and `I - mu` with a 7 x 7 Gaussian window, the last two on the
    0..255 scale. Source: Mittal, Moorthy & Bovik 2012, eq. 1-3.
    """
    mean = gaussian(plane)
    # Differences to the local mean, not E[I^2] - E[I]^2: the latter cancels badly in float32.
    centred = plane - mean
    deviation = np.sqrt(gaussian(centred * centred))
    values = deviation + 1
    np.divide(centred, values, out=values)
    return values, deviation, centred


def _moments(values: Plane) -> Numbers:
    flat = values.ravel()
    square = flat * flat
    power = float(flat @ flat) / flat.size
    if power < 1e-9:
        return {"shape": 10.0, "power": 0.0, "kurtosis": 0.0, "skewness": 0.0}
    fourth, third = float(square @ square) / flat.size, float(square @ flat) / flat.size
    absolute = float(np.abs(flat, out=square).mean())
    return {
        "shape": ggd_shape(absolute**2 / power),
        "power": power,
        "kurtosis": float(np.log1p(fourth / power**2)),
        "skewness": float(np.clip(third / power**1.5, -5, 5)),
    }


def ggd_shape(ratio: float) -> float:
    """Return the shape (0.2..10; 2 is Gaussian, 1 Laplacian) whose (E|x|)^2 / E[x^2] is `ratio`."""
    return float(np.interp(ratio, _RATIOS, _SHAPES))


def aggd_of_products(values: Plane) -> dict[str, float]:
    """Fit asymmetric generalised Gaussians to products of neighbours along four directions.

    Of each the mean ("eta"), shape, left and right deviation. Source: Mittal et al. 2012, eq. 7-11
    (Lasmar et al. 2009). A plane of zeros gives zeros and shape 10.
    """
    flat, (height, width) = values.ravel(), values.shape
    numbers: Numbers = {}
    for way, down, across in (("h", 0, 1), ("v", 1, 0), ("d1", 1, 1), ("d2", 1, -1)):
        apart = down * width + across
        # As one row, which is much faster; then the end of a row lies before the start of another.
        product = flat[: max(flat.size - apart, 0)] * flat[apart:]
        if across:
            product[0 if across < 0 else width - 1 :: width] = 0
        count = (height - down) * (width - abs(across))
        eta, shape, left, right = _aggd(product, count)
        numbers |= {
            f"{way}_eta": eta, f"{way}_shape": shape, f"{way}_left": left, f"{way}_right": right,
        }  # fmt: skip
    return numbers


def _aggd(product: Plane, count: int) -> list[float]:
    """Fit one to `count` products; any more are 0."""
    size = np.abs(product)
    total = float(product @ product)
    if not count or total < 1e-9:
        return [0.0, 10.0, 0.0, 0.0]
    absolute = float(size.sum()) / count
    twice_negative = np.subtract(product, size, out=size)
    left_total = float(twice_negative @ twice_negative) / 4
    left_count = max(int(np.count_nonzero(product < 0)), 1)
    right_count = max(count - left_count, 1)
    left = max(left_total / left_count, 1e-12) ** 0.5
    right = max((total - left_total) / right_count, 1e-12) ** 0.5
    gamma = left / right
    ratio = absolute**2 / (total / count)
    shape = ggd_shape(ratio * (gamma**3 + 1) * (gamma + 1) / (gamma**2 + 1) ** 2)
    sides = special.gammaln(1 / shape) + special.gammaln(3 / shape)
    spread = np.exp(special.gammaln(2 / shape) - 0.5 * sides)
    return [float((right - left) * spread), shape, left, right]


def gaussian(plane: Plane) -> Plane:
    """Blur with the separable 7-tap Gaussian of the statistics; the edge is repeated."""
    (height, width), reach = plane.shape, len(_TAPS) // 2
    padded, blurred = _padded(plane, reach), np.empty((height, width), np.float32)
    step = max(_PIXELS // width, 1)
    for top in range(0, height, step):
        across = blurred[top : top + step]
        rows = len(across)
        above = padded[top : top + rows + 2 * reach]
        down = above[reach : reach + rows] * _TAPS[reach]
        for at in range(reach):
            other = 2 * reach - at
            both = above[at : at + rows] + above[other : other + rows]
            both *= _TAPS[at]
            down += both
        np.multiply(down[:, reach : reach + width], _TAPS[reach], out=across)
        for at in range(reach):
            other = 2 * reach - at
            both = down[:, at : at + width] + down[:, other : other + width]
            both *= _TAPS[at]
            across += both
    return blurred


def _padded(plane: Plane, reach: int) -> Plane:
    """Return a plane whose edge is repeated, as np.pad does in thrice the time."""
    height, width = plane.shape
    padded = np.empty((height + 2 * reach, width + 2 * reach), plane.dtype)
    middle = padded[reach : reach + height]
    middle[:, reach : reach + width] = plane
    middle[:, :reach] = plane[:, :1]
    middle[:, reach + width :] = plane[:, -1:]
    padded[:reach] = middle[0]
    padded[reach + height :] = middle[-1]
    return padded


def halve(plane: Plane) -> Plane:
    """Average 2 x 2 pixels; a side of one pixel stays."""
    height, width = plane.shape
    if height >= 2:
        plane = 0.5 * (plane[0 : height - 1 : 2] + plane[1:height:2])
    if width >= 2:
        plane = 0.5 * (plane[:, 0 : width - 1 : 2] + plane[:, 1:width:2])
    return np.asarray(plane, dtype=np.float32)
