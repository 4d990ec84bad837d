"""What `agentic-iqa assess` does with its flags: one image, many, or two compared."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from PIL import Image

from data.tables import is_manifest
from program.agent.comparison import compare_images
from program.agent.loop import AgenticIQA
from program.agent.query import QueryType, detect_query_type
from program.agent.saving import context_of, program_from
from program.batch.inputs import Items, find_items, left_out_text
from program.batch.output import TableLog, Tally, comparison_text, format_of, is_begun, limits_of, show, show_summary
from program.common.cli import EXIT_PROBLEMS, check_outputs
from program.common.errors import InputError
from program.common.files import Place, is_folder, place_of, whole_file
from program.common.request import DEFAULT_QUERY, Request
from program.common.settings import Settings
from program.images.store import IMAGES, ImageRef
from program.running.on_ray import cluster_from, ray_engine
from program.running.row import Row
from program.running.runner import Asking, Engine, run
from program.tracking import Tracker, experiment_name


class Judging(Asking[Row]):
    """From a request to its row; `query` and `options` are for requests without a question."""

    kind = Row

    def __init__(self, program: AgenticIQA, query: str | None = None, options: Sequence[str] | None = None) -> None:
        super().__init__(program)
        self._query = query
        self._options = None if options is None else list(options)

    def row(self, request: Request) -> Row:
        """Ask the program."""
        asked = request.arguments()
        if request.query is None:
            asked |= {"options": request.options or self._options, "query": self._query or asked["query"]}
        return Row.of(request, self.program(**asked))


def judge(
    program: AgenticIQA,
    items: Items | Sequence[Request],
    take: Callable[[Row], None] = lambda _: None,
    *,
    out: Place | str | None = None,
    query: str | None = None,
    options: Sequence[str] | None = None,
    workers: int = 2,
    progress: bool = True,
    engine: Engine | None = None,
) -> None:
    """Judge the items; `take` gets every row as it comes. With `out`, write their table in order.

    A run that was killed goes on with what it wrote: a log beside the table (of one elsewhere: in
    the cache folder) has a row and its image's stamp on each line; `take` gets those of an earlier
    run too. Rows with an error are tried again. Raises InputError where the table cannot be
    written.
    """
    work = Judging(program, query, options)
    go = partial(run, work, items, lambda _, row: take(row), workers=workers, engine=engine, progress=progress)
    if out is None:
        go(total=_count(items) if progress else None)
        return
    out = place_of(out)
    context = {**context_of(program), "query": query, "options": list(options or ())}
    context.pop("settings", None)
    header = {"journal": "batch", "context": context}
    with TableLog(out, program.resources.settings.cache_dir, header) as log:
        before = log.resume()
        total = _count(items) if progress or before else None
        if before and progress:
            sys.stderr.write(f"resuming: {before} of {total} done\n")
        go(journal=log, total=total)
        log.finish()


def _count(items: Items | Sequence[Request]) -> int | None:
    if isinstance(items, Items):
        return items.count()
    return len(items)


EXIT_BELOW_MINIMUM, EXIT_NOT_SURE = 3, 4


def assess(arguments: argparse.Namespace, settings: Settings) -> int:
    """Do what the flags ask for, and return the exit code."""
    sources = arguments.image
    out = None if arguments.out is None else place_of(arguments.out)
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
    single = len(sources) == 1 and not is_manifest(sources[0]) and not is_folder(place_of(sources[0]))
    if single and out is None:
        return _one(arguments, settings)
    for flag, given in (("--region", arguments.region), ("--heatmap", arguments.heatmap)):
        if given:
            raise InputError(f"{flag}: is for one image; give one, without --out")
    return _many(arguments, settings)


def _check_question(arguments: argparse.Namespace) -> None:
    query = _query(arguments)
    try:
        kind = detect_query_type(query, arguments.option)
    except ValueError as error:
        raise InputError(str(error)) from error
    flag = ""
    if arguments.min_score is not None:
        flag = "--min-score"
    elif limits_of(arguments.fail_on):
        flag = "--fail-on"
    if flag and kind is not QueryType.SCORING:
        raise InputError(f"{flag}: {query!r} asks for no score; leave {flag} out, or --query and --option")


def _query(arguments: argparse.Namespace) -> str:
    if arguments.query is None:
        return DEFAULT_QUERY
    return str(arguments.query)


def _one(arguments: argparse.Namespace, settings: Settings) -> int:
    beside: Place | None = None
    if arguments.reference:  # or in a folder, the file of the image's name
        (item,) = find_items(arguments.image[:1], reference=place_of(arguments.reference))
        if item.reference is None:
            raise InputError(str(item.error))
        beside = item.reference
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
    tally = _tally(arguments)
    tally.add(Row.of(Request(), result))
    return _exit_code(tally)


def _tally(arguments: argparse.Namespace) -> Tally:
    return Tally(arguments.min_score, arguments.sure, limits_of(arguments.fail_on))


def _exit_code(tally: Tally) -> int:
    """Return what --min-score, --sure and --fail-on say, else whether all were answered, and any in full."""
    if tally.counts["below"] or tally.counts["faulty"]:
        return EXIT_BELOW_MINIMUM
    if tally.counts["not sure"]:
        return EXIT_NOT_SURE
    unscored = tally.minimum is not None and tally.counts["scored"] < tally.counts["images"]
    all_degraded = 0 < tally.counts["degraded"] == tally.counts["images"]
    if unscored or all_degraded or tally.counts["failed"]:
        return EXIT_PROBLEMS
    return 0


def _save(picture: Image.Image, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = Image.registered_extensions()[path.suffix.casefold()]
        with whole_file(path) as partial:
            picture.save(partial, kind)
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"--heatmap {str(path)!r}: cannot be written ({error}); name a .png file") from error


def _opened(name: Place, settings: Settings) -> ImageRef:
    return IMAGES.add(place_of(name), max_pixels=settings.images.max_pixels)


def _many(arguments: argparse.Namespace, settings: Settings) -> int:
    reference = place_of(arguments.reference) if arguments.reference else None
    items = find_items(
        arguments.image, recursive=arguments.recursive, globs=arguments.glob or (),
        columns=arguments.columns, reference=reference, remote=settings.images.remote,
    )  # fmt: skip
    tally = _tally(arguments)
    left_out = items.left_out()
    with _tracked(arguments, settings, tally) if arguments.engine == "ray" else nullcontext():
        cluster = cluster_from(arguments, arguments.workers)
        question = (arguments.query, arguments.option)
        engine = None
        if cluster is not None:
            make = partial(program_from, arguments, cluster.share_of(settings))
            engine = ray_engine(lambda: Judging(make(), *question), cluster)
        judge(
            program_from(arguments, settings), items, tally.add, out=arguments.out, query=arguments.query,
            options=arguments.option, workers=arguments.workers, progress=not arguments.json,
            engine=engine,
        )  # fmt: skip
    if arguments.json:
        summary = {**tally.summary(), "left_out": left_out}
        sys.stdout.write(json.dumps(summary, ensure_ascii=False, indent=2) + "\n")
    else:
        show_summary(tally, arguments.out, left_out_text(left_out))
    return _exit_code(tally)


@contextmanager
def _tracked(arguments: argparse.Namespace, settings: Settings, tally: Tally) -> Iterator[None]:
    """Log the job inside the block as one MLflow run: what was asked, pace, failures and costs.

    A job that ends before its end has a run that failed, with its figures.
    """
    tracker = Tracker(settings.mlruns_dir, experiment_name(arguments.image[0]))
    result = f"the table is {arguments.out}" if arguments.out else ""
    with tracker.run("assess", {"command": "assess"}, result=result) as run:
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


def _compare(arguments: argparse.Namespace, settings: Settings) -> int:
    if len(arguments.image) != 2:
        raise InputError(f"--compare: needs two images; {len(arguments.image)} given")
    if any((arguments.query, arguments.option, arguments.out, arguments.min_score is not None, arguments.fail_on)):
        raise InputError("--compare: compares two scores; leave --query, --option, --out, --min-score, --fail-on out")
    first, second = (_opened(name, settings) for name in arguments.image)
    reference = _opened(arguments.reference, settings) if arguments.reference else None
    result = compare_images(program_from(arguments, settings), first, second, reference)
    text = result.model_dump_json(indent=2) + "\n" if arguments.json else comparison_text(result, arguments.image)
    sys.stdout.write(text)
    return 0
