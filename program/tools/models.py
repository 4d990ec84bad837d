"""Tools run within their time, on model objects that are made once and lent to one thread at a time."""

import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from program.common.errors import ToolError
from program.common.settings import ToolSettings
from program.tools.loading import Overdue, load, within
from program.tools.readiness import Device, leave_out, left_out
from program.tools.registry import ToolSpec

if TYPE_CHECKING:
    import torch

__all__ = ("evaluate", "tensor_of")


def evaluate(
    spec: ToolSpec,
    parameters: Path | None,
    tools: ToolSettings,
    image: NDArray[np.uint8],
    reference: NDArray[np.uint8] | None,
) -> float:
    """Run the tool on H x W x 3 uint8 RGB pixels and return its raw value.

    Same value as pyiqa's own metric on the files with the same number of torch threads. Thread-safe.
    Raises ToolError when the tool cannot be loaded, returns no finite number or takes too long.
    """
    device = _resolve(tools.device, spec)
    images = [pixels for pixels in (image, reference) if pixels is not None]
    try:
        with _borrowed(spec, parameters, device, tools.load_timeout_s) as model:
            raw = within(tools.timeout_s, lambda: _value(spec, model, tools.threads, device, images))
    except Overdue as error:
        size = f"{image.shape[1]}x{image.shape[0]}"
        why = f"did not finish within {tools.timeout_s:g} s on {size} pixels and is left out from here on"
        raise leave_out(spec, f"{why} (tools.timeout_s)") from error
    if not math.isfinite(raw):
        raise ToolError(
            f"tool {spec.name!r}: returned {raw} here (a flat image leaves it nothing to measure); use another tool"
        )
    return raw


def _resolve(device: Device, spec: ToolSpec) -> str:
    if device == "cpu" or spec.takes == "pixels":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        # Convolutions in the reduced precision of TensorFloat-32 would move readings in the third digit.
        torch.backends.cudnn.allow_tf32 = False
        return "cuda"
    if device == "cuda":
        raise ToolError("device 'cuda': torch sees no CUDA device; set tools.device to cpu or auto")
    return "cpu"


class _Pool:
    """The model objects of one tool on one device that nobody uses now, and how many more may be lent."""

    def __init__(self, limit: int) -> None:
        self.free: list[Any] = []
        self.turns = threading.Semaphore(limit)


_pools: dict[tuple[str, Path | None, str], _Pool] = {}


@contextmanager
def _borrowed(spec: ToolSpec, parameters: Path | None, device: str, load_timeout_s: float) -> Iterator[Any]:
    """Lend a model object, made where none is free; raises what making it or the work inside raises.

    pyiqa's PIQE keeps its result on itself, so two threads in one object would swap their scores.
    """
    limit = 1 if device == "cuda" else os.cpu_count() or 1
    pool = _pools.setdefault((spec.key, parameters, device), _Pool(limit))
    with pool.turns:
        if (reason := left_out(spec)) is not None:
            raise ToolError(f"tool {spec.name!r}: {reason}")
        model = pool.free.pop() if pool.free else load(spec, parameters, device, seconds=load_timeout_s)
        try:
            yield model
        except Overdue:
            raise  # the work that was left behind still uses it: never lent again
        except BaseException:
            pool.free.append(model)
            raise
        pool.free.append(model)


def _value(
    spec: ToolSpec, model: Callable[..., Any], threads: int, device: str, images: list[NDArray[np.uint8]]
) -> float:
    if spec.takes == "pixels":
        return float(model(*images))
    import torch

    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    return float(model(*(tensor_of(pixels, device) for pixels in images)).reshape(-1)[0])


def tensor_of(pixels: NDArray[np.uint8], device: str) -> "torch.Tensor":
    """Return H x W x 3 uint8 pixels as 1 x 3 x H x W float32 in 0..1."""
    import torch

    # Contiguous planes, as pyiqa reads a file: other memory layouts sum in another order. Divided, not multiplied by
    # 1 / 255: that rounds otherwise.
    planes = np.divide(pixels.transpose(2, 0, 1)[None], np.float32(255), dtype=np.float32, order="C")
    return torch.from_numpy(planes).to(device)
