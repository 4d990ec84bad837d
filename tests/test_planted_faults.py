"""Faults that are planted one at a time: each can still be planted, and those of this week's turn are noticed."""

import datetime
import re
from functools import cache
from pathlib import Path

import pytest

from benchmarks import planted_faults
from benchmarks.planted_faults import FAULTS, ROOT, Fault, faults_of_turn, main


@cache
def named_in(file: str) -> set[str]:
    text = Path(__file__).with_name(file).read_text("utf-8")
    return set(re.findall(r"^def (test_\w+)", text, re.MULTILINE))


def test_the_planted_faults_moved_along_with_the_code_and_its_tests() -> None:
    moved = [(fault.name, fault.file) for fault in FAULTS if not fault.stands(ROOT) or fault.old == fault.new]
    assert moved == [], "the text to change does not stand there once: write down where that code stands now"
    named = [test.partition("::")[::2] for fault in FAULTS for test in fault.tests.split()]
    assert [(file, name) for file, name in named if name not in named_in(file)] == []


def test_every_fault_has_its_turn_and_a_name_of_its_own() -> None:
    turns = [faults_of_turn(turn) for turn in range(52)]
    assert {fault.name for faults in turns for fault in faults} == {fault.name for fault in FAULTS}
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 60
    assert max(map(len, turns)) <= planted_faults.EACH_TURN


@pytest.mark.slow
def test_a_change_that_no_test_notices_is_told_from_one_that_nothing_can_be_run_with(capsys, monkeypatch) -> None:
    file, line = "program/agent/replan.py", "HIGH_SCORE = 4.0\n"
    planted = {
        "noticed": "HIGH_SCORE = 3.0\n", "SURVIVED": "HIGH_SCORE = 4.0  # of five\n", "BROKEN": "HIGH_SCORE = = 4.0\n",
    }  # fmt: skip
    test = "test_replan.py::test_contradictions_between_findings_and_scores"
    faults = [Fault(name, file, line, text, test) for name, text in planted.items()]
    monkeypatch.setattr(planted_faults, "FAULTS", [*faults, Fault("MOVED", file, "no such line", "", test)])
    assert main([]) == 1
    *verdicts, count = (said.split() for said in capsys.readouterr().out.splitlines())
    assert [(verdict[0], verdict[-1]) for verdict in verdicts] == [(name, name) for name in (*planted, "MOVED")]
    assert count == ["1", "of", "4", "noticed"]


@pytest.mark.slow
def test_the_faults_of_this_week_are_noticed(capsys) -> None:
    with capsys.disabled():
        code = main(["--turn", str(datetime.datetime.now(datetime.UTC).isocalendar().week)])
    assert code == 0
