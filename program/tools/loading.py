"""A tool loaded and run, each within its time; its models are lent to one thread."""

import importlib
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
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from program.common.errors import ToolError, one_line
from program.common.settings import ToolSettings
from program.tools import registry
from program.tools.registry import HUGGING_FACE, Device, ToolSpec, leave_out, left_out, needed_files

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_SAFE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""torch's own switch. pyiqa 0.1.16 opens its weights with weights_only=False, which runs whatever a
pickle holds; under this switch `torch.load` refuses anything but plain tensors, whoever calls it
and however."""
_turn = threading.Lock()


class Overdue(Exception):  # noqa: N818 - it says what the work is
    """The work did not end in time; it may still be running."""

    def __init__(self, work: "Future[Any]") -> None:
        super().__init__()
        self.work = work


_Job: TypeAlias = "tuple[Future[Any], Context, Callable[[], Any]]"
_idle: "list[SimpleQueue[_Job | None]]" = []
"""Of threads that wait for work: a new one would have to get its memory, and torch's, from the
system each time."""
os.register_at_fork(after_in_child=_idle.clear)  # a forked child has none of its parent's threads


def within(seconds: float, work: Callable[[], _T]) -> _T:
    """Return what `work` returns or raises; Overdue when it takes longer than `seconds`.

    Python cannot stop a thread: such work goes on, with whatever it holds, on a daemon thread that
    never keeps the process from ending. Work in C code that holds the GIL cannot be left behind.
    Thread-safe.
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
    try:
        return future.result()
    finally:
        # Else an error and this frame hold each other, and with them the work's tensors, until Python looks for cycles:
        # a device that ran out of memory would stay full.
        del future


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
    """Return a new model object of a tool; with `fetch`, what it lacks is downloaded.

    One tool at a time, with its library where it is the first. Raises ToolError when that fails,
    failed before, takes longer than `seconds`, or while another's loading hangs: that cannot be
    stopped and holds the process's settings.
    """
    with _turn:
        if fetch:
            registry.failures.pop(spec.key, None)
        elif (reason := left_out(spec)) is not None:
            raise ToolError(f"tool {spec.name!r}: {reason}")
        output = sys.stdout
        try:
            model = within(seconds, lambda: _make(spec, parameters, device, fetch=fetch))
        except Overdue as overdue:
            # Else output stays where the thread that is left behind sends it.
            sys.stdout, registry.hanging[spec.name] = output, overdue.work
            why = f"did not load within {seconds:g} s and is left out from here on (tools.load_timeout_s)"
            raise leave_out(spec, why) from overdue
        registry.loaded.add(spec.key)
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
    except torch.OutOfMemoryError as error:  # for now: others may use the device, too
        raise ToolError(f"tool {spec.name!r}: {device} has no memory left to load it; use another tool") from error
    except Exception as error:  # Border: whatever a third-party metric raises becomes one line.
        reason = f"cannot be loaded ({one_line(error)[:300]})"
        logger.warning("tool %s: %s; it is left out from here on", spec.name, reason)
        mend = "; connect to the network, or get its files elsewhere and name their folder in AGENTICIQA_PARAMS_DIR"
        raise leave_out(spec, reason, mend if fetch else "") from error


def _import(library: str) -> Any:
    if library in registry.failures:
        raise ToolError(f"{library} {registry.failures[library]}")
    # What it warns of, and torch for its sake, is for those who write it.
    warnings.filterwarnings("ignore", module=f"{library}|torch")
    try:
        module = importlib.import_module(library)
    except Exception as error:  # Border: a torch and torchvision that do not match raise RuntimeError here.
        text = one_line(error)
        why, mend = text, "reinstall it"
        if "torchvision::" in text:
            why, mend = f"torch and torchvision are of different builds: {text}", "reinstall both in one command"
        registry.failures[library] = f"cannot be imported ({why}); {mend}"
        raise ToolError(f"{library} {registry.failures[library]}") from error
    logging.getLogger(library).setLevel(logging.WARNING)
    return module


@contextmanager
def _building(spec: ToolSpec, parameters: Path | None, *, fetch: bool) -> Iterator[None]:
    """Hold the conditions under which pyiqa may build a tool, in its turn.

    `torch.load` reads plain tensors only. Files beside `parameters` are shown to pyiqa as if it had
    downloaded them. Unless `fetch`, a download is a ToolError that names the file.
    """
    with ExitStack() as stack:
        # pyiqa prints what it loads; standard output belongs to the commands.
        stack.enter_context(redirect_stdout(sys.stderr if fetch else io.StringIO()))
        if (before := os.environ.get(_SAFE)) is None:
            stack.callback(os.environ.pop, _SAFE, None)
        else:
            stack.callback(os.environ.__setitem__, _SAFE, before)
        os.environ[_SAFE] = "1"
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
    """Stand a folder of links to these files in for torch's hub folder."""
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


def evaluate(
    spec: ToolSpec,
    parameters: Path | None,
    tools: ToolSettings,
    image: NDArray[np.uint8],
    reference: NDArray[np.uint8] | None,
) -> float:
    """Run the tool on H x W x 3 uint8 RGB pixels and return its raw value.

    Same value as pyiqa's own metric on the files with the same number of torch threads.
    Thread-safe. Raises ToolError when the tool cannot be loaded, returns no finite number or takes
    too long.
    """
    device = device_of(tools.device, spec)
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


def device_of(device: Device, spec: ToolSpec) -> str:
    """Return `cpu` or `cuda`: where a tool runs. Raises ToolError for an absent device."""
    if device == "cpu" or spec.takes == "pixels":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        _keep_precision()
        return "cuda"
    if device == "cuda":
        raise ToolError("device 'cuda': torch sees no CUDA device; set tools.device to cpu or auto")
    return "cpu"


def _keep_precision() -> None:
    """Keep convolutions on CUDA in full precision (TensorFloat-32 has 11 bits).

    pyiqa runs each metric under `cudnn.flags(deterministic=True)`, which allows TensorFloat-32
    unless told otherwise: PIQE and BRISQUE, which subtract means of squares, then moved by up to
    half. Threads leave such a block at different times, so that what it sets has to hold outside
    it, too.
    """
    import torch

    cudnn = torch.backends.cudnn
    cudnn.allow_tf32, cudnn.deterministic = False, True
    if not isinstance(cudnn.flags, partial):
        cudnn.flags = partial(cudnn.flags, allow_tf32=False)


class _Pool:
    """The model objects of a tool on a device that are free, and how many may be lent."""

    def __init__(self, limit: int) -> None:
        self.free: list[Any] = []
        self.turns = threading.Semaphore(limit)


_pools: dict[tuple[str, Path | None, str], _Pool] = {}


@contextmanager
def _borrowed(spec: ToolSpec, parameters: Path | None, device: str, load_timeout_s: float) -> Iterator[Any]:
    """Lend a model object, made where none is free; raises what making or work raises.

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
