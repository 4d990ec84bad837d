"""All settings in one tree: configs/*.yaml, then a user's file, then the environment, then arguments."""

import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import Field, ValidationError

from program.common.backends import ROLES, LanguageModels, RoleSettings, Section, takes_api_base
from program.common.errors import SettingsError, did_you_mean
from program.common.sections import (
    AssessmentSettings,
    CompileSettings,
    FusionSettings,
    ImageSettings,
    OptimizerSettings,
    RecipeSettings,
    ServeSettings,
    ToolSettings,
    TrackingSettings,
    WireSettings,
)

__all__ = (
    "CompileSettings",
    "FusionSettings",
    "OptimizerSettings",
    "RecipeSettings",
    "RoleSettings",
    "ServeSettings",
    "Settings",
    "ToolSettings",
    "WireSettings",
    "load_settings",
)


class Settings(Section):
    """The whole tree."""

    seed: int = Field(ge=0)
    cache_dir: Path
    mlruns_dir: Path
    programs_dir: Path
    """Where compiled programs are saved, one folder each."""
    images: ImageSettings
    assessment: AssessmentSettings
    fusion: FusionSettings
    tools: ToolSettings
    compile: CompileSettings
    tracking: TrackingSettings
    serve: ServeSettings
    optimizers: OptimizerSettings
    models: LanguageModels
    wire: WireSettings

    def with_model(
        self, backend: str | None, api_base: str | None = None, roles: Mapping[str, str] | None = None
    ) -> "Settings":
        """Return the settings with one model in every role, but for the roles that `roles` gives their own.

        `api_base` is the server of every model whose name leaves it open (openai/NAME, vllm/NAME, ...). Raises
        SettingsError where there is none, or where the address cannot be used.
        """
        names = {role: name for role, name in (roles or {}).items() if name is not None}
        if backend is not None:
            present = [role for role in ROLES if role != "reflection" or self.models.reflection is not None]
            names = dict.fromkeys(present, backend) | names
        ambient = os.environ.get("AGENTICIQA_API_BASE") or None
        try:
            models = self.models.replaced(names, api_base, ambient)
        except ValidationError as error:
            raise SettingsError(_explain(error, "--lm, --api-base", LanguageModels)) from error
        return self.model_copy(update={"models": models})


_ENVIRONMENT = {
    "AGENTICIQA_CACHE_DIR": ("cache_dir",),
    "AGENTICIQA_MLRUNS_DIR": ("mlruns_dir",),
    "AGENTICIQA_PARAMS_DIR": ("tools", "params_dir"),
    "AGENTICIQA_DEVICE": ("tools", "device"),
}


def load_settings(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings tree. Raises SettingsError naming the file or variable and the key.

    `path` (or AGENTICIQA_CONFIG) is a YAML file with the keys to change; `overrides` has the tree's shape.
    """
    origin = "configs/default.yaml"
    tree = _read(files("configs").joinpath("default.yaml").read_text("utf-8"), origin)
    for key, name in (("models", "model_backends.yaml"), ("optimizers", "optimizers.yaml")):
        tree[key] = _read(files("configs").joinpath(name).read_text("utf-8"), f"configs/{name}")
    chosen = path or (Path(os.environ["AGENTICIQA_CONFIG"]) if os.environ.get("AGENTICIQA_CONFIG") else None)
    if chosen is not None:
        try:
            text = chosen.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"settings file {str(chosen)!r}: cannot be read ({error}); check the path") from error
        origin = str(chosen)
        _merge(tree, _read(text, origin))
    for variable, keys in _ENVIRONMENT.items():
        if value := os.environ.get(variable):
            _merge(tree, {keys[0]: {keys[1]: value} if keys[1:] else value})
    _apply_model_environment(tree["models"])
    _merge(tree, overrides or {})
    for key in ("cache_dir", "mlruns_dir", "programs_dir"):
        tree[key] = _at_home(key, Path(str(tree[key])))
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise SettingsError(_explain(error, origin)) from error


def _at_home(key: str, path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:  # an unknown user without HOME, as containers have them
        raise SettingsError(f"{key} {str(path)!r}: no home folder is known here; set HOME to one") from error


def _apply_model_environment(models: Any) -> None:
    lm, api_base = os.environ.get("AGENTICIQA_LM"), os.environ.get("AGENTICIQA_API_BASE")
    for role in [models[r] for r in ROLES if isinstance(models, dict) and isinstance(models.get(r), dict)]:
        if lm:
            role["backend"] = lm
        if api_base and takes_api_base(str(role.get("backend")), models.get("backends")):
            role["api_base"] = api_base


def _read(text: str, origin: str) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise SettingsError(f"settings {origin!r}: not valid YAML ({' '.join(str(error).split())})") from error
    if not isinstance(tree, dict):
        raise SettingsError(f"settings {origin!r}: holds {type(tree).__name__}; give keys and values")
    return tree


def _merge(tree: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(tree.get(key), dict):
            _merge(tree[key], value)
        else:
            tree[key] = value


def _explain(error: ValidationError, origin: str, root: type[Section] | None = None) -> str:
    first = error.errors(include_url=False)[0]
    location = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        keys = _keys_at(root or Settings, first["loc"][:-1])
        return f"settings {origin!r}: unknown key {location!r}{did_you_mean(str(first['loc'][-1]), keys)}"
    if first["type"] == "value_error":  # our own checks: they name the fault and the mend, and no secret
        return f"settings {origin!r}: {location}: {first['ctx']['error']}"
    return f"settings {origin!r}: {location} = {first['input']!r}: {first['msg'].lower()}"


def _keys_at(section: Any, location: tuple[int | str, ...]) -> list[str]:
    """Return the keys a section of the tree may hold; `location` may lead through named entries."""
    for part in location:
        fields = getattr(section, "model_fields", {})
        kind = fields[str(part)].annotation if str(part) in fields else section
        section = next((t for t in (kind, *get_args(kind)) if hasattr(t, "model_fields")), kind)
    return list(getattr(section, "model_fields", ()))
