"""Loading a tool: its library imported on first use, its metric built, one at a time, failures remembered."""

import importlib
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from program.common.errors import ToolError
from program.tools.building import building
from program.tools.registry import Library, ToolSpec

__all__ = ("failure_of", "give_up", "held_up", "left_out", "load", "quiet")

logger = logging.getLogger(__name__)

_failures: dict[str, str] = {}
"""Why a library, or a tool by its key, is left out for the rest of the process."""
_lock = threading.RLock()
_WAIT_S = 0.1


def failure_of(spec: ToolSpec) -> str | None:
    """Return why this tool, or its library, failed before in this process."""
    return _failures.get(spec.library) or _failures.get(spec.key)


def left_out(spec: ToolSpec, reason: str, mend: str = "") -> ToolError:
    """Leave a tool out for the rest of the process; returns the error that says why."""
    _failures[spec.key] = reason
    return ToolError(f"tool {spec.name!r}: {reason}{mend}")


@dataclass
class _Loading:
    """The tool that is being loaded: standard output is redirected meanwhile, for the whole process."""

    name: str
    output: TextIO
    given_up: bool = False


_under_way: list[_Loading] = []


def give_up(spec: ToolSpec) -> None:
    """Say that nobody waits for a tool's loading any more. Output goes where it belongs again.

    The thread that loads cannot be stopped and holds the process's settings for loading, so none is loaded meanwhile.
    """
    for loading in _under_way:
        if loading.name == spec.name:
            loading.given_up, sys.stdout = True, loading.output


def held_up() -> str | None:
    """Return why no tool can be loaded now, or None: one's loading was given up and still goes on."""
    other = next((loading.name for loading in _under_way if loading.given_up), None)
    return other and f"cannot be loaded while the loading of {other!r} hangs; mend that and start again"


@contextmanager
def _turn(spec: ToolSpec) -> Iterator[None]:
    """Load one tool, and its library, at a time. Raises ToolError while another's loading hangs."""
    while not _lock.acquire(timeout=_WAIT_S):
        if (reason := held_up()) is not None:
            raise ToolError(f"tool {spec.name!r}: {reason}")
    loading = _Loading(spec.name, sys.stdout)
    _under_way.append(loading)
    try:
        yield
    finally:
        _under_way.remove(loading)
        _lock.release()


def load(spec: ToolSpec, parameters: Path | None, device: str, *, fetch: bool = False) -> Any:
    """Return a new model object of a tool, in its turn; with `fetch`, what it lacks is downloaded to pyiqa's folder.

    Raises ToolError when that fails, or failed before.
    """
    if fetch:
        _failures.pop(spec.key, None)
    with _turn(spec):
        return _make(spec, parameters, device, fetch=fetch)


def _make(spec: ToolSpec, parameters: Path | None, device: str, *, fetch: bool = False) -> Any:
    library = _import(spec.library)
    if spec.library == "piq":
        return partial(getattr(library, spec.function), **spec.options)
    try:
        import torch

        options: dict[str, Any] = dict(spec.options)
        if parameters is not None and spec.needs == "parameters":
            _check_parameters(parameters)
            options["pretrained_model_path"] = str(parameters)
        with building(spec, parameters, fetch=fetch), quiet():
            # Our tensors are in range; looking for their extremes takes longer than the fastest tools.
            return library.create_metric(spec.function, device=torch.device(device), check_input_range=False, **options)
    except Exception as error:  # Border: whatever a third-party metric raises becomes one line.
        reason = f"cannot be loaded ({_one_line(error)[:300]})"
        logger.warning("tool %s: %s; it is left out from here on", spec.name, reason)
        mend = "; connect to the network, or get its files elsewhere and name their folder in AGENTICIQA_PARAMS_DIR"
        raise left_out(spec, reason, mend if fetch else "") from error


def _import(library: Library) -> Any:
    if library in _failures:
        raise ToolError(f"{library} {_failures[library]}")
    try:
        with quiet():
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
def quiet() -> Iterator[None]:
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
