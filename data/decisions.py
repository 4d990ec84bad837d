"""What a person decided in a gallery, and which of it is a label.

Stars are scores; keep, reject and best are pairs inside a group. What only left a shown suggestion standing is no
label: a program that learned from it would learn from itself.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import permutations
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from data.votes import scores_of_votes
from program.common.backends import Frozen
from program.common.errors import DataError, InputError, first_fault
from program.common.files import read_bounded

REJECTED, KEPT_STARS = -1, 3
"""The rating of a rejected picture, as XMP has it, and the stars from which a person's rating keeps
a picture: fewer decide nothing, for darktable gives one to all that it imports."""
DECISIONS, TABLE = "decisions.json", "gallery.jsonl"
"""In a gallery's folder."""
_SHOWN = {"best": 3, "keep": 2, "alternate": 1, "look": 1, "reject": 0}
"""The order in which a page shows pictures of a group."""


class Suggested(Frozen):
    """What the page suggested of a picture when a person decided."""

    verdict: Literal["keep", "alternate", "reject", "look"] | None = None
    stars: int | None = Field(default=None, ge=1, le=5)
    best: bool = False


class Decision(Frozen):
    """What a person decided of one picture: nothing without verdict, stars and best."""

    sha256: str | None = Field(pattern="^[0-9a-f]{64}$")
    """Of the picture that was decided on: another one of its name is another picture."""
    verdict: Literal["keep", "reject"] | None = None
    stars: int | None = Field(default=None, ge=0, le=5)
    """0 for none, whatever rating the file or a sidecar holds."""
    best: bool = False
    """Whether it is the best of its group."""
    decided_at: int | None = Field(default=None, ge=0)
    """Milliseconds since 1970: what a browser still holds may be newer or older."""
    suggested: Suggested | None = None
    """None of a page that did not keep what it showed."""

    @property
    def standing(self) -> str | None:
        """What it says of the picture's place in its group."""
        if self.verdict == "reject":
            return "reject"
        if self.best:
            return "best"
        return "keep" if self.verdict == "keep" or (self.stars or 0) >= KEPT_STARS else None

    @property
    def agrees(self) -> bool | None:
        """Whether it leaves all that was suggested; None where nothing was suggested or decided."""
        shown = self.suggested or Suggested()
        parts = [(self.verdict, None if shown.verdict == "look" else shown.verdict), (self.stars or None, shown.stars)]
        compared = [mine == theirs for mine, theirs in parts if mine and theirs]
        if self.best and self.suggested:
            compared.append(shown.best)
        return all(compared) if compared else None

    @property
    def is_own(self) -> bool:
        """Whether its rating is known to be another than what was suggested."""
        if self.suggested is None:
            return False
        if self.verdict == "reject":
            return self.suggested.verdict != "reject"
        return self.stars != self.suggested.stars

    def says_the_same(self, other: "Decision") -> bool:
        """Tell whether another decision differs in its time at most."""
        return self.model_copy(update={"decided_at": other.decided_at}) == other


class Decisions(Frozen):
    """All decisions, by the pictures' names in the table."""

    decisions: Literal["agentic-iqa"] = "agentic-iqa"
    version: Literal[1] = 1
    pictures: Mapping[str, Decision] = Field(default_factory=dict)

    def of(self, name: str, sha256: str | None) -> Decision | None:
        """Return what was decided of a picture; None of another picture of its name."""
        decision = self.pictures.get(name)
        if decision is None or sha256 is None or decision.sha256 != sha256:
            return None
        return decision

    def updated(self, newer: "Decisions", hashes: Mapping[str, str | None], now_ms: int) -> "Decisions":
        """Return these with newer ones in their places; what those do not name stays.

        `hashes` are of the pictures by their names: a decision on other bytes replaces none on
        these. Decisions without a time get `now_ms`.
        """
        pictures = dict(self.pictures)
        for name, decision in newer.pictures.items():
            before, sha256 = pictures.get(name), hashes.get(name)
            if before is not None and before.says_the_same(decision):
                continue
            if self.of(name, sha256) is not None and decision.sha256 != sha256:
                continue
            decided_at = decision.decided_at or now_ms
            if before is not None:  # a browser may still hold what was replaced
                decided_at = max(decided_at, (before.decided_at or 0) + 1)
            pictures[name] = decision.model_copy(update={"decided_at": decided_at})
        return Decisions(pictures=pictures)


_MOST_BYTES = 2**26
"""Of a file of decisions: some 400,000 pictures."""


def read_decisions(path: Path) -> Decisions:
    """Read a file that the page saved. Raises InputError for any other."""
    try:
        return Decisions.model_validate_json(read_bounded(path, _MOST_BYTES))
    except OSError as error:
        raise InputError(f"--decisions {str(path)!r}: cannot be read ({error.strerror}); check the path") from error
    except ValidationError as error:
        fault = first_fault(error, "the file")
        raise InputError(f"--decisions {str(path)!r}: is none of the page's files ({fault}); save it again") from error


def preferred(standing: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    """Yield the better and the worse name of each pair that a person ordered in one burst.

    `standing` holds "best", "keep", "reject" or, of a picture that nobody decided on, None.

    >>> list(preferred({"a": "keep", "b": None, "c": "reject"})), list(preferred({"a": "best", "b": None}))
    ([('a', 'c')], [('a', 'b')])
    """
    for better, worse in permutations(standing, 2):
        is_best = standing[better] == "best" != standing[worse]
        if is_best or (standing[better] == "keep" and standing[worse] == "reject"):
            yield better, worse


def scores_in_burst(won: Mapping[str, Mapping[str, float]], stars: Mapping[str, float]) -> dict[str, float]:
    """Return a score on 1..5 of each name of a burst that has a pair and no stars.

    Scores of the votes lie about the stars of the same burst; where it has none, about 3.

    >>> scores_in_burst({"a": {"b": 1}}, {"a": 4.0})
    {'b': 3.1254}
    """
    scores = scores_of_votes(won)
    shift = fmean([stars[name] - score for name, score in scores.items() if name in stars] or [0.0])
    return {name: round(min(max(score + shift, 1.0), 5.0), 4) for name, score in scores.items() if name not in stars}


class Shot(BaseModel):
    """What a gallery's table says of a picture, as far as it matters here."""

    file: str
    image: str | None = None
    sha256: str | None = None
    group: str | None = None
    verdict: Literal["keep", "alternate", "reject", "look"] | None = None
    user_rating: int | None = Field(default=None, ge=-1, le=5)
    user_rating_confirms: bool | None = None
    """Whether it only confirms what an earlier gallery suggested: no label."""


class DecidedRows(NamedTuple):
    """A file of decisions as rows of a manifest."""

    rows: list[dict[str, Any]]
    note: str
    """What of it are labels, and what is not, in one line."""


def decided_rows(path: Path, document: object, table_rows: Iterable[Mapping[str, Any]]) -> DecidedRows:
    """Return the decisions of a gallery, and the ratings that it found, as a manifest's rows.

    `table_rows` are those of the gallery's table. Raises DataError for what is no file of decisions, or no such table.
    """
    try:
        decisions = Decisions.model_validate(document)
        table = {shot.file: shot for shot in map(Shot.model_validate, table_rows)}
    except ValidationError as error:
        fault = first_fault(error, "the file")
        raise DataError(f"manifest {str(path)!r}: is none of the gallery's files ({fault}); save it again") from error
    made = {name: each for name, each in decisions.pictures.items() if each.verdict or each.stars or each.best}
    current = {name: each for name, each in made.items() if name in table and decisions.of(name, table[name].sha256)}
    said = {name: _said(shot, current.get(name)) for name, shot in table.items()}
    stars = {name: float(each.stars) for name, each in said.items() if each.stars}
    won = _won(said, table)
    scores = dict(stars)
    for group in won.values():
        scores |= scores_in_burst(group, stars)
    pairs = {name: losers for group in won.values() for name, losers in group.items()}
    rows = []
    for name in sorted({*current, *scores}):
        shot, decision = table[name], current.get(name)
        row: dict[str, Any] = {"id": name, "image": shot.image, "group": shot.group or name, "sha256": shot.sha256}
        if name in scores:
            row |= {"mos": scores[name], "preferred_over": pairs.get(name), "labels": "person"}
        elif decision is not None and decision.agrees:
            row |= {"mos": decision.stars or None, "labels": "suggestion"}
        rows.append(row)
    return DecidedRows(rows, _note(made, current, len(stars), sum(map(len, pairs.values()))))


class _Said(NamedTuple):
    """What a person said of a picture, as far as it is a label."""

    stars: int | None = None
    standing: str | None = None
    shown: int | None = None
    """The higher, the better it stood on the page; None where the person said it before."""
    is_known: bool = True
    """Whether it is known what the page showed."""


def _said(shot: Shot, decision: Decision | None) -> _Said:
    stored = 0 if shot.user_rating_confirms else shot.user_rating or 0
    if decision is None and shot.user_rating_confirms:
        return _Said(is_known=False)
    if decision is None:
        shown = None if stored else _SHOWN[shot.verdict or "look"]
        before = Decision(sha256=None, stars=max(stored, 0), verdict="reject" if stored == REJECTED else None)
        return _Said(before.stars, before.standing, shown)
    stars = stored if decision.stars is None else decision.stars
    if decision.verdict == "reject":
        stars = 0
    suggested = decision.suggested
    if suggested is None:
        return _Said(stars if decision.stars is None else None, is_known=False)
    if decision.stars and not decision.is_own:
        stars = 0
    return _Said(stars, decision.standing, _SHOWN["best" if suggested.best else suggested.verdict or "look"])


def _won(said: Mapping[str, _Said], table: Mapping[str, Shot]) -> dict[str, dict[str, dict[str, float]]]:
    """Return by group who is better than whom, without the pairs that the page showed in that order."""
    groups: defaultdict[str, dict[str, str | None]] = defaultdict(dict)
    for name, shot in table.items():
        if shot.group is not None and said[name].is_known:
            groups[shot.group][name] = said[name].standing
    won: dict[str, dict[str, dict[str, float]]] = {}
    for group, standing in groups.items():
        for better, worse in preferred(standing):
            high, low = said[better].shown, said[worse].shown
            if high is None or low is None or high <= low:
                won.setdefault(group, {}).setdefault(better, {})[worse] = 1.0
    return won


def _note(made: Mapping[str, Decision], current: Mapping[str, Decision], stars: int, pairs: int) -> str:
    agreed = [each.agrees for each in current.values() if each.agrees is not None]
    old = sum(each.suggested is None for each in current.values())
    parts = [
        f"{stars} scores and {pairs} pairs are labels, of {len(made)} decisions and the ratings in files",
        f"you agreed with {sum(agreed)} of {len(agreed)} suggestions, which makes no labels",
    ]
    if old:
        parts.append(f"{old} decisions of an older page do not say what it showed and are no labels")
    if gone := len(made) - len(current):
        parts.append(f"{gone} of pictures that changed or are gone are left out")
    return "; ".join(parts)
