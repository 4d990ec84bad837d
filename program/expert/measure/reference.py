"""What differs between an image and its reference: a fixed vector of named full-reference differences.

Both are H x W x 3 uint8; a reference of another size is resampled to the image's. Every value is 0 for identical
images. Sources: Wang et al. 2004 (structure), Zhang & Li 2014 (gradient and chroma similarity, opponent weights).
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from program.expert.measure.blocking import blocking
from program.expert.measure.measurement import Maps, Measurement
from program.expert.measure.measures import grid_of
from program.expert.measure.nss import Plane, gaussian, halve
from program.expert.measure.traces import local_variances, residual, slopes, texture, transfer
from program.tools import network

__all__ = ("DIFFERENCE_NAMES", "compare", "resampled")


def compare(pixels: NDArray[np.uint8], reference: NDArray[np.uint8]) -> Measurement:
    """Measure how H x W x 3 uint8 pixels differ from their reference; deterministic."""
    reference = resampled(reference, pixels)
    named, maps = _compare(pixels, reference)
    apart = network.distances(pixels, reference)
    return Measurement.of(named | dict(zip(network.DISTANCES, apart, strict=True)), maps)


def resampled(reference: NDArray[np.uint8], pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
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
        "blocking_rise": blocking(two[0])["blocking"] - blocking(one[0])["blocking"],
        "changed": 1 - float(same.all(axis=2).mean()), "changed_channels": 1 - float(same.mean()),
    } | transfer(one, two, 0)  # fmt: skip
    maps: Maps = {}
    for scale in (1, 2, 3):
        one, two = [halve(c) for c in one], [halve(c) for c in two]
        named |= transfer(one, two, scale)
        if scale == 1:
            (var1, var2, joint), edges = local_variances(one[0], two[0]), slopes(one[0])
            maps["difference"] = grid_of(_loss(one, two, edges))
            named |= _nature(one, two, maps) | residual(one[0], two[0], edges) | texture(var1, var2)
            named |= _tones(one[0], two[0])
            named["structure_loss1"] = float(1 - ((2 * joint + 58.5) / (var1 + var2 + 58.5)).mean())
    return named, maps


def _channels(pixels: NDArray[np.uint8]) -> list[Plane]:
    """Return luma and two opponent colours (Gaussian colour model), 0..255 scale."""
    rgb = pixels.astype(np.float32)
    weights = np.array([[0.299, 0.587, 0.114], [0.30, 0.04, -0.35], [0.34, -0.60, 0.17]], dtype=np.float32)
    planes = rgb @ weights.T
    return [np.ascontiguousarray(planes[:, :, i]) for i in range(3)]


def _loss(one: list[Plane], two: list[Plane], edges: Plane) -> Plane:
    """Return the map of gradients and colours that were lost or added; `edges` are the slopes of `one`."""
    other = slopes(two[0])
    similar = (2 * edges * other + 170.0) / (edges**2 + other**2 + 170.0)
    chroma = (2 * (one[1] * two[1] + one[2] * two[2]) + 550.0) / (
        one[1] ** 2 + two[1] ** 2 + one[2] ** 2 + two[2] ** 2 + 550.0
    )
    return np.asarray(1 - (0.6 * similar + 0.4 * chroma))


def _tones(one: Plane, two: Plane) -> dict[str, float]:
    """Say how far each eighth of the range of luma moved, of 255: contrast bends this curve, exposure shifts it.

    An eighth that few pixels of `one` lie in counts as unmoved.
    """
    eighth = np.clip(one / 32, 0, 7).astype(np.intp).ravel()
    count = np.bincount(eighth, minlength=8) + 0.002 * one.size
    moved = np.bincount(eighth, weights=(two - one).ravel(), minlength=8) / count / 255
    return {f"tone{number}": float(value) for number, value in enumerate(moved, 1)}


def _nature(one: list[Plane], two: list[Plane], maps: Maps) -> dict[str, float]:
    """Say what kind of change it is: detail lost or gained, noise added, brightness, contrast, colour moved."""
    fine1, fine2 = one[0] - gaussian(one[0]), two[0] - gaussian(two[0])
    power1, power2 = float((fine1**2).mean()), float((fine2**2).mean())
    cross = float((fine1 * fine2).mean())
    residual = two[0] - one[0]
    quick = residual - gaussian(residual)
    colour = np.sqrt((two[1] - one[1]) ** 2 + (two[2] - one[2]) ** 2)
    spread1, spread2 = float(one[0].std()), float(two[0].std())
    chroma1 = float(np.sqrt(one[1] ** 2 + one[2] ** 2).mean())
    chroma2 = float(np.sqrt(two[1] ** 2 + two[2] ** 2).mean())
    quiet = gaussian(fine1**2) <= np.percentile(gaussian(fine1**2), 40)
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
