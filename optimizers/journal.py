"""The log of a compile and its best candidate so far: whatever ends the process, both are in the program's folder.

`run.json` says what is being compiled, `candidates.jsonl` gets a line as each candidate is scored, `program.json` and
`images/` are the best one so far. A resumed compile reads the scores of the candidates it meets again from the log;
answers of paid models come from the LM cache. No state of an optimizer is stored, so none is loaded.
"""

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from program.agent import AgenticIQA
from program.errors import InputError
from program.saving import save

__all__ = ("LOGS", "Journal", "run_key")

LOGS = ("run.json", "candidates.jsonl")
"""Files of a program's folder that outlive its replacement by a better candidate."""


def run_key(parts: Mapping[str, Any]) -> dict[str, str]:
    """Return a short hash of each part that a compile's candidates depend on (data, program, objective, seed, ...)."""
    return {name: hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
            for name, value in parts.items()}  # fmt: skip


class Journal:
    """Writes the log of one compile into its folder; thread-safe where the caller calls from one thread at a time."""

    def __init__(self, folder: Path, key: Mapping[str, str], program: AgenticIQA, *, resume: bool = False) -> None:
        """Begin, or go on with the same compile. The folder holds the uncompiled program until something is better.

        Where one goes on, it holds the best candidate of before until then.

        Raises InputError where there is nothing to resume, or where it was begun on something else.
        """
        self.folder, self._key = folder, dict(key)
        self.known: dict[str, float] = {}
        """Search scores by candidate digest, of the compile that is resumed."""
        self.curve: list[tuple[str, float, float]] = []
        """Candidate, its score and the best score so far, in the order they were scored."""
        self._started = time.perf_counter()
        self._held = float("-inf")
        """Search score of the program that the folder holds; that of a finished compile gives way to the next one."""
        if resume:
            self._read()
        if self._held == float("-inf"):
            save(program, folder, record={"chosen": "uncompiled", "finished": False}, keep=LOGS if resume else ())
        (folder / "run.json").write_text(json.dumps({"key": self._key, "finished": False}, indent=1) + "\n", "utf-8")

    def scored(self, name: str, digest: str, score: float, program: AgenticIQA, **facts: Any) -> None:
        """Log a candidate's score (higher is better); the best one so far becomes the folder's program."""
        best = max((b for _, _, b in self.curve), default=float("-inf"))
        self.curve.append((name, score, max(best, score)))
        if score > max(best, self._held):
            record = {"chosen": name, "search_score": score, "finished": False}
            save(program, self.folder, record=record, keep=LOGS)
        # After the program, so that whatever ends the process in between, the folder holds the best that was logged.
        self.note("candidate", name=name, digest=digest, score=round(score, 6), best=score > best, **facts)

    def note(self, event: str, **facts: Any) -> None:
        """Append one line to candidates.jsonl."""
        line = {"event": event, "seconds": round(time.perf_counter() - self._started, 2), **facts}
        with (self.folder / "candidates.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(line, ensure_ascii=False) + "\n")

    def finished(self, program: AgenticIQA, record: Mapping[str, Any], files: Mapping[str, str]) -> None:
        """Save the chosen program with its record and further files, and mark the compile as done."""
        save(program, self.folder, record={**record, "finished": True}, keep=LOGS, files=files)
        (self.folder / "run.json").write_text(
            json.dumps({"key": self._key, "finished": True}, indent=1) + "\n", "utf-8"
        )

    def _read(self) -> None:
        name = repr(str(self.folder))
        try:
            begun = json.loads((self.folder / "run.json").read_text("utf-8"))["key"]
            lines = (self.folder / "candidates.jsonl").read_text("utf-8").splitlines()
        except FileNotFoundError:
            begun, lines = None, []
            if not (self.folder / "run.json").is_file():
                raise InputError(f"folder {name}: no compile was begun there; start it without --resume") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"folder {name}: its log cannot be read ({error}); start without --resume") from error
        if begun is None:
            begun = json.loads((self.folder / "run.json").read_text("utf-8"))["key"]
        changed = [part for part in {**begun, **self._key} if begun.get(part) != self._key.get(part)]
        if changed:
            raise InputError(
                f"folder {name}: that compile had another {', '.join(changed)}; "
                "start without --resume, or undo the change"
            )
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # the line that a kill cut short
            if entry.get("event") == "candidate":
                self.known[entry["digest"]] = float(entry["score"])
        try:
            record = json.loads((self.folder / "program.json").read_text("utf-8"))["record"]
            self._held = float("inf") if record.get("finished") else float(record.get("search_score", "-inf"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self._held = float("-inf")  # written anew
