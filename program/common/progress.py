"""Progress on stderr: a bar on a terminal, a line now and then elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ("progress", "timed")

_LINE_EVERY_S = 15.0


@contextmanager
def progress(
    label: str, total: int | None, *, shown: bool = True, console: "Console | None" = None
) -> Iterator[Callable[..., None]]:
    """Yield what moves the progress on; `total` None is unknown.

    It takes `steps` that are done (1 by default) and `facts`, a few words that stand behind the count (none).
    Without a terminal a line is written every 15 s, and a last one where there were any or there are facts.
    """
    if not shown or total == 0:
        yield lambda steps=1, facts="": None
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    console = console or Console(stderr=True)
    if console.is_terminal:
        counted = TextColumn("{task.completed}" if total is None else "{task.completed}/{task.total}")
        more = (counted, TextColumn("{task.fields[facts]}"), TimeElapsedColumn())
        with Progress(*Progress.get_default_columns(), *more, console=console) as bar:
            task = bar.add_task(label, total=total, facts="")

            def advance(steps: int = 1, facts: str = "") -> None:
                bar.update(task, advance=steps, facts=facts)

            yield advance
        return
    done, line, last, said = 0, "", time.monotonic(), False

    def count(steps: int = 1, facts: str = "") -> None:
        nonlocal done, line, last, said
        done += steps
        said = said or bool(facts)
        line = f"{label}: {done}{'' if total is None else f'/{total}'}{facts and f' · {facts}'}"
        if time.monotonic() - last > _LINE_EVERY_S:
            last, said = time.monotonic(), True
            console.print(line, highlight=False, soft_wrap=True)

    try:
        yield count
    finally:
        if said:
            console.print(line, highlight=False, soft_wrap=True)


@contextmanager
def timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Add the wall time of the block to a phase."""
    started = time.perf_counter()
    try:
        yield
    finally:
        seconds[phase] = round(seconds.get(phase, 0.0) + time.perf_counter() - started, 2)
