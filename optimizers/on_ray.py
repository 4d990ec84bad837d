"""The evidence of samples on Ray: samples and runs travel as JSON, images never."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from data.manifest import Sample
from optimizers.examples import Evidence, asked, to_example
from optimizers.store import evidence_json, evidence_of
from program.agent.loop import AgenticIQA
from program.cluster.engine import Cluster, completed_on_ray
from program.common.errors import InputError
from program.evaluation.on_ray import sample_of, sample_text

__all__ = ("evidence_on_ray",)


def evidence_on_ray(
    make: Callable[[], AgenticIQA], samples: Sequence[Sample], cluster: Cluster
) -> Iterator[tuple[str, Evidence | str]]:
    """Run samples in the workers of a cluster; yield the id of each with what it ended with, or why it failed.

    Each worker makes its program with `make`. A sample whose evidence JSON cannot hold is left out.
    """
    items = ((place, sample_text(sample)) for place, sample in enumerate(samples))
    for place, _, result in completed_on_ray(partial(_Evidence, make), items, cluster):
        found = json.loads(result)
        if found is not None:
            yield samples[place].id, found if isinstance(found, str) else evidence_of(found)


class _Evidence:
    """A worker's part: from a sample to what the program ended with and was asked, or why that is nothing."""

    def __init__(self, make: Callable[[], AgenticIQA]) -> None:
        self._program = make()

    def __call__(self, item: str) -> str:
        try:
            return json.dumps(evidence_json(*asked(self._program, to_example(sample_of(item)))))
        except InputError as error:
            return self.failed(item, str(error))

    def failed(self, item: str, error: str) -> str:
        return json.dumps(error)
