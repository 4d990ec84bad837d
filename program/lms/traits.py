"""What a model can do, in one record: an engine of this process declares it, a service is asked and learnt from.

A service is asked where it is free (its lists of models and properties) and, at an address, by one question of one
token; what it says is kept in the cache folder by address and model, and every refusal after corrects it.
"""

import hashlib
import json
import logging
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import dspy
from pydantic import BaseModel, ConfigDict, ValidationError

from program.common.cli import MODEL_RECORDS
from program.common.files import write_whole

__all__ = ("ModelRecord", "ModelTraits", "as_listed", "known_traits", "own_record", "record_of", "traits_of")

logger = logging.getLogger(__name__)


class ModelTraits(BaseModel):
    """What one model at one address can do. None: not known yet."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    reads_images: bool | None = None
    token_probabilities: int | None = None
    """Alternatives that come with each token; 0: none."""
    context_tokens: int | None = None
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    refused: Mapping[str, str] = {}
    """Fields of a request that the service refuses, with its words; they are left out."""
    thinks: bool = False
    """Reasons at length before it answers, so an answer needs all the tokens it is allowed."""
    answers_at_once: bool | None = None
    """Names distortions and score in one answer; False where it gave both one after the other alone."""
    wire_model: str | None = None
    """Its name on the server, where that serves one model alone and any name means it."""
    models: tuple[str, ...] = ()
    """That the server lists."""
    asked: str | None = None
    """When the service was asked; None: never."""

    revision: str | None = None
    """Its name with its revision, where what was taught for one revision holds for no other."""
    is_free: bool = False
    """Answers in this process within milliseconds: without a network, a price or limits, and not counted."""
    is_deterministic: bool = False
    """Its answer depends on the question alone, and may be kept for as long as the code stays the same."""
    reads_instructions: bool = True
    """Goes by what it is told in words, the form of its answer too; else by the inputs and a rubric."""
    is_calibrated: bool = False
    """The levels it states are a belief fitted on people's scores: they count as they are, and as much as tools."""
    shares_errors: bool = False
    """Reads what tools read of an image, so that it errs where they do."""
    judges_crops: bool = False
    """Judges a part of an image as a whole one."""
    weighs_demos: bool = False
    """Weighs demos by how like the image they are, so that it can be worked out unasked what a set of them says."""
    explains_in_figures: bool = False
    """Its reasons are figures, and its explanations say in words what these mean."""
    may_quote_keys: bool = True
    """Its errors may quote a key, as a service's do."""


_NOTHING_KNOWN = ModelTraits()


class ModelRecord:
    """The traits of one model at one address, as known so far; shared by all roles, kept in a file."""

    def __init__(self, file: Path | None = None, declared: Mapping[str, Any] | None = None) -> None:
        self.lock = threading.RLock()
        self._file, self._declared = file, dict(declared or {})

        self.known = _read(file) or ModelTraits()
        """What the service said, or its refusals."""

    @property
    def traits(self) -> ModelTraits:
        """What is known, under what flags and configuration declare."""
        return self.known.model_copy(update=self._declared) if self._declared else self.known

    def learn(self, **found: Any) -> None:
        """Correct the record, and keep it."""
        with self.lock:
            self.known = self.known.model_copy(update=found)
            if self._file is None:
                return
            try:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self._file, self.known.model_dump_json(exclude_defaults=True))
            except OSError as error:
                logger.info("what the model can do is not kept (%s)", error)
                self._file = None

    def refuse(self, field: str, words: str) -> None:
        """Leave a field out of every request from now on."""
        self.learn(refused={**self.known.refused, field: words})

    def finish(self, **found: Any) -> None:
        """Record what a service answered when it was asked, and the day."""
        self.learn(**found, asked=datetime.now(UTC).date().isoformat())

    def forget(self) -> None:
        """Ask again next time."""
        with self.lock:
            self.known = ModelTraits()


_RECORDS: dict[tuple[Any, ...], ModelRecord] = {}
"""One for each model and address in the process: roles and copies of a program share what one of them learns."""


def record_of(
    model: str, address: str | None, cache_dir: Path | None, declared: Mapping[str, Any] | None = None
) -> ModelRecord:
    """Return the record of a model; `declared` traits go before what is found. Kept below `cache_dir`, if any."""
    name = hashlib.sha256(f"{address} {model}".encode()).hexdigest()[:16]
    file = cache_dir / MODEL_RECORDS / f"{name}.json" if cache_dir is not None else None
    key = (model, address, file, json.dumps(declared or {}, sort_keys=True))
    return _RECORDS.setdefault(key, ModelRecord(file, declared))


def traits_of(lm: dspy.BaseLM | None) -> ModelTraits:
    """Return what a model can do; the service is asked now where it was not before.

    Raises EndpointError where the service cannot be asked: its address, key or model is wrong.
    """
    traits = getattr(getattr(lm, "engine", None), "traits", None)
    return traits if isinstance(traits, ModelTraits) else own_record(lm).traits


def known_traits(lm: dspy.BaseLM | None) -> ModelTraits:
    """Return what a model's engine declares, or what is known of its service so far; nothing is asked."""
    engine = getattr(lm, "engine", None)
    record = getattr(engine, "record", None)
    traits = record.traits if isinstance(record, ModelRecord) else getattr(engine, "traits", None)
    return traits if isinstance(traits, ModelTraits) else _NOTHING_KNOWN


def own_record(lm: dspy.BaseLM | None) -> ModelRecord:
    """Return a model's record; of one whose engine DSPy chose, or a user wrote, it lasts as long as the process."""
    record = getattr(getattr(lm, "engine", None), "record", None)
    if isinstance(record, ModelRecord):
        return record
    able = "logprobs" in getattr(lm, "supported_params", ())
    name, address = str(getattr(lm, "model", "")), str(getattr(lm, "kwargs", {}).get("api_base") or "")
    return as_listed(record_of(name, address, None, {} if able else {"token_probabilities": 0}), name)


def as_listed(record: ModelRecord, name: str) -> ModelRecord:
    """Return the record of a hosted model, with what LiteLLM's list says of its eyes where nothing else is known."""
    if record.known.reads_images is None and _is_listed_with_vision(name):
        record.learn(reads_images=True)
    return record


@lru_cache(maxsize=64)
def _is_listed_with_vision(name: str) -> bool:
    import litellm

    costs = litellm.model_cost
    return bool((costs.get(name) or costs.get(name.partition("/")[2]) or {}).get("supports_vision"))


def _read(file: Path | None) -> ModelTraits | None:
    try:
        return ModelTraits.model_validate_json(file.read_bytes()) if file is not None else None
    except (OSError, ValidationError):  # none yet, or not ours: it is asked anew
        return None
