"""What works on this machine: packages, tools, MLflow store, caches, and each role's model. Each with its remedy."""

import os
import platform
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

import dspy
import numpy as np
from dspy.utils.exceptions import AdapterParseError, LMError
from PIL import Image

from program.agent.resources import lm_of
from program.common.backends import ROLES, RoleSettings
from program.common.errors import ImagesRefused, InputError, ModelError, did_you_mean, fault_and_mend
from program.common.keys import KeyFormError, redact, usable_key
from program.common.settings import Settings
from program.lms.adapter import adapter_for
from program.lms.call import KeyScrubber
from program.lms.traits import ModelTraits, known_traits, own_record, traits_of
from program.tools.registry import Device, installed_version
from signatures.executor import NameColours

PACKAGES = ("dspy", "litellm", "openai", "mlflow", "numpy", "scipy", "pillow")
PYIQA = "most of the paper's tools (PolyForm Noncommercial)"
EXTRAS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "serve": ("python -m program.serve", ("fastapi", "httpx", "prometheus-client", "python-multipart", "uvicorn")),
    "mcp": ("agentic-iqa mcp", ("mcp",)),
    "ray": ("--engine ray: many processes or machines", ("ray",)),
    "heif": ("images in HEIF (.heic)", ("pillow-heif",)),
    "gallery": ("agentic-iqa gallery", ("ImageHash",)),
    "dev": ("make test and make lint", ("hatchling", "hypothesis", "import-linter", "mypy", "pytest", "ruff")),
    "slow": ("make test-slow", ("moto", "s3fs", "torchmetrics", "xllamacpp")),
}
"""What an extra of the installation is for, and packages by which it is known to be there."""
KEYS = ("AGENTICIQA_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY")


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
        _packages(), _torch(settings.tools.device), _tools(settings), _store(settings), _cache(settings.cache_dir),
        _keys(settings), _optional("pyiqa", PYIQA, ("pyiqa",), "pip install pyiqa"),
        *(
            _optional(f"[{name}]", use, packages, f"pip install 'agentic-iqa[{name}]'")
            for name, (use, packages) in EXTRAS.items()
        ),
    ]  # fmt: skip


def _keys(settings: Settings) -> Check:
    names = [*KEYS, *(entry.key_env for entry in settings.models.backends.values() if entry.key_env)]
    keys = {name: os.environ.get(name, "") for name in names}
    try:
        shown = [f"{name} {'set' if usable_key(name, key) else 'not set'}" for name, key in keys.items()]
    except KeyFormError as error:
        return _failed("keys", error, "copy the key again")
    return Check("keys", "ok", ", ".join(shown))


def _packages() -> Check:
    versions = {name: installed_version(name) for name in PACKAGES}
    detail = ", ".join([f"Python {platform.python_version()}", *(f"{n} {v or 'missing'}" for n, v in versions.items())])
    if not (versions["dspy"] or "").startswith("3.4."):
        return Check("packages", "failed", detail, "pip install 'dspy-ai>=3.4.1,<3.5'")
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        return Check("packages", "failed", detail, f"pip install {' '.join(missing)}")
    return Check("packages", "ok", detail)


def _torch(device: Device) -> Check:
    try:
        import torch
        import torchvision
    except Exception as error:  # torch and torchvision of different builds fail with RuntimeError, not ImportError
        reason = " ".join(str(error).split())[:120]
        mend = "install torch and torchvision together, from one index: pip install --force-reinstall torch torchvision"
        return Check("torch", "failed", f"torch and torchvision cannot be used together ({reason})", mend)
    versions = f"torch {torch.__version__} with torchvision {torchvision.__version__}"
    has_cuda = torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        mend = "set tools.device (AGENTICIQA_DEVICE) to auto or cpu, or install torch with CUDA and NVIDIA's driver"
        return Check("torch", "failed", f"{versions} sees no CUDA device, and tools.device is cuda", mend)
    return Check("torch", "ok", f"{versions}, on {'cuda' if has_cuda and device != 'cpu' else 'cpu'}")


def _tools(settings: Settings) -> Check:
    from program.tools.runner import ToolRunner

    try:
        runner = ToolRunner(settings)
        missing = runner.unavailable()
        ready = {mode: [spec.name for spec in runner.ready(mode, expensive=True)] for mode in ("NR", "FR")}
    except InputError as error:
        return _failed("tools", error, "correct tools in the settings; python -m program.tools lists them")
    detail = "; ".join(f"{len(names)} {mode} ready ({', '.join(names)})" for mode, names in ready.items())
    if missing:
        detail += f"; {len(missing)} not: {', '.join(missing)}"
    if not ready["NR"] or not ready["FR"]:
        return Check("tools", "failed", detail, f"{next(iter(missing.values()))}; see python -m program.tools")
    return Check("tools", "ok", detail, "python -m program.tools --all says why" if missing else None)


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
    mend = "set cache_dir (AGENTICIQA_CACHE_DIR)"
    if not folder.exists():
        parent = next(p for p in folder.resolve().parents if p.exists())
        if parent.is_dir() and os.access(parent, os.W_OK):
            return Check("cache", "ok", f"{folder} is empty")
        return Check("cache", "failed", f"{folder} cannot be made", mend)
    if not os.access(folder, os.W_OK):
        return Check("cache", "failed", f"{folder} cannot be written", mend)
    sizes = {path.name: _size_mb(path) for path in sorted(folder.iterdir()) if path.is_dir()}
    parts = ", ".join(f"{name} {size:.1f} MiB" for name, size in sizes.items() if size and not name.isdigit())
    return Check("cache", "ok", f"{folder}: {_size_mb(folder):.1f} MiB" + (f" ({parts})" if parts else ""))


def _size_mb(folder: Path) -> float:
    size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # deleted by another process meanwhile
            size += path.stat().st_size if path.is_file() else 0
    return size / 2**20


def _optional(name: str, use: str, packages: Sequence[str], mend: str) -> Check:
    versions = {package: installed_version(package) for package in packages}
    missing = ", ".join(package for package, version in versions.items() if version is None)
    if missing:
        return Check(name, "note", f"{missing} not installed; only {use} needs it", mend)
    return Check(name, "ok", f"{use}: " + ", ".join(f"{package} {version}" for package, version in versions.items()))


COLOURS = {
    "red": (220, 30, 30), "green": (20, 150, 40), "blue": (30, 60, 220), "yellow": (240, 220, 30),
    "black": (0, 0, 0), "white": (255, 255, 255),
}  # fmt: skip
SIDE_PX = 64
"""Of the picture that is sent; smaller ones are refused by some models."""


def model_checks(settings: Settings) -> list[Check]:
    """Return the checks of each distinct model, which is asked again what it can do and called with a small picture."""
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
        if known_traits(lm).embedded:
            return [Check(title, "ok", "embedded, needs no network")]
        own_record(lm).known = ModelTraits()  # it is asked again
        traits = traits_of(lm)
    except (ModelError, LMError) as error:
        return [_failed(title, error, "name another model (--lm)")]
    listing = _listing(str(lm.model).partition("/")[2], traits, f"{title}: listed")
    if any(check.status == "failed" for check in listing):
        return listing
    sight = None if traits.reads_images is False else _called(lm, title)
    sight = sight or Check(f"{title}: images", "note", "reads none: the embedded expert looks in its place")
    return [*listing, sight, *([] if sight.status == "failed" else _features(lm, title))]


def _listing(name: str, traits: ModelTraits, title: str) -> list[Check]:
    """Compare a model's name with those its server lists; on a server of one model any name means that one."""
    if not traits.models:
        return []
    names = ", ".join(traits.models[:8]) + (f" and {len(traits.models) - 8} more" if len(traits.models) > 8 else "")
    if name not in traits.models and traits.wire_model is None:
        mend = f"name one of them{did_you_mean(name, traits.models)}"
        return [Check(title, "failed", f"the server has {names}", mend)]
    return [Check(title, "ok", f"the server has {names}")]


def _called(lm: dspy.LM, title: str) -> Check | None:
    """Show a model two colours, and return what it makes of them; None where it turns out to read no images."""
    colours = tuple(secrets.SystemRandom().sample(sorted(COLOURS), 2))
    started = time.perf_counter()
    try:
        with dspy.context(lm=lm.copy(num_retries=0, cache=False), adapter=adapter_for(lm), callbacks=[KeyScrubber(lm)]):
            answer = dspy.Predict(NameColours)(image=_two_halves(*colours))
    except AdapterParseError as error:
        detail = f"answers, but not as asked ({redact(str(error.lm_response))[:80]!r})"
        return Check(f"{title}: called", "failed", detail, "choose a model that follows a JSON form")
    except LMError as error:
        if isinstance(error.__cause__, ImagesRefused):
            return None
        return _failed(f"{title}: called", error, "see the service's message")
    seconds = time.perf_counter() - started
    names = (answer.left, answer.right)
    if names == colours:
        return Check(f"{title}: sees", "ok", f"named {names[0]} and {names[1]} in {seconds:.1f} s")
    # A server may lose an image without a word: from now on the embedded expert looks in this model's place.
    own_record(lm).learn(reads_images=False)
    detail = f"was shown {colours[0]} and {colours[1]}, and says {names[0]} and {names[1]}; it gets no more images"
    return Check(f"{title}: sees", "failed", detail, "choose a model that takes images")


def _features(lm: dspy.LM, title: str) -> list[Check]:
    """Return what the model's record says of forms, token probabilities and context."""
    traits = traits_of(lm)
    schema = Check(f"{title}: structured output", "ok", "takes a JSON schema")
    if not traits.takes_schema:
        gap = traits.refused.get("response_format", "not known of this model")
        schema = schema._replace(status="note", detail=f"answers are read from text: {gap}")
    given = traits.token_probabilities
    logprobs = Check(f"{title}: token probabilities", "ok", f"{given} alternatives with each token")
    if not given:
        gap = traits.refused.get("logprobs", "none came" if given == 0 else "not asked yet")
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


def _failed(name: str, error: Exception, otherwise: str) -> Check:
    """Return the failed check of an error, with the mend that it names, else `otherwise`."""
    # DSPy rewords every error that passes through an engine.
    cause = error.__cause__ if isinstance(error.__cause__, InputError) else error
    fault, mend = fault_and_mend(cause)
    return Check(name, "failed", redact(fault)[:200], redact(mend) or otherwise)
