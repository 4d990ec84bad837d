"""The model that writes instructions: what reaches it, what that costs, and how often it gives none.

Every optimizer asks it through one LM, so that what holds of its prompts is seen to here, whoever forms them.
"""

import re
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import dspy
from dspy import lm15
from dspy.utils.callback import BaseCallback
from dspy.utils.exceptions import AdapterParseError

from optimizers.student import SearchStopped
from program.common.redaction import redact
from program.lms.call import one_line
from program.lms.limits import BudgetSpent
from program.lms.metering import ModelCall
from program.lms.traits import ModelTraits, traits_of

__all__ = ("Reflections", "metered_lm", "shortened")

_MOST_CHARS = 32_000
"""Of a prompt whose model's context is not known: some 12,000 tokens, which 16,384 hold with an instruction in reply.
GEPA's take 5,000 characters, SIMBA's 17,000; MIPRO's, which quote the whole program, 50,000."""
_CHARS_A_TOKEN = 2.5
"""Of evidence in JSON, where most tokenizers spend a token a digit; prose has four."""
_REPLY_SHARE = 4
"""At most this part of a known context is the reply's: whatever is asked for beyond leaves the question no room."""
_FIELD = re.compile(r"^(?=\[\[ ## |Respond with )", re.MULTILINE)
"""Where a field begins in the prompts of DSPy's adapters, or what to answer with."""


def metered_lm(lm: dspy.BaseLM) -> dspy.BaseLM:
    """Return a copy of an LM whose prompts fit it and whose calls count in the budget in force.

    One without an engine of its own is returned as it is.
    """
    return lm.copy(engine=_ReflectionEngine(lm)) if hasattr(getattr(lm, "engine", None), "complete") else lm


class _ReflectionEngine:
    """Charges each request before it goes out. It sits below DSPy's cache, so answers from there are free."""

    def __init__(self, lm: dspy.BaseLM) -> None:
        self._lm = lm

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._lm.engine, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_ReflectionEngine":
        return self

    def complete(self, request: lm15.Request) -> Any:
        """Answer one request."""
        try:
            return ModelCall(self._lm).complete(_fitted(request, traits_of(self._lm)))
        except BudgetSpent as error:  # optimizers swallow errors of this model and go on
            raise SearchStopped(error) from error


def _fitted(request: lm15.Request, traits: ModelTraits) -> lm15.Request:
    """Return a request without images where the model sees none, and no longer than its context."""
    messages = [m if traits.reads_images is not False else _in_words(m) for m in request.messages]
    config, most = request.config, float(_MOST_CHARS)
    if traits.context_tokens is not None:
        reply = traits.context_tokens // _REPLY_SHARE
        config = replace(config, max_tokens=config.max_tokens and min(config.max_tokens, reply))
        most = _CHARS_A_TOKEN * (traits.context_tokens - reply)
    texts = [part.text for message in messages for part in message.parts if isinstance(part, lm15.TextPart)]
    short = iter(shortened(texts, int(most) - len(str(request.system or ""))))
    for place, message in enumerate(messages):
        parts = (replace(p, text=next(short)) if isinstance(p, lm15.TextPart) else p for p in message.parts)
        messages[place] = replace(message, parts=tuple(parts))
    return replace(request, messages=tuple(messages), config=config)


def _in_words(message: lm15.Message) -> lm15.Message:
    """Return a message with a word in place of each image; as one text, which every server takes."""
    parts = [lm15.TextPart("[image]") if isinstance(part, lm15.ImagePart) else part for part in message.parts]
    if all(isinstance(part, lm15.TextPart) for part in parts):
        parts = [lm15.TextPart("".join(part.text for part in parts))]
    return replace(message, parts=tuple(parts))


def shortened(texts: Sequence[str], most: int) -> list[str]:
    r"""Return prompts of at most `most` characters together: their longest fields lose their middle.

    >>> shortened(["[[ ## code ## ]]\n" + "a" * 99 + "\n\nRespond with JSON."], 95)
    ['[[ ## code ## ]]\naaaa ... (76 characters left out) ... aaaaaaaaaaaaaaaaaaa\n\nRespond with JSON.']
    """
    fields = [_FIELD.split(text) for text in texts]
    lengths = sorted(len(field) for each in fields for field in each)
    room, limit = most, max(lengths, default=0)
    for place, length in enumerate(lengths):
        share = max(0, room) // (len(lengths) - place)
        if length > share:
            limit = share
            break
        room -= length
    return ["".join(_without_middle(field, limit) for field in each) for each in fields]


def _without_middle(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    kept = max(0, most - len(f" ... ({len(text)} characters left out) ... ")) // 2
    return f"{text[:kept]} ... ({len(text) - 2 * kept} characters left out) ... {text[len(text) - kept :]}"[:most]


class Reflections(BaseCallback):
    """Counts the questions that optimizers ask of the model that writes, and why some got no answer. Thread-safe.

    They are all the questions it is told of: the program's own are asked without it (see `Student.assess`).
    """

    def __init__(self) -> None:
        self.asked = 0
        self.failed: Counter[str] = Counter()
        """By reason."""
        self._open: set[str] = set()
        self._lock = threading.Lock()

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Count a question."""
        if isinstance(instance, dspy.Predict):
            with self._lock:
                self.asked += 1
                self._open.add(call_id)

    def on_module_end(self, call_id: str, outputs: Any | None, exception: BaseException | None = None) -> None:
        """Note why a question got no answer."""
        with self._lock:
            if call_id in self._open and isinstance(exception, Exception):
                self.failed[_reason(exception)] += 1
            self._open.discard(call_id)

    @property
    def all_failed(self) -> bool:
        """Whether there were some, and none was answered."""
        return 0 < self.asked == self.failed.total()

    @property
    def note(self) -> str:
        """How many failed and the most frequent reason, or nothing."""
        if not self.failed:
            return ""
        (reason, _), *_ = self.failed.most_common(1)
        return f"{self.failed.total()} of {self.asked} reflections failed: {reason}"


def _reason(error: Exception) -> str:
    if isinstance(error, AdapterParseError):
        return "the reply could not be read"
    return one_line(redact(str(error))).rstrip(".") or type(error).__name__
