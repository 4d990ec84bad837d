"""Second opinions on an evaluation's worst misses: who is right, and what that changes among a manifest's labels."""

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from data.manifest import Sample, fault_of
from program.common.errors import DataError
from program.common.files import Place, check_plain, open_file, path_mend

MISSES = "misses.jsonl"
"""Of the file in a report's folder."""
SECOND_OPINION = "second opinion"
"""What `metadata["labels"]` says of a score that was given in sight of people's and the program's."""

Who: TypeAlias = Literal["people", "program", "neither"]
Stars: TypeAlias = Annotated[float, Field(ge=1, le=5, allow_inf_nan=False)]


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    """The sample's in its manifest."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """Of its image's bytes."""
    run_id: Annotated[str, Field(pattern=r"^[\w-]{1,64}$")] | None = None
    """The evaluation's run in MLflow; None where there is none."""


class Miss(_Line):
    """One of the worst misses, as an evaluation leaves it in `misses.jsonl`."""

    image: str
    """Absolute path or URI."""
    query: str | None = None
    options: dict[str, str] | None = None
    judge: str = "people"
    """Whose the label is, in words."""
    people: float | str
    """The label: a score on 1..5, or an option's letter; likewise the program's answer."""
    program: float | str
    low: float | None = None
    high: float | None = None
    """Where the program says that 95 % of such scores lie."""
    reason: str = ""


class Opinion(_Line):
    """A line of `review.jsonl`, which only grows: the last one of a sample and rater counts."""

    who: Who
    """Whose answer is right."""
    mos: Stars | None = None
    """The rater's own score, on 1..5, given in sight of both."""
    rater: Annotated[str, Field(max_length=80)]
    at: str
    """When, in UTC as ISO 8601."""


L = TypeVar("L", bound=_Line)


def read_lines(path: Path, kind: type[L]) -> list[L]:
    """Return a file's whole lines; half a one at its end, as a kill leaves, is passed over.

    Raises DataError where there is no such file, and for a line that is none of this kind.
    """
    check_plain(path, f"file {str(path)!r}")
    try:
        whole = path.read_bytes().rpartition(b"\n")[0]
    except OSError as error:
        raise DataError(f"file {str(path)!r}: cannot be read ({error.strerror}); {path_mend(path)}") from error
    lines = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            lines.append(kind.model_validate_json(line))
        except ValidationError as error:
            raise DataError(f"file {str(path)!r} line {number}: {fault_of(error)}; mend or remove the line") from error
    return lines


def last_opinions(opinions: Iterable[Opinion]) -> list[Opinion]:
    """Return the opinion that counts of each sample and rater."""
    return list({(each.id, each.rater): each for each in opinions}.values())


def sha256_of(place: Place) -> str | None:
    """Return the SHA-256 of a file's bytes, in hex; None where it cannot be read."""
    try:
        with open_file(place) as file:
            digest = hashlib.sha256()
            while part := file.read(2**20):
                digest.update(part)
            return digest.hexdigest()
    except OSError:
        return None


@dataclass(frozen=True)
class Review:
    """What second opinions change among a manifest's labels."""

    labels: Mapping[str, Sample | None]
    """By id, the samples with their new scores; None for a label that is left out."""
    foreign: int
    """How many samples with an opinion the manifest does not have, or only with another image."""

    @classmethod
    def of(cls, opinions: Iterable[Opinion], samples: Iterable[Sample]) -> Self:
        """Weigh opinions on samples; each holds for a sample of its id whose image has its bytes."""
        raters: dict[str, list[Opinion]] = {}
        for opinion in last_opinions(opinions):
            raters.setdefault(opinion.id, []).append(opinion)
        labels: dict[str, Sample | None] = {}
        foreign = len(raters)
        for sample in samples:
            given = raters.get(sample.id, [])
            sha256 = sha256_of(sample.image) if given else None
            own = [opinion for opinion in given if opinion.sha256 == sha256]
            foreign -= bool(own)
            weighed = _weighed(sample, own)
            if weighed is not sample:
                labels[sample.id] = weighed
        return cls(labels, foreign)

    def applied(self, samples: Iterable[Sample]) -> list[Sample]:
        """Return samples with the labels that opinions leave them, in their order."""
        changed = (self.labels.get(sample.id, sample) for sample in samples)
        return [sample for sample in changed if sample is not None]

    def text(self, learned: Collection[str]) -> str:
        """Say in one line what became of the opinions; `learned` are the ids of what teaches and chooses."""
        used = self.labels.keys() & set(learned)
        left_out = sum(self.labels[name] is None for name in used)
        parts = [f"{len(used) - left_out} labels replaced, {left_out} left out"]
        if tested := len(self.labels) - len(used):
            parts.append(f"{tested} in the test stay people's: who has seen a score must not judge scores")
        if self.foreign:
            parts.append(f"{self.foreign} on pictures that this data does not have")
        return f"second opinions: {'; '.join(parts)}"


def _weighed(sample: Sample, opinions: Sequence[Opinion]) -> Sample | None:
    """Return a sample with the label that raters give it, the same one where it stays, or None where it is wrong.

    Raters' own scores are averaged, with people's score for each who finds that right. Where nobody has a score or
    finds people right, the label is left out: the program's own answer teaches nothing.
    """
    backed = sum(opinion.who == "people" for opinion in opinions)
    scores = [opinion.mos for opinion in opinions if opinion.who != "people" and opinion.mos is not None]
    if backed == len(opinions):
        return sample
    if not scores or sample.quality is None:
        return sample if backed else None
    mean = (math.fsum(scores) + backed * sample.quality) / (len(scores) + backed)
    metadata = {**sample.metadata, "labels": SECOND_OPINION}
    new = {"mos": mean, "mos_std": None, "mos_range": (1.0, 5.0), "higher_is_better": True, "metadata": metadata}
    return sample.model_copy(update=new)
