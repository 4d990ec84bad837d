"""What a compile leaves in its folder as it goes, so that whatever ends it can be gone on from.

The program's folder holds what is being compiled (`run.json`), a line for each candidate that was scored
(`candidates.jsonl`) and the best one so far. A resumed compile reads the scores of candidates it meets again
from there; answers of paid models come from the LM cache. No state of an optimizer is stored.
"""

import json
import shutil
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import dspy

from optimizers.search import Candidate
from program.agent.loop import AgenticIQA
from program.agent.saving import save
from program.common.errors import InputError
from program.running.journal import LineLog

__all__ = ("CompileLog", "folder_lock")

_LOGS = ("run.json", "candidates.jsonl")
"""Files of a program's folder that outlive its replacement by a better candidate."""
_MEND = "give another --out"
_UNSCORED = float("-inf")


def folder_lock(folder: Path) -> LineLog:
    """Return the lock on a program's folder, to be removed in the end; InputError where another compile has it."""
    # It lies beside the folder, which every better candidate replaces.
    folder.parent.mkdir(parents=True, exist_ok=True)
    return LineLog(folder.with_name(f".{folder.name}.lock"), mend=_MEND, name=f"folder {str(folder)!r}")


class CompileLog:
    """Writes the log of one compile into its folder, which no other compile writes until `close`."""

    def __init__(self, folder: Path, key: Mapping[str, str], *, resume: bool = False) -> None:
        """Lock the folder and, to resume, read what is there; nothing is written before `begin`.

        Raises InputError where another compile writes it, or where no compile with this key can be resumed.
        """
        self.folder, self._key, self._resume = folder, dict(key), resume
        self.scores: dict[str, float] = {}
        """Search scores by candidate digest, of the compile that is resumed."""
        self.curve: list[tuple[str, float, float]] = []
        """Candidate, its score and the best score so far, in the order they were scored."""
        self._lm = dspy.settings.lm
        """What plays every role, if anything: an optimizer scores its candidates with another model set there."""
        self._started = time.perf_counter()
        self._saved_score = _UNSCORED
        """Search score of the program in the folder; a finished compile's, which nothing beats, is infinite."""
        self._lock = folder_lock(folder)
        try:
            if resume:
                self._read()
        except BaseException:
            self.close()
            raise

    def begin(self, program: AgenticIQA) -> None:
        """Save the uncompiled program, unless a resumed compile left a better one, until something is better."""
        if self._saved_score == _UNSCORED:
            run = {"run.json": json.dumps({"key": self._key}, indent=1) + "\n"}
            record = {"chosen": "uncompiled", "finished": False}
            save(program, self.folder, record=record, keep=_LOGS if self._resume else (), files=run)

    def withdraw(self) -> None:
        """Leave no folder behind of a compile whose data turned out to be unusable."""
        if not self._resume:
            shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Let another compile have the folder."""
        self._lock.remove()

    def scored(self, candidate: Candidate) -> None:
        """Log a candidate with its search score (higher is better); the best so far becomes the folder's program."""
        score = float(candidate.search_score or 0.0)
        best = max((b for _, _, b in self.curve), default=_UNSCORED)
        self.curve.append((candidate.name, score, max(best, score)))
        if score > max(best, self._saved_score):
            record = {"chosen": candidate.name, "search_score": score, "finished": False}
            with dspy.context(lm=self._lm):
                save(candidate.program, self.folder, record=record, keep=_LOGS)
        # After the program, so that whatever ends the process in between, the folder holds the best that was logged.
        line = {
            "event": "candidate", "seconds": round(time.perf_counter() - self._started, 2), "name": candidate.name,
            "digest": candidate.digest, "score": round(score, 6), "best": score > best,
        }  # fmt: skip
        with closing(self._lines()) as log:
            log.append(json.dumps(line, ensure_ascii=False))

    def finished(self, program: AgenticIQA, record: Mapping[str, Any], files: Mapping[str, str] | None = None) -> None:
        """Save the chosen program with its record and further files, and mark the compile as done."""
        save(program, self.folder, record={**record, "finished": True}, keep=_LOGS, files=files)

    def _lines(self) -> LineLog:
        return LineLog(self.folder / "candidates.jsonl", mend=_MEND)

    def _read(self) -> None:
        name = repr(str(self.folder))
        try:
            begun = dict(json.loads((self.folder / "run.json").read_text("utf-8"))["key"])
            changed = [part for part in {**begun, **self._key} if begun.get(part) != self._key.get(part)]
            if changed:
                raise InputError(
                    f"folder {name}: that compile had another {', '.join(changed)}; "
                    "start without --resume, or undo the change"
                )
            with closing(self._lines()) as log:
                entries = [json.loads(line) for line in log.lines()]
            self.scores = {each["digest"]: float(each["score"]) for each in entries if each["event"] == "candidate"}
        except FileNotFoundError:
            raise InputError(f"folder {name}: no compile was begun there; start it without --resume") from None
        except InputError:
            raise
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"folder {name}: its log cannot be read ({error}); start without --resume") from error
        with suppress(OSError, ValueError, KeyError):  # it is written anew
            record = json.loads((self.folder / "program.json").read_text("utf-8"))["record"]
            self._saved_score = float("inf") if record["finished"] else float(record.get("search_score", "-inf"))
