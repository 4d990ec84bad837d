"""What MLflow costs a compile: `python benchmarks/tracking_cost.py [ARGUMENTS OF program.compile]`.

Seconds inside the tracking package (opening the store, every write, registering) against the compile's wall time. Exits
1 where they are over 5 % and over 10 s.
"""

import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from program.compile import main
from program.tracking import RunHandle, Tracker, models

spent = {"seconds": 0.0, "depth": 0.0}


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add a call's wall time once, however its parts call each other."""

    @functools.wraps(function)
    def inner(*arguments: Any, **named: Any) -> Any:
        spent["depth"] += 1
        started = time.perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            spent["depth"] -= 1
            if not spent["depth"]:
                spent["seconds"] += time.perf_counter() - started

    return inner


RunHandle._write = timed(RunHandle._write)  # type: ignore[method-assign]
Tracker.__init__ = timed(Tracker.__init__)  # type: ignore[method-assign]
for name in ("register", "promote", "find_champion"):
    setattr(models, name, timed(getattr(models, name)))

started = time.perf_counter()
code = main(sys.argv[1:])
wall = time.perf_counter() - started
share = spent["seconds"] / wall
print(f"MLflow {spent['seconds']:.1f} s of {wall:.1f} s ({100 * share:.1f} %); asked: under 5 % or under 10 s")
sys.exit(code or int(share >= 0.05 and spent["seconds"] >= 10))
