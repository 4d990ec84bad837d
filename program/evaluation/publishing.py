"""What people see of an evaluation: a page (it fetches nothing and runs no script), the terminal, a run of MLflow."""

import functools
import heapq
import json
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import jinja2

from data.manifest import Sample
from data.reviews import MISSES, Miss, sha256_of
from program.agent.loop import AgenticIQA
from program.agent.module import digest
from program.agent.resources import ROLES
from program.agent.saving import program_sha256
from program.common.console import Console
from program.common.errors import InputError
from program.common.files import Place, remove_leftovers, write_whole
from program.common.outputs import REPORT, check_outputs_in, replacing
from program.common.request import DEFAULT_QUERY
from program.evaluation.agreement import ceiling_words
from program.evaluation.charts import (
    baseline_tables,
    baselines_by_task,
    figure_lines,
    figures_table,
    heading,
    notes,
    scatter_svg,
    svg_url,
)
from program.evaluation.evaluating import Evaluating
from program.evaluation.intervals import METRICS, Figure
from program.evaluation.metrics import srcc
from program.evaluation.record import WORST, Baseline, Dataset, Details, EvaluationRecord, LabelledRow
from program.fusion import ScoreFusion
from program.images.store import jpeg_of, small, thumbnail
from program.lms.traits import known_traits
from program.tracking import RunHandle, dataset_name
from signatures.schemas import CATEGORY_WORDS

_THUMBNAIL_PX = 320


def pictures_of(samples: Iterable[Sample], wanted: set[str]) -> Mapping[str, Mapping[str, Any]]:
    """Return what to show of the samples whose ids are wanted, by id.

    Pictures are data: URLs, None where the image cannot be read.
    """
    pictures = {}
    for sample in samples:
        if sample.id in wanted:
            reference = _thumbnail(sample.reference) if sample.reference else None
            pictures[sample.id] = {
                "image": _thumbnail(sample.image), "reference": reference, "query": sample.query,
                "options": sample.options,
            }  # fmt: skip
    return pictures


def _thumbnail(path: Place) -> str | None:
    try:
        return thumbnail(path, _THUMBNAIL_PX)
    except InputError:
        return None


_FAILURES_SHOWN = 5


def write_report(record: EvaluationRecord, samples: Iterable[Sample], folder: Path, run_id: str | None = None) -> Path:
    """Write `report.html`, `record.json` and `misses.jsonl` into a folder and return the page's path.

    `samples` are looked through for the images of the worst misses, `run_id` is the run that has their traces. Raises
    InputError where the folder cannot be written.
    """
    page, table, misses = files = report_files(folder)
    summary, rendered = json.dumps(record.summary(), indent=2, ensure_ascii=False) + "\n", render(record, samples)
    lines = (f"{miss.model_dump_json(exclude_defaults=True)}\n" for miss in misses_of(record, samples, run_id))
    missed = "".join(lines)
    with _writing(folder), replacing(folder, REPORT, [file.name for file in files]):
        write_whole(table, summary)
        write_whole(misses, missed)
        write_whole(page, rendered)
    return page


def misses_of(record: EvaluationRecord, samples: Iterable[Sample], run_id: str | None = None) -> list[Miss]:
    """Return the worst misses, worst first, scores before options, for people to say who is right."""
    rows = {row.id: row for task in ("scoring", "mcq") for row in worst_rows(record.rows, task)}
    misses: dict[str, Miss] = {}
    for sample in samples:
        row = rows.get(sample.id)
        if row is not None and (sha256 := sha256_of(sample.image)):
            low, high = row.score_interval or (None, None)
            misses[sample.id] = Miss(
                id=sample.id, sha256=sha256, run_id=run_id, image=_absolute(sample.image), query=sample.query,
                options=sample.options, judge=sample.judge, people=row.truth, program=row.predicted, low=low,
                high=high, reason=row.quality_reasoning or "",
            )  # fmt: skip
        if len(misses) == len(rows):
            break
    return [misses[name] for name in rows if name in misses]


def _absolute(place: Place) -> str:
    return str(place.absolute()) if isinstance(place, Path) else place


def report_files(folder: Path) -> tuple[Path, Path, Path]:
    """Return what a report's folder holds: the page, the record, and the worst misses to review."""
    return folder / "report.html", folder / "record.json", folder / MISSES


def check_report_folder(folder: Path) -> None:
    """Make the folder of a report; InputError, before hours of work, where none can be written there.

    That is also where something else is in its way.
    """
    with _writing(folder), tempfile.TemporaryFile(dir=folder):
        check_outputs_in(folder, REPORT)
        remove_leftovers(folder)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        fault = f"cannot be written ({error.strerror})"
        raise InputError(f"report {str(folder)!r}: {fault}; give another folder") from error


def render(
    record: EvaluationRecord,
    samples: Iterable[Sample],
    drawn: str | None = None,
    sections: Mapping[str, str] | None = None,
    opening: Mapping[str, str] | None = None,
) -> str:
    """Return the page, with an `opening` and `sections` of plain text by title. What comes from data is escaped.

    `drawn` is its chart, where that was drawn before.
    """
    shown = {"worst": worst_rows(record.rows, "scoring"), "wrong": worst_rows(record.rows, "mcq")}
    pictures = pictures_of(samples, {row.id for rows in shown.values() for row in rows})
    if drawn is None:
        drawn = scatter_svg({"program": record})
    details = record.details or Details()
    return _template().render(
        heading=heading(record), record=record, notes=notes(record), metrics=METRICS,
        figures=list(figure_lines(record)),
        ladders=[_ladder(record, ways, columns) for ways, columns in baselines_by_task(record)],
        scatter=svg_url(drawn) if drawn else "",
        by_part={"distortion": details.by_distortion, "level of the label": details.by_level,
                 "type of question": details.by_question_type},
        shown=shown, pictures=pictures, failures=list(record.failures()),
        opening=dict(opening or {}), sections=dict(sections or {}), words=CATEGORY_WORDS,
    )  # fmt: skip


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(files("program.evaluation").joinpath("page.html").read_text("utf-8"))


def worst_rows(rows: Iterable[LabelledRow], task: str) -> list[LabelledRow]:
    """Return the worst misses of a task, worst first; of multiple choice wrong answers, drawn by their ids' hash."""
    missed = [row for row in rows if row.task == task and row.miss is not None]
    return heapq.nlargest(WORST, missed, key=lambda row: (row.miss or 0.0, row.id))


def _ladder(record: EvaluationRecord, ways: list[Baseline], columns: list[str]) -> dict[str, Any]:
    """Return the baselines, best first, the metrics to show of them, and where their common axis begins."""
    metric = columns[0]
    ways = sorted(ways, key=lambda way: (way.kind != "uncompiled", -(way.figures[metric].value or -2)))
    figures = [record.figures[metric], *(way.figures[metric] for way in ways)]
    ends = [end for f in figures for end in (f.low, f.value) if end is not None]
    return {"metric": metric, "columns": columns, "ways": ways, "floor": math.floor(min([*ends, 0.9]) * 10) / 10}


def show(record: EvaluationRecord, samples: Iterable[Sample], page: Path | None) -> None:
    """Print the tables, the most that the labels allow, what failed and what it cost, and where the report is."""
    console = Console()
    console.print(figures_table(record))
    for table in baseline_tables(record):
        console.print()
        console.print(table)
    if words := ceiling_words(samples, record):
        console.print(f"\n{words}", highlight=False)
    for name, error in islice(record.failures(), _FAILURES_SHOWN):
        console.print(f"failed      {name}: {error}", highlight=False, markup=False, soft_wrap=True)
    if record.failed > _FAILURES_SHOWN:
        console.print(f"            and {record.failed - _FAILURES_SHOWN} more, in the report", highlight=False)
    facts = [f"{len(record.rows)} samples in {record.wall_seconds:.1f} s"]
    if record.degraded:
        facts.append(f"{record.degraded} degraded")
    if record.lm_calls:
        facts += [f"{record.lm_calls} model calls", f"{record.tokens or 0} tokens"]
    if record.cost_usd is not None:
        facts.append(f"{record.cost_usd:.4f} USD")
    console.print(f"\n{', '.join(facts)}", highlight=False)
    if page is not None:
        console.print(f"report      {page}", highlight=False, soft_wrap=True)


_LISTED = ("srcc", "plcc", "rmse", "accuracy", "preference")
_MAX_TABLE_ROWS = 20_000
"""A larger table takes MLflow's UI minutes to show."""
_PICTURE_PX = 320


def log_evaluation(
    record: EvaluationRecord, run: RunHandle, program: AgenticIQA, samples: Iterable[Sample], page: Path | None = None
) -> None:
    """Log what was asked of a program, its headlines, the samples' table, the chart, the report, the worst misses.

    `page` is the report where it was written already; else one is made from `samples` for the run alone.
    """
    drawn = scatter_svg({"program": record})
    words = {"seed": record.seed, "labels": labels_of(samples), "fitted": str(record.fitted or "unknown")}
    log_headlines(run, record, program, samples, words)
    run.log_metrics({"seconds": record.wall_seconds})
    run.log_table([row.columns() for row in record.rows[:_MAX_TABLE_ROWS]], "samples")
    if drawn:
        run.log_text(drawn, "scatter.svg")
    run.log_content(record.summary(), "result.json")
    run.log_content({**record.context, "seed": record.seed}, "settings.yaml")
    run.log_text(page.read_text("utf-8") if page else render(record, samples, drawn), "report.html")
    log_misses(run, record, program, samples)


def log_headlines(
    run: RunHandle, record: EvaluationRecord, program: AgenticIQA, samples: Iterable[Sample], asked: Mapping[str, Any]
) -> None:
    """Log the data, the program, its figures, and what else was `asked` for: what MLflow lists of an evaluation."""
    split = record.dataset.split or "all"
    log_origin(run, record, {split: (record.rows, samples)})
    sizes = {"sizes": f"{split} {len(record.rows)}"}
    run.log_params({**origin_params(record.dataset), **asked, **sizes, **learned_params(program, record.rows)})
    run.set_tags({"agreement": agreement(record)})
    run.link_model(program_sha256(program))
    run.log_metrics(headlines(record, program))
    figures = (f"{METRICS[name].title} {figure}" for name, figure in record.figures.items())
    run.describe(f"{heading(record)}: {', '.join(figures)}. Fusion: {fusion_words(program, record.rows)}.")


def labels_of(samples: Iterable[Sample]) -> str:
    """Return whose the labels are, in a word."""
    return "made-up" if all(sample.is_made_up for sample in samples) else "people"


def origin_params(dataset: Dataset) -> dict[str, Any]:
    """Return which data a run is about, as its parameters."""
    return {"data": dataset_name(dataset.name), "data_sha256": (dataset.manifest_sha256 or "unknown")[:12]}


def agreement(record: EvaluationRecord) -> str:
    """Return the leading figure with its interval and its samples, as the list of runs shows it."""
    for name, figure in _listed(record.figures):
        words = (METRICS[name].title.rstrip(" ↑↓"), figure.value_text(), figure.ends_text(), f"n={figure.n}")
        return " ".join(word for word in words if word)
    return "no labels"


def headlines(record: EvaluationRecord, program: AgenticIQA) -> dict[str, float | None]:
    """Return the few figures of a run that MLflow is to list, by their names there; result.json holds all.

    Model and tools stand for what either says alone, the best simple way for the best of the baselines. The fusion is
    the one in force.
    """
    values: dict[str, float | None] = {name: figure.value for name, figure in _listed(record.figures)}
    for name, belief in (("model_srcc", "expected_level"), ("tools_srcc", "tool_mean_equal")):
        used = [row for row in record.rows if row.task == "scoring" and row.counts and belief in row.beliefs]
        if used:
            truth: list[Any] = [row.truth for row in used]
            values[name] = srcc(truth, [row.beliefs[belief] for row in used])
    ways = [way for way in record.baselines.values() if way.kind != "uncompiled"]
    simple = [way.figures["srcc"].value or -1 for way in ways if "srcc" in way.figures]
    fusion = program.summarizer.fusion
    return values | {
        "best_simple_srcc": max(simple, default=None), "failed": record.failed, "lm_calls": record.lm_calls,
        "fusion_eta": fusion.eta, "fusion_model_weight": fusion.model_weight,
    }  # fmt: skip


def _listed(figures: Mapping[str, Figure]) -> list[tuple[str, Figure]]:
    return [(name, figures[name]) for name in _LISTED if name in figures]


def log_misses(run: RunHandle, record: EvaluationRecord, program: AgenticIQA, samples: Iterable[Sample]) -> set[str]:
    """Judge the worst misses once more, each recorded as a trace of the run; return which predictors asked a model.

    A model whose answers are not kept would be paid again: its misses are not traced.
    """
    most = program.resources.settings.tracking.traces
    kept = all(known_traits(lm).embedded or lm.cache for lm in map(program.resources.lm, ROLES))
    rows = {row.id: row for task in ("scoring", "mcq") for row in worst_rows(record.rows, task)[:most]}
    if not rows or not kept or run.run_id is None:
        return set()
    from mlflow.tracing.attachments import Attachment

    from program.tracking.traces import record_traces

    again, order = Evaluating(program), [*rows]
    missed = islice((sample for sample in samples if sample.id in rows), len(rows))
    # MLflow shows the last trace first.
    with record_traces(run, program) as recording:
        for sample in sorted(missed, key=lambda each: order.index(each.id), reverse=True):
            with suppress(InputError):  # of a picture that cannot be read, or a budget that is spent
                picture = jpeg_of(small(sample.image, _PICTURE_PX))
                shown = Attachment(content_type="image/jpeg", content_bytes=picture)
                inputs = {"picture": shown, "query": sample.query, "options": sample.options}
                truth: Any = rows[sample.id].truth
                whose = "CODE" if sample.is_made_up else "HUMAN"
                recording.judge(sample.id, inputs, truth, whose, partial(_answer, again, sample))
    return recording.asked


def _answer(judge: Evaluating, sample: Sample) -> Any:
    return judge(sample).predicted


def log_origin(
    run: RunHandle,
    record: EvaluationRecord,
    splits: Mapping[str, tuple[Sequence[LabelledRow | Sample], Iterable[Sample]]],
) -> None:
    """Log which data went in, each split with a digest of its labels, why a figure has no value, and the code.

    Of each split also the samples themselves are given, to be shown.
    """
    name = record.dataset.name
    for split, (members, samples) in splits.items():
        truths = sorted((each.id, each.truth) for each in members)
        run.log_dataset(dataset_name(name), digest(truths), name, split, map(_shown, samples))
    figures = record.figures.items()
    run.set_tags({f"undefined.{name}": f.reason or "no samples" for name, f in figures if f.value is None})
    here = record.environment
    if here.git_commit:
        dirty = str(here.git_dirty).lower()
        run.set_tags({"mlflow.source.git.commit": here.git_commit, "git_dirty": dirty})


def _shown(sample: Sample) -> dict[str, Any]:
    """Return a sample as `mlflow.genai.evaluate` takes it."""
    asked = {"image": str(sample.image), "query": sample.query or DEFAULT_QUERY, "options": sample.options}
    return {"inputs": asked, "expectations": {"truth": sample.truth}}


_LONGEST = 300
_SAME = 1e-4
"""Scores nearer than this are the same: those that are kept have six digits."""


def learned_params(program: AgenticIQA, rows: Iterable[LabelledRow] = ()) -> dict[str, Any]:
    """Return model, demos (their number), rubric (the lines that were added to the instructions) and fusion in words.

    Program, prompts and what changed hold them in full. `rows` are what it answered, if anything.
    """
    models = {role: str(program.resources.lm(role).model) for role in ROLES}
    model = models["summarizer"]
    if len(set(models.values())) > 1:
        model = ", ".join(f"{role} {name}" for role, name in models.items())
    lines: dict[str, None] = {}  # several predictors may have learned the same
    for added in added_lines(AgenticIQA(program.resources.settings), program).values():
        lines |= dict.fromkeys(line.removeprefix("- ") for line in added if not line.endswith(":"))
    rubric = " ".join(lines) or "as shipped"
    if len(rubric) > _LONGEST:
        rubric = f"{rubric[: _LONGEST - 1]}…"
    demos = sum(len(predictor.demos) for _, predictor in program.named_parameters())
    params: dict[str, Any] = {"model": model, "demos": demos, "rubric": rubric, "fusion": fusion_words(program, rows)}
    if (near := program.summarizer.neighbours) is not None:
        params["neighbours"] = f"{near.count} of {len(near.photographs)}"
    if (moved := program.summarizer.corrections) is not None:
        params["correction"] = f"by {moved.count} labels"
    return params


def fusion_words(program: AgenticIQA, rows: Iterable[LabelledRow] = ()) -> str:
    """Return how a program makes one score of its model's and its tools', in one line; of `rows`, how it did."""
    fusion = program.summarizer.fusion
    if fusion.eta == 0:
        who = "model alone (the tools do not count)"
    elif fusion.model_weight == 0:
        who = "tools alone (the model does not count)"
    elif _is_model_alone(fusion, rows):
        who = "model alone (no tool has weight)"
    else:
        who = f"model weight {fusion.model_weight:g}, eta {fusion.eta:g}"
    return who if fusion.kind == "none" else f"{who}, map {fusion.kind}"


def _is_model_alone(fusion: ScoreFusion, rows: Iterable[LabelledRow]) -> bool:
    """Return whether every score is what the model says: tools of no reliability leave it as it is."""
    scores = [row for row in rows if row.task == "scoring" and row.counts]
    if not scores or any("expected_level" not in row.beliefs for row in scores):
        return False
    moves = (fusion.map_score(row.beliefs["expected_level"]) - float(row.predicted or 0) for row in scores)
    return all(abs(move) < _SAME for move in moves)


def added_lines(before: AgenticIQA, after: AgenticIQA) -> dict[str, list[str]]:
    """Return the lines of each predictor's instructions that are not in another program's."""
    old, added = dict(before.named_parameters()), {}
    for name, predictor in after.named_parameters():
        known = old[name].signature.instructions.splitlines()
        added[name] = [line for line in predictor.signature.instructions.splitlines() if line not in known]
    return added
