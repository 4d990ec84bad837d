"""No answer about a photograph contradicts another one, and each fault comes with what to do about it."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from skimage import data as photographs

from agentic_iqa import AgenticIQA
from benchmarks.contradictions import contradictions, draw_answers
from program.common.request import Request
from program.expert import advice_on
from program.expert.answer.findings import CHINESE, ENGLISH
from program.expert.judge.views import Viewer
from program.images.store import IMAGES
from program.running.row import Row
from signatures.schemas import FAULTS, SEVERITIES
from tests.pictures import Pixels, as_jpeg, blurred, noisy

CAT = np.ascontiguousarray(photographs.chelsea())
CUP = np.ascontiguousarray(photographs.coffee()[::2, ::2])
WOMAN = np.ascontiguousarray(photographs.astronaut()[::2, ::2])


def _lit(pixels: Pixels, gain: Any) -> Pixels:
    return np.clip(pixels * np.asarray(gain, dtype=float), 0, 255).astype(np.uint8)


MADE = {
    "as it is": CAT, "cup": CUP, "woman": WOMAN, "dark": _lit(CAT, 0.2), "bright": _lit(WOMAN, 2.6),
    "blue": _lit(CUP, (0.45, 1.0, 1.15)), "blurred": blurred(CAT, 3), "noisy": noisy(CUP, 25),
    "blocks": as_jpeg(WOMAN, 8), "dark and noisy": noisy(_lit(WOMAN, 0.25), 12), "grey": _lit(CUP, 0.35) + 110,
}  # fmt: skip


@pytest.fixture(scope="module")
def iqa() -> AgenticIQA:
    return AgenticIQA()


def _slow_but(quick: set[str], names: Iterable[str]) -> list[Any]:
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", _slow_but({"dark and noisy"}, MADE))
def test_no_answer_contradicts_another(iqa: AgenticIQA, name: str) -> None:
    drawn = draw_answers(iqa, np.ascontiguousarray(MADE[name]))
    assert list(contradictions(drawn)) == []


ADVICE = {
    "dark": ("too dark", "stop"), "noisy": ("noise", "lower ISO"), "blocks": ("compression", "higher quality"),
    "blurred": ("defocus blur", "focus"),
}  # fmt: skip


@pytest.mark.parametrize("name", _slow_but({"dark"}, ADVICE))
def test_each_fault_comes_with_what_to_do_about_it(iqa: AgenticIQA, name: str) -> None:
    fault, advice = ADVICE[name]
    result = iqa(np.ascontiguousarray(MADE[name]))
    faults = [each for each, _ in result.faults]
    row = Row.of(Request(id="a"), result)
    assert fault in faults
    assert advice.casefold() in str(row.advice).casefold()
    assert str(row.advice) in str(result)
    assert str(row.advice) in result._repr_html_()
    chinese = iqa(np.ascontiguousarray(MADE[name]), "请给这张图片的质量打分。")
    assert str(chinese.advice).endswith("。")


def test_what_is_done_about_one_fault_does_not_undo_what_is_done_about_another() -> None:
    dark = advice_on({"too dark": "strong", "blown highlights": "slight", "crushed shadows": "slight"}, "")
    assert dark == "Lift the exposure; blend two exposures, as no single one holds both lights and shadows."
    assert ";" not in advice_on({"blown highlights": "strong", "too bright": "slight"}, "")


@pytest.mark.parametrize(("gain", "side"), [((1.1, 0.7, 0.35), "cooler"), ((0.45, 1.0, 1.15), "warmer")])
def test_the_white_balance_is_set_against_the_cast(gain: tuple[float, ...], side: str) -> None:
    view = Viewer().view(IMAGES.add(_lit(np.repeat(CAT.mean(axis=2, keepdims=True), 3, axis=2), gain)))
    assert advice_on({"colour cast": "moderate"}, "", view) == f"Set the white balance {side}."


def test_where_nothing_is_wrong_nothing_is_to_be_done(iqa: AgenticIQA) -> None:
    assert iqa(CAT).advice is None
    assert Row.of(Request(id="a"), iqa(CAT)).advice is None


def test_every_fault_has_advice_in_both_languages() -> None:
    for phrases in (ENGLISH, CHINESE):
        assert all(phrases.say(f"advice.{fault}", by="", tone="") for fault in FAULTS)


@pytest.mark.parametrize("severity", SEVERITIES[1:])
def test_every_severity_has_its_words_beside_a_fault(severity: str) -> None:
    for phrases in (ENGLISH, CHINESE):
        for table in ("degree", "strongly", "very"):
            assert isinstance(phrases.say(f"{table}.{severity}"), str)
