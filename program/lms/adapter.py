"""DSPy's JSON adapter; the schemas and system messages it makes anew for every call, at milliseconds each, are kept."""

import functools
import json
from typing import Any

import dspy

from program.lms.dspy_private import FormatAdapter, chosen_format, format_field_value, strict_schema

__all__ = ("KeptAdapter",)

_PLAIN = dspy.JSONAdapter()


class KeptAdapter(FormatAdapter):
    """Answers come as JSON; formats and system messages are kept per signature."""

    def format_system_message(self, signature: Any) -> str:
        """Describe the task."""
        return _system_message(signature)

    def format_user_message_content(
        self, signature: Any, inputs: dict[str, Any], prefix: str = "", suffix: str = "", main_request: bool = False
    ) -> str:
        """Show a question's inputs."""
        shown = {name: _shown(field, inputs[name]) for name, field in signature.input_fields.items() if name in inputs}
        parts = [prefix, *(f"[[ ## {name} ## ]]\n{text}" for name, text in shown.items())]
        if main_request:
            parts.append(_output_requirements(signature))
        return "\n\n".join([*parts, suffix]).strip()

    def response_format(self, signature: Any, *, schema: bool) -> Any:
        """Return the format to ask for."""
        return _response_format(signature, schema=schema)


for _name in ("format", "parse"):
    # DSPy wraps both again in every subclass, and then callbacks (MLflow's spans) see each call twice.
    delattr(KeptAdapter, _name)


@functools.lru_cache(maxsize=256)
def _system_message(signature: type[dspy.Signature]) -> str:
    return str(_PLAIN.format_system_message(signature))


@functools.lru_cache(maxsize=256)
def _output_requirements(signature: type[dspy.Signature]) -> str:
    return str(_PLAIN.user_message_output_requirements(signature))


def _shown(field: Any, value: Any) -> str:
    """Return a value as DSPy shows it, which builds a pydantic schema for every value; most need none."""
    if type(value) in {str, bool, int, float}:
        return str(value)
    if type(value) is dspy.Image:
        return str(value.model_dump(mode="json"))
    if type(value) is list and field.annotation is not str and all(type(item) is str for item in value):
        return json.dumps(value, ensure_ascii=False)
    return str(format_field_value(field, value))


@functools.lru_cache(maxsize=256)
def _response_format(signature: type[dspy.Signature], *, schema: bool) -> Any:
    """Return DSPy's format, a schema as it goes on the wire: DSPy derives that again for every call."""
    form = chosen_format(signature, schema=schema)
    if not isinstance(form, type):
        return form
    wire_schema = {"name": form.__name__, "schema": strict_schema(form), "strict": True}
    return {"type": "json_schema", "json_schema": wire_schema}
