"""All settings in one tree: configs/*.yaml, then a user's file, then the environment, then arguments."""

import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from program.errors import SettingsError, did_you_mean

__all__ = ("CompileSettings", "FusionSettings", "RoleSettings", "Settings", "ToolSettings", "load_settings")

ROLES = ("planner", "executor", "summarizer")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RoleSettings(_Section):
    """The language model that plays one role."""

    backend: str
    """`provider/model` or `provider.model`; `perceptual/expert` is the embedded one."""
    temperature: float = Field(0.0, ge=0)
    max_tokens: int = Field(1024, gt=0)
    api_base: str | None = None
    """An OpenAI-compatible server, as http://127.0.0.1:8000/v1."""


class LanguageModels(_Section):
    """A language model per role."""

    planner: RoleSettings
    executor: RoleSettings
    summarizer: RoleSettings


class AssessmentSettings(_Section):
    """How one assessment runs."""

    max_replan_iterations: int = Field(ge=0)
    diagnosis: Literal["merged", "separate"]
    """Detect and analyse distortions in one question or in two."""
    scoring: Literal["probabilities", "classification", "logprobs"]
    """Ask for a probability per level, for one letter, or for one letter with its token log-probabilities."""


class FusionSettings(_Section):
    """How tool scores and level probabilities become one score."""

    eta: float = Field(ge=0)
    normalize: bool


class ToolSettings(_Section):
    """The image-quality tools."""

    params_dir: Path | None = None
    """Folder with the small parameter files some tools need."""
    device: Literal["auto", "cpu", "cuda"]
    calibration: Path | None = None
    """Calibration file; the shipped one when None."""


class CompileSettings(_Section):
    """What `python -m program.compile` does unless told otherwise."""

    data: str
    optimizer: str
    max_bootstrapped_demos: int = Field(ge=0)
    max_labeled_demos: int = Field(ge=0)
    candidate_programs: int = Field(ge=1)
    train_scoring: int = Field(ge=0)
    """At most this many scoring samples of the train split teach; likewise below."""
    train_mcq: int = Field(ge=0)
    validation_scoring: int = Field(ge=1)
    validation_mcq: int = Field(ge=0)
    workers: int = Field(ge=1)
    rerank: int = Field(ge=1)
    """How many of the best candidates are ranked again by validation SRCC and accuracy."""


class TrackingSettings(_Section):
    """What MLflow is told beyond params, figures and tables."""

    trace_sampling: float = Field(ge=0, le=1)
    """Share of the assessments of an evaluation that are recorded step by step as traces."""


class Settings(_Section):
    """The whole tree."""

    seed: int = Field(ge=0)
    cache_dir: Path
    mlruns_dir: Path
    programs_dir: Path
    """Where compiled programs are saved, one folder each."""
    assessment: AssessmentSettings
    fusion: FusionSettings
    tools: ToolSettings
    compile: CompileSettings
    tracking: TrackingSettings
    models: LanguageModels

    def with_model(self, backend: str | None, api_base: str | None = None) -> "Settings":
        """Return the settings with one model in every role."""
        if backend is None and api_base is None:
            return self
        update = {k: v for k, v in {"backend": backend, "api_base": api_base}.items() if v is not None}
        roles = {role: getattr(self.models, role).model_copy(update=update) for role in ROLES}
        return self.model_copy(update={"models": LanguageModels(**roles)})


_ENVIRONMENT = {
    "AGENTICIQA_CACHE_DIR": ("cache_dir",),
    "AGENTICIQA_MLRUNS_DIR": ("mlruns_dir",),
    "AGENTICIQA_PARAMS_DIR": ("tools", "params_dir"),
    "AGENTICIQA_DEVICE": ("tools", "device"),
    "AGENTICIQA_LM": ("models", "*", "backend"),
    "AGENTICIQA_API_BASE": ("models", "*", "api_base"),
}


def load_settings(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings tree. Raises SettingsError naming the file or variable and the key.

    `path` (or AGENTICIQA_CONFIG) is a YAML file with the keys to change; `overrides` has the tree's shape.
    """
    origin = "configs/default.yaml"
    tree = _read(files("configs").joinpath("default.yaml").read_text("utf-8"), origin)
    tree["models"] = _read(
        files("configs").joinpath("model_backends.yaml").read_text("utf-8"), "configs/model_backends.yaml"
    )
    chosen = path or (Path(os.environ["AGENTICIQA_CONFIG"]) if os.environ.get("AGENTICIQA_CONFIG") else None)
    if chosen is not None:
        try:
            text = chosen.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"settings file {str(chosen)!r}: cannot be read ({error}); check the path") from error
        origin = str(chosen)
        _merge(tree, _read(text, origin))
    for variable, keys in _ENVIRONMENT.items():
        if os.environ.get(variable):
            for role in ROLES if "*" in keys else ("",):
                _merge(tree, _nest([role if key == "*" else key for key in keys], os.environ[variable]))
    _merge(tree, overrides or {})
    for key in ("cache_dir", "mlruns_dir", "programs_dir"):
        tree[key] = Path(str(tree[key])).expanduser()
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise SettingsError(_explain(error, origin)) from error


def _read(text: str, origin: str) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise SettingsError(f"settings {origin!r}: not valid YAML ({' '.join(str(error).split())})") from error
    if not isinstance(tree, dict):
        raise SettingsError(f"settings {origin!r}: holds {type(tree).__name__}; give keys and values")
    return tree


def _nest(keys: list[str], value: str) -> dict[str, Any]:
    return {keys[0]: _nest(keys[1:], value) if len(keys) > 1 else value}


def _merge(tree: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(tree.get(key), dict):
            _merge(tree[key], value)
        else:
            tree[key] = value


def _explain(error: ValidationError, origin: str) -> str:
    first = error.errors()[0]
    location = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        section: Any = Settings
        for part in first["loc"][:-1]:
            section = section.model_fields[str(part)].annotation
        return (
            f"settings {origin!r}: unknown key {location!r}{did_you_mean(str(first['loc'][-1]), section.model_fields)}"
        )
    return f"settings {origin!r}: {location} = {first['input']!r}: {first['msg'].lower()}"
