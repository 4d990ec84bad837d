"""The words of a question: its system message, its last line, the form its answer is to have."""

from collections.abc import Mapping
from typing import Any

import dspy

from signatures.schemas import QualityLevel

MOST_ITEMS = 12
"""In a list of an answer; a small model that loops fills a longer one to the last token."""
MOST_CHARS, MOST_CHARS_INSIDE = 600, 160
"""Of a text that is an answer's own field, and of one inside a list: a few sentences, and one."""


def system_text(signature: type[dspy.Signature], *, form: Mapping[str, Any] | None = None) -> str:
    """Return instructions, inputs and outputs of a signature as a system message.

    `form` is the answer's JSON schema where the server takes none: then the text says its shape.
    """
    parts = [signature.instructions.strip()]
    inputs = [_line(name, field) for name, field in signature.input_fields.items()]
    if inputs:
        parts.append("\n".join(["Given are", *inputs]))
    if not is_word(signature):
        outputs = ["Respond with a JSON object of these fields, in this order:"]
        for name, field in signature.output_fields.items():
            outputs.append(_line(name, field) + _shape_in_brackets(form or {}, name))
        parts.append("\n".join(outputs))
    return "\n\n".join(filter(None, parts))


def answer_request(signature: type[dspy.Signature]) -> str:
    """Return the last line of a question.

    >>> answer_request(dspy.Signature("a -> b: str"))
    'Respond with the JSON object.'
    """
    if not is_word(signature):
        return "Respond with the JSON object."
    (field,) = signature.output_fields.values()
    return f"Respond with {_description(field)}."


def is_word(signature: type[dspy.Signature]) -> bool:
    """Return whether a signature asks for one level or option alone: a word, without JSON."""
    if list(signature.output_fields) == ["final_answer"]:
        return "options" in signature.input_fields
    return [field.annotation for field in signature.output_fields.values()] == [QualityLevel]


def bounded_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer's JSON schema with limits on items and characters, and without titles."""
    bounded = dict(schema)
    for place, most_chars in (("properties", MOST_CHARS), ("$defs", MOST_CHARS_INSIDE)):
        if place in schema:
            bounded[place] = {name: _bounded(part, most_chars) for name, part in schema[place].items()}
    return bounded


def _bounded(part: Any, most_chars: int) -> Any:
    """Return a part of a schema with limits: on its own text, and tighter ones inside."""
    if isinstance(part, list):
        return [_bounded(each, most_chars) for each in part]
    if not isinstance(part, dict):
        return part
    bounded: dict[str, Any] = {}
    for name, value in part.items():
        if name in {"properties", "$defs"}:
            bounded[name] = {inner: _bounded(each, MOST_CHARS_INSIDE) for inner, each in value.items()}
        elif name not in {"title", "description"}:
            bounded[name] = _bounded(value, MOST_CHARS_INSIDE)
    if part.get("type") == "array":
        bounded.setdefault("maxItems", MOST_ITEMS)
    if part.get("type") == "string" and "enum" not in part and "const" not in part:
        bounded.setdefault("maxLength", most_chars)
    return bounded


def _line(name: str, field: Any) -> str:
    description = _description(field)
    if not description:
        return name
    return f"{name}: {description}"


def _description(field: Any) -> str:
    description = str((field.json_schema_extra or {}).get("desc") or "")
    if description.startswith("${"):  # DSPy's stand-in for none
        return ""
    return description


def _shape_in_brackets(form: Mapping[str, Any], name: str) -> str:
    """Return the shape of an answer's field in brackets; nothing for a text."""
    part = form.get("properties", {}).get(name)
    shape = _shape(part or {}, form)
    if shape == "text":
        return ""
    return f" ({shape})"


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
