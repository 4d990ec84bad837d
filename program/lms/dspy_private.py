"""Every private or undocumented name of DSPy that the program uses; tests/test_dspy_private.py checks each of them."""

import copy
from collections.abc import Hashable, Mapping
from typing import Any

import dspy
from dspy import lm15
from dspy._vendor.lm15.transports import StdlibTransport
from dspy.adapters.json_adapter import JSONAdapter
from dspy.adapters.types.base_type import CUSTOM_TYPE_END_IDENTIFIER, CUSTOM_TYPE_START_IDENTIFIER
from dspy.adapters.utils import format_field_value
from dspy.clients import costs
from dspy.clients.engines import LM15Engine
from dspy.clients.legacy_requests import _strict_json_schema
from dspy.streaming.messages import sync_send_to_stream
from dspy.teleprompt import MIPROv2

__all__ = (
    "CUSTOM_TYPE_END_IDENTIFIER", "CUSTOM_TYPE_START_IDENTIFIER", "DemoSetMIPRO", "FormatAdapter", "LM15Engine",
    "StdlibTransport", "cached", "chosen_format", "estimated_cost_usd", "format_field_value", "put_in_cache",
    "strict_schema", "sync_send_to_stream", "traced_prediction",
)  # fmt: skip


class FormatAdapter(JSONAdapter):
    """DSPy's JSON adapter with the choice of a response format left to subclasses."""

    def response_format(self, signature: Any, *, schema: bool) -> Any:
        """Return the format to ask for, with a schema where the model takes one; None asks for no format."""
        return chosen_format(signature, schema=schema)

    def _prepare_response_format(self, lm: Any, lm_kwargs: dict[str, Any], signature: Any) -> None:
        if "response_format" in lm.supported_params:
            form = self.response_format(signature, schema=bool(lm.supports_response_schema))
            if form is not None:
                lm_kwargs["response_format"] = form


for _name in ("format", "parse"):
    # DSPy wraps both again in every subclass, and then callbacks (MLflow's spans) see each call twice.
    delattr(FormatAdapter, _name)


class _Capable:
    supported_params = frozenset({"response_format"})

    def __init__(self, *, schema: bool) -> None:
        self.supports_response_schema = schema


def chosen_format(signature: type[dspy.Signature], *, schema: bool) -> Any:
    """Return the response format that DSPy's adapter chooses: a pydantic class, a dictionary or None."""
    options: dict[str, Any] = {}
    JSONAdapter()._prepare_response_format(_Capable(schema=schema), options, signature)
    return options.get("response_format")


def strict_schema(model: type[Any]) -> dict[str, Any]:
    """Return the strict JSON schema that DSPy sends for a pydantic class."""
    schema: dict[str, Any] = _strict_json_schema(model.model_json_schema())
    return schema


class DemoSetMIPRO(MIPROv2):
    """MIPROv2 with the sets of demos that it chooses among left to subclasses."""

    def demo_sets(self, program: dspy.Module) -> dict[int, list[list[dspy.Example]]]:
        """Return the sets of demos for each predictor, by its place in the program."""
        raise NotImplementedError

    def _bootstrap_fewshot_examples(self, program: Any, *_: Any, **__: Any) -> dict[int, list[list[dspy.Example]]]:
        return self.demo_sets(program)


def estimated_cost_usd(
    response: lm15.Response, *, provider: str | None, model: str, request: lm15.Request | None = None
) -> float | None:
    """Return what an answer cost by DSPy's price list; None where it lists no price."""
    cost, _ = costs.estimate_cost(response, provider=provider, requested_model=model, request=request)
    return None if cost is None else float(cost)


def cached(key: Hashable) -> Any:
    """Return a copy of what DSPy's memory cache holds under a key, or None."""
    with dspy.cache._lock:
        value = dspy.cache.memory_cache.get(key)
    return copy.deepcopy(value)


def put_in_cache(key: Hashable, value: Any) -> None:
    """Keep a copy of a value in DSPy's memory cache; it goes when that is reset."""
    with dspy.cache._lock:
        dspy.cache.memory_cache[key] = copy.deepcopy(value)


def traced_prediction(
    predictor: dspy.Predict, fields: Mapping[str, Any], signature: type[dspy.Signature], inputs: Mapping[str, Any]
) -> dspy.Prediction:
    """Return a prediction of these fields, and trace it as if the predictor had just made it."""
    return predictor._forward_postprocess([dict(fields)], signature, **inputs)
