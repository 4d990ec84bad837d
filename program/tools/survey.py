"""Many images through many tools."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

from program.errors import ImageError
from program.images import IMAGES
from program.tools.registry import ToolSpec
from program.tools.runner import Measurement, ToolRunner

__all__ = ("Pair", "survey")

Pair: TypeAlias = tuple[Path, Path | None]
"""An image and its reference, if it has one."""


def survey(
    runner: ToolRunner,
    specs: Sequence[ToolSpec],
    pairs: Sequence[Pair],
    *,
    workers: int = 2,
    on_image: Callable[[], None] = lambda: None,
) -> list[dict[str, Measurement]]:
    """Measure every image with every tool; full-reference tools only where there is a reference.

    Returns one mapping from tool name to measurement per pair, in order. `on_image` is called after each image,
    from the worker's thread. Nothing raises for a bad image: its measurements hold the error.
    """

    def measure(pair: Pair) -> dict[str, Measurement]:
        fitting = [spec.name for spec in specs if spec.mode == "NR" or pair[1] is not None]
        try:
            image = IMAGES.add(pair[0])
            reference = IMAGES.add(pair[1]) if pair[1] is not None else None
            return {name: runner.measure(name, image, reference) for name in fitting}
        except ImageError as error:
            return {name: Measurement(tool=name, error=str(error)) for name in fitting}
        finally:
            on_image()

    with ThreadPoolExecutor(workers) as executor:
        return list(executor.map(measure, pairs))
