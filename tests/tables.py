"""Tables and manifests for tests: written, and read again."""

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def as_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a file of JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table of comma-separated values."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
