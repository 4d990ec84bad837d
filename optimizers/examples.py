"""Samples as an optimizer's examples, and what earlier compiles worked out of them, kept on disk."""

import functools
import hashlib
import json
import logging
import os
import platform
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.resources import files
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias, get_args

import dspy

from data.manifest import Sample
from data.splits import group_of
from optimizers.demos import LabelledDemo, distortion_truth, labelled_demos, plan_by_rule
from optimizers.student import EvidenceByInput, inputs_key, role_of
from program.agent.loop import AgenticIQA
from program.agent.module import digest
from program.agent.resources import ROLES
from program.agent.saving import context_of
from program.agent.state import AssessmentState
from program.agent.summarizer import AnswerPart
from program.common.cache import PlainCache
from program.common.errors import InputError
from program.common.files import Place, name_of, open_file
from program.common.pool import in_order
from program.common.request import ARGUMENTS, DEFAULT_QUERY
from program.evaluation.intervals import Figure, interval
from program.evaluation.record import LabelledRow
from program.images.store import IMAGES
from program.running.on_ray import Cluster, ray_engine
from program.running.runner import Asking
from program.tools.registry import installed_version

Questions = list[tuple[str, dict[str, Any]]]
"""What a run of the program asked: predictor and inputs, in order."""

_PACKAGES = ("program", "signatures", "optimizers", "data", "configs")
_COUNTING = {".csv", ".json", ".npz", ".py", ".yaml"}
_LIBRARIES = ("dspy-ai", "numpy", "piq", "pillow", "pydantic", "pyiqa", "scikit-image", "scikit-learn",
              "scipy", "torch", "torchvision")  # fmt: skip
_IMAGE = "__image__"


class Store:
    """Evidence, rows and scores by everything they depend on. Thread-safe; holds nothing without a folder."""

    def __init__(self, folder: Path | None = None, base: Any = None) -> None:
        """Store results in `folder`; `base` is whatever all of them depend on."""
        self._cache = PlainCache(folder) if folder is not None else None
        self._base = digest([code_sha256(), base]) if folder is not None else ""
        self._samples: dict[str, dict[str, Any]] = {}

    @classmethod
    def of(cls, program: AgenticIQA) -> "Store":
        """Return the store of compiles that start at this program; an empty one where answers may differ."""
        kept = program.resources.settings.kept_dir
        if kept is None or not all(program.resources.known_traits(role).embedded for role in ROLES):
            return cls()
        return cls(kept / "compiles", context_of(program))

    def get(self, *parts: Any) -> Any:
        """Return the JSON value stored under parts (samples, examples, JSON), or None."""
        return None if self._cache is None else self._cache.get(self._key(parts))

    def put(self, *parts: Any, value: Any) -> None:
        """Store a JSON value under parts."""
        if self._cache is not None:
            self._cache.set(self._key(parts), value)

    def evidence(self, sample: Sample, part: AnswerPart = "whole") -> tuple[AssessmentState, Questions] | None:
        """Return what the uncompiled program ended with and asked on a sample; None where less was asked for."""
        parts = get_args(AnswerPart)
        enough = parts[: parts.index(part) + 1]
        stored = next(filter(None, (self.get("evidence", each, sample) for each in enough)), None)
        return None if stored is None else evidence_of(stored)

    def put_evidence(
        self, sample: Sample, state: AssessmentState, questions: Questions, part: AnswerPart = "whole"
    ) -> None:
        """Store a run of the uncompiled program, unless a tool or a step failed in it."""
        evidence, result = state.executor_evidence, state.summarizer_result
        if self._cache is None or evidence is None or result is None or result.status != "ok":
            return
        if evidence.failed_steps or any(log.error for log in evidence.tool_logs):
            return
        if (value := evidence_json(state, questions)) is not None:
            self.put("evidence", part, sample, value=value)

    def rows(self, what: Sequence[Any], samples: Sequence[Sample]) -> tuple[list[LabelledRow], float] | None:
        """Return the rows of an evaluation of `what`, and the seconds it took; or None."""
        stored = self.get("rows", what, samples)
        if stored is None:
            return None
        return [LabelledRow.model_validate_json(line) for line in stored["rows"]], float(stored["seconds"])

    def put_rows(
        self, what: Sequence[Any], samples: Sequence[Sample], rows: Sequence[LabelledRow], seconds: float
    ) -> None:
        """Store an evaluation's rows, unless a sample or a tool failed in it."""
        if self._cache is None or any(r.status != "ok" or (r.spent or {}).get("tool_failures") for r in rows):
            return
        self.put("rows", what, samples, value={"rows": [row.line() for row in rows], "seconds": seconds})

    def _key(self, parts: Sequence[Any]) -> str:
        return digest([self._base, *(self._as_json(part) for part in parts)])

    def _as_json(self, part: Any) -> Any:
        if isinstance(part, Sample):
            return self._contents(part)
        if isinstance(part, dspy.Example):
            return {name: getattr(value, "url", value) for name, value in part.items()}
        if isinstance(part, list | tuple):
            return [self._as_json(item) for item in part]
        return part

    def _contents(self, sample: Sample) -> dict[str, Any]:
        """Return all that a sample says, with its images' content in place of where they lie."""
        if sample.id not in self._samples:
            paths = {"image": sample.image, "reference": sample.reference}
            images = {name: [name_of(path), _sha256(path)] for name, path in paths.items() if path is not None}
            self._samples[sample.id] = {**sample.model_dump(mode="json", exclude={*paths, "split"}), **images}
        return self._samples[sample.id]


@functools.cache
def code_sha256() -> str:
    """Return the hash of the project's own code, settings and arrays, and of the libraries that compute with it."""
    parts: list[Any] = [platform.python_version(), platform.machine(), [installed_version(name) for name in _LIBRARIES]]
    for package in _PACKAGES:
        for folder, inside, names in os.walk(str(files(package))):
            inside[:] = sorted(name for name in inside if name not in {"__pycache__", "raw"})
            counting = (Path(folder, name) for name in sorted(names) if Path(name).suffix in _COUNTING)
            parts += [[package, path.name, _sha256(path)] for path in counting]
    return digest(parts)


def _sha256(path: Place) -> str | None:
    try:
        with open_file(path) as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:  # the sample fails where it is opened, with an error that names it
        return None


def evidence_json(state: AssessmentState, questions: Questions) -> dict[str, Any] | None:
    """Return as JSON values what a run of the program ended with and what it asked.

    None where JSON would not give it back as it is: a tuple, say, would come back as a list.
    """
    plain = [[name, {field: _plain(value) for field, value in inputs.items()}] for name, inputs in questions]
    value = {"state": state.model_dump_json(exclude_unset=True), "questions": plain}
    return value if evidence_of(json.loads(json.dumps(value, default=str))) == (state, questions) else None


def evidence_of(value: Mapping[str, Any]) -> tuple[AssessmentState, Questions]:
    """Return what `evidence_json` was made of."""
    questions = [(name, {k: _restored(v) for k, v in inputs.items()}) for name, inputs in value["questions"]]
    return AssessmentState.model_validate_json(value["state"]), questions


def _plain(value: Any) -> Any:
    return {_IMAGE: value.url} if isinstance(value, dspy.Image) else value


def _restored(value: Any) -> Any:
    return dspy.Image(value[_IMAGE]) if isinstance(value, Mapping) and _IMAGE in value else value


logger = logging.getLogger(__name__)


@dataclass
class ExampleSet:
    """What one pass over samples gave."""

    examples: list[dspy.Example] = field(default_factory=list)
    """The program's inputs with everything known of the sample."""
    demos: dict[str, list[LabelledDemo]] = field(default_factory=dict)
    """By predictor: a question it was asked and the answer people, rules or measured strengths give."""
    gathered: EvidenceByInput = field(default_factory=dict)
    runs: int = 0
    """Program runs that this took."""

    @property
    def shares_content(self) -> bool:
        """Whether many samples show the same photograph: then one says too much of another to be scored on it."""
        groups = {example.group for example in self.examples}
        return 2 * len(groups) <= len(self.examples)

    def of(self, samples: Iterable[Sample], *others: "ExampleSet") -> "ExampleSet":
        """Return what this pass and others gave on some samples alone."""
        ids, parts = {sample.id for sample in samples}, (self, *others)
        demos: dict[str, list[LabelledDemo]] = {}
        for name, demo in ((name, demo) for part in parts for name, some in part.demos.items() for demo in some):
            # A plan says nothing of an image, and one stands for all that were asked alike.
            if demo.sample in ids or role_of(name) == "planner":
                demos.setdefault(name, []).append(demo)
        return ExampleSet([e for part in parts for e in part.examples if e.id in ids], demos, self.gathered)

    def agreement(self) -> Figure:
        """Return the SRCC of the uncompiled program's scores with the labels."""
        scores = []
        for example in self.examples:
            state = self.gathered.get(inputs_key(example.inputs()))
            result = None if state is None else state.summarizer_result
            if example.get("quality") is not None and result is not None and result.rating is not None:
                scores.append((example.quality, result.rating, example.group))
        truth, rated, groups = zip(*scores, strict=True) if scores else ((), (), ())
        return interval("srcc", truth, rated, groups)


def choose_samples(samples: Iterable[Sample], *, scoring: int | None, mcq: int | None, seed: int) -> list[Sample]:
    """Return at most so many scoring and multiple-choice samples (None: all), spread over the distortions, seeded."""
    chosen: list[Sample] = []
    pool = sorted(samples, key=lambda s: s.id)
    for task, count in (("scoring", scoring), ("mcq", mcq)):
        of_task = [sample for sample in pool if sample.task == task]
        random.Random(f"{seed}/{task}").shuffle(of_task)
        turns: Counter[str] = Counter()
        ranked = []  # the first of each distortion, then the second of each
        for sample in of_task:
            turns[sample.distortion or ""] += 1
            ranked.append((turns[sample.distortion or ""], sample))
        chosen += [sample for _, sample in sorted(ranked, key=itemgetter(0))[:count]]
    return chosen


Evidence: TypeAlias = tuple[AssessmentState, Questions]
"""What a run of the program ended with, and what it asked."""


def to_example(sample: Sample) -> dspy.Example:
    """Return a sample as an optimizer's example: the program's inputs and what is known, images as references."""
    fields: dict[str, Any] = {
        "id": sample.id, "group": group_of(sample), "judge": sample.judge,
        "image": dspy.Image(IMAGES.add(sample.image).url), "query": sample.query or DEFAULT_QUERY,
    }  # fmt: skip
    if sample.reference is not None:
        fields["reference"] = dspy.Image(IMAGES.add(sample.reference).url)
    if sample.options:
        fields |= {"options": sample.options, "answer": sample.answer}
    else:
        fields["quality"] = sample.quality
        if sample.mos_std is not None:
            low, high = sample.mos_range
            fields["quality_std"] = 4 * sample.mos_std / (high - low)
    if sample.regions:
        fields["regions"] = sample.regions
    if (truth := distortion_truth(sample)) is not None:
        fields["distortion_truth"] = truth
    return dspy.Example(**fields).with_inputs(*(name for name in ARGUMENTS if name in fields))


class Gathering(Asking[Evidence | str | None]):
    """From a sample to what the program ended with and what its predictors were asked, in order; or to why not.

    Of the samples that are only `measured` (their ids) to nothing: their images are measured, and no program runs.
    """

    context = staticmethod(nullcontext)  # demos show these images later

    def __init__(self, program: AgenticIQA, measured: Collection[str] = ()) -> None:
        super().__init__(program)
        self._measured = measured

    def row(self, request: Sample) -> Evidence | None:
        """Run the program."""
        example = to_example(request)
        if request.id in self._measured:
            self.program.resources.viewer.view(example.image, example.get("reference"))
            return None
        names = {id(predictor): name for name, predictor in self.program.named_predictors()}
        # Each thread gets a trace of its own: what was really asked, role by role.
        with dspy.context(trace=[]):
            state = self.program(**example.inputs()).state
            return state, [(names[id(p)], dict(inputs)) for p, inputs, _ in dspy.settings.trace if id(p) in names]

    def failed_row(self, request: Sample, error: str) -> str:
        """Return why a sample has no evidence."""
        return error


def collect_examples(
    program: AgenticIQA, samples: Sequence[Sample], *, workers: int, advance: Callable[[], None] = lambda: None,
    store: Store | None = None, made: Mapping[str, Evidence | str] | None = None, measured: Collection[str] = (),
) -> ExampleSet:  # fmt: skip
    """Run the program once over the samples and return what it was asked, with the right answers; not over `measured`.

    What is in the store is not run again, nor what was `made` elsewhere (by sample's id: the evidence, or why there is
    none), which `advance` is not called for. A sample that cannot be assessed is left out with a warning, as
    `running.runner` says. Raises InputError when none is left.
    """
    example_set, gather, store, made = ExampleSet(), Gathering(program, measured), store or Store(), made or {}

    def run(sample: Sample) -> tuple[dspy.Example, Evidence | None, bool] | str:
        is_run = sample.id not in measured
        stored = store.evidence(sample, program.summarizer.answer_part) if is_run else None
        outcome = stored or made.get(sample.id) or gather(sample)
        if sample.id not in made:
            advance()
        if isinstance(outcome, str):
            return outcome
        is_new = is_run and stored is None
        if outcome is not None and is_new:
            store.put_evidence(sample, *outcome, program.summarizer.answer_part)
        return to_example(sample), outcome, is_new

    for sample, of_sample in zip(samples, in_order(run, samples, workers=workers), strict=True):
        if isinstance(of_sample, str):
            logger.warning("sample %r left out of training: %s", sample.id, of_sample)
            example_set.runs += 1
            continue
        example, evidence, is_new = of_sample
        example_set.runs += is_new
        if evidence is not None:
            state, questions = evidence
            example_set.gathered[inputs_key(example.inputs())] = state
            for demo in labelled_demos(sample, example, questions, program.resources, state):
                example_set.demos.setdefault(demo.predictor, []).append(demo)
            inputs = example.inputs()
            example = example.copy(plan_by_rule=plan_by_rule(questions, program.resources)).with_inputs(*inputs)
        example_set.examples.append(example)
    if not example_set.examples:
        raise InputError("training samples: none could be assessed; run python -m data.check on the manifest")
    # One demo of each question: a plan asked for four hundred images is asked once.
    by_key = {name: {demo.key: demo for demo in reversed(demos)} for name, demos in example_set.demos.items()}
    example_set.demos = {name: list(demos.values())[::-1] for name, demos in by_key.items()}
    return example_set


def evidence_on_ray(
    make: Callable[[], AgenticIQA], samples: Sequence[Sample], cluster: Cluster, measured: Collection[str] = ()
) -> Iterator[tuple[str, Evidence | str]]:
    """Run samples in the workers of a cluster; yield the id of each with what it ended with, or why it failed.

    Each worker makes its program with `make`. A sample whose evidence JSON cannot hold is left out, and so are those
    that are only `measured`.
    """
    gathered = ray_engine(lambda: Gathering(make(), measured), cluster, Sample, _from_line, _line)
    yield from ((sample.id, outcome) for (_, sample), outcome in gathered(enumerate(samples)) if outcome is not None)


def _line(outcome: Evidence | str | None) -> str:
    return json.dumps(evidence_json(*outcome) if isinstance(outcome, tuple) else outcome)


def _from_line(text: str) -> Evidence | str | None:
    value = json.loads(text)
    return evidence_of(value) if isinstance(value, dict) else value
