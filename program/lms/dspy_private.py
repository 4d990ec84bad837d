"""How the program meets DSPy: its adapter, the words it sends, and every private name (tests check each)."""

import copy
import functools
import json
import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import dspy
from cachetools import LRUCache
from dspy import lm15
from dspy._vendor.lm15.transports import StdlibTransport as StdlibTransport  # "as" itself: others import it from here
from dspy.adapters.json_adapter import JSONAdapter
from dspy.adapters.types.base_type import CUSTOM_TYPE_END_IDENTIFIER as CUSTOM_TYPE_END_IDENTIFIER
from dspy.adapters.types.base_type import CUSTOM_TYPE_START_IDENTIFIER as CUSTOM_TYPE_START_IDENTIFIER
from dspy.clients import costs, execution
from dspy.clients._http import retry_after_seconds
from dspy.clients.engines import LM15Engine as LM15Engine
from dspy.clients.legacy_requests import _strict_json_schema
from dspy.propose import GroundedProposer
from dspy.streaming.messages import sync_send_to_stream as sync_send_to_stream
from dspy.teleprompt import MIPROv2
from dspy.utils.exceptions import AdapterParseError, LMError
from pydantic import BaseModel
from tqdm import tqdm

from program.common.keys import keys_among, without_keys
from program.common.settings import Settings, load_settings
from program.common.text import final_answer
from program.lms.traits import known_traits
from program.tracking.runs import strip_bytes
from signatures.schemas import QualityLevel

SETTINGS = "agentic_iqa_settings"
"""The program's name among DSPy's settings, which `dspy.Parallel` and DSPy's optimizers pass to their threads."""


def wire_scope(settings: Settings) -> AbstractContextManager[object]:
    """Return a context in which these settings hold for every question."""
    context: AbstractContextManager[object] = dspy.context(**{SETTINGS: settings})
    return context


def settings_in_force() -> Settings:
    """Return the settings of the innermost scope, the usual ones outside any."""
    settings: Settings | None = dspy.settings.get(SETTINGS)
    return load_settings() if settings is None else settings


MOST_ITEMS = 12
"""In a list of an answer; a small model that loops fills a longer one to the last token."""
MOST_CHARS, MOST_CHARS_INSIDE = 600, 160
"""Of a text that is an answer's own field, and of one inside a list: a few sentences, and one."""
_SIGHT = (
    (r"(?m)^\d+\. If they are unclear or insufficient, look at the image itself\.\n?", ""),
    (r", (the tools' quality scores \([^)]*\))\s+and the image\.", r" and \1."),
)
"""What instructions say of looking, and what a model that reads no images is told in its place."""


def system_text(signature: type[dspy.Signature], *, form: Mapping[str, Any] | None = None) -> str:
    """Return instructions, inputs and outputs of a signature as a system message.

    `form` is the answer's JSON schema where the server takes none: then its shape stands in the text.
    """
    given = "\n".join(_line(name, field) for name, field in signature.input_fields.items())
    parts = [signature.instructions.strip(), f"Given are\n{given}" if given else ""]
    if not is_word(signature):
        wanted = [f"{_line(name, field)}{_shown(form, name)}" for name, field in signature.output_fields.items()]
        parts.append("\n".join(["Respond with a JSON object of these fields, in this order:", *wanted]))
    return "\n\n".join(filter(None, parts))


def answer_request(signature: type[dspy.Signature]) -> str:
    """Return the last line of a question.

    >>> answer_request(dspy.Signature("a -> b: str"))
    'Respond with the JSON object.'
    """
    if not is_word(signature):
        return "Respond with the JSON object."
    (wanted,) = signature.output_fields.values()
    return f"Respond with {_described(wanted)}."


def is_word(signature: type[dspy.Signature]) -> bool:
    """Return whether a signature asks for a level or an option and nothing else: one word, with no JSON around it."""
    is_choice = [*signature.output_fields] == ["final_answer"] and "options" in signature.input_fields
    return is_choice or [field.annotation for field in signature.output_fields.values()] == [QualityLevel]


def without_sight(instructions: str) -> str:
    r"""Return instructions for a model that is shown no image.

    >>> without_sight("1. Look it up.\n4. If they are unclear or insufficient, look at the image itself.")
    '1. Look it up.'
    """
    for pattern, instead in _SIGHT:
        instructions = re.sub(pattern, instead, instructions)
    return instructions.rstrip()


def bounded_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer's JSON schema with the most items and characters that an answer may have, and no titles."""

    def within(part: Any, most_chars: int) -> Any:
        if isinstance(part, list):
            return [within(each, most_chars) for each in part]
        if not isinstance(part, dict):
            return part
        kept = {name: value for name, value in part.items() if name not in {"title", "description"} or part is schema}
        if part.get("type") == "array":
            kept.setdefault("maxItems", MOST_ITEMS)
        if part.get("type") == "string" and "enum" not in part and "const" not in part:
            kept.setdefault("maxLength", most_chars)
        for name in ("items", "anyOf", "$ref"):
            if name in kept:
                kept[name] = within(kept[name], MOST_CHARS_INSIDE)
        for name in ("properties", "$defs"):
            inside = most_chars if part is schema and name == "properties" else MOST_CHARS_INSIDE
            if name in kept:
                kept[name] = {key: within(value, inside) for key, value in kept[name].items()}
        return kept

    return dict(within(schema, MOST_CHARS))


def _line(name: str, field: Any) -> str:
    return f"{name}: {described}" if (described := _described(field)) else name


def _described(field: Any) -> str:
    described = str((field.json_schema_extra or {}).get("desc") or "")
    return "" if described.startswith("${") else described  # DSPy's stand-in for none


def _shown(form: Mapping[str, Any] | None, name: str) -> str:
    """Return a field's shape in brackets, for a text field nothing."""
    part = (form or {}).get("properties", {}).get(name)
    shape = _shape(part, form or {}) if part else "text"
    return "" if shape == "text" else f" ({shape})"


def _shape(part: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    """Return what a part of a JSON schema allows, as a reader would write it down.

    >>> _shape({"type": "array", "items": {"enum": ["a", "b"]}}, {})
    '["a" | "b", ...]'
    """
    if "$ref" in part:
        return _shape(whole["$defs"][part["$ref"].rpartition("/")[2]], whole)
    if "enum" in part:
        return " | ".join(f'"{value}"' for value in part["enum"])
    if "anyOf" in part:
        return " | ".join(_shape(each, whole) for each in part["anyOf"])
    kind = str(part.get("type", "text"))
    if kind == "array":
        return f"[{_shape(part.get('items', {}), whole)}, ...]"
    if kind == "object":
        fields = ", ".join(f'"{name}": {_shape(each, whole)}' for name, each in part.get("properties", {}).items())
        return f"{{{fields}}}"
    return {"string": "text", "boolean": "true | false", "integer": "number"}.get(kind, kind)


_ANSWERS: LRUCache[Hashable, Any] = LRUCache(1024)
"""Of deterministic models."""
_ANSWERS_LOCK = threading.Lock()
_PLAIN = JSONAdapter()
_LONGEST_WORD = 200
"""Characters that are read of an answer of one word."""


class KeptAdapter(JSONAdapter):
    """Answers come as JSON, or as one word. Schemas and system messages are kept: DSPy makes them again for every call.

    `shows_form`: whether the system message describes the JSON, for a model whose service takes no schema. `opens`:
    whether the first field alone is read, of an answer that may be cut after it; the others are empty.
    """

    def __init__(self, *, shows_form: bool = True, opens: bool = False) -> None:
        super().__init__()
        self.shows_form, self.opens = shows_form, opens

    def format_system_message(self, signature: Any) -> str:
        """Describe the task."""
        return _system_message(signature, shows_form=self.shows_form)

    def user_message_output_requirements(self, signature: Any) -> str:
        """End a question."""
        return answer_request(signature)

    def format_assistant_message_content(self, signature: Any, outputs: Any, missing_field_message: Any = None) -> str:
        """Return a demo's answer as it is asked for."""
        text = super().format_assistant_message_content(signature, outputs, missing_field_message)
        fields = json.loads(text)
        return str(next(iter(fields.values()))) if is_word(signature) else json.dumps(fields, ensure_ascii=False)

    def _prepare_response_format(self, lm: Any, lm_kwargs: dict[str, Any], signature: Any) -> None:
        if "response_format" in lm.supported_params and not is_word(signature):
            schema, takes_bounds = bool(lm.supports_response_schema), known_traits(lm).takes_bounds
            form = _response_format(signature, schema=schema, takes_bounds=takes_bounds)
            if form is not None:
                lm_kwargs["response_format"] = form

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        """Read the fields of the final answer; AdapterParseError, with all that was said, where it lacks any."""
        if self.opens:
            completion = _opening(completion, signature.output_fields)
        text = final_answer(completion, signature.output_fields)
        if is_word(signature) and "{" not in text:
            text = json.dumps(dict.fromkeys(signature.output_fields, text.strip()[:_LONGEST_WORD]))
        try:
            fields: dict[str, Any] = super().parse(signature, text)
        except AdapterParseError as error:
            error.lm_response = completion
            raise
        return fields


# DSPy wraps both again in every subclass, and then callbacks (MLflow's spans) see each call twice.
del KeptAdapter.format
KeptAdapter.parse = KeptAdapter.parse.__wrapped__  # type: ignore[attr-defined, method-assign]

_JSON, _JSON_BY_SCHEMA = KeptAdapter(), KeptAdapter(shows_form=False)
_OPENING_BY_SCHEMA = KeptAdapter(shows_form=False, opens=True)


def _opening(completion: str, fields: Iterable[str]) -> str:
    r"""Return an answer that may be cut after its first field with that field alone, and the others empty.

    >>> _opening('{"level": "fair", "reasons": "It is', ["level", "reasons"]), _opening('{"level": "fa', ["level"])
    ('{"level": "fair", "reasons": ""}', '{"level": "fa')
    """
    first, *others = fields
    whole = re.match(rf'\s*\{{\s*("{first}"\s*:\s*"(?:[^"\\]|\\.)*")', completion)
    if whole is None:
        return completion
    return "{" + ", ".join((whole[1], *(f'"{name}": ""' for name in others))) + "}"


@functools.lru_cache(maxsize=256)
def _system_message(signature: type[dspy.Signature], *, shows_form: bool) -> str:
    if not shows_form:
        return system_text(signature)
    form: Any = _response_format(signature, schema=True, takes_bounds=False)  # type: ignore[arg-type]  # a class is hashable
    return system_text(signature, form=(form or {}).get("json_schema", {}).get("schema"))


@functools.lru_cache(maxsize=256)
def _response_format(signature: type[dspy.Signature], *, schema: bool, takes_bounds: bool) -> Any:
    """Return the format that DSPy's adapter chooses, a schema as it goes on the wire; None asks for no format.

    `takes_bounds`: whether the schema may limit items and characters; OpenAI's own service refuses that.
    """
    options: dict[str, Any] = {}
    model = SimpleNamespace(supported_params={"response_format"}, supports_response_schema=schema)
    _PLAIN._prepare_response_format(model, options, signature)
    form: Any = options.get("response_format")
    if not (isinstance(form, type) and issubclass(form, BaseModel)):
        return form
    strict = _strict_json_schema(form.model_json_schema())
    wire_schema = {"name": form.__name__, "schema": bounded_schema(strict) if takes_bounds else strict, "strict": True}
    return {"type": "json_schema", "json_schema": wire_schema}


def say_once_of_truncation() -> None:
    """Let DSPy say of the next answer that it was cut short, and of no other: it would of each."""
    said = False

    def passes(record: logging.LogRecord) -> bool:
        nonlocal said
        tells_of_it = "truncated" in record.getMessage()
        again, said = tells_of_it and said, tells_of_it or said
        return not again

    logging.getLogger("dspy.clients.lm").filters = [passes]


def adapter_for(lm: dspy.BaseLM | None, *, opens: bool = False) -> dspy.Adapter:
    """Return the adapter an LM is asked through: its own, else the one in DSPy's settings, else JSON.

    `opens`: whether JSON by a schema is read up to its first field alone.
    """
    traits = known_traits(lm)
    by_schema = _OPENING_BY_SCHEMA if opens else _JSON_BY_SCHEMA
    return traits.adapter or dspy.settings.adapter or (by_schema if traits.takes_schema else _JSON)


def events_of(response: lm15.Response) -> Iterator[Any]:
    """Return an answer's events, its text word by word: DSPy's `StreamListener` takes one long piece for a cache's."""
    for event in lm15.response_to_events(response):
        if event.type == "delta" and event.delta.type == "text":
            for word in re.findall(r"\s*\S+|\s+$", event.delta.text):
                yield replace(event, delta=replace(event.delta, text=word))
        else:
            yield event


def retry_after_s(error: BaseException) -> float | None:
    """Return the seconds a host asks to wait: as DSPy read them, else (LiteLLM) from the HTTP response behind."""
    cause: BaseException | None = error
    while cause is not None:
        headers = getattr(getattr(cause, "response", None), "headers", None) or {}
        for hint in (getattr(cause, "retry_after", None), headers.get("retry-after")):
            seconds: float | None = retry_after_seconds(hint)
            if seconds is not None:
                return seconds
        cause = cause.__cause__ or cause.__context__
    return None


def estimated_cost_usd(
    response: lm15.Response, *, provider: str | None, model: str, request: lm15.Request | None = None
) -> float | None:
    """Return what an answer cost by DSPy's price list; None where it lists no price."""
    cost, _ = costs.estimate_cost(response, provider=provider, requested_model=model, request=request)
    return None if cost is None else float(cost)


_store_answer = execution._store


def keep_keys_out_of_answers() -> None:
    """Let DSPy keep, trace and hand out no answer that repeats a key, from engines that it chooses itself."""
    execution._store = _store_without_keys


def _store_without_keys(lm: dspy.BaseLM, call: Any, result: Any, asynchronous: bool) -> None:
    secrets = keys_among(lm.kwargs)
    result.responses, result.outputs, result.raw = (
        without_keys(part, secrets) for part in (result.responses, result.outputs, result.raw)
    )
    _store_answer(lm, call, result, asynchronous)


_KEPT_TOKENS: ContextVar[list[int] | None] = ContextVar("agentic_iqa_kept_tokens", default=None)


@contextmanager
def kept_tokens() -> Iterator[list[int]]:
    """Collect the tokens of answers that DSPy's cache gives inside, which it lends without them."""
    tokens: list[int] = []
    token = _KEPT_TOKENS.set(tokens)
    cache = vars(dspy).get("cache")  # to ask for it makes DSPy's own
    with _ANSWERS_LOCK:
        if cache is not None and "_prepare_cached_response" not in vars(cache):
            prepare = cache._prepare_cached_response
            cache._prepare_cached_response = lambda answer: prepare(_counted(answer))
    try:
        yield tokens
    finally:
        _KEPT_TOKENS.reset(token)


def _counted(answer: Any) -> Any:
    """Note the tokens of a kept answer, and return it."""
    tokens, replies = _KEPT_TOKENS.get(), answer.get("responses") if isinstance(answer, Mapping) else None
    if tokens is not None:
        usages = [reply.get("usage") or {} for reply in replies or ()]
        tokens += [(usage.get("input_tokens") or 0) + (usage.get("output_tokens") or 0) for usage in usages]
    return answer


@contextmanager
def _answers(lm: dspy.BaseLM) -> Iterator[MutableMapping[Hashable, Any]]:
    """Lend the memory of an LM's answers: DSPy's, where that is on, or one that opens no disk cache."""
    if known_traits(lm).is_deterministic:
        with _ANSWERS_LOCK:
            yield _ANSWERS
    elif dspy.cache.enable_memory_cache:
        with dspy.cache._lock:
            yield dspy.cache.memory_cache
    else:
        yield {}


def cached_answer(key: Hashable, lm: dspy.BaseLM) -> Any:
    """Return a copy of what is kept under a key among an LM's answers, or None."""
    with _answers(lm) as answers:
        value = answers.get(key)
    return copy.deepcopy(value)


def put_in_cache(key: Hashable, value: Any, lm: dspy.BaseLM) -> None:
    """Keep a copy of a value among an LM's answers; it goes when DSPy's memory cache is reset."""
    with _answers(lm) as answers:
        answers[key] = copy.deepcopy(value)


def traced_prediction(
    predictor: dspy.Predict, fields: Mapping[str, Any], signature: type[dspy.Signature], inputs: Mapping[str, Any]
) -> dspy.Prediction:
    """Return a prediction of these fields, and trace it as if the predictor had just made it."""
    return predictor._forward_postprocess([dict(fields)], signature, **inputs)


@contextmanager
def quiet_optimizers() -> Iterator[None]:
    """Let DSPy's optimizers draw no bars beside the program's, nor warn of fields that signatures of theirs lack."""
    init, warner = tqdm.__init__, logging.getLogger("dspy.predict.predict")

    def hidden(self: Any, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **{**options, "disable": True})

    def passes(record: logging.LogRecord) -> bool:
        return "fields not in signature" not in record.getMessage()

    tqdm.__init__ = hidden
    warner.addFilter(passes)
    try:
        yield
    finally:
        tqdm.__init__ = init
        warner.removeFilter(passes)


class _EnduringProposer(GroundedProposer):
    """Proposes a predictor's own instructions where the model that writes gives none, which would end MIPROv2."""

    def propose_instruction_for_predictor(self, **named: Any) -> str:
        try:
            return str(super().propose_instruction_for_predictor(**named))
        except (LMError, AdapterParseError):
            return str(named["predictor"].signature.instructions)


class DemoSetMIPRO(MIPROv2):
    """MIPROv2 that chooses among the sets of demos which `demo_sets` gives for each predictor, by its place."""

    def __init__(
        self, demo_sets: Callable[[dspy.Module], dict[int, list[list[dspy.Example]]]], **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.demo_sets = demo_sets

    def _bootstrap_fewshot_examples(self, program: Any, *_: Any, **__: Any) -> dict[int, list[list[dspy.Example]]]:
        return self.demo_sets(program)

    def _propose_instructions(
        self, program: Any, trainset: Any, demo_candidates: Any, *_: Any, num_instruct_candidates: int
    ) -> dict[int, list[str]]:
        proposer = _EnduringProposer(
            self.prompt_model, program, trainset, use_instruct_history=False, set_history_randomly=False, rng=self.rng,
            init_temperature=self.init_temperature,
        )  # fmt: skip
        proposed: dict[int, list[str]] = proposer.propose_instructions_for_program(
            trainset, program, demo_candidates, trial_logs={}, N=num_instruct_candidates
        )
        for place, predictor in enumerate(program.predictors()):
            proposed[place][0] = predictor.signature.instructions
        return proposed


KEPT = 100
"""Calls of the program's own models that DSPy's histories hold whole: they keep ten thousand, 30 KB each."""
_WHOLE: deque[dict[str, Any]] = deque()
_LEFT_OUT = "(left out: only the last calls are kept whole)"


def remember(lm: dspy.BaseLM, entry: dict[str, Any]) -> None:
    """Add a call to DSPy's histories, without the images that a user's own LM was sent inline."""
    if known_traits(lm).takes_references:
        _WHOLE.append(entry)
        while len(_WHOLE) > KEPT:
            # The histories of models and modules hold the entry itself: its place stays, without its bulk.
            oldest = _WHOLE.popleft()
            oldest.update(
                messages=[{"role": "user", "content": _LEFT_OUT}], outputs=[_LEFT_OUT], response=None, kwargs={}
            )
    else:
        entry = {**entry, "messages": strip_bytes(entry.get("messages"))}
    lm.update_history(entry)
