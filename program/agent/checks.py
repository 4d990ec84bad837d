"""What works on this machine besides the language models: packages, tools, MLflow store, caches. Each with its mend."""

import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from program.common.errors import InputError
from program.common.redaction import redact
from program.common.settings import Settings
from program.tools.readiness import installed_version

__all__ = ("Check", "local_checks")

PACKAGES = ("dspy", "litellm", "openai", "mlflow", "numpy", "scipy", "pillow")
PYIQA = "most of the paper's tools (PolyForm Noncommercial)"
EXTRAS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "serve": ("python -m program.serve", ("fastapi", "httpx", "prometheus-client", "python-multipart", "uvicorn")),
    "mcp": ("python -m program.mcp", ("mcp",)),
    "ray": ("--engine ray: many processes or machines", ("ray",)),
    "heif": ("images in HEIF (.heic)", ("pillow-heif",)),
    "dev": ("make test and make lint", ("hatchling", "hypothesis", "import-linter", "mypy", "pytest", "ruff")),
}
"""What an extra of the installation is for, and packages by which it is known to be there."""
KEYS = ("AGENTICIQA_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY")


class Check(NamedTuple):
    """One thing that works, does not, or is worth knowing."""

    name: str
    status: Literal["ok", "note", "failed"]
    detail: str
    mend: str | None = None
    """None where there is nothing to mend, or the detail says how."""


def local_checks(settings: Settings) -> list[Check]:
    """Return the checks that ask no model."""
    names = [*KEYS, *(entry.key_env for entry in settings.models.backends.values() if entry.key_env)]
    keys = ", ".join(f"{name} {'set' if os.environ.get(name) else 'not set'}" for name in dict.fromkeys(names))
    return [
        _packages(), _torch(), _tools(settings), _store(settings), _cache(settings.cache_dir),
        Check("keys", "ok", keys), _optional("pyiqa", PYIQA, ("pyiqa",), "pip install pyiqa"),
        *(
            _optional(f"[{name}]", use, packages, f"pip install 'agentic-iqa[{name}]'")
            for name, (use, packages) in EXTRAS.items()
        ),
    ]  # fmt: skip


def _packages() -> Check:
    versions = {name: installed_version(name) for name in PACKAGES}
    detail = ", ".join([f"Python {platform.python_version()}", *(f"{n} {v or 'missing'}" for n, v in versions.items())])
    if not (versions["dspy"] or "").startswith("3.4."):
        return Check("packages", "failed", detail, "pip install 'dspy-ai>=3.4.1,<3.5'")
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        return Check("packages", "failed", detail, f"pip install {' '.join(missing)}")
    return Check("packages", "ok", detail)


def _torch() -> Check:
    try:
        import torch
        import torchvision
    except Exception as error:  # torch and torchvision of different builds fail with RuntimeError, not ImportError
        reason = " ".join(str(error).split())[:120]
        mend = "install torch and torchvision together, from one index: pip install --force-reinstall torch torchvision"
        return Check("torch", "failed", f"torch and torchvision cannot be used together ({reason})", mend)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Check("torch", "ok", f"torch {torch.__version__} with torchvision {torchvision.__version__}, on {device}")


def _tools(settings: Settings) -> Check:
    from program.tools.runner import ToolRunner

    try:
        runner = ToolRunner(settings)
        missing = runner.unavailable()
        ready = {mode: [spec.name for spec in runner.ready(mode, expensive=True)] for mode in ("NR", "FR")}
    except InputError as error:
        return Check("tools", "failed", str(error))
    detail = "; ".join(f"{len(names)} {mode} ready ({', '.join(names)})" for mode, names in ready.items())
    if missing:
        detail += f"; {len(missing)} not: {', '.join(missing)}"
    if not ready["NR"] or not ready["FR"]:
        return Check("tools", "failed", detail, f"{next(iter(missing.values()))}; see python -m program.tools")
    return Check("tools", "ok", detail, "python -m program.tools --all says why" if missing else None)


def _store(settings: Settings) -> Check:
    from program.tracking import Tracker

    try:
        tracker = Tracker(settings.mlruns_dir, experiment="doctor")
        tracker.client.delete_experiment(tracker.experiment_id)
    except InputError as error:
        return Check("MLflow store", "failed", str(error))
    except Exception as error:  # MLflow, SQLAlchemy and the network each raise their own kinds
        reason = " ".join(str(error).split())[:200]
        return Check("MLflow store", "failed", reason, "set MLFLOW_TRACKING_URI or mlruns_dir")
    return Check("MLflow store", "ok", f"{redact(tracker.tracking_uri)} can be written")


def _cache(folder: Path) -> Check:
    mend = "set cache_dir (AGENTICIQA_CACHE_DIR)"
    if not folder.exists():
        parent = next(p for p in folder.resolve().parents if p.exists())
        if parent.is_dir() and os.access(parent, os.W_OK):
            return Check("cache", "ok", f"{folder} is empty")
        return Check("cache", "failed", f"{folder} cannot be made", mend)
    if not os.access(folder, os.W_OK):
        return Check("cache", "failed", f"{folder} cannot be written", mend)
    sizes = {path.name: _size_mb(path) for path in sorted(folder.iterdir()) if path.is_dir()}
    parts = ", ".join(f"{name} {size:.1f} MiB" for name, size in sizes.items() if size and not name.isdigit())
    return Check("cache", "ok", f"{folder}: {_size_mb(folder):.1f} MiB" + (f" ({parts})" if parts else ""))


def _size_mb(folder: Path) -> float:
    size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # deleted by another process meanwhile
            size += path.stat().st_size if path.is_file() else 0
    return size / 2**20


def _optional(name: str, use: str, packages: Sequence[str], mend: str) -> Check:
    versions = {package: installed_version(package) for package in packages}
    missing = ", ".join(package for package, version in versions.items() if version is None)
    if missing:
        return Check(name, "note", f"{missing} not installed; only {use} needs it", mend)
    return Check(name, "ok", f"{use}: " + ", ".join(f"{package} {version}" for package, version in versions.items()))
