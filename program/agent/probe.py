"""Whether a role's model works here: reachable, sees, takes schemas, gives log-probabilities; one tiny call tells."""

import math
import secrets
import time
from collections.abc import Mapping

import dspy
import numpy as np
from dspy.utils.exceptions import AdapterParseError, LMError
from numpy.typing import NDArray
from PIL import Image

from program.agent.checks import Check
from program.agent.query import DEFAULT_QUERY
from program.agent.resources import lm_of
from program.common.backends import ROLES, RoleSettings
from program.common.errors import ModelError, did_you_mean
from program.common.redaction import redact
from program.common.settings import Settings
from program.fusion.levels import tokens_of
from program.images.store import IMAGES
from program.lms.build import api_key_of
from program.lms.call import Unquoting
from program.lms.dspy_private import adapter_for, is_embedded
from signatures.probe import NameColours
from signatures.summarizer import ScoreQuality

__all__ = ("COLOURS", "model_checks")

COLOURS = {
    "red": (220, 30, 30), "green": (20, 150, 40), "blue": (30, 60, 220), "yellow": (240, 220, 30),
    "black": (0, 0, 0), "white": (255, 255, 255),
}  # fmt: skip
SIDE_PX = 64
"""Of the picture that is sent; smaller ones are refused by some models."""
LISTING_TIMEOUT_S = 10
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
    """Return the checks of each distinct model; every one is called once with a small picture."""
    models: dict[tuple[str, str | None], tuple[RoleSettings, list[str]]] = {}
    for name in ROLES:
        role: RoleSettings | None = getattr(settings.models, name)
        if role is not None:
            models.setdefault((role.backend, role.api_base), (role, []))[1].append(name)
    return [
        check for role, names in models.values() for check in _model(role, f"model {role.backend} ({', '.join(names)})")
    ]


def _model(role: RoleSettings, title: str) -> list[Check]:
    try:
        lm = lm_of(role, cache_dir=None)
    except ModelError as error:
        return [Check(title, "failed", str(error))]
    if is_embedded(lm):
        return [_embedded(lm, title)]
    base = (role.entry.api_base if role.entry else None) or role.api_base
    if base is None or not str(lm.model).startswith("server-"):
        return _called(lm, title)
    listing = _listing(lm, base, api_key_of(role), f"{title}: listed")
    unreachable = listing.status == "failed" and "reached" in listing.detail
    return [listing] if unreachable else [listing, *_called(lm, title)]


def _listing(lm: dspy.LM, base: str, key: str | None, title: str) -> Check:
    """Ask a server for its models, through the official client."""
    import openai

    name = str(lm.model).partition("/")[2]
    try:
        with openai.OpenAI(base_url=base, api_key=key or "none", max_retries=0, timeout=LISTING_TIMEOUT_S) as client:
            models = sorted(model.id for model in client.models.list())
    except openai.APIConnectionError as error:
        reason = redact(str(error.__cause__ or error))
        mend = "start the server, or give its --api-base"
        return Check(title, "failed", f"{base} cannot be reached ({reason})", mend)
    except openai.AuthenticationError:
        return Check(title, "failed", f"{base} refuses the key", "set the key of this server in AGENTICIQA_API_KEY")
    except openai.OpenAIError as error:
        return Check(title, "note", f"{base} lists no models ({_line(error)})")
    names = ", ".join(models[:8]) + (f" and {len(models) - 8} more" if len(models) > 8 else "")
    if models and name not in models:
        return Check(title, "failed", f"{base} serves {names}", f"name one of them{did_you_mean(name, models)}")
    return Check(title, "ok", f"{base} serves {names or 'no model by name'}")


def _called(lm: dspy.LM, title: str) -> list[Check]:
    """Show a model two colours, and return what it makes of them."""
    colours = tuple(secrets.SystemRandom().sample(sorted(COLOURS), 2))
    options = {"logprobs": True, "top_logprobs": 5} if "logprobs" in lm.supported_params else {}
    started = time.perf_counter()
    try:
        with dspy.context(lm=lm.copy(num_retries=0, cache=False), adapter=adapter_for(lm), callbacks=[Unquoting(lm)]):
            answer = dspy.Predict(NameColours)(image=_two_halves(*colours), config=options)
    except AdapterParseError as error:
        detail = f"answers, but not as asked ({redact(str(error.lm_response))[:80]!r})"
        return [Check(f"{title}: called", "failed", detail, "choose a model that follows a JSON form")]
    except LMError as error:
        mend = _MENDS.get(type(error).__name__, "see the service's message")
        return [Check(f"{title}: called", "failed", _line(error), mend)]
    seconds = time.perf_counter() - started
    names = (answer.left, answer.right)
    if names == colours:
        sight = Check(f"{title}: sees", "ok", f"named {names[0]} and {names[1]} in {seconds:.1f} s")
    else:
        detail = f"was shown {colours[0]} and {colours[1]}, and says {names[0]} and {names[1]}"
        sight = Check(f"{title}: sees", "failed", detail, "choose a model that takes images")
    return [sight, *_features(lm, title, answer)]


def _features(lm: dspy.LM, title: str, answer: dspy.Prediction) -> list[Check]:
    refusals: Mapping[str, str] = getattr(lm.engine, "refused", {})
    takes_schema = lm.supports_response_schema and "response_format" in lm.supported_params
    gap = refusals.get("response_format") or ("" if takes_schema else "not known of this model")
    schema = Check(f"{title}: structured output", "ok", "takes a JSON schema")
    if gap:
        schema = schema._replace(status="note", detail=f"answers are read from text: {gap}")
    gap = refusals.get("logprobs") or "not known of this model"
    given = "given; --config with assessment: {scoring: auto} uses them"
    logprobs = Check(f"{title}: log-probabilities", "ok", given)
    if not tokens_of(answer.get("logprobs")):
        logprobs = logprobs._replace(status="note", detail=f"none: {gap}; levels are asked for in numbers")
    return [schema, logprobs]


def _embedded(lm: dspy.LM, title: str) -> Check:
    """Let the embedded expert rate a clean picture and a noisy one."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[0:128, 0:128]
    clean = np.stack([rows + columns // 2, columns, 255 - rows], axis=2).clip(0, 255).astype(np.uint8)
    noisy = (clean + rng.normal(0, 60, clean.shape)).clip(0, 255).astype(np.uint8)
    levels = [_expected_level(lm, pixels, clean) for pixels in (clean, noisy)]
    detail = f"rates a clean picture {levels[0]:.1f} and one with noise {levels[1]:.1f}; embedded, needs no network"
    if levels[0] > levels[1]:
        return Check(title, "ok", detail)
    return Check(title, "failed", detail, "install this version again")


def _expected_level(lm: dspy.LM, pixels: NDArray[np.uint8], original: NDArray[np.uint8]) -> float:
    image, reference = (dspy.Image(IMAGES.add(array).url) for array in (pixels, original))
    with dspy.context(lm=lm, adapter=adapter_for(lm)):
        answer = dspy.Predict(ScoreQuality)(image=image, reference=reference, query=DEFAULT_QUERY)
    return math.fsum(level * p for level, p in answer.quality_probs.by_level().items())


def _two_halves(left: str, right: str) -> dspy.Image:
    pixels = np.zeros((SIDE_PX, SIDE_PX, 3), np.uint8)
    pixels[:, : SIDE_PX // 2], pixels[:, SIDE_PX // 2 :] = COLOURS[left], COLOURS[right]
    return dspy.Image(Image.fromarray(pixels))


def _line(error: Exception) -> str:
    return " ".join(redact(str(error)).split())[:200]
