"""The house's rules, and that what guards them bites."""

import ast
import doctest
import importlib
import importlib.metadata
import json
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("agentic_iqa", "program", "signatures", "optimizers", "data", "configs")
HEAVY = {
    "mlflow", "torch", "pyiqa", "ray", "fastapi", "matplotlib", "dspy", "scipy", "sklearn", "numpy", "pydantic", "yaml",
    "openpyxl", "pandas", "datasets", "PIL", "rich",
}  # fmt: skip
PARTS = ("compile", "evaluate", "assess", "gallery", "rating", "calibrate", "doctor", "tools", "serve")
COMMANDS = (*(f"program.{part}" for part in PARTS), "data.prepare", "data.check")


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, encoding="utf-8", timeout=120
    )


def linted(root: Path) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command(['--no-cache']))"
    )
    return run("-c", code, cwd=root)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.spec("issue-46/no-two-files-import-each-other")
def test_import_contracts_hold_and_bite(copy: Path) -> None:
    whole = linted(copy)
    assert whole.returncode == 0, whole.stdout
    plants = {
        "program.agent.module": "program.running.runner",
        "program.agent.assessment": "program.agent.loop",
        "data.manifest": "program.images.store",
        "signatures.schemas": "program.common.errors",
        "program.fusion.scores": "torch",
        "optimizers.objectives": "program.compile",
        "program.lms.ask": "program.expert.engine",
        "program.expert.measure.features": "program.expert.judge.quality",
        "program.expert.judge.quality": "benchmarks",
        "optimizers.demos": "program.expert.judge.views",
        "program.agent.planner": "program.expert.store",
        "optimizers.job": "uvicorn",
    }
    for module, imported in plants.items():
        with (copy / f"{module.replace('.', '/')}.py").open("a", encoding="utf-8") as file:
            file.write(f"\nimport {imported}\n")
    broken = linted(copy)
    assert broken.returncode == 1
    for module, imported in plants.items():
        # A circle is told by the last parts of names.
        last = [name.rpartition(".")[2] for name in (module, imported)]
        place = rf"{module} -> {imported}\S* \(l\.\d+\)|- \.{last[0]} -> \.{last[1]} "
        assert re.search(place, broken.stdout), f"a planted import of {imported} in {module} was not reported"


OF_THE_EXPERT = re.compile(r"perceptual|PerceptualEngine|(?<![\w.])(expert\.)?(NAME|MODEL)\b|\.expert\b")


def decisions_by_name(source: str) -> list[str]:
    """Return the expressions of a module that ask whether a model is the embedded expert, in any spelling."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            asks = called in {"isinstance", "startswith", "match", "fullmatch", "getattr"}
            found += [ast.unparse(node)] if asks and OF_THE_EXPERT.search(ast.unparse(node)) else []
        elif isinstance(node, ast.Compare):
            found += [ast.unparse(node)] if OF_THE_EXPERT.search(ast.unparse(node)) else []
        elif isinstance(node, ast.Name | ast.Attribute):
            name = getattr(node, "id", None) or node.attr
            found += [name] if name in {"is_embedded", "expert_judges", "is_expert"} else []
    return found


@pytest.mark.spec("issue-46/no-decision-by-the-experts-name")
def test_nothing_asks_whether_a_model_is_the_expert_but_its_room_and_who_builds_it() -> None:
    builds = ROOT / "program" / "agent" / "resources.py"
    revisions = ROOT / "program" / "agent" / "saving.py"  # compares a saved revision with this one's
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            if ROOT / "program" / "expert" not in file.parents and file not in {builds, revisions}:
                assert not decisions_by_name(file.read_text("utf-8")), file
    for planted in (
        "x = lm.model.startswith('perceptual')", "x = role.backend == 'perceptual/expert'", "y = NAME in lm.model",
        "if lm is resources.expert: pass", "isinstance(lm.engine, PerceptualEngine)", "if is_embedded(lm): pass",
    ):  # fmt: skip
        assert decisions_by_name(planted), planted


def test_lint_rules_bite(tmp_path: Path) -> None:
    bad = {
        "TID252": "from . import x\n",
        "T201": "print(1)\n",
        "S301": "import pickle\npickle.loads(b'')\n",
        "PLW1514": "open('x')\n",
        "C901": "def f(a):\n" + "".join(f"    if a == {i}:\n        return {i}\n" for i in range(12)),
    }
    for rule, code in bad.items():
        (tmp_path / f"{rule}.py").write_text(code, "utf-8")
    config = str(ROOT / "pyproject.toml")
    result = run("-m", "ruff", "check", "--no-cache", "--output-format", "json", "--config", config, str(tmp_path))
    found = {(Path(each["filename"]).stem, each["code"]) for each in json.loads(result.stdout)}
    assert found >= {(rule, rule) for rule in bad}


def test_help_is_there_and_loads_nothing_heavy() -> None:
    code = (
        "import contextlib, io, runpy, sys\n"
        "sys.argv = ['x', '--help']\n"
        f"for command in {COMMANDS!r}:\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):\n"
        "        runpy.run_module(command, run_name='__main__')\n"
        f"    print(command, sorted({HEAVY!r} & set(sys.modules)), 'usage' in out.getvalue())"
    )
    result = run("-c", code)
    assert result.stdout.splitlines() == [f"{command} [] True" for command in COMMANDS], result.stderr


def test_what_is_common_needs_the_standard_library_alone() -> None:
    code = (
        "import sys, program.common.files\n"
        "names = [m for m in sys.modules if m.partition('.')[0] not in {*sys.stdlib_module_names, '__main__'}]\n"
        "print(sorted(m for m in names if not m.startswith(('_', 'sitecustomize'))))"
    )
    result = run("-c", code)
    needed = [
        "program", "program.common", "program.common.addresses", "program.common.errors", "program.common.files",
    ]  # fmt: skip
    assert result.stdout.strip() == str(needed), result.stdout


def test_no_other_distribution_stands_behind_our_names() -> None:
    behind = importlib.metadata.packages_distributions()
    for name in PACKAGES:
        assert set(behind.get(name, [])) <= {"agentic-iqa"}, f"{name} also comes from {behind[name]}"


def test_no_module_is_named_after_one_of_the_standard_library() -> None:
    names = {p.stem for package in PACKAGES for p in (ROOT / package).rglob("*.py")} - {"__init__", "__main__"}
    # `compile` names a command, and no import of ours can mean the builtin function.
    assert not names & set(sys.stdlib_module_names)


def test_optimizer_names_in_help_are_those_that_exist() -> None:
    from optimizers.recipes import recipe_named, recipe_names
    from program.compile import OPTIMIZERS

    assert sorted(OPTIMIZERS) == list(recipe_names())
    assert [recipe_named(name).name for name in OPTIMIZERS] == list(OPTIMIZERS)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("program", "AgenticIQA Assessment load"),
        ("program.agent.state", "AssessmentState ExecutorOutput SummarizerOutput"),
        ("program.agent.query", "QueryType detect_query_type"),
        ("program.agent.replan", "should_replan"),
        ("program.fusion", "ScoreFusion"),
    ],
)
def test_the_names_that_callers_rely_on_stay_where_they_are(module: str, names: str) -> None:
    assert [name for name in names.split() if not hasattr(importlib.import_module(module), name)] == []


def test_predictor_names_are_public() -> None:
    from program.agent.loop import AgenticIQA

    assert [name for name, _ in AgenticIQA().named_parameters()] == [
        "planner.plan",
        "executor.detect",
        "executor.analyse",
        "executor.diagnose",
        "executor.select_tools",
        "executor.locate",
        "summarizer.score",
        "summarizer.classify",
        "summarizer.answer",
        "summarizer.explain",
    ]


def test_examples_in_docstrings_hold() -> None:
    packages = [importlib.import_module(name) for name in PACKAGES]
    names = [m.name for package in packages for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    # The first is run by MLflow alone, and the others are commands.
    modules = [n for n in names if n != "program.service.model" and not n.endswith("__main__")]
    results = {name: doctest.testmod(importlib.import_module(name)) for name in modules}
    assert [name for name, result in results.items() if result.failed] == []
    assert sum(result.attempted for result in results.values()) > 80
