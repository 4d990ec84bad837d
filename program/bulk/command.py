"""What `python -m program.assess` does with its flags: one image, many, or two compared."""

import argparse
import json
import os
import sys
from pathlib import Path

from program.agent import DEFAULT_QUERY, AgenticIQA
from program.bulk.comparing import Comparison, compare
from program.bulk.inputs import gather
from program.bulk.journal import is_begun
from program.bulk.rows import FORMATS
from program.bulk.running import Question, judge, judge_into
from program.bulk.showing import show, show_summary, summary
from program.cli import EXIT_FAILED_SAMPLES
from program.errors import InputError
from program.images import IMAGES, ImageRef
from program.query import QueryType, detect_query_type
from program.saving import load
from program.settings import Settings

__all__ = ("EXIT_BELOW_MINIMUM", "run")

EXIT_BELOW_MINIMUM = 3


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Do what the flags ask for, and return the exit code."""
    sources = arguments.image
    single = len(sources) == 1 and not os.path.isdir(sources[0]) and not sources[0].endswith(".jsonl")
    if arguments.out is not None and arguments.out.suffix not in FORMATS:
        raise InputError(f"--out {str(arguments.out)!r}: unknown kind; end its name in {', '.join(FORMATS)}")
    if arguments.out is not None and os.path.isdir(arguments.out):
        raise InputError(f"--out {str(arguments.out)!r}: is a folder; name a file in it")
    if arguments.option is not None and len(arguments.option) < 2:
        raise InputError(f"--option {arguments.option[0]!r}: is the only one; give --option twice or more")
    if arguments.compare:
        return _compare(arguments, settings)
    _check_question(arguments)
    if arguments.out is not None and arguments.out.exists() and not (arguments.force or is_begun(arguments.out)):
        raise InputError(f"--out {str(arguments.out)!r}: is there already; give another name, or --force to replace it")
    if single and arguments.out is None:
        return _one(arguments, settings)
    return _many(arguments, settings)


def _check_question(arguments: argparse.Namespace) -> None:
    query = DEFAULT_QUERY if arguments.query is None else arguments.query
    try:
        kind = detect_query_type(query, arguments.option)
    except ValueError as error:
        raise InputError(str(error)) from error
    if arguments.min_score is not None and kind is not QueryType.SCORING:
        raise InputError(f"--min-score: {query!r} asks for no score; leave --min-score out, or --query and --option")


def _program(arguments: argparse.Namespace, settings: Settings) -> AgenticIQA:
    return load(arguments.program, settings) if arguments.program else AgenticIQA(settings)


def _one(arguments: argparse.Namespace, settings: Settings) -> int:
    limit = settings.images.max_pixels
    image = IMAGES.add(Path(arguments.image[0]), max_pixels=limit)
    reference = _reference_of(arguments, limit)
    query = DEFAULT_QUERY if arguments.query is None else arguments.query
    result = _program(arguments, settings)(image=image, reference=reference, query=query, options=arguments.option)
    if arguments.json:
        sys.stdout.write(result.model_dump_json(indent=2) + "\n")
    else:
        show(result)
    if arguments.min_score is not None and result.rating is not None:
        return EXIT_BELOW_MINIMUM if result.rating < arguments.min_score else 0
    return EXIT_FAILED_SAMPLES if result.status == "failed" or arguments.min_score is not None else 0


def _reference_of(arguments: argparse.Namespace, limit: int) -> ImageRef | None:
    if not arguments.reference:
        return None
    if not os.path.isdir(arguments.reference):
        return IMAGES.add(Path(arguments.reference), max_pixels=limit)
    (item,) = gather(arguments.image, reference=Path(arguments.reference))
    if item.reference is None:
        raise InputError(item.error or f"image {item.id!r}: no reference found")
    return IMAGES.add(item.reference, max_pixels=limit)


def _many(arguments: argparse.Namespace, settings: Settings) -> int:
    reference = Path(arguments.reference) if arguments.reference else None
    items = gather(arguments.image, recursive=arguments.recursive, globs=arguments.glob or (), reference=reference)
    program, question = _program(arguments, settings), Question(arguments.query, arguments.option)
    shown = {"workers": arguments.workers, "progress": not arguments.json}
    if arguments.out is None:
        rows = judge(program, items, question, **shown)
    else:
        rows = judge_into(program, items, question, arguments.out, **shown)
    if arguments.json:
        text = json.dumps(summary(rows, arguments.min_score), ensure_ascii=False, indent=2)
        sys.stdout.write(text + "\n")
    else:
        show_summary(rows, str(arguments.out) if arguments.out else None, arguments.min_score)
    scores = [row.score for row in rows if row.score is not None]
    if arguments.min_score is not None and any(score < arguments.min_score for score in scores):
        return EXIT_BELOW_MINIMUM
    unscored = arguments.min_score is not None and len(scores) < len(rows)
    return EXIT_FAILED_SAMPLES if unscored or any(row.status in {"error", "failed"} for row in rows) else 0


def _compare(arguments: argparse.Namespace, settings: Settings) -> int:
    if len(arguments.image) != 2:
        raise InputError(f"--compare: needs two images; {len(arguments.image)} given")
    if arguments.query or arguments.option or arguments.out or arguments.min_score is not None:
        raise InputError("--compare: compares two scores; leave --query, --option, --out and --min-score out")
    limit = settings.images.max_pixels
    first, second = (IMAGES.add(Path(name), max_pixels=limit) for name in arguments.image)
    reference = IMAGES.add(Path(arguments.reference), max_pixels=limit) if arguments.reference else None
    found = compare(_program(arguments, settings), first, second, reference)
    sys.stdout.write(f"{found.model_dump_json(indent=2)}\n" if arguments.json else _told(found, arguments.image))
    return 0


def _told(found: Comparison, names: list[str]) -> str:
    lines = [f"A {names[0]}: {found.score_a:.2f} of 5", f"B {names[1]}: {found.score_b:.2f} of 5"]
    sure = max(found.probability_b_better, 1 - found.probability_b_better)
    stated = "over 99%" if sure > 0.99 else f"{sure:.0%}"  # nothing is certain, whatever the rounding says
    ahead = f", {found.better} by {abs(found.difference):.2f} of 4 points, {stated} sure" if found.better else ""
    lines.append(f"{found.verdict}{ahead}")
    lines += [f"- {reason}" for reason in found.reasons]
    return "\n".join(lines) + "\n"
