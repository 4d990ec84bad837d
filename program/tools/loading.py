"""Whether a tool can run here, and loading it within its time: its library imported on first use."""

import hashlib
import importlib
import importlib.util
import io
import logging
import math
import os
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, redirect_stdout
from contextvars import Context, copy_context
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, TypeAlias, TypeVar

from program.common.errors import ToolError, one_line
from program.common.settings import variable
from program.tools.registry import ToolSpec

Device: TypeAlias = Literal["auto", "cpu", "cuda"]

HUGGING_FACE = "hf:"
"""Begins the name of a Hugging Face repository among a tool's weights; the others lie below torch's hub folder."""

failures: dict[str, str] = {}
"""Why a library, or a tool by its key, is left out for the rest of the process."""
loaded: set[str] = set()
"""Keys of tools that were loaded before: they need no loading."""
hanging: dict[str, "Future[Any]"] = {}
"""Loadings that nobody waits for any more, by the tool's name: they hold the process's settings for loading."""


def left_out(spec: ToolSpec) -> str | None:
    """Return why this tool cannot be loaded in this process: it was tried and failed, or another's loading hangs."""
    failure = failures.get(spec.library) or failures.get(spec.key)
    if failure is not None or spec.key in loaded:
        return failure
    other = next((name for name, loading in list(hanging.items()) if not loading.done()), None)
    return other and f"cannot be loaded while the loading of {other!r} hangs; start again without that tool"


def leave_out(spec: ToolSpec, reason: str, mend: str = "") -> ToolError:
    """Leave a tool out for the rest of the process; returns the error that says why."""
    failures[spec.key] = reason
    return ToolError(f"tool {spec.name!r}: {reason}{mend}")


@cache
def resolved_device(device: Device) -> str:
    """Return what a device setting comes to here, as far as that can be said without importing torch."""
    accelerators = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
    nothing_there = os.name == "posix" and not any(os.path.exists(path) for path in accelerators)
    return "cpu" if device == "auto" and nothing_there else device


@cache
def installed_version(package: str) -> str | None:
    """Return the version of an installed package without importing it; None where there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def library_label(spec: ToolSpec) -> str:
    """Return the library of a tool with its version, as "pyiqa 0.1.16"."""
    return f"{spec.library} {installed_version(spec.library) or 'unknown'}"


def hub_folder() -> Path:
    """Return torch's hub folder, where pyiqa, torchvision and CLIP keep what they download."""
    return _hub_of("TORCH_HOME", "torch")  # torch.hub.get_dir() without importing torch


def _hub_of(variable: str, library: str) -> Path:
    home = os.environ.get(variable) or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", library)
    return Path(os.path.expanduser(home)) / "hub"


def needed_files(spec: ToolSpec, folder: Path | None) -> dict[str, Path | None]:
    """Return, for each file of a tool, by its place below torch's hub folder, where it lies (None: nowhere).

    `folder` holds files by name and goes before torch's hub folder. Hugging Face repositories have their own cache.
    """
    places = [f"pyiqa/{spec.parameter_file}"] if spec.parameter_file else list(spec.weights)
    return {place: _path_of(place, folder) for place in places}


def parameter_path(spec: ToolSpec, params_dir: Path | None) -> Path | None:
    """Return the file that decides a tool's values: its parameter file or first weights; None where there is none."""
    paths = needed_files(spec, params_dir).values()
    return next((path for path in paths if path is not None and path.is_file()), None)


def what_is_missing(spec: ToolSpec, params_dir: Path | None) -> str | None:
    """Return which package or file a tool lacks here and the mend, in one line; None when it lacks nothing."""
    if installed_version(spec.library) is None:
        return f"{spec.library} is not installed; install it with `pip install {spec.library}`"
    for module, requirement in spec.packages.items():
        if importlib.util.find_spec(module) is None:
            return f"needs the Python package {module!r}; install it with `pip install '{requirement}'`"
    missing = [place for place, path in needed_files(spec, params_dir).items() if path is None]
    if not missing:
        return None
    files = ", ".join(repr(place if place.startswith(HUGGING_FACE) else Path(place).name) for place in missing)
    where = f"{str(params_dir)!r} nor in " if params_dir else ""
    return (
        f"{'parameter file' if spec.parameter_file else 'weights'} {files} not found in {where}{str(hub_folder())!r}; "
        f"with a network `python -m program.tools --fetch {spec.name}`, without set tools.params_dir or "
        "AGENTICIQA_PARAMS_DIR to the folder that holds what is missing"
    )


def file_sha256(path: Path) -> str:
    """Return a file's SHA-256 in hex; read again only when its time or size changed."""
    stat = path.stat()
    return _sha256(path, stat.st_mtime_ns, stat.st_size)


@cache
def _sha256(path: Path, *_: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _path_of(place: str, folder: Path | None) -> Path | None:
    if place.startswith(HUGGING_FACE):
        repository = f"models--{place.removeprefix(HUGGING_FACE).replace('/', '--')}"
        named = os.environ.get("HF_HUB_CACHE")
        hub = Path(os.path.expanduser(named)) if named else _hub_of("HF_HOME", "huggingface")
        snapshots = hub / repository / "snapshots"
        return next((snapshot for snapshot in sorted(snapshots.glob("*")) if any(snapshot.iterdir())), None)
    candidates = [*([folder / Path(place).name] if folder else []), hub_folder() / place]
    return next((path for path in candidates if path.is_file()), None)


logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_SAFE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""torch's own switch. pyiqa 0.1.16 opens its weights with weights_only=False, which runs whatever a pickle holds; under
this switch `torch.load` refuses anything but plain tensors, whoever calls it and however."""
_turn = threading.Lock()


class Overdue(Exception):  # noqa: N818 - it says what the work is
    """The work did not end in time; it may still be running."""

    def __init__(self, work: "Future[Any]") -> None:
        super().__init__()
        self.work = work


_Job: TypeAlias = "tuple[Future[Any], Context, Callable[[], Any]]"
_idle: "list[SimpleQueue[_Job | None]]" = []
"""Of threads that wait for work: a new one would have to get its memory, and torch's, from the system each time."""
os.register_at_fork(after_in_child=_idle.clear)  # a forked child has none of its parent's threads


def within(seconds: float, work: Callable[[], _T]) -> _T:
    """Return what `work` returns, or raise what it raises; Overdue when it takes longer than `seconds`.

    Python cannot stop a thread: such work goes on, with whatever it holds, on a daemon thread that never keeps the
    process from ending. Work in C code that holds the GIL cannot be left behind. Thread-safe.
    """
    try:
        jobs = _idle.pop()
    except IndexError:
        jobs = SimpleQueue()
        threading.Thread(target=_work_off, args=(jobs,), name="agentic-iqa-tool", daemon=True).start()
    future: Future[_T] = Future()
    jobs.put((future, copy_context(), work))
    if wait([future], min(seconds, threading.TIMEOUT_MAX)).not_done:
        jobs.put(None)
        raise Overdue(future)
    _idle.append(jobs)
    return future.result()


def _work_off(jobs: "SimpleQueue[_Job | None]") -> None:
    while (job := jobs.get()) is not None:
        future, context, work = job
        try:
            future.set_result(context.run(work))
        except BaseException as error:  # Border: it is raised again on the caller's thread.
            future.set_exception(error)
        del job, future, context, work  # else a result lives until the next one


def load(
    spec: ToolSpec, parameters: Path | None, device: str, *, seconds: float = math.inf, fetch: bool = False
) -> Any:
    """Return a new model object of a tool; with `fetch`, what it lacks is downloaded to pyiqa's folder.

    One tool at a time, with its library where it is the first. Raises ToolError when that fails, failed before, takes
    longer than `seconds`, or while another's loading hangs: that cannot be stopped and holds the process's settings.
    """
    with _turn:
        if fetch:
            failures.pop(spec.key, None)
        elif (reason := left_out(spec)) is not None:
            raise ToolError(f"tool {spec.name!r}: {reason}")
        output = sys.stdout
        try:
            model = within(seconds, lambda: _make(spec, parameters, device, fetch=fetch))
        except Overdue as overdue:
            # Else output stays where the thread that is left behind sends it.
            sys.stdout, hanging[spec.name] = output, overdue.work
            why = f"did not load within {seconds:g} s and is left out from here on (tools.load_timeout_s)"
            raise leave_out(spec, why) from overdue
        loaded.add(spec.key)
        return model


def _make(spec: ToolSpec, parameters: Path | None, device: str, *, fetch: bool = False) -> Any:
    module, _, function = (spec.python or f"{spec.library}:{spec.function}").partition(":")
    library = _import(module)
    if spec.pyiqa is None:
        return partial(getattr(library, function), **spec.options)
    import torch

    options: dict[str, Any] = dict(spec.options)
    if parameters is not None and spec.needs == "parameters":
        options["pretrained_model_path"] = str(parameters)
    try:
        with _building(spec, parameters, fetch=fetch):
            # Our tensors are in range; looking for their extremes takes longer than the fastest tools.
            return library.create_metric(spec.function, device=torch.device(device), check_input_range=False, **options)
    except Exception as error:  # Border: whatever a third-party metric raises becomes one line.
        reason = f"cannot be loaded ({one_line(error)[:300]})"
        logger.warning("tool %s: %s; it is left out from here on", spec.name, reason)
        mend = "; connect to the network, or get its files elsewhere and name their folder in AGENTICIQA_PARAMS_DIR"
        raise leave_out(spec, reason, mend if fetch else "") from error


def _import(library: str) -> Any:
    if library in failures:
        raise ToolError(f"{library} {failures[library]}")
    # What it warns of, and torch for its sake, is for those who write it.
    warnings.filterwarnings("ignore", module=f"{library}|torch")
    try:
        module = importlib.import_module(library)
    except Exception as error:  # Border: a torch and torchvision that do not match raise RuntimeError here.
        text = one_line(error)
        why, mend = text, "reinstall it"
        if "torchvision::" in text:
            why, mend = f"torch and torchvision are of different builds: {text}", "reinstall both in one command"
        failures[library] = f"cannot be imported ({why}); {mend}"
        raise ToolError(f"{library} {failures[library]}") from error
    logging.getLogger(library).setLevel(logging.WARNING)
    return module


@contextmanager
def _building(spec: ToolSpec, parameters: Path | None, *, fetch: bool) -> Iterator[None]:
    """Hold the conditions under which pyiqa may build a tool, in its turn.

    `torch.load` reads plain tensors only. Files beside `parameters` are shown to pyiqa as if it had downloaded them.
    Unless `fetch`, a download is a ToolError that names the file.
    """
    with ExitStack() as stack:
        # pyiqa prints what it loads; standard output belongs to the commands.
        stack.enter_context(redirect_stdout(sys.stderr if fetch else io.StringIO()))
        stack.enter_context(variable(_SAFE, "1"))
        if not fetch:
            _refuse_downloads(stack, spec.name)
            paths = needed_files(spec, parameters.parent if parameters is not None else None)
            files = {place: path for place, path in paths.items() if path and not place.startswith(HUGGING_FACE)}
            if spec.needs == "weights" and files:
                _stand_in_for_hub(stack, files)
        yield


def _refuse_downloads(stack: ExitStack, name: str) -> None:
    """Turn a download by torch, pyiqa or Hugging Face into a ToolError that names the file."""
    import huggingface_hub.constants
    import torch.hub
    from pyiqa.utils import download_util

    def refuse(url: str, *_: Any, **__: Any) -> None:
        file = url.split("?")[0].rsplit("/", 1)[-1]
        raise ToolError(
            f"weights {file!r} are not here; with a network `python -m program.tools --fetch {name}`, without put the "
            "file into tools.params_dir (AGENTICIQA_PARAMS_DIR)"
        )

    _set(stack, torch.hub, "download_url_to_file", refuse)
    _set(stack, download_util, "download_url_to_file", refuse)
    _set(stack, huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def _stand_in_for_hub(stack: ExitStack, files: Mapping[str, Path]) -> None:
    """Stand a folder of links to these files in for torch's hub folder, by their places below it."""
    import torch.hub
    from pyiqa.utils import download_util

    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="agentic-iqa-hub-"))
    for place, path in files.items():
        target = Path(folder, place)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            target.symlink_to(path.resolve())
        except OSError:  # Windows without the privilege.
            shutil.copyfile(path, target)
    stack.callback(torch.hub.set_dir, torch.hub.get_dir())
    torch.hub.set_dir(folder)
    # pyiqa reads torch's hub folder once, when it is imported.
    _set(stack, download_util, "DEFAULT_CACHE_DIR", str(Path(folder, "pyiqa")))


def _set(stack: ExitStack, module: Any, attribute: str, value: Any) -> None:
    """Set an attribute of a module until the stack closes."""
    stack.callback(setattr, module, attribute, getattr(module, attribute))
    setattr(module, attribute, value)
