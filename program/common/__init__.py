"""What every room shares: settings, errors, files, command lines. It imports none of them.

Here stands what is imported when it is asked for: names of our own packages, and what other
packages offer.
"""

import contextlib
import ctypes
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Literal, TypeVar

from program.common.errors import first_fault, one_line

T = TypeVar("T")
Kind = Literal["tools", "optimizers", "datasets"]
"""What other packages offer, by the entry points of their distributions."""

logger = logging.getLogger(__name__)


def lazy(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a package's `__getattr__`; `homes` are the names it gives, by their modules."""
    modules = {name: module for module, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(f"{package}.{modules[name]}"), name)
        setattr(import_module(package), name, found)  # from now on it is found without this
        return found

    return find


def offers(kind: Kind) -> tuple[str, ...]:
    """Return the names under the group `agentic_iqa.KIND`; nothing of them is imported."""
    return tuple(point.name for point in _points().select(group=f"agentic_iqa.{kind}"))


def load_offers(kind: Kind, make: Callable[[str, Any], T]) -> Mapping[str, T]:
    """Return what `make` makes of each name and object; it raises where the object does not fit.

    One that fails is said to be left out: a stranger's package must not end what is ours.
    """
    found = {}
    for point in _points().select(group=f"agentic_iqa.{kind}"):
        try:
            found[point.name] = make(point.name, point.load())
        except Exception as error:  # Border: the import of another's module may raise anything.
            from pydantic import ValidationError

            why = first_fault(error, "entry") if isinstance(error, ValidationError) else one_line(error)
            logger.warning("%s %r of another package (%s): left out, %s", kind, point.name, point.value, why)
    return found


def give_back_memory() -> None:
    """Return free memory to the system, where the C library can."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


@cache
def _points() -> Any:
    from importlib.metadata import entry_points

    return entry_points()
