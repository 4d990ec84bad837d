"""What the program makes of a real language model with default flags: agreement, tokens, calls and time.

    python -m benchmarks.real_model 1.5b --data ../shared/data/biq2021/manifest.jsonl
    python -m benchmarks.real_model openai/NAME --api-base URL --data manifest.jsonl --count 60

MODEL is a name or file that `benchmarks.llama_server` serves here, or a model of a server. On COUNT validation images:
the embedded expert, the program with this model, the model alone, and the program with --score-only, with the paired
differences; calls and tokens an image; and, image by image in one run, the time that the program takes beside what the
same requests take sent raw, in turns, with nothing cached. Stopped, the same command goes on.
"""

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.llama_server import MODELS, gguf, served
from program.common.cli import Parser, run_command, whole_number
from program.common.settings import Settings, load_settings

PORT = 8137
"""Of the server: answers are kept by address, so that the same command goes on."""


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and return its exit code."""
    parser = Parser(prog="python -m benchmarks.real_model", description="The program with a real language model.")
    parser.add_argument("model", metavar="MODEL", help=f"{', '.join(MODELS)}, a .gguf file, or openai/NAME")
    parser.add_argument("--api-base", metavar="URL", help="of the server that has MODEL")
    parser.add_argument("--data", required=True, metavar="MANIFEST")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--count", type=whole_number(2), default=60, help="the first images (default: 60)")
    parser.add_argument("--timed", type=whole_number(0), default=20, help="of them timed beside raw requests")
    parser.add_argument("--threads", type=whole_number(1), default=2, help="of the server")
    parser.add_argument("--work", type=Path, default=Path("real-model"), metavar="DIR", help="default: real-model")
    return run_command(lambda: _run(parser.parse_args(argv)), kept="what is done is kept; the same command goes on")


def _run(arguments: argparse.Namespace) -> int:
    arguments.work.mkdir(parents=True, exist_ok=True)
    with server_of(arguments) as (name, address):
        base = load_settings(overrides={"cache_dir": str(arguments.work / "cache")})
        model = base.with_model(name, address, {})
        samples = _samples(arguments, base)
        expert = _evaluated(base, samples)
        records = {
            "default flags": _evaluated(model, samples),
            "--score-only": _evaluated(_score_only(model), samples),
        }
        print(f"{name}, {len(samples)} images of {arguments.data}, {arguments.split}")
        for line in _table(expert, records):
            print(line)
        if arguments.timed:
            print(_timed(_score_only(model), samples[: arguments.timed], address))
    return 0


@contextlib.contextmanager
def server_of(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield the model's name for the program and the address of its server."""
    if arguments.api_base:
        yield arguments.model, arguments.api_base
        return
    file = gguf(arguments.model, Path.home() / ".cache" / "agentic-iqa" / "gguf")
    with served(file, threads=arguments.threads, port=PORT) as address:
        yield f"openai/{file.stem}", address


def _score_only(settings: Settings) -> Settings:
    return settings.model_copy(update={"assessment": settings.assessment.model_copy(update={"score_only": True})})


def _samples(arguments: argparse.Namespace, settings: Settings) -> list[Any]:
    from program.evaluation.evaluating import samples_of

    samples = samples_of(arguments.data, settings, arguments.split, progress=False)
    return [sample for sample in samples if sample.task == "scoring"][: arguments.count]


def _evaluated(settings: Settings, samples: Sequence[Any]) -> Any:
    """Return the record of an evaluation; what was answered before is in the cache."""
    from program.agent.loop import AgenticIQA
    from program.evaluation.evaluating import evaluate

    return evaluate(AgenticIQA(settings), samples, split=None, workers=1)


def _table(expert: Any, records: Mapping[str, Any]) -> Iterator[str]:
    """Yield agreement with people and cost of each way, and its paired difference from the embedded expert."""
    from program.evaluation.intervals import paired_difference
    from program.evaluation.metrics import rmse, srcc

    yield f"{'':28}{'SRCC':>7}{'RMSE':>7}{'less the expert, SRCC':>32}{'calls':>7}{'in':>6}{'out':>5}{'s':>7}"
    rows = {row.id: row for row in expert.rows if row.predicted is not None}
    for title, record in {"embedded expert": expert, **records}.items():
        used = [row for row in record.rows if row.predicted is not None and row.id in rows]
        truth, groups = [row.truth for row in used], [row.group for row in used]
        ways = {title: [row.predicted for row in used]}
        if title in records:
            ways[f"{title}: model alone"] = [row.beliefs.get("expected_level") for row in used]
        for way, values in ways.items():
            if None in values:
                yield f"{way:28} no belief was read of {values.count(None)} of {len(values)} images"
                continue
            theirs = [rows[row.id].predicted for row in used]
            gap = "" if way == "embedded expert" else str(paired_difference("srcc", truth, theirs, values, groups))
            cost = _cost(used) if way == title else ""
            yield f"{way:28}{srcc(truth, values):7.3f}{rmse(truth, values):7.3f}{gap:>32}{cost}"
        failed = sum(row.status != "ok" for row in record.rows)
        if failed:
            yield f"{'':28} {failed} of {len(record.rows)} not ok"


def _cost(rows: Sequence[Any]) -> str:
    def mean(name: str) -> float:
        return statistics.fmean(getattr(row.usage, name, 0.0) for row in rows)

    seconds, calls = statistics.median(row.seconds for row in rows), mean("lm_calls")
    return f"{calls:7.2f}{mean('input_tokens'):6.0f}{mean('output_tokens'):5.0f}{seconds:7.2f}"


def _timed(settings: Settings, samples: Sequence[Any], address: str) -> str:
    """Return how long the program takes, less the expert's measuring, beside its own requests sent raw, in turns."""
    from program.agent.loop import AgenticIQA
    from program.lms.reference_engine import ImageTransport

    bodies: list[bytes] = []
    real = ImageTransport.stream

    def recording(self: Any, request: Any) -> Any:
        bodies.append(request.body)
        return real(self, request)

    program = AgenticIQA(settings.model_copy(update={"cache": False}))
    program(image=str(samples[0].image))  # loads the tools and asks what the model can do
    ImageTransport.stream = recording  # type: ignore[method-assign]
    sent: list[list[bytes]] = []
    ours: list[float] = []
    raw: list[float] = []
    with httpx.Client(timeout=300) as client:
        for place, sample in enumerate(samples):
            bodies.clear()
            usage = program(image=str(sample.image)).usage
            ours.append(usage.seconds["total"] - usage.seconds.get("executor", 0.0))
            sent.append([*bodies])
            # Those of the image before, so that the server has not just seen the same prompt.
            started = time.perf_counter()
            for body in sent[place - 1]:
                client.post(f"{address}/chat/completions", content=body, headers={"Content-Type": "application/json"})
            raw.append(time.perf_counter() - started)
    ImageTransport.stream = real  # type: ignore[method-assign]
    ratio = statistics.median(ours) / statistics.median(raw)
    words = [json.loads(body)["messages"] for each in sent for body in each]
    system = statistics.fmean(len(messages[0]["content"]) for messages in words)
    return (
        f"{len(samples)} images in turns, medians: the program {statistics.median(ours):.2f} s, its requests sent raw "
        f"{statistics.median(raw):.2f} s, ratio {ratio:.2f}; {len(words) / len(samples):.2f} requests an image, each "
        f"with {system:.0f} characters of instructions"
    )


if __name__ == "__main__":
    sys.exit(main())
