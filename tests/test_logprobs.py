"""Level probabilities from token log-probabilities, however an answer was cut into tokens."""

import math
from contextlib import suppress
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from program.fusion.levels import level_masses, tokens_of


def token(text, p=1.0, **alternatives):
    top = [{"token": t, "logprob": math.log(q)} for t, q in alternatives.items()]
    return {"token": text, "logprob": math.log(p), "top_logprobs": top}


def found(content):
    return [round(p, 6) for p in level_masses(content).values()]


@pytest.mark.spec("D4/level-probabilities-first")
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
        ["<think>", '{"quality_level": "', "A", '"}', "?\n</think>", '{"quality_level": "', "C", '"}'],
        ["<think>", "Rating: ", "A", ", or E.", "</think>", "\n\n", "C"],
        ["Maybe ", '{"quality_level": "', "A", '"}', ". No: ", '{"quality_level": "', "C", '"}', " {sic}"],
        ["A or E, {so}", "</think>", "\n", '{"quality_level": "', "C", '", "quality_reasoning": "x"}'],
    ],
)
def test_the_letter_is_found_in_any_tokens(pieces):
    content = [token(p) for p in pieces]
    place = next(i for i, p in enumerate(pieces) if "C" in p and "A B C" not in p)
    content[place] = token(
        pieces[place], 0.5, **{pieces[place]: 0.5, pieces[place].replace("C", "B"): 0.3, "the": 0.1, '"': 0.1}
    )
    assert found(content) == [0, 0, 0.625, 0.375, 0]


@pytest.mark.spec("D4/level-probabilities-first")
def test_spellings_of_a_level_add_up_and_others_do_not_count():
    content = [token("C", 0.4, C=0.4, c=0.1, **{" C": 0.1, "B": 0.2, "F": 0.1, "Cat": 0.1})]
    assert found(content) == [0, 0, 0.75, 0.25, 0]


@pytest.mark.spec("D4/level-probabilities-first")
def test_level_words_and_their_first_pieces_count():
    assert found([token("good", 0.6, good=0.6, fair=0.3, bad=0.1)]) == [0.1, 0, 0.3, 0.6, 0]
    assert found([token("ex", 0.6, ex=0.6, good=0.3, b=0.1), token("cellent")]) == [0, 0, 0, 0.333333, 0.666667]
    assert found([token("4", 0.6, **{"4": 0.6, "5": 0.2, "7": 0.2})]) == [0, 0, 0, 0.75, 0.25]


def test_the_chosen_token_counts_when_it_is_not_among_the_alternatives():
    assert found([token("D", 0.25, C=0.75)]) == [0, 0.25, 0.75, 0, 0]


def test_attributes_do_as_well_as_keys():
    top = [SimpleNamespace(token="B", logprob=math.log(0.5))]
    assert found([SimpleNamespace(token="A", logprob=math.log(0.5), top_logprobs=top)]) == [0, 0, 0, 0.5, 0.5]
    # No alternatives at all: what is left over of the chosen token's 0.9 is shared.
    assert found([SimpleNamespace(token="A", logprob=math.log(0.9), top_logprobs=None)]) == [0.025] * 4 + [0.9]


@pytest.mark.parametrize(
    "content",
    [
        [],
        [token("")],
        [token("I cannot say")],
        [token("A good photo")],
        [token("Apple")],
        [token("The quality is not good")],
        [token('{"quality_reasoning": "C"}')],
        [token('{"quality_level": "'), token("F")],
        [token('{"quality_level": "')],
        [token('<think>{"quality_level": "'), token("A"), token('"}? Let me')],
        [token("<think>"), token("good"), token(", or")],
        [{"token": "A", "logprob": -math.inf, "top_logprobs": []}],
        [{"token": "A", "logprob": math.nan, "top_logprobs": []}],
        [{"token": "A", "logprob": None, "top_logprobs": None}],
        [{"token": "A", "logprob": "high", "top_logprobs": []}],
        [{"token": "A", "logprob": 0.7, "top_logprobs": []}],  # a probability, or a logit: not to be guessed
        [{"token": "A", "logprob": math.inf, "top_logprobs": []}],
        [{"token": "A", "logprob": -0.1, "top_logprobs": [{"token": "B", "logprob": math.nan}]}],
        [{"token": "A"}],
        [{}],
    ],
)
def test_no_level_is_invented(content):
    with pytest.raises(ValueError, match="token log-probabilities"):
        level_masses(content)


@pytest.mark.parametrize(
    "pieces",
    [
        ["Rating", ": ", "Good"],
        ["The quality of the image is", " good", "."],
        ["Answer: **", "good", "**"],
        ["It looks as", " good", " as it can be"],
        ["The level", " is", " ", '"', "good", '"'],
    ],
)
def test_a_level_is_found_behind_a_lead_in(pieces):
    content = [token(p) for p in pieces]
    place = next(i for i, p in enumerate(pieces) if "good" in p.casefold())
    content[place] = token(pieces[place], 0.6, **{pieces[place]: 0.6, " fair": 0.2, "Bad": 0.2})
    assert found(content) == [0.2, 0, 0.2, 0.6, 0]


def test_a_token_that_begins_before_the_level_is_read_from_the_level_on():
    content = [
        token('{"quality_level":"B', 0.5, **{'{"quality_level":"A': 0.3, '{"quality_level":"D': 0.2}),
        token('"}'),
    ]
    assert found(content) == [0, 0.2, 0, 0.5, 0.3]


def test_levels_outside_the_alternatives_get_the_smaller_of_two_bounds():
    # Left over: 0.4 for three levels; the least likely alternative has 0.1.
    assert found([token("C", 0.5, C=0.5, B=0.1)]) == [round(p / 0.9, 6) for p in (0.1, 0.1, 0.5, 0.1, 0.1)]
    # Left over: 0.02 for four levels, less than the 0.49 of the only other alternative.
    assert found([token("C", 0.49, C=0.49, x=0.49)]) == [round(p / 0.51, 6) for p in (0.005, 0.005, 0.49, 0.005, 0.005)]


def test_rounding_above_zero_is_certainty_and_impossible_words_do_not_count():
    content = [{"token": "B", "logprob": 1e-5, "top_logprobs": [{"token": "A", "logprob": -9999.0}]}]
    assert found(content) == [0, 0, 0, 1, 0]


def cut(text, places):
    ends = sorted({p % (len(text) + 1) for p in places} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(ends)]


@given(
    beliefs=st.lists(st.floats(0.001, 1.0), min_size=5, max_size=5),
    places=st.lists(st.integers(0, 200), max_size=12),
    style=st.sampled_from(["A", "a", " A", '"A']),
    before=st.sampled_from(
        ['{"quality_level": "', '{ "quality_reasoning": "E, D or B?",\n"quality_level":"', "", "Answer: "]
    ),
    junk=st.dictionaries(st.sampled_from(["the", "Cat", "F", "", "7", "good"]), st.floats(0.0001, 0.2), max_size=4),
)
def test_any_cut_of_an_answer_gives_the_softmax_over_the_letters(beliefs, places, style, before, junk):
    total = sum(beliefs) + sum(junk.values())
    best = max(range(5), key=lambda i: beliefs[i])
    letter = style.replace("A", "EDCBA"[best]).replace("a", "edcba"[best])
    lead = letter[:-1] if not (before.endswith('"') and letter.startswith('"')) else ""
    head, tail = [token(p) for p in cut(before, places) if p], ['"}'] if before.startswith("{") else ["\n"]
    spelled = {lead + "EDCBA"[i]: beliefs[i] / total for i in range(5)}
    chosen = token(lead + letter[-1], beliefs[best] / total, **spelled, **{k: v / total for k, v in junk.items()})
    masses = level_masses([*head, chosen, *map(token, tail)])
    if letter[-1].islower():  # the chosen spelling adds to its capital
        beliefs = [b * (2 if i == best else 1) for i, b in enumerate(beliefs)]
    assert sum(masses.values()) == pytest.approx(1)
    assert list(masses.values()) == pytest.approx([b / sum(beliefs) for b in beliefs], rel=1e-9)


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "token": st.one_of(st.text(max_size=8), st.sampled_from(["A", "good", '{"quality_level": "', "C"])),
                "logprob": st.one_of(st.floats(), st.none(), st.text(max_size=3)),
                "top_logprobs": st.one_of(
                    st.none(),
                    st.lists(
                        st.fixed_dictionaries({"token": st.sampled_from(["A", "B", "x"]), "logprob": st.floats()})
                    ),
                ),
            },
        ),
        max_size=6,
    )
)
def test_whatever_a_server_returns_is_a_belief_or_a_value_error(content):
    with suppress(ValueError):
        masses = level_masses(content)
        assert list(masses) == [1, 2, 3, 4, 5]
        assert all(0 <= p <= 1 for p in masses.values())
        assert sum(masses.values()) == pytest.approx(1)


def test_tokens_are_found_in_any_clients_shape():
    tokens = [token("C")]
    assert tokens_of({"content": tokens}) == tokens_of(SimpleNamespace(content=tokens)) == tokens
    for none in (None, {}, {"content": None}, {"content": "C"}, SimpleNamespace(content=None), SimpleNamespace()):
        assert tokens_of(none) == []
