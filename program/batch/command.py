"""What `python -m program.assess` does with its flags: one image, many, or two compared."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from program.agent.loop import DEFAULT_QUERY
from program.agent.query import QueryType, detect_query_type
from program.agent.saving import program_from
from program.batch.comparing import compare
from program.batch.inputs import gather
from program.batch.rows import FORMATS, BatchRow, row_of, verdict
from program.batch.running import Question, is_begun, judge, judge_into
from program.batch.showing import comparison_text, show, show_summary, summary
from program.common.cli import EXIT_PROBLEMS
from program.common.errors import InputError
from program.common.settings import Settings
from program.images.store import IMAGES, ImageRef

__all__ = ("EXIT_BELOW_MINIMUM", "run")

EXIT_BELOW_MINIMUM, EXIT_NOT_SURE = 3, 4


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Do what the flags ask for, and return the exit code."""
    out, sources = arguments.out, arguments.image
    if out is not None and out.suffix not in FORMATS:
        raise InputError(f"--out {str(out)!r}: unknown kind; end its name in {', '.join(FORMATS)}")
    if out is not None and os.path.isdir(out):
        raise InputError(f"--out {str(out)!r}: is a folder; name a file in it")
    if arguments.option is not None and len(arguments.option) < 2:
        raise InputError(f"--option {arguments.option[0]!r}: is the only one; give --option twice or more")
    if arguments.compare:
        return _compare(arguments, settings)
    _check_question(arguments)
    if arguments.sure is not None and arguments.min_score is None:
        raise InputError("--sure: says nothing without --min-score; give both")
    if out is not None and out.exists() and not (arguments.force or is_begun(out)):
        raise InputError(f"--out {str(out)!r}: is there already; give another name, or --force to replace it")
    single = len(sources) == 1 and not os.path.isdir(sources[0]) and not sources[0].endswith(".jsonl")
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
    image = _opened(arguments.image[0], settings)
    reference = _reference_of(arguments, settings)
    program = program_from(arguments, settings)
    result = program(
        image=image, reference=reference, query=_query(arguments), options=arguments.option,
        regions=dict(arguments.region) or None,
    )  # fmt: skip
    if arguments.heatmap is not None:
        _save(program.heatmap(image, reference), arguments.heatmap)
    if arguments.json:
        sys.stdout.write(result.model_dump_json(indent=2) + "\n")
    else:
        show(result, sources=arguments.verbose > 0)
    if arguments.min_score is not None and result.rating is not None:
        return _gate([row_of("", None, result)], arguments)
    return EXIT_PROBLEMS if result.status == "failed" or arguments.min_score is not None else 0


def _gate(rows: Sequence[BatchRow], arguments: argparse.Namespace) -> int:
    """Return the exit code that --min-score and --sure give scored rows."""
    verdicts = {verdict(row, arguments.min_score, arguments.sure) for row in rows if row.score is not None}
    return EXIT_BELOW_MINIMUM if "below" in verdicts else EXIT_NOT_SURE if "not sure" in verdicts else 0


def _save(picture: Image.Image, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path)
    except (OSError, ValueError) as error:
        raise InputError(f"--heatmap {str(path)!r}: cannot be written ({error}); name a .png file") from error


def _opened(name: str | Path, settings: Settings) -> ImageRef:
    return IMAGES.add(Path(name), max_pixels=settings.images.max_pixels)


def _reference_of(arguments: argparse.Namespace, settings: Settings) -> ImageRef | None:
    """Return the reference of one image; of a folder, the file of the image's name."""
    if not arguments.reference:
        return None
    (item,) = gather(arguments.image[:1], reference=Path(arguments.reference))
    if item.reference is None:
        raise InputError(str(item.error))
    return _opened(item.reference, settings)


def _many(arguments: argparse.Namespace, settings: Settings) -> int:
    reference = Path(arguments.reference) if arguments.reference else None
    items = gather(arguments.image, recursive=arguments.recursive, globs=arguments.glob or (), reference=reference)
    program, question = program_from(arguments, settings), Question(arguments.query, arguments.option)
    options = {"workers": arguments.workers, "progress": not arguments.json}
    if arguments.out is None:
        rows = judge(program, items, question, **options)
    else:
        rows = judge_into(program, items, question, arguments.out, **options)
    if arguments.json:
        text = json.dumps(summary(rows, arguments.min_score), ensure_ascii=False, indent=2)
        sys.stdout.write(text + "\n")
    else:
        show_summary(rows, str(arguments.out) if arguments.out else None, arguments.min_score)
    if arguments.min_score is not None and (code := _gate(rows, arguments)):
        return code
    unscored = arguments.min_score is not None and any(row.score is None for row in rows)
    return EXIT_PROBLEMS if unscored or any(row.status in {"error", "failed"} for row in rows) else 0


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
