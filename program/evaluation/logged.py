"""An evaluation, a calibration or the end of a compile as a run of MLflow: few names in sight, the rest in files."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from data.manifest import Sample
from program.agent.loop import AgenticIQA
from program.agent.program_file import digest
from program.agent.resources import ROLES
from program.agent.saving import program_sha256
from program.common.errors import InputError
from program.common.settings import Settings
from program.evaluation.charts import charts
from program.evaluation.evaluating import Evaluating
from program.evaluation.intervals import Figure, interval
from program.evaluation.metric_table import METRICS
from program.evaluation.publishing import render, worst
from program.evaluation.record import Dataset, Environment, EvaluationRecord, environment
from program.evaluation.row import LabelledRow
from program.evaluation.tables import heading
from program.images.thumbnails import small
from program.lms.traits import known_traits
from program.tracking import RunHandle, Tracker, dataset_name, miss_trace, traced

__all__ = (
    "added_lines", "gains", "headlines", "labels_of", "log_calibration", "log_evaluation", "log_misses",
    "log_origin", "origin_params", "taught",
)  # fmt: skip

_LISTED, _ENDS = ("srcc", "plcc", "rmse", "accuracy", "preference"), ("low", "high")
_MAX_TABLE_ROWS = 20_000
"""A larger table takes MLflow's UI minutes to show; the checkpoint holds every row."""
_PICTURE_PX = 320


def log_evaluation(
    record: EvaluationRecord, run: RunHandle, program: AgenticIQA, samples: Iterable[Sample], page: Path | None = None
) -> None:
    """Log what was asked of a program, its headlines, the samples' table, the charts, the report, the worst misses.

    `page` is the report where it was written already; else one is made from `samples` for the run alone.
    """
    plots = charts(record)
    split = record.dataset.split or "all"
    log_origin(run, record, {split: record.rows})
    words = {"sizes": f"{split} {len(record.rows)}", "labels": labels_of(samples), "seed": record.seed}
    run.log_params({**origin_params(record.dataset), **words, **taught(program)})
    run.link_model(program_sha256(program))
    run.log_metrics({**headlines(record, program), "seconds": record.wall_seconds})
    rows = islice(record.rows, _MAX_TABLE_ROWS)
    run.log_table([row.columns() for row in rows], "samples")
    for plot_name, plot in plots.items():
        run.log_plot(plot, plot_name)
    run.log_content(record.summary(), "result.json")
    run.log_content({**record.context, "seed": record.seed}, "settings.yaml")
    run.log_text(page.read_text("utf-8") if page else render(record, samples, plots), "report.html")
    log_misses(run, record, program, samples)
    figures = (f"{METRICS[name].title} {figure}" for name, figure in record.figures.items())
    run.describe(f"{heading(record)}: {', '.join(figures)}")


def labels_of(samples: Iterable[Sample]) -> str:
    """Return whose the labels are, in a word."""
    return "made-up" if all(sample.is_made_up for sample in samples) else "people"


def origin_params(dataset: Dataset) -> dict[str, Any]:
    """Return which data a run is about, as its parameters."""
    return {"data": dataset_name(dataset.name), "data_sha256": (dataset.manifest_sha256 or "unknown")[:12]}


def headlines(record: EvaluationRecord, program: AgenticIQA) -> dict[str, float | None]:
    """Return the few figures of a run that MLflow is to list, by their names there; result.json holds all.

    The leading one comes with its interval; model and tools stand for what either says alone, the best simple way for
    the best of the baselines. The fusion is the one in force.
    """
    values: dict[str, float | None] = {name: f.value for name, f in record.figures.items() if name in _LISTED}
    values |= {f"{name}_{end}": getattr(record.figures[name], end) for name in list(values)[:1] for end in _ENDS}
    for name, belief in (("model_srcc", "expected_level"), ("tools_srcc", "tool_mean")):
        values[name] = _srcc_of(record.rows, belief)
    simple = [way.figures["srcc"].value or -1 for way in record.baselines.values() if "srcc" in way.figures]
    fusion = program.summarizer.fusion
    values |= {
        "best_simple_srcc": max(simple, default=None), "failed": record.failed, "lm_calls": record.lm_calls,
        "fusion_eta": fusion.eta, "fusion_model_weight": fusion.model_weight,
    }  # fmt: skip
    return _rounded(values)


def gains(differences: Mapping[str, Figure]) -> dict[str, float | None]:
    """Return the gains that MLflow is to list, each with the ends of its interval."""
    listed = {f"gain_{name}": figure for name, figure in differences.items() if name in _LISTED and name != "plcc"}
    ends = {f"{name}_{end}": getattr(figure, end) for name, figure in listed.items() for end in _ENDS}
    return _rounded({name: figure.value for name, figure in listed.items()} | ends)


def _rounded(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return values as a list can show them."""
    return {name: value if value is None else round(value, 4) for name, value in values.items()}


def _srcc_of(rows: Iterable[LabelledRow], belief: str) -> float | None:
    pairs = [(row.truth, value) for row in rows if row.task == "scoring" and row.counts
             and (value := row.beliefs.get(belief)) is not None]  # fmt: skip
    return interval("srcc", *zip(*pairs, strict=True)).value if pairs else None


def log_misses(run: RunHandle, record: EvaluationRecord, program: AgenticIQA, samples: Iterable[Sample]) -> None:
    """Judge the worst misses once more, each recorded as a trace of the run, and log their pictures.

    A model whose answers are not kept would be paid again: its misses are not traced.
    """
    most = program.resources.settings.tracking.traces
    kept = all(known_traits(lm).is_deterministic or lm.cache for lm in map(program.resources.lm, ROLES))
    rows = {row.id: row for task in ("scoring", "mcq") for row in worst(record.rows, task)[:most]}
    if not rows or not kept or run.run_id is None:
        return
    places = {name: f"misses/{number:02}.png" for number, name in enumerate(rows, 1)}
    again = Evaluating(program)
    with traced(run) as expected:
        for sample in islice((sample for sample in samples if sample.id in rows), len(rows)):
            with suppress(InputError):  # of a picture that cannot be read, or a budget that is spent
                run.log_picture(small(sample.image, _PICTURE_PX), places[sample.id])
                inputs = {"query": sample.query, "options": sample.options, "picture": run.address(places[sample.id])}
                truth: Any = rows[sample.id].truth
                with miss_trace(sample.id, inputs, truth) as answered:
                    trace = answered(again(sample).predicted)
                expected[trace] = (truth, not sample.is_made_up)


def log_calibration(
    tracker: Tracker, settings: Settings, datasets: Sequence[tuple[str, str, str]], result: Mapping[str, Any], out: Path
) -> RunHandle:
    """Log a calibration (or measured strengths) with the datasets (name, hash, split) it was fitted on, as one run."""
    names = " + ".join(name for name, _, _ in datasets)
    with tracker.run(f"calibrate on {names}", {"command": "calibrate"}, result=f"the result is in {str(out)!r}") as run:
        for name, digest, split in datasets:
            run.log_dataset(name, digest, name, split)
        here = environment()
        _log_commit(run, here)
        run.log_params({"data": names, "data_sha256": " ".join(digest[:12] for _, digest, _ in datasets),
                        "seed": settings.seed, "tools": " ".join(result.get("tools", {}))})  # fmt: skip
        asked = {"tools": settings.tools.model_dump(mode="json"), "environment": here.model_dump(mode="json")}
        run.log_content(asked, "settings.yaml")
        run.log_content(result, "result.json")
        run.log_file(out)
    return run


def log_origin(run: RunHandle, record: EvaluationRecord, splits: Mapping[str, Sequence[LabelledRow | Sample]]) -> None:
    """Log which data went in, each split with a digest of its own, why a figure has no value, and the code."""
    name = record.dataset.name
    for split, members in splits.items():
        truths = sorted((each.id, each.truth) for each in members)
        run.log_dataset(dataset_name(name), digest(truths), name, split)
    figures = record.figures.items()
    run.set_tags({f"undefined.{name}": f.reason or "no samples" for name, f in figures if f.value is None})
    _log_commit(run, record.environment)


def _log_commit(run: RunHandle, here: Environment) -> None:
    if here.git_commit:
        run.set_tags({"mlflow.source.git.commit": here.git_commit, "git_dirty": str(here.git_dirty).lower()})


_LONGEST = 300


def taught(program: AgenticIQA) -> dict[str, Any]:
    """Return model, demos (their number), rubric (the lines that were added to the instructions) and fusion in words.

    Program, prompts and what changed hold them in full.
    """
    models = {role: str(program.resources.lm(role).model) for role in ROLES}
    fusion = program.summarizer.fusion
    near = program.summarizer.neighbours
    lines = added_lines(AgenticIQA(program.resources.settings), program)
    # Several predictors may have learned the same.
    said = dict.fromkeys(line.removeprefix("- ") for added in lines.values() for line in added)
    added = " ".join(line for line in said if not line.endswith(":"))
    return {
        "model": models["summarizer"] if len(set(models.values())) == 1 else ", ".join(map(" ".join, models.items())),
        "demos": sum(len(predictor.demos) for _, predictor in program.named_parameters()),
        "rubric": f"{added[: _LONGEST - 1]}…" if len(added) > _LONGEST else added or "as shipped",
        **({"neighbours": f"{near.count} of {len(near.photographs)}"} if near is not None else {}),
        "fusion": f"eta {fusion.eta:g}, model weight {fusion.model_weight:g}, tools {fusion.tool_weights}, "
                  f"map {fusion.kind}",
    }  # fmt: skip


def added_lines(before: AgenticIQA, after: AgenticIQA) -> dict[str, list[str]]:
    """Return the lines of each predictor's instructions that are not in another program's."""
    old = {name: predictor.signature.instructions.splitlines() for name, predictor in before.named_predictors()}
    return {
        name: [line for line in predictor.signature.instructions.splitlines() if line not in old[name]]
        for name, predictor in after.named_predictors()
    }
