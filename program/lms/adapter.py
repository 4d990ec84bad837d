"""The adapter of the program's questions: prompts, the form of an answer, and how one is read."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import dspy
from dspy import lm15
from dspy.utils.exceptions import AdapterParseError

from program.common.text import final_answer
from program.lms import dspy_private
from program.lms.traits import known_traits
from signatures.forms import kept
from signatures.schemas import QualityLevel

_LONGEST_WORD = 200
"""Characters that are read of an answer of one word."""
MOST_ITEMS = 12
"""In a list of an answer; a small model that loops fills a longer one to the last token."""
MOST_CHARS, MOST_CHARS_INSIDE = 600, 160
"""Of a text that is an answer's own field, and of one inside a list: a few sentences, and one."""


class KeptAdapter(dspy.JSONAdapter):
    """Answers come as JSON, or as one word. Schemas and system messages are made once.

    `shows_form`: whether the system message describes the JSON, for a service that takes no schema.
    `first_field_only`: whether the first field alone is read, of an answer that may be cut after
    it; the others are empty.
    """

    def __init__(self, *, shows_form: bool = True, first_field_only: bool = False) -> None:
        super().__init__()
        self.shows_form, self.first_field_only = shows_form, first_field_only

    def __call__(
        self, lm: Any, lm_kwargs: dict[str, Any], signature: Any, demos: Any, inputs: Any
    ) -> list[dict[str, Any]]:
        """Ask an LM, for an answer by a schema where it takes one."""
        options = lm_kwargs | _form_of_answer(lm, signature)
        # The JSON adapter's own call would make a schema each time: this is the one above it.
        ask: Callable[..., list[dict[str, Any]]] = super(dspy.JSONAdapter, self).__call__
        return ask(lm, options, signature, demos, inputs)

    def format_system_message(self, signature: Any) -> str:
        """Describe the task."""
        return _system_message(signature, shows_form=self.shows_form)

    def user_message_output_requirements(self, signature: Any) -> str:
        """End a question."""
        return _answer_request(signature)

    def format_assistant_message_content(self, signature: Any, outputs: Any, *rest: Any, **named: Any) -> str:
        """Return a demo's answer as it is asked for."""
        text = super().format_assistant_message_content(signature, outputs, *rest, **named)
        fields = {name: value for name, value in json.loads(text).items() if outputs.get(name) is not None}
        if is_word(signature):
            return str(next(iter(fields.values())))
        return json.dumps(fields, ensure_ascii=False)

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        """Read the fields of the final answer; AdapterParseError with the whole if it lacks any."""
        if self.first_field_only:
            completion = _first_field(completion, signature.output_fields)
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
_FIRST_FIELD_BY_SCHEMA = KeptAdapter(shows_form=False, first_field_only=True)


def adapter_for(lm: dspy.BaseLM | None, *, first_field_only: bool = False) -> dspy.Adapter:
    """Return what an LM is asked through: its own adapter, that of DSPy's settings, else JSON."""
    traits = known_traits(lm)
    own = traits.adapter or dspy.settings.adapter
    if own is not None:
        return own
    if not traits.takes_schema:
        return _JSON
    return _FIRST_FIELD_BY_SCHEMA if first_field_only else _JSON_BY_SCHEMA


def events_of(response: lm15.Response) -> Iterator[Any]:
    """Return an answer's events word by word, as DSPy's `StreamListener` wants them."""
    for event in lm15.response_to_events(response):
        if event.type == "delta" and event.delta.type == "text":
            for word in re.findall(r"\s*\S+|\s+$", event.delta.text):
                yield replace(event, delta=replace(event.delta, text=word))
        else:
            yield event


def _first_field(completion: str, fields: Iterable[str]) -> str:
    r"""Return an answer that may be cut after its first field with the others empty.

    >>> _first_field('{"level": "fair", "reasons": "It is', ["level", "reasons"])
    '{"level": "fair", "reasons": ""}'
    >>> _first_field('{"level": "fa', ["level"])
    '{"level": "fa'
    """
    first, *others = fields
    whole = re.match(rf'\s*\{{\s*("{first}"\s*:\s*"(?:[^"\\]|\\.)*")', completion)
    if whole is None:
        return completion
    empty = [f'"{name}": ""' for name in others]
    return "{" + ", ".join([whole[1], *empty]) + "}"


def _form_of_answer(lm: dspy.BaseLM, signature: Any) -> dict[str, Any]:
    """Return the option that asks for JSON; none where the LM lacks it, or a word is wanted."""
    if "response_format" not in lm.supported_params or is_word(signature):
        return {}
    schema, takes_bounds = bool(lm.supports_response_schema), known_traits(lm).takes_bounds
    form = _response_format(signature, schema=schema, takes_bounds=takes_bounds)
    return {} if form is None else {"response_format": form}


@kept
def _response_format(signature: type[dspy.Signature], *, schema: bool, takes_bounds: bool) -> Any:
    """Return the form of an answer on the wire: JSON by a schema, or of any kind."""
    form = dspy_private.response_format(signature, by_schema=schema)
    if takes_bounds and form is not None and form["type"] == "json_schema":
        named = form["json_schema"]
        form = {**form, "json_schema": {**named, "schema": _bounded(named["schema"], MOST_CHARS)}}
    return form


@kept
def _system_message(signature: type[dspy.Signature], *, shows_form: bool) -> str:
    """Return instructions, inputs and outputs of a signature, perhaps with the outputs' shapes."""
    schema: Mapping[str, Any] = {}
    if shows_form:
        form = _response_format(signature, schema=True, takes_bounds=False) or {}
        schema = form.get("json_schema", {}).get("schema", {})
    parts = [signature.instructions.strip()]
    inputs = [_line(name, field) for name, field in signature.input_fields.items()]
    if inputs:
        parts.append("\n".join(["Given are", *inputs]))
    if not is_word(signature):
        outputs = ["Respond with a JSON object of these fields, in this order:"]
        for name, field in signature.output_fields.items():
            shape = _shape(schema.get("properties", {}).get(name, {}), schema)
            in_brackets = "" if shape == "text" else f" ({shape})"
            outputs.append(_line(name, field) + in_brackets)
        parts.append("\n".join(outputs))
    return "\n\n".join(filter(None, parts))


def _answer_request(signature: type[dspy.Signature]) -> str:
    """Return the last line of a question.

    >>> _answer_request(dspy.Signature("a -> b: str"))
    'Respond with the JSON object.'
    """
    if not is_word(signature):
        return "Respond with the JSON object."
    (field,) = signature.output_fields.values()
    return f"Respond with {_description(field)}."


@kept
def is_word(signature: type[dspy.Signature]) -> bool:
    """Return whether a signature asks for one level or option alone: a word, without JSON."""
    if list(signature.output_fields) == ["final_answer"]:
        return "options" in signature.input_fields
    return [field.annotation for field in signature.output_fields.values()] == [QualityLevel]


def _bounded(part: Any, most_chars: int) -> Any:
    """Return a part of a JSON schema with limits on items and characters, and without titles."""
    if isinstance(part, list):
        return [_bounded(each, most_chars) for each in part]
    if not isinstance(part, dict):
        return part
    bounded: dict[str, Any] = {}
    for name, value in part.items():
        if name in {"properties", "$defs"}:
            most = most_chars if name == "properties" else MOST_CHARS_INSIDE
            bounded[name] = {inner: _bounded(each, most) for inner, each in value.items()}
        elif name not in {"title", "description"}:
            bounded[name] = _bounded(value, MOST_CHARS_INSIDE)
    if part.get("type") == "array":
        bounded.setdefault("maxItems", MOST_ITEMS)
    if part.get("type") == "string" and "enum" not in part and "const" not in part:
        bounded.setdefault("maxLength", most_chars)
    return bounded


def _line(name: str, field: Any) -> str:
    description = _description(field)
    return f"{name}: {description}" if description else name


def _description(field: Any) -> str:
    description = str((field.json_schema_extra or {}).get("desc") or "")
    if description.startswith("${"):  # DSPy's stand-in for none
        return ""
    return description


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
        fields = part.get("properties", {}).items()
        shapes = [f'"{name}": {_shape(each, whole)}' for name, each in fields]
        return "{" + ", ".join(shapes) + "}"
    return {"string": "text", "boolean": "true | false", "integer": "number"}.get(kind, kind)
