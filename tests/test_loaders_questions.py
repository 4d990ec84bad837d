"""Multiple-choice questions: Q-Bench LLVisionQA, and tables of one's own."""

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from data.manifest import Layout
from data.preparing import load
from data.releases import Row, question_types
from program.common.errors import DataError


def picture(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 3), (90, 120, 150)).save(path)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        picture(tmp_path / "images" / f"{name}.png")
    return tmp_path


def test_qbench_dev(root: Path) -> None:
    rows = [
        {
            "img_path": "a.png", "question": "Is it sharp?", "candidates": ["Yes", "No"], "correct_ans": "No",
            "type": 0, "concern": 0,
        },
        {
            "img_path": "b.png", "question": "How bright is it?", "candidates": ["Dark", "Medium", "Bright"],
            "correct_ans": "Bright",
        },
    ]  # fmt: skip
    (root / "llvisionqa_dev.json").write_text(json.dumps(rows), "utf-8")
    first, second = load("qbench-dev", root)
    assert (first.id, first.task, first.query) == ("qbench-dev/0001", "mcq", "Is it sharp?")
    assert (first.options, first.answer, first.split) == ({"A": "Yes", "B": "No"}, "B", "validation")
    assert first.metadata == {"question_type": "yes-or-no", "type": 0, "concern": 0}
    assert (second.answer, second.group, second.metadata) == ("C", "b.png", {"question_type": "how"})


def test_qbench_test_has_no_answers(root: Path) -> None:
    rows = [{"img_path": "a.png", "question": "What is wrong?", "candidates": ["Blur", "Noise"]}]
    (root / "llvisionqa_test.json").write_text(json.dumps(rows), "utf-8")
    (sample,) = load("qbench-test", root)
    assert (sample.task, sample.answer, sample.split) == ("mcq", None, "test")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"img_path": "a.png", "question": "?"}]', "row 1: has no 'candidates'"),
        (
            '[{"img_path": "a.png", "question": "?", "candidates": ["x", "y"], "correct_ans": "z"}]',
            '"answer" is "z", not among the options A, B',
        ),
        ('{"img_path": "a.png"}', "holds no list"),
        ("[1]", "row 1: is not an object"),
        ("[", "is not JSON"),
    ],
)
def test_damaged_questions_are_named(root: Path, text: str, message: str) -> None:
    (root / "llvisionqa_dev.json").write_text(text, "utf-8")
    with pytest.raises(DataError, match=message) as caught:
        list(load("qbench-dev", root))
    assert "\n" not in str(caught.value)


CSV = """image,question,A,B,C,answer,split,difficulty
images/a.png,Is it sharp?,Yes,No,,b),dev,easy
images/b.png,What is wrong?,Blur,Noise,Nothing,noise,test,
"""


def test_a_csv_table_with_lettered_columns(root: Path) -> None:
    (root / "mine.csv").write_text(CSV, "utf-8")
    first, second = load("table", root / "mine.csv")
    assert (first.options, first.answer, first.split) == ({"A": "Yes", "B": "No"}, "B", "validation")
    assert (first.metadata, first.group) == ({"difficulty": "easy"}, "images/a.png")
    assert (second.options, second.answer, second.split) == ({"A": "Blur", "B": "Noise", "C": "Nothing"}, "B", "test")
    assert second.metadata == {}


@pytest.mark.parametrize(
    "options",
    [["Yes", "No"], {"A": "Yes", "B": "No"}, '["Yes", "No"]', "Yes | No"],
    ids=["list", "object", "text", "bars"],
)
def test_options_come_as_list_object_or_text(root: Path, options: object) -> None:
    row = {"image": "images/a.png", "query": "Sharp?", "options": options, "answer": "yes"}
    (root / "mine.jsonl").write_text(json.dumps(row) + "\n", "utf-8")
    (sample,) = load("table", root / "mine.jsonl")
    assert (sample.options, sample.answer, sample.query) == ({"A": "Yes", "B": "No"}, "A", "Sharp?")


def test_a_table_of_scores_with_other_column_names(root: Path) -> None:
    (root / "mine.csv").write_text("file,score,spread,scene\nimages/a.png,30,4.5,x\nimages/b.png,80,,x\n", "utf-8")
    columns = {"image": "file", "mos": "score", "mos_std": "spread", "group": "scene"}
    first, second = load("table", root / "mine.csv", layout=Layout(columns, (0, 100), lower_is_better=True))
    assert (first.mos, first.mos_std, first.group, first.task) == (30, 4.5, "x", "scoring")
    assert first.quality == pytest.approx(6 - 2.2)
    assert second.mos_std is None


def test_a_json_table_keeps_its_scale_and_regions(root: Path) -> None:
    row = {
        "image": "images/a.png",
        "mos": 3,
        "mos_range": [0, 9],
        "higher_is_better": False,
        "regions": {"car": [0, 0, 2, 2]},
    }
    (root / "mine.json").write_text(json.dumps([row]), "utf-8")
    (sample,) = load("table", root / "mine.json")
    assert (sample.mos_range, sample.higher_is_better, sample.regions) == ((0, 9), False, {"car": (0, 0, 2, 2)})
    (sample,) = load("table", root / "mine.json", layout=Layout(mos_range=(0, 10)))
    assert (sample.mos_range, sample.higher_is_better, sample.metadata) == ((0, 10), False, {})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "?"}, 'has no "image" but question; give it, or name its column with --columns image=NAME'),
        ({"image": "images/a.png", "mos": "good"}, 'line 1: "mos": Input should be a valid number'),
        ({"image": "images/a.png", "split": "spare"}, '"split": Input should be'),
        ({"image": "images/a.png", "options": ["a"]}, '"options": .*at least 2 items'),
        ({"image": "images/a.png", "options": ["a"] * 30}, "has 30 options; give at most 26"),
    ],
)
def test_rows_that_cannot_be_used_are_named(root: Path, row: dict[str, object], message: str) -> None:
    (root / "mine.json").write_text(json.dumps([row]), "utf-8")
    with pytest.raises(DataError, match=message) as caught:
        list(load("table", root / "mine.json"))
    assert "\n" not in str(caught.value)


def test_of_two_equal_choices_the_letter_decides(root: Path) -> None:
    row = {"image": "images/a.png", "options": ["a", "A"], "answer": "a"}
    (root / "mine.json").write_text(json.dumps([row]), "utf-8")
    assert next(iter(load("table", root / "mine.json"))).answer == "A"


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("file,rating\nimages/a.png,3\n", {"image": "file", "mos": "score"},
         "has no column 'score' but file, rating"),
        ("image,mos\nimages/a.png,3\n", {"moss": "mos"}, "--columns moss=mos: 'moss' is no field (did you mean 'mos'?"),
        ("image,MOS\nimages/a.png,3\n", {}, 'line 2: "MOS" is no key; did you mean "mos"?'),
        ("image,mos\nimages/a.png,3,4\n", {}, "line 2: has other than the header's 2 cells"),
        ("image,mos\nimages/a.png,3\nimages/b.png\n", {}, "line 3: has other than the header's 2 cells"),
        ("image,score\nimages/a.png,85\n", {"mos": "score"},
         'line 2: "mos" is 85, far outside 1..5; correct it or "mos_range"'),
        ("image,mos\nimages/a.png,nan\n", {}, 'line 2: "mos" is "nan"; give a number'),
    ],
)  # fmt: skip
def test_a_table_that_would_lose_or_spoil_its_labels_is_refused(
    root: Path, text: str, columns: dict[str, str], message: str
) -> None:
    (root / "mine.csv").write_text(text, "utf-8")
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        list(load("table", root / "mine.csv", layout=Layout(columns)))
    assert "\n" not in str(caught.value)


def test_a_score_far_outside_a_named_scale_is_refused(root: Path) -> None:
    (root / "mine.csv").write_text("image,mos\nimages/a.png,700\n", "utf-8")
    with pytest.raises(DataError, match=r'line 2: "mos" is 700, far outside 0..100'):
        list(load("table", root / "mine.csv", layout=Layout(mos_range=(0, 100))))


def test_what_spreadsheets_add_at_the_ends_of_rows_is_no_fault(root: Path) -> None:
    text = "image,mos,query,A,B,answer\nimages/a.png,3,,,,,,\n,,,,,\nimages/a.png,,Sharp?,Yes,No,A\n"
    (root / "mine.csv").write_text(text, "utf-8")
    assert [(s.mos, s.answer) for s in load("table", root / "mine.csv")] == [(3, None), (None, "A")]


def test_a_table_is_a_file(root: Path) -> None:
    with pytest.raises(DataError, match="is a folder"):
        list(load("table", root))


def test_question_types_follow_the_wording() -> None:
    asked = (
        ("How is the light?", ["Good", "Bad"]),
        ("Which part is blurry?", ["Sky", "Tree"]),
        ("Is it noisy?", ["No.", "Yes"]),
    )
    rows = [Row(Path("t"), "", {"question": question, "candidates": choices}) for question, choices in asked]
    assert [row.cells["question_type"] for row in question_types(rows)] == ["how", "what", "yes-or-no"]
