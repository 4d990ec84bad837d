"""Pairs of images: from people's preferences to a manifest, an evaluation and a compile."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import program.evaluation
from data import prepare
from data.manifest import read_manifest
from data.pairs import score_within_splits
from data.votes import fit_strengths
from optimizers.report import Compiled, show
from optimizers.selection import validation_score, verdict_of
from program import AgenticIQA, evaluate
from program.common.errors import DataError
from program.compile import main as compile_command
from program.evaluation.charts import figure_lines
from program.evaluation.figures import compare, summarize
from program.evaluation.judgements import preference, preference_gain
from program.evaluation.record import Baseline, EvaluationRecord, LabelledRow
from tests.pictures import blocks
from tests.rows import labelled
from tests.tables import as_lines


def prepared(table: Path, *more: object) -> int:
    out = table.with_name("manifest.jsonl")
    return prepare.main(["pairs", "--root", str(table), "--out", str(out), "--force", *map(str, more)])


def written(path: Path, rows: list[dict]) -> Path:
    for name in {row[end] for row in rows for end in ("image", "other") if end in row}:
        Image.new("RGB", (8, 8)).save(path.parent / name)
    path.write_text(as_lines(rows), "utf-8")
    return path


def drawn(rng: np.random.Generator, images: int, pairs: int) -> list[LabelledRow]:
    """Images whose quality people and a program see through noise, each pair voted on once."""
    quality = rng.normal(size=images)
    won: list[dict[str, float]] = [{} for _ in range(images)]
    for a, b in {tuple(sorted(rng.choice(images, 2, replace=False).tolist())) for _ in range(pairs)}:
        better, other = (a, b) if quality[a] - quality[b] > rng.normal(0, 0.6 * 2**0.5) else (b, a)
        won[better][str(other)] = 1.0
    scores = quality + rng.normal(0, 0.6, images)
    return [row(str(i), score, won[i]) for i, score in enumerate(scores.tolist())]


def row(name: str, score: float | None, won: dict[str, float] | None = None, group: str | None = None) -> LabelledRow:
    return labelled(
        id=name, group=group or name, task="scoring", truth=3.0, predicted=score, preferred_over=won,
        status="failed" if score is None else "ok",
    )  # fmt: skip


def test_strengths_equal_the_published_ones() -> None:
    # American League 1987, Agresti 2013, table 11.10; coefficients as R's BradleyTerry2 1.1 prints them.
    teams = ("Milwaukee", "Detroit", "Toronto", "New York", "Boston", "Cleveland", "Baltimore")
    won = (
        (0, 7, 9, 7, 7, 9, 11), (6, 0, 7, 5, 11, 9, 9), (4, 6, 0, 7, 7, 8, 12), (6, 8, 6, 0, 6, 7, 10),
        (6, 2, 6, 7, 0, 7, 12), (4, 4, 5, 6, 6, 0, 6), (2, 4, 1, 3, 1, 7, 0),
    )  # fmt: skip
    found = fit_strengths({a: dict(zip(teams, wins, strict=True)) for a, wins in zip(teams, won, strict=True)})
    above_last = [round(found[team] - found["Baltimore"], 4) for team in teams]
    assert above_last == [1.5814, 1.4364, 1.2945, 1.2476, 1.1077, 0.6839, 0.0]
    # Citations among four journals of statistics, Stigler 1994, likewise.
    journals = ("Biometrika", "Communications", "JASA", "JRSS-B")
    won = ((0, 730, 498, 221), (33, 0, 68, 17), (320, 813, 0, 142), (284, 276, 325, 0))
    found = fit_strengths({a: dict(zip(journals, wins, strict=True)) for a, wins in zip(journals, won, strict=True)})
    assert [round(found[name] - found["Biometrika"], 4) for name in journals] == [0.0, -2.9491, -0.4796, 0.269]


def test_a_table_of_pairs_becomes_scores_and_votes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"image": "a.png", "other": "b.png", "better": "image"},
        {"image": "./b.png", "other": "a.png", "better": 0.25, "votes": 4},
        {"image": "b.png", "other": "c.png", "better": "tie"},
        {"image": "c.png", "other": "a.png", "better": "Other"},
    ]
    assert prepared(written(tmp_path / "pairs.jsonl", rows), "--fractions", "0,0,1") == 0
    assert "votes: 7 of 7" in capsys.readouterr().out
    samples = {sample.image.name: sample for sample in read_manifest(tmp_path / "manifest.jsonl")}
    assert samples["a.png"].preferred_over == {"pairs/b.png": 4.0, "pairs/c.png": 1.0}
    assert samples["b.png"].preferred_over == {"pairs/a.png": 1.0, "pairs/c.png": 0.5}
    assert [samples[name].group for name in ("a.png", "b.png")] == ["a.png", "b.png"]
    assert samples["c.png"].preferred_over == {"pairs/b.png": 0.5}
    scores = [samples[name].quality for name in ("a.png", "b.png", "c.png")]
    assert scores[0] > 3 > max(scores[1:])
    assert all(1 < score < 5 for score in scores)


def test_a_csv_with_columns_of_its_own_gives_the_same(tmp_path: Path) -> None:
    rows = [{"image": "a.png", "other": "b.png", "better": "image", "group": "g"},
            {"image": "c.png", "other": "d.png", "better": "other", "group": "h"}]  # fmt: skip
    assert prepared(written(tmp_path / "pairs.jsonl", rows), "--fractions", "0,0,1") == 0
    expected = (tmp_path / "manifest.jsonl").read_bytes()
    table = tmp_path / "pairs.csv"
    table.write_text("left,right,winner,group,note\na.png,b.png,1,g,x\nc.png,d.png,0,h,y\n", "utf-8")
    columns = "image=left,other=right,better=winner"
    assert prepared(table, "--fractions", "0,0,1", "--columns", columns) == 0
    assert (tmp_path / "manifest.jsonl").read_bytes() == expected


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([{"image": "a.png", "other": "./a.png", "better": "tie"}], "line 1: 'a.png' is compared with itself"),
        ([{"image": "a.png", "other": "b.png", "better": "left"}], "better 'left': give image, other, tie"),
        ([{"image": "a.png", "other": "b.png", "better": 1.5}], "better 1.5: give image, other, tie"),
        ([{"image": "a.png", "other": "b.png"}], "better None: give image, other, tie"),
        ([{"image": "a.png", "better": "image"}], "has no 'other'; give image, other and better"),
        ([{"image": "a.png", "other": "b.png", "better": "image", "votes": 0}], "votes 0: give a number above 0"),
        ([{"image": "a.png", "other": "b.png", "better": "image", "group": "g"},
          {"image": "b.png", "other": "c.png", "better": "image"}], "line 2: an image had another reference or group"),
    ],
)  # fmt: skip
def test_a_pair_that_cannot_be_used_is_one_line(
    rows: list[dict], fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepared(written(tmp_path / "pairs.jsonl", rows)) == 2
    error = capsys.readouterr().err
    assert fault in error
    assert error.count("\n") == 1


def test_a_table_of_pairs_is_no_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = written(tmp_path / "pairs.jsonl", [{"image": "a.png", "other": "b.png", "better": "image"}])
    assert evaluate.main([str(table)]) == 2
    assert "is a pair; make a manifest of the pairs with agentic-iqa data prepare pairs" in capsys.readouterr().err


def test_votes_of_one_split_move_no_score_of_another(tmp_path: Path, rng: np.random.Generator) -> None:
    names = [f"{i:02d}.png" for i in range(30)]
    pairs = [sorted(rng.choice(names, 2, replace=False).tolist()) for _ in range(600)]
    rows = [{"image": a, "other": b, "better": "image"} for a, b in pairs]
    table = written(tmp_path / "pairs.jsonl", rows)
    assert prepared(table) == 0
    first = {sample.image.name: sample for sample in read_manifest(tmp_path / "manifest.jsonl")}
    split_of = {sample.id: sample.split for sample in first.values()}
    assert {split_of[other] for s in first.values() if s.split == "train" for other in s.preferred_over} == {"train"}
    # Every vote that touches a test image is turned round.
    turned = [{**r, "better": "other"} if "test" in {first[r[end]].split for end in ("image", "other")} else r
              for r in rows]  # fmt: skip
    assert prepared(written(table, turned)) == 0
    second = {sample.image.name: sample for sample in read_manifest(tmp_path / "manifest.jsonl")}
    assert {name: s.split for name, s in second.items()} == {name: s.split for name, s in first.items()}
    assert {s.split for name, s in first.items() if second[name].mos != s.mos} == {"test"}


def test_images_without_a_vote_in_their_split_are_left_out(tmp_path: Path) -> None:
    rows = [{"image": "a.png", "other": "b.png", "better": "image"}]
    assert prepared(written(tmp_path / "pairs.jsonl", rows), "--fractions", "0,0,1") == 0
    a, b = read_manifest(tmp_path / "manifest.jsonl")
    c, d = (s.model_copy(update={"id": name, "split": "train"}) for s, name in ((a, "c"), (b, "d")))
    assert [sample.id for sample in score_within_splits([a, b, c, d])] == [a.id, b.id]
    with pytest.raises(DataError, match="none lies inside one split; give more pairs, or --fractions 0,0,1"):
        list(score_within_splits([a, d]))


def test_images_that_no_votes_connect_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    apart = [{"image": f"{a}.png", "other": f"{b}.png", "better": "tie"} for a, b in ("ab", "bc", "de", "fg")]
    assert prepared(written(tmp_path / "pairs.jsonl", apart), "--fractions", "0,0,1") == 0
    (line,) = (each for each in capsys.readouterr().out.splitlines() if each.startswith("apart: "))
    assert "the images of test are in 3 parts with no vote between them" in line
    assert "scores compare only within a part" in line
    joined = [*apart, *({"image": "a.png", "other": f"{b}.png", "better": "tie"} for b in "dg")]
    assert prepared(written(tmp_path / "pairs.jsonl", joined), "--fractions", "0,0,1") == 0
    assert "apart: " not in capsys.readouterr().out


def test_agreement_counts_pairs_by_their_majority() -> None:
    rows = [row("a", 4.0, {"b": 2.0, "c": 1.0}), row("b", 3.0, {"a": 1.0, "d": 0.5}), row("c", 4.0, {"e": 1.0}),
            row("d", 2.0, {"b": 0.5, "gone": 3.0}), row("e", None)]  # fmt: skip
    figure = preference(rows)
    # a over b is right, a over c tied; b and d have no majority; c over e waits for e's score.
    assert (figure.value, figure.n, figure.asked, figure.groups) == (0.75, 2, 3, 3)
    assert preference(rows[::-1]) == figure
    assert summarize(rows).preference == figure
    assert summarize([row("a", 4.0), row("b", 3.0)]).preference is None
    alone = preference(rows[:2])
    assert (alone.value, alone.low) == (1.0, None)


def test_the_interval_of_disjoint_pairs_is_wilsons_and_shared_photographs_widen_it() -> None:
    def pairs(groups: int) -> list[LabelledRow]:
        return [r for i in range(400) for r in (row(f"a{i}", 3.0 + (i % 4 > 0), {f"b{i}": 1.0}, f"a{i % groups}"),
                                                row(f"b{i}", 3.5, group=f"b{i % groups}"))]  # fmt: skip

    apart, together = preference(pairs(400)), preference(pairs(40))
    assert apart.value == together.value == 0.75
    assert (apart.low, apart.high) == pytest.approx((0.705, 0.790), abs=0.001)  # Wilson, n = 400
    assert together.high - together.low > 2.5 * (apart.high - apart.low)
    few = preference([r.model_copy(update={"group": "one"}) for r in pairs(4)])
    assert (few.low, few.high, few.groups, few.descriptive) == (apart.low, apart.high, 1, True)


@pytest.mark.parametrize(("images", "pairs"), [(200, 100), (60, 400)])
def test_intervals_cover_the_truth_whether_or_not_pairs_share_images(images: int, pairs: int) -> None:
    rng, truth, hits, gains = np.random.default_rng(5), 0.763, [], []
    for draw in range(200):
        rows = drawn(rng, images, pairs)
        figure = preference(rows)
        hits.append(figure.low <= truth <= figure.high)
        if draw % 8:
            continue
        other = [r.model_copy(update={"score": r.predicted + rng.normal(0, 0.01)}) for r in rows]
        gain = preference_gain(rows, other)
        gains.append(gain.low <= gain.value <= gain.high and gain.high - gain.low < 0.5 * (figure.high - figure.low))
    assert 0.91 <= np.mean(hits) <= 0.985
    assert gains == [True] * 25


def test_a_gain_is_paired_and_stands_beside_the_others() -> None:
    before = [row("a", 2.0, {"b": 1.0, "c": 1.0}), row("b", 3.0, {"c": 1.0}), row("c", 2.5)]
    after = [r.model_copy(update={"score": score}) for r, score in zip(before, (4.0, 3.0, 2.0), strict=True)]
    gain = compare(before, after)["preference"]
    assert (gain.value, gain.n) == (pytest.approx(2 / 3), 3)
    assert "preference" not in compare([row("a", 2.0)], [row("a", 3.0)])


@pytest.fixture
def blurred(tmp_path: Path, rng: np.random.Generator) -> Path:
    """A manifest of pairs of 60 images: the less blurred one is preferred."""
    for i in range(60):
        pixels = blocks(rng, 6, 8, 16)
        small = Image.fromarray(pixels).resize((128 >> i % 3 * 2, 96 >> i % 3 * 2))
        small.resize((128, 96)).save(tmp_path / f"{i}.png")
    rows = [{"image": f"{a}.png", "other": f"{b}.png", "better": "image" if a % 3 < b % 3 else "other"}
            for a in range(60) for b in range(a) if a % 3 != b % 3]  # fmt: skip
    (tmp_path / "pairs.jsonl").write_text(as_lines(rows), "utf-8")
    assert prepared(tmp_path / "pairs.jsonl") == 0
    return tmp_path / "manifest.jsonl"


@pytest.mark.usefixtures("coarse")
def test_an_evaluation_tells_the_agreement_with_preferences(blurred: Path) -> None:
    record = program.evaluation.evaluate(data=blurred, progress=False)
    assert record.preference.value > 0.8
    assert record.preference.n == record.preference.asked > 30
    assert record.preference.low < record.preference.value
    assert "Agrees with people's preferences" in [name[:-2] for name, _ in figure_lines(record)]
    assert EvaluationRecord.model_validate_json(record.model_dump_json()) == record
    assert validation_score(record) == record.preference.value


def test_the_best_tool_is_told_by_preferences(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row("a", 2.0, {"b": 1.0, "c": 1.0}), row("b", 3.0, {"c": 1.0}), row("c", 2.5)]
    rows = [r.model_copy(update={"truth": truth}) for r, truth in zip(rows, (5.0, 3.0, 2.0), strict=True)]
    old = summarize(rows)
    tools = {kind: Baseline(label=kind, kind="tool", preference=old.preference.model_copy(update={"value": p}),
                            srcc=old.srcc.model_copy(update={"value": s}))
             for kind, p, s in (("first", 0.6, 0.9), ("second", 0.8, 0.1))}  # fmt: skip
    old = old.model_copy(update={"baselines": tools})
    after = [r.model_copy(update={"score": score}) for r, score in zip(rows, (4.0, 3.0, 2.0), strict=True)]
    new, gains = summarize(after), compare(rows, after)
    result = Compiled(
        program=AgenticIQA(), folder=Path("p"), chosen="x", seed=1, uncompiled=old, compiled=new, differences=gains,
        verdict=verdict_of(new, old, gains), validation={}, curve=[], notes=[], difference="", seconds={},
    )  # fmt: skip
    show(Console(width=200), result, Path("p"), ())
    out = " ".join(capsys.readouterr().out.split())
    assert "Best single tool or model on these samples, which favours it: second, preference 0.8" in out
    alone = tools["second"].model_copy(update={"kind": "model", "preference": old.preference})
    own = replace(result, uncompiled=old.model_copy(update={"baselines": {"model only": alone}}))
    assert own.words()[1] == "No single tool does better on these samples than the uncompiled program."


@pytest.mark.slow
def test_a_compile_chooses_by_preferences_and_tells_their_gain(
    blurred: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "program")
    capsys.readouterr()
    assert compile_command(["--data", str(blurred), "--optimizer", "fusion", "--out", out, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["validation"]["uncompiled"]["score"] == result["validation"]["uncompiled"]["preference"]
    assert result["difference"]["preference"]["n"] > 30
