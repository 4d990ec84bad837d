"""Peak memory of assessing a very large image end to end: `python -m benchmarks.large_image [MEGAPIXELS]`.

Each case is a process of its own: `AgenticIQA()(image=...)` with the embedded expert and nothing cached, on a generated
photograph-like image of the given size as PNG, JPEG and RGBA PNG, and on a JPEG with its reference. Peak memory is
that of the whole process (`ru_maxrss`), beside one that assesses a 512 x 512 image. Every ready tool is then run on the
PNG in one process, expensive ones too.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

_ASSESS = """
import json, resource, sys, time
from pathlib import Path
started = time.perf_counter()
from program.agent.loop import AgenticIQA
result = AgenticIQA()(image=Path(sys.argv[1]), reference=Path(sys.argv[2]) if len(sys.argv) > 2 else None)
logs = result.state.executor_evidence.tool_logs
print(json.dumps({"score": result.quality_score, "status": result.status, "seconds": time.perf_counter() - started,
    "notes": [*result.state.image_notes, *(f"{log.tool}: {log.note or log.error}" for log in logs)],
    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""
_TOOLS = """
import json, resource, sys, time
from pathlib import Path
from program.images.store import IMAGES
from program.common.settings import load_settings
from program.tools.runner import ToolRunner
runner = ToolRunner(load_settings(overrides={"cache": False, "tools": {"timeout_s": 600}}))
image, reference = (IMAGES.add(Path(path)) for path in sys.argv[1:3])
for mode in ("FR", "NR"):
    for spec in runner.ready(mode, expensive=True):
        found = runner.measure(spec.name, image, reference)
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        said = found.error or found.note
        print(json.dumps({"tool": spec.name, "seconds": found.seconds, "said": said, "peak_mb": peak_mb}), flush=True)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_image", description=str(__doc__).split("\n")[0])
    parser.add_argument("megapixels", nargs="?", type=float, default=100.0, metavar="MEGAPIXELS")
    parser.add_argument("--all-tools", action="store_true", help="also run every ready tool (minutes)")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        files = _generate(Path(folder), arguments.megapixels)
        environment = {**os.environ, "AGENTICIQA_CACHE_DIR": str(Path(folder, "cache"))}
        for case, paths in {
            "512 x 512": ["small.png"], "PNG": ["large.png"], "JPEG": ["large.jpg"], "RGBA PNG": ["alpha.png"],
            "JPEG and reference": ["large.jpg", "large.png"],
        }.items():  # fmt: skip
            found = json.loads(_run(_ASSESS, [files[name] for name in paths], environment))
            print(
                f"{case}: peak {found['peak_mb']:.0f} MB, {found['seconds']:.1f} s, {found['status']}, "
                f"score {found['score']:.2f}; {'; '.join(found['notes'])}",
                flush=True,
            )
        if arguments.all_tools:
            for line in _run(_TOOLS, [files["large.jpg"], files["large.png"]], environment).splitlines():
                found = json.loads(line)
                print(f"{found['tool']}: peak {found['peak_mb']:.0f} MB, {found['seconds']:.1f} s; {found['said']}")
    return 0


def _generate(folder: Path, megapixels: float) -> dict[str, Path]:
    """Write the images, in a process of its own whose memory does not count."""
    code = """
import sys
import numpy as np
from pathlib import Path
from PIL import Image
Image.MAX_IMAGE_PIXELS = None
folder, side = Path(sys.argv[1]), int((float(sys.argv[2]) * 1e6) ** 0.5)
rng = np.random.default_rng(0)
for name, size in (("small", 512), ("large", side)):
    rough = Image.fromarray(rng.integers(0, 256, (size // 16, size // 16, 3), dtype=np.uint8))
    pixels = np.asarray(rough.resize((size, size), Image.Resampling.BICUBIC))
    pixels = pixels + rng.integers(0, 8, (size, size, 1), dtype=np.uint8) // 2 * (pixels < 240)
    image = Image.fromarray(pixels.astype(np.uint8))
    image.save(folder / f"{name}.png", compress_level=1)
    image.save(folder / f"{name}.jpg", quality=85)
image.putalpha(Image.linear_gradient("L").resize(image.size))
image.save(folder / "alpha.png", compress_level=1)
"""
    subprocess.run([sys.executable, "-c", code, str(folder), str(megapixels)], check=True)
    return {path.name: path for path in folder.iterdir()}


def _run(code: str, paths: Sequence[Path], environment: dict[str, str]) -> str:
    started = time.perf_counter()
    out = subprocess.run(
        [sys.executable, "-c", code, *map(str, paths)], env=environment, capture_output=True, text=True, check=False
    )
    if out.returncode != 0:
        raise SystemExit(f"failed after {time.perf_counter() - started:.0f} s: {out.stderr.strip()[-500:]}")
    return out.stdout


if __name__ == "__main__":
    raise SystemExit(main())
