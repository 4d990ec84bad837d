"""Whether a role's model works here: reachable, sees, takes schemas, gives token probabilities; two tiny calls tell."""

import secrets
import time
from pathlib import Path

import dspy
import numpy as np
from dspy.utils.exceptions import AdapterParseError, LMError
from PIL import Image

from program.agent.checks import Check
from program.agent.resources import lm_of
from program.common.backends import ROLES, RoleSettings
from program.common.errors import ImagesRefused, ModelError, did_you_mean
from program.common.redaction import redact
from program.common.settings import Settings
from program.lms.call import Unquoting
from program.lms.dspy_private import adapter_for
from program.lms.traits import ModelTraits, known_traits, own_record, traits_of
from signatures.probe import NameColours

__all__ = ("COLOURS", "model_checks")

COLOURS = {
    "red": (220, 30, 30), "green": (20, 150, 40), "blue": (30, 60, 220), "yellow": (240, 220, 30),
    "black": (0, 0, 0), "white": (255, 255, 255),
}  # fmt: skip
SIDE_PX = 64
"""Of the picture that is sent; smaller ones are refused by some models."""
_MENDS = {
    "LMAuthError": "set the provider's key in the environment",
    "LMNotConfiguredError": "set the provider's key in the environment",
    "LMConfigurationError": "set the provider's key in the environment",
    "LMTransportError": "check the network, or the address",
    "LMTimeoutError": "check the network, or the address",
    "LMUnsupportedModelError": "check the model's name",
    "LMRateLimitError": "wait, or raise the limit",
}


def model_checks(settings: Settings) -> list[Check]:
    """Return the checks of each distinct model, which is asked anew what it can do and called with a small picture."""
    models: dict[tuple[str, str | None], tuple[RoleSettings, list[str]]] = {}
    for name in ROLES:
        role: RoleSettings | None = getattr(settings.models, name)
        if role is not None:
            models.setdefault((role.backend, role.api_base), (role, []))[1].append(name)
    return [
        check
        for role, names in models.values()
        for check in _model(role, f"model {role.backend} ({', '.join(names)})", settings.cache_dir)
    ]


def _model(role: RoleSettings, title: str, cache_dir: Path) -> list[Check]:
    try:
        lm = lm_of(role, cache_dir=cache_dir)
        if known_traits(lm).is_free:
            return [Check(title, "ok", "embedded, needs no network")]
        record = own_record(lm)
        record.forget()
        traits = traits_of(lm)
    except (ModelError, LMError) as error:
        return [Check(title, "failed", _line(error))]
    listing = _listing(str(lm.model).partition("/")[2], traits, f"{title}: listed")
    if any(check.status == "failed" for check in listing):
        return listing
    sight = [Check(f"{title}: images", "note", "reads none: the embedded expert looks in its place")]
    if traits.reads_images is not False:
        sight = _called(lm, title)
    return [*listing, *sight, *([] if sight[-1].status == "failed" else _features(lm, title))]


def _listing(name: str, traits: ModelTraits, title: str) -> list[Check]:
    """Compare a model's name with those its server lists; on a server of one model any name means that one."""
    if not traits.models:
        return []
    names = ", ".join(traits.models[:8]) + (f" and {len(traits.models) - 8} more" if len(traits.models) > 8 else "")
    if name not in traits.models and traits.wire_model is None:
        mend = f"name one of them{did_you_mean(name, traits.models)}"
        return [Check(title, "failed", f"the server has {names}", mend)]
    return [Check(title, "ok", f"the server has {names}")]


def _called(lm: dspy.LM, title: str) -> list[Check]:
    """Show a model two colours, and return what it makes of them."""
    colours = tuple(secrets.SystemRandom().sample(sorted(COLOURS), 2))
    started = time.perf_counter()
    try:
        with dspy.context(lm=lm.copy(num_retries=0, cache=False), adapter=adapter_for(lm), callbacks=[Unquoting(lm)]):
            answer = dspy.Predict(NameColours)(image=_two_halves(*colours))
    except AdapterParseError as error:
        detail = f"answers, but not as asked ({redact(str(error.lm_response))[:80]!r})"
        return [Check(f"{title}: called", "failed", detail, "choose a model that follows a JSON form")]
    except LMError as error:
        if isinstance(error.__cause__, ImagesRefused):
            return [Check(f"{title}: images", "note", "reads none: the embedded expert looks in its place")]
        mend = _MENDS.get(type(error).__name__, "see the service's message")
        return [Check(f"{title}: called", "failed", _line(error), mend)]
    seconds = time.perf_counter() - started
    names = (answer.left, answer.right)
    if names == colours:
        return [Check(f"{title}: sees", "ok", f"named {names[0]} and {names[1]} in {seconds:.1f} s")]
    # A server may lose an image without a word: from now on the embedded expert looks in this model's place.
    own_record(lm).learn(reads_images=False)
    detail = f"was shown {colours[0]} and {colours[1]}, and says {names[0]} and {names[1]}; it gets no more images"
    return [Check(f"{title}: sees", "failed", detail, "choose a model that takes images")]


def _features(lm: dspy.LM, title: str) -> list[Check]:
    """Return what the model's record says of forms, token probabilities and context."""
    traits = traits_of(lm)
    takes_schema = getattr(lm.engine, "takes_schema", lm.supports_response_schema)
    schema = Check(f"{title}: structured output", "ok", "takes a JSON schema")
    if not takes_schema:
        gap = traits.refused.get("response_format", "not known of this model")
        schema = schema._replace(status="note", detail=f"answers are read from text: {gap}")
    given = f"{traits.token_probabilities} alternatives with each token"
    logprobs = Check(f"{title}: token probabilities", "ok", given)
    if not traits.token_probabilities:
        gap = traits.refused.get("logprobs", "none came" if traits.token_probabilities == 0 else "not asked yet")
        logprobs = logprobs._replace(status="note", detail=f"{gap}; without them levels are asked for in numbers")
    context = f"{traits.context_tokens:,} tokens" if traits.context_tokens else "not said"
    others = [f"no {name}" for name in traits.refused if name not in {"response_format", "logprobs"}]
    if traits.max_tokens_field != "max_tokens":
        others.append(f"{traits.max_tokens_field} in place of max_tokens")
    detail = "; ".join([f"context {context}", *others])
    return [schema, logprobs, Check(f"{title}: requests", "ok", detail)]


def _two_halves(left: str, right: str) -> dspy.Image:
    pixels = np.zeros((SIDE_PX, SIDE_PX, 3), np.uint8)
    pixels[:, : SIDE_PX // 2], pixels[:, SIDE_PX // 2 :] = COLOURS[left], COLOURS[right]
    return dspy.Image(Image.fromarray(pixels))


def _line(error: Exception) -> str:
    return " ".join(redact(str(error)).split())[:200]
