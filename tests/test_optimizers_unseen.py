"""What scores a candidate, or fits its fusion, is no image and no photograph that its demos show."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy
import numpy as np
import pytest
from PIL import Image

from data.manifest import Sample
from optimizers.examples import Evidence, ExampleSet, Gathering
from optimizers.objectives import Objective
from optimizers.recipes import recipe_named
from optimizers.search import Beliefs, Candidate, SampleBelief, Search
from optimizers.student import EvidenceReplay
from program.agent.loop import AgenticIQA
from program.common.settings import load_settings
from program.images.store import IMAGES


@dataclass
class Taught:
    """A program on a scripted model, with samples of `per_group` images a photograph and their examples."""

    program: AgenticIQA
    samples: dict[str, list[Sample]]
    examples: dict[str, ExampleSet]

    def shown(self, program: AgenticIQA) -> set[str]:
        """Return the ids of the samples whose image is in a demo of a program."""
        urls = {demo["image"].url for p in program.predictors() for demo in p.demos if "image" in demo}
        return {s.id for members in self.samples.values() for s in members if IMAGES.add(s.image).url in urls}

    def groups(self, ids: set[str]) -> set[str | None]:
        """Return the photographs of samples."""
        return {s.group for members in self.samples.values() for s in members if s.id in ids}

    def candidate(self, *demos: str) -> Candidate:
        """Return a candidate that is shown the demos of these samples."""
        program = self.program.deepcopy()
        labelled = self.examples["train"].demos["summarizer.score"]
        program.summarizer.score.demos = [each.demo for each in labelled if each.sample in demos]
        assert len(program.summarizer.score.demos) == len(demos)
        return Candidate("demos", program)

    def search(self, base: Candidate, **settings: Any) -> Search:
        """Return a search that starts at a candidate and teaches the score."""
        train, validation = self.examples["train"], self.examples["validation"]
        return Search(
            "taught", base, ("summarizer.score",), train, validation,
            load_settings().optimizers.usual.model_copy(update=settings), Objective(), 0, 2,
        )  # fmt: skip


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("images")
    for number in range(48):
        noise = np.random.default_rng(number).integers(0, 256, (32, 48, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{number}.png")
    return [folder / f"{number}.png" for number in range(48)]


@pytest.fixture(scope="module")
def gathered() -> dict[bool, dict[str, Evidence]]:
    """The evidence of every sample by the kind of program: it is the same however images are grouped."""
    return {}


@pytest.fixture
def taught(images: list[Path], service_program, gathered):
    """Teach on 36 samples with 12 for validation; returns a function of the number of images a photograph has."""

    def make(per_group: float, *, expert: bool = False) -> Taught:
        program, samples = AgenticIQA() if expert else service_program(), {"train": [], "validation": []}
        for number, image in enumerate(images):
            split, group = ("train" if number < 36 else "validation"), f"photograph {int(number / per_group)}"
            fields: dict[str, Any] = {"image": image, "mos": 1 + number % 4, "group": group}
            samples[split].append(Sample(id=f"s{number}", split=split, **fields))
        if expert not in gathered:
            gather = Gathering(program)
            gathered[expert] = {s.id: gather(s) for members in samples.values() for s in members}
        made = copy.deepcopy(gathered[expert])
        examples = {name: ExampleSet() for name in samples}
        for sample in (*samples["train"], *samples["validation"]):
            examples[sample.split].add(program, sample, made[sample.id])
        examples["train"].gathered.update(examples["validation"].gathered)
        return Taught(program, samples, examples)

    return make


def test_a_search_scores_candidates_on_validation_and_shows_them_training_samples(taught) -> None:
    known = taught(4)
    search = known.search(Candidate("uncompiled", known.program), demos=4, starts=3, search_samples=6)
    samples = {split: {sample.id for sample in members} for split, members in known.samples.items()}
    with dspy.context(callbacks=[search]):
        candidates = recipe_named("random-search").run(search)
    assert len({candidate.digest for candidate in candidates}) == len(candidates) > 1
    assert [each.search_score for each in candidates] == sorted((c.search_score for c in candidates), reverse=True)
    scored = {example.id for example in search.scored}
    assert len(scored) == 6
    assert scored <= samples["validation"]
    for candidate in candidates:
        assert len(known.shown(candidate.program)) == 4
        assert known.shown(candidate.program) <= samples["train"]


def test_a_fusion_is_fitted_on_photographs_that_no_demo_shows(taught, monkeypatch) -> None:
    known, judged = taught(4), {}
    answer = EvidenceReplay.__call__
    ids = {each.image.url: each.id for of_split in known.examples.values() for each in of_split.examples}

    def replay(self, **inputs):
        judged[ids[inputs["image"].url]] = known.shown(self.program)
        return answer(self, **inputs)

    monkeypatch.setattr(EvidenceReplay, "__call__", replay)
    demos = {"s0", "s1"}

    def fit(*demos):
        judged.clear()
        search = known.search(known.candidate(*demos))
        return recipe_named("fusion").run(search), search.note

    found, note = fit(*demos)
    assert [c.name for c in found] == ["demos+map", "demos+fusion"]
    assert all(known.shown(c.program) == demos for c in found)
    unshown = {s.id for s in known.samples["train"] if s.group not in known.groups(demos)}
    assert note == f"fusion: fitted on {len(unshown)} scores"
    assert set(judged) == unshown | {sample.id for sample in known.samples["validation"]}

    del known.examples["train"].examples[33:]
    found, note = fit("s0", "s1")
    assert (found, judged) == ([], {})
    assert note.startswith("fusion: not fitted: 29 scored training samples are of photographs that no demo shows")


def test_a_map_is_chosen_on_photographs_that_it_was_not_fitted_on(taught, monkeypatch) -> None:
    known = taught(1)
    step = dict(zip((s.id for s in known.samples["train"]), np.linspace(1, 5, 36), strict=True))
    line = dict(zip((s.id for s in known.samples["validation"]), np.linspace(1, 5, 12), strict=True))

    def beliefs(_search, _program, examples) -> Beliefs:
        tools = {e.id: (step | line)[e.id] for e in examples}
        # Taught in two steps, which a curve fits best; of other photographs a line is right.
        truth = {name: (1.5 + 0.5 * x if name in line else 2.0 + 2.0 * (x > 3)) for name, x in tools.items()}
        return Beliefs(
            SampleBelief(sample=name, tools=[x], levels=None, precisions=None, truth=truth[name])
            for name, x in tools.items()
        )

    monkeypatch.setattr("optimizers.recipes.fits.beliefs", beliefs)
    candidates = recipe_named("fusion").run(known.search(Candidate("uncompiled", known.program)))
    assert [c.program.summarizer.fusion.kind for c in candidates] == ["line", "line"]
