"""Where an evaluation ran: Python, package versions and, in a checkout, the git commit. Never fails."""

import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from pydantic import BaseModel, ConfigDict

__all__ = ("Environment", "environment", "package_versions")

_PACKAGES = ("agentic-iqa", "dspy", "pyiqa", "torch", "numpy", "scipy", "scikit-image", "pillow", "mlflow", "pydantic")


class Environment(BaseModel):
    """The software a result came from; no host, user or path."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    python: str
    platform: str
    versions: dict[str, str]
    """Installed packages that can change a result; absent ones are left out."""
    git_commit: str | None = None
    """None outside a checkout."""
    git_dirty: bool | None = None
    """Whether tracked files differed from the commit."""


def environment() -> Environment:
    """Return the current environment; asks git, about 5 ms."""
    commit, dirty = _git()
    return Environment(
        python=platform.python_version(),
        platform=f"{sys.platform}-{platform.machine()}",
        versions=package_versions(),
        git_commit=commit,
        git_dirty=dirty,
    )


def package_versions() -> dict[str, str]:
    """Return the installed versions of the packages that can change a result."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _git() -> tuple[str | None, bool | None]:
    root = Path(__file__).resolve().parents[2]
    git = shutil.which("git")
    # An installed copy inside somebody else's checkout must not report their commit.
    if git is None or not (root / ".git").exists():
        return None, None

    try:
        command = [git, "-C", str(root), "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
        status = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.splitlines()  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None, None
    head = [line.removeprefix("# branch.oid ") for line in status if line.startswith("# branch.oid ")]
    commit = head[0] if head and head[0] != "(initial)" else None
    return commit, any(not line.startswith("#") for line in status) if commit else None
