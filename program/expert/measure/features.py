"""What the perceptual expert measures on one image: a fixed vector of named features and a coarse map.

Every value is finite on any image (grey, flat, a single pixel). Images whose longer side passes
`MAXIMUM_SIDE` are averaged down first, as a viewer would; compression blocks are measured before that.
Sources: Mittal et al. 2012 (BRISQUE), Ghadiyaram & Bovik 2017 (opponent statistics), Immerkaer 1996 (noise),
Crete et al. 2007 (blur by reblurring), Hasler & Suesstrunk 2003 (colourfulness), Wang et al. 2000 (blocking),
Field 1987 (spectrum slope), He et al. 2009 (dark channel).
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from program.expert.measure import measures
from program.expert.measure.blocking import blocking, blocking_map
from program.expert.measure.measurement import Measurement
from program.expert.measure.nss import Plane, aggd_of_products, ggd_shape, halve, normalise

__all__ = ("FEATURE_NAMES", "MAXIMUM_SIDE", "measure")

MAXIMUM_SIDE = 1024
"""Longer sides are scaled down to this many pixels: the quality models saw images of about 500."""


def measure(pixels: NDArray[np.uint8]) -> Measurement:
    """Measure H x W x 3 uint8 sRGB pixels; deterministic, touches nothing else."""
    native = _luma(pixels.astype(np.float32))
    named = blocking(native)
    viewed = _viewing_size(pixels)
    rgb = viewed.astype(np.float32)
    luma = native if viewed is pixels else _luma(rgb)
    half = halve(luma)
    scales = (luma, half, halve(half))
    found, deviations, fines = zip(
        *(_scene_statistics(plane, f"luma{i}", pairs=i < 3) for i, plane in enumerate(scales, 1)), strict=True
    )
    sharp, maps = measures.sharpness(luma, fines[0], [measures.gradient(plane) for plane in scales], deviations[0])
    for part in (*found, _colour_statistics(rgb), sharp):
        named |= part
    for part, part_maps in (measures.noise(luma, rgb), measures.exposure(luma), measures.colour(rgb)):
        named |= part
        maps |= part_maps
    named |= measures.spectrum(luma)
    maps["blocking"] = measures.grid_of(blocking_map(native))
    maps["contrast"] = measures.grid_of(deviations[1])
    return Measurement.of(named, maps)


def _luma(rgb: Plane) -> Plane:
    return np.asarray(rgb @ np.array([0.299, 0.587, 0.114], dtype=np.float32))


def _viewing_size(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    longer = max(pixels.shape[:2])
    if longer <= MAXIMUM_SIDE:
        return pixels
    height, width = (max(1, round(side * MAXIMUM_SIDE / longer)) for side in pixels.shape[:2])
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BOX))


def _scene_statistics(plane: Plane, name: str, *, pairs: bool) -> tuple[dict[str, float], Plane, Plane]:
    values, deviation, fine = normalise(plane)
    mean = float(deviation.mean())
    spread = {"deviation_log": float(np.log1p(mean)), "deviation_cv": float(deviation.std()) / (mean + 1.0)}
    named = _moments(values) | (aggd_of_products(values) if pairs else {}) | spread
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
        "shape": ggd_shape(absolute**2 / power),
        "power": power,
        "kurtosis": float(np.log1p(fourth / power**2)),
        "skewness": float(np.clip(third / power**1.5, -5, 5)),
    }


def _colour_statistics(rgb: Plane) -> dict[str, float]:
    """Statistics of opponent colours, linear and logarithmic (Ruderman et al. 1998), at half and quarter size."""
    red, green, blue = (rgb[:, :, c] for c in range(3))
    log_red, log_green, log_blue = (np.log1p(halve(c)) for c in (red, green, blue))
    planes = {
        "red_green": halve(red - green),
        "yellow_blue": halve(0.5 * (red + green) - blue),
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


FEATURE_NAMES = measure(np.zeros((16, 16, 3), np.uint8)).names
"""The order of every feature vector."""
