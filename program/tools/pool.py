"""Model objects of one tool, each lent to one thread at a time."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from program.tools.deadline import Overdue

__all__ = ("Pool",)


@dataclass
class Pool:
    """The model objects of one tool on one device, each lent to one thread at a time.

    pyiqa's PIQE keeps its result on itself, so two threads in one object would swap their scores.
    """

    make: Callable[[], Any]
    limit: int
    free: list[Any] = field(default_factory=list)
    made: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def borrow(self) -> Iterator[Any]:
        """Lend a model object, made where none is free; raises what making it or the work inside raises."""
        model = self._take()
        try:
            yield model
        except Overdue:
            # Still in use by the work that was left behind: never lent again.
            with self.changed:
                self.made -= 1
                self.changed.notify_all()
            raise
        except BaseException:
            self._give_back(model)
            raise
        self._give_back(model)

    def _give_back(self, model: Any) -> None:
        with self.changed:
            self.free.append(model)
            self.changed.notify()

    def _take(self) -> Any:
        with self.changed:
            while not self.free and self.made >= self.limit:
                self.changed.wait()
            if self.free:
                return self.free.pop()
            # Made under the lock: two threads must not import or build at once.
            model = self.make()
            self.made += 1
            return model
