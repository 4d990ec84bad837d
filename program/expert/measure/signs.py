"""Signs of the faults that photographers name, of one image alone: what clips, which way it smears, the light's colour.

What `features.measure` says of the whole picture is not enough to name a fault: a lamp is blown in one place, a hand
smears what it holds, noise sits in the shadows. Values are on 0..255 unless said otherwise, finite on any image.
Sources: Finlayson & Trezzi 2004 (shades of grey), van de Weijer et al. 2007 (grey edge), Bigun & Granlund 1987
(structure tensor), Liu, Tanaka & Okutomi 2013 (noise by level), He et al. 2009 (dark channel).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from program.expert.measure.measures import Measurement, Plane, blocks_of, grid_of, halve

_SIDE = 640
"""Longer sides are averaged down to this: every sign here shows at the size of a screen, and it bounds the cost."""
_LINEAR = (np.arange(256) / 255.0).astype(np.float32) ** np.float32(2.2)
_WHITE, _BLACK = 250, 12
_BANDS = ((10, 60), (60, 140), (140, 245))
"""Brightness of shadows, middle tones and lights."""
_GREY = 1e-3


def signs(pixels: NDArray[np.uint8]) -> Measurement:
    """Measure H x W x 3 uint8 sRGB pixels; its maps (3 x 3) say where light is clipped, detail lost, and so on."""
    shown = _shown(pixels)
    small = np.ascontiguousarray(shown[::2, ::2])
    # One channel stands for luma where all that counts is structure: whole numbers halve the work.
    luma = np.asarray(Image.fromarray(shown).convert("L"), dtype=np.float32)
    half = halve(luma)
    quarter = halve(half)
    named: dict[str, float] = {}
    maps: dict[str, list[list[float]]] = {}
    for part, part_maps in (_light(small), _smear(luma, half, quarter), _grain(luma, half, small)):
        named |= part
        maps |= part_maps
    named |= _cast(small) | _colours(small) | _halo(luma)
    for name, grid in maps.items():
        named |= {f"{name}_{place}": value for place, value in enumerate(v for row in grid for v in row)}
    return Measurement.of(named, maps)


def _shown(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    height, width = pixels.shape[:2]
    if max(height, width) > _SIDE:
        size = max(1, round(width * _SIDE / max(height, width))), max(1, round(height * _SIDE / max(height, width)))
        pixels = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BOX))
    least = max(16 - min(pixels.shape[:2]), 0)
    return np.pad(pixels, ((0, least), (0, least), (0, 0)), mode="edge") if least else pixels


def _range(rgb: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    red, green, blue = rgb[..., 0], rgb[..., 1], rgb[..., 2]
    return np.maximum(np.maximum(red, green), blue), np.minimum(np.minimum(red, green), blue)


def _frame(plane: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([plane[0], plane[-1], plane[:, 0], plane[:, -1]])


def _framed(plane: NDArray[np.bool_]) -> float:
    return float(_frame(plane).mean())


def _light(rgb: NDArray[np.uint8]) -> tuple[dict[str, float], dict[str, list[list[float]]]]:
    """Measure what is clipped, where, and how linear light is spread: in logarithms to base 2, of white."""
    top, bottom = _range(rgb)
    white, black = bottom >= _WHITE, top <= _BLACK
    red, green, blue = (_LINEAR[rgb[..., c]] for c in range(3))
    light = np.float32(0.2126) * red + np.float32(0.7152) * green + np.float32(0.0722) * blue
    stops = np.log2(light + 2.0**-10)
    blocks = blocks_of(white.astype(np.float32), 4).mean(axis=2) > 0.9
    labels, count = ndimage.label(blocks)
    sizes = np.bincount(labels.ravel(), minlength=2)[1:] / blocks.size
    at_edge = np.unique(_frame(labels))
    inner = float(sizes.sum() - sum(sizes[k - 1] for k in at_edge if k))
    points = np.percentile(stops[::2, ::2], (1, 5, 25, 50, 75, 95, 99)).tolist()
    flat = float(blocks_of(top.astype(np.float32), 4).std(axis=2)[~blocks].mean()) if not blocks.all() else 0.0
    named = {
        "white": float(white.mean()), "white_edge": _framed(white), "white_blocks": float(blocks.mean()),
        "white_inner": inner, "white_largest": float(sizes.max()), "white_spots": float(np.log1p(count)),
        "clipped_any": float((top >= 254).mean()), "near_white": float((bottom >= 235).mean()),
        "black": float(black.mean()), "near_black": float((top <= 30).mean()), "dim": float((top <= 60).mean()),
        "light_mean": float(np.log2(light.mean() + 2.0**-10)), "stops_mean": float(stops.mean()),
        **{f"stops_{at}": value for at, value in zip((1, 5, 25, 50, 75, 95, 99), points, strict=True)},
        "stops_range": points[5] - points[1], "top_texture": flat, "veil": float(np.percentile(bottom[::2, ::2], 1)),
        "grey_levels": float((np.bincount(bottom.ravel(), minlength=256) > 0).mean()),
        "paper": float((top - bottom < 6).mean()), "black_edge": _framed(top <= 20),
        "same": float((rgb[:, 1:] == rgb[:, :-1]).all(axis=2).mean()),
    }  # fmt: skip
    grids = {"white_at": white, "near_white_at": bottom >= 235, "black_at": black, "dim_at": top <= 40}
    maps = {name: grid_of(np.asarray(plane, np.float32)) for name, plane in grids.items()}
    return named, maps | {"stops_at": grid_of(stops), "veil_at": grid_of(ndimage.minimum_filter(bottom[::2, ::2], 5))}


def _products(plane: Plane) -> list[Plane]:
    dx = plane[1:-1, 2:] - plane[1:-1, :-2]
    dy = plane[2:, 1:-1] - plane[:-2, 1:-1]
    return [dx * dx, dx * dy, dy * dy]


def _tensors(plane: Plane) -> NDArray[np.float64]:
    """Return the 3 x 3 x 2 x 2 sums of products of the gradient, plus that of faint noise."""
    xx, xy, yy = (np.array(grid_of(p)) for p in _products(plane))
    return np.stack([np.stack([xx + 2, xy], axis=-1), np.stack([xy, yy + 2], axis=-1)], axis=-1)


def _kept(fine: NDArray[np.float64], coarse: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how much fine structure there is for coarse structure: along the worst and the best direction, as logs."""
    values = np.linalg.eigvals(np.linalg.solve(coarse, fine)).real
    return np.asarray(np.log(np.clip(np.sort(values, axis=-1), 1e-6, None)))


def _smear(luma: Plane, half: Plane, quarter: Plane) -> tuple[dict[str, float], dict[str, list[list[float]]]]:
    """Compare structure over sizes by direction: motion takes it along one, defocus along all."""
    fine, middle, coarse = (_tensors(plane) for plane in (luma, half, quarter))
    named: dict[str, float] = {}
    maps: dict[str, list[list[float]]] = {}
    for name, one, other in (("fine", fine, middle), ("coarse", middle, coarse), ("all", fine, coarse)):
        kept = _kept(one, other)
        whole = _kept(one.mean(axis=(0, 1)), other.mean(axis=(0, 1)))
        apart = kept[..., 1] - kept[..., 0]
        named |= {
            f"{name}_worst": whole[0], f"{name}_best": whole[1], f"{name}_apart": whole[1] - whole[0],
            f"{name}_apart_median": float(np.median(apart)), f"{name}_apart_most": float(apart.max()),
            f"{name}_best_most": float(kept[..., 1].max()), f"{name}_best_median": float(np.median(kept[..., 1])),
            f"{name}_worst_most": float(kept[..., 0].max()), f"{name}_centre": float(kept[1, 1].mean()),
        }  # fmt: skip
        if name == "all":
            maps = {"kept_at": kept.mean(axis=-1).round(5).tolist(), "apart_at": apart.round(5).tolist()}
    turn = 0.5 * np.arctan2(2 * fine[..., 0, 1], fine[..., 0, 0] - fine[..., 1, 1])
    power = np.log(fine[..., 0, 0] + fine[..., 1, 1])
    named |= {
        "one_direction": float(np.abs(np.exp(2j * turn).mean())), "power_spread": float(power.std()),
        "power_centre": float(power[1, 1] - power.mean()), "power_most": float(power.max()),
    }  # fmt: skip
    return named, maps


def _fine(plane: Plane) -> Plane:
    rows = plane[:-2] - 2 * plane[1:-1] + plane[2:]
    return np.asarray((rows[:, :-2] - 2 * rows[:, 1:-1] + rows[:, 2:]) / 6.0)


def _grain(luma: Plane, half: Plane, rgb: NDArray[np.uint8]) -> tuple[dict[str, float], dict[str, list[list[float]]]]:
    """Measure noise in the quieter blocks of shadows, middle tones and lights, at two sizes and in colour."""
    named: dict[str, float] = {}
    small = rgb.astype(np.float32)
    red_green, blue = small[..., 0] - small[..., 1], small[..., 2] - small[..., 1]
    planes = (("grain", luma, luma), ("grain2", half, half), ("grain_rg", red_green, half), ("grain_b", blue, half))
    grid: list[list[float]] = []
    for name, plane, light in planes:
        spread = np.sqrt((blocks_of(_fine(plane), 8) ** 2).mean(axis=2))
        level = blocks_of(light[1:-1, 1:-1], 8).mean(axis=2)[: spread.shape[0], : spread.shape[1]]
        spread = spread[: level.shape[0], : level.shape[1]]
        usual = float(np.percentile(spread, 25))
        for band, (low, high) in zip(("dark", "middle", "bright"), _BANDS, strict=True):
            inside = spread[(level >= low) & (level < high)]
            named[f"{name}_{band}"] = float(np.log1p(np.percentile(inside, 25) if inside.size > 8 else usual))
        named[f"{name}_least"] = float(np.log1p(np.percentile(spread, 5)))
        grid = grid or grid_of(np.log1p(spread), lambda part: np.percentile(part, 30))
    return named, {"grain_at": grid}


def _cast(rgb: NDArray[np.uint8]) -> dict[str, float]:
    """Estimate the colour of the light four ways (log of red and of blue over green), and what they agree on."""
    linear = _LINEAR[rgb[::2, ::2]]
    lit = linear.max(axis=2) < 0.97
    inside = linear[lit] if lit.sum() > 64 else linear.reshape(-1, 3)
    edges = np.abs(np.diff(linear, axis=0))[:, :-1] + np.abs(np.diff(linear, axis=1))[:-1]
    bright = inside[inside.sum(axis=1) >= np.percentile(inside.sum(axis=1), 95)]
    estimates = {
        "grey_world": inside.mean(axis=0), "shades": _minkowski(inside), "edge": _minkowski(edges.reshape(-1, 3)),
        "lights": bright.mean(axis=0),
    }  # fmt: skip
    tones = {name: np.log((e[[0, 2]] + _GREY) / (e[1] + _GREY)) for name, e in estimates.items()}
    named = {f"{name}_{c}": float(v) for name, tone in tones.items() for c, v in zip("rb", tone, strict=True)}
    every = np.array(list(tones.values()))
    mean = every.mean(axis=0)
    along = every @ mean / (np.linalg.norm(mean) + 1e-6)
    named |= {
        "cast_agreed": float(max(along.min(), 0.0)), "cast_mean": float(np.linalg.norm(mean)),
        "cast_apart": float(np.linalg.norm(every - mean, axis=1).mean()),
        "cast_two": float(max((tones["shades"] @ tones["edge"]) / (np.linalg.norm(tones["edge"]) + 1e-6), 0.0)),
        "cast_green": float(-0.5 * mean.sum()), "cast_warm": float(mean[0] - mean[1]),
    }  # fmt: skip
    level = rgb[::2, ::2, 1]
    for band, (low, high) in zip(("dark", "middle", "bright"), _BANDS, strict=True):
        part = linear[(level >= low) & (level < high)]
        tone = np.log((part.mean(axis=0) + _GREY) / (part[:, 1].mean() + _GREY)) if len(part) > 32 else np.zeros(3)
        named |= {f"tone_{band}_r": float(tone[0]), f"tone_{band}_b": float(tone[2])}
    return named


def _minkowski(values: NDArray[np.float32]) -> NDArray[np.float32]:
    square = values * values
    return np.asarray((square * square * square).mean(axis=0) ** (1 / 6))


def _colours(rgb: NDArray[np.uint8]) -> dict[str, float]:
    """Measure how many pixels are how saturated, and whether one hue has them all."""
    small = rgb[::2, ::2].astype(np.float32)
    top, bottom = _range(small)
    chroma = top - bottom
    saturation = chroma / (top + 8)
    bright = top > 60
    strong = (saturation > 0.75) & (top > 90)
    hue = np.arctan2(3**0.5 * (small[..., 1] - small[..., 2]), 2 * small[..., 0] - small[..., 1] - small[..., 2])
    weight = chroma.sum() + 1.0
    return {
        "strong_colour": float(strong.mean()), "strong_red": float((strong & (np.abs(hue) < 0.5)).mean()),
        "channel_full": float(((top >= 254) & (bottom < 128)).mean()),
        "channel_none": float(((bottom <= 1) & (top > 90)).mean()),
        "chroma_mean": float(chroma.mean()) / 255, "chroma_90": float(np.percentile(chroma, 90)) / 255,
        "chroma_50": float(np.median(chroma)) / 255,
        "saturation_bright": float(saturation[bright].mean()) if bright.any() else 0.0,
        "one_hue": float(np.abs((chroma * np.exp(1j * hue)).sum()) / weight),
    }  # fmt: skip


def _halo(luma: Plane) -> dict[str, float]:
    """Measure how far edges overshoot: the curvature beside the strongest slopes, and how often it turns."""
    luma = luma[::2]  # along the rows every second one says as much
    slope = np.abs(luma[:, 2:] - luma[:, :-2])
    bend = np.abs(2 * luma[:, 1:-1] - luma[:, 2:] - luma[:, :-2])
    strong = slope >= np.percentile(slope[:, ::2], 95)
    return {
        "bend": float(np.log((bend.mean() + 0.1) / (slope.mean() + 0.1))),
        "bend_strong": float(np.log((bend[strong].mean() + 0.1) / (slope[strong].mean() + 0.1))),
        "slope_strong": float(np.log1p(slope[strong].mean())),
        "bend_99": float(np.log1p(np.percentile(bend[:, ::2], 99))),
    }  # fmt: skip


SIGN_NAMES = signs(np.zeros((16, 16, 3), np.uint8)).names
"""The order of every vector of signs."""
