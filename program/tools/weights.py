"""Packages and files that tools need: where they lie here, and the mend where one is missing. Imports no torch."""

import hashlib
import importlib.util
import os
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from program.tools.registry import Library, ToolSpec

__all__ = (
    "HUGGING_FACE",
    "file_sha256",
    "hub_folder",
    "library_version",
    "needed_files",
    "parameter_path",
    "what_is_missing",
)

HUGGING_FACE = "hf:"
"""Begins the name of a Hugging Face repository among a tool's weights; the others lie below torch's hub folder."""


@cache
def library_version(library: Library) -> str | None:
    """Return the installed version of a library of tools without importing it, or None."""
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def hub_folder() -> Path:
    """Return torch's hub folder, where pyiqa, torchvision and CLIP keep what they download."""
    # torch.hub.get_dir() without importing torch.
    home = os.environ.get("TORCH_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "torch")
    return Path(home).expanduser() / "hub"


def needed_files(spec: ToolSpec, folders: Sequence[Path]) -> dict[str, Path | None]:
    """Return, for each file of a tool, by its place below torch's hub folder, where it was found (None: nowhere).

    `folders` hold files by name and go before torch's hub folder. Hugging Face repositories have their own cache.
    """
    places = [f"pyiqa/{spec.parameter_file}"] if spec.parameter_file else list(spec.weights)
    return {place: _found(place, folders) for place in places}


def parameter_path(spec: ToolSpec, params_dir: Path | None) -> Path | None:
    """Return the file that decides a tool's values: its parameter file or first weights; None where there is none."""
    found = needed_files(spec, [params_dir] if params_dir else [])
    return next((path for path in found.values() if path is not None and path.is_file()), None)


def what_is_missing(spec: ToolSpec, params_dir: Path | None) -> str | None:
    """Return which package or file a tool lacks here and the mend, in one line; None when it lacks nothing."""
    if library_version(spec.library) is None:
        return f"{spec.library} is not installed; install it with `pip install {spec.library}`"
    for module, requirement in spec.packages.items():
        if importlib.util.find_spec(module) is None:
            return f"needs the Python package {module!r}; install it with `pip install '{requirement}'`"
    missing = [place for place, path in needed_files(spec, [params_dir] if params_dir else []).items() if path is None]
    if not missing:
        return None
    files = ", ".join(repr(place if place.startswith(HUGGING_FACE) else Path(place).name) for place in missing)
    where = f"in {str(params_dir)!r}" if params_dir else ""
    mend = "set tools.params_dir or AGENTICIQA_PARAMS_DIR to the folder that holds"
    if spec.needs == "parameters":
        told = f"not found {where}" if where else "not found, as no folder for it is set"
        return f"parameter file {files} {told}; {mend} it, or `python -m program.tools --fetch {spec.name}`"
    return (
        f"weights {files} not found {f'{where} nor ' if where else ''}in {str(hub_folder())!r}; "
        f"with a network `python -m program.tools --fetch {spec.name}`, without {mend} them"
    )


_hashes: dict[tuple[str, int, int], str] = {}


def file_sha256(path: Path) -> str:
    """Return a file's SHA-256 in hex; read again only when its time or size changed."""
    stat = path.stat()
    key = (str(path), stat.st_mtime_ns, stat.st_size)
    if key not in _hashes:
        with path.open("rb") as file:
            _hashes[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _hashes[key]


def _found(place: str, folders: Sequence[Path]) -> Path | None:
    if place.startswith(HUGGING_FACE):
        snapshots = (
            _hugging_face_cache() / f"models--{place.removeprefix(HUGGING_FACE).replace('/', '--')}" / "snapshots"
        )
        return next((folder for folder in sorted(snapshots.glob("*")) if any(folder.iterdir())), None)
    candidates = [*(folder / Path(place).name for folder in folders), hub_folder() / place]
    return next((path for path in candidates if path.is_file()), None)


def _hugging_face_cache() -> Path:
    if os.environ.get("HF_HUB_CACHE"):
        return Path(os.environ["HF_HUB_CACHE"]).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser() / "hub"
