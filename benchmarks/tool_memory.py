"""Memory of a process that measures many images with one runner: `python -m benchmarks.tool_memory [IMAGES]`.

Generated 384 x 384 images, each of its own content, measured by PSNR, GMSD and PIQE against one reference without a
readings cache. Prints the resident memory along the way: it rises while the bounded caches of decoded pixels and
tensors fill (128 MB each), and must then stay. Exit code 1 when the last fifth adds more than 20 MB.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from program.common.settings import load_settings
from program.images.store import IMAGES
from program.tools.runner import ToolRunner

TOOLS = ("PSNR", "GMSD", "PIQE")
GROWTH_MB = 20


def resident_mb() -> float:
    """Return the process's resident memory (Linux)."""
    line = next(s for s in Path("/proc/self/status").read_text("utf-8").splitlines() if s.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def main() -> int:
    """Run the benchmark and return its exit code."""
    images = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    rng = np.random.default_rng(0)
    runner = ToolRunner(load_settings(overrides={"cache": False, "tools": {"device": "cpu"}}))
    base = rng.integers(40, 200, (384, 384, 3), dtype=np.uint8)
    reference = IMAGES.add(base)
    seen = []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(images):
            path = Path(folder, f"{i}.png")
            Image.fromarray(base + rng.integers(0, 40, base.shape, dtype=np.uint8)).save(path, compress_level=1)
            image = IMAGES.add(path)
            for tool in TOOLS:
                if (error := runner.measure(tool, image, reference).error) is not None:
                    raise SystemExit(error)
            path.unlink()
            if (i + 1) % (images // 5) == 0:
                seen.append(resident_mb())
                print(f"{i + 1} images: {seen[-1]:.0f} MB", flush=True)
    return 0 if seen[-1] - seen[-2] <= GROWTH_MB else 1


if __name__ == "__main__":
    raise SystemExit(main())
