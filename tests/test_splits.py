"""Splits by group: shares, determinism, leaks."""

from collections import Counter
from pathlib import Path

import pytest

from data.errors import DataError
from data.manifest import Sample
from data.splits import check_leaks, find_leaks, group_of, split_groups, with_splits

NAMES = [f"photo-{n}" for n in range(200)]


def sample(identity: str, group: str | None = None, split: str | None = None) -> Sample:
    return Sample(id=identity, image=Path("/x.png"), group=group, split=split)  # type: ignore[arg-type]


def test_shares_are_met_exactly() -> None:
    assert Counter(split_groups(NAMES).values()) == {"train": 120, "validation": 40, "test": 40}
    thirds = Counter(split_groups(NAMES[:10], fractions=(1, 1, 1)).values())
    assert sorted(thirds.values()) == [3, 3, 4]


def test_order_and_repeats_do_not_matter_and_the_seed_does() -> None:
    assert split_groups(NAMES) == split_groups([*reversed(NAMES), *NAMES])
    assert split_groups(NAMES, seed=1) != split_groups(NAMES)


def test_the_assignment_looks_random() -> None:
    hits = Counter(
        name for seed in range(300) for name, s in split_groups(NAMES[:10], seed=seed).items() if s == "test"
    )
    # Each of ten names is in the test fifth in 60 of 300 draws on average, standard deviation 7.
    assert all(30 < hits[name] < 90 for name in NAMES[:10])


def test_the_same_seed_gives_the_same_split_on_every_machine() -> None:
    assert split_groups("abcdefghij", seed=7) == split_groups("jihgfedcba", seed=7)
    assert [g for g, s in split_groups("abcde").items() if s == "test"] == ["a"]


@pytest.mark.parametrize("fractions", [(0, 0, 0), (1, -0.1, 0.1), (float("nan"), 1, 1), (float("inf"), 1, 1)])
def test_impossible_shares_are_refused(fractions: tuple[float, float, float]) -> None:
    with pytest.raises(DataError, match="give three numbers from 0"):
        split_groups(NAMES, fractions=fractions)


def test_too_few_groups_are_refused_unless_the_share_is_zero() -> None:
    with pytest.raises(DataError, match=r"split '\w+': 2 group\(s\) leave it none"):
        split_groups(["a", "b"])
    assert Counter(split_groups(["a", "b"], fractions=(0.5, 0, 0.5)).values()) == {"train": 1, "test": 1}


def test_samples_get_the_split_of_their_group_or_of_themselves() -> None:
    samples = [sample("1", "g"), sample("2", "g"), sample("3")]
    assert [group_of(s) for s in samples] == ["g", "g", "3"]
    result = list(with_splits(samples, {"g": "test", "3": "train"}))
    assert [s.split for s in result] == ["test", "test", "train"]
    with pytest.raises(DataError, match=r"sample '1': its group 'g' has no split"):
        list(with_splits(samples, {"3": "train"}))


def test_leaks_are_found_and_named() -> None:
    clean = [sample("1", "g", "train"), sample("2", "g", "train"), sample("3", "h", "test"), sample("4", "g")]
    assert find_leaks(clean) == {}
    check_leaks(clean)
    leaky = [*clean, sample("5", "g", "test"), sample("6", "h", "validation")]
    assert find_leaks(leaky) == {"g": ("train", "test"), "h": ("validation", "test")}
    with pytest.raises(DataError, match=r"group 'g' \(and 1 more\): is in train and test; keep each group in one"):
        check_leaks(leaky)


def test_grouped_splits_never_leak() -> None:
    samples = [sample(f"{g}-{n}", g) for g in NAMES for n in range(3)]
    assert find_leaks(with_splits(samples, split_groups(NAMES, seed=3))) == {}
