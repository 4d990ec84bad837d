"""Whether a role's model works here: reachable, sees, takes schemas, gives log-probabilities; one tiny call tells."""

import io
import math
import secrets
import time
from collections.abc import Iterator, Mapping

import dspy
import numpy as np
from dspy.utils.exceptions import AdapterParseError, LMError
from numpy.typing import NDArray

from program.backends import RoleSettings
from program.checks import Check
from program.errors import ModelError, did_you_mean
from program.images import IMAGES
from program.lms.build import adapter_for, api_key_of, build_lm, is_embedded
from program.lms.unquoting import Unquoting
from program.logprobs import tokens_of
from program.query import DEFAULT_QUERY
from program.redaction import redact
from program.settings import Settings
from signatures.probe import NameColours
from signatures.summarizer import ScoreQuality

__all__ = ("model_checks",)

COLOURS = {
    "red": (220, 30, 30), "green": (20, 150, 40), "blue": (30, 60, 220), "yellow": (240, 220, 30),
    "black": (0, 0, 0), "white": (255, 255, 255),
}  # fmt: skip
SIDE_PX = 64
"""Of the picture that is sent; smaller ones are refused by some models."""
TIMEOUT_S = 10
"""For the list of a server's models."""
_SHOWN = 200


def model_checks(settings: Settings) -> list[Check]:
    """Return the checks of each distinct model; every one is called once with a small picture."""
    found: list[Check] = []
    for role, names in _distinct(settings):
        found += _checked(role, f"model {role.backend} ({', '.join(names)})")
    return found


def _distinct(settings: Settings) -> Iterator[tuple[RoleSettings, list[str]]]:
    roles: dict[tuple[str, str | None], tuple[RoleSettings, list[str]]] = {}
    for name in ("planner", "executor", "summarizer", "reflection"):
        role: RoleSettings | None = getattr(settings.models, name)
        if role is not None:
            roles.setdefault((role.backend, role.api_base), (role, []))[1].append(name)
    yield from roles.values()


def _checked(role: RoleSettings, title: str) -> list[Check]:
    try:
        lm = build_lm(role, cache_dir=None)
    except ModelError as error:
        return [Check.failed(title, str(error))]
    if is_embedded(lm):
        return [_embedded(lm, title)]
    base = (role.entry.api_base if role.entry else None) or role.api_base
    listed = [_listing(lm, base, api_key_of(role), title)] if str(lm.model).startswith("server-") and base else []
    if any(check.status == "failed" and "reached" in check.detail for check in listed):
        return listed
    return [*listed, *_called(lm, title)]


def _listing(lm: dspy.LM, base: str, key: str | None, title: str) -> Check:
    """Ask a server for its models, through the official client."""
    import openai

    name = str(lm.model).partition("/")[2]
    title = f"{title}: listed"
    try:
        with openai.OpenAI(base_url=base, api_key=key or "none", max_retries=0, timeout=TIMEOUT_S) as client:
            models = sorted(model.id for model in client.models.list())
    except openai.APIConnectionError as error:
        reason = redact(str(error.__cause__ or error))
        return Check.failed(title, f"{base} cannot be reached ({reason})", "start the server, or give its --api-base")
    except openai.AuthenticationError:
        return Check.failed(title, f"{base} refuses the key", "set the key of this server in AGENTICIQA_API_KEY")
    except openai.OpenAIError as error:
        return Check.noted(title, f"{base} lists no models ({_line(error)})")
    shown = ", ".join(models[:8]) + (f" and {len(models) - 8} more" if len(models) > 8 else "")
    if models and name not in models:
        return Check.failed(title, f"{base} serves {shown}", f"name one of them{did_you_mean(name, models)}")
    return Check.passed(title, f"{base} serves {shown or 'no model by name'}")


def _called(lm: dspy.LM, title: str) -> list[Check]:
    asked = tuple(secrets.SystemRandom().sample(sorted(COLOURS), 2))
    wants = {"logprobs": True, "top_logprobs": 5} if "logprobs" in lm.supported_params else {}
    started = time.perf_counter()
    try:
        with dspy.context(lm=lm.copy(num_retries=0, cache=False), adapter=adapter_for(lm), callbacks=[Unquoting(lm)]):
            answer = dspy.Predict(NameColours)(image=_two_halves(*asked), config=wants)
    except AdapterParseError as error:
        reply = redact(str(error.lm_response))[:80]
        return [
            Check.failed(
                f"{title}: called", f"answers, but not as asked ({reply!r})", "choose a model that follows a JSON form"
            )
        ]
    except LMError as error:
        return [Check.failed(f"{title}: called", _line(error), _mend(error))]
    seconds = time.perf_counter() - started
    seen = (answer.left, answer.right)
    sees = (
        Check.passed(f"{title}: sees", f"named {seen[0]} and {seen[1]} in {seconds:.1f} s")
        if seen == asked
        else Check.failed(
            f"{title}: sees", f"was shown {asked[0]} and {asked[1]}, and says {seen[0]} and {seen[1]}",
            "choose a model that takes images",
        )
    )  # fmt: skip
    return [sees, *_features(lm, title, answer)]


def _features(lm: dspy.LM, title: str, answer: dspy.Prediction) -> list[Check]:
    refused: Mapping[str, str] = getattr(lm.engine, "refused", {})
    taken = lm.supports_response_schema and "response_format" in lm.supported_params
    why = refused.get("response_format") or (None if taken else "not known of this model")
    schema = Check.passed if why is None else Check.noted
    tokens = tokens_of(answer.get("logprobs"))
    lacking = refused.get("logprobs") or "not known of this model"
    return [
        schema(f"{title}: structured output", f"answers are read from text: {why}" if why else "takes a JSON schema"),
        Check.passed(f"{title}: log-probabilities", "given; --config with assessment: {scoring: auto} uses them")
        if tokens
        else Check.noted(f"{title}: log-probabilities", f"none: {lacking}; levels are asked for in numbers"),
    ]


def _embedded(lm: dspy.LM, title: str) -> Check:
    """Let the embedded expert rate a clean picture and a noisy one."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[0:128, 0:128]
    clean = np.stack([rows + columns // 2, columns, 255 - rows], axis=2).clip(0, 255).astype(np.uint8)
    noisy = (clean + rng.normal(0, 60, clean.shape)).clip(0, 255).astype(np.uint8)
    levels = [_expected_level(lm, pixels, clean) for pixels in (clean, noisy)]
    told = f"rates a clean picture {levels[0]:.1f} and one with noise {levels[1]:.1f}; embedded, needs no network"
    return (
        Check.passed(title, told) if levels[0] > levels[1] else Check.failed(title, told, "install this version again")
    )


def _expected_level(lm: dspy.LM, pixels: NDArray[np.uint8], original: NDArray[np.uint8]) -> float:
    image, reference = (dspy.Image(IMAGES.add(shown).url) for shown in (pixels, original))
    with dspy.context(lm=lm, adapter=adapter_for(lm)):
        answer = dspy.Predict(ScoreQuality)(image=image, reference=reference, query=DEFAULT_QUERY)
    return math.fsum(level * p for level, p in answer.quality_probs.by_level().items())


def _two_halves(left: str, right: str) -> dspy.Image:
    from base64 import b64encode

    from PIL import Image

    pixels = np.zeros((SIDE_PX, SIDE_PX, 3), np.uint8)
    pixels[:, : SIDE_PX // 2], pixels[:, SIDE_PX // 2 :] = COLOURS[left], COLOURS[right]
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return dspy.Image(f"data:image/png;base64,{b64encode(buffer.getvalue()).decode()}")


def _line(error: Exception) -> str:
    return " ".join(redact(str(error)).split())[:_SHOWN]


def _mend(error: LMError) -> str:
    name = type(error).__name__
    if name in {"LMAuthError", "LMNotConfiguredError", "LMConfigurationError"}:
        return "set the provider's key in the environment"
    if name in {"LMTransportError", "LMTimeoutError"}:
        return "check the network, or the address"
    return {"LMUnsupportedModelError": "check the model's name", "LMRateLimitError": "wait, or raise the limit"}.get(
        name, "see the service's message"
    )
