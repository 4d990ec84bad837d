"""Pixels as the tensors that tools read, made once for all tools that measure the same image."""

import threading
import weakref
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

__all__ = ("TensorCache",)


class TensorCache:
    """The tensors used last, by the array they were made from, as long as that lives. Thread-safe.

    Only arrays that cannot be written to are remembered. A tool that writes into its input spoils it for the others:
    give back with `check` what was lent, and a changed tensor is dropped.
    """

    def __init__(self, limit_mb: int = 128) -> None:
        self._lock = threading.Lock()
        self._limit = limit_mb * 2**20
        self._kept: OrderedDict[tuple[int, str], torch.Tensor] = OrderedDict()
        self._gone: deque[tuple[int, str]] = deque()
        """Keys of arrays that went away while the lock was held; another array may get the same id."""

    def get(self, pixels: NDArray[np.uint8], device: str) -> "torch.Tensor":
        """Return 1 x 3 x H x W float32 in 0..1 of H x W x 3 uint8 pixels."""
        key = (id(pixels), device)
        with self._lock:
            self._forget_gone()
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        tensor = _tensor(pixels, device)
        if not pixels.flags.writeable:
            with self._lock:
                self._kept[key] = tensor
                while sum(t.nbytes for t in self._kept.values()) > self._limit:
                    self._kept.popitem(last=False)
            weakref.finalize(pixels, self._forget, key).atexit = False
        return tensor

    def check(self, tensor: "torch.Tensor") -> None:
        """Drop a tensor that was written to."""
        if tensor._version == 0:
            return
        with self._lock:
            for key in [key for key, kept in self._kept.items() if kept is tensor]:
                del self._kept[key]

    def _forget(self, key: tuple[int, str]) -> None:
        """Drop the tensor of an array that went away: what was sent to a service is not to stay."""
        self._gone.append(key)
        # The array may go in a thread that holds the lock; then whoever asks next does it.
        if self._lock.acquire(blocking=False):
            try:
                self._forget_gone()
            finally:
                self._lock.release()

    def _forget_gone(self) -> None:
        while self._gone:
            self._kept.pop(self._gone.popleft(), None)


def _tensor(pixels: NDArray[np.uint8], device: str) -> "torch.Tensor":
    import torch

    # Contiguous planes, as pyiqa reads a file: other memory layouts sum in another order. Divided, not multiplied by
    # 1 / 255: that rounds otherwise.
    planes = np.divide(pixels.transpose(2, 0, 1)[None], np.float32(255), dtype=np.float32, order="C")
    return torch.from_numpy(planes).to(device)
