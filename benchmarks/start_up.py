"""From process start to a result: `python -m benchmarks.start_up [IMAGE]`.

Each run is a process of its own: `python -m program.assess IMAGE` with an empty cache folder (fresh) and again with the
same folder (cached). Figures are medians over runs; the files of Python's packages are warm in the page cache, as one
run goes before. A third kind of process lists which heavy packages a cached assessment imported.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

DEFAULT = Path("../shared/data/clive/images")
HEAVY = ("torch", "torchvision", "pyiqa", "piq", "mlflow", "litellm", "matplotlib", "sklearn", "skimage", "pandas")
TARGET_S = {"cached": 2.0, "fresh": 8.0}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; exit code 1 when a target is missed or a cached run imports a heavy package."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start_up", description=str(__doc__).split("\n")[0])
    parser.add_argument("image", nargs="?", type=Path, metavar="IMAGE", help=f"default: the first of {DEFAULT}")
    parser.add_argument("--runs", type=int, default=5, metavar="N")
    arguments = parser.parse_args(argv)
    image = arguments.image or min(DEFAULT.iterdir())
    times: dict[str, list[float]] = {"fresh": [], "cached": []}
    imported = ""
    for run in range(arguments.runs + 1):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "AGENTICIQA_CACHE_DIR": folder}
            for seconds in times.values():
                taken = _assess(image, environment)
                if run > 0:
                    seconds.append(taken)
            imported = _imported(image, environment)
    for kind, seconds in times.items():
        shown = ", ".join(f"{s:.2f}" for s in seconds)
        print(f"{kind}: {statistics.median(seconds):.2f} s (target {TARGET_S[kind]:g}; runs {shown})")
    print(f"heavy packages a cached result imports: {imported or 'none'}")
    met = all(statistics.median(times[kind]) < target for kind, target in TARGET_S.items())
    return 0 if met and not imported else 1


def _assess(image: Path, environment: dict[str, str]) -> float:
    started = time.perf_counter()
    command = [sys.executable, "-m", "program.assess", str(image)]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def _imported(image: Path, environment: dict[str, str]) -> str:
    code = (
        "import sys; from program.assess import main; code = main(sys.argv[1:]); "
        f"print(' '.join(sorted(set({HEAVY}) & set(sys.modules))), file=sys.stderr); raise SystemExit(code)"
    )
    command = [sys.executable, "-c", code, str(image)]
    out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return out.stderr.strip()


if __name__ == "__main__":
    raise SystemExit(main())
