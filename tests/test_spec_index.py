"""The list of requirements with a test: none may lose its test, and every scenario of the sources has one.

`python tests/test_spec_index.py` prints each mark with its tests.
"""

import ast
import functools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
INDEX = TESTS / "spec_index.txt"
SEEDS = TESTS.parents[1] / "shared" / "seeds"


@functools.cache
def marks():
    """Return each spec mark with the tests that carry it."""
    found = {}
    for path in sorted(TESTS.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for name in filter(None, map(_name, node.decorator_list)):
                    found.setdefault(name, []).append(f"{path.name}::{node.name}")
    return found


def _name(decorator):
    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.spec":
        return decorator.args[0].value
    return None


def test_every_listed_requirement_still_has_a_test():
    listed = INDEX.read_text("utf-8").split()
    assert listed == sorted(set(listed))
    assert sorted(set(listed) - set(marks())) == []


def test_every_mark_is_listed():
    assert sorted(set(marks()) - set(INDEX.read_text("utf-8").split())) == []


def test_every_scenario_of_the_sources_is_listed():
    if not SEEDS.is_dir():
        pytest.skip("the source documents are not beside the project")
    titles = set()
    for number in ("001", "002"):
        (source,) = SEEDS.glob(f"{number}_*.txt")
        for title in re.findall(r"^#### Scenario: (.+)$", source.read_text("utf-8"), re.MULTILINE):
            titles.add(f"{number}/{re.sub('[^a-z0-9]+', '-', title.casefold()).strip('-')}")
    assert len(titles) > 30
    assert sorted(titles - set(INDEX.read_text("utf-8").split())) == []


def test_every_decision_is_listed():
    listed = {mark.partition("/")[0] for mark in INDEX.read_text("utf-8").split()}
    assert sorted({f"D{n}" for n in range(1, 25)} - listed) == []


def test_every_decision_is_marked_in_words():
    assert [mark for mark in marks() if re.fullmatch(r"D\d+", mark)] == []


if __name__ == "__main__":
    for mark, tests in sorted(marks().items()):
        print(mark, *tests, sep="\n    ")  # noqa: T201
