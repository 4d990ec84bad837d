"""Splits by group: shares, strata of score, determinism, leaks."""

import random
import statistics
from collections import Counter
from pathlib import Path

import pytest

from data.manifest import Sample
from data.splits import check_contents, check_leaks, group_of, plan_splits
from program.common.errors import DataError


def sample(identity: str, group: str | None = None, split: str | None = None, mos: float | None = None) -> Sample:
    image = Path(f"/{identity}.png")
    return Sample(id=identity, image=image, group=group, split=split, mos=mos)  # type: ignore[arg-type]


PHOTOS = [sample(f"photo-{n}", f"photo-{n}") for n in range(200)]
SCORED = [sample(f"photo-{n}", f"photo-{n}", mos=random.Random(n).uniform(1, 5)) for n in range(200)]


def assigned(samples: list[Sample], **how: object) -> dict[str, str]:
    plan = plan_splits(samples, **how)  # type: ignore[arg-type]
    return {group_of(s): plan.splits[group_of(s)] for s in samples}


@pytest.mark.parametrize("samples", [PHOTOS, SCORED], ids=["unscored", "scored"])
def test_shares_are_met_exactly(samples: list[Sample]) -> None:
    assert Counter(assigned(samples).values()) == {"train": 120, "validation": 40, "test": 40}
    assert sorted(Counter(assigned(samples[:10], fractions=(1, 1, 1)).values()).values()) == [3, 3, 4]
    assert Counter(assigned(samples, fractions=(0.8, 0, 0.2)).values()) == {"train": 160, "test": 40}


def test_order_and_repeats_do_not_matter_and_the_seed_does() -> None:
    again = [*reversed(SCORED), *(s.model_copy(update={"id": f"{s.id}-b", "group": s.id}) for s in SCORED)]
    assert assigned(SCORED).items() <= assigned(again).items()
    assert plan_splits(SCORED).sha256 == plan_splits(again).sha256
    assert assigned(SCORED, seed=1) != assigned(SCORED)
    assert plan_splits(SCORED, seed=1).sha256 != plan_splits(SCORED).sha256


def test_every_split_spans_the_scores() -> None:
    splits = assigned(SCORED)
    scores = {split: [s.mos for s in SCORED if splits[s.id] == split] for split in ("train", "validation", "test")}
    means = [statistics.mean(values) for values in scores.values()]
    spreads = [statistics.stdev(values) for values in scores.values()]
    # Forty drawn at random from a uniform 1..5 would have means with a standard deviation of 0.18.
    assert max(means) - min(means) < 0.05
    assert max(spreads) - min(spreads) < 0.05


def test_the_score_counts_in_its_own_direction_and_scale() -> None:
    turned = [s.model_copy(update={"mos": 5 - s.mos, "mos_range": (0, 4), "higher_is_better": False}) for s in SCORED]
    assert assigned(turned) == assigned(SCORED)


def test_the_assignment_looks_random() -> None:
    hits = Counter(
        name for seed in range(300) for name, split in assigned(PHOTOS[:10], seed=seed).items() if split == "test"
    )
    # Each of ten names is in the test fifth in 60 of 300 draws on average, standard deviation 7.
    assert [s.id for s in PHOTOS[:10] if 30 < hits[s.id] < 90] == [s.id for s in PHOTOS][:10]
    assert len(hits) == 10


def test_the_same_seed_gives_the_same_split_on_every_machine() -> None:
    letters = [sample(letter, letter) for letter in "abcdefghij"]
    assert assigned(letters, seed=7) == assigned(letters[::-1], seed=7)
    assert [name for name, split in assigned(letters, seed=7).items() if split == "test"] == ["a", "d"]
    assert plan_splits(letters, seed=7).sha256[:12] == "972811e2ac46"


@pytest.mark.parametrize("fractions", [(0, 0, 0), (1, -0.1, 0.1), (float("nan"), 1, 1), (float("inf"), 1, 1)])
def test_impossible_shares_are_refused(fractions: tuple[float, float, float]) -> None:
    with pytest.raises(DataError, match="give three numbers from 0"):
        plan_splits(PHOTOS, fractions=fractions)


def test_too_few_groups_are_refused_unless_the_share_is_zero() -> None:
    with pytest.raises(DataError, match=r"split '\w+': 2 group\(s\) leave it none"):
        plan_splits(PHOTOS[:2])
    assert sorted(assigned(PHOTOS[:2], fractions=(0.5, 0, 0.5)).values()) == ["test", "train"]
    with pytest.raises(DataError, match=r"0 group\(s\)"):
        plan_splits([])


def test_samples_get_the_split_of_their_group_or_of_their_image() -> None:
    samples = [sample("1", "g"), sample("2", "g"), sample("3"), sample("4"), sample("5"), sample("6")]
    assert [group_of(s) for s in samples[:3]] == ["g", "g", "/3.png"]
    assert group_of(samples[3].model_copy(update={"id": "another question", "image": Path("/3.png")})) == "/3.png"
    assert group_of(samples[3].model_copy(update={"reference": Path("/original.png")})) == "/original.png"
    plan = plan_splits(samples)
    result = list(plan.apply(samples))
    assert [s.split for s in result] == [plan.splits[group_of(s)] for s in samples]
    assert result[0].split == result[1].split


def test_leaks_are_found_and_named() -> None:
    clean = [sample("1", "g", "train"), sample("2", "g", "train"), sample("3", "h", "test"), sample("4", "g")]
    check_leaks(clean)
    with pytest.raises(DataError, match=r"group 'h': is in validation and test; keep each group in one"):
        check_leaks([*clean, sample("5", "h", "validation")])


def test_grouped_splits_never_leak() -> None:
    samples = [sample(f"{s.id}-{n}", s.id, mos=s.mos) for s in SCORED for n in range(3)]
    check_leaks(plan_splits(samples, seed=3).apply(samples))


def test_the_same_content_in_two_splits_is_refused_whatever_its_name(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.png" for name in ("a", "copy", "other", "absent")}
    for name, content in (("a", b"one"), ("copy", b"one"), ("other", b"two")):
        files[name].write_bytes(content)

    def line(name: str, split: str | None, **more: Path) -> Sample:
        return sample(f"{name}-{split}", f"{name}-{split}", split).model_copy(update={"image": files[name], **more})

    clean = [line("a", "train"), line("copy", "train"), line("other", "test"), line("absent", "test")]
    check_contents([*clean, line("a", None)])
    for leaking, named in (
        (line("copy", "test"), "copy"),
        (line("a", "test"), "a"),
        (line("other", "test", reference=files["a"]), "a"),
    ):
        with pytest.raises(DataError, match=rf"image '.*/{named}.png': is in train and test \(by content"):
            check_contents([clean[0], leaking])
