"""Environment variables that libraries read while something runs, and that go back to what they were."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ("variable",)


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable inside the block, for the whole process."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
