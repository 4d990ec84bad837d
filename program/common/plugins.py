"""What other installed packages offer: tools, optimizers and datasets, by the entry points of their distributions."""

import logging
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from program.common.errors import first_fault, one_line

T = TypeVar("T")
Kind = Literal["tools", "optimizers", "datasets"]

logger = logging.getLogger(__name__)


def offers(kind: Kind) -> tuple[str, ...]:
    """Return the names under the group `agentic_iqa.KIND`; nothing of them is imported."""
    return tuple(point.name for point in _points().select(group=f"agentic_iqa.{kind}"))


def offered(kind: Kind, made: Callable[[str, Any], T]) -> Mapping[str, T]:
    """Return what `made` makes of each name and object; it raises where the object is none of its kind.

    One that fails is said to be left out: a stranger's package must not end what is ours.
    """
    found = {}
    for point in _points().select(group=f"agentic_iqa.{kind}"):
        try:
            found[point.name] = made(point.name, point.load())
        except Exception as error:  # Border: the import of another's module may raise anything.
            why = first_fault(error, "entry") if isinstance(error, ValidationError) else one_line(error)
            logger.warning("%s %r of another package (%s): left out, %s", kind, point.name, point.value, why)
    return found


@cache
def _points() -> Any:
    return entry_points()
