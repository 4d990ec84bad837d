"""What works on this machine besides the language models: packages, tools, MLflow store, caches. Each with its mend."""

import importlib.metadata
import os
import platform
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from program.errors import InputError
from program.redaction import redact
from program.settings import Settings

__all__ = ("Check", "local_checks")

PACKAGES = ("dspy", "litellm", "openai", "mlflow", "pyiqa", "numpy", "scipy", "pillow")
OPTIONAL = {
    "optuna": ("optimizers that search with Optuna (MIPROv2)", "pip install optuna"),
    "fastapi": ("python -m program.serve", "pip install 'agentic-iqa[serve]'"),
}
KEYS = ("AGENTICIQA_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY")


class Check(BaseModel):
    """One thing that works, does not, or is worth knowing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    status: Literal["ok", "note", "failed"]
    detail: str
    mend: str | None = None

    @classmethod
    def passed(cls, name: str, detail: str) -> "Check":
        """Return a check that holds."""
        return cls(name=name, status="ok", detail=detail)

    @classmethod
    def noted(cls, name: str, detail: str, mend: str | None = None) -> "Check":
        """Return something that is missing and not needed."""
        return cls(name=name, status="note", detail=detail, mend=mend)

    @classmethod
    def failed(cls, name: str, detail: str, mend: str | None = None) -> "Check":
        """Return a check that does not hold; `mend` None where the detail says it."""
        return cls(name=name, status="failed", detail=detail, mend=mend)


def local_checks(settings: Settings) -> list[Check]:
    """Return the checks that ask no model."""
    entries = [entry.key_env for entry in settings.models.backends.values() if entry.key_env]
    return [
        _versions(), _torch(), _tools(settings), _store(settings), _cache(settings.cache_dir), _keys([*KEYS, *entries]),
        *_optional(),
    ]  # fmt: skip


def _versions() -> Check:
    versions = {name: _version(name) for name in PACKAGES}
    told = ", ".join([f"Python {platform.python_version()}", *(f"{n} {v or 'missing'}" for n, v in versions.items())])
    if not re.match(r"3\.4\.", versions["dspy"] or ""):
        return Check.failed("packages", told, "pip install 'dspy-ai>=3.4.1,<3.5'")
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        return Check.failed("packages", told, f"pip install {' '.join(missing)}")
    return Check.passed("packages", told)


def _torch() -> Check:
    try:
        import torch
        import torchvision
    except Exception as error:  # torch and torchvision of different builds fail with RuntimeError, not ImportError
        reason = " ".join(str(error).split())[:120]
        mend = "install torch and torchvision together, from one index: pip install --force-reinstall torch torchvision"
        return Check.failed("torch", f"torch and torchvision cannot be used together ({reason})", mend)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Check.passed("torch", f"torch {torch.__version__} with torchvision {torchvision.__version__}, on {device}")


def _tools(settings: Settings) -> Check:
    from program.tools.registry import ToolRegistry
    from program.tools.runner import ToolRunner

    tools = settings.tools
    try:
        runner = ToolRunner(
            ToolRegistry.load(), params_dir=tools.params_dir, device=tools.device, calibration=tools.calibration
        )
        missing = runner.unavailable()
        ready = {mode: [spec.name for spec in runner.ready(mode, expensive=True)] for mode in ("NR", "FR")}
    except InputError as error:
        return Check.failed("tools", str(error))
    told = "; ".join(f"{len(names)} {mode} ready ({', '.join(names)})" for mode, names in ready.items())
    if missing:
        told += f"; {len(missing)} not: {', '.join(missing)}"
    if not ready["NR"] or not ready["FR"]:
        return Check.failed("tools", told, f"{next(iter(missing.values()))}; see python -m program.tools")
    return Check(name="tools", status="ok", detail=told, mend="python -m program.tools says why" if missing else None)


def _store(settings: Settings) -> Check:
    from program.tracking import Tracker

    try:
        tracker = Tracker(settings.mlruns_dir, experiment="doctor")
        tracker.client.delete_experiment(tracker.experiment_id)
    except InputError as error:
        return Check.failed("MLflow store", str(error))
    except Exception as error:  # MLflow, SQLAlchemy and the network each raise their own kinds
        return Check.failed("MLflow store", " ".join(str(error).split())[:200], "set MLFLOW_TRACKING_URI or mlruns_dir")
    wanted = os.environ.get("MLFLOW_TRACKING_URI")
    if wanted and tracker.tracking_uri != wanted:
        told = f"{redact(wanted)} does not answer; runs go to {tracker.tracking_uri}"
        return Check.failed("MLflow store", told, "start that server, or unset MLFLOW_TRACKING_URI")
    return Check.passed("MLflow store", f"{redact(tracker.tracking_uri)} can be written")


def _cache(folder: Path) -> Check:
    name, mend = "cache", "set cache_dir (AGENTICIQA_CACHE_DIR)"
    if not folder.exists():
        parent = next(p for p in folder.resolve().parents if p.exists())
        if parent.is_dir() and os.access(parent, os.W_OK):
            return Check.passed(name, f"{folder} is empty")
        return Check.failed(name, f"{folder} cannot be made", mend)
    if not os.access(folder, os.W_OK):
        return Check.failed(name, f"{folder} cannot be written", mend)
    parts = {path.name: _size(path) for path in sorted(folder.iterdir()) if path.is_dir()}
    told = ", ".join(f"{part} {_shown(size)}" for part, size in parts.items() if size and not part.isdigit())
    return Check.passed(name, f"{folder}: {_shown(_size(folder))}" + (f" ({told})" if told else ""))


def _size(folder: Path) -> int:
    return sum(_file_sizes(folder.rglob("*")))


def _file_sizes(paths: Iterable[Path]) -> Iterable[int]:
    for path in paths:
        try:
            if path.is_file():
                yield path.stat().st_size
        except OSError:  # deleted by another process meanwhile
            continue


def _shown(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def _keys(names: Sequence[str]) -> Check:
    told = [f"{name} {'set' if os.environ.get(name) else 'not set'}" for name in dict.fromkeys(names)]
    return Check.passed("keys", ", ".join(told))


def _optional() -> list[Check]:
    return [
        Check.passed(name, f"{version} for {use}")
        if (version := _version(name))
        else Check.noted(name, f"not installed; only {use} needs it", mend)
        for name, (use, mend) in OPTIONAL.items()
    ]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
