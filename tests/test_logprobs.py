"""Level probabilities from token log-probabilities, however an answer was cut into tokens."""

import math
from types import SimpleNamespace

import pytest

from program.logprobs import level_masses


def token(text, p=1.0, **alternatives):
    top = [{"token": t, "logprob": math.log(q)} for t, q in alternatives.items()]
    return {"token": text, "logprob": math.log(p), "top_logprobs": top}


def found(content):
    return [round(p, 6) for p in level_masses(content).values()]


@pytest.mark.spec("D4")
@pytest.mark.parametrize(
    "pieces",
    [
        ['{"quality_level": "', "C", '", "quality_reasoning": "A B C"}'],
        ['{"', "quality", "_level", '":', ' "', "C", '",', ' "quality_reasoning": "x"}'],
        ['{\n  "quality_level":', ' "C', '"}'],
        ['{"quality_level":"', 'C"}'],
        ['{"quality_reasoning": "D or E?", "quality_level": "', "C", '"}'],
        ["C"],
        [" C", ". Fair"],
        ["```", "C"],
    ],
)
def test_the_letter_is_found_in_any_tokens(pieces):
    content = [token(p) for p in pieces]
    place = next(i for i, p in enumerate(pieces) if "C" in p and "A B C" not in p)
    content[place] = token(
        pieces[place], 0.5, **{pieces[place]: 0.5, pieces[place].replace("C", "B"): 0.3, "the": 0.1, '"': 0.1}
    )
    assert found(content) == [0, 0, 0.625, 0.375, 0]


@pytest.mark.spec("D4")
def test_spellings_of_a_level_add_up_and_others_do_not_count():
    content = [token("C", 0.4, C=0.4, c=0.1, **{" C": 0.1, "B": 0.2, "F": 0.1, "Cat": 0.1})]
    assert found(content) == [0, 0, 0.75, 0.25, 0]


@pytest.mark.spec("D4")
def test_level_words_and_their_first_pieces_count():
    assert found([token("good", 0.6, good=0.6, fair=0.3, bad=0.1)]) == [0.1, 0, 0.3, 0.6, 0]
    assert found([token("ex", 0.6, ex=0.6, good=0.3, b=0.1), token("cellent")]) == [0, 0, 0, 0.333333, 0.666667]
    assert found([token("4", 0.6, **{"4": 0.6, "5": 0.2, "7": 0.2})]) == [0, 0, 0, 0.75, 0.25]


def test_the_chosen_token_counts_when_it_is_not_among_the_alternatives():
    assert found([token("D", 0.25, C=0.75)]) == [0, 0.25, 0.75, 0, 0]


def test_attributes_do_as_well_as_keys():
    top = [SimpleNamespace(token="B", logprob=math.log(0.5))]
    assert found([SimpleNamespace(token="A", logprob=math.log(0.5), top_logprobs=top)]) == [0, 0, 0, 0.5, 0.5]
    assert found([SimpleNamespace(token="A", logprob=-0.1, top_logprobs=None)]) == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    "content",
    [
        [],
        [token("")],
        [token("I cannot say")],
        [token("A good photo")],
        [token("Apple")],
        [token('{"quality_level": "'), token("F")],
        [token('{"quality_level": "')],
        [{"token": "A", "logprob": -math.inf, "top_logprobs": []}],
        [{"token": "A", "logprob": math.nan, "top_logprobs": []}],
    ],
)
def test_no_level_is_invented(content):
    with pytest.raises(ValueError, match="token log-probabilities"):
        level_masses(content)
