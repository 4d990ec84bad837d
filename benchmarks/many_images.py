"""What judging many images costs: memory and time as they grow, Ray beside threads, kills.

    python -m benchmarks.many_images STEP [--count N] [--folder DIR]

Steps: `rows` (a manifest of N rows and a stand-in program that looks at no pixels), `memory` (N generated images of
64 x 64 and the embedded expert), `same` (streamed rows beside rows judged one by one), `pace` (Ray with 2 workers
beside 2 threads, steady, cold), `waiting` (1, 2 and 4 workers on a model server that waits 200 ms),
`paid` (what that server answers when workers are killed), `kills` (30 of workers and 5 of the driver within one job),
`poison` (an image that kills its worker), `gallery` (a gallery of N pictures of 24 megapixels, half of them in bursts,
killed half-way and resumed). `pace` to `poison` need the extra
[ray], `gallery` [gallery]. Each prints one line of JSON; images stay in the folder.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from program.agent.loop import AgenticIQA
from program.batch.command import Judging, judge
from program.batch.inputs import find_items
from program.batch.output import Tally
from program.common.request import Request
from program.common.settings import load_settings
from program.running.on_ray import Cluster, ray_engine
from program.running.row import Row


class StandIn(AgenticIQA):
    """Answers every question with the same assessment."""

    answer: Any = None

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Return the assessment."""
        return self.answer


def stand_in(image: Path) -> StandIn:
    """Return a program that judged one image and says so of every other."""
    program = StandIn(load_settings())
    program.answer = AgenticIQA.__call__(program, image=str(image))
    return program


def images(folder: Path, count: int) -> Path:
    """Make so many images of 64 x 64 pixels, blocks and noise of several strengths, and return their folder."""
    home = folder / f"images-{count}"
    home.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = home / f"{number:07}.png"
        if not path.exists():
            rng = np.random.default_rng(number)
            blocks = np.kron(rng.integers(0, 256, (8, 8, 3)), np.ones((8, 8, 1)))
            noisy = blocks + rng.normal(0, number % 5 * 8, (64, 64, 3))
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path)
    return home


def resident_mb() -> float:
    """Return this process's memory now, in MB."""
    return int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * resource.getpagesize() / 1e6


class Watch:
    """The memory at marks of a count of rows."""

    def __init__(self, *marks: int) -> None:
        self.marks, self.seen, self.rows = set(marks), dict[int, float](), 0

    def __call__(self, row: Row) -> None:
        """Count a row."""
        self.rows += 1
        if self.rows in self.marks:
            self.seen[self.rows] = round(resident_mb(), 1)


def rows(folder: Path, count: int) -> dict[str, Any]:
    """Judge a manifest of so many rows with the stand-in."""
    image = images(folder, 1) / "0000000.png"
    manifest = folder / f"rows-{count}.jsonl"
    with manifest.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"id": f"lab/{n:09}", "image": str(image)}) + "\n" for n in range(count))
    watch, out = Watch(count // 100, count // 4, count // 2, count), folder / f"rows-{count}.parquet"
    began = time.perf_counter()
    judge(stand_in(image), find_items([str(manifest)]), watch, out=out, progress=False)
    seconds = time.perf_counter() - began
    written = sum(1 for _ in out.iterdir())
    return {"rows": watch.rows, "ms_a_row": round(1000 * seconds / count, 3), "mb_at": watch.seen, "parts": written}


def memory(folder: Path, count: int) -> dict[str, Any]:
    """Judge so many images with the embedded expert."""
    home, watch = images(folder, count), Watch(count // 20, count // 4, count // 2, count)
    tally, out = Tally(), folder / f"memory-{count}.jsonl"
    began = time.perf_counter()

    def each(row: Row) -> None:
        watch(row)
        tally.add(row)

    judge(AgenticIQA(), find_items([str(home)]), each, out=out, progress=False)
    seconds = time.perf_counter() - began
    return {
        "images": watch.rows, "ms_an_image": round(1000 * seconds / count, 1), "mb_at": watch.seen,
        "failed": tally.counts["failed"], "mean_score": tally.mean_score,
    }  # fmt: skip


def same(folder: Path, count: int) -> dict[str, Any]:
    """Compare the streamed table with rows judged one at a time and held in memory."""
    home, out, program = images(folder, count), folder / f"same-{count}.jsonl", AgenticIQA()
    judge(program, find_items([str(home)]), out=out, progress=False)
    held: list[Row] = []
    judge(program, list(find_items([str(home)])), held.append, workers=1, progress=False)
    held.sort(key=lambda r: r.id)
    streamed = [Row.model_validate_json(line) for line in out.read_text("utf-8").splitlines()]
    equal = [a.model_copy(update={"seconds": b.seconds}) == b for a, b in zip(held, streamed, strict=True)]
    return {"images": len(equal), "equal": sum(equal)}


class Slow:
    """An answer that takes as long as a model service would, and a line for each image that it was asked about."""

    def __init__(self, image: Path, seconds: float, asked: Path) -> None:
        self._program, self._seconds, self._asked = stand_in(image), seconds, asked
        self.resources = self._program.resources
        asked.with_name(f"{asked.name}.{os.getpid()}.pid").touch()

    def __call__(self, image: Any, **_: Any) -> Any:
        """Answer about one image."""
        time.sleep(self._seconds)
        with self._asked.open("a", encoding="utf-8") as file:
            file.write(f"{image.name}\n")
        return self._program.answer


def slow_items(folder: Path, count: int) -> list[Request]:
    """Return items whose ids differ, of few images."""
    files = sorted(images(folder, 10).iterdir())
    return [Request(id=f"lab/{number:07}", image=files[number % 10]) for number in range(count)]


def job(folder: Path, count: int) -> dict[str, Any]:
    """Judge so many items by the slow stand-in on Ray, and return the pace from the first row to the last."""
    asked, stamps = folder / "asked.txt", list[float]()
    image = images(folder, 10) / "0000000.png"
    make = partial(Slow, image, 0.05, asked)
    engine = ray_engine(lambda: Judging(make()), Cluster(2))
    judge(
        stand_in(image), slow_items(folder, count), lambda _: stamps.append(time.perf_counter()),
        out=folder / "job.jsonl", progress=False, engine=engine,
    )  # fmt: skip
    return {"rows_per_s": round(steady(stamps), 2)}


def steady(stamps: list[float]) -> float:
    """Return rows a second between the first and the last fifth: start and end apart."""
    first, last = len(stamps) // 5, len(stamps) * 4 // 5
    return (last - first) / (stamps[last] - stamps[first])


def fresh(folder: Path) -> Path:
    """Remove what a job left, and return where it notes what was asked."""
    for path in (*folder.glob("job.jsonl*"), *folder.glob("asked.txt*")):
        path.unlink()
    return folder / "asked.txt"


def pace(folder: Path, count: int) -> dict[str, Any]:
    """Compare 2 threads with 2 workers of Ray on the same images, each with a cache of its own."""
    found: dict[str, float] = {}
    for name in ("threads", "ray"):
        cache = folder / f"pace-{name}"
        shutil.rmtree(cache, ignore_errors=True)
        os.environ["AGENTICIQA_CACHE_DIR"] = str(cache)
        settings, stamps = load_settings(), list[float]()
        engine = ray_engine(lambda kept=settings: Judging(AgenticIQA(kept)), Cluster(2)) if name == "ray" else None
        items = find_items([str(images(folder, count))])
        judge(AgenticIQA(settings), items, _stamper(stamps), workers=2, progress=False, engine=engine)
        found[name] = round(steady(stamps), 2)
    return {"images": count, "per_second": found, "ratio": round(found["ray"] / found["threads"], 3)}


def _stamper(stamps: list[float]) -> Callable[[Row], None]:
    """Return what notes when each row comes, all of which have to be answered."""

    def stamp(row: Row) -> None:
        if row.status != "ok":
            raise SystemExit(f"{row.id}: {row.error}")
        stamps.append(time.perf_counter())

    return stamp


@contextmanager
def model_server(latency_ms: int = 200) -> Iterator[str]:
    """Start the tests' model server, which answers by rules after a wait, and yield its address."""
    words = [sys.executable, "tests/loopback.py", "--latency-ms", str(latency_ms)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server.stdout.readline().strip() if server.stdout else ""
        finally:
            server.terminate()


def asked_of(address: str) -> int:
    """Return how many requests a server has answered."""
    with httpx.Client(trust_env=False) as client:
        return int(client.get(address.removesuffix("/v1") + "/stats").json()["answered"])


def served(folder: Path, count: int, workers: int, address: str, cache: Path) -> list[float]:
    """Judge so many images with a model behind an address on Ray, and return when each row came."""
    os.environ |= {"AGENTICIQA_CACHE_DIR": str(cache), "AGENTICIQA_API_KEY": "none"}
    settings, stamps = load_settings().with_model("openai/small-vlm", address), list[float]()
    items, make = find_items([str(images(folder, count))]), partial(AgenticIQA, settings)
    engine = ray_engine(lambda: Judging(make()), Cluster(workers))
    judge(AgenticIQA(settings), items, _stamper(stamps), progress=False, engine=engine)
    return stamps


def waiting(folder: Path, count: int) -> dict[str, Any]:
    """Measure the pace of 1, 2 and 4 workers with a model server that waits 200 ms."""
    found = {}
    for workers in (1, 2, 4):
        shutil.rmtree(folder / "waiting", ignore_errors=True)
        with model_server() as address:
            found[workers] = round(steady(served(folder, count * workers, workers, address, folder / "waiting")), 2)
    return {"images_per_s": found, "of_linear": {n: round(found[n] / found[1] / n, 3) for n in (2, 4)}}


def paid(folder: Path, count: int, of_workers: int = 8) -> dict[str, Any]:
    """Count a model server's answers in a job whose workers are killed, beside those of one left alone."""
    answers, killed = {}, list[int]()
    for kills in (0, of_workers):
        cache = folder / f"paid-{kills}"
        shutil.rmtree(cache, ignore_errors=True)
        with model_server() as address:
            stop = threading.Event()
            killer = threading.Thread(target=_kill, args=(kills, stop, killed))
            killer.start()
            served(folder, count, 2, address, cache)
            stop.set()
            killer.join()
            answers[kills] = asked_of(address)
    return {
        "images": count,
        "answers_left_alone": answers[0],
        "answers_killed": answers[of_workers],
        "kills": len(killed),
    }


def _kill(count: int, stop: threading.Event, killed: list[int]) -> None:
    """Kill this process's workers, one every few seconds."""
    rng = np.random.default_rng(2)
    while len(killed) < count and not stop.wait(4):
        if alive := [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_worker(pid)]:
            killed.append(int(rng.choice(alive)))
            os.kill(killed[-1], signal.SIGKILL)


def is_worker(pid: int) -> bool:
    """Tell whether a process is a worker of a job that this process, or one it started, drives."""
    try:
        if not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::MapWorker"):
            return False
        while pid not in {0, os.getpid()}:
            pid = int(Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[1])
    except OSError:
        return False
    return pid != 0


def poison(folder: Path, count: int) -> dict[str, Any]:
    """Judge items one of which kills every process that looks at it."""
    fresh(folder)
    items = slow_items(folder, count)
    bad = images(folder, 11) / "0000010.png"
    items[17] = items[17].model_copy(update={"image": bad})
    make = partial(Deadly, bad, 0.02, folder / "asked.txt")
    engine, out = ray_engine(lambda: Judging(make()), Cluster(2)), folder / "job.jsonl"
    judge(stand_in(bad), items, out=out, progress=False, engine=engine)
    rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    statuses = {row["id"]: row["status"] for row in rows}
    return {"ok": Counter(statuses.values())["ok"], "errors": [name for name in statuses if statuses[name] == "error"]}


class Deadly(Slow):
    """Ends its process at the image it was made of."""

    def __call__(self, image: Any, **given: Any) -> Any:
        """Answer about one image."""
        if image.name == "0000010.png":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(image, **given)


def few_kills(folder: Path, count: int) -> dict[str, Any]:
    """Kill less."""
    return kills(folder, count, 4, 1)


def kills(folder: Path, count: int, of_workers: int = 30, of_driver: int = 5) -> dict[str, Any]:
    """Kill workers and drivers of one job at even distances, and go on until the table is there."""
    asked, out, rng = fresh(folder), folder / "job.jsonl", np.random.default_rng(1)
    log, ends = folder / "job.jsonl.partial", of_workers + of_driver
    killed = {"worker": 0, "driver": 0}
    words = [sys.executable, "-m", "benchmarks.many_images", "job", "--folder", str(folder), "--count", str(count)]
    driver = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    while not out.exists():
        time.sleep(0.05)
        if driver.poll() is not None:
            driver = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        done = log.read_bytes().count(b"\n") if log.exists() else 0
        number = sum(killed.values())
        if number == ends or done < count * (number + 1) // (ends + 1):
            continue
        if number % (ends // of_driver) == ends // of_driver - 1:
            driver.kill()
            driver.wait()
            killed["driver"] += 1
        elif alive := made(asked):
            os.kill(int(rng.choice(alive)), signal.SIGKILL)
            killed["worker"] += 1
    driver.wait()
    lines = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    whole = [line["id"] for line in lines] == [item.id for item in slow_items(folder, count)]
    statuses = Counter(line["status"] for line in lines)
    again = len(asked.read_text("utf-8").splitlines()) - count
    return {"killed": killed, "rows": len(lines), "every_id_once_in_order": whole, "statuses": statuses, "again": again}


def made(asked: Path) -> list[int]:
    """Return the workers that made a stand-in and are alive."""
    pids = [int(path.suffixes[-2][1:]) for path in asked.parent.glob(f"{asked.name}.*.pid")]
    return [pid for pid in pids if is_worker(pid)]


def gallery(folder: Path, count: int) -> dict[str, Any]:
    """Make a gallery of so many pictures of a camera's size, kill the command half-way, and let it go on."""
    home, out = camera_pictures(folder, count), folder / f"gallery-{count}"
    shutil.rmtree(out, ignore_errors=True)
    words = [sys.executable, "-m", "program.gallery", str(home), "--out", str(out), "--no-cache"]
    log, most, began, spent = out / "gallery.journal", 0.0, time.perf_counter(), [0.0, 0.0]
    for half in (0, 1):
        command = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        while command.poll() is None:
            tree = list(processes_of(command.pid))
            most = max(most, sum(megabytes for megabytes, _ in tree))
            spent[half] = max(spent[half], sum(seconds for _, seconds in tree))
            kept = log.read_bytes().count(b"\n") - 1 if log.exists() else 0
            if not half and kept >= count // 2:
                command.kill()
                command.wait()
            time.sleep(0.05)
    table = [json.loads(line) for line in (out / "gallery.jsonl").read_text("utf-8").splitlines()]
    return {
        "pictures": len(table), "failed": sum(row["status"] != "ok" for row in table),
        "in_groups": sum(row["group"] is not None for row in table), "processor_s_each": round(sum(spent) / count, 2),
        "wall_s_each": round((time.perf_counter() - began) / count, 2), "peak_mb": round(most),
    }  # fmt: skip


def camera_pictures(folder: Path, count: int) -> Path:
    """Make so many JPEGs of 24 megapixels with grain, 8 MB each, in twos a second apart and alone, by turns."""
    from skimage import data

    home, photographs = folder / f"camera-{count}", (data.coffee(), data.chelsea(), data.astronaut(), data.rocket())
    home.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        shot, second = divmod(number, 4)
        rng, path = np.random.default_rng(number), home / f"{number:05}.jpg"
        if not path.exists():
            turned = shot * 4 + (0, 0, 2, 3)[second]
            pixels = photographs[turned % 4]
            top, left = turned * 53 % (len(pixels) - 100), turned * 97 % (pixels.shape[1] - 150)
            part = Image.fromarray(pixels[top : top + 100, left : left + 150])
            pixels = np.asarray(part.resize((6000, 4000), Image.Resampling.BICUBIC), np.int16)
            grainy = (pixels + rng.integers(-12, 13, (4000, 6000, 1), dtype=np.int16)).clip(0, 255)
            exif = Image.Exif()
            exif[0x8769] = {36867: f"2026:05:01 {shot // 60:02}:{shot % 60:02}:{(0, 1, 20, 40)[second]:02}"}
            Image.fromarray(grainy.astype(np.uint8)).save(path, quality=92, exif=exif)
    return home


def processes_of(pid: int) -> Iterator[tuple[float, float]]:
    """Yield the memory in MB, what is shared split up, and the processor's seconds of a process and its children."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        kept = Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8").partition("Pss:")[2].split()[0]
        yield int(kept) * 1024 / 1e6, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text("utf-8").split():
                yield from processes_of(int(child))
    except OSError:  # it has ended
        return


STEPS = {
    step.__name__: step for step in (rows, memory, same, pace, waiting, paid, poison, few_kills, kills, job, gallery)
}


def main() -> None:
    """Run one step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path("many-images"))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("AGENTICIQA_CACHE_DIR", str(given.folder / "cache"))
    print(json.dumps({"step": given.step, **STEPS[given.step](given.folder, given.count)}))


if __name__ == "__main__":
    main()
