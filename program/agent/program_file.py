"""What a saved program holds, checked before a program is made of it: never a language model, an address or a key."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError
from pydantic_core import from_json

from program.common.errors import InputError, first_fault
from program.expert import NAME

__all__ = ("ProgramFile", "check_state", "digest", "rest_sha256")


class _Part(BaseModel):
    # DSPy sets every key of a predictor's state as an attribute: an unknown one (`config`) could name an address.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ProgramFile(_Part):
    """The content of `program.json`."""

    format: Literal[1] = 1
    schema_sha256: str
    program_sha256: str
    rest_sha256: str | None = None
    """Of all but the instructions, which a person may edit."""
    engine: str | None = Field(default=None, pattern=rf"^{NAME}@[\w.]{{1,20}}$")
    """The embedded engine that played a taught role, as perceptual/expert@r8."""
    record: dict[str, Any] = Field(default_factory=dict)
    """How it was made; nothing is read from it."""
    fusion: dict[str, Any] | None = None
    neighbours: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    """The hash of the file that holds them."""
    state: dict[str, Any]
    """Predictors by name; `check_state` looks into it."""

    @classmethod
    def parse(cls, data: bytes) -> "ProgramFile":
        """Read a file's bytes. Raises ValueError, one line, for what is no such file."""
        try:
            return cls.model_validate(from_json(data))
        except ValidationError as error:
            raise ValueError(first_fault(error, "the file")) from error


class _FieldState(_Part):
    prefix: str
    description: str


class _SignatureState(_Part):
    instructions: str
    fields: list[_FieldState]


class _PredictorState(_Part):
    traces: list[JsonValue]
    train: list[JsonValue]
    demos: list[dict[str, JsonValue]]
    signature: _SignatureState
    lm: None
    """Settings and environment alone name language models."""


_PREDICTORS = TypeAdapter(dict[str, _PredictorState])


def rest_sha256(state: Mapping[str, Any], learned: list[Any]) -> str:
    """Return the hash of all that a program has learned but its instructions; `learned` is what no predictor holds."""
    kept = {n: {**part, "signature": part["signature"]["fields"]} for n, part in state.items() if n != "metadata"}
    return digest([kept, *learned])


def check_state(state: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise InputError for a state that is not one of these predictors' demos and instructions alone."""
    if missing := [name for name in names if name not in state]:
        raise InputError(f"state: has no predictor {missing[0]!r}; compile again")
    try:
        # DSPy's own files hold the versions they were written with beside the predictors.
        _PREDICTORS.validate_python({name: part for name, part in state.items() if name != "metadata"})
    except ValidationError as error:
        raise InputError(f"state: {first_fault(error, 'the file')}; remove it, or compile again") from error


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value in hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
