"""Small and awkward data, through the commands: what is said of it and what is taken (docs/data.md has the table)."""

import csv
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from data.tables import FOUND
from program.assess import main as assess_command
from program.batch.rows import BatchRow
from program.compile import main as compile_command
from program.evaluate import main as evaluate_command

SMALL = """
compile: {rerank: 2, baselines: false}
optimizers: {embedded: {random-search: {demos: 4, starts: 2, steps: 2, search_samples: 40}}}
"""


@pytest.fixture
def photographs(tmp_path: Path, rng: np.random.Generator) -> Callable[..., list[dict[str, Any]]]:
    """Make photographs from sharp to blurred, and return a row for each with the MOS that suits it."""

    def make(count: int) -> list[dict[str, Any]]:
        rows = []
        for number in range(count):
            level = number % 4
            base = Image.fromarray(np.kron(rng.integers(0, 256, (12, 16, 3)), np.ones((8, 8, 1))).astype(np.uint8))
            base.resize((128 >> level, 96 >> level)).resize((128, 96)).save(tmp_path / f"{number}.png")
            rows.append({"image": f"{number}.png", "mos": round(4.8 - 1.1 * level + rng.normal(0, 0.2), 2)})
        return rows

    return make


@pytest.fixture
def data(tmp_path: Path) -> Callable[..., Path]:
    """Write rows as a manifest or a table, by the name's ending."""

    def write(rows: Sequence[dict[str, Any]], name: str = "data.jsonl") -> Path:
        path = tmp_path / name
        if name.endswith(".csv"):
            with path.open("w", encoding="utf-8", newline="") as file:
                table = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
                table.writeheader()
                table.writerows(rows)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        return path

    return write


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a compile on the embedded expert; returns exit code, output and what was said on stderr."""
    (tmp_path / "small.yaml").write_text(SMALL, "utf-8")

    def compile_it(path: Path, *flags: str) -> tuple[int, str, str]:
        arguments = ["--data", str(path), "--config", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out")]
        capsys.readouterr()
        code = compile_command([*arguments, *flags])
        return code, *capsys.readouterr()

    return compile_it


def with_splits(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    splits = ("train", "train", "validation", "test")
    return [{**row, "split": splits[number // 4 % 4]} for number, row in enumerate(rows)]


@pytest.mark.spec("issue-44/labels-upside-down")
def test_labels_upside_down_stop_the_compile_in_one_line(photographs, data, run, tmp_path) -> None:
    rows = with_splits([{**row, "mos": round(6 - row["mos"], 2)} for row in photographs(48)])
    code, _, said = run(data(rows))
    last = said.splitlines()[-1]
    assert code == 2
    assert "run against the program's (SRCC -0." in last
    assert 'say "higher_is_better": false (--lower-is-better) if low scores are the good ones' in last
    assert not (tmp_path / "out").exists(), "the same command with the flag would be refused"
    code, told, _ = run(data(rows), "--lower-is-better", "--optimizer", "none", "--json")
    assert code == 0
    assert json.loads(told)["compiled"]["srcc"]["value"] > 0.5


@pytest.mark.spec("issue-44/labels-upside-down")
def test_a_flag_that_turns_good_labels_round_is_told_as_well(photographs, data, run) -> None:
    path = data(with_splits(photographs(48)))
    code, _, said = run(path, "--lower-is-better")
    assert code == 2
    assert 'take "higher_is_better": false (--lower-is-better) out' in said.splitlines()[-1]
    assert run(path, "--lower-is-better", "--force", "--optimizer", "none")[0] == 0


@pytest.mark.spec("issue-44/key-dmos")
@pytest.mark.parametrize(("name", "line"), [("data.jsonl", 1), ("data.csv", 2)])
def test_a_key_dmos_is_no_misspelt_mos(photographs, data, run, capsys, name, line) -> None:
    rows = with_splits([{"image": row["image"], "dmos": round(5 - row["mos"], 2)} for row in photographs(48)])
    path = data(rows, name)
    mend = 'name the score "mos" (--columns mos=dmos), with "higher_is_better": false (--lower-is-better) where low'
    fault = f'error: manifest {str(path)!r} line {line}: "dmos" is no key; {mend} scores are the good ones\n'
    assert run(path)[::2] == (2, fault)
    flags = ("--columns", "mos=dmos", "--lower-is-better", "--mos-range", "0,4")
    assert run(path, *flags, "--dry-run")[0] == 0
    assert evaluate_command([str(path), *flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["srcc"]["value"] > 0.5


@pytest.mark.spec("issue-44/csv-0-to-100")
def test_a_table_on_0_to_100_is_told_which_flag_names_its_scale(photographs, data, run, capsys) -> None:
    rows = with_splits([{**row, "mos": round(25 * (row["mos"] - 1), 1)} for row in photographs(48)])
    path = data(rows, "data.csv")
    code, _, said = run(path)
    assert code == 2
    assert said.endswith('far outside 1..5; correct it or "mos_range" (--mos-range LOW,HIGH)\n')
    assert len(said.splitlines()) == 1
    assert run(path, "--mos-range", "0,100", "--dry-run")[0] == 0
    assert evaluate_command([str(path), "--mos-range", "0,100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["srcc"]["value"] > 0.5


def reviewed(path: Path, says: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Add to each row of the program's own table what a person says of it, as a spreadsheet or pandas would."""
    frame = {
        ".csv": pd.read_csv, ".jsonl": lambda p: pd.read_json(p, lines=True), ".parquet": pd.read_parquet,
    }[path.suffix](path)  # fmt: skip
    for number, row in enumerate(frame.to_dict("records")):
        for name, value in says(row).items():
            frame.loc[number, name] = value
    if path.is_dir():
        shutil.rmtree(path)
    write = {".csv": frame.to_csv, ".jsonl": frame.to_json, ".parquet": frame.to_parquet}[path.suffix]
    write(path, **({"orient": "records", "lines": True} if path.suffix == ".jsonl" else {"index": False}))


def test_every_column_of_an_own_table_is_known_as_found_or_as_the_manifests() -> None:
    assert BatchRow.model_fields.keys() - FOUND == {
        "id", "image", "reference", "query", "options", "answer", "group", "split"
    }  # fmt: skip
    assert BatchRow.model_fields.keys() >= FOUND


@pytest.mark.spec("issue-44/own-table")
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_the_programs_own_table_with_a_column_of_scores_is_data(
    photographs, data, run, tmp_path, monkeypatch, capsys, caplog, suffix
) -> None:
    rows = with_splits(photographs(48))
    people = {row["image"]: row.pop("mos") for row in rows}
    data([{**row, "group": row["image"]} for row in rows])
    monkeypatch.chdir(tmp_path)
    review = tmp_path / "tables" / f"review{suffix}"
    review.parent.mkdir()
    assert assess_command(["data.jsonl", "--out", str(review), "--json"]) == 0
    disagreed = [name for name in people if int(name.removesuffix(".png")) % 8 != 7]
    reviewed(review, lambda row: {"mos": people[row["id"]]} if row["id"] in disagreed else {})
    tested = sum(row["split"] == "test" for row in rows if row["image"] in disagreed)
    capsys.readouterr()
    assert evaluate_command([str(review), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scoring"]["asked"] == tested == 9
    assert "3 of 12 rows have no label and are left out" in caplog.text
    code, _, said = run(review, *(["--optimizer", "none"] if suffix == ".csv" else ["--dry-run"]))
    assert code == 0
    assert "6 of 48 rows have no label and are left out" in said
    if suffix == ".csv":
        record = json.loads((tmp_path / "out" / "program.json").read_text("utf-8"))["record"]
        assert record["compiled"]["scoring"]["asked"] == tested


@pytest.mark.spec("issue-44/own-table")
def test_another_letter_in_the_programs_own_table_is_a_persons_answer(photographs, data, run, tmp_path, capsys) -> None:
    rows = with_splits([{"image": row["image"]} for row in photographs(48)])
    question = ("--query", "Is the image blurry?", "--option", "Yes", "--option", "No")
    review = tmp_path / "review.csv"
    assert assess_command([str(data(rows)), *question, "--out", str(review), "--json"]) == 0
    reviewed(review, lambda row: {"answer": "AB"[row["answer"] == "A"]} if row["split"] != "test" else {})
    capsys.readouterr()
    assert evaluate_command([str(review), "--split", "train", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["accuracy"]
    assert (told["value"], told["n"]) == (0.0, sum(row["split"] == "train" for row in rows))
    assert evaluate_command([str(review)]) == 2
    assert "no sample of split 'test' has a label" in capsys.readouterr().err


@pytest.mark.spec("issue-44/questions-only")
def test_questions_alone_bring_no_line_on_scores(photographs, data, run, tmp_path) -> None:
    question = {"query": "Is the image blurry?", "options": {"A": "Yes", "B": "No"}}
    rows = [{"image": row["image"], **question, "answer": "AB"[row["mos"] > 3]} for row in photographs(64)]
    code, told, said = run(data(with_splits(rows)))
    assert code == 0
    assert "Accuracy" in told
    page = (tmp_path / "out" / "report.html").read_text("utf-8").partition("What compiling changed")[0]
    for text in (told, said, page):
        assert not re.search(r"fusion|scored|SRCC|RMSE|to the scores", text, re.IGNORECASE)
