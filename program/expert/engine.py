"""The embedded backend as a DSPy engine: it takes the structured call, not a prompt, and measures the pixels.

`CallAdapter` writes the fields asked for, the inputs and the demos into the request as JSON; there is no other way in.
The engine never sees labels, file names or manifests: images arrive as content hashes.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import dspy
from dspy import lm15
from pydantic import BaseModel

from program.common.errors import ModelError
from program.expert.answer.answers import answer
from program.expert.judge.views import Viewer
from program.expert.store import MODEL, NAME, REVISION
from program.lms.dspy_private import KeptAdapter, events_of
from program.lms.traits import ModelTraits

__all__ = ("MODEL", "REVISION", "AsyncPerceptualEngine", "CallAdapter", "PerceptualEngine", "make_perceptual_lm")

TRAITS = ModelTraits(
    reads_images=True, token_probabilities=0, answers_at_once=False, revision=MODEL, is_free=True,
    is_deterministic=True, reads_instructions=False, is_calibrated=True, shares_errors=True, judges_crops=True,
    weighs_demos=True, explains_in_figures=True, may_quote_keys=False,
)  # fmt: skip
"""What the expert can do."""


def _plain(value: Any) -> Any:
    url = getattr(value, "url", None)  # of images
    if isinstance(url, str):
        return url
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else repr(value)


class CallAdapter(KeptAdapter):
    """The usual adapter, whose question is the structured call itself, as JSON."""

    def format(self, signature: Any, demos: list[Any], inputs: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the instructions, of which the engine reads the rubric, and the call itself."""
        call = {"outputs": list(signature.output_fields), "inputs": inputs, "demos": [dict(demo) for demo in demos]}
        text = json.dumps(call, default=_plain, ensure_ascii=False)
        return [{"role": "system", "content": signature.instructions}, {"role": "user", "content": text}]


del CallAdapter.parse  # wrapped anew in every subclass: callbacks (MLflow's spans) would see each call twice


class PerceptualEngine:
    """Answers the program's own signatures from measurements. Deterministic and thread-safe."""

    # It answers in the signature's own fields whatever schema it is sent, and DSPy takes milliseconds to build one.
    supports_response_schema = supports_function_calling = supports_reasoning = False
    supported_params = frozenset({"temperature", "max_tokens", "seed"})
    resolves_references = True
    traits = TRAITS
    adapter = CallAdapter()

    def __init__(self, cache_dir: Path | None = None) -> None:
        """Keep measurements under `cache_dir` (a folder of its own inside), or in memory only."""
        self._viewer = Viewer(cache_dir)

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer the structured call that a request holds; ModelError when it did not come through `CallAdapter`."""
        try:
            call = json.loads(request.messages[-1].text or "")
            outputs, demos, inputs = call["outputs"], call["demos"], call["inputs"]
        except (ValueError, TypeError, KeyError) as error:
            raise ModelError(
                f"{MODEL}: was asked with plain text; use dspy.context(adapter=CallAdapter()) with this model"
            ) from error
        found = answer(outputs, demos, inputs, str(request.system or ""), self._viewer)
        fields = json.dumps(found, ensure_ascii=False)
        return lm15.Response(
            id=None, model=request.model, message=lm15.Message.assistant(fields), finish_reason="stop",
            usage=lm15.Usage(input_tokens=0, output_tokens=0),
        )  # fmt: skip

    def stream(self, request: lm15.Request) -> Iterator[Any]:
        """Answer one request as events."""
        yield from events_of(self.complete(request))

    def dump_state(self) -> dict[str, Any]:
        """Return what identifies the engine; no path of this machine."""
        return {"revision": REVISION}

    @classmethod
    def load_state(cls, state: Mapping[str, Any]) -> "PerceptualEngine":
        """Make the engine that a state names; ModelError when it is of another revision."""
        if state.get("revision") != REVISION:
            raise ModelError(f"{NAME}@{state.get('revision')}: this version holds {MODEL!r}; compile again with it")
        return cls()

    def __reduce__(self) -> tuple[type["PerceptualEngine"], tuple[()]]:
        return type(self), ()  # a copy elsewhere keeps measurements in memory only


class AsyncPerceptualEngine(PerceptualEngine):
    """The asynchronous counterpart: measures in a worker thread."""

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer one request without blocking the event loop."""
        return await asyncio.to_thread(PerceptualEngine.complete, self, request)

    async def stream(self, request: lm15.Request) -> AsyncIterator[Any]:  # type: ignore[override]
        """Answer one request as events without blocking the event loop."""
        for event in events_of(await self.complete(request)):
            yield event


def make_perceptual_lm(cache_dir: Path | None = None, **options: Any) -> dspy.LM:
    """Return the embedded expert as a `dspy.LM`; measurements are cached under `cache_dir` (None: memory only).

    DSPy's own answer cache is off by default: an answer costs about a millisecond once the image is measured.
    """
    settings = {"cache": False, "num_retries": 0, **options}
    return dspy.LM(MODEL, engine=PerceptualEngine(cache_dir), async_engine=AsyncPerceptualEngine(cache_dir), **settings)
