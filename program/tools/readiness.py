"""Whether a tool can run here: its packages and files, and what failed before in this process. Imports no torch."""

import hashlib
import importlib.util
import os
from concurrent.futures import Future
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypeAlias

from program.common.errors import ToolError
from program.tools.registry import ToolSpec

__all__ = (
    "HUGGING_FACE", "Device", "file_sha256", "hub_folder", "installed_version", "leave_out", "left_out",
    "library_label", "needed_files", "parameter_path", "resolved_device", "what_is_missing",
)  # fmt: skip

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
    return other and f"cannot be loaded while the loading of {other!r} hangs; mend that and start again"


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
