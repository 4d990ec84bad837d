"""From process start to a result: `python -m benchmarks.start_up [IMAGE] [--against COMMIT]`.

Each run is a process of its own: `python -m program.assess IMAGE` with an empty cache folder (fresh), again with the
same folder (cached), and a folder of 300 images with an empty one (cold). With `--against` another commit of this
repository runs in turns with the files as they are, so that what else the machine does falls on both, and the ratio of
the medians is printed. The files of Python's packages are warm in the page cache, as one run goes before. A last
process lists which heavy packages a fresh and a cached assessment imported.
"""

import argparse
import io
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DEFAULT, IMAGES = Path("../shared/data/clive/images"), Path("../shared/data/biq2021/images")
HEAVY = ("torch", "torchvision", "pyiqa", "piq", "mlflow", "litellm", "matplotlib", "sklearn", "skimage", "pandas")
TARGET_S = {"cached": 0.8, "fresh": 2.0}
TARGET_MB, TARGET_RATIO = 800, 1.7
KINDS = ("fresh", "cached", "cold folder")


class Taken(NamedTuple):
    """What a process took: seconds on the clock and of the processor, with its own children's, and memory."""

    seconds: float
    cpu_seconds: float
    megabytes: float


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; exit code 1 when a target is missed or an assessment imports a heavy package."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start_up", description=str(__doc__).split("\n")[0])
    parser.add_argument("image", nargs="?", type=Path, metavar="IMAGE", help=f"default: the first of {DEFAULT}")
    parser.add_argument("--runs", type=int, default=5, metavar="N")
    parser.add_argument("--against", metavar="COMMIT", help="compare with this commit, in turns")
    parser.add_argument("--images", type=Path, default=IMAGES, metavar="DIR", help=f"of 512 x 512; default: {IMAGES}")
    parser.add_argument("--most", type=int, default=300, metavar="N", help="images of the folder (default: 300)")
    arguments = parser.parse_args(argv)
    image = (arguments.image or min(DEFAULT.iterdir())).resolve()
    with tempfile.TemporaryDirectory() as place:
        sides = {"now": ROOT}
        if arguments.against:
            sides["before"] = _checked_out(arguments.against, Path(place, "before"))
        folder = Path(place, "images")
        folder.mkdir()
        for path in sorted(arguments.images.resolve().iterdir())[: arguments.most]:
            (folder / path.name).symlink_to(path)
        times: dict[tuple[str, str], list[Taken]] = {(side, kind): [] for kind in KINDS for side in sides}
        for run in range(arguments.runs + 1):
            for side, root in sides.items():
                _run_once(root, image, folder if run > 0 else None, {k: times[side, k] for k in KINDS}, keep=run > 0)
        imported = _imported(image)
    met = _report(times, list(sides))
    print(f"heavy packages an assessment imports: {imported or 'none'}")
    return 0 if met and not imported else 1


def _checked_out(commit: str, place: Path) -> Path:
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout  # noqa: S607
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        files.extractall(place, filter="data")
    return place


def _run_once(root: Path, image: Path, folder: Path | None, times: dict[str, list[Taken]], *, keep: bool) -> None:
    for kinds in (("fresh", "cached"), ("cold folder",)):
        with tempfile.TemporaryDirectory() as cache:
            for kind in kinds:
                what = folder if kind == "cold folder" else image
                if what is not None:
                    taken = _assess(root, what, Path(cache))
                    if keep:
                        times[kind].append(taken)


def _assess(root: Path, what: Path, cache: Path) -> Taken:
    environment = {**os.environ, "AGENTICIQA_CACHE_DIR": str(cache), "PYTHONPATH": str(root)}
    more = ["--out", str(cache / "out.jsonl")] if what.is_dir() else []
    command = [sys.executable, "-m", "program.assess", str(what), *more]
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    return Taken(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def _report(times: dict[tuple[str, str], list[Taken]], sides: Sequence[str]) -> bool:
    met = True
    for kind in KINDS:
        medians = {side: Taken(*map(statistics.median, zip(*times[side, kind], strict=True))) for side in sides}
        for side, taken in medians.items():
            shown = ", ".join(f"{each.seconds:.2f}" for each in times[side, kind])
            print(f"{kind}, {side}: {taken.seconds:.2f} s ({taken.cpu_seconds:.2f} s of the processor), "
                  f"{taken.megabytes:.0f} MB; runs {shown}")  # fmt: skip
        now = medians["now"]
        met &= now.seconds <= TARGET_S.get(kind, now.seconds) and now.megabytes <= TARGET_MB
        if "before" in medians:
            ratio, of_cpu = (medians["before"][place] / now[place] for place in (0, 1))
            print(f"{kind}: {ratio:.2f} times as fast, {of_cpu:.2f} by processor time")
            met &= kind != "cold folder" or ratio >= TARGET_RATIO
    return met


def _imported(image: Path) -> str:
    code = (
        "import sys; from program.assess import main; code = main(sys.argv[1:]); "
        f"print(' '.join(sorted(set({HEAVY}) & set(sys.modules))), file=sys.stderr); raise SystemExit(code)"
    )
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "AGENTICIQA_CACHE_DIR": cache}
        command = [sys.executable, "-c", code, str(image)]
        runs = [
            subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
            for _ in range(2)
        ]
    return " ".join(run.stderr.strip() for run in runs).strip()


if __name__ == "__main__":
    raise SystemExit(main())
