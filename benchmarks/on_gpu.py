"""A CUDA device beside the processor: whether tools read the same there, and how long they take.

    python -m benchmarks.on_gpu {readings,network} PHOTOGRAPHS

`readings` runs every tool that is ready and the embedded expert's network on both (photographs, and each blurred or
noisy beside its original). `network` times the network by how many images of 512 x 512 pixels it takes at a time.
Each prints lines of JSON.
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
from program.tools import network
from program.tools.models import evaluate, tensor_of
from program.tools.readiness import parameter_path
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


def forget() -> None:
    """Forget what the network read."""
    network.spreads.cache.clear()
    network._differences.cache.clear()


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
                forget()
                seen.setdefault(device, []).append(timed(lambda call=call: evaluate(*call)))
        values = np.array([[value for value, _ in seen[device][1:]] for device in ("cpu", "cuda")])
        apart = np.abs(values[1] - values[0]).max() / np.abs(values[0]).max()
        ms = {device: round(1000 * median(s for _, s in found[1:]), 1) for device, found in seen.items()}
        print(json.dumps({"tool": spec.name, "apart": float(f"{apart:.1e}"), "ms": ms}), flush=True)
    for name, function in (("spreads", network.spreads), ("distances", network.distances)):
        chosen = [pair[: 1 if name == "spreads" else 2] for pair in made]
        both = [
            np.array([forget() or function(*(tensor_of(pixels, device) for pixels in images)) for images in chosen])
            for device in ("cpu", "cuda")
        ]
        apart = np.abs(both[1] - both[0]).max()
        print(json.dumps({"network": name, "apart": float(f"{apart:.1e}"), "largest": float(f"{both[0].max():.3g}")}))


def timings(photographs: list[Path]) -> None:
    """Print the time of an image in the network by how many are taken at a time."""
    image = pairs(photographs[:1])[0][0]
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False
    for device, most in (("cpu", 1), ("cuda", 32)):
        at_once = 1
        while at_once <= most:
            batch = tensor_of(image, device).repeat(at_once, 1, 1, 1)

            def run(batch: torch.Tensor = batch) -> None:
                with torch.inference_mode():
                    for filters, _, _ in network._blocks(batch):
                        network._deviations(filters)

            seconds = [timed(run)[1] for _ in range(20)][5:]
            ms = round(1000 * median(seconds) / at_once, 2)
            print(json.dumps({"device": device, "at_once": at_once, "ms_an_image": ms}), flush=True)
            at_once *= 2


def main() -> None:
    """Run one step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("readings", "network"))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    photographs = sorted(path for path in given.folder.rglob("*") if path.suffix in {".jpg", ".png"})
    {"readings": readings, "network": timings}[given.step](photographs)


if __name__ == "__main__":
    main()
