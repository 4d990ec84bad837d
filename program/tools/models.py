"""pyiqa behind one door: tools run within their time, on model objects that are made once and lent out."""

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from program.common.errors import ToolError
from program.tools.deadline import Overdue, within
from program.tools.loading import failure_of, give_up, held_up, left_out, load, quiet
from program.tools.registry import ToolSpec
from program.tools.tensors import TensorCache

__all__ = ("Device", "Running", "evaluate", "fetch", "load_failure", "resolved_device")

Device = Literal["auto", "cpu", "cuda"]

TENSORS = TensorCache()


@dataclass
class _Pool:
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
        model, usable = self._take(), True
        try:
            yield model
        except Overdue:
            usable = False  # the work that was left behind still uses it: never lent again
            raise
        finally:
            with self.changed:
                if usable:
                    self.free.append(model)
                else:
                    self.made -= 1
                self.changed.notify_all()

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


_lock = threading.RLock()
_pools: dict[tuple[str, str, str], _Pool] = {}


def load_failure(spec: ToolSpec) -> str | None:
    """Return why this tool cannot be loaded in this process: it was tried and failed, or another's loading hangs."""
    return failure_of(spec) or (None if _is_loaded(spec) else held_up())


def _is_loaded(spec: ToolSpec) -> bool:
    return any(key == spec.key and pool.made for (key, *_), pool in list(_pools.items()))


@dataclass(frozen=True, slots=True)
class Running:
    """How tools are run."""

    device: Device = "auto"
    threads: int = 1
    """Threads of one torch operation, for the whole process."""
    timeout_s: float = math.inf
    """A tool that takes longer to measure one image fails, and is left out for the rest of the process."""
    load_timeout_s: float = math.inf
    """Likewise one that takes longer to be loaded, with its library where it is the first."""


def evaluate(
    spec: ToolSpec,
    parameters: Path | None,
    running: Running,
    image: NDArray[np.uint8],
    reference: NDArray[np.uint8] | None,
) -> float:
    """Run the tool on H x W x 3 uint8 RGB pixels and return its raw value.

    Same value as pyiqa's own metric on the files with the same number of torch threads. Thread-safe.
    Raises ToolError when the tool cannot be loaded, returns no finite number or takes too long.
    """
    device = _resolve(running.device)
    images = [pixels for pixels in (image, reference) if pixels is not None]
    try:
        with _pool(spec, parameters, device, running.load_timeout_s).borrow() as model, quiet():
            if (reason := load_failure(spec)) is not None:
                raise ToolError(f"tool {spec.name!r}: {reason}")
            raw = within(running.timeout_s, lambda: _value(model, running.threads, device, images))
    except Overdue as error:
        size = f"{image.shape[1]}x{image.shape[0]}"
        why = f"did not finish within {running.timeout_s:g} s on {size} pixels and is left out from here on"
        raise left_out(spec, f"{why} (tools.timeout_s)") from error
    if not math.isfinite(raw):
        raise ToolError(
            f"tool {spec.name!r}: returned {raw} here (a flat image leaves it nothing to measure); use another tool"
        )
    return raw


def _value(model: Callable[..., Any], threads: int, device: str, images: Sequence[NDArray[np.uint8]]) -> float:
    import torch

    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    tensors = [TENSORS.get(pixels, device) for pixels in images]
    raw = model(*tensors)
    for tensor in tensors:
        TENSORS.check(tensor)
    return float(raw.reshape(-1)[0])


@cache
def resolved_device(device: Device) -> str:
    """Return what a device setting comes to here, as far as that can be said without importing torch."""
    accelerators = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
    nothing_there = os.name == "posix" and not any(os.path.exists(path) for path in accelerators)
    return "cpu" if device == "auto" and nothing_there else device


def _resolve(device: Device) -> str:
    if device == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if device == "cuda":
        raise ToolError("device 'cuda': torch sees no CUDA device; set tools.device to cpu or auto")
    return "cpu"


def _pool(spec: ToolSpec, parameters: Path | None, device: str, load_timeout_s: float) -> _Pool:
    key = (spec.key, str(parameters or ""), device)
    with _lock:
        if key not in _pools:
            limit = 1 if device == "cuda" else os.cpu_count() or 1
            _pools[key] = _Pool(lambda: _made_within(load_timeout_s, spec, parameters, device), limit)
        return _pools[key]


def _made_within(seconds: float, spec: ToolSpec, parameters: Path | None, device: str) -> Any:
    if (reason := load_failure(spec)) is not None:
        raise ToolError(f"tool {spec.name!r}: {reason}")
    try:
        return within(seconds, lambda: load(spec, parameters, device))
    except Overdue as error:
        give_up(spec)
        why = f"did not load within {seconds:g} s and is left out from here on (tools.load_timeout_s)"
        raise left_out(spec, why) from error


def fetch(spec: ToolSpec, device: Device = "cpu") -> None:
    """Load a tool, downloading what it lacks to where pyiqa keeps it. Raises ToolError when that fails."""
    load(spec, None, _resolve(device), fetch=True)
