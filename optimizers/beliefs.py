"""What a program believes of training samples that none of its demos shows: what a fit to human scores starts from."""

import logging
from collections.abc import Sequence

import dspy
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from optimizers.demos import image_url
from optimizers.search import Search
from optimizers.student import Replayed
from program.agent.evidence import tool_precisions, tool_scores
from program.agent.loop import AgenticIQA
from program.agent.saving import program_sha256
from program.common.errors import InputError
from program.common.pool import in_order
from program.fusion import ScoreFusion
from program.lms.limits import BudgetSpent

__all__ = ("Belief", "Beliefs", "beliefs", "unseen")

logger = logging.getLogger(__name__)

Array = NDArray[np.float64]


class Belief(BaseModel):
    """What the Summarizer fused for one sample, and the people's score of it."""

    sample: str
    """The example's id."""
    tools: list[float]
    levels: dict[int, float] | None
    precisions: list[float] | None
    truth: float


class Beliefs(list[Belief]):
    """Of several samples."""

    @property
    def truth(self) -> Array:
        """The people's scores."""
        return np.array([belief.truth for belief in self])

    def fused(self, fusion: ScoreFusion) -> Array:
        """Return what a fusion makes of them."""
        return np.array([fusion.fuse_scores(b.tools, b.levels, b.precisions) for b in self])


def unseen(program: AgenticIQA, train: Sequence[dspy.Example]) -> list[tuple[AgenticIQA, list[dspy.Example]]]:
    """Return the program without the demos of a photograph, and the scored samples of that photograph, by photograph.

    Photographs that no demo shows go together, with all demos. Demos are left out, and so are the samples of a
    photograph that all demos of a predictor show: untaught, it believes otherwise.
    """
    groups: dict[str | None, str] = {example.image.url: example.group for example in train}
    in_demos = {image_url(demo) for predictor in program.predictors() for demo in predictor.demos}
    photographs = {groups[url] for url in in_demos if url in groups}
    unseen: dict[str | None, list[dspy.Example]] = {None: []}
    for example in train:
        if example.get("answer") is None and example.image.url not in in_demos:
            unseen.setdefault(example.group if example.group in photographs else None, []).append(example)
    judges = []
    for group, members in unseen.items():
        judge = program.deepcopy()
        for predictor in judge.predictors():
            predictor.demos = [d for d in predictor.demos if group is None or groups.get(image_url(d)) != group]
        still = zip(program.predictors(), judge.predictors(), strict=True)
        if members and all(bool(before.demos) == bool(after.demos) for before, after in still):
            judges.append((judge, members))
    return judges


def beliefs(search: Search, program: AgenticIQA, examples: Sequence[dspy.Example]) -> Beliefs:
    """Return what a program fuses for the examples, on the gathered evidence; one that fails is left out."""
    key = ["beliefs", program_sha256(program), examples]
    stored = search.store.get(*key)
    if stored is not None:
        return Beliefs(map(Belief.model_validate, stored))
    plain = program.deepcopy()
    plain.summarizer.fitted = None
    replayed = Replayed(plain, search.train.gathered)

    def ask(example: dspy.Example) -> Belief | None:
        search.advance()
        try:
            answer = replayed(**example.inputs())
        except BudgetSpent:
            raise
        except InputError as error:
            logger.warning("sample %r left out of the fit: %s", example.id, error)
            return None
        evidence = answer.state.executor_evidence
        if answer.quality_score is None or evidence is None:
            return None
        tools, precisions = tool_scores(evidence.quality_scores), tool_precisions(evidence)
        return Belief(
            sample=example.id,
            tools=tools,
            levels=answer.level_probabilities,
            precisions=precisions,
            truth=example.quality,
        )

    answers = in_order(ask, examples, workers=search.workers)
    given = Beliefs(belief for belief in answers if belief is not None)
    if len(given) == len(examples):
        search.store.put(*key, value=[belief.model_dump() for belief in given])
    return given
