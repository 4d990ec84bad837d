"""Text-only questions (plan, tool choice) are the same for many images: asked once, and then looked up.

DSPy's cache finds their answers too, but after forming the prompt and before parsing the answer again, which takes
milliseconds of every assessment. What is kept here lies in DSPy's own memory cache and goes when that is reset.
"""

import hashlib
import logging
from collections.abc import Mapping
from typing import Any

import dspy

from program.lms.build import adapter_for, resolves_references
from program.lms.dspy_private import cached, put_in_cache, traced_prediction

__all__ = ("keep", "question_key", "recall")

Key = tuple[str, type[dspy.Signature], str]


def question_key(
    predictor: dspy.Predict,
    signature: type[dspy.Signature],
    demos: list[Any],
    inputs: Mapping[str, Any],
    lm: dspy.BaseLM,
    config: Mapping[str, Any],
) -> Key | None:
    """Return what a text-only question is known by.

    None where an image is asked about, nothing is cached, or an adapter of the user's own forms the prompt.
    """
    if not (lm.cache and (dspy.cache.enable_memory_cache or dspy.cache.enable_disk_cache)):
        return None
    if any(isinstance(value, dspy.Image) for value in inputs.values()) or adapter_for(lm) is dspy.settings.adapter:
        return None
    parts = (lm.model, getattr(lm, "model_type", None), lm.kwargs, inputs, demos, config, predictor.config)
    return "agentic_iqa", signature, hashlib.sha256(repr(parts).encode("utf-8", "replace")).hexdigest()


def recall(key: Key, predictor: dspy.Predict, inputs: Mapping[str, Any], lm: dspy.BaseLM) -> dspy.Prediction | None:
    """Return the answer that was kept for a question, traced like one from DSPy's cache; None without one.

    None as well where somebody watches how the answer comes about: callbacks (MLflow's spans), histories, debug logs.
    """
    if not dspy.cache.enable_memory_cache or _watched(predictor, lm):
        return None
    fields = cached(key)
    return None if fields is None else traced_prediction(predictor, fields, key[1], inputs)


def keep(key: Key, prediction: dspy.Prediction) -> None:
    """Keep a checked answer."""
    if dspy.cache.enable_memory_cache:
        put_in_cache(key, {name: prediction[name] for name in key[1].output_fields})


def _watched(predictor: dspy.Predict, lm: dspy.BaseLM) -> bool:
    watchers = (dspy.settings, lm, predictor, adapter_for(lm))
    return (
        any(getattr(watcher, "callbacks", None) for watcher in watchers)
        or dspy.settings.send_stream is not None
        or not resolves_references(lm)
        or logging.getLogger("program").isEnabledFor(logging.DEBUG)
    )
