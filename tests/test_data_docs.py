"""docs/data.md says what configs/datasets.yaml says, and its commands name what there is."""

import re
from pathlib import Path

from data.catalogue import catalogue
from data.preparing import KINDS

TEXT = (Path(__file__).resolve().parents[1] / "docs" / "data.md").read_text("utf-8")


def test_the_table_holds_every_dataset_with_count_and_licence() -> None:
    lines = [line.strip("|").split("|") for line in TEXT.splitlines() if line.startswith("| `")]
    rows = {cells[0].strip("` "): [cell.strip() for cell in cells] for cells in lines if len(cells) == 6}
    assert list(rows) == [name for name in catalogue() if name not in {"table", "huggingface", "pairs"}]
    for name, entry in catalogue().items():
        if name in rows:
            assert rows[name][1:3] == [entry.title, str(entry.count)]
            assert rows[name][5] == entry.licence


def test_every_dataset_is_prepared_in_one_line() -> None:
    prepared = set(re.findall(r"^agentic-iqa data prepare ([a-z0-9-]+) ", TEXT, re.MULTILINE))
    assert prepared == {*catalogue(), "stars"}


def test_every_kind_of_problem_is_explained() -> None:
    table = TEXT.split("## Checking one")[1].split("Exit code")[0]
    kinds = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert set(KINDS) == {kind for cell in kinds for kind in re.findall(r"`(\w+)`", cell)}
