"""The words of a question: instructions, what is given, and the form of the answer, as short as they can be. Pure."""

import re
from collections.abc import Mapping
from typing import Any

import dspy

from signatures.schemas import QualityLevel

__all__ = ("answer_request", "bounded_schema", "is_word", "system_text", "without_sight")

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
