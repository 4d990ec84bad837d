"""Install this project and what it needs into an environment of its own: `python3 install.py .venv`.

uv installs what requirements.lock pins, and checks the hashes. Where uv cannot be had, pip installs by constraints.txt.
"""

from __future__ import annotations  # an older Python has to get as far as its error

import argparse
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
LOCK = ROOT / "requirements.lock"
NOT_PERMISSIVE = ("pyiqa", "pillow-heif")
"""What --permissive leaves out: a noncommercial licence, and parts under the GPL."""
SIZE = {"Linux": "up to 4 GB come in, and it takes 7 GB on disk (4.5 GB are CUDA's)"}
SIZE_ELSEWHERE = "up to 1 GB comes in, and it takes 2.5 GB on disk"
"""The sizes of the locked wheels, and of what they unpack. Only on Linux torch brings CUDA."""


def main() -> None:
    """Make the environment where there is none yet, and install into it."""
    check_python()
    args = read_arguments()
    wanted = needed(args.extras)
    if args.permissive:
        wanted = [each for each in wanted if not each.startswith(NOT_PERMISSIVE)]
    python = args.folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    say(f"installing into {args.folder}: {SIZE.get(platform.system(), SIZE_ELSEWHERE)}")
    if not python.exists():
        run(sys.executable, "-m", "venv", args.folder)
    if args.pip:
        install = with_pip(python)
    elif get_uv(python):
        install = with_uv(python)
    else:
        say("uv is not to be had here: pip installs, which takes minutes longer")
        install = with_pip(python)
    file = args.folder / "wanted.txt"
    file.write_text("".join(f"{each}\n" for each in wanted), "utf-8")
    run(*install, "-r", file)
    run(*install, "--no-deps", "-e", ROOT)


def check_python() -> None:
    """End with one line where this Python is too old or too new."""
    version = sys.version_info[:2]
    if not (3, 11) <= version <= (3, 14):
        wanted = "3.11 to 3.14 is needed (make PYTHON=python3.12 ...)"
        sys.exit(f"error: {sys.executable} is Python {version[0]}.{version[1]}; {wanted}")


def read_arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description="Install this project into an environment of its own.")
    parser.add_argument("folder", type=Path, help="the environment; made where there is none")
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help="an extra of pyproject.toml, such as serve")
    parser.add_argument("--permissive", action="store_true", help=f"leave out {' and '.join(NOT_PERMISSIVE)}")
    parser.add_argument("--pip", action="store_true", help="let pip install, not uv")
    return parser.parse_intermixed_args()  # flags may stand between the names


def get_uv(python: Path) -> bool:
    """Install the uv that the lock pins; return whether it could be had."""
    (pinned,) = re.findall(r"^uv==(?:.*\\\n)*.*$", LOCK.read_text("utf-8"), re.MULTILINE)
    file = python.parents[1] / "uv.txt"
    file.write_text(f"{pinned}\n", "utf-8")
    words = (*pip(python), "--quiet", "--only-binary", ":all:", "--require-hashes", "-r", file)
    return subprocess.run(words, stderr=subprocess.DEVNULL).returncode == 0


def pip(python: Path) -> tuple[str | Path, ...]:
    """Return the words that let this environment's pip install."""
    return (python, "-m", "pip", "install", "--disable-pip-version-check")


def with_pip(python: Path) -> tuple[str | Path, ...]:
    """Return the words that let pip install the versions of the lock; with an editable project it checks no hashes."""
    return (*pip(python), "-c", ROOT / "constraints.txt")


def with_uv(python: Path) -> tuple[str | Path, ...]:
    """Return the words that let uv install by the lock."""
    locked = ("--constraints", LOCK, "--build-constraints", LOCK)
    return (python, "-m", "uv", "pip", "install", "--python", python, *locked)


def needed(extras: list[str]) -> list[str]:
    """Return what the project and these extras need, each a requirement as pyproject.toml has it."""
    import tomllib  # from Python 3.11 on

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    offered = project["optional-dependencies"]
    unknown = [name for name in extras if name not in offered]
    if unknown:
        sys.exit(f"error: extra {unknown[0]!r}: is not known; there are {', '.join(offered)}")
    listed, waiting = list(project["dependencies"]), list(extras)
    while waiting:
        for each in offered[waiting.pop()]:
            own = re.fullmatch(r"agentic-iqa\[(.+)\]", each)
            if own:
                waiting += own[1].split(",")
            else:
                listed.append(each)
    return sorted(set(listed))


def say(text: str) -> None:
    """Print a line where progress belongs: what a command prints is not mixed with it."""
    print(text, file=sys.stderr, flush=True)


def run(*words: str | Path) -> None:
    """Run a command; end as it does where it fails."""
    code = subprocess.run(words, stdout=sys.stderr).returncode
    if code:
        hint = "; UV=0 (--pip) lets pip try, with its own mirrors and certificates" if "uv" in words else ""
        say(f"error: the installation failed{hint}")
        sys.exit(code)


if __name__ == "__main__":
    main()
