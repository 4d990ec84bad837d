"""The embedded backend as a DSPy engine: it takes the structured call, not the prompt, and measures the pixels.

`CallAdapter` hands signature, demos and inputs to the engine beside the ordinary messages, so nothing is parsed out
of a prompt. It never sees labels, file names or manifests: images arrive as content hashes.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

import dspy
from dspy import lm15
from pydantic import BaseModel

from program.errors import ModelError
from program.lms.adapter import KeptAdapter
from program.lms.perceptual.answers import answer_fields
from program.lms.perceptual.store import REVISION
from program.lms.perceptual.views import Recent, Viewer

__all__ = (
    "MODEL",
    "REVISION",
    "AsyncPerceptualEngine",
    "CallAdapter",
    "PerceptualEngine",
    "answer",
    "make_perceptual_lm",
)

MODEL = f"perceptual/expert@{REVISION}"
"""The revision is part of the name: caches are keyed by it, so no answer comes from an older expert's cache."""

_Call = tuple[type[dspy.Signature], list[Any], dict[str, Any]]
_CALL: ContextVar[_Call | None] = ContextVar("agentic_iqa_call", default=None)


def _digest(demos: Iterable[Any]) -> str:
    """Return 12 hex digits that change with any demo."""
    return hashlib.sha256("\n".join(_text(demo) for demo in demos).encode()).hexdigest()[:12]


def _text(demo: Mapping[str, Any]) -> str:
    """Return a demo as JSON; kept for as long as it holds the same values, as it is shown with every question."""
    values = tuple(dict(demo).items())
    known = _TEXTS.get(id(demo))
    if (
        known is None
        or len(known[0]) != len(values)
        or any(old[0] != new[0] or old[1] is not new[1] for old, new in zip(known[0], values, strict=True))
    ):
        known = values, json.dumps(dict(values), default=_plain, sort_keys=True)
        _TEXTS.put(id(demo), known)
    return known[1]


_TEXTS: Recent[int, tuple[tuple[tuple[str, Any], ...], str]] = Recent(4096)
"""Demos by identity, with the values they had: those are held here, so that no other object takes their place."""


def _plain(value: Any) -> Any:
    return value.model_dump() if isinstance(value, BaseModel) else repr(value)


class CallAdapter(KeptAdapter):
    """The usual adapter, which also hands the structured call to an engine in the same process.

    The engine reads that call and not the messages, which are left for histories and traces. So they hold the task and
    the current inputs, and of the demos only how many there are and a digest: rendering thirty of them as text costs
    more than the answer. The digest keeps requests with other demos apart wherever requests are keys, as in caches.
    """

    def format(self, signature: Any, demos: list[Any], inputs: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the system message and the current inputs; demos travel in the structured call."""
        messages: list[dict[str, Any]] = super().format(signature, [], inputs)
        if demos:
            note = f"\n\nDemos, handed over beside this text: {len(demos)} ({_digest(demos)})."
            messages[0] = {**messages[0], "content": messages[0]["content"] + note}
        return messages

    def __call__(
        self, lm: Any, lm_kwargs: dict[str, Any], signature: Any, demos: list[Any], inputs: dict[str, Any]
    ) -> Any:
        """Format, call and parse as the usual adapter does, with the call visible to the engine."""
        token = _CALL.set((signature, demos, inputs))
        try:
            return super().__call__(lm, lm_kwargs, signature, demos, inputs)
        finally:
            _CALL.reset(token)

    async def acall(
        self, lm: Any, lm_kwargs: dict[str, Any], signature: Any, demos: list[Any], inputs: dict[str, Any]
    ) -> Any:
        """Do the same asynchronously."""
        token = _CALL.set((signature, demos, inputs))
        try:
            return await super().acall(lm, lm_kwargs, signature, demos, inputs)
        finally:
            _CALL.reset(token)


class PerceptualEngine:
    """Answers the program's own signatures from measurements. Deterministic and thread-safe."""

    # It answers in the signature's own fields whatever schema it is sent, and DSPy takes milliseconds to build one.
    supports_response_schema = False
    supports_function_calling = False
    supports_reasoning = False
    supported_params = frozenset({"temperature", "max_tokens", "seed"})
    resolves_references = True

    def __init__(self, cache_dir: Path | None = None) -> None:
        """Keep measurements under `cache_dir` (a folder of its own inside), or in memory only."""
        self._viewer = Viewer(cache_dir / f"features-{REVISION}" if cache_dir is not None else None)

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer the structured call of this context; ModelError when it did not come through `CallAdapter`."""
        call = _CALL.get()
        if call is None:
            raise ModelError(
                f"{MODEL}: was asked with plain text; use dspy.context(adapter=CallAdapter()) with this model"
            )
        signature, demos, inputs = call
        text = json.dumps(answer(signature, demos, inputs, viewer=self._viewer), ensure_ascii=False)
        return lm15.Response(
            id=None, model=request.model, message=lm15.Message.assistant(text), finish_reason="stop",
            usage=lm15.Usage(input_tokens=0, output_tokens=0),
        )  # fmt: skip

    def dump_state(self) -> dict[str, Any]:
        """Return what identifies the engine; no path of this machine."""
        return {"revision": REVISION}

    @classmethod
    def load_state(cls, state: Mapping[str, Any]) -> "PerceptualEngine":
        """Make the engine that a state names; ModelError when it is of another revision."""
        if state.get("revision") != REVISION:
            raise ModelError(
                f"perceptual/expert@{state.get('revision')}: this version holds {MODEL!r}; compile again with it"
            )
        return cls()

    def __getstate__(self) -> dict[str, Any]:
        return self.dump_state()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._viewer = Viewer()


class AsyncPerceptualEngine(PerceptualEngine):
    """The asynchronous counterpart: measures in a worker thread."""

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer one request without blocking the event loop."""
        return await asyncio.to_thread(PerceptualEngine.complete, self, request)


_MEMORY = Viewer()


def answer(
    signature: type[dspy.Signature], demos: Iterable[Any], inputs: Mapping[str, Any], *, viewer: Viewer | None = None
) -> dict[str, Any]:
    """Return the output fields for one structured call, as JSON values.

    Dispatches on the names of the signature's output fields, since its instructions may have been rewritten.
    """
    outputs = frozenset(signature.output_fields) - {"reasoning"}
    present = {name: value for name, value in inputs.items() if value is not None}
    cases = [cast("Mapping[str, Any]", dict(demo)) for demo in demos]
    found = answer_fields(viewer or _MEMORY, outputs, cases, present)
    if "reasoning" in signature.output_fields:
        found["reasoning"] = str(found.get("quality_reasoning", "Read from the measurements."))
    return found


def make_perceptual_lm(cache_dir: Path | None = None, **options: Any) -> dspy.LM:
    """Return the embedded expert as a `dspy.LM`; measurements are cached under `cache_dir` (None: memory only).

    DSPy's own answer cache is off by default: an answer costs about a millisecond once the image is measured.
    """
    settings = {"cache": False, "num_retries": 0, **options}
    return dspy.LM(MODEL, engine=PerceptualEngine(cache_dir), async_engine=AsyncPerceptualEngine(cache_dir), **settings)
