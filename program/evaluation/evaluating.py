"""An evaluation from a dataset's name to a whole record."""

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sized
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Self, TypeAlias, get_args

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
from data.splits import without_leaks
from data.tables import note_on
from program.agent.assessment import Assessment
from program.agent.labels import FittedOn, Marks, marked
from program.agent.loop import AgenticIQA
from program.agent.module import digest
from program.agent.saving import context_of
from program.common.cache import can_keep
from program.common.errors import InputError
from program.common.files import IdSet, Place
from program.common.settings import Settings
from program.evaluation.baselines import BaselineAnswers, with_baselines
from program.evaluation.figures import details_of, summarize
from program.evaluation.record import Cost, Dataset, Details, EvaluationRecord, Fitted, LabelledRow, WorstRows
from program.lms.limits import BudgetSpent
from program.running.journal import Journal
from program.running.runner import Asking, Engine, run

logger = logging.getLogger(__name__)

_CHECKPOINT_VERSION = 5
_MEND = "name another file with --checkpoint, or another cache folder (AGENTICIQA_CACHE_DIR)"

OtherAnswers: TypeAlias = Callable[[Sample, Assessment], tuple[dict[str, float | str], Cost]]
"""Takes a sample and the program's assessment, returns other answers by name; raises BudgetSpent alone."""


class Evaluating(Asking[LabelledRow]):
    """From a sample to its row, with what `others` answer beside the program; texts of the worst misses alone."""

    kind = LabelledRow

    def __init__(self, program: Callable[..., Assessment], others: OtherAnswers | None = None) -> None:
        super().__init__(program)
        resources = getattr(program, "resources", None)
        self._eta, self._others, self._misses = resources.fusion.eta if resources else 1.0, others, WorstRows()

    @classmethod
    def build(cls, make: Callable[[], AgenticIQA], *, baselines: bool = False) -> Self:
        """Return one with a program of its own."""
        program = make()
        return cls(program, BaselineAnswers(program) if baselines else None)

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
            beside["baselines"], beside["baseline_cost"] = self._others(request, result)
        return self._misses.trim(row.model_copy(update=beside))


def run_samples(
    program: Callable[..., Assessment],
    samples: Iterable[Sample],
    *,
    workers: int = 2,
    progress: bool = True,
    checkpoint: Path | None = None,
    resume: bool = False,
    seed: int = 0,
    dataset: Dataset | None = None,
    context: Mapping[str, JsonValue] | None = None,
    label: str = "evaluating",
    others: OtherAnswers | None = None,
    engine: Engine | None = None,
) -> EvaluationRecord:
    """Run `program` over `samples` with `workers` threads and return the record, rows in the samples' order.

    `program(image=, query=, reference=, options=, regions=)` returns an Assessment, in several threads, each call in a
    copy of the caller's context. An exception or a "failed" Assessment becomes a failed row, as `running.runner` says.
    Of a stream of samples two per worker are held at once. `engine` takes the threads' place. `seed` fixes the
    intervals; `dataset` and `context` (hashes, model names) are what a `checkpoint` must match to be resumed. Ctrl-C
    and a spent `Budget` finish and write what is in flight, then raise. Raises InputError for fewer than one worker, a
    repeated sample id, or a checkpoint of another run.
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

    header = {"checkpoint": "evaluation", "schema_version": _CHECKPOINT_VERSION, **dataset.model_dump(mode="json"),
              "context": context}  # fmt: skip
    with nullcontext() if checkpoint is None else Journal(checkpoint, header, LabelledRow, mend=_MEND) as journal:
        if journal is not None:
            if not resume:
                journal.begin_again()
            journal.resume()
        try:
            run(
                Evaluating(program, others), _distinct(samples), take, workers=workers, engine=engine, journal=journal,
                label=label, total=len(samples) if isinstance(samples, Sized) else None, progress=progress,
            )  # fmt: skip
        except BudgetSpent as error:
            hint = f"; {len(rows)} samples are finished and kept, resume to continue" if checkpoint else ""
            raise BudgetSpent(f"{error}{hint}") from error
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
    """One split of a manifest, read again at each pass; no more than a line is held."""

    manifest: Place
    layout: Layout
    size: int
    dataset: Dataset
    """Its name is the dataset's own, or the manifest's with the folder it lies in."""
    doubt: str = ""
    """A warning that its scores may be on another scale."""
    fitted: Fitted | None = None
    fitted_ids: frozenset[str] = frozenset()
    drawn_ids: frozenset[str] | None = None
    """The ids of a split that a compile drew; None where samples name their own."""

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Sample]:
        skipped = self.fitted_ids if self.fitted is not None and self.fitted.left_out else frozenset()
        for sample in read_manifest(self.manifest, self.layout):
            if _is_in(sample, self.dataset.split, self.drawn_ids) and not sample.is_bare and sample.id not in skipped:
                yield sample


def _is_in(sample: Sample, split: str | None, drawn_ids: frozenset[str] | None) -> bool:
    return split in {None, sample.split} if drawn_ids is None else sample.id in drawn_ids


@dataclass
class _Contents:
    """What one pass over a manifest finds: its splits, and which samples a program knows."""

    counts: Counter[tuple[str | None, str]] = field(default_factory=Counter)
    """By a sample's split and what it is: "bare", "none" without a label, or whose the label is."""
    fitted: dict[str, str] = field(default_factory=dict)
    """The ids of what the program was fitted on, with how each is known."""
    drawn: dict[str, str] = field(default_factory=dict)
    """The ids of the split that its compile drew, with what each sample is."""

    @classmethod
    def of(cls, samples: Iterable[Sample], split: str | None, fitted_on: FittedOn | None) -> Self:
        """Read all samples; only those that may be in the split are looked at for what the program knows."""
        contents, apart = cls(), set[str]()

        def counted() -> Iterator[Sample]:
            for sample in samples:
                contents.counts[sample.split, _kind_of(sample)] += 1
                if not sample.is_bare and (split is None or sample.split in {None, split}):
                    yield sample

        if fitted_on is None:
            for _ in counted():
                pass
            return contents
        for sample, marks in _recognized(counted(), fitted_on, contents.fitted):
            if sample.split is None:
                apart.add(sample.id)
            if split is not None and marks.images & getattr(fitted_on, split).images:
                contents.drawn[sample.id] = _kind_of(sample)
        contents._settle(split, apart)
        return contents

    def _settle(self, split: str | None, apart: Collection[str]) -> None:
        """Let a manifest that names splits go by them: a compile did not divide it."""
        if self.splits:
            self.drawn = {}
            if split is not None:
                self.fitted = {name: how for name, how in self.fitted.items() if name not in apart}
        elif self.drawn:
            self.fitted = {name: self.fitted[name] for name in self.drawn.keys() & self.fitted.keys()}

    @property
    def splits(self) -> list[str]:
        """The names of its splits."""
        return sorted({name for name, _ in self.counts if name is not None})

    def of_split(self, split: str | None) -> Counter[str]:
        """Return how many samples of each kind a split has."""
        if self.drawn:
            return Counter(self.drawn.values())
        kinds = Counter[str]()
        for (name, kind), count in self.counts.items():
            if split in {None, name}:
                kinds[kind] += count
        return kinds


def _kind_of(sample: Sample) -> str:
    if sample.is_bare:
        return "bare"
    return sample.judge if sample.is_labelled else "none"


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
    samples = read_manifest(manifest, layout)
    if split is not None:
        samples = without_leaks(samples)
    contents = _Contents.of(samples, split, fitted_on)
    known, drawn_ids = contents.fitted, frozenset(contents.drawn) or None
    chosen = contents.of_split(split)
    judges, bare = sorted(chosen.keys() - {"bare", "none"}), chosen["bare"]
    if not chosen:
        mend = " or ".join([*contents.splits, "all"])
        raise InputError(f"manifest {str(manifest)!r}: no sample in split {split!r}; give --split {mend}")
    if not judges:
        where = f"of split {split!r} " if split else ""
        raise InputError(f"manifest {str(manifest)!r}: no sample {where}has a label; give {LABELS}")
    if bare:
        logger.warning("%s: %s", str(manifest), left_out(bare, chosen.total()))
    for note in filter(None, (note_on(manifest), doubt)):
        logger.warning("%s", note)
    path = manifest.resolve() if isinstance(manifest, Path) else PurePosixPath(manifest)
    name = str(data) if str(data) in GENERATED else "/".join(path.parts[-2:])
    # Of several judges, people come first.
    dataset = Dataset(name=name, manifest_sha256=manifest_sha256(manifest), split=split, judge=judges[0])
    size = chosen.total() - bare
    fitted = None
    if fitted_on is not None:
        is_left_out = 0 < len(known) < size and not include_fitted
        fitted = _fitted(known, left_out=is_left_out, drawn=drawn_ids is not None)
        size -= len(known) * is_left_out
    return ManifestSplit(manifest, layout, size, dataset, doubt, fitted, frozenset(known), drawn_ids)


def _fitted(known: Mapping[str, str], *, left_out: bool = False, drawn: bool = False) -> Fitted:
    by_group = sum(how != "image" for how in known.values())
    return Fitted(samples=len(known), by_group=by_group, left_out=left_out, drawn=drawn)


def _recognized(
    samples: Iterable[Sample], fitted_on: FittedOn, known: dict[str, str]
) -> Iterator[tuple[Sample, Marks]]:
    """Yield samples with their marks, and enter in `known` which of them a program was fitted on, and how.

    Those known by a group's name are entered in the end, if others show that it is the same data: many number theirs.
    """
    same_data, of_group = False, dict[str, str]()
    for sample, marks in marked(samples):
        how = fitted_on.holds(marks)
        if how is not None:
            (of_group if how == "group" else known)[sample.id] = how
        same_data = same_data or fitted_on.names_groups_of(marks)
        yield sample, marks
    if same_data:
        known |= of_group


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
    include_fitted: bool = False,
) -> EvaluationRecord:
    """Run a program over labelled samples and return the record, every figure with its interval.

    `program` None is the uncompiled one on the settings. `data` is a dataset's name, a manifest's path (of these,
    `split` takes "train", "validation" or "test", None all; see `samples_of` for those that the program was fitted on)
    or samples, which are all taken. Every finished
    sample goes to a checkpoint (default: in the cache folder, one file for each program, data, split and choice of
    baselines), which `resume` continues; without it an older file is begun again.
    `engine` runs the samples elsewhere than in threads (`running.on_ray`). Raises InputError or DataError.
    """
    program = program if program is not None else AgenticIQA()
    settings = program.resources.settings
    if split not in {None, *get_args(Split)}:
        raise InputError(f"split {split!r}: unknown; give {', '.join(get_args(Split))}, or None for all")
    fitted_on, known = program.fitted_on, dict[str, str]()
    samples: Iterable[Sample]
    if isinstance(data, str | Path):
        samples = samples_of(
            data, settings, split, progress=progress, fitted_on=fitted_on, include_fitted=include_fitted
        )
    elif fitted_on is not None and not isinstance(data, ManifestSplit):
        samples = (sample for sample, _ in _recognized(data, fitted_on, known))
    else:
        samples = data
    dataset = samples.dataset if isinstance(samples, ManifestSplit) else Dataset(name="samples")
    context = context_of(program, baselines=baselines)
    if checkpoint is None and dataset.manifest_sha256 is not None:
        checkpoint = checkpoint_path(settings, dataset, context)
        if not resume and not can_keep(checkpoint.parent):
            logger.warning("this evaluation cannot be resumed: name a file with --checkpoint to keep what is finished")
            checkpoint = None
    elif checkpoint is None and resume:
        raise InputError("resume: samples from Python have no checkpoint of their own; give checkpoint=")
    if workers is None:
        workers = settings.compile.workers
    record = run_samples(
        program, samples, workers=workers, progress=progress,
        seed=settings.seed, checkpoint=checkpoint, resume=resume, dataset=dataset, context=context,
        others=BaselineAnswers(program) if baselines else None, engine=engine,
    )  # fmt: skip
    record = record.model_copy(update={"details": details_of(record.rows, seed=settings.seed)})
    if isinstance(samples, ManifestSplit):
        record = _marked(record, samples.fitted, samples.fitted_ids)
    elif fitted_on is not None:
        record = _marked(record, _fitted(known), known)
    return with_baselines(record) if baselines else record


def _marked(record: EvaluationRecord, fitted: Fitted | None, ids: Collection[str]) -> EvaluationRecord:
    """Return the record with marks on the rows that the program was fitted on, and on the figures if all are."""
    if fitted is None:
        return record
    rows = tuple(row.model_copy(update={"fitted": row.id in ids}) for row in record.rows)
    marks: dict[str, Any] = {"rows": rows, "fitted": fitted}
    if rows and all(row.fitted for row in rows):
        marks |= {name: figure.of_fitted() for name, figure in record.figures.items()}
        details = record.details or Details()
        own = {name: figure.of_fitted() for name, figure in details.figures.items()}
        marks["details"] = details.model_copy(update=own)
    return record.model_copy(update=marks)


def check_judged(record: EvaluationRecord, manifest: Place) -> None:
    """Raise InputError with the first reason where every sample failed and no call was paid, as without any image."""
    if record.failed and record.failed == len(record.rows) and not record.lm_calls:
        reason = next(reason for _, reason in record.failures())
        raise InputError(
            f"manifest {str(manifest)!r}: none of the {record.failed} samples could be judged; the first: {reason}"
        )


def checkpoint_path(settings: Settings, dataset: Dataset, context: dict[str, Any]) -> Path:
    """Return the default path of this evaluation's checkpoint."""
    key = digest([_CHECKPOINT_VERSION, dataset.manifest_sha256, dataset.split, context])[:16]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", dataset.name.removesuffix(".jsonl")).strip("-")[:60]
    return settings.cache_dir / "evaluations" / f"{name}-{dataset.split or 'all'}-{key}.jsonl"
