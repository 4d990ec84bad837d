"""Which picture is rated next: spread over pictures, none twice of a burst, and parts set apart at random."""

from collections import Counter

import numpy as np

from program.rating.choosing import doubt_removed, next_place, repeats_due, split_of


def _order(features, groups, splits, count):
    rated = []
    while len(rated) < count and (place := next_place(features, groups, splits, rated, seed=5)) is not None:
        rated.append(place)
    return rated


def test_a_tenth_of_groups_each_is_set_apart_and_no_group_is_divided():
    groups = [str(i // 2) for i in range(200)]
    splits = split_of(groups, 3)
    assert Counter(splits) == {"validation": 20, "test": 20, "train": 160}
    assert all(splits[i] == splits[i + 1] for i in range(0, 200, 2))
    assert splits != split_of(groups, 4)


def test_of_a_burst_one_is_rated_until_each_has_one_and_all_are_rated_once():
    rng = np.random.default_rng(0)
    features, groups = rng.standard_normal((60, 4)).astype(np.float32), [str(i // 3) for i in range(60)]
    order = _order(features, groups, split_of(groups, 0), 61)
    assert sorted(order) == list(range(60))
    assert len({groups[place] for place in order[:20]}) == 20


def test_a_tenth_of_what_is_rated_is_of_validation_and_of_test():
    features, groups = np.random.default_rng(1).standard_normal((300, 6)), [str(i) for i in range(300)]
    splits = split_of(groups, 1)
    for count in (40, 100):
        counts = Counter(splits[place] for place in _order(features, groups, splits, count))
        assert counts["validation"] in (count // 10, count // 10 - 1)
        assert counts["test"] in (count // 10, count // 10 - 1)


def test_kinds_of_pictures_are_each_rated_early():
    rng = np.random.default_rng(2)
    kinds = np.repeat([0, 1, 2, 3], [90, 6, 6, 6])
    features = np.eye(4)[kinds] * 5 + 0.1 * rng.standard_normal((108, 4))
    order = _order(features, [str(i) for i in range(108)], ["train"] * 108, 8)
    assert set(kinds[order]) == {0, 1, 2, 3}


def test_the_doubt_removed_is_the_fall_of_the_mean_variance():
    rng, noise = np.random.default_rng(3), 0.3
    features, rated = rng.standard_normal((30, 5)), [4, 9]
    centred = features - features.mean(0)
    centred /= np.sqrt((centred**2).sum(1).mean())
    products = centred @ centred.T + 1

    def mean_variance(places):
        known = products[:, places] @ np.linalg.inv(products[np.ix_(places, places)] + noise * np.eye(len(places)))
        return np.mean(np.diag(products - known @ products[places]))

    falls = [mean_variance(rated) - mean_variance([*rated, i]) for i in range(30) if i not in rated]
    np.testing.assert_allclose(np.delete(doubt_removed(features, rated), rated), falls, rtol=1e-4)


def test_a_tenth_of_answers_comes_back_and_not_at_once():
    order, again = [], []
    for place in range(100):
        order.append(place)
        due = repeats_due(order, again, 0)
        if due is not None:
            assert due in order[:-8]
            again.append(due)
    assert len(again) == len(set(again)) == 10
