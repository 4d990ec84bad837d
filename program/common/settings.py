"""All settings: configs/*.yaml, then a user's file, the environment and arguments."""

import copy
import functools
import json
import os
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from program.common.addresses import kind_of_address
from program.common.backends import ROLES, Frozen, LanguageModels, Section, takes_api_base
from program.common.errors import SettingsError, did_you_mean, first_fault, keys_at, one_line
from program.common.files import CONFIGS
from signatures.schemas import Intention, PictureKind


class WireSettings(Section):
    """How models are asked over the network."""

    attempts: int = Field(ge=3)
    concurrency: int = Field(ge=1)
    requests_per_minute: int | None = Field(ge=1)
    backoff_s: float = Field(gt=0)
    longest_wait_s: float = Field(gt=0)


class ImageSettings(Section):
    """The images that are judged."""

    max_pixels: int = Field(gt=0)
    remote: tuple[str, ...]

    @field_validator("remote")
    @classmethod
    def _kinds(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(kind_of_address, kinds))


class AssessmentSettings(Section):
    """How one assessment runs."""

    max_replan_iterations: int = Field(ge=0)
    look_again: bool
    diagnosis: Literal["answer", "merged", "separate"]
    scoring: Literal["auto", "logprobs", "probabilities", "classification"]
    score_only: bool
    intended: tuple[Intention, ...]
    kind: PictureKind | None


class ExecutorSettings(Section):
    """How the Executor works."""

    selection: Literal["measured", "model"]


class FusionSettings(Section):
    """How tool scores and level probabilities become one score."""

    eta: float = Field(ge=0)
    normalize: bool
    tool_weights: Literal["equal", "reliability"]
    smoothing: float | None = Field(ge=0, le=1)
    model_weight: float | None = Field(ge=0)


class ToolSettings(Section):
    """The image-quality tools."""

    params_dir: Path | None
    device: Literal["auto", "cpu", "cuda"]
    calibration: Path | None
    cache_mb: int = Field(gt=0)
    threads: int = Field(ge=1)
    timeout_s: float = Field(gt=0)
    load_timeout_s: float = Field(gt=0)
    reduce_above_px: int = Field(ge=65536)
    resize_reference: bool


class CompileSettings(Section):
    """Defaults of `python -m program.compile`."""

    data: str
    optimizer: str | None
    roles: tuple[Literal["planner", "executor", "summarizer"], ...] | None
    baselines: bool
    train_scoring: int = Field(ge=0)
    train_mcq: int = Field(ge=0)
    validation_scoring: int = Field(ge=1)
    validation_mcq: int = Field(ge=0)
    workers: int = Field(ge=1)
    rerank: int = Field(ge=1)


class TrackingSettings(Section):
    """What MLflow records besides parameters, figures and tables."""

    traces: int = Field(ge=0)


class ServeSettings(Section):
    """What the service admits. The token is no setting: AGENTICIQA_SERVE_TOKEN."""

    host: str
    port: int = Field(ge=0, le=65535)
    allowed_hosts: tuple[str, ...]
    image_folders: tuple[Path, ...]
    image_hosts: tuple[str, ...]
    max_body_mb: float = Field(gt=0)
    max_megapixels: float = Field(gt=0)
    max_batch: int = Field(ge=1)
    max_query_chars: int = Field(ge=1)
    concurrency: int = Field(ge=1)
    queue: int = Field(ge=0)
    timeout_s: float = Field(gt=0)
    head_timeout_s: float = Field(gt=0)
    body_timeout_s: float = Field(gt=0)
    shutdown_s: int = Field(ge=0)
    warm_up: bool


class RecipeSettings(Section):
    """What one optimizer may spend; a recipe reads the keys it has a use for."""

    demos: int | None = Field(ge=0)
    role_demos: int = Field(ge=0)
    bootstrapped: int = Field(ge=0)
    starts: int = Field(ge=1)
    search_samples: int = Field(ge=1)
    candidates: int = Field(ge=2)
    trials: int = Field(ge=1)
    metric_calls: int = Field(ge=1)
    minibatch: int = Field(ge=1)


class OptimizerSettings(Section):
    """Budgets by recipe, of language models; the embedded expert's recipes read every label."""

    weights: dict[Literal["answer", "plan", "distortion"], float]
    usual: RecipeSettings
    """What a recipe may spend that says nothing else."""
    model: dict[str, RecipeSettings]

    @model_validator(mode="before")
    @classmethod
    def _filled_in(cls, tree: Any) -> Any:
        """Give each recipe the usual values of the keys it leaves out."""
        if not isinstance(tree, dict) or not isinstance(tree.get("usual"), dict):
            return tree
        if not isinstance(tree.get("model"), dict):
            return tree
        recipes = dict(tree["model"])
        for name, own in recipes.items():
            if isinstance(own, dict):
                recipes[name] = {**tree["usual"], **own}
        return {**tree, "model": recipes}


class Settings(Section):
    """The whole tree."""

    seed: int = Field(ge=0)
    cache_dir: Path
    cache: bool
    mlruns_dir: Path
    programs_dir: Path
    images: ImageSettings
    assessment: AssessmentSettings
    executor: ExecutorSettings
    fusion: FusionSettings
    tools: ToolSettings
    compile: CompileSettings
    tracking: TrackingSettings
    serve: ServeSettings
    optimizers: OptimizerSettings
    models: LanguageModels
    wire: WireSettings

    @property
    def kept_dir(self) -> Path | None:
        """Where readings and answers are kept; None: work out all again, and keep nothing."""
        if self.cache:
            return self.cache_dir
        return None

    def with_model(
        self, backend: str | None, api_base: str | None = None, roles: Mapping[str, str] | None = None
    ) -> "Settings":
        """Return the settings with one model in every role but those that `roles` names.

        `api_base` is the server of every model whose name leaves it open (openai/NAME, vllm/NAME,
        ...). Raises SettingsError where there is none, or where the address cannot be used.
        """
        names = {role: name for role, name in (roles or {}).items() if name is not None}
        if backend is not None:
            present = [role for role in ROLES if role != "reflection" or self.models.reflection is not None]
            names = dict.fromkeys(present, backend) | names
        try:
            models = self.models.replace(names, api_base)
        except ValidationError as error:
            raise SettingsError(_explain(error, "--lm, --api-base", LanguageModels)) from error
        return self.model_copy(update={"models": models})


_NO_YAML = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)
"""What reading YAML raises; a date that is none, or text nested too deep, is no YAMLError."""
_FAST_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""For our own files: libyaml ends the process where a text is nested too deep."""

PLACES = ("cache_dir", "cache", "mlruns_dir", "programs_dir")
"""Settings that say where things lie, if anywhere; no result depends on them."""
_ENVIRONMENT = {
    "AGENTICIQA_CACHE_DIR": ("cache_dir",),
    "AGENTICIQA_MLRUNS_DIR": ("mlruns_dir",),
    "AGENTICIQA_PARAMS_DIR": ("tools", "params_dir"),
    "AGENTICIQA_DEVICE": ("tools", "device"),
}


def load_settings(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings tree. Raises SettingsError naming the file or variable and the key.

    `path` (or AGENTICIQA_CONFIG) is a YAML file with the keys to change; `overrides` has the tree's
    shape.
    """
    origin = "configs/default.yaml"
    tree = copy.deepcopy(_shipped())
    if chosen := path or os.environ.get("AGENTICIQA_CONFIG"):
        origin = str(chosen)
        _merge(tree, _read(Path(chosen)))
    for name, keys in _ENVIRONMENT.items():
        if value := os.environ.get(name):
            _merge(tree, {keys[0]: {keys[1]: value} if keys[1:] else value})
    _apply_model_environment(tree["models"])
    _merge(tree, overrides or {})
    for key in ("cache_dir", "mlruns_dir", "programs_dir"):
        path = Path(str(tree[key]))
        try:
            tree[key] = path.expanduser()
        except RuntimeError as error:  # an unknown user without HOME, as containers have them
            mend = f"set HOME to one, or give another {key}"
            raise SettingsError(f"{key} {str(path)!r}: no home folder is known here; {mend}") from error
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise SettingsError(_explain(error, origin)) from error


def _apply_model_environment(models: Any) -> None:
    lm, api_base = os.environ.get("AGENTICIQA_LM"), os.environ.get("AGENTICIQA_API_BASE")
    if isinstance(models, dict):
        models["ambient"] = api_base or None
    for role in [models[r] for r in ROLES if isinstance(models, dict) and isinstance(models.get(r), dict)]:
        if lm:
            role["backend"] = lm
        if api_base and takes_api_base(str(role.get("backend")), models.get("backends")):
            role["api_base"] = api_base


@functools.cache
def _shipped() -> dict[str, Any]:
    tree = _read(CONFIGS / "default.yaml")
    tree["models"] = _read(CONFIGS / "model_backends.yaml")
    tree["optimizers"] = _read(CONFIGS / "optimizers.yaml")
    return tree


def _read(path: Path, kind: str = "settings file", mend: str = "correct the file") -> dict[str, Any]:
    """Return what a file of YAML or JSON holds. Raises SettingsError, which begins with `kind`."""
    name = f"{kind} {str(path)!r}"
    is_json = path.suffix == ".json"
    loader = _FAST_LOADER if path.parent == CONFIGS else yaml.SafeLoader
    try:
        text = path.read_text("utf-8")
        tree = json.loads(text) if is_json else yaml.load(text, loader)  # noqa: S506 - a safe one
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{name}: cannot be read ({error}); {mend}") from error
    except _NO_YAML as error:
        fault = f"not valid {'JSON' if is_json else 'YAML'}"
        raise SettingsError(f"{name}: {fault} ({one_line(error)[:300]}); {mend}") from error
    if not isinstance(tree or {}, dict):
        raise SettingsError(f"{name}: holds {type(tree).__name__}; give keys and values")
    return tree or {}


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
        keys = keys_at(root or Settings, first["loc"][:-1])
        return f"settings {origin!r}: unknown key {location!r}{did_you_mean(str(first['loc'][-1]), keys)}"
    if first["type"] == "value_error":  # our own checks: they name the fault and the mend, and no secret
        return f"settings {origin!r}: {location}: {first['ctx']['error']}"
    return f"settings {origin!r}: {location} = {reprlib.repr(first['input'])}: {first['msg'].lower()}"


class ConfigFile(Frozen):
    """A file of `configs/` that a user may replace by one of their own."""

    FILE: ClassVar[str]
    MEND: ClassVar[str] = "correct the file"
    origin: str = Field("memory", exclude=True)

    @classmethod
    def load(cls, path: Path | None = None) -> Self:
        """Read a file (the shipped one by default). Raises SettingsError with file and key."""
        if path is None:
            return cls._shipped()
        return cls._read(path)

    @classmethod
    @functools.cache
    def _shipped(cls) -> Self:
        return cls._read(None)

    @classmethod
    def _read(cls, path: Path | None) -> Self:
        origin = str(path) if path else f"configs/{cls.FILE}"
        kind = f"{Path(cls.FILE).stem} file"
        tree = _read(path or CONFIGS / cls.FILE, kind, cls.MEND)
        try:
            content = cls.model_validate(tree)
        except ValidationError as error:
            raise SettingsError(f"{kind} {origin!r}: {first_fault(error, 'the file')}; {cls.MEND}") from error
        return content.model_copy(update={"origin": origin})
