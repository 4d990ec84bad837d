"""What a check of a manifest found."""

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ("KINDS", "SHOWN_PER_KIND", "CheckReport", "Problem")

KINDS = ("line", "missing", "unreadable", "region", "repeated", "duplicate", "leak", "count", "record")
"""line: not a sample. missing, unreadable: an image file. region: a box that passes the edge of its image. repeated:
the same question about the same file twice. duplicate: the same bytes in two groups. leak: a group or an image in two
splits. count: other than the release's. record: the manifest is not the one its record describes."""

SHOWN_PER_KIND = 20


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong; `line` is where in the manifest, None for the whole of it."""

    kind: str
    line: int | None
    message: str


@dataclass(slots=True)
class CheckReport:
    """What a check found; clean when `counts` is empty."""

    manifest: str
    sha256: str
    dataset: str | None
    decoded: bool
    lines: int = 0
    images: int = 0
    """Distinct image files, references among them."""
    groups: int = 0
    splits: Counter[str] = field(default_factory=Counter)
    tasks: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    """Number of problems by kind."""
    problems: list[Problem] = field(default_factory=list)
    """The first 20 of each kind."""
    notes: Counter[str] = field(default_factory=Counter)
    """What is worth knowing and no fault, with its number."""

    @property
    def clean(self) -> bool:
        """Whether there is no problem."""
        return not self.counts

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON's types."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "problems"}
        problems = [{"kind": p.kind, "line": p.line, "message": p.message} for p in self.problems]
        return {"clean": self.clean, **plain, "problems": problems}

    def add(self, kind: str, line: int | None, message: str) -> None:
        """Count a problem, and keep it while there are few of its kind."""
        self.counts[kind] += 1
        if self.counts[kind] <= SHOWN_PER_KIND:
            self.problems.append(Problem(kind, line, message))
