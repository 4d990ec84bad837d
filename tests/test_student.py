"""The simulated student does as it says: its skill depends on its instructions, and the control's does not."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from data.distortions import distort, generator_for
from data.quickstart import load_photograph
from program import AgenticIQA
from program.common.settings import load_settings

TOLD = "Judge the image. Look for {kind} before you answer, and let each of them count."


@pytest.fixture(scope="module")
def simulation():
    spec = importlib.util.spec_from_file_location("student", Path(__file__).with_name("student.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def noisy() -> np.ndarray:
    return distort(load_photograph("coffee")[:192, :192], "white_noise", 4, generator_for("coffee", "white_noise", 4))


@pytest.mark.parametrize("obeys", [True, False])
def test_what_it_overlooks_counts_once_an_instruction_speaks_of_it(simulation, loopback, noisy, obeys) -> None:
    seed = next(s for s in range(20) if "Noise" in simulation.Student(s).overlooks)
    server = loopback(rules=simulation.Student(seed, obeys=obeys).rules, token_probabilities=0)
    iqa = AgenticIQA(load_settings().with_model("openai/student", server.base))
    score = iqa.summarizer.score
    means = {}
    for kind in ("", "blur", "noise"):
        if kind:
            score.signature = score.signature.with_instructions(TOLD.format(kind=kind))
        result = iqa(image=noisy)
        means[kind] = sum(level * p for level, p in result.level_probabilities.items())
    assert means["blur"] == pytest.approx(means[""], abs=0.8)
    assert (means["noise"] < min(means[""], means["blur"]) - 0.3) == obeys
    assert (len(set(means.values())) == 1) == (not obeys)


def test_the_writer_learns_more_from_words_than_from_a_number(simulation) -> None:
    asked = simulation.__dict__["Student"](0)
    said = "The score 4.50 is 2.00 too high: people gave 2.50 of 5.  Evidence: found severe Noise; tools said 2.1 of 5."

    class Prompt:
        def __init__(self, text: str) -> None:
            self.text = text

    found = ["noise" in asked.instruction(Prompt(f"{said} try {n}")) for n in range(100)]
    guessed = ["noise" in asked.instruction(Prompt(f"0.40 try {n}")) for n in range(100)]
    assert np.mean(found) > 0.7
    assert np.mean(guessed) < 0.3
