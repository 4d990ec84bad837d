"""A person's ratings as `agentic-iqa rate` keeps them, and the samples of a manifest that they make.

A line is one answer: a score, a preference between two pictures, or an option. Of a picture, a rater and a first or
second showing the last line counts. A last line without its end, which a kill leaves, does not.
"""

import json
import logging
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from data.votes import scores_of_votes
from program.common.errors import DataError, one_line

logger = logging.getLogger(__name__)

NAME = "ratings.jsonl"
"""Of the file in a folder of ratings."""
_MARKS = frozenset({"id", "image", "sha256", "rater", "at", "repeat"})
"""Keys that every line has, and no line of another manifest."""
TWICE = "given_twice"
"""In a sample's metadata, the scores of a rater who saw it again, where no other did."""
_LEAST_OF_SPLIT, _LEAST_DIVIDED = 8, 100
"""Groups of validation and of test, and labels in all, from which the drawn splits say more than folds: with fewer
labels compiling divides them itself."""
_SHARE = {"left": 1.0, "equal": 0.5, "right": 0.0}

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Shown(BaseModel):
    """A picture that was shown."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1)
    image: str = Field(min_length=1)
    """Its path, seen from the folder of the ratings."""
    sha256: Sha256
    group: str | None = None


class RatingLine(Shown):
    """One answer; with neither `mos`, `preferred` nor `answer` the rater was unsure or took an answer back."""

    mos: Annotated[float, Field(ge=1, le=5)] | None = None
    unsure: bool = False
    rater: str
    at: AwareDatetime
    repeat: bool
    """Whether the rater saw it a second time."""
    split: Literal["train", "validation", "test"] | None = None
    other: Shown | None = None
    """The picture on the right, where two were compared."""
    preferred: Literal["left", "right", "equal"] | None = None
    query: str | None = None
    options: dict[str, str] | None = None
    regions: dict[str, tuple[float, float, float, float]] | None = None
    answer: str | None = None

    @property
    def value(self) -> float | str | None:
        """What was answered; None where nothing was."""
        return next((each for each in (self.mos, self.preferred, self.answer) if each is not None), None)

    @property
    def subject(self) -> tuple[str, ...]:
        """What was rated: the contents of the pictures, and the question."""
        options = json.dumps(self.options, sort_keys=True)
        return self.sha256, self.other.sha256 if self.other else "", self.query or "", options

    @property
    def kind(self) -> Literal["score", "pair", "question"]:
        """What kind of answer it is."""
        if self.other is not None:
            return "pair"
        return "question" if self.options else "score"


def is_rating(row: Any) -> bool:
    """Tell whether a row of a table is a line of ratings."""
    return isinstance(row, dict) and row.keys() >= _MARKS


def read_ratings(path: Path) -> list[RatingLine]:
    """Return a file's lines in order. A last line without its end is left out, and that is logged.

    Raises DataError for a line that is no rating, and OSError.
    """
    *lines, torn = path.read_bytes().split(b"\n")
    if torn:
        logger.warning("%s: its last line is not whole and is left out", path)
    return [_line(line, f"ratings {str(path)!r} line {number}") for number, line in enumerate(lines, 1) if line.strip()]


def _line(text: bytes, where: str) -> RatingLine:
    try:
        return RatingLine.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        fault = f'"{place}": {first["msg"]}' if place else first["msg"]
        raise DataError(f"{where}: {one_line(ValueError(fault))[:160]}; correct or remove the line") from error


def last_answers(lines: Iterable[RatingLine]) -> dict[tuple[tuple[str, ...], str, bool], RatingLine]:
    """Return the lines that count, by what was rated, by whom, and whether for a second time."""
    return {(line.subject, line.rater, line.repeat): line for line in lines}


def both_times(lines: Iterable[RatingLine]) -> list[tuple[RatingLine, RatingLine]]:
    """Return what raters answered both times that they saw something, as pairs of the first and the second."""
    answers = {key: line for key, line in last_answers(lines).items() if line.value is not None}
    seconds = ((key, line) for key, line in answers.items() if line.repeat)
    return [(answers[*key[:2], False], line) for key, line in seconds if (*key[:2], False) in answers]


def manifest_rows(lines: Sequence[RatingLine]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a manifest: scores, preferences and questions by what was rated.

    A rater's two answers are averaged, then those of the raters; of options the most frequent answer counts, where
    there is one. Splits are stated where they are large enough to choose and to test by.
    """
    by_subject: defaultdict[tuple[str, ...], list[RatingLine]] = defaultdict(list)
    newest = {line.id: line.sha256 for line in lines}
    for line in last_answers(lines).values():
        is_of_now = newest[line.id] == line.sha256  # a picture that was changed is another one
        if line.value is not None and is_of_now:
            by_subject[line.subject].append(line)
    members = list(by_subject.values())
    rows = [_scored(each) for each in members if each[0].kind == "score"]
    rows += filter(None, (_answered(each) for each in members if each[0].kind == "question"))
    rows += _compared([each for each in members if each[0].kind == "pair"])
    if not _are_divided(rows):
        rows = [{key: value for key, value in row.items() if key != "split"} for row in rows]
    yield from rows


def _are_divided(rows: Sequence[Mapping[str, Any]]) -> bool:
    groups: defaultdict[str | None, set[str]] = defaultdict(set)
    for row in rows:
        groups[row.get("split")].add(str(row.get("group") or row["image"]))
    return len(rows) >= _LEAST_DIVIDED and min(len(groups["validation"]), len(groups["test"])) >= _LEAST_OF_SPLIT


def _of_line(line: RatingLine) -> dict[str, Any]:
    stated = {name: getattr(line, name) for name in ("id", "image", "group", "split")}
    return {name: value for name, value in stated.items() if value is not None} | {"metadata": {"labels": "person"}}


def _by_rater(lines: Iterable[RatingLine], value: Mapping[str, float] | None = None) -> list[float]:
    """Return the mean of each rater's answers, as numbers by `value` where they are words."""
    answers: defaultdict[str, list[float]] = defaultdict(list)
    for line in lines:
        answers[line.rater].append(value[str(line.value)] if value else float(line.value or 0))
    return [statistics.fmean(each) for each in answers.values()]


def _scored(lines: Sequence[RatingLine]) -> dict[str, Any]:
    scores = _by_rater(lines)
    row = _of_line(lines[0]) | {"mos": statistics.fmean(scores)}
    if len(scores) > 1:
        row["mos_std"] = statistics.stdev(scores)
    elif len(lines) > 1:
        row["metadata"][TWICE] = [line.mos for line in lines]
    return row


def _answered(lines: Sequence[RatingLine]) -> dict[str, Any] | None:
    answers = statistics.multimode(str(line.answer) for line in lines)
    if len(answers) > 1:
        return None
    asked = {name: getattr(lines[0], name) for name in ("query", "options", "regions") if getattr(lines[0], name)}
    return _of_line(lines[0]) | asked | {"answer": answers[0]}


def _compared(pairs: Sequence[Sequence[RatingLine]]) -> Iterator[dict[str, Any]]:
    """Yield the pictures of pairs with their votes, and scores from the votes inside their split."""
    pictures: dict[str, Shown] = {}
    split_of: dict[str, str | None] = {}
    won: defaultdict[str | None, defaultdict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for lines in pairs:
        left, right = lines[0], lines[0].other
        if right is None:
            continue
        ends = [pictures.setdefault(each.sha256, each).id for each in (left, right)]
        split_of |= dict.fromkeys(ends, left.split)
        for share in _by_rater(lines, _SHARE):
            for (one, other), votes in ((ends, share), (ends[::-1], 1 - share)):
                of_one = won[left.split][one]
                of_one[other] = of_one.get(other, 0.0) + votes
    scores: dict[str, float] = {}
    for each in won.values():
        scores |= scores_of_votes(each)
    for picture in pictures.values():
        given = {other: n for other, n in won[split_of[picture.id]][picture.id].items() if n}
        facts = {"id": picture.id, "image": picture.image, "group": picture.group, "split": split_of[picture.id]}
        stated = {name: value for name, value in facts.items() if value is not None}
        yield stated | {
            "mos": scores[picture.id],
            "preferred_over": given,
            "metadata": {"labels": "person"},
        }
