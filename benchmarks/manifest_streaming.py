"""Memory and time for a manifest of a million lines: counted, split, written with its splits and read again.

Run `python -m benchmarks.manifest_streaming [LINES]`; each step runs in a process of its own, and its peak is that of
the whole process (`ru_maxrss`), with that of a process that only imports the package for comparison. Times are of one
run. Lines are as long as those of a public dataset (about 200 bytes); every eighth begins a new group. The
images are not there, so `check` measures what it keeps of a line, not the reading of images.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS = ("import", "count", "split", "split and write", "read and look for leaks", "check")


def step(name: str, path: Path) -> int:
    """Do one step and return how many samples it saw."""
    from data.manifest import read_manifest, write_manifest
    from data.preparing import check_manifest
    from data.splits import check_leaks, plan_splits

    if name == "count":
        return sum(1 for _ in read_manifest(path))
    if name.startswith("split"):
        plan = plan_splits(read_manifest(path))
        if name == "split and write":
            write_manifest(path.with_name("split.jsonl"), plan.apply(read_manifest(path)))
        return len(plan.splits)
    if name.startswith("read"):
        check_leaks(read_manifest(path.with_name("split.jsonl")))
    if name == "check":
        return check_manifest(path, decode=False).lines
    return 0


def generate(path: Path, lines: int) -> None:
    """Write a manifest of so many lines."""
    with path.open("w", encoding="utf-8") as file:
        for n in range(lines):
            row = {
                "id": f"generated/I{n // 8:07d}_{n % 8:02d}", "image": f"images/I{n // 8:07d}_{n % 8:02d}.png",
                "reference": f"images/I{n // 8:07d}.png", "mos": 1 + n * 7919 % 4001 / 1000, "mos_std": 0.5,
                "distortion": "gaussian_blur", "group": f"I{n // 8:07d}", "level": n % 5 + 1,
            }  # fmt: skip
            file.write(json.dumps(row) + "\n")


def main() -> None:
    """Measure every step."""
    if len(sys.argv) == 4:
        began = time.perf_counter()
        seen = step(sys.argv[2], Path(sys.argv[3]))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps([seen, peak, time.perf_counter() - began]))
        return
    lines = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "manifest.jsonl"
        generate(path, lines)
        print(f"{lines} lines, {path.stat().st_size / 2**20:.0f} MiB")
        for name in STEPS:
            command = [sys.executable, "-m", "benchmarks.manifest_streaming", "step", name, str(path)]
            output = subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8").stdout
            seen, peak, seconds = json.loads(output)
            print(f"{name:<24} {peak:7.0f} MiB peak {seconds:7.1f} s   ({seen})")


if __name__ == "__main__":
    main()
