"""Score fusion against an independent computation, the documents' figures, and properties over random beliefs."""

import json
import logging
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from program.fusion import ScoreFusion, level_in_text
from program.fusion.scores import FittedFusion, disagreement, fusion_note

LEVELS = np.arange(1, 6)
LOG_PROBABILITIES = {1: -3.2, 2: -0.5, 3: -0.1, 4: -2.1, 5: -4.5}
UNIFORM = dict.fromkeys(range(1, 6), 0.2)

scores = st.lists(st.floats(1, 5), min_size=1, max_size=6)
masses = st.lists(st.floats(0, 1), min_size=5, max_size=5).filter(lambda m: sum(m) > 1e-6)
etas = st.floats(0.01, 8)


def expected_score(tool_scores, p, eta=1.0):
    """The normalised formula in numpy: sum(alpha p c) / sum(alpha p), alpha_c ~ exp(-eta (m - c)^2)."""
    alpha = np.exp(-eta * (np.mean(tool_scores) - LEVELS) ** 2)
    alpha /= alpha.sum()
    return float((alpha * p * LEVELS).sum() / (alpha * p).sum())


def belief(masses_):
    total = sum(masses_)
    return {c: m / total for c, m in zip(range(1, 6), masses_, strict=True)}


@pytest.mark.spec("000/2-score-fusion-algorithm-design")
@pytest.mark.spec("003/3-score-fusion")
@pytest.mark.parametrize("tool_scores", [[2.6], [2.6, 2.8], [1.0], [5.0], [1, 5], [3.3, 3.4, 4.9]])
@pytest.mark.parametrize("eta", [0.25, 1.0, 3.0])
def test_perceptual_weights_are_gaussian_about_the_tool_mean(tool_scores, eta):
    weights = ScoreFusion(eta).compute_perceptual_weights(tool_scores)
    alpha = np.exp(-eta * (np.mean(tool_scores) - LEVELS) ** 2)
    assert list(weights) == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(list(weights.values()), alpha / alpha.sum(), rtol=1e-12)
    assert math.isclose(sum(weights.values()), 1, rel_tol=1e-12)


@pytest.mark.spec("D1/the-sum-over-levels-is-normalised")
@pytest.mark.spec("000/2-score-fusion-algorithm-design")
@pytest.mark.spec("003/3-score-fusion")
@pytest.mark.spec("004/scorefusion-class")
@pytest.mark.parametrize("tool_scores", [[2.6], [2.6, 2.8], [1.0], [5.0], [1.7, 4.4]])
@pytest.mark.parametrize("p", [(0.1, 0.2, 0.4, 0.2, 0.1), (0, 0, 0, 0, 1), (1, 0, 0, 0, 0), (0.5, 0, 0, 0, 0.5)])
def test_fusion_is_the_mean_of_the_product_of_the_beliefs(tool_scores, p):
    fused = ScoreFusion().fuse_scores(tool_scores, belief(p))
    assert fused == pytest.approx(expected_score(tool_scores, p), rel=1e-12)


@pytest.mark.spec("D1/the-sum-over-levels-is-normalised")
def test_worked_figures_of_the_decision():
    fusion = ScoreFusion()
    p = fusion.extract_vlm_probabilities(LOG_PROBABILITIES)
    assert fusion.fuse_scores([2.6], p) == pytest.approx(2.66, abs=0.005)
    assert ScoreFusion(normalize=False).fuse_scores([2.6], p) == pytest.approx(1.08, abs=0.005)
    assert fusion.fuse_scores([5.0], UNIFORM) == pytest.approx(4.71, abs=0.005)
    assert fusion.fuse_scores([2.6], None) == fusion.fuse_scores([2.6], {}) == 2.6


@pytest.mark.spec("D1/the-sum-over-levels-is-normalised")
def test_printed_formula_leaves_the_scale_and_is_clipped_with_a_warning(caplog):
    printed = ScoreFusion(eta=0.0, normalize=False)
    assert sum(a * 0.2 * c for c, a in printed.compute_perceptual_weights([3.0]).items()) == pytest.approx(0.6)
    assert printed.fuse_scores([3.0], UNIFORM) == 1.0
    assert "0.600 is off the scale" in caplog.text


@pytest.mark.spec("D1/the-sum-over-levels-is-normalised")
def test_tool_mean_stands_when_the_beliefs_share_no_level(caplog):
    fused = ScoreFusion(eta=60.0).fuse_scores([1.0], {1: 0.0, 2: 0.0, 3: 0.0, 4: 0.0, 5: 1.0})
    assert fused == 1.0
    assert "share no level" in caplog.text


@pytest.mark.spec("D5/eta-is-configurable")
@pytest.mark.spec("004/decision-4-fusion-parameter-configuration")
def test_eta_is_a_setting_and_defaults_to_one():
    from program.agent.resources import Resources
    from program.common.settings import load_settings

    assert ScoreFusion().eta == load_settings().fusion.eta == Resources(load_settings()).fusion.eta == 1.0
    assert Resources(load_settings(overrides={"fusion": {"eta": 2.5}})).fusion.eta == 2.5
    sharp, flat = ScoreFusion(8.0), ScoreFusion(0.1)
    assert sharp.fuse_scores([2.0], UNIFORM) < flat.fuse_scores([2.0], UNIFORM)
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="eta"):
            ScoreFusion(wrong)


@pytest.mark.spec("004/edge-cases")
def test_edge_cases_of_the_fusion():
    fusion = ScoreFusion()
    assert fusion.compute_perceptual_weights([]) == UNIFORM
    p = {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.3, 5: 0.1}
    assert fusion.fuse_scores([], p) == pytest.approx(3.1)
    with pytest.raises(ValueError, match="nothing to fuse"):
        fusion.fuse_scores([], None)
    with pytest.raises(ValueError, match="not all finite"):
        fusion.fuse_scores([2.0, math.nan], p)
    assert fusion.extract_vlm_probabilities({1: -1000.0, 2: -1001.0})[1] == pytest.approx(1 / (1 + math.exp(-1)))


@pytest.mark.spec("D9/forms-of-probabilities")
@pytest.mark.spec("003/3-score-fusion")
@pytest.mark.spec("000/10-fusion-algorithm-fallback")
@pytest.mark.parametrize(
    "given_",
    [
        LOG_PROBABILITIES,
        list(LOG_PROBABILITIES.values()),
        {str(c): p for c, p in LOG_PROBABILITIES.items()},
        {"quality_probs": LOG_PROBABILITIES},
        dict(zip(("bad", "poor", "fair", "good", "excellent"), LOG_PROBABILITIES.values(), strict=True)),
        dict(zip("EDCBA", LOG_PROBABILITIES.values(), strict=True)),
        json.dumps({"quality_probs": {f"level_{c}": p for c, p in LOG_PROBABILITIES.items()}}),
    ],
)
def test_log_probabilities_become_probabilities_by_softmax(given_):
    values = np.array(list(LOG_PROBABILITIES.values()))
    expected = np.exp(values) / np.exp(values).sum()
    found = ScoreFusion().extract_vlm_probabilities(given_)
    np.testing.assert_allclose([found[c] for c in range(1, 6)], expected, rtol=1e-12)


@pytest.mark.spec("D9/forms-of-probabilities")
@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({1: 0.1, 2: 0.2, 3: 0.4, 4: 0.2, 5: 0.1}, (0.1, 0.2, 0.4, 0.2, 0.1)),
        ({1: 10, 2: 20, 3: 40, 4: 20, 5: 10}, (0.1, 0.2, 0.4, 0.2, 0.1)),
        ({"1": "10%", "2": "20 %", "3": "40%", "4": "20%", "5": "10%"}, (0.1, 0.2, 0.4, 0.2, 0.1)),
        ({3: 0.6, 4: 0.4}, (0, 0, 0.6, 0.4, 0)),
        ({3: -0.1, 4: -0.1}, (0, 0, 0.5, 0.5, 0)),
        ({"fair": 3, "good": 1}, (0, 0, 0.75, 0.25, 0)),
    ],
)
def test_probabilities_percents_and_missing_levels(given_, expected):
    found = ScoreFusion().extract_vlm_probabilities(given_)
    np.testing.assert_allclose([found[c] for c in range(1, 6)], expected, rtol=1e-12)


@pytest.mark.spec("D9/forms-of-probabilities")
@pytest.mark.spec("004/edge-cases")
def test_a_wrong_sum_is_renormalised_with_a_warning(caplog):
    fusion = ScoreFusion()
    assert fusion.extract_vlm_probabilities([0.2, 0.2, 0.2, 0.2, 0.205])[1] == pytest.approx(0.2 / 1.005)
    assert fusion.extract_vlm_probabilities([20, 20, 20, 20, 20.5])[1] == pytest.approx(0.2 / 1.005)
    assert not caplog.records
    assert sum(fusion.extract_vlm_probabilities([0.2, 0.2, 0.2, 0.2, 0.5]).values()) == pytest.approx(1)
    assert "sum to 1.3; renormalised" in caplog.text


@pytest.mark.spec("D9/forms-of-probabilities")
@pytest.mark.parametrize(
    "given_",
    [
        {1: math.nan, 2: 0.5}, {1: math.inf}, [0.1, 0.2, -math.inf, 0.3, 0.4], [0, 0, 0, 0, 0], [0.5, 0.5], {}, [],
        {"bad": 0, "poor": 0.0, "fair": 0, "good": 0, "excellent": 0}, {"quality_probs": {"5": "0%", "4": 0}},
        {"1": None}, {"1": "high"}, {"1": True}, {"quality_probs": None}, {"quality_probs": {}}, None, "", "no idea",
        "{}",
        {"other": 1.0}, [1e308] * 5, [10**400, 1, 1, 1, 1],
    ],
)  # fmt: skip
def test_no_opinion_is_invented(given_):
    with pytest.raises(ValueError, match=r".+"):
        ScoreFusion().extract_vlm_probabilities(given_)


@pytest.mark.spec("D2/smoothing-of-a-level-alone")
@pytest.mark.spec("004/decision-2-vlm-probability-extraction")
@pytest.mark.spec("000/10-fusion-algorithm-fallback")
@pytest.mark.parametrize(
    ("answer", "level"),
    [
        ("A", 5),
        ("B", 4),
        ("C", 3),
        ("D", 2),
        ("E", 1),
        ("Good", 4),
        ("2", 2),
        ({"quality_level": "Fair"}, 3),
        ("一般", 3),
    ],
)
def test_a_single_level_is_smoothed(answer, level):
    found = ScoreFusion().extract_vlm_probabilities(answer, mode="classification")
    assert found[level] == pytest.approx(0.85)
    assert all(found[c] == pytest.approx(0.15 / 4) for c in range(1, 6) if c != level)


@pytest.mark.spec("D18/left-out-on-purpose")
def test_what_was_left_out_is_not_there():
    from program.common.errors import SettingsError
    from program.common.settings import load_settings

    with pytest.raises(SettingsError, match=r"unknown key 'assessment.use_numerical_scoring'"):
        load_settings(overrides={"assessment": {"use_numerical_scoring": True}})
    fusion = ScoreFusion()
    assert not [name for name in ("compute_alpha_weights", "extract_vlm_probs", "fuse") if hasattr(fusion, name)]


def test_a_mode_accepts_only_its_kind():
    with pytest.raises(ValueError, match="no level probabilities"):
        ScoreFusion().extract_vlm_probabilities("B", mode="probabilities")
    with pytest.raises(ValueError, match="no quality level"):
        ScoreFusion().extract_vlm_probabilities({1: 0.5, 2: 0.5}, mode="classification")


@pytest.mark.spec("D4/level-probabilities-first")
@pytest.mark.spec("003/3-score-fusion")
@pytest.mark.parametrize(
    ("score", "letter"),
    [(1, "E"), (1.49, "E"), (1.5, "D"), (2.5, "C"), (2.7, "C"), (3.49, "C"), (3.5, "B"), (4.5, "A"), (5, "A")],
)
def test_scores_map_to_the_nearest_letter_halves_up(score, letter):
    assert ScoreFusion().map_to_level(score) == letter


def test_a_score_that_is_no_number_has_no_letter():
    with pytest.raises(ValueError, match="finite"):
        ScoreFusion().map_to_level(math.nan)


LEVELS_IN_TEXT = [
    ("excellent", 5), ("B. Good", 4), ("(C)", 3), ("Level 2", 2), ("1", 1), ("3.6", 4), ("4/5", 4),
    ("4 out of 5", 4),
    ("The quality is poor.", 2), ("I would rate the quality as good.", 4), ("Rating: 3", 3),
    ("quality level: 2", 2),
    ("Overall the quality of this image is bad", 1), ("较差", 2), ("图像质量一般", 3), ("评分：4", 4),
    ("等级：优秀", 5),
    # a range is no level
    ("Score 1-5: 4", 4), ("Score (1-5): 4", 4), ("Rating (1 to 5): 3", 3), ("on a scale of 1 to 5, 3", 3),
    ("On a scale of 1 to 5, I would rate it 4.", 4), ("On a scale from 1 (bad) to 5 (excellent), it rates: 4", 4),
    ("Rating (1 = bad, 5 = excellent): 2", 2), ("Quality level on a scale of 1–5: 4", 4),
    ("Score, 1 to 5: fair", 3),
    ("评分（1-5）：4", 4), ("评分（1到5分）：4", 4), ("Score from 1 to 5: good", 4), ("3 on a scale of 1 to 5", 3),
    # neither is a count, nor what has a unit
    ("Of 4 images this quality is fair.", 3), ("The level of 2 % noise gives a quality of good.", 4),
    ("Quality: 4 MP, yet rated poor", 2),
    # the word "a" is no letter
    ("Overall: a photo of poor quality. Rating: D", 2), ("Rating: 4 (good)", 4), ("Rating: B (Good)", 4),
    ("Level 2 - Poor", 2), ("Rating: 3 stars", 3), ("4/5 (good)", 4), ("The rating is 4 out of 5.", 4),
    ("<think>The quality is good, or excellent.</think>The quality is fair.", 3), ("<think>good</think>\n\nC", 3),
    ("**Quality level:** fair", 3), ("Quality = 3.4", 3), ("Grade: c", 3), ("a", 5),
]  # fmt: skip


@pytest.mark.spec("D7/three-calls-for-level-probabilities")
def test_a_level_is_read_from_text():
    for text, level in LEVELS_IN_TEXT:
        assert level_in_text(text) == level, text


NO_LEVELS = [
    "", "   ", "I cannot rate the quality as good or bad.", "Sorry, I am unable to judge the quality.",
    "无法判断图像质量",
    "The quality is good. The quality is poor.", "A good photo of a dog", "8/10", "7", "B. Poor", "not JSON",
    "{}", "0",
    "There are 3 cars in the image", "4 images", "Quality of 4 images", "4 MP", "Quality: 4 MP", "Quality is 3 px",
    "Quality: 2%", "Quality: 2 ％", "level of 3 dB", "overall 3 regions are blurred", "Overall 4 distortions",
    "质量：4张", "overall 2x zoom", "Score 1-5", "Score 1 to 5", "on a scale of 1 to 5", "Rate from 1 to 5",
    "Level: 3-4",
    "Quality: good to excellent", "Quality: good or fair", "fair to good", "between 3 and 4", "Rating: 3 or 4",
    "Rating: B or C", "Rating: B/C", "Rating: 4 (fair)", "The quality is between fair and good.", "质量好或一般",
    "The quality is fair/poor", "The quality is fair-to-good", "Rating: 4. Level: fair", "The quality is not good",
    "The quality is a bit low.", "Overall: A blurry photo", "Overall a fine shot", "Rate a photo",
    "It is rated highly", "It scored well", "The quality is fairly even",
    "<think>The quality is good", "<think>The quality is good</think>",
    '{"bad": 0, "poor": 0, "fair": 0, "good": 0, "excellent": 0}', '{"quality_probs": [0, 0, 0, 0, 0]}',
]  # fmt: skip


@pytest.mark.spec("D7/three-calls-for-level-probabilities")
def test_no_level_is_read_where_none_or_several_stand():
    for text in NO_LEVELS:
        assert level_in_text(text) is None, text


def test_an_interval_is_two_deviations_of_the_belief_within_the_scale():
    p = {1: 0.1, 2: 0.2, 3: 0.4, 4: 0.2, 5: 0.1}
    deviation = math.sqrt(sum(q * (c - 3) ** 2 for c, q in p.items()))
    plain = ScoreFusion()
    assert plain.deviation(3.0, [], p) == pytest.approx(deviation)
    assert plain.interval(3.0, [], p) == pytest.approx((max(1, 3 - 1.96 * deviation), min(5, 3 + 1.96 * deviation)))
    assert plain.interval(5.0, [], {5: 1.0}) == (5.0, 5.0)


def test_an_interval_lies_on_the_scale_that_the_score_was_mapped_to():
    p = {3: 0.2, 4: 0.5, 5: 0.3}
    fitted = FittedFusion(ScoreFusion(), curve=[(1, 1), (5, 3)])  # half the way from 1: so half the deviation
    score = fitted.fuse_scores([], p)
    assert score == pytest.approx(1 + (4.1 - 1) / 2)
    deviation = math.sqrt(0.2 * 1.1**2 + 0.5 * 0.1**2 + 0.3 * 0.9**2) / 2
    assert fitted.interval(score, [], p) == pytest.approx((score - 1.96 * deviation, score + 1.96 * deviation))


@given(scores, st.none() | masses, etas, st.floats(0.1, 4), st.booleans(), st.lists(st.floats(0, 90), min_size=6))
@settings(max_examples=200, deadline=None)
def test_a_score_lies_in_its_interval(tool_scores, masses_, eta, weight, normalize, precisions):
    p = belief(masses_) if masses_ else None
    base = ScoreFusion(eta, normalize=normalize, tool_weights="reliability")
    for curve in ((), [(1, 1.2), (2.4, 1.3), (2.6, 3.9), (5, 4)]):
        fusion = FittedFusion(base, model_weight=weight, curve=curve)
        given_ = tool_scores, p, precisions[: len(tool_scores)]
        score = fusion.fuse_scores(*given_)
        low, high = fusion.interval(score, *given_)
        assert 1 <= low <= score <= high <= 5


@pytest.mark.spec("D1/the-sum-over-levels-is-normalised")
@given(scores, masses, etas)
@settings(max_examples=150, deadline=None)
def test_the_score_stays_on_the_scale(tool_scores, masses_, eta):
    for normalize in (True, False):
        fused = ScoreFusion(eta, normalize=normalize).fuse_scores(tool_scores, belief(masses_))
        assert 1 <= fused <= 5


@pytest.mark.spec("D1/the-sum-over-levels-is-normalised")
@given(st.floats(1, 5), st.floats(1, 5), masses, etas)
@settings(max_examples=150, deadline=None)
def test_the_score_rises_with_the_tool_mean(one, other, masses_, eta):
    p = belief(masses_)
    fusion = ScoreFusion(eta)
    low, high = sorted((one, other))
    # Where the beliefs barely meet, underflow hands over to the tools' mean: no longer the same formula.
    assume(min(sum(fusion.compute_perceptual_weights([q])[c] * p[c] for c in p) for q in (low, high)) > 1e-250)
    assert fusion.fuse_scores([low], p) <= fusion.fuse_scores([high], p) + 1e-9


@pytest.mark.spec("D1/the-sum-over-levels-is-normalised")
@given(scores, masses, st.lists(st.floats(0, 3), min_size=4, max_size=4))
@settings(max_examples=150, deadline=None)
def test_the_score_rises_in_likelihood_ratio_order(tool_scores, masses_, steps):
    # q_c / p_c = exp(cumulative steps) never falls with c: q lies above p in likelihood-ratio order.
    ratio = np.exp(np.cumsum([0, *steps]))
    low, high = belief(masses_), belief([m * r for m, r in zip(masses_, ratio, strict=True)])
    fusion = ScoreFusion()
    assert fusion.fuse_scores(tool_scores, low) <= fusion.fuse_scores(tool_scores, high) + 1e-9


@pytest.mark.spec("D1/the-sum-over-levels-is-normalised")
def test_stochastic_order_is_not_enough():
    fusion = ScoreFusion()
    lower, higher = belief((0.5, 0, 0.5, 0, 0)), belief((0, 0.5, 0.5, 0, 0))
    assert fusion.fuse_scores([2.4], lower) == pytest.approx(2.664, abs=5e-4)
    assert fusion.fuse_scores([2.4], higher) == pytest.approx(2.450, abs=5e-4)


@pytest.mark.spec("D1/the-sum-over-levels-is-normalised")
@given(scores, etas)
@settings(max_examples=100, deadline=None)
def test_uniform_probabilities_give_the_tools_belief_and_missing_ones_their_mean(tool_scores, eta):
    fusion = ScoreFusion(eta)
    weights = fusion.compute_perceptual_weights(tool_scores)
    assert fusion.fuse_scores(tool_scores, UNIFORM) == pytest.approx(sum(c * a for c, a in weights.items()))
    assert fusion.fuse_scores(tool_scores, None) == pytest.approx(np.clip(np.mean(tool_scores), 1, 5))
    assert fusion.posterior(tool_scores, None) == pytest.approx(weights)


@given(masses)
@settings(max_examples=100, deadline=None)
def test_extracted_probabilities_sum_to_one(masses_):
    logging.getLogger("program.fusion").setLevel(logging.ERROR)
    found = ScoreFusion().extract_vlm_probabilities(masses_)
    assert sum(found.values()) == pytest.approx(1)
    assert all(p >= 0 for p in found.values())


def test_reliable_tools_count_by_their_precision_and_a_plain_fusion_ignores_it():
    reliable, plain = ScoreFusion(tool_weights="reliability"), ScoreFusion()
    p = {1: 0.05, 2: 0.15, 3: 0.5, 4: 0.2, 5: 0.1}
    scores, precisions = [2.0, 4.0], [3.0, 1.0]
    alpha = {c: math.exp(-(4.0 / 2) * (2.5 - c) ** 2) for c in p}
    expected = sum(alpha[c] * p[c] * c for c in p) / sum(alpha[c] * p[c] for c in p)
    assert reliable.fuse_scores(scores, p, precisions) == pytest.approx(expected)
    assert reliable.fuse_scores(scores, None, precisions) == 2.5
    assert plain.fuse_scores(scores, p, precisions) == plain.fuse_scores(scores, p)
    assert reliable.fuse_scores(scores, p) == plain.fuse_scores(scores, p)
    assert sum(reliable.posterior(scores, p, precisions).values()) == pytest.approx(1)


def test_a_tool_that_adds_nothing_moves_nothing():
    reliable = ScoreFusion(tool_weights="reliability")
    p = {1: 0.05, 2: 0.15, 3: 0.5, 4: 0.2, 5: 0.1}
    assert reliable.fuse_scores([1.0, 3.2], p, [0.0, 2.0]) == reliable.fuse_scores([3.2], p, [2.0])
    assert reliable.fuse_scores([1.0], p, [0.0]) == pytest.approx(sum(c * mass for c, mass in p.items()))
    assert reliable.fuse_scores([1.0, 2.0], None, [0.0, 0.0]) == 1.5


@pytest.mark.parametrize("precisions", [[1.0], [1.0, -1.0], [1.0, float("nan")]])
def test_precisions_that_do_not_fit_are_refused(precisions):
    with pytest.raises(ValueError, match="one per tool score"):
        ScoreFusion(tool_weights="reliability").fuse_scores([2.0, 3.0], None, precisions)


RELIABLE = ScoreFusion(tool_weights="reliability")
FAIR = {3: 0.6, 4: 0.4}


@pytest.mark.parametrize(
    ("fusion", "given_", "note"),
    [
        (ScoreFusion(), ([2.6, 2.8], None), "Score 2.70 is the mean of 2 tool scores."),
        (ScoreFusion(), ([2.6, 2.8], None, [3.0, 0.0]), "Score 2.70 is the mean of 2 tool scores."),
        (RELIABLE, ([2.6, 2.8], None, [3.0, 1.0]),
         "Score 2.65 is the mean of 2 tool scores, weighted by their reliability."),
        (RELIABLE, ([2.6, 2.8], None, [0.0, 0.0]), "Score 2.70 is the mean of 2 tool scores."),
        (ScoreFusion(), ([], FAIR), "Score 3.40 is from the model only."),
        (RELIABLE, ([1.0], FAIR, [0.0]),
         "Score 3.40 is from the model only; 1 tool score did not count."),
        (ScoreFusion(0.0), ([1.0], FAIR),
         "Score 3.40 is from the model only; 1 tool score did not count."),
        (RELIABLE, ([1.0, 3.0], FAIR, [0.0, 2.0]),
         "Score 3.20 combines the tools' 3.00 with the model's expected level of 3.40."),
        (FittedFusion(ScoreFusion(), curve=[(1, 1), (5, 3)]), ([3.5], FAIR),
         "Score 2.20 is 3.40 on the fitted scale; "
         "3.40 combines the tools' 3.50 with the model's expected level of 3.40."),
        (FittedFusion(ScoreFusion(), model_weight=2), ([], FAIR),
         "Score 3.40 is from the model only."),
    ],
)  # fmt: skip
def test_the_note_says_what_the_score_was_made_of(fusion, given_, note):
    assert fusion_note(fusion, fusion.fuse_scores(*given_), *given_) == note


@pytest.mark.parametrize(
    ("fusion", "given_", "note"),
    [
        (RELIABLE, ([2.6, 2.8], None, [3.0, 1.0]), "分数 2.65 是 2 个工具评分的平均值（按可靠性加权）。"),
        (ScoreFusion(), ([], FAIR), "分数 3.40 仅来自模型。"),
        (RELIABLE, ([1.0], FAIR, [0.0]), "分数 3.40 仅来自模型；1 个工具评分没有分量。"),
        (RELIABLE, ([1.0, 3.0], FAIR, [0.0, 2.0]), "分数 3.20 融合了工具评分 3.00 与模型的期望等级 3.40。"),
        (FittedFusion(ScoreFusion(), curve=[(1, 1), (5, 3)]), ([3.5], FAIR),
         "分数 2.20 是 3.40 在拟合尺度上的值；3.40 融合了工具评分 3.50 与模型的期望等级 3.40。"),
    ],
)  # fmt: skip
def test_the_note_is_in_the_questions_language(fusion, given_, note):
    assert fusion_note(fusion, fusion.fuse_scores(*given_), *given_, chinese=True) == note


@pytest.mark.spec("D28/tools-and-model-disagree")
def test_tools_and_model_disagree_from_one_and_a_half_levels_on():
    model = {2: 0.5, 3: 0.5}
    assert disagreement(4.0, model) == "The tools say 4.0 of 5 and the model 2.5: they disagree."
    assert disagreement(1.0, model) == "The tools say 1.0 of 5 and the model 2.5: they disagree."
    assert disagreement(3.99, model) == disagreement(None, model) == ""
