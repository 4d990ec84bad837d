"""Judging many images on Ray: items and rows travel as JSON, images never."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial

from program.agent.loop import AgenticIQA
from program.batch.inputs import Item
from program.batch.rows import BatchRow
from program.batch.running import Engine, Judge, Placed, Question, failed_row
from program.cluster.engine import Cluster, completed_on_ray, refuse_held
from program.common.places import placed

__all__ = ("ray_engine",)


def ray_engine(make: Callable[[], AgenticIQA], question: Question, cluster: Cluster) -> Engine:
    """Return what judges items in the workers of a cluster; each makes its program with `make`."""

    def engine(items: Iterable[Placed]) -> Iterator[tuple[Placed, BatchRow]]:
        texts = ((place, _text(item)) for place, item in items)
        for place, item, row in completed_on_ray(partial(_Rows, make, question), texts, cluster):
            yield (place, _item(item)), BatchRow.model_validate_json(row)

    return engine


class _Rows:
    """A worker's part: from an item to its row."""

    def __init__(self, make: Callable[[], AgenticIQA], question: Question) -> None:
        self._judge = Judge(make(), question)

    def __call__(self, item: str) -> str:
        return self._judge(_item(item)).model_dump_json()

    def failed(self, item: str, error: str) -> str:
        given = _item(item)
        return failed_row(given, f"image {given.id!r}: {error}").model_dump_json()


def _text(item: Item) -> str:
    refuse_held(f"image {item.id!r}", item.image)
    # Only ASCII: names may hold bytes that are no UTF-8.
    return json.dumps(asdict(item), default=str)


def _item(text: str) -> Item:
    fields = json.loads(text)
    for name in ("image", "reference"):
        fields[name] = placed(fields[name]) if fields[name] is not None else None
    fields["regions"] = {name: tuple(box) for name, box in fields["regions"].items()} if fields["regions"] else None
    return Item(**fields)
