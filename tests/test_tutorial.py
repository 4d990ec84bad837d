"""docs/tutorial.ipynb: its cells are plain Python and run in their order, and what it shows names no machine."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
CELLS = json.loads((DOCS / "tutorial.ipynb").read_text("utf-8"))["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]


SMALL = """
compile: {train_scoring: 120, train_mcq: 8, validation_scoring: 32, validation_mcq: 8, rerank: 1, baselines: false}
tracking: {traces: 0}
"""


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn", "unlogged", "coarse")
@pytest.mark.filterwarnings("default")  # MLflow and its parts warn of each other
def test_the_cells_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # No kernel is needed: a cell that only a notebook understands (a magic, a shell line) is a syntax error here.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SMALL, "utf-8")
    monkeypatch.setenv("AGENTICIQA_CONFIG", str(tmp_path / "small.yaml"))
    names: dict[str, Any] = {}
    for source in CODE:
        exec(compile(source, "tutorial.ipynb", "exec"), names)  # noqa: S102
    assert names["result"].final_answer < names["iqa"](image=names["photo"]).final_answer - 1
    assert names["runs"]["metrics.srcc"].max() > names["record"].srcc.value + 0.1
    assert (tmp_path / "programs" / "mine" / "program.json").is_file()
    assert names["figures"].sum() == 2


def test_what_it_shows_names_no_machine_and_no_fault() -> None:
    for cell in CELLS:
        shown = json.dumps(cell.get("outputs", []))
        assert not re.search(r"/(home|root|tmp|work|Users)/|Traceback|site-packages|stderr", shown)
    assert sum(cell["cell_type"] == "code" for cell in CELLS) > 3
    assert all(cell["outputs"] for cell in CELLS if cell["cell_type"] == "code")


def test_the_pages_it_links_exist() -> None:
    text = "".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) >= 3
    assert all((DOCS / target).is_file() for target in targets)
