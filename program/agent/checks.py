"""What works on this machine: packages, tools, MLflow store, caches, each role's model."""

import os
import platform
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import dspy
import numpy as np
from dspy.utils.exceptions import AdapterParseError, LMError
from PIL import Image

from program.agent.resources import lm_of
from program.common.backends import ROLES, RoleSettings
from program.common.errors import ImagesRefused, InputError, ModelError, did_you_mean, fault_and_mend
from program.common.keys import redact
from program.common.settings import Settings
from program.lms.adapter import adapter_for
from program.lms.call import KeyScrubber
from program.lms.traits import ModelTraits, known_traits, own_record, traits_of
from program.tools.registry import Device, installed_version
from signatures.executor import NameColours

PACKAGES = ("dspy", "litellm", "openai", "mlflow", "numpy", "scipy", "pillow")
OPTIONAL = ("pyiqa", "fastapi", "mcp", "ray", "pillow-heif", "ImageHash")
"""Of pyiqa's tools, and of the extras serve, mcp, ray, heif and gallery."""


class Check(NamedTuple):
    """One thing that works, does not, or is worth knowing."""

    name: str
    status: Literal["ok", "note", "failed"]
    detail: str
    mend: str | None = None
    """Every failed check has one; None where there is nothing to mend."""


def local_checks(settings: Settings) -> list[Check]:
    """Return the checks that ask no model."""
    return [
        _packages(),
        _torch(settings.tools.device),
        _tools(settings),
        _store(settings),
        _cache(settings.cache_dir),
        Check("optional packages", "ok", _versions_text(OPTIONAL)),
    ]


def _versions_text(packages: Sequence[str]) -> str:
    return ", ".join(f"{name} {installed_version(name) or 'missing'}" for name in packages)


def _packages() -> Check:
    detail = f"Python {platform.python_version()}, {_versions_text(PACKAGES)}"
    if not (installed_version("dspy") or "").startswith("3.4."):
        return Check("packages", "failed", detail, "pip install 'dspy-ai>=3.4.1,<3.5'")
    if missing := [name for name in PACKAGES if installed_version(name) is None]:
        return Check("packages", "failed", detail, f"pip install {' '.join(missing)}")
    return Check("packages", "ok", detail)


def _torch(device: Device) -> Check:
    try:
        import torch
        import torchvision
    except Exception as error:  # builds that do not fit fail with RuntimeError, not ImportError
        reason = " ".join(str(error).split())[:120]
        fault = f"torch and torchvision cannot be used together ({reason})"
        mend = "install torch and torchvision together, from one index: pip install --force-reinstall torch torchvision"
        return Check("torch", "failed", fault, mend)
    versions = f"torch {torch.__version__} with torchvision {torchvision.__version__}"
    has_cuda = torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        fault = f"{versions} sees no CUDA device, and tools.device is cuda"
        mend = "set tools.device (AGENTICIQA_DEVICE) to auto or cpu, or install torch with CUDA and NVIDIA's driver"
        return Check("torch", "failed", fault, mend)
    used = "cuda" if has_cuda and device != "cpu" else "cpu"
    return Check("torch", "ok", f"{versions}, on {used}")


def _tools(settings: Settings) -> Check:
    from program.tools.runner import ToolRunner

    parts = []
    try:
        runner = ToolRunner(settings)
        missing = runner.unavailable()
        counts = []
        for mode in ("NR", "FR"):
            names = [spec.name for spec in runner.ready(mode, expensive=True)]
            counts.append(len(names))
            parts.append(f"{len(names)} {mode} ready ({', '.join(names)})")
    except InputError as error:
        mend = "correct tools in the settings; python -m program.tools lists them"
        return _failed("tools", error, mend)
    if missing:
        parts.append(f"{len(missing)} not: {', '.join(missing)}")
    detail = "; ".join(parts)
    if 0 in counts:
        reason = next(iter(missing.values()))
        return Check("tools", "failed", detail, f"{reason}; see python -m program.tools --all")
    return Check("tools", "ok", detail)


def _store(settings: Settings) -> Check:
    from program.tracking import Tracker

    try:
        tracker = Tracker(settings.mlruns_dir, experiment="doctor")
        tracker.client.delete_experiment(tracker.experiment_id)
    except InputError as error:
        return _failed("MLflow store", error, "set MLFLOW_TRACKING_URI or mlruns_dir")
    except Exception as error:  # MLflow, SQLAlchemy and the network each raise their own kinds
        reason = " ".join(redact(str(error)).split())[:200]
        return Check("MLflow store", "failed", reason, "set MLFLOW_TRACKING_URI or mlruns_dir")
    return Check("MLflow store", "ok", f"{redact(tracker.tracking_uri)} can be written")


def _cache(folder: Path) -> Check:
    there = next(place for place in (folder.resolve(), *folder.resolve().parents) if place.exists())
    if there.is_dir() and os.access(there, os.W_OK):
        return Check("cache", "ok", f"{folder} can be written")
    mend = "set cache_dir (AGENTICIQA_CACHE_DIR)"
    return Check("cache", "failed", f"{folder} cannot be written", mend)


COLOURS = {
    "red": (220, 30, 30), "green": (20, 150, 40), "blue": (30, 60, 220), "yellow": (240, 220, 30),
    "black": (0, 0, 0), "white": (255, 255, 255),
}  # fmt: skip
_LISTED_MODELS = 8
"""So many of a server's models are named."""
SIDE_PX = 64
"""Of the picture that is sent; smaller ones are refused by some models."""


def model_checks(settings: Settings) -> list[Check]:
    """Return the checks of each distinct model: what it can do, and a call with a small picture."""
    models: dict[tuple[str, str | None], tuple[RoleSettings, list[str]]] = {}
    for name in ROLES:
        role: RoleSettings | None = getattr(settings.models, name)
        if role is not None:
            models.setdefault((role.backend, role.api_base), (role, []))[1].append(name)
    checks = []
    for role, names in models.values():
        checks += _model(role, f"model {role.backend} ({', '.join(names)})", settings.cache_dir)
    return checks


def _model(role: RoleSettings, title: str, cache_dir: Path) -> list[Check]:
    try:
        lm = lm_of(role, cache_dir=cache_dir)
        if known_traits(lm).embedded:
            return [Check(title, "ok", "embedded, needs no network")]
        own_record(lm).forget()
        traits = traits_of(lm)
    except (ModelError, LMError) as error:
        return [_failed(title, error, "name another model (--lm)")]
    listing = _listing(str(lm.model).partition("/")[2], traits, f"{title}: listed")
    if any(check.status == "failed" for check in listing):
        return listing
    sight = None
    if traits.reads_images is not False:
        sight = _called(lm, title)
    if sight is None:
        detail = "reads none: the embedded expert looks in its place"
        sight = Check(f"{title}: images", "note", detail)
    if sight.status == "failed":
        return [*listing, sight]
    return [*listing, sight, _features(lm, title)]


def _listing(name: str, traits: ModelTraits, title: str) -> list[Check]:
    """Compare a model's name with those its server lists; if it holds one, any name means that."""
    if not traits.models:
        return []
    names = ", ".join(traits.models[:_LISTED_MODELS])
    if len(traits.models) > _LISTED_MODELS:
        names += f" and {len(traits.models) - _LISTED_MODELS} more"
    if name not in traits.models and traits.wire_model is None:
        mend = f"name one of them{did_you_mean(name, traits.models)}"
        return [Check(title, "failed", f"the server has {names}", mend)]
    return [Check(title, "ok", f"the server has {names}")]


def _called(lm: dspy.LM, title: str) -> Check | None:
    """Show a model two colours, and return what it makes of them; None if it reads no images."""
    colours = tuple(secrets.SystemRandom().sample(sorted(COLOURS), 2))
    once = lm.copy(num_retries=0, cache=False)
    started = time.perf_counter()
    try:
        with dspy.context(lm=once, adapter=adapter_for(lm), callbacks=[KeyScrubber(lm)]):
            answer = dspy.Predict(NameColours)(image=_two_halves(*colours))
    except AdapterParseError as error:
        detail = f"answers, but not as asked ({redact(str(error.lm_response))[:80]!r})"
        mend = "choose a model that follows a JSON form"
        return Check(f"{title}: called", "failed", detail, mend)
    except LMError as error:
        if isinstance(error.__cause__, ImagesRefused):
            return None
        return _failed(f"{title}: called", error, "see the service's message")
    seconds = time.perf_counter() - started
    names = (answer.left, answer.right)
    if names == colours:
        return Check(f"{title}: sees", "ok", f"named {names[0]} and {names[1]} in {seconds:.1f} s")
    # A server may lose an image without a word: from now on the embedded expert looks in this
    # model's place.
    own_record(lm).learn(reads_images=False)
    detail = f"was shown {colours[0]} and {colours[1]}, and says {names[0]} and {names[1]}; it gets no more images"
    return Check(f"{title}: sees", "failed", detail, "choose a model that takes images")


def _features(lm: dspy.LM, title: str) -> Check:
    """Return what the model's record says of forms, token probabilities and context."""
    traits, facts = traits_of(lm), []
    if traits.takes_schema:
        facts.append("takes a JSON schema")
    if traits.token_probabilities:
        facts.append(f"{traits.token_probabilities} alternatives with each token")
    if traits.context_tokens:
        facts.append(f"context {traits.context_tokens:,} tokens")
    if traits.max_tokens_field != "max_tokens":
        facts.append(f"{traits.max_tokens_field} in place of max_tokens")
    if traits.thinks:
        facts.append("thinks before it answers")
    for field, words in traits.refused.items():
        facts.append(f"no {field} ({words})")
    status: Literal["ok", "note"] = "note"
    if traits.takes_schema and traits.token_probabilities:
        status = "ok"
    return Check(f"{title}: features", status, "; ".join(facts) or "none known")


def _two_halves(left: str, right: str) -> dspy.Image:
    pixels = np.zeros((SIDE_PX, SIDE_PX, 3), np.uint8)
    pixels[:, : SIDE_PX // 2] = COLOURS[left]
    pixels[:, SIDE_PX // 2 :] = COLOURS[right]
    return dspy.Image(Image.fromarray(pixels))


def _failed(name: str, error: Exception, otherwise: str) -> Check:
    """Return the failed check of an error, with the mend that it names, else `otherwise`."""
    # DSPy rewords every error that passes through an engine.
    if isinstance(error.__cause__, InputError):
        error = error.__cause__
    fault, mend = fault_and_mend(error)
    return Check(name, "failed", redact(fault)[:200], redact(mend) or otherwise)
