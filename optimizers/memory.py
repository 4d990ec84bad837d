"""What earlier compiles found out, on disk: a repeat measures nothing again and asks nothing twice.

Only where the embedded expert plays every role. Its answers depend on nothing but what the keys hold: the project's own
code and fitted arrays, the libraries that compute, the settings, the tools with their parameters, the program, and each
sample with the content of its images. Models reached over the network have a cache of their answers instead. Nothing
that failed is kept, as a repeat may succeed.
"""

import functools
import hashlib
import json
import os
import platform
import threading
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import dspy

from data.manifest import Sample
from program.agent import AgenticIQA
from program.cache import PlainCache
from program.evaluation.evaluating import context_of
from program.evaluation.rows import Row, Rows
from program.lms.build import is_embedded
from program.resources import Role
from program.state import AssessmentState

__all__ = ("Asked", "Memory", "code_sha256")

Asked = list[tuple[str, dict[str, Any]]]
"""What a run was really asked: predictor and inputs, in order."""

_PACKAGES = ("program", "signatures", "optimizers", "data", "configs")
_COUNTING = {".csv", ".json", ".npz", ".py", ".yaml"}
_LIBRARIES = ("diskcache", "dspy-ai", "numpy", "piq", "pillow", "pydantic", "pyiqa", "scikit-image", "scikit-learn",
              "scipy", "torch", "torchvision")  # fmt: skip
_IMAGE = "__image__"


class Memory:
    """Evidence, rows and scores by everything they depend on. Thread-safe; remembers nothing without a folder.

    Floats come back bit for bit: they are kept as JSON, which holds the shortest digits that give the same number.
    """

    def __init__(self, folder: Path | None, base: Any = None) -> None:
        """Keep what is found out in `folder`; `base` is whatever all of it depends on."""
        self._cache = PlainCache(folder) if folder is not None else None
        self._base = _digest([code_sha256(), base]) if folder is not None else ""
        self._facts: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self.recalled = 0
        """Assessments and scores that were not worked out again."""

    @classmethod
    def of(cls, program: AgenticIQA) -> "Memory":
        """Return the memory of compiles that start at this program; an empty one for models other than the expert."""
        settings = program.resources.settings
        roles = cast("tuple[Role, ...]", ("planner", "executor", "summarizer"))
        if not settings.tools.cache or not all(is_embedded(program.resources.lm(role)) for role in roles):
            return cls(None)
        return cls(settings.cache_dir / "compiles", context_of(program))

    def evidence(self, sample: Sample) -> tuple[AssessmentState, Asked, int] | None:
        """Return what the uncompiled program ended with on a sample, what it was asked, and its calls; or None."""
        kept = self.get("evidence", sample)
        if kept is None:
            return None
        asked = [(name, {field: _shown(value) for field, value in inputs.items()}) for name, inputs in kept["asked"]]
        return AssessmentState.model_validate_json(kept["state"]), asked, kept["lm_calls"]

    def keep_evidence(self, sample: Sample, state: AssessmentState, asked: Asked, lm_calls: int) -> None:
        """Keep a run of the uncompiled program, unless a tool or a step failed in it."""
        evidence, result = state.executor_evidence, state.summarizer_result
        if self._cache is None or evidence is None or result is None or result.status != "ok":
            return
        if evidence.failed_steps or any(log.error for log in evidence.tool_logs):
            return
        text = state.model_dump_json(exclude_unset=True)
        plain = [[name, {field: _plain(value) for field, value in inputs.items()}] for name, inputs in asked]
        if AssessmentState.model_validate_json(text) == state and _survives(plain):
            self.put("evidence", sample, value={"state": text, "asked": plain, "lm_calls": lm_calls})

    def rows(self, what: Sequence[Any], samples: Sequence[Sample]) -> tuple[Rows, float] | None:
        """Return the rows of an evaluation of `what`, and the seconds it took; or None."""
        kept = self.get("rows", what, samples)
        if kept is None:
            return None
        self.recalled += len(samples) - 1
        return Rows(Row.model_validate_json(line) for line in kept["rows"]), float(kept["seconds"])

    def keep_rows(self, what: Sequence[Any], samples: Sequence[Sample], rows: Iterable[Row], seconds: float) -> None:
        """Keep an evaluation's rows, unless a sample or a tool failed in it."""
        if self._cache is None:
            return
        kept = list(rows)
        if all(row.status == "ok" and not (row.spent or {}).get("tool_failures") for row in kept):
            lines = [row.line().decode("utf-8") for row in kept]
            self.put("rows", what, samples, value={"rows": lines, "seconds": seconds})

    def get(self, *parts: Any) -> Any:
        """Return the JSON value kept under parts (samples, examples, JSON), or None."""
        if self._cache is None:
            return None
        found = self._cache.get(self._key(parts))
        with self._lock:
            self.recalled += found is not None
        return found

    def put(self, *parts: Any, value: Any) -> None:
        """Keep a JSON value under parts."""
        if self._cache is not None:
            self._cache.set(self._key(parts), value)

    def _key(self, parts: Sequence[Any]) -> str:
        return _digest([self._base, *(self._told(part) for part in parts)])

    def _told(self, part: Any) -> Any:
        if isinstance(part, Sample):
            return self._facts_of(part)
        if isinstance(part, dspy.Example):
            return {name: getattr(value, "url", value) for name, value in part.items()}
        if isinstance(part, list | tuple):
            return [self._told(item) for item in part]
        return part

    def _facts_of(self, sample: Sample) -> dict[str, Any]:
        """Return all that a sample says, with its images' content in place of where they lie."""
        known = self._facts.get(sample.id)
        if known is None:
            known = sample.model_dump(mode="json", exclude={"image", "reference", "split"})
            for name, path in (("image", sample.image), ("reference", sample.reference)):
                if path is not None:
                    known[name] = [path.name, _sha256(path)]
            self._facts[sample.id] = known
        return known


@functools.cache
def code_sha256() -> str:
    """Return the hash of the project's own code, settings and arrays, and of the libraries that compute with it."""
    found: list[Any] = [platform.python_version(), platform.machine(), [_version(name) for name in _LIBRARIES]]
    for package in _PACKAGES:
        for folder, inside, names in os.walk(str(files(package))):
            inside[:] = sorted(name for name in inside if name not in {"__pycache__", "raw"})
            counting = (Path(folder, name) for name in sorted(names) if Path(name).suffix in _COUNTING)
            found += [[package, path.name, _sha256(path)] for path in counting]
    return _digest(found)


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:  # told of the sample where it is opened
        return None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _plain(value: Any) -> Any:
    return {_IMAGE: value.url} if isinstance(value, dspy.Image) else value


def _shown(value: Any) -> Any:
    return dspy.Image(value[_IMAGE]) if isinstance(value, Mapping) and _IMAGE in value else value


def _survives(value: Any) -> bool:
    """Return whether JSON gives a value back as it is, tuples and other types included."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
