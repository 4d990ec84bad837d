"""A CUDA device beside the processor: whether tools read the same there, and how long they take.

    python -m benchmarks.on_gpu PHOTOGRAPHS

Every tool that is ready runs on both (photographs, and each blurred or noisy beside its original); a line of JSON each.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps

from program.common.settings import load_settings
from program.tools.loading import evaluate
from program.tools.registry import parameter_path
from program.tools.runner import ToolRunner

SIDE = 512


def pairs(photographs: list[Path]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return each photograph blurred or noisy, with its original."""
    made, rng = [], np.random.default_rng(0)
    for place, path in enumerate(photographs):
        with Image.open(path) as image:
            original = ImageOps.fit(image.convert("RGB"), (SIDE, SIDE))
        pixels = np.asarray(original)
        noisy = (pixels + rng.normal(0, 12, pixels.shape)).clip(0, 255).astype(np.uint8)
        made.append((np.asarray(original.filter(ImageFilter.GaussianBlur(2))) if place % 2 else noisy, pixels))
    return made


def timed(work: Any) -> tuple[Any, float]:
    """Return what the work returns and the seconds it takes, a device's queue included."""
    began = time.perf_counter()
    value = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return value, time.perf_counter() - began


def readings(photographs: list[Path]) -> None:
    """Print, for each tool, the largest relative difference between both devices and the median time on each."""
    base = load_settings()
    runner, made = ToolRunner(base), pairs(photographs[:4])
    for spec in (*runner.ready("NR", expensive=True), *runner.ready("FR", expensive=True)):
        seen: dict[str, list[tuple[float, float]]] = {}
        for device in ("cpu", "cuda"):
            tools = base.tools.model_copy(update={"device": device})
            for image, original in made[:1] + made:  # the first one loads
                reference = None if spec.mode == "NR" else original
                call = (spec, parameter_path(spec, tools.params_dir), tools, image, reference)
                seen.setdefault(device, []).append(timed(lambda call=call: evaluate(*call)))
        values = np.array([[value for value, _ in seen[device][1:]] for device in ("cpu", "cuda")])
        apart = np.abs(values[1] - values[0]).max() / np.abs(values[0]).max()
        ms = {device: round(1000 * median(s for _, s in found[1:]), 1) for device, found in seen.items()}
        print(json.dumps({"tool": spec.name, "apart": float(f"{apart:.1e}"), "ms": ms}), flush=True)


def main() -> None:
    """Compare both devices."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    readings(sorted(path for path in folder.rglob("*") if path.suffix in {".jpg", ".png"}))


if __name__ == "__main__":
    main()
