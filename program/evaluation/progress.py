"""Progress of an evaluation on stderr: a bar on a terminal, a line now and then elsewhere."""

import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from program.evaluation.metrics import srcc
from program.evaluation.rows import Row

__all__ = ("Watch", "watching")

_LINE_EVERY_S = 15.0


class Watch:
    """Counts finished samples and keeps a running SRCC, recomputed only as the samples grow by a tenth."""

    def __init__(self, label: str, total: int | None, console: Console | None) -> None:
        self._label, self._total, self._console = label, total, console
        self._bar: Progress | None = None
        if console is not None and console.is_terminal:
            columns = (
                SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                TextColumn("{task.fields[facts]}"), TimeRemainingColumn(),
            )  # fmt: skip
            self._bar = Progress(*columns, console=console)
            self._task = self._bar.add_task(label, total=total, facts="")
        self._started = self._last_line = time.perf_counter()
        self._done = self._fresh = self._failed = 0
        self._truth, self._predicted = array("d"), array("d")
        self._next_srcc, self._srcc = 10, float("nan")

    def add(self, row: Row, *, fresh: bool) -> None:
        """Take note of one finished sample; `fresh` ones were run now and count for the rate."""
        self._done += 1
        self._fresh += fresh
        self._failed += row.status == "failed"
        if row.counts and isinstance(row.truth, float) and isinstance(row.predicted, float):
            self._truth.append(row.truth)
            self._predicted.append(row.predicted)
            if len(self._truth) >= self._next_srcc:
                self._next_srcc = int(self._next_srcc * 1.1) + 1
                self._update()
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, facts=self.facts())
        elif self._console is not None and time.perf_counter() - self._last_line > _LINE_EVERY_S:
            self._last_line = time.perf_counter()
            self.line()

    def finish(self) -> None:
        """Bring the running figures up to the last sample, and draw or write them."""
        if len(self._truth) >= 10:
            self._update()
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, facts=self.facts())
        else:
            self.line()

    def _update(self) -> None:
        self._srcc = srcc(self._truth[:], self._predicted[:])  # copies, as an exported array could not grow

    def facts(self) -> str:
        """Return rate, failures and running SRCC in a few words."""
        seconds = time.perf_counter() - self._started
        parts = [f"{self._fresh / seconds:.1f}/s" if seconds > 0 else ""]
        if self._failed:
            parts.append(f"{self._failed} failed")
        if self._srcc == self._srcc:
            parts.append(f"SRCC {self._srcc:.3f}")
        return " · ".join(part for part in parts if part)

    def line(self) -> None:
        """Write the state as one plain line."""
        if self._console is not None:
            of = f"/{self._total}" if self._total is not None else ""
            self._console.print(f"{self._label}: {self._done}{of} · {self.facts()}", highlight=False, soft_wrap=True)

    @property
    def bar(self) -> Progress | None:
        """The live bar, if there is a terminal to draw it on."""
        return self._bar


@contextmanager
def watching(label: str, total: int | None, *, shown: bool) -> Iterator[Watch]:
    """Yield a Watch that draws on stderr when `shown`; the last state stays on the screen."""
    watch = Watch(label, total, Console(stderr=True) if shown else None)
    with watch.bar or nullcontext():
        try:
            yield watch
        finally:
            watch.finish()
