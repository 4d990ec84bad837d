"""Evaluating on Ray: samples and rows travel as JSON, images never."""

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import dspy

from data.manifest import Sample
from program.agent.loop import AgenticIQA
from program.cluster.engine import Cluster, completed_on_ray, refuse_held
from program.evaluation.baselines import BaselineAnswers
from program.evaluation.record import Row
from program.evaluation.runner import Engine, Todo, failed_row, run_sample

__all__ = ("ray_engine", "sample_of", "sample_text")


def ray_engine(make: Callable[[], AgenticIQA], cluster: Cluster, *, baselines: bool = False) -> Engine:
    """Return what runs samples in the workers of a cluster; each makes its program with `make`."""

    def engine(samples: Iterable[Todo]) -> Iterator[tuple[Todo, Row]]:
        texts = ((place, sample_text(sample)) for place, sample in samples)
        for place, sample, row in completed_on_ray(partial(_Rows, make, baselines), texts, cluster):
            yield (place, sample_of(sample)), Row.model_validate_json(row)

    return engine


class _Rows:
    """A worker's part: from a sample to its row."""

    def __init__(self, make: Callable[[], AgenticIQA], baselines: bool) -> None:
        self._program = make()
        self._others = BaselineAnswers(self._program) if baselines else None

    def __call__(self, item: str) -> str:
        with dspy.context(disable_history=True, trace=None):
            return run_sample(self._program, sample_of(item), self._others).line()

    def failed(self, item: str, error: str) -> str:
        return failed_row(sample_of(item), error).line()


def sample_text(sample: Sample) -> str:
    """Return a sample as JSON for a worker. Raises InputError for an image held in memory."""
    refuse_held(f"sample {sample.id!r}", sample.image)
    return json.dumps(sample.model_dump(mode="json"))


def sample_of(text: str) -> Sample:
    """Return the sample of such a text."""
    return Sample.model_validate(json.loads(text))
