"""An evaluation from a dataset's name to a whole record."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias, get_args

from pydantic import JsonValue

from data.catalogue import resolve_dataset
from data.manifest import (
    GENERATED,
    LABELS,
    Layout,
    Sample,
    Split,
    check_scale,
    left_out,
    manifest_sha256,
    read_manifest,
)
from data.splits import check_leaks
from data.tables import note_on
from program.agent.assessment import Assessment
from program.agent.labels import FittedOn, Marks, marked
from program.agent.loop import AgenticIQA
from program.agent.saving import context_of
from program.common.errors import InputError
from program.common.files import IdSet, Place
from program.common.settings import Settings
from program.evaluation.baselines import BaselineAnswers, with_baselines
from program.evaluation.figures import details_of, summarize
from program.evaluation.record import Dataset, EvaluationRecord, Fitted, LabelledRow, WorstRows
from program.lms.limits import BudgetSpent
from program.running.runner import Asking, run

logger = logging.getLogger(__name__)

OtherAnswers: TypeAlias = Callable[[Sample, Assessment], dict[str, float | str]]
"""Takes a sample and the program's assessment, returns other answers by name; raises BudgetSpent alone."""


class Evaluating(Asking[LabelledRow]):
    """From a sample to its row, with what `others` answer beside the program."""

    kind = LabelledRow

    def __init__(self, program: Callable[..., Assessment], others: OtherAnswers | None = None) -> None:
        super().__init__(program)
        resources = getattr(program, "resources", None)
        self._eta, self._others = resources.fusion.eta if resources else 1.0, others

    def __call__(self, request: Sample) -> LabelledRow:
        """Return a sample's row; see `Asking`."""
        started = time.perf_counter()
        row = super().__call__(request)
        return row if row.seconds else row.model_copy(update={"seconds": round(time.perf_counter() - started, 4)})

    def row(self, request: Sample) -> LabelledRow:
        """Ask the program, and the others."""
        started = time.perf_counter()
        result = self.program(**request.arguments())
        row = LabelledRow.of(request, result, eta=self._eta)
        beside: dict[str, Any] = {"seconds": round(time.perf_counter() - started, 4)}
        if self._others is not None and request.task != "open":
            beside["baselines"] = self._others(request, result)
        return row.model_copy(update=beside)


def run_samples(
    program: Callable[..., Assessment],
    samples: Iterable[Sample],
    *,
    workers: int = 2,
    progress: bool = True,
    seed: int = 0,
    dataset: Dataset | None = None,
    context: Mapping[str, JsonValue] | None = None,
    label: str = "evaluating",
    others: OtherAnswers | None = None,
) -> EvaluationRecord:
    """Run `program` over `samples` with `workers` threads and return the record, rows in the samples' order.

    `program(image=, query=, reference=, options=, regions=)` returns an Assessment, in several threads, each call in a
    copy of the caller's context. An exception or a "failed" Assessment becomes a failed row, as `running.runner` says.
    Of a stream of samples two per worker are held at once. `seed` fixes the intervals; the record holds `dataset` and
    `context` (hashes, model names). Ctrl-C and a spent `Budget` finish what is in flight, then raise: its answers are
    in the cache. Raises InputError for fewer than one worker or a repeated sample id.
    """
    if workers < 1:
        raise InputError(f"workers: {workers} is too few; give 1 or more")
    dataset, context = dataset or Dataset(), dict(context or {})
    started = time.perf_counter()
    rows: dict[int, LabelledRow] = {}
    misses, failed = WorstRows(), 0

    def take(place: int, row: LabelledRow) -> str:
        nonlocal failed
        rows[place] = misses.trim(row)
        failed += row.status == "failed"
        return f"{failed} failed" if failed else ""

    try:
        run(
            Evaluating(program, others), _distinct(samples), take, workers=workers, label=label, progress=progress,
            total=len(samples) if isinstance(samples, Sized) else None,
        )  # fmt: skip
    except BudgetSpent as error:
        kept = f"{len(rows)} samples are finished; a repeated run takes their answers from the cache"
        raise BudgetSpent(f"{error}; {kept}") from error
    wall = time.perf_counter() - started
    ordered = [rows[place] for place in sorted(rows)]
    return summarize(ordered, dataset=dataset, context=context, seed=seed, wall_seconds=wall)


def _distinct(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield the samples. Raises InputError for an id that occurs twice."""
    with closing(IdSet()) as ids:
        for sample in samples:
            if not ids.add(sample.id):
                raise InputError(f"sample {sample.id!r} occurs twice; give every sample its own id")
            yield sample


@dataclass(frozen=True)
class ManifestSplit:
    """One split of a manifest."""

    manifest: Place
    samples: Sequence[Sample]
    """Those to evaluate, in the manifest's order."""
    dataset: Dataset
    """Its name is the dataset's own, or the manifest's with the folder it lies in."""
    doubt: str = ""
    """A warning that its scores may be on another scale."""
    fitted: Fitted | None = None
    known: Mapping[str, str] = field(default_factory=dict)
    """The ids of those that the program was fitted on, and how each is known."""

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)


def samples_of(
    data: str | Path, settings: Settings, split: str | None = "test", *, progress: bool = True,
    layout: Layout | None = None, fitted_on: FittedOn | None = None, include_fitted: bool = False,
) -> ManifestSplit:  # fmt: skip
    """Return a dataset's samples, after reading every line, so that a fault is reported before the first model call.

    `data` is a dataset's name or a manifest's path or URI, which is read by `layout`; `split` None takes all. Samples
    that are `fitted_on` are left out, unless no other is there or `include_fitted`; of a manifest without splits the
    split is the one that they were drawn with. Raises InputError for an empty split or one without a single label, and
    DataError for a group in two splits, as compiling does.
    """
    manifest = resolve_dataset(data, settings.cache_dir, progress=progress)
    layout = replace(layout or Layout(), remote=settings.images.remote)
    doubt = check_scale(manifest, layout)
    everything = list(read_manifest(manifest, layout))
    if split is not None:
        check_leaks(everything)
    named = sorted({sample.split for sample in everything if sample.split is not None})
    asked = [sample for sample in everything if split in {None, sample.split}]
    known: dict[str, str] = {}
    is_drawn = False
    if fitted_on is not None:
        looked_at = [s for s in everything if not s.is_bare and (split is None or s.split in {None, split})]
        marks = list(marked(looked_at))
        known = _known(marks, fitted_on)
        if split is not None and not named:
            drawn = getattr(fitted_on, split).images
            asked = [sample for sample, own in marks if own.images & drawn]
            is_drawn = True
    if not asked:
        mend = " or ".join([*named, "all"])
        raise InputError(f"manifest {str(manifest)!r}: no sample in split {split!r}; give --split {mend}")
    judges = sorted({sample.judge for sample in asked if sample.is_labelled})
    if not judges:
        where = f"of split {split!r} " if split else ""
        raise InputError(f"manifest {str(manifest)!r}: no sample {where}has a label; give {LABELS}")
    samples = [sample for sample in asked if not sample.is_bare]
    if len(samples) < len(asked):
        logger.warning("%s: %s", str(manifest), left_out(len(asked) - len(samples), len(asked)))
    for note in filter(None, (note_on(manifest), doubt)):
        logger.warning("%s", note)
    path = manifest.resolve() if isinstance(manifest, Path) else PurePosixPath(manifest)
    name = str(data) if str(data) in GENERATED else "/".join(path.parts[-2:])
    # Of several judges, people come first.
    dataset = Dataset(name=name, manifest_sha256=manifest_sha256(manifest), split=split, judge=judges[0])
    if fitted_on is None:
        return ManifestSplit(manifest, samples, dataset, doubt)
    known = {sample.id: known[sample.id] for sample in samples if sample.id in known}
    is_left_out = 0 < len(known) < len(samples) and not include_fitted
    if is_left_out:
        samples = [sample for sample in samples if sample.id not in known]
    fitted = _fitted(known, left_out=is_left_out, drawn=is_drawn)
    return ManifestSplit(manifest, samples, dataset, doubt, fitted, known)


def _fitted(known: Mapping[str, str], *, left_out: bool = False, drawn: bool = False) -> Fitted:
    by_group = sum(how != "image" for how in known.values())
    return Fitted(samples=len(known), by_group=by_group, left_out=left_out, drawn=drawn)


def _known(samples: Sequence[tuple[Sample, Marks]], fitted_on: FittedOn) -> dict[str, str]:
    """Return the ids of the samples that a program was fitted or chosen on, and how each is known.

    A group's name tells only where other samples show that it is the same data: many number theirs.
    """
    is_same_data = any(fitted_on.names_groups_of(marks) for _, marks in samples)
    known: dict[str, str] = {}
    for sample, marks in samples:
        how = fitted_on.holds(marks)
        if how is not None and (how != "group" or is_same_data):
            known[sample.id] = how
    return known


def evaluate(
    program: AgenticIQA | None = None,
    data: str | Path | Iterable[Sample] = "quickstart",
    *,
    split: str | None = "test",
    baselines: bool = False,
    workers: int | None = None,
    progress: bool = True,
    include_fitted: bool = False,
) -> EvaluationRecord:
    """Run a program over labelled samples and return the record, every figure with its interval.

    `program` None is the uncompiled one on the settings. `data` is a dataset's name, a manifest's path (of these,
    `split` takes "train", "validation" or "test", None all; see `samples_of` for those that the program was fitted on)
    or samples, which are all taken. Raises InputError or DataError.
    """
    program = program if program is not None else AgenticIQA()
    settings = program.resources.settings
    if split not in {None, *get_args(Split)}:
        raise InputError(f"split {split!r}: unknown; give {', '.join(get_args(Split))}, or None for all")
    fitted_on, fitted = program.fitted_on, None
    known: Mapping[str, str] = {}
    samples, dataset = data, Dataset(name="samples")
    if isinstance(samples, str | Path):
        samples = samples_of(
            samples, settings, split, progress=progress, fitted_on=fitted_on, include_fitted=include_fitted
        )
    if isinstance(samples, ManifestSplit):
        dataset, fitted, known = samples.dataset, samples.fitted, samples.known
    elif fitted_on is not None:
        samples = list(samples)
        known = _known(list(marked(samples)), fitted_on)
        fitted = _fitted(known)
    if workers is None:
        workers = settings.compile.workers
    record = run_samples(
        program, samples, workers=workers, progress=progress,
        seed=settings.seed, dataset=dataset, context=context_of(program),
        others=BaselineAnswers(program) if baselines else None,
    )  # fmt: skip
    rows = tuple(row.model_copy(update={"fitted": row.id in known}) for row in record.rows)
    details = details_of(rows, seed=settings.seed)
    record = record.model_copy(update={"rows": rows, "details": details, "fitted": fitted})
    return with_baselines(record) if baselines else record


def check_judged(record: EvaluationRecord, manifest: Place) -> None:
    """Raise InputError with the first reason where every sample failed and no call was paid, as without any image."""
    if record.failed and record.failed == len(record.rows) and not record.lm_calls:
        reason = next(reason for _, reason in record.failures())
        raise InputError(
            f"manifest {str(manifest)!r}: none of the {record.failed} samples could be judged; the first: {reason}"
        )
