"""Pictures for tests, their bytes in a file, and what measures them."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from program.common.settings import load_settings
from program.tools.runner import ToolRunner

Pixels = NDArray[np.uint8]


def noise(rng: np.random.Generator, height: int, width: int) -> Pixels:
    """Return an H x W x 3 picture in which no pixel says anything of the next."""
    return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)


def blocks(rng: np.random.Generator, rows: int, columns: int, side: int) -> Pixels:
    """Return a picture of squares of one colour each: sharp edges, no noise, a small file."""
    return np.kron(rng.integers(0, 256, (rows, columns, 3)), np.ones((side, side, 1))).astype(np.uint8)


def noisy(pixels: Pixels, sigma: float, *, seed: int = 3) -> Pixels:
    """Return a picture with Gaussian noise of this deviation."""
    added = pixels + np.random.default_rng(seed).normal(0, sigma, pixels.shape)
    return np.asarray(np.clip(added, 0, 255), dtype=np.uint8)


def blurred(pixels: Pixels, sigma: float) -> Pixels:
    """Return a picture blurred by a Gaussian of this deviation in pixels."""
    return np.asarray(ndimage.gaussian_filter(pixels, (sigma, sigma, 0)))


def file_of(picture: Pixels | Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Return what a file of a picture holds."""
    buffer = io.BytesIO()
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def as_jpeg(pixels: Pixels, quality: int) -> Pixels:
    """Return what a JPEG of this quality shows of a picture."""
    return np.array(Image.open(io.BytesIO(file_of(pixels, "JPEG", quality=quality))).convert("RGB"))


def tool_runner(folder: Path | None = None, **tools: Any) -> ToolRunner:
    """Return what runs tools on the CPU, and keeps readings in a folder or nowhere.

    `tools` are settings of tools, also those that are refused by a file of settings: limits for small pictures.
    """
    settings = load_settings(overrides={"cache": folder is not None})
    changed = settings.tools.model_copy(update={"device": "cpu", **tools})
    return ToolRunner(settings.model_copy(update={"tools": changed, "cache_dir": folder}))
