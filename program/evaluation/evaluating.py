"""An evaluation from a dataset's name to a whole record: what `python -m program.evaluate` does, from Python."""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, get_args

import dspy
from pydantic import JsonValue

from data.catalogue import GENERATED, resolve_dataset
from data.manifest import Layout, Sample, ScaleDoubt, Split, left_out, manifest_sha256, read_manifest
from data.splits import check_leaks
from program.agent.loop import AgenticIQA
from program.agent.program_file import digest
from program.agent.saving import program_sha256
from program.common.cache import can_keep
from program.common.errors import InputError
from program.common.files import CONFIGS
from program.common.places import Place
from program.common.settings import PLACES, Settings
from program.evaluation.baselines import BaselineAnswers, with_baselines
from program.evaluation.figures import details_of
from program.evaluation.record import SCHEMA_VERSION, Dataset, EvaluationRecord, Readings, Row
from program.evaluation.runner import Engine, run_samples
from program.tools.calibration import PAPER
from program.tools.readiness import file_sha256, library_label, parameter_path

__all__ = ("checkpoint_path", "context_of", "evaluate", "samples_of", "tool_versions")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ManifestSplit:
    """One split of a manifest, read anew at each pass; no more than a line is held."""

    manifest: Place
    split: str | None
    size: int
    name: str
    """The dataset's own name, or the manifest's with the folder it lies in."""
    layout: Layout
    judge: str = "people"
    """Whose labels these are."""

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Sample]:
        return (s for s in read_manifest(self.manifest, self.layout) if self.split in {None, s.split} and not s.is_bare)


def samples_of(
    data: str | Path, settings: Settings, split: str | None = "test", *, progress: bool = True,
    layout: Layout | None = None,
) -> ManifestSplit:  # fmt: skip
    """Return a dataset's samples, after reading every line: a fault is told before the first model call.

    `data` is a dataset's name or a manifest's path or URI, which is read by `layout`; `split` None takes all. Raises
    InputError for an empty split or one without a single label, and DataError for a group in two splits, as compiling
    does.
    """
    manifest, layout = resolve_dataset(data, settings.cache_dir, progress=progress), layout or Layout()
    if split is not None:
        check_leaks(read_manifest(manifest, layout))
    doubt, samples = ScaleDoubt(), read_manifest(manifest, layout)
    every = (sample for sample in map(doubt.seen, samples) if split in {None, sample.split})
    chosen = Counter("bare" if s.is_bare else s.judge if s.is_labelled else "none" for s in every)
    judges, bare = sorted(chosen.keys() - {"bare", "none"}), chosen["bare"]
    if not chosen:
        raise InputError(f"manifest {str(manifest)!r}: no sample in split {split!r}; choose another --split, or all")
    if not judges:
        raise InputError(
            f"manifest {str(manifest)!r}: no sample {f'of split {split!r} ' if split else ''}has a label; "
            'give "mos", or "options" with an "answer"'
        )
    if bare:
        logger.warning("%s: %s", str(manifest), left_out(bare, chosen.total()))
    if doubt.question:
        logger.warning("%s: %s", str(manifest), doubt.question)
    path = manifest.resolve() if isinstance(manifest, Path) else PurePosixPath(manifest)
    name = str(data) if str(data) in GENERATED else "/".join(path.parts[-2:])
    # Of several, people come first.
    return ManifestSplit(manifest, split, chosen.total() - bare, name, layout, judges[0])


def evaluate(
    program: AgenticIQA | None = None,
    data: str | Path | Iterable[Sample] = "quickstart",
    *,
    split: str | None = "test",
    baselines: bool = False,
    workers: int | None = None,
    checkpoint: Path | None = None,
    resume: bool = False,
    progress: bool = True,
    engine: Engine | None = None,
) -> EvaluationRecord:
    """Run a program over labelled samples and return the record, every figure with its interval.

    `program` None is the uncompiled one on the settings. `data` is a dataset's name, a manifest's path (of these,
    `split` takes "train", "validation" or "test", None all) or samples, which are taken as they are. Every finished
    sample goes to a checkpoint (default: in the cache folder, one file for each program, data, split and choice of
    baselines), which `resume` continues; without it an older file is kept beside the new one as `<name>.previous`.
    `engine` runs the samples elsewhere than in threads (`evaluation.on_ray`). Raises InputError or DataError.
    """
    program = program if program is not None else AgenticIQA()
    settings = program.resources.settings
    if split not in {None, *get_args(Split)}:
        raise InputError(f"split {split!r}: unknown; give {', '.join(get_args(Split))}, or None for all")
    samples = samples_of(data, settings, split, progress=progress) if isinstance(data, str | Path) else data
    dataset = Dataset(name="samples")
    if isinstance(samples, ManifestSplit):
        sha256 = manifest_sha256(samples.manifest)
        dataset = Dataset(
            name=samples.name, manifest_sha256=sha256, split=samples.split, judge=samples.judge
        )  # fmt: skip
    context = context_of(program, baselines=baselines)
    if checkpoint is None and dataset.manifest_sha256 is not None:
        checkpoint = checkpoint_path(settings, dataset, context)
        if not resume and not can_keep(checkpoint.parent):
            logger.warning("this evaluation cannot be resumed: name a file with --checkpoint to keep what is finished")
            checkpoint = None
    elif checkpoint is None and resume:
        raise InputError("resume: samples from Python have no checkpoint of their own; give checkpoint=")
    runner = program.resources.runner
    before = runner.counts.copy()
    # Neither prompts nor predictions may pile up: DSPy's history and trace would keep every one of them.
    workers = workers if workers is not None else settings.compile.workers
    with dspy.context(disable_history=True, trace=None):
        record = run_samples(
            program, samples, workers=workers, progress=progress, seed=settings.seed,
            checkpoint=checkpoint, resume=resume, dataset=dataset, context=context,
            others=BaselineAnswers(program) if baselines else None, engine=engine,
        )  # fmt: skip
    counts = runner.counts - before if engine is None else _counts_of(record.rows)
    readings = Readings(**counts, **runner.cache_state())
    update = {"details": details_of(record.rows, seed=settings.seed), "readings": readings}
    record = record.model_copy(update=update)
    return with_baselines(record) if baselines else record


def _counts_of(rows: Sequence[Row]) -> Counter[str]:
    """Return how many readings the rows say that their tools made, wherever they ran; not those of baselines."""
    readings, cached, failed = (
        sum(int((row.spent or {}).get(name, 0)) for row in rows)
        for name in ("tool_readings", "tool_cache_hits", "tool_failures")
    )
    return Counter(fresh=readings - cached - failed, cached=cached, failed=failed)


def context_of(program: AgenticIQA, *, baselines: bool = False) -> dict[str, JsonValue]:
    """Return what an answer depends on besides the sample: a checkpoint of another context is not continued."""
    settings = program.resources.settings
    values = settings.model_dump(
        mode="json",
        exclude={*PLACES, "compile", "optimizers", "serve", "seed", "wire"},
    )
    shipped = {None: "calibration.json", PAPER: "paper_calibration.yaml"}
    name = settings.tools.calibration and str(settings.tools.calibration)
    calibration = CONFIGS / shipped[name] if name in shipped else Path(str(name))
    influences = {"device", "threads", "reduce_above_px", "resize_reference"}
    values["tools"] = settings.tools.model_dump(include=influences) | {"calibration_sha256": file_sha256(calibration)}
    return {
        **_of_language_models(program),
        "program_sha256": program_sha256(program),
        "settings_sha256": digest(values),
        "models": {role: program.resources.lm(role).model for role in ("planner", "executor", "summarizer")},
        "scoring_mode": settings.assessment.scoring,
        "baselines": baselines,
        "tools": tool_versions(program),
        "settings": values,
    }


def _of_language_models(program: AgenticIQA) -> dict[str, JsonValue]:
    """Return whose eyes judge and what the model weighs beside the tools, where its judge is not calibrated."""
    resources = program.resources
    if resources.known("summarizer").is_calibrated:
        return {}
    return {"eyes": str(resources.eyes().model), "model_weight": program.summarizer.fusion.model_weight}


def checkpoint_path(settings: Settings, dataset: Dataset, context: dict[str, Any]) -> Path:
    """Return where the checkpoint of this evaluation lies unless told otherwise."""
    key = digest([SCHEMA_VERSION, dataset.manifest_sha256, dataset.split, context])[:16]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", dataset.name.removesuffix(".jsonl")).strip("-")[:60]
    return settings.cache_dir / "evaluations" / f"{name}-{dataset.split or 'all'}-{key}.jsonl"


def tool_versions(program: AgenticIQA) -> dict[str, Any]:
    """Return what each ready tool runs on: library, version and parameter file."""
    runner = program.resources.runner
    versions = {}
    for spec in (*runner.ready("FR"), *runner.ready("NR")):
        parameters = parameter_path(spec, runner.settings.params_dir) if spec.needs != "none" else None
        suffix = f", parameters {file_sha256(parameters)[:12]}" if parameters else ""
        versions[spec.name] = f"{spec.key}, {library_label(spec)}{suffix}"
    return versions
