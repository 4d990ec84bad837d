"""What `python -m program.assess` does with its flags: one image, many, or two compared."""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from PIL import Image

from data.tables import is_manifest
from program.agent.comparing import compare
from program.agent.loop import DEFAULT_QUERY
from program.agent.query import QueryType, detect_query_type
from program.agent.saving import program_from
from program.batch.inputs import Items, gather, told
from program.batch.judging import Judging, is_begun, judge
from program.batch.showing import comparison_text, show, show_summary
from program.batch.tables import format_of
from program.batch.tally import Tally
from program.common.cli import EXIT_PROBLEMS, check_outputs
from program.common.errors import InputError
from program.common.files import whole_file
from program.common.places import Place, is_folder, placed
from program.common.settings import Settings
from program.images.store import IMAGES, ImageRef
from program.running.on_ray import cluster_from, ray_engine
from program.running.request import Request
from program.running.row import Row
from program.tracking import Tracker, experiment_name

__all__ = ("EXIT_BELOW_MINIMUM", "run")

EXIT_BELOW_MINIMUM, EXIT_NOT_SURE = 3, 4


def assess(arguments: argparse.Namespace, settings: Settings) -> int:
    """Do what the flags ask for, and return the exit code."""
    out, sources = None if arguments.out is None else placed(arguments.out), arguments.image
    if out is not None and format_of(out) != ".parquet" and is_folder(out):
        raise InputError(f"--out {str(out)!r}: is a folder; name a file in it")
    if arguments.option is not None and len(arguments.option) < 2:
        raise InputError(f"--option {arguments.option[0]!r}: is the only one; give --option twice or more")
    if arguments.compare:
        return _compare(arguments, settings)
    _check_question(arguments)
    if arguments.sure is not None and arguments.min_score is None:
        raise InputError("--sure: says nothing without --min-score; give both")
    if arguments.heatmap_of is not None and arguments.heatmap is None:
        raise InputError("--heatmap-of: draws nothing without --heatmap; give both")
    if out is not None:
        check_outputs(arguments, "--out", out, begun=is_begun(out, settings.cache_dir))
    single = len(sources) == 1 and not is_manifest(sources[0]) and not is_folder(placed(sources[0]))
    if single and out is None:
        return _one(arguments, settings)
    if arguments.region or arguments.heatmap:
        raise InputError(
            f"{'--region' if arguments.region else '--heatmap'}: is for one image; give one, without --out"
        )
    return _many(arguments, settings)


def _check_question(arguments: argparse.Namespace) -> None:
    query = _query(arguments)
    try:
        kind = detect_query_type(query, arguments.option)
    except ValueError as error:
        raise InputError(str(error)) from error
    if arguments.min_score is not None and kind is not QueryType.SCORING:
        raise InputError(f"--min-score: {query!r} asks for no score; leave --min-score out, or --query and --option")


def _query(arguments: argparse.Namespace) -> str:
    return DEFAULT_QUERY if arguments.query is None else str(arguments.query)


def _one(arguments: argparse.Namespace, settings: Settings) -> int:
    beside = _reference_of(arguments)
    if arguments.heatmap is not None:
        check_outputs(arguments, "--heatmap", arguments.heatmap, read=filter(None, [beside]))
    image = _opened(arguments.image[0], settings)
    reference = None if beside is None else _opened(beside, settings)
    program = program_from(arguments, settings)
    result = program(
        image=image, reference=reference, query=_query(arguments), options=arguments.option,
        regions=dict(arguments.region) or None,
    )  # fmt: skip
    if arguments.heatmap is not None:
        _save(program.heatmap(image, reference, arguments.heatmap_of), arguments.heatmap)
    if arguments.json:
        sys.stdout.write(result.model_dump_json(indent=2) + "\n")
    else:
        show(result, sources=arguments.verbose > 0)
    if arguments.min_score is not None and result.rating is not None:
        tally = Tally(arguments.min_score, arguments.sure)
        tally.add(Row.of(Request(), result))
        return _gate(tally)
    return EXIT_PROBLEMS if result.status == "failed" or arguments.min_score is not None else 0


def _gate(tally: Tally) -> int:
    """Return the exit code that --min-score and --sure give scored rows."""
    return EXIT_BELOW_MINIMUM if tally.counts["below"] else EXIT_NOT_SURE if tally.counts["not sure"] else 0


def _save(picture: Image.Image, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = Image.registered_extensions()[path.suffix.casefold()]
        with whole_file(path) as partial:
            picture.save(partial, kind)
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"--heatmap {str(path)!r}: cannot be written ({error}); name a .png file") from error


def _opened(name: Place, settings: Settings) -> ImageRef:
    return IMAGES.add(placed(name), max_pixels=settings.images.max_pixels)


def _reference_of(arguments: argparse.Namespace) -> Place | None:
    """Return the reference of one image; of a folder, the file of the image's name."""
    if not arguments.reference:
        return None
    (item,) = gather(arguments.image[:1], reference=placed(arguments.reference))
    if item.reference is None:
        raise InputError(str(item.error))
    found: Place = item.reference
    return found


def _many(arguments: argparse.Namespace, settings: Settings) -> int:
    items = gather(
        arguments.image, recursive=arguments.recursive, globs=arguments.glob or (), columns=arguments.columns,
        reference=placed(arguments.reference) if arguments.reference else None,
    )  # fmt: skip
    tally, minimum = Tally(arguments.min_score, arguments.sure), arguments.min_score
    left_out = items.left_out()
    with _tracked(arguments, settings, tally) if arguments.engine == "ray" else nullcontext():
        _judge(arguments, settings, items, tally)
    if arguments.json:
        summary = {**tally.summary(), "left_out": left_out}
        sys.stdout.write(json.dumps(summary, ensure_ascii=False, indent=2) + "\n")
    else:
        show_summary(tally, arguments.out, minimum, told(left_out))
    if minimum is not None and (code := _gate(tally)):
        return code
    unscored = minimum is not None and tally.counts["scored"] < tally.counts["images"]
    return EXIT_PROBLEMS if unscored or tally.counts["failed"] else 0


@contextmanager
def _tracked(arguments: argparse.Namespace, settings: Settings, tally: Tally) -> Iterator[None]:
    """Log the job inside the block as one MLflow run: what was asked, its pace, its failures and what it spent.

    A job that ends before its end has a run that failed, with its figures.
    """
    tracker = Tracker(settings.mlruns_dir, experiment_name(arguments.image[0]))
    tags = {"agentic_iqa.kind": "assess"}
    with tracker.run("assess", tags, result=f"the table is {arguments.out}" if arguments.out else "") as run:
        names = ("engine", "workers", "threads", "gpus", "out", "query", "program", "max_calls", "max_cost",
                 "max_tokens")  # fmt: skip
        run.log_params({"sources": " ".join(arguments.image), **{name: getattr(arguments, name) for name in names}})
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            counts = {name: tally.counts[name] for name in ("images", "scored", "failed", "lm_calls")}
            run.log_metrics(
                {**counts, "cost_usd": tally.cost_usd, "mean_score": tally.mean_score, "seconds": seconds,
                 "images_per_second": tally.counts["images"] / seconds}
            )  # fmt: skip
    if not arguments.json:
        run.show()


def _judge(arguments: argparse.Namespace, settings: Settings, items: Items, tally: Tally) -> None:
    make, question = partial(program_from, arguments, settings), (arguments.query, arguments.option)
    cluster = cluster_from(arguments, arguments.workers)
    judge(
        make(), items, tally.add, out=arguments.out, query=arguments.query, options=arguments.option,
        workers=arguments.workers, progress=not arguments.json,
        engine=None if cluster is None else ray_engine(partial(Judging.made, make, *question), cluster),
    )  # fmt: skip


def _compare(arguments: argparse.Namespace, settings: Settings) -> int:
    if len(arguments.image) != 2:
        raise InputError(f"--compare: needs two images; {len(arguments.image)} given")
    if arguments.query or arguments.option or arguments.out or arguments.min_score is not None:
        raise InputError("--compare: compares two scores; leave --query, --option, --out and --min-score out")
    first, second = (_opened(name, settings) for name in arguments.image)
    reference = _opened(arguments.reference, settings) if arguments.reference else None
    result = compare(program_from(arguments, settings), first, second, reference)
    text = result.model_dump_json(indent=2) + "\n" if arguments.json else comparison_text(result, arguments.image)
    sys.stdout.write(text)
    return 0
