"""The expert's sentences: both languages say the same."""

from string import Formatter

from program.expert.answer.findings import CHINESE, ENGLISH, _table, phrases_for


def _fields(template: str) -> set[tuple[str | None, str | None]]:
    return {(name, form) for _, name, form, _ in Formatter().parse(template) if name is not None}


def test_both_languages_fill_in_the_same_readings_in_the_same_form() -> None:
    assert len(_table()) > 50
    for name, pair in _table().items():
        english, chinese = pair
        assert _fields(english) == _fields(chinese), name


def test_a_phrase_is_in_the_language_of_the_question() -> None:
    assert phrases_for("图片清晰吗？") is CHINESE
    assert phrases_for("Is it sharp?") is ENGLISH
    assert ENGLISH.join("One.", "", "Two.") == "One. Two."
    assert CHINESE.join("一。", "", "二。") == "一。二。"
