"""Which picture is rated next: none twice of a burst, and parts set apart at random."""

from collections import Counter

from program.rating.choosing import next_place, repeats_due, split_of


def _order(groups, splits, count):
    rated = []
    while len(rated) < count and (place := next_place(groups, splits, rated, seed=5)) is not None:
        rated.append(place)
    return rated


def test_a_tenth_of_groups_each_is_set_apart_and_no_group_is_divided():
    groups = [str(i // 2) for i in range(200)]
    splits = split_of(groups, 3)
    assert Counter(splits) == {"validation": 20, "test": 20, "train": 160}
    assert all(splits[i] == splits[i + 1] for i in range(0, 200, 2))
    assert splits != split_of(groups, 4)


def test_of_a_burst_one_is_rated_until_each_has_one_and_all_are_rated_once():
    groups = [str(i // 3) for i in range(60)]
    order = _order(groups, split_of(groups, 0), 61)
    assert sorted(order) == list(range(60))
    assert len({groups[place] for place in order[:20]}) == 20


def test_a_tenth_of_what_is_rated_is_of_validation_and_of_test():
    groups = [str(i) for i in range(300)]
    splits = split_of(groups, 1)
    for count in (40, 100):
        counts = Counter(splits[place] for place in _order(groups, splits, count))
        assert counts["validation"] in (count // 10, count // 10 - 1)
        assert counts["test"] in (count // 10, count // 10 - 1)


def test_a_tenth_of_answers_comes_back_and_not_at_once():
    order, again = [], []
    for place in range(100):
        order.append(place)
        due = repeats_due(order, again, 0)
        if due is not None:
            assert due in order[:-8]
            again.append(due)
    assert len(again) == len(set(again)) == 10
