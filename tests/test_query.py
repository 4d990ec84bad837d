"""Query types against a table written from the rules; options parsed from text; answers normalised to letters."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from program.agent.query import QueryType, detect_query_type, read_query
from program.common.questions import letter_options, normalise_choice, options_shown, options_told, parse_options

TABLE = [json.loads(line) for line in (Path(__file__).parent / "queries.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.spec("D6")
@pytest.mark.spec("004/decision-1-query-type-classification")
@pytest.mark.spec("004/query-type-detection")
@pytest.mark.parametrize("row", TABLE, ids=[row["query"][:60].replace("\n", " ") for row in TABLE])
def test_query_type_and_options_match_the_table(row):
    reading = read_query(row["query"])
    assert (reading.type.value, reading.options) == (row["type"], row.get("options"))
    assert reading.rule
    assert detect_query_type(row["query"]) is reading.type


def test_table_is_large_distinct_and_in_two_languages():
    queries = [row["query"] for row in TABLE]
    chinese = [q for q in queries if any("一" <= c <= "鿿" for c in q)]
    assert len(queries) == len(set(queries)) >= 150
    assert len(chinese) >= 40
    assert min(Counter(row["type"] for row in TABLE).values()) >= 40


@pytest.mark.spec("D6")
def test_given_options_make_any_query_multiple_choice():
    reading = read_query("Rate the quality of this image.", {"a": "Good", "b": "Bad"})
    assert reading.type is QueryType.MCQ
    assert reading.options == {"A": "Good", "B": "Bad"}
    assert reading.rule == "options given"
    assert detect_query_type("Is it blurry?", ["Yes", "No"]) is QueryType.MCQ


@pytest.mark.spec("D6")
@pytest.mark.parametrize(
    ("query", "rule"),
    [
        ("Is it blurry? A. Yes B. No", "lettered options in the text"),
        ("Choose from blur, noise", "choose from"),
        ("Rate the quality.", "scoring phrase"),
        ("Is it blurry?", "interrogative or describe/explain"),
        ("quality", "no rule fired"),
    ],
)
def test_the_rule_that_fired_is_told(query, rule):
    assert read_query(query).rule == rule


@pytest.mark.spec("D6")
@pytest.mark.parametrize("notation", ["{}) ", "{}. ", "{}: ", "({}) ", "{}、", "（{}）", "{}．", "{}："])
def test_every_notation_is_parsed_on_one_line_and_on_several(notation):
    texts = ["Blur", "Noise", "压缩"]
    marked = [notation.format(letter) + text for letter, text in zip("ABC", texts, strict=True)]
    for joined in ("; ".join(marked), "\n".join(marked)):
        assert parse_options(f"Which is worst?\n{joined}") == dict(zip("ABC", texts, strict=True))


@pytest.mark.parametrize(
    "text", ["A. B. C.", "Vitamin A. B is missing", "see e.g. b. and c.", "B. x C. y", "A. only one", ""]
)
def test_no_options_are_seen_where_there_are_none(text):
    assert parse_options(text) is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"a": " Yes ", "B": "No"}, {"A": "Yes", "B": "No"}),
        (["Yes", "No", "Maybe"], {"A": "Yes", "B": "No", "C": "Maybe"}),
        ("A. Yes B. No", {"A": "Yes", "B": "No"}),
        ({"C": "No", "B": "Yes\n indeed"}, {"B": "Yes indeed", "C": "No"}),
    ],
)
def test_options_are_lettered_in_the_letters_order(options, expected):
    assert list(letter_options(options).items()) == list(expected.items())


def test_two_equal_options_are_refused_unless_letters_tell_them_apart():
    with pytest.raises(ValueError, match=r"options A and B: are both 'yes'; give each a text of its own"):
        letter_options(["Yes", " yes"])
    assert letter_options({"C": "Yes", "D": "yes"}) == {"C": "Yes", "D": "yes"}


@given(st.dictionaries(st.sampled_from("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), st.text(min_size=1), min_size=2))
@example({"B": "Very blurry", "A": "Not blurry: B. good"})
@example({"X": "A. x\nB. y", "Y": "\u2028 C. z"})
def test_whatever_options_say_they_are_read_as_they_were_written(options):
    try:
        lettered = letter_options(options)
    except ValueError:
        return
    assert list(options_shown(options_told(lettered)).items()) == list(lettered.items())


@pytest.mark.parametrize(
    "options", [{"A": "Yes"}, {"A": "Yes", "B": " "}, {"1": "Yes", "2": "No"}, ["x"], "Yes", {"A": "x", "a": "y"}]
)
def test_unusable_options_are_refused(options):
    with pytest.raises(ValueError, match="give two or more"):
        letter_options(options)


FOUR = {"A": "Motion blur", "B": "Noise", "C": "None of these", "D": "Blur"}
CHINESE = {"A": "模糊", "B": "噪声", "C": "压缩"}
LEVELS = {"A": "Excellent", "B": "Good", "C": "Fair", "D": "Poor", "E": "Bad"}


@pytest.mark.parametrize(
    ("answer", "options", "letter"),
    [
        ("B", FOUR, "B"),
        (" b ", FOUR, "B"),
        ("(B)", FOUR, "B"),
        ("B.", FOUR, "B"),
        ("B. Noise", FOUR, "B"),
        ("B) noise.", FOUR, "B"),
        ("**B**", FOUR, "B"),
        ('"B"', FOUR, "B"),
        ("Noise", FOUR, "B"),
        ("noise.", FOUR, "B"),
        ("Blur", FOUR, "D"),
        ("motion blur", FOUR, "A"),
        ("Option B", FOUR, "B"),
        ("The answer is B", FOUR, "B"),
        ("Answer: B", FOUR, "B"),
        ("the second", FOUR, "B"),
        ("Second option", FOUR, "B"),
        ("2", FOUR, "B"),
        ("option 2", FOUR, "B"),
        ("The image mostly shows noise", FOUR, "B"),
        ("A good photo", LEVELS, "B"),
        ("Excellent", LEVELS, "A"),
        ("噪声", CHINESE, "B"),
        ("B、噪声", CHINESE, "B"),
        ("B：噪声", CHINESE, "B"),
        ("答案是B", CHINESE, "B"),
        ("答案：B", CHINESE, "B"),
        ("选B", CHINESE, "B"),
        ("选项B", CHINESE, "B"),
        ("第二个", CHINESE, "B"),
        ("第2项", CHINESE, "B"),
        ("图像主要有噪声。", CHINESE, "B"),
        ("3", {"A": "1", "B": "2", "C": "3"}, "C"),
        ("1", {"A": "3", "B": "2", "C": "1"}, "C"),
    ],
)
def test_an_answer_becomes_the_letter_it_names(answer, options, letter):
    assert normalise_choice(answer, options) == letter


@pytest.mark.parametrize(
    ("answer", "options"),
    [
        ("", FOUR),
        ("F", FOUR),
        ("Z. Noise or blur", FOUR),
        ("banana", FOUR),
        ("9", FOUR),
        ("I cannot determine it", FOUR),
        ("Noise and motion blur", FOUR),
        ("A. Noise", FOUR),
        ("模糊和噪声", CHINESE),
        ("第九个", CHINESE),
    ],
)
def test_an_answer_that_names_none_or_several_becomes_none(answer, options):
    assert normalise_choice(answer, options) is None
