"""Query types against a table written from the rules; options parsed from text; answers normalised to letters."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from program.agent.query import QueryType, detect_query_type, read_query
from program.common.text import letter_options, normalise_choice, options_shown, options_text, parse_options

TABLE = [json.loads(line) for line in (Path(__file__).parent / "queries.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.spec("D6/which-words-decide-the-query-type")
@pytest.mark.spec("004/decision-1-query-type-classification")
@pytest.mark.spec("004/query-type-detection")
def test_query_type_and_options_match_the_table():
    for row in TABLE:
        reading = read_query(row["query"])
        assert (reading.type.value, reading.options) == (row["type"], row.get("options")), row["query"]
        assert reading.rule
        assert detect_query_type(row["query"]) is reading.type


def test_table_is_large_distinct_and_in_two_languages():
    queries = [row["query"] for row in TABLE]
    chinese = [q for q in queries if any("一" <= c <= "鿿" for c in q)]
    assert len(queries) == len(set(queries)) >= 150
    assert len(chinese) >= 40
    assert min(Counter(row["type"] for row in TABLE).values()) >= 40


@pytest.mark.spec("D6/which-words-decide-the-query-type")
def test_given_options_make_any_query_multiple_choice():
    reading = read_query("Rate the quality of this image.", {"a": "Good", "b": "Bad"})
    assert reading.type is QueryType.MCQ
    assert reading.options == {"A": "Good", "B": "Bad"}
    assert reading.rule == "options given"
    assert detect_query_type("Is it blurry?", ["Yes", "No"]) is QueryType.MCQ


@pytest.mark.spec("D6/which-words-decide-the-query-type")
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


@pytest.mark.spec("D6/which-words-decide-the-query-type")
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
    assert list(options_shown(options_text(lettered)).items()) == list(lettered.items())


@pytest.mark.parametrize(
    "options", [{"A": "Yes"}, {"A": "Yes", "B": " "}, {"1": "Yes", "2": "No"}, ["x"], "Yes", {"A": "x", "a": "y"}]
)
def test_unusable_options_are_refused(options):
    with pytest.raises(ValueError, match="give two or more"):
        letter_options(options)


FOUR = {"A": "Motion blur", "B": "Noise", "C": "None of these", "D": "Blur"}
YES_NO = {"A": "Yes", "B": "No"}
CHINESE = {"A": "模糊", "B": "噪声", "C": "压缩"}
LEVELS = {"A": "Excellent", "B": "Good", "C": "Fair", "D": "Poor", "E": "Bad"}


LETTERS = [
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
    # the letter alone on the first line
    ("B\n\nThe image is noisy, with no motion blur.", FOUR, "B"),
    ("B\n\nMotion blur (A) and blur (D) are absent.", FOUR, "B"),
    ("B\n\nThe options were:\nA. Motion blur\nB. Noise\nC. None of these\nD. Blur", FOUR, "B"),
    ("**B**\n\nA and D are wrong.", FOUR, "B"),
    ("\n(B)\nAnswer A would need motion blur.", FOUR, "B"),
    ("Answer: B\nMotion blur is minor.", FOUR, "B"),
    ("B. Noise\n\nThe motion blur is weaker.", FOUR, "B"),
    # lead-ins and marks
    ("Answer: **B**", FOUR, "B"),
    ("**Answer:** B", FOUR, "B"),
    ("**Answer: B. Noise**", FOUR, "B"),
    ("Final Answer: (B)", FOUR, "B"),
    ("### Answer\nB", FOUR, "B"),
    ("\\boxed{B}", FOUR, "B"),
    ("The grain is strong, so $\\boxed{\\text{B}}$.", FOUR, "B"),
    ("A is wrong. \\boxed{\\textbf{(B) Noise}}", FOUR, "B"),
    ("<answer>B</answer>", FOUR, "B"),
    ("<think>A or D?</think><answer> B. Noise </answer>", FOUR, "B"),
    ("<think>Motion blur? A.</think>B", FOUR, "B"),
    ("<answer>noise</answer>", FOUR, "B"),
    ("I think the answer is B", FOUR, "B"),
    ("I think the correct answer is **B**, as the grain shows.", FOUR, "B"),
    ("I would choose option B because of the grain.", FOUR, "B"),
    ("I'd go with B.", FOUR, "B"),
    ("The correct option is: B) Noise", FOUR, "B"),
    ("The best answer is B. Noise.", FOUR, "B"),
    ("It's B.", FOUR, "B"),
    ("It is not A, so the answer is B.", FOUR, "B"),
    ("I don't think the answer is A. The answer is B.", FOUR, "B"),
    ("B is correct.", FOUR, "B"),
    ("B because of the grain", FOUR, "B"),
    ("B - Noise", FOUR, "B"),
    ("B Noise", FOUR, "B"),
    ("[B]", FOUR, "B"),
    ("{B}", FOUR, "B"),
    ("`B`", FOUR, "B"),
    ("B:", FOUR, "B"),
    ("The picture is grainy (B).", FOUR, "B"),
    ("answer: b", FOUR, "B"),
    ("final_answer: B", FOUR, "B"),
    ("__B__", FOUR, "B"),
    ("The right one is B.", FOUR, "B"),
    ("Noise or blur?\nNoise", FOUR, "B"),
    ("A or B, I think B", FOUR, "B"),
    ("B. The image has no motion blur but is grainy", FOUR, "B"),
    ("否，图像是清晰的", {"A": "是", "B": "否"}, "B"),
    ("A. Motion blur\nB. Noise\nC. None of these\nD. Blur\n\nAnswer: B", FOUR, "B"),
    ("Which is worst? A. Motion blur B. Noise C. None of these D. Blur\nThe answer is B.", FOUR, "B"),
    ("我选B", CHINESE, "B"),
    ("应该选择B。", CHINESE, "B"),
    ("正确答案是：**B**", CHINESE, "B"),
    ("不是模糊，而是噪声。", CHINESE, "B"),
    # texts
    ("The image shows motion blur.", FOUR, "A"),
    ("It is noise, not motion blur.", FOUR, "B"),
    ("Not blur but noise.", FOUR, "B"),
    ("The noise dominates; there is no motion blur.", FOUR, "B"),
    ("Is it blur? No, noise.", FOUR, "B"),
    ("The image is not blurry.", {"A": "Blurry", "B": "Not blurry"}, "B"),
    ("It is not blurry at all", {"A": "Blurry", "B": "Sharp", "C": "Not blurry"}, "C"),
    ("There is no visible noise here.", {"A": "No visible noise", "B": "Noise"}, "A"),
    ("No, the image is not blurry.", YES_NO, "B"),
    ("Yes, there is no noise in it.", YES_NO, "A"),
    ("No.", YES_NO, "B"),
    ("The answer is no.", YES_NO, "B"),
    ("Answer: Yes", YES_NO, "A"),
    ("False", {"A": "True", "B": "False"}, "B"),
    ("非常模糊", {"A": "模糊", "B": "清晰"}, "A"),
]


def test_an_answer_becomes_the_letter_it_names():
    for answer, options, letter in LETTERS:
        assert normalise_choice(answer, options) == letter, answer


NO_LETTERS = [
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
    # negated
    ("The image is not blurry.", {"A": "Blurry", "B": "Sharp"}),
    ("The image isn't blurry.", {"A": "Blurry", "B": "Sharp"}),
    ("The image isn’t blurry.", {"A": "Blurry", "B": "Sharp"}),
    ("There is no noise.", FOUR),
    ("Noise is not visible.", FOUR),
    ("Noise can be ruled out.", FOUR),
    ("I see neither noise nor anything else.", FOUR),
    ("The picture is free of noise.", FOUR),
    ("I am unable to see noise.", FOUR),
    ("The answer is not B.", FOUR),
    ("The quality is not bad.", LEVELS),
    ("I don't think the answer is B.", FOUR),
    ("B is wrong.", FOUR),
    ("Not B", FOUR),
    ("没有噪声", CHINESE),
    ("图像并不模糊。", CHINESE),
    ("There is no blur", YES_NO),
    # echoed
    ("Is the image blurry?", {"A": "Blurry", "B": "Sharp"}),
    ("You ask whether it is blurry.", {"A": "Blurry", "B": "Sharp"}),
    ("A. Motion blur\nB. Noise\nC. None of these\nD. Blur", FOUR),
    ("A. Motion blur B. Noise C. None of these D. Blur", FOUR),
    ("A) Motion blur, B) Noise, C) None of these, D) Blur", FOUR),
    ("The options are motion blur, noise and blur.", FOUR),
    ("Options: (A) (B) (C) (D)", FOUR),
    # several
    ("A, C", FOUR),
    ("A and C", FOUR),
    ("A/C", FOUR),
    ("A or B", FOUR),
    ("A & B", FOUR),
    ("A B C D", FOUR),
    ("A\nB\nC\nD", FOUR),
    ("A、C", CHINESE),
    ("A和B", CHINESE),
    ("选A或B", CHINESE),
    ("ABCD", FOUR),
    ("Answer: A, C", FOUR),
    ("The answer is A or B.", FOUR),
    ("Both A and B", FOUR),
    ("\\boxed{A, C}", FOUR),
    ("<answer>A, B</answer>", FOUR),
    ("The answer is A. No, the answer is B.", FOUR),
    ("(A) or (B)", FOUR),
    ("I'm torn between A and B", FOUR),
    ("Not only noise but motion blur", FOUR),
    ("A. Motion blur - no\nB. Noise - yes\nC. None of these - no\nD. Blur - no", FOUR),
    ("fair to good", LEVELS),
    ("Answer: A. Noise", FOUR),
    ("<think>It must be B, or", FOUR),
    ("I think a photo like this is fine", FOUR),
]


def test_an_answer_that_names_none_or_several_becomes_none():
    for answer, options in NO_LETTERS:
        assert normalise_choice(answer, options) is None, answer
