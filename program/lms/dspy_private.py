"""Names of DSPy that have no public counterpart, each with the reason; tests check each.

Nothing of DSPy's is changed here or elsewhere in the program.
"""

from types import SimpleNamespace
from typing import Any

import dspy
from dspy import lm15

# "X as X": other files import these names from here, and from nowhere else.
# What a transport that puts images into requests derives from: `lm15.RouterConfig` takes one, no
# public name makes one.
from dspy._vendor.lm15.transports import StdlibTransport as StdlibTransport

# What such a transport returns: one whose body was mended is made anew.
from dspy._vendor.lm15.transports import TransportResponse as TransportResponse

# Between these an image stands in a prompt; a user's text that holds them would fetch one.
from dspy.adapters.types.base_type import CUSTOM_TYPE_END_IDENTIFIER as CUSTOM_TYPE_END_IDENTIFIER
from dspy.adapters.types.base_type import (
    CUSTOM_TYPE_START_IDENTIFIER as CUSTOM_TYPE_START_IDENTIFIER,
)

# DSPy prices no answer of an engine that is not its own.
from dspy.clients import costs

# A host's wish to wait, in seconds or as a date: LiteLLM's errors hold the bare header.
from dspy.clients._http import retry_after_seconds

# DSPy's client, which the program's engines go around: `dspy.LM(engine=...)` takes an engine, and
# no public name is one.
from dspy.clients.engines import LM15Engine as LM15Engine

# What DSPy makes of a schema as it sends one (see `response_format`).
from dspy.clients.legacy_requests import _strict_json_schema
from pydantic import BaseModel

_JSON_ADAPTER = dspy.JSONAdapter()


def response_format(signature: type[dspy.Signature], *, by_schema: bool) -> dict[str, Any] | None:
    """Return the response format that DSPy's JSON adapter chooses, as it goes on the wire, or None.

    Until `Adapter.format()` gives it beside the messages (stanfordnlp/dspy#10401, for DSPy 3.5): it
    is made anew, in milliseconds, for every call, and without limits.
    """
    options: dict[str, Any] = {}
    model = SimpleNamespace()
    model.supported_params, model.supports_response_schema = {"response_format"}, by_schema
    _JSON_ADAPTER._prepare_response_format(model, options, signature)
    form: Any = options.get("response_format")
    if not (isinstance(form, type) and issubclass(form, BaseModel)):
        return dict(form) if form else None
    schema = _strict_json_schema(form.model_json_schema())
    named = {"name": form.__name__, "schema": schema, "strict": True}
    return {"type": "json_schema", "json_schema": named}


def retry_after_s(error: BaseException) -> float | None:
    """Return the seconds a host asks to wait, as DSPy read them or LiteLLM's response says."""
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
