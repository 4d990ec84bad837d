"""pyiqa behind one door: imported on first use, guarded, silenced, its model objects made once and lent out."""

import importlib
import logging
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from program.errors import ToolError
from program.tools.deadline import Overdue, within
from program.tools.loading import building, give_up, held_up, turn
from program.tools.pool import Pool
from program.tools.registry import Library, ToolSpec
from program.tools.tensors import TensorCache
from program.tools.weights import file_sha256, main_file

if TYPE_CHECKING:
    import torch

__all__ = (
    "Device",
    "Running",
    "evaluate",
    "evaluate_batch",
    "fetch",
    "file_sha256",
    "library_version",
    "load_failure",
    "parameter_path",
    "pyiqa_version",
    "resolved_device",
)

logger = logging.getLogger(__name__)

Device = Literal["auto", "cpu", "cuda"]

TENSORS = TensorCache()


@cache
def library_version(library: Library) -> str | None:
    """Return the installed version of a library of tools without importing it, or None."""
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def pyiqa_version() -> str | None:
    """Return the installed pyiqa's version without importing it, or None."""
    return library_version("pyiqa")


def parameter_path(spec: ToolSpec, params_dir: Path | None) -> Path | None:
    """Return the file that decides the tool's values, found in `params_dir` or where pyiqa keeps its own, or None."""
    return main_file(spec, params_dir)


_lock = threading.RLock()
_pools: dict[tuple[str, str, str], Pool] = {}
_failures: dict[str, str] = {}


def load_failure(spec: ToolSpec) -> str | None:
    """Return why this tool cannot be loaded in this process: it was tried and failed, or another's loading hangs."""
    known = _failures.get(spec.library) or _failures.get(spec.key)
    return known or (None if _is_loaded(spec) else held_up())


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
    raw = evaluate_batch(spec, parameters, running, [(image, reference)])[0]
    if not math.isfinite(raw):
        raise ToolError(
            f"tool {spec.name!r}: returned {raw} here (a flat image leaves it nothing to measure); use another tool"
        )
    return raw


def evaluate_batch(
    spec: ToolSpec,
    parameters: Path | None,
    running: Running,
    pairs: Sequence[tuple[NDArray[np.uint8], NDArray[np.uint8] | None]],
) -> list[float]:
    """Run the tool on images (each with its reference or None) of one size at once; values in their order.

    Raises ToolError as `evaluate` does, but returns what is not finite.
    """
    device = _resolve(running.device)
    try:
        with _pool(spec, parameters, device, running.load_timeout_s).borrow() as model, _quiet():
            if (reason := load_failure(spec)) is not None:
                raise ToolError(f"tool {spec.name!r}: {reason}")
            # piq's SR-SIM scales an image's saliency by the largest of the batch.
            parts = [pairs] if spec.library == "pyiqa" else [[pair] for pair in pairs]
            return within(
                running.timeout_s, lambda: [v for part in parts for v in _values(model, running.threads, device, part)]
            )
    except Overdue as error:
        height, width = pairs[0][0].shape[:2]
        _failures[spec.key] = reason = (
            f"did not finish within {running.timeout_s:g} s on {width}x{height} pixels and is left out from here on "
            "(tools.timeout_s)"
        )
        raise ToolError(f"tool {spec.name!r}: {reason}") from error


def _values(
    model: Callable[..., Any],
    threads: int,
    device: str,
    pairs: Sequence[tuple[NDArray[np.uint8], NDArray[np.uint8] | None]],
) -> list[float]:
    import torch

    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    columns = [[p for p in column if p is not None] for column in zip(*pairs, strict=True)]
    lent = [[TENSORS.get(pixels, device) for pixels in column] for column in columns if column]
    raw = model(*(tensors[0] if len(tensors) == 1 else torch.cat(tensors) for tensors in lent))
    for tensor in (t for tensors in lent for t in tensors):
        TENSORS.check(tensor)
    return [float(value) for value in raw.reshape(-1).tolist()]


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


def _pool(spec: ToolSpec, parameters: Path | None, device: str, load_timeout_s: float) -> Pool:
    key = (spec.key, str(parameters or ""), device)
    with _lock:
        if key not in _pools:
            limit = 1 if device == "cuda" else os.cpu_count() or 1
            _pools[key] = Pool(lambda: _made_within(load_timeout_s, spec, parameters, device), limit)
        return _pools[key]


def _made_within(seconds: float, spec: ToolSpec, parameters: Path | None, device: str) -> Any:
    if (reason := load_failure(spec)) is not None:
        raise ToolError(f"tool {spec.name!r}: {reason}")
    try:
        return within(seconds, lambda: _made(spec, parameters, device))
    except Overdue as error:
        give_up(spec)
        _failures[spec.key] = reason = (
            f"did not load within {seconds:g} s and is left out from here on (tools.load_timeout_s)"
        )
        raise ToolError(f"tool {spec.name!r}: {reason}") from error


def _made(spec: ToolSpec, parameters: Path | None, device: str) -> Any:
    with turn(spec):
        return _make(spec, parameters, device)


def fetch(spec: ToolSpec, device: Device = "cpu") -> None:
    """Load a tool, downloading what it lacks to where pyiqa keeps it. Raises ToolError when that fails."""
    _failures.pop(spec.key, None)
    with turn(spec):
        _make(spec, None, _resolve(device), fetch=True)


def _make(spec: ToolSpec, parameters: Path | None, device: str, *, fetch: bool = False) -> Any:
    library = _import(spec.library)
    if spec.library == "piq":
        return partial(getattr(library, spec.function), **spec.options)
    try:
        options: dict[str, Any] = dict(spec.options)
        if parameters is not None and spec.needs == "parameters":
            _check_parameters(parameters)
            options["pretrained_model_path"] = str(parameters)
        with building(spec, parameters, fetch=fetch), _quiet():
            # Our tensors are in range; looking for their extremes takes longer than the fastest tools.
            return library.create_metric(
                spec.function, device=_torch_device(device), check_input_range=False, **options
            )
    except Exception as error:  # Border: whatever a third-party metric raises becomes one line.
        _failures[spec.key] = reason = f"cannot be loaded ({_one_line(error)[:300]})"
        logger.warning("tool %s: %s; it is left out from here on", spec.name, reason)
        mend = "; connect to the network, or get its files elsewhere and name their folder in AGENTICIQA_PARAMS_DIR"
        raise ToolError(f"tool {spec.name!r}: {reason}{mend if fetch else ''}") from error


def _torch_device(device: str) -> "torch.device":
    import torch

    return torch.device(device)


def _import(library: Library) -> Any:
    if library in _failures:
        raise ToolError(f"{library} {_failures[library]}")
    try:
        with _quiet():
            module = importlib.import_module(library)
    except Exception as error:  # Border: a torch and torchvision that do not match raise RuntimeError here.
        _failures[library] = reason = _import_reason(library, error)
        raise ToolError(f"{library} {reason}") from error
    logging.getLogger(library).setLevel(logging.WARNING)
    return module


def _import_reason(library: Library, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == library:
        return f"is not installed; install it with `pip install {library}`"
    text = _one_line(error)
    if "torchvision::" in text:
        return (
            f"cannot be imported: torch and torchvision are of different builds ({text}); reinstall both in one command"
        )
    return f"cannot be imported ({text}); reinstall it"


def _check_parameters(path: Path) -> None:
    """Open a parameter file without running code from it, before pyiqa does. Raises ToolError."""
    import scipy.io
    import torch

    try:
        if path.suffix == ".mat":
            scipy.io.loadmat(str(path))
        else:
            torch.load(str(path), weights_only=True, map_location="cpu")
    except Exception as error:  # Border: a damaged file raises anything.
        raise ToolError(
            f"parameter file {str(path)!r}: not plain numbers or damaged ({_one_line(error)[:80]}); get the original"
        ) from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


_quiet_lock = threading.Lock()
_quiet_users = 0
_quiet_saved: "warnings.catch_warnings[None] | None" = None


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence a library's warnings, for many threads at once: the last one out restores the filters."""
    global _quiet_users, _quiet_saved
    with _quiet_lock:
        if _quiet_users == 0:
            _quiet_saved = warnings.catch_warnings()
            _quiet_saved.__enter__()
            warnings.simplefilter("ignore")
        _quiet_users += 1
    try:
        yield
    finally:
        with _quiet_lock:
            _quiet_users -= 1
            if _quiet_users == 0 and _quiet_saved is not None:
                _quiet_saved.__exit__(None, None, None)
                _quiet_saved = None
