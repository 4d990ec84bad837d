"""Signs of the faults that photographers name: what clips, which way it smears, the light's colour.

What `features.measure` says of the whole picture is not enough to name a fault: a lamp is blown in
one place, a hand smears what it holds, noise sits in the shadows. Values are on 0..255 unless said
otherwise, finite on any image. Sources: Finlayson & Trezzi 2004 (shades of grey), van de Weijer et
al. 2007 (grey edge), Bigun & Granlund 1987 (structure tensor), Liu, Tanaka & Okutomi 2013 (noise
by level), He et al. 2009 (dark channel).
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from program.expert.measure.features import (
    BANDS,
    Maps,
    bend,
    block_means,
    darkest_near,
    finite,
    grid_of,
    grids_of,
    noise_by_brightness,
    percentiles,
    shrink,
    thirds,
)
from program.expert.measure.naturalness import Numbers, Plane, halve

_SIDE = 640
"""Longer sides are averaged down to this: every sign shows at the size of a screen."""
_LINEAR = (np.arange(256) / 255.0).astype(np.float32) ** np.float32(2.2)
_WHITE, _BLACK = 250, 12
_GREY = 1e-3
_LEAST_SIDE = 16


def signs(pixels: NDArray[np.uint8]) -> tuple[Numbers, Maps]:
    """Measure H x W x 3 uint8 sRGB pixels; maps (3 x 3) say where light is clipped, and so on."""
    shown = _shown(pixels)
    small = np.ascontiguousarray(np.moveaxis(shown[::2, ::2], 2, 0))
    luma = _structure(shown)
    half = halve(luma)
    quarter = halve(half)
    numbers: Numbers = {}
    maps: Maps = {}
    for part, part_maps in (_light(small), _smear(luma, half, quarter), _grain(luma, half, small)):
        numbers |= part
        maps |= part_maps
    numbers |= _cast(small[:, ::2, ::2]) | _colours(small[:, ::2, ::2]) | _halo(luma)
    for name, grid in maps.items():
        for place, value in enumerate(np.ravel(grid).tolist()):
            numbers[f"{name}_{place}"] = value
    return finite(numbers, maps)


def power_spread(pixels: NDArray[np.uint8]) -> float:
    """Measure one of the `signs` alone: how far the parts of an image differ in their gradients' log power."""
    return float(_power(_tensors(_structure(_shown(pixels)))).std())


def _shown(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    shown = shrink(pixels, _SIDE)
    missing = _LEAST_SIDE - min(shown.shape[:2])
    if missing > 0:
        shown = np.pad(shown, ((0, missing), (0, missing), (0, 0)), mode="edge")
    return shown


def _structure(shown: NDArray[np.uint8]) -> Plane:
    """Return what stands for luma where all that counts is structure: whole numbers halve the work."""
    return np.asarray(Image.fromarray(shown).convert("L"), dtype=np.float32)


def _frame(plane: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([plane[0], plane[-1], plane[:, 0], plane[:, -1]])


def _share(of: NDArray[np.bool_]) -> float:
    return np.count_nonzero(of) / of.size


def _light(planes: NDArray[np.uint8]) -> tuple[Numbers, Maps]:
    """Measure what is clipped, where, and how linear light is spread: in stops below white."""
    top, bottom = planes.max(axis=0), planes.min(axis=0)
    white, black = bottom >= _WHITE, top <= _BLACK
    red, green, blue = _LINEAR.take(planes)
    light = np.float32(0.2126) * red + np.float32(0.7152) * green + np.float32(0.0722) * blue
    stops = np.log2(light + 2.0**-10)
    blocks = block_means(white.astype(np.float32), 4) > 0.9
    labels, count = ndimage.label(blocks)
    sizes = np.bincount(labels.ravel(), minlength=2)[1:] / blocks.size
    at_edge = np.unique(_frame(labels))
    inner = float(sizes.sum() - sum(sizes[label - 1] for label in at_edge if label))
    shares = (1, 5, 25, 50, 75, 95, 99)
    points = percentiles(stops[::2, ::2], shares).tolist()
    level = top.astype(np.float32)  # whole numbers up to 255: exact to the variance of 16
    flat = np.sqrt(block_means(level * level, 4) - block_means(level, 4) ** 2)[~blocks]
    numbers = {
        "white": _share(white), "white_edge": _share(_frame(white)), "white_blocks": _share(blocks),
        "white_inner": inner, "white_largest": float(sizes.max()),
        "white_spots": float(np.log1p(count)), "clipped_any": _share(top >= 254),
        "near_white": _share(bottom >= 235), "black": _share(black),
        "near_black": _share(top <= 30), "dim": _share(top <= 60),
        "light_mean": float(np.log2(light.mean() + 2.0**-10)), "stops_mean": float(stops.mean()),
        **dict(zip([f"stops_{share}" for share in shares], points, strict=True)),
        "stops_range": points[5] - points[1],
        "top_texture": float(flat.mean()) if flat.size else 0.0,
        "veil": float(percentiles(bottom[::2, ::2].astype(float), 1)),
        "grey_levels": float(np.count_nonzero(Image.fromarray(bottom).histogram())) / 256,
        "paper": _share(top - bottom < 6), "black_edge": _share(_frame(top <= 20)),
        "same": _share((planes[:, :, 1:] == planes[:, :, :-1]).all(axis=0)),
    }  # fmt: skip
    return numbers, grids_of({
        "white_at": white, "near_white_at": bottom >= 235, "black_at": black, "dim_at": top <= 40, "stops_at": stops,
        "veil_at": darkest_near(bottom[::2, ::2]),
    })  # fmt: skip


def _tensors(plane: Plane) -> NDArray[np.float64]:
    """Return mean products of the gradient and faint noise: 10 x 2 x 2, of 3 x 3 parts and all."""
    height, width = plane.shape
    parts: list[list[float]] = []
    all_rows, columns = thirds(height - 2, width - 2)
    for rows in all_rows:  # one at a time, so that they stay in the processor's cache
        band = plane[rows.start : rows.stop + 2]
        dx, dy = band[1:-1, 2:] - band[1:-1, :-2], band[2:, 1:-1] - band[:-2, 1:-1]
        sums = np.array([(dx * dx).sum(axis=0), (dx * dy).sum(axis=0), (dy * dy).sum(axis=0)])
        parts += [(sums[:, part].mean(axis=1) / len(dx)).tolist() for part in columns]
    tensors = np.array(parts).round(5)[:, [[0, 1], [1, 2]]] + 2 * np.eye(2)
    return np.concatenate([tensors, tensors.mean(axis=0, keepdims=True)])


def _power(tensors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the gradient's log power in each of the 3 x 3 parts."""
    return np.asarray(np.log(tensors[:9, 0, 0] + tensors[:9, 1, 1]))


def _smear(*planes: Plane) -> tuple[Numbers, Maps]:
    """Compare luma, its half and quarter: motion takes structure along one direction."""
    tensors = np.stack(list(map(_tensors, planes)))
    # How much fine structure there is for coarse: along the worst and the best direction, as logs.
    through = np.linalg.eigvals(np.linalg.solve(tensors[[1, 2, 2]], tensors[[0, 1, 0]])).real
    kept = np.log(np.clip(np.sort(through, axis=-1), 1e-6, None))
    numbers: Numbers = {}
    for name, worst, best in zip(("fine", "coarse", "all"), kept[..., 0], kept[..., 1], strict=True):
        ordered, apart = np.sort(best[:9]), np.sort((best - worst)[:9])
        numbers |= {
            f"{name}_worst": worst[9], f"{name}_best": best[9], f"{name}_apart": best[9] - worst[9],
            f"{name}_apart_median": apart[4], f"{name}_apart_most": apart[8],
            f"{name}_best_most": ordered[8], f"{name}_best_median": ordered[4], f"{name}_worst_most": worst[:9].max(),
            f"{name}_centre": 0.5 * (worst[4] + best[4]),
        }  # fmt: skip
    maps = {
        "kept_at": kept[2, :9].mean(axis=1).round(5).reshape(3, 3).tolist(),
        "apart_at": (kept[2, :9, 1] - kept[2, :9, 0]).round(5).reshape(3, 3).tolist(),
    }
    (xx, xy), (_, yy) = tensors[0, :9].T
    power = _power(tensors[0])
    numbers |= {
        "one_direction": np.abs(np.exp(1j * np.arctan2(2 * xy, xx - yy)).mean()),
        "power_spread": power.std(), "power_centre": power[4] - power.mean(),
        "power_most": power.max(),
    }  # fmt: skip
    return numbers, maps


def _grain(luma: Plane, half: Plane, planes: NDArray[np.uint8]) -> tuple[Numbers, Maps]:
    """Measure noise in the quieter blocks of shadows, middle tones and lights, and in colour."""
    red, green, blue = planes.astype(np.float32)
    level, half_level = block_means(luma[1:-1, 1:-1], 8), block_means(half[1:-1, 1:-1], 8)
    numbers, spread = noise_by_brightness("grain", luma, level)
    for name, plane in (("grain2", half), ("grain_rg", red - green), ("grain_b", blue - green)):
        numbers |= noise_by_brightness(name, plane, half_level)[0]
    return numbers, {"grain_at": grid_of(np.log1p(spread), 30)}


def _cast(planes: NDArray[np.uint8]) -> Numbers:
    """Estimate the colour of the light four ways: logs of red and of blue over green."""
    linear = _LINEAR.take(np.moveaxis(planes, 0, 2))
    pixels = linear.reshape(-1, 3)
    lit = (_LINEAR.take(planes.max(axis=0)) < 0.97).ravel()
    inside = pixels.compress(lit, axis=0) if lit.sum() > 64 else pixels
    down, across = np.abs(np.diff(linear, axis=0)), np.abs(np.diff(linear, axis=1))
    edges = down[:, :-1] + across[:-1]
    light = inside[:, 0] + inside[:, 1] + inside[:, 2]
    bright = inside.compress(light >= percentiles(light, 95), axis=0)
    estimates = {
        "grey_world": _mean(inside), "shades": _minkowski(inside),
        "edge": _minkowski(edges.reshape(-1, 3)), "lights": _mean(bright),
    }  # fmt: skip
    numbers: Numbers = {}
    tones = {}
    for name, (red, green, blue) in estimates.items():
        tones[name] = np.log((np.array([red, blue]) + _GREY) / (green + _GREY))
        numbers[f"{name}_r"], numbers[f"{name}_b"] = tones[name].tolist()
    every = np.array(list(tones.values()))
    mean = every.mean(axis=0)
    along = every @ mean / (np.linalg.norm(mean) + 1e-6)
    edge = tones["edge"]
    shared = (tones["shades"] @ edge) / (np.linalg.norm(edge) + 1e-6)
    numbers |= {
        "cast_agreed": float(max(along.min(), 0.0)), "cast_mean": float(np.linalg.norm(mean)),
        "cast_apart": float(np.linalg.norm(every - mean, axis=1).mean()),
        "cast_two": float(max(shared, 0.0)),
        "cast_green": float(-0.5 * mean.sum()), "cast_warm": float(mean[0] - mean[1]),
    }  # fmt: skip
    level = planes[1].ravel()
    for band, (low, high) in BANDS.items():
        part = pixels.compress((level >= low) & (level < high), axis=0)
        tone = np.zeros(3)
        if len(part) > 32:
            tone = np.log((_mean(part) + _GREY) / (part[:, 1].mean() + _GREY))
        numbers |= {f"tone_{band}_r": float(tone[0]), f"tone_{band}_b": float(tone[2])}
    return numbers


def _mean(colours: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(np.einsum("ij->j", colours) / np.float32(len(colours)))


def _minkowski(colours: NDArray[np.float32]) -> NDArray[np.float32]:
    square = colours * colours
    return np.asarray(_mean(square * square * square) ** (1 / 6))


def _colours(planes: NDArray[np.uint8]) -> Numbers:
    """Measure how many pixels are how saturated, and whether one hue has them all."""
    red, green, blue = small = planes.astype(np.float32)
    top, bottom = small.max(axis=0), small.min(axis=0)
    chroma = top - bottom
    saturation = chroma / (top + 8)
    bright = top > 60
    strong = (saturation > 0.75) & (top > 90)
    # Times the hue's sine, and its cosine.
    across, along = np.float32(3**0.5) * (green - blue), 2 * red - green - blue
    weight = chroma / np.maximum(np.hypot(along, across), 1)
    median, high = percentiles(chroma, (50, 90))
    hue = np.hypot((weight * along).sum(), (weight * across).sum())
    return {
        "strong_colour": _share(strong),
        "strong_red": _share(strong & (np.abs(across) < math.tan(0.5) * along)),
        "channel_full": _share((top >= 254) & (bottom < 128)),
        "channel_none": _share((bottom <= 1) & (top > 90)),
        "chroma_mean": float(chroma.mean()) / 255, "chroma_90": high / 255, "chroma_50": median / 255,
        "saturation_bright": float(saturation[bright].mean()) if bright.any() else 0.0,
        "one_hue": float(hue / (chroma.sum() + 1)),
    }  # fmt: skip


def _halo(luma: Plane) -> Numbers:
    """Measure how far edges overshoot: the curvature beside the strongest slopes."""
    luma = luma[::2]  # along the rows every second one says as much
    slope = np.abs(luma[:, 2:] - luma[:, :-2])
    bent = np.abs(bend(luma, 1))
    strong = slope >= percentiles(slope[:, ::2], 95)
    steep, turned = slope[strong].mean(), bent[strong].mean()
    return {
        "bend": float(np.log((bent.mean() + 0.1) / (slope.mean() + 0.1))),
        "bend_strong": float(np.log((turned + 0.1) / (steep + 0.1))),
        "slope_strong": float(np.log1p(steep)),
        "bend_99": float(np.log1p(percentiles(bent[:, ::2], 99))),
    }  # fmt: skip


SIGN_NAMES = tuple(signs(np.zeros((16, 16, 3), np.uint8))[0])
"""The order of every vector of signs."""
