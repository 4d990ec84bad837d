"""All settings in one tree: configs/*.yaml, then a user's file, then the environment, then arguments."""

import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import Field, ValidationError

from program.backends import ROLES, LanguageModels, RoleSettings, takes_api_base
from program.backends import Section as _Section
from program.errors import SettingsError, did_you_mean
from program.gate import WireSettings

__all__ = (
    "CompileSettings",
    "FusionSettings",
    "OptimizerSettings",
    "RecipeSettings",
    "RoleSettings",
    "ServeSettings",
    "Settings",
    "ToolSettings",
    "load_settings",
)


class ImageSettings(_Section):
    """The images that are judged."""

    max_pixels: int = Field(gt=0)
    """Larger ones are refused before they are decoded, which takes 4 bytes a pixel."""


class AssessmentSettings(_Section):
    """How one assessment runs."""

    max_replan_iterations: int = Field(ge=0)
    diagnosis: Literal["merged", "separate"]
    """Detect and analyse distortions in one question or in two."""
    scoring: Literal["probabilities", "classification", "logprobs", "auto"]
    """Ask for a probability per level, for one letter, or for one letter with its token log-probabilities.

    `auto`: log-probabilities where the model gives them and the program was not taught otherwise, else probabilities.
    """


class FusionSettings(_Section):
    """How tool scores and level probabilities become one score."""

    eta: float = Field(ge=0)
    normalize: bool
    tool_weights: Literal["equal", "reliability"]
    """The tools' mean: plain with the width eta, or weighted by what each tool's calibration says of it, width too."""


class ToolSettings(_Section):
    """The image-quality tools."""

    params_dir: Path | None = None
    """Folder with the small parameter files some tools need."""
    device: Literal["auto", "cpu", "cuda"]
    calibration: Path | None = None
    """Calibration file; the shipped one when None."""
    cache: bool
    """Remember readings in cache_dir."""
    cache_mb: int = Field(gt=0)
    """Most disk space the readings may take."""
    threads: int = Field(ge=1)
    """Threads of one torch operation, for the whole process: a fixed number gives the same value to the last digit."""
    timeout_s: float = Field(gt=0)
    """A tool that takes longer to measure one image fails, and is left out for the rest of the process."""
    load_timeout_s: float = Field(gt=0)
    """Likewise one that takes longer to be loaded (weights on a disk or network that does not answer)."""
    reduce_above_px: int = Field(ge=65536)
    """Larger images are measured averaged down by the smallest whole factor: tools take up to 3 KB a pixel."""
    resize_reference: bool
    """Resample a reference of another size to the image's; false: that is an error."""


class CompileSettings(_Section):
    """What `python -m program.compile` does unless told otherwise."""

    data: str
    optimizer: str | None = None
    """Recipes, separated by commas; None: random-search for the embedded backend, gepa for others."""
    roles: tuple[Literal["planner", "executor", "summarizer"], ...] | None = None
    """Roles that are taught; None: the summarizer for the embedded backend, all of them for others."""
    objective: Literal["rank", "mean", "groups"] = "rank"
    """How a search scores a candidate: by correlation over the samples, by their mean agreement, or (optimizers of
    DSPy, which otherwise take the mean) by the correlation within groups of eight."""
    baselines: bool = True
    """Whether the table shows the best single tool or model beside the programs."""
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


class ServeSettings(_Section):
    """What `python -m program.serve` admits. The token is no setting: it comes from AGENTICIQA_SERVE_TOKEN."""

    host: str
    port: int = Field(ge=0, le=65535)
    """0: any free port."""
    allowed_hosts: tuple[str, ...]
    """Names the service is known by besides localhost, as iqa.example.org; IP addresses are always answered to."""
    image_folders: tuple[Path, ...]
    """Folders whose files a request may name by path."""
    image_hosts: tuple[str, ...]
    """Hosts, with the port where it is none of the scheme's own, that a request may name images of by URL."""
    max_body_mb: float = Field(gt=0)
    max_megapixels: float = Field(gt=0)
    max_batch: int = Field(ge=1)
    max_query_chars: int = Field(ge=1)
    concurrency: int = Field(ge=1)
    """Assessments at a time."""
    queue: int = Field(ge=0)
    """Requests that wait for their turn; more get 503."""
    timeout_s: float = Field(gt=0)
    """From admission to answer."""
    head_timeout_s: float = Field(gt=0)
    """From connecting to the end of a request's headers; likewise between requests, after 10 s of idling."""
    body_timeout_s: float = Field(gt=0)
    """For a request's body to arrive."""
    shutdown_s: int = Field(ge=0)
    """For requests in flight to finish once the service is told to stop."""
    warm_up: bool
    """Load everything at start, on a generated picture, where no paid model would be asked."""


class RecipeSettings(_Section):
    """What one optimizer may spend; a recipe reads the keys it has a use for."""

    demos: int | None = Field(32, ge=0)
    """Demos of each of the Summarizer's questions; None: every training sample."""
    role_demos: int = Field(4, ge=0)
    """Demos of each question of the other roles."""
    bootstrapped: int = Field(0, ge=0)
    """How many of the demos are answers of the program (or its teacher) that people agree with."""
    starts: int = Field(8, ge=1)
    """Sets of demos a search begins with."""
    steps: int = Field(0, ge=0)
    """Changes to the best candidate: exchanged demos, SIMBA's steps, COPRO's depth."""
    search_samples: int = Field(200, ge=1)
    """At most so many samples score each candidate."""
    candidates: int = Field(6, ge=2)
    """Instructions or programs proposed at a time."""
    trials: int = Field(12, ge=1)
    """Combinations that MIPRO tries."""
    metric_calls: int = Field(400, ge=1)
    """Program runs that GEPA may make."""
    minibatch: int = Field(3, ge=1)
    """Samples of one reflection or step."""


class OptimizerSettings(_Section):
    """Budgets by recipe: for the embedded backend, whose answers cost milliseconds, and for models that are paid."""

    weights: dict[Literal["answer", "plan", "distortion"], float]
    embedded: dict[str, RecipeSettings]
    model: dict[str, RecipeSettings]


class Settings(_Section):
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
        named = {role: {"backend": name} for role, name in (roles or {}).items() if name is not None}
        if backend is not None:
            filled = [role for role in ROLES if role != "reflection" or self.models.reflection is not None]
            named = {role: {"backend": backend} for role in filled} | named
        return self.model_copy(update={"models": _with_server(self.models, named, api_base)})


def _with_server(models: LanguageModels, named: Mapping[str, Any], api_base: str | None) -> LanguageModels:
    changes = {role: dict(change) for role, change in named.items()}
    backends = {
        role: changes[role]["backend"] if role in changes else getattr(models, role).backend
        for role in ROLES
        if role in changes or getattr(models, role) is not None
    }
    served = [
        r for r, name in backends.items() if takes_api_base(name) and name.partition("/")[0] not in models.backends
    ]
    if api_base is not None and not served:
        raise SettingsError(
            f"--api-base: no role's model is on a server (they are {', '.join(sorted(set(backends.values())))}); "
            "name one as --lm openai/NAME"
        )
    ambient = os.environ.get("AGENTICIQA_API_BASE") or None
    for role in ROLES:
        if role in served and api_base is not None:
            changes[role] = {**changes.get(role, {}), "api_base": api_base}
        elif role in changes:
            # A model chosen anew is on the server that was set, if on any; a hosted one on none.
            known = getattr(models, role) or models.summarizer
            changes[role]["api_base"] = (known.api_base or ambient) if role in served else None
    if not changes:
        return models
    try:
        return models.changed(changes)
    except ValidationError as error:
        raise SettingsError(_explain(error, "--lm, --api-base", LanguageModels)) from error


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
        if os.environ.get(variable):
            _merge(tree, _nest(list(keys), os.environ[variable]))
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
    roles = [models[r] for r in ROLES if isinstance(models, dict) and isinstance(models.get(r), dict)]
    for role in roles:
        if os.environ.get("AGENTICIQA_LM"):
            role["backend"] = os.environ["AGENTICIQA_LM"]
        named = str(role.get("backend")).partition("/")[0] in (models.get("backends") or {})
        if os.environ.get("AGENTICIQA_API_BASE") and takes_api_base(str(role.get("backend"))) and not named:
            role["api_base"] = os.environ["AGENTICIQA_API_BASE"]


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


def _explain(error: ValidationError, origin: str, root: type[_Section] | None = None) -> str:
    first = error.errors(include_url=False)[0]
    location = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = _fields_at(root or Settings, first["loc"][:-1])
        return f"settings {origin!r}: unknown key {location!r}{did_you_mean(str(first['loc'][-1]), known)}"
    if first["type"] == "value_error":  # our own checks: they name the fault and the mend, and no secret
        return f"settings {origin!r}: {location}: {first['ctx']['error']}"
    return f"settings {origin!r}: {location} = {first['input']!r}: {first['msg'].lower()}"


def _fields_at(section: Any, location: tuple[int | str, ...]) -> list[str]:
    """Return the keys a section of the tree may hold; `location` may lead through named entries."""
    for part in location:
        fields = getattr(section, "model_fields", None)
        found = fields[str(part)].annotation if fields and str(part) in fields else section
        section = next((t for t in (found, *get_args(found)) if hasattr(t, "model_fields")), found)
    return list(getattr(section, "model_fields", ()))
