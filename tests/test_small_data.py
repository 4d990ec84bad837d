"""Small and awkward data, through the commands: what is said of it and what is taken (docs/data.md has the table)."""

import csv
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from data.tables import FOUND
from optimizers import compiling
from optimizers.job import upside_down
from optimizers.selection import CrossValidation
from program.assess import main as assess_command
from program.compile import main as compile_command
from program.evaluate import main as evaluate_command
from program.evaluation.figures import compare, summarize
from program.evaluation.intervals import interval
from program.evaluation.record import EvaluationRecord
from program.running.row import Row
from tests.rows import labelled
from tests.scenarios import SMALL_COMPILE, blurred, with_splits, write_lines

pytestmark = pytest.mark.usefixtures("undrawn", "coarse", "unlogged", "untracked", "untraced", "measured_once")


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A folder of a hundred photographs from sharp to blurred, and a row for each with the MOS that suits it."""
    folder = tmp_path_factory.mktemp("hundred")
    return folder, blurred(folder, 100)


@pytest.fixture
def photographs(tmp_path: Path, hundred: tuple[Path, list[dict[str, Any]]]) -> Callable[[int], list[dict[str, Any]]]:
    """Copy the first of them, and return their rows."""
    folder, rows = hundred

    def copied(count: int) -> list[dict[str, Any]]:
        for row in rows[:count]:
            shutil.copy(folder / row["image"], tmp_path)
        return [dict(row) for row in rows[:count]]

    return copied


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
            write_lines(path, rows)
        return path

    return write


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a compile on the embedded expert; returns exit code, output and what was said on stderr."""
    (tmp_path / "small.yaml").write_text(json.dumps(SMALL_COMPILE), "utf-8")

    def compile_it(path: Path, *flags: str) -> tuple[int, str, str]:
        arguments = ["--data", str(path), "--config", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out")]
        capsys.readouterr()
        code = compile_command([*arguments, *flags])
        return code, *capsys.readouterr()

    return compile_it


@pytest.mark.spec("issue-44/labels-upside-down")
def test_labels_upside_down_stop_the_compile_in_one_line(photographs, data, run, tmp_path) -> None:
    rows = with_splits([{**row, "mos": round(6 - row["mos"], 2)} for row in photographs(64)])
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
    path = data(with_splits(photographs(64)))
    code, _, said = run(path, "--lower-is-better")
    assert code == 2
    assert 'take "higher_is_better": false (--lower-is-better) out' in said.splitlines()[-1]
    assert run(path, "--lower-is-better", "--force", "--optimizer", "none")[0] == 0


@pytest.mark.spec("issue-44/labels-upside-down")
def test_fewer_than_eight_scores_are_never_taken_for_upside_down() -> None:
    job = SimpleNamespace(force=False, data="few.jsonl", splits={"train": []})
    against = [5.0, 4.8, 4.9, 4.0, 3.5, 3.2, 3.0, 2.4, 1.9, 1.5]
    told = {n: upside_down(job, interval("srcc", list(range(n)), against[:n])) for n in (7, 8, 10)}
    assert told[7] is None
    assert all("run against the program's" in told[n] for n in (8, 10))
    job.force = True
    assert upside_down(job, interval("srcc", list(range(10)), against)) is None


@pytest.mark.spec("issue-44/key-dmos")
@pytest.mark.parametrize(("name", "line"), [("data.jsonl", 1), ("data.csv", 2)])
def test_a_key_dmos_is_no_misspelt_mos(photographs, data, run, capsys, name, line) -> None:
    rows = with_splits([{"image": row["image"], "dmos": round(5 - row["mos"], 2)} for row in photographs(32)])
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
    rows = with_splits([{**row, "mos": round(25 * (row["mos"] - 1), 1)} for row in photographs(32)])
    path = data(rows, "data.csv")
    code, _, said = run(path)
    assert code == 2
    assert ", most of them outside 1..5; name their scale with --mos-range 0,100 " in said
    assert len(said.splitlines()) == 1
    assert run(path, "--mos-range", "0,100", "--dry-run")[0] == 0
    assert evaluate_command([str(path), "--mos-range", "0,100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["srcc"]["value"] > 0.5


@pytest.mark.spec("issue-72/ceiling-beside-the-gain")
@pytest.mark.parametrize(
    ("again", "words"),
    [
        (12, "How well you agree with yourself can be told from 40 repeats on; 12 so far."),
        (44, r"You agree with yourself (0\.\d\d) \[0\.\d\d, 0\.\d\d\] \(r of 44 repeats\), so (0\.\d\d) \[0\.\d\d, "
             r"0\.\d\d\] is the most; the program has (0\.\d\d)\."),
    ],
)  # fmt: skip
def test_what_a_rater_agrees_with_himself_is_said_beside_the_gain(photographs, run, capsys, tmp_path, again, words):
    rng, lines, rows = np.random.default_rng(3), [], photographs(48)
    for number, row in enumerate(rows):
        for repeat in range(2 if number < again else 1):
            mos = int(np.clip(round(row["mos"] + rng.normal(0, 0.6)), 1, 5))
            lines.append({"id": f"p{number}", "image": row["image"], "sha256": f"{number:064}", "mos": mos,
                          "rater": "me", "at": "2026-01-02T03:04:05Z", "repeat": bool(repeat)})  # fmt: skip
    path = write_lines(tmp_path / "ratings.jsonl", lines)
    code, told, said = run(path, "--optimizer", "none")
    assert code == 0, said
    told = " ".join(told.split())
    found = re.search(words, told)
    assert found, told
    if found.groups():
        own, most, program = map(float, found.groups())
        assert most == pytest.approx(own**0.5, abs=0.01)
        assert re.search(rf"SRCC\W+{program:.2f}"[:-1], told)
    assert evaluate_command([str(path), "--split", "all"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert re.search(words.rstrip("\\.").lower(), told.lower()), told


def reviewed(path: Path, says: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Add to each row of the program's own table what a person says of it, as a spreadsheet or pandas would."""

    import pandas as pd

    frame = {
        ".csv": pd.read_csv, ".jsonl": lambda p: pd.read_json(p, lines=True), ".parquet": pd.read_parquet,
    }[path.suffix](path)  # fmt: skip
    for number, row in enumerate(frame.to_dict("records")):
        for name, value in says(row).items():
            if isinstance(value, str) and name in frame:
                frame[name] = frame[name].astype(object)  # an empty column is one of numbers
            frame.loc[number, name] = value
    if path.is_dir():
        shutil.rmtree(path)
    write = {".csv": frame.to_csv, ".jsonl": frame.to_json, ".parquet": frame.to_parquet}[path.suffix]
    write(path, **({"orient": "records", "lines": True} if path.suffix == ".jsonl" else {"index": False}))


def test_every_column_of_an_own_table_is_known_as_found_or_as_the_manifests() -> None:
    assert Row.model_fields.keys() - FOUND == {
        "id", "image", "reference", "query", "options", "answer", "group", "split", "advice", "not_judged"
    }  # fmt: skip
    assert Row.model_fields.keys() >= FOUND


@pytest.mark.spec("issue-44/own-table")
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_the_programs_own_table_with_a_column_of_scores_is_data(
    photographs, data, run, tmp_path, monkeypatch, capsys, caplog, suffix
) -> None:
    rows = with_splits(photographs(32))
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
    assert json.loads(capsys.readouterr().out)["scoring"]["asked"] == tested == 6
    assert "2 of 8 rows have no label and are left out" in caplog.text
    code, _, said = run(review, *(["--optimizer", "none"] if suffix == ".csv" else ["--dry-run"]))
    assert code == 0
    assert "4 of 32 rows have no label and are left out" in said
    if suffix == ".csv":
        record = json.loads((tmp_path / "out" / "program.json").read_text("utf-8"))["record"]
        assert record["compiled"]["scoring"]["asked"] == tested


@pytest.mark.spec("issue-44/own-table")
def test_another_letter_in_the_programs_own_table_is_a_persons_answer(photographs, data, run, tmp_path, capsys) -> None:
    rows = with_splits([{"image": row["image"]} for row in photographs(32)])
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
def test_questions_alone_bring_no_line_on_scores(scenario, transcript) -> None:
    questions = scenario("questions-alone")
    transcript(questions)
    page = (questions.folder / "out" / "report.html").read_text("utf-8").partition("What compiling changed")[0]
    for text in (questions.out, questions.err, page):
        assert not re.search(r"fusion|scored|SRCC|RMSE|to the scores", text, re.IGNORECASE)


def chosen(tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """Return the name of the program that was saved, and the compile's record."""
    record = json.loads((tmp_path / "out" / "program.json").read_text("utf-8"))["record"]
    return record["chosen"], record


@pytest.mark.spec("issue-44/no-split")
@pytest.mark.spec("issue-44/own-table")
def test_few_labels_without_a_split_are_each_tested_once_by_group(
    photographs, run, tmp_path, monkeypatch, capsys
) -> None:
    people = {row["image"]: row["mos"] for row in photographs(60)}
    review = tmp_path / "review.csv"
    assert assess_command([str(tmp_path), "--out", str(review), "--json"]) == 0
    # Named, as groups made of the paths of a temporary folder give other folds in every run.
    named = {name: {"mos": mos, "group": name} for name, mos in people.items()}
    reviewed(review, lambda row: named[row["id"]] if int(row["id"].removesuffix(".png")) < 56 else {})
    searches, search = [], compiling.Round.search

    def watched(self, train, validation):
        held = {sample.id for sample in self.job.splits["test"]}
        parts = (train, validation)
        # A plan is a lesson of no image, and one stands for all.
        demos = [d for part in parts for name, some in part.demos.items() for d in some if name != "planner.plan"]
        searches.append((held, {d.sample for d in demos}, {example.id for part in parts for example in part.examples}))
        return search(self, train, validation)

    monkeypatch.setattr(compiling.Round, "search", watched)
    code, told, said = run(review, "--optimizer", "finetune")
    assert code == 0
    assert "4 of 60 rows have no label and are left out" in said
    assert "no split in the data, 56 labels of 56 photographs: cross-validation over 5 folds by group, seed 0" in said
    name, record = chosen(tmp_path)
    assert record["compiled"]["scoring"] == {"asked": 56, "used": 56, "failed": 0, "unlabelled": 0}
    crossed = record["cross_validation"]
    assert crossed["gains"]["srcc"]["groups"] == 56
    assert (name != "uncompiled") is crossed["adopted"] is record["helped"] is True
    assert "compiled on 4 of 5 folds of 56 photographs and tested on the other" in " ".join(told.split())
    (everything, _, _), *folds = searches
    assert sorted(each for held, _, _ in folds for each in held) == sorted(everything)
    for held, shown, seen in folds:
        assert not held & (shown | seen)
        assert held | seen == everything


@pytest.mark.spec("issue-44/no-split")
def test_where_the_interval_holds_0_the_uncompiled_program_is_kept_and_why_is_said(scenario, transcript) -> None:
    kept = scenario("labels-at-random")
    assert kept.json("out/program.json")["record"]["chosen"] == "uncompiled"
    transcript(kept)
    assert "your own data" not in kept.out  # the next step after a compile on made-up labels


@pytest.mark.spec("issue-44/no-split")
def test_from_a_hundred_labels_one_split_by_group_is_drawn_and_said(photographs, data, run) -> None:
    path = data(photographs(100))
    code, _, said = run(path, "--dry-run", "--seed", "3")
    assert code == 0
    assert "no split in the data: 60 train, 20 validation, 20 test, drawn by group with seed 3\n" in said
    rows = [{**row, "group": f"g{number // 10}"} for number, row in enumerate(photographs(100))]
    assert "nothing is compiled: 100 labels of 10 photographs" not in run(data(rows), "--dry-run")[2]
    assert "cross-validation over 5 folds by group" in run(data(rows), "--dry-run")[2]


KEPT = [
    ("two rows", lambda rows: rows[:2], "2 labels of 2 photographs are too few to tell a gain from chance"),
    ("one group", lambda rows: [{**r, "group": "one"} for r in rows], "24 labels of 1 photograph are too few"),
    ("constant labels", lambda rows: [{**r, "mos": 3.0} for r in rows], "all scores are the same"),
    ("one validation photograph",
     lambda rows: [{**r, "split": "validation" if n == 0 else ("train", "test")[n % 2]} for n, r in enumerate(rows)],
     "validation has 1 photograph, and a choice by fewer than 8 does not hold for others"),
]  # fmt: skip


@pytest.mark.spec("issue-44/too-little-to-adopt")
@pytest.mark.parametrize(("made", "why"), [each[1:] for each in KEPT], ids=[each[0] for each in KEPT])
def test_data_that_can_show_no_gain_is_told_so_and_the_program_is_kept(
    photographs, data, run, tmp_path, made, why
) -> None:
    code, told, said = run(data(made(photographs(24))))
    assert code == 0
    assert f"nothing is compiled: {why}" in said
    assert f"The uncompiled program is kept, and recommended: {why}" in " ".join(told.split())
    name, record = chosen(tmp_path)
    assert (name, record["validation"]) == ("uncompiled", {})
    assert ("95 % intervals" in told) is ("[" in told)


@pytest.mark.spec("issue-44/too-little-to-adopt")
def test_a_few_labels_compile_nothing_and_that_is_told(scenario, transcript) -> None:
    few = scenario("few-labels")
    record = few.json("out/program.json")["record"]
    assert (record["chosen"], record["validation"]) == ("uncompiled", {})
    transcript(few)


def test_labels_that_are_made_up_are_taught_by_few_photographs(photographs, data, run) -> None:
    rows = [{**row, "labels": "made-up"} for row in KEPT[-1][1](photographs(70))]
    code, _, said = run(data(rows), "--dry-run")
    assert code == 0
    assert "nothing is compiled" not in said


@pytest.mark.spec("issue-44/duplicate-images")
def test_images_that_are_the_same_file_stay_together(photographs, data, run, tmp_path) -> None:
    rows = photographs(24)
    for number in range(4):
        shutil.copy(tmp_path / f"{number}.png", tmp_path / f"copy{number}.png")
    rows += [{**row, "image": f"copy{number}.png"} for number, row in enumerate(rows[:4])]
    code, _, said = run(data(rows), "--dry-run")
    assert code == 0
    assert "8 samples show the same image file as another: they stay together" in said
    assert "28 labels of 24 photographs" in said
    code, _, said = run(data(with_splits(rows)), "--dry-run")
    assert code == 2
    assert "(by content); keep it in one split" in said


LABELS = np.random.default_rng(5).uniform(1, 5, 60)
CHANCE, OTHER = np.random.default_rng(6).normal(0, 1, (2, 60))


def judged(predicted: Sequence[float], photographs: int = 60) -> EvaluationRecord:
    """Return the record of these scores."""
    rows = zip(LABELS, predicted, strict=True)
    return summarize(
        [
            labelled(id=f"{n:02}", group=str(n % photographs), task="scoring", truth=truth, predicted=score)
            for n, (truth, score) in enumerate(rows)
        ]
    )


def answered(right: Sequence[bool]) -> EvaluationRecord:
    """Return the record of questions with these answers."""
    return summarize(
        [
            labelled(id=f"{n:02}", group=str(n), task="mcq", truth="A", predicted="A" if is_right else "B")
            for n, is_right in enumerate(right)
        ]
    )


BEFORE, HALF, MOST = judged(LABELS + CHANCE), *(answered([n % m > 0 for n in range(60)]) for m in (2, 10))
ADOPTED = [
    ("a sure gain in order", BEFORE, judged(LABELS + CHANCE / 4), True),
    ("a nearer order that could be chance", BEFORE, judged(3 + 0.65 * (LABELS + 0.9 * CHANCE + 0.4 * OTHER - 3)), True),
    ("the same order on a nearer line", BEFORE, judged(3 + 0.8 * (LABELS + CHANCE - 3)), False),
    ("a nearer line and a worse order", judged(3 + 4 * (LABELS - 3) + CHANCE), judged(LABELS + CHANCE), False),
    ("answers near the mean in no order", judged(3 + 2 * OTHER), judged(LABELS.mean() + CHANCE / 100), False),
    ("too few photographs", judged(LABELS + CHANCE, 5), judged(LABELS + CHANCE / 4, 5), False),
    ("more right answers", HALF, MOST, True),
    ("fewer right answers", MOST, HALF, False),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "adopted"), [case[1:] for case in ADOPTED], ids=[c[0] for c in ADOPTED])
def test_what_is_surely_better_or_errs_less_than_the_old_scores_on_their_best_line_is_adopted(
    before, after, adopted
) -> None:
    gains = compare(before.rows, after.rows)
    assert CrossValidation.of(5, before, after, gains).adopted is adopted
