"""What earlier compiles worked out, on disk: a repeat measures nothing again and asks nothing twice.

Only where the embedded expert plays every role: its answers depend on nothing but what the keys hold (code, fitted
arrays, libraries, settings, tools with their parameters, the program, each sample with the content of its images).
Nothing that failed is stored, as a repeat may succeed.
"""

import functools
import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import dspy

from data.manifest import Sample
from program.agent.loop import AgenticIQA
from program.agent.program_file import digest
from program.agent.resources import ROLES
from program.agent.state import AssessmentState
from program.common.cache import PlainCache
from program.common.places import Place, name_of, opened
from program.evaluation.evaluating import context_of
from program.evaluation.row import LabelledRow
from program.tools.readiness import installed_version

__all__ = ("Questions", "Store", "code_sha256", "evidence_json", "evidence_of")

Questions = list[tuple[str, dict[str, Any]]]
"""What a run of the program asked: predictor and inputs, in order."""

_PACKAGES = ("program", "signatures", "optimizers", "data", "configs")
_COUNTING = {".csv", ".json", ".npz", ".py", ".yaml"}
_LIBRARIES = ("dspy-ai", "numpy", "piq", "pillow", "pydantic", "pyiqa", "scikit-image", "scikit-learn",
              "scipy", "torch", "torchvision")  # fmt: skip
_IMAGE = "__image__"


class Store:
    """Evidence, rows and scores by everything they depend on. Thread-safe; holds nothing without a folder."""

    def __init__(self, folder: Path | None = None, base: Any = None) -> None:
        """Store results in `folder`; `base` is whatever all of them depend on."""
        self._cache = PlainCache(folder) if folder is not None else None
        self._base = digest([code_sha256(), base]) if folder is not None else ""
        self._samples: dict[str, dict[str, Any]] = {}

    @classmethod
    def of(cls, program: AgenticIQA) -> "Store":
        """Return the store of compiles that start at this program; an empty one where answers may differ."""
        kept = program.resources.settings.kept_dir
        if kept is None or not all(program.resources.known(role).is_deterministic for role in ROLES):
            return cls()
        return cls(kept / "compiles", context_of(program))

    def get(self, *parts: Any) -> Any:
        """Return the JSON value stored under parts (samples, examples, JSON), or None."""
        return None if self._cache is None else self._cache.get(self._key(parts))

    def put(self, *parts: Any, value: Any) -> None:
        """Store a JSON value under parts."""
        if self._cache is not None:
            self._cache.set(self._key(parts), value)

    def evidence(self, sample: Sample) -> tuple[AssessmentState, Questions] | None:
        """Return what the uncompiled program ended with on a sample, and what it asked; or None."""
        stored = self.get("evidence", sample)
        return None if stored is None else evidence_of(stored)

    def put_evidence(self, sample: Sample, state: AssessmentState, questions: Questions) -> None:
        """Store a run of the uncompiled program, unless a tool or a step failed in it."""
        evidence, result = state.executor_evidence, state.summarizer_result
        if self._cache is None or evidence is None or result is None or result.status != "ok":
            return
        if evidence.failed_steps or any(log.error for log in evidence.tool_logs):
            return
        if (value := evidence_json(state, questions)) is not None:
            self.put("evidence", sample, value=value)

    def rows(self, what: Sequence[Any], samples: Sequence[Sample]) -> tuple[list[LabelledRow], float] | None:
        """Return the rows of an evaluation of `what`, and the seconds it took; or None."""
        stored = self.get("rows", what, samples)
        if stored is None:
            return None
        return [LabelledRow.model_validate_json(line) for line in stored["rows"]], float(stored["seconds"])

    def put_rows(
        self, what: Sequence[Any], samples: Sequence[Sample], rows: Sequence[LabelledRow], seconds: float
    ) -> None:
        """Store an evaluation's rows, unless a sample or a tool failed in it."""
        if self._cache is None or any(r.status != "ok" or (r.spent or {}).get("tool_failures") for r in rows):
            return
        self.put("rows", what, samples, value={"rows": [row.line() for row in rows], "seconds": seconds})

    def _key(self, parts: Sequence[Any]) -> str:
        return digest([self._base, *(self._as_json(part) for part in parts)])

    def _as_json(self, part: Any) -> Any:
        if isinstance(part, Sample):
            return self._contents(part)
        if isinstance(part, dspy.Example):
            return {name: getattr(value, "url", value) for name, value in part.items()}
        if isinstance(part, list | tuple):
            return [self._as_json(item) for item in part]
        return part

    def _contents(self, sample: Sample) -> dict[str, Any]:
        """Return all that a sample says, with its images' content in place of where they lie."""
        if sample.id not in self._samples:
            paths = {"image": sample.image, "reference": sample.reference}
            images = {name: [name_of(path), _sha256(path)] for name, path in paths.items() if path is not None}
            self._samples[sample.id] = {**sample.model_dump(mode="json", exclude={*paths, "split"}), **images}
        return self._samples[sample.id]


@functools.cache
def code_sha256() -> str:
    """Return the hash of the project's own code, settings and arrays, and of the libraries that compute with it."""
    parts: list[Any] = [platform.python_version(), platform.machine(), [installed_version(name) for name in _LIBRARIES]]
    for package in _PACKAGES:
        for folder, inside, names in os.walk(str(files(package))):
            inside[:] = sorted(name for name in inside if name not in {"__pycache__", "raw"})
            counting = (Path(folder, name) for name in sorted(names) if Path(name).suffix in _COUNTING)
            parts += [[package, path.name, _sha256(path)] for path in counting]
    return digest(parts)


def _sha256(path: Place) -> str | None:
    try:
        with opened(path) as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:  # the sample fails where it is opened, with an error that names it
        return None


def evidence_json(state: AssessmentState, questions: Questions) -> dict[str, Any] | None:
    """Return as JSON values what a run of the program ended with and what it asked.

    None where JSON would not give it back as it is: a tuple, say, would come back as a list.
    """
    plain = [[name, {field: _plain(value) for field, value in inputs.items()}] for name, inputs in questions]
    value = {"state": state.model_dump_json(exclude_unset=True), "questions": plain}
    return value if evidence_of(json.loads(json.dumps(value, default=str))) == (state, questions) else None


def evidence_of(value: Mapping[str, Any]) -> tuple[AssessmentState, Questions]:
    """Return what `evidence_json` was made of."""
    questions = [(name, {k: _restored(v) for k, v in inputs.items()}) for name, inputs in value["questions"]]
    return AssessmentState.model_validate_json(value["state"]), questions


def _plain(value: Any) -> Any:
    return {_IMAGE: value.url} if isinstance(value, dspy.Image) else value


def _restored(value: Any) -> Any:
    return dspy.Image(value[_IMAGE]) if isinstance(value, Mapping) and _IMAGE in value else value
