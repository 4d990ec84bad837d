"""What running tools through the runner costs, cold and from the cache: `python -m benchmarks.tool_runner`.

Cold: psnr, gmsd, vsi and fsim on pairs of LIVE, niqe, brisque and piqe on images of CLIVE; no readings cache, nothing
decoded before. Each image is measured twice in turn, by pyiqa's own metric objects on tensors made beforehand and by
`ToolRunner.measure` on an opened image (decoding, tensors, thread, scoring included); who goes first alternates. The
ratio is that of the two sums in one pass; the figure is the median over passes. Opening (hashing and checking a
file, which decodes it once) is told apart. Cached: a second runner on a filled cache. Both sides use `--threads`.
`ratio_cpu` is the same ratio in processor time, which other work on the machine hardly moves.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.manifest import read_manifest
from program.common.settings import Settings, load_settings
from program.images.store import IMAGES, ImageRef, ImageStore
from program.tools.registry import ToolRegistry, ToolSpec, parameter_path
from program.tools.runner import ToolRunner

DATA = Path("../shared/data")
SETS = {"live": ("PSNR", "GMSD", "VSI", "FSIM"), "clive": ("NIQE", "BRISQUE", "PIQE")}
TARGET = {"ratio": 1.05, "cached_ms": 5.0}

Refs = tuple[ImageRef, ImageRef | None]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; exit code 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tool_runner", description=str(__doc__).split("\n")[0])
    parser.add_argument("--images", type=int, default=100, metavar="N", help="at most N images of each set")
    parser.add_argument("--passes", type=int, default=5, metavar="N")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="torch threads of both sides")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    settings = load_settings(overrides={"tools": {"params_dir": DATA / "params", "threads": arguments.threads}})
    report: dict[str, Any] = {"threads": arguments.threads, "passes": arguments.passes, "sets": {}}
    for name, tools in SETS.items():
        files = _files(name, arguments.images)
        report["sets"][name] = _measure_set(files, tools, settings.tools.params_dir, arguments)
    sums = {
        key: [sum(s[key][i] for s in report["sets"].values()) for i in range(arguments.passes)]
        for key in ("direct_s", "runner_s", "opening_s", "direct_cpu", "runner_cpu")
    }
    both = zip(sums["runner_s"], sums["opening_s"], sums["direct_s"], strict=True)
    report["ratio"] = _median_ratio(sums, "s")
    report["ratio_cpu"] = _median_ratio(sums, "cpu")
    report["ratio_with_opening"] = statistics.median((r + o) / d for r, o, d in both)
    report["cached_ms"] = max(s["cached_ms"] for s in report["sets"].values())
    if arguments.json:
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        _show(report)
    return 0 if all(report[key] <= target for key, target in TARGET.items()) else 1


def _median_ratio(found: dict[str, Any], unit: str) -> float:
    pairs = zip(found[f"runner_{unit}"], found[f"direct_{unit}"], strict=True)
    return statistics.median(runner / direct for runner, direct in pairs)


def _files(name: str, limit: int) -> list[tuple[Path, Path | None]]:
    pairs = [(s.image, s.reference) for s in read_manifest(DATA / name / "manifest.jsonl")]
    return [(image, reference) for image, reference in pairs if image != reference][:limit]


def _settings(params: Path | None, **options: Any) -> Settings:
    return load_settings(overrides={"tools": {"params_dir": params, "device": "cpu", **options}})


def _measure_set(
    files: Sequence[tuple[Path, Path | None]], tools: Sequence[str], params: Path | None, arguments: argparse.Namespace
) -> dict[str, Any]:
    registry = ToolRegistry.load()
    specs = [registry.get(tool) for tool in tools]
    direct = _direct(specs, params, arguments.threads)
    runner = ToolRunner(_settings(params, threads=arguments.threads, cache=False), registry)
    refs: list[Refs] = [(IMAGES.add(i), IMAGES.add(r) if r else None) for i, r in files]
    _warm_up(runner, specs, refs[0])
    times: dict[str, list[float]] = {
        "direct_s": [],
        "runner_s": [],
        "opening_s": [],
        "direct_cpu": [],
        "runner_cpu": [],
    }
    for _ in range(arguments.passes):
        times["opening_s"].append(_timed(lambda: [_open(pair) for pair in files])[0])
        IMAGES._pixels.clear()
        spent = dict.fromkeys(("direct_s", "runner_s", "direct_cpu", "runner_cpu"), 0.0)
        for place, pair in enumerate(refs):
            inputs = [_tensor(ref) for ref in pair if ref is not None]
            IMAGES._pixels.clear()
            sides: list[tuple[str, Callable[[], Any]]] = [
                ("direct", lambda inputs=inputs: [metric(*inputs).item() for metric in direct]),
                ("runner", lambda pair=pair: [runner.measure(spec.name, *pair) for spec in specs]),
            ]
            for side, work in sides if place % 2 else reversed(sides):
                wall, cpu = _timed(work)
                spent[f"{side}_s"] += wall
                spent[f"{side}_cpu"] += cpu
        for side, seconds in spent.items():
            times[side].append(seconds)
    cached_ms = _cached_ms(specs, refs, params, arguments.passes)
    return {"images": len(files), "tools": list(tools), **times, "cached_ms": cached_ms}


def _direct(specs: Sequence[ToolSpec], params: Path | None, threads: int) -> list[Any]:
    import pyiqa
    import torch

    torch.set_num_threads(threads)
    metrics = []
    for spec in specs:
        path = parameter_path(spec, params)
        options = {"pretrained_model_path": str(path)} if path else {}
        metrics.append(pyiqa.create_metric(spec.pyiqa, device=torch.device("cpu"), **options))
    return metrics


def _tensor(ref: ImageRef) -> Any:
    import torch

    pixels: NDArray[np.uint8] = IMAGES.pixels(ref)
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))[None]).float().div(255)


def _warm_up(runner: ToolRunner, specs: Sequence[ToolSpec], pair: Refs) -> None:
    for spec in specs:
        found = runner.measure(spec.name, *pair)
        if found.error is not None:
            raise SystemExit(found.error)


def _open(pair: tuple[Path, Path | None]) -> None:
    store = ImageStore()
    for path in pair:
        if path is not None:
            store.add(path)


def _cached_ms(specs: Sequence[ToolSpec], refs: Sequence[Refs], params: Path | None, passes: int) -> float:
    """Milliseconds an image for all tools from a filled cache: median over passes of a pass's mean."""
    with tempfile.TemporaryDirectory() as folder:
        settings = _settings(params).model_copy(update={"cache_dir": Path(folder)})
        filling = ToolRunner(settings)
        for pair in refs:
            for spec in specs:
                filling.measure(spec.name, *pair)
        means = []
        for _ in range(passes):
            runner = ToolRunner(settings)
            IMAGES._pixels.clear()
            started = time.perf_counter()
            for pair in refs:
                for spec in specs:
                    runner.measure(spec.name, *pair)
            seconds = time.perf_counter() - started
            if runner.counts["cached"] != len(refs) * len(specs):
                raise SystemExit("the cache did not hold every reading")
            means.append(1e3 * seconds / len(refs))
    return statistics.median(means)


def _timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Return the wall and processor seconds of a call."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def _show(report: dict[str, Any]) -> None:
    for name, found in report["sets"].items():
        medians = {key: statistics.median(found[key]) for key in ("direct_s", "runner_s", "opening_s")}
        n = found["images"]
        print(
            f"{name}: {n} images, {', '.join(found['tools'])}: direct {1e3 * medians['direct_s'] / n:.1f}, "
            f"runner {1e3 * medians['runner_s'] / n:.1f}, opening {1e3 * medians['opening_s'] / n:.1f} ms an image; "
            f"ratio {_median_ratio(found, 's'):.3f} (cpu {_median_ratio(found, 'cpu'):.3f}); "
            f"from the cache {found['cached_ms']:.2f} ms"
        )
    print(
        f"sum: ratio {report['ratio']:.3f} (target {TARGET['ratio']}; cpu {report['ratio_cpu']:.3f}), "
        f"with opening {report['ratio_with_opening']:.3f}; "
        f"cached {report['cached_ms']:.2f} ms an image (target {TARGET['cached_ms']:g}); {report['threads']} thread(s)"
    )


if __name__ == "__main__":
    raise SystemExit(main())
