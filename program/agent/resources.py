"""What the stages share and no optimizer touches: settings, tools, fusion, and language models."""

import os
import re
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import dspy
from dspy import lm15
from dspy.utils.exceptions import LMConfigurationError

from program.agent.query import QueryReading, QueryType
from program.agent.state import AssessmentState, SummarizerOutput
from program.common.backends import SERVER_PROVIDERS, BackendSettings, ImageLimits, RoleSettings
from program.common.cache import use_lm_cache
from program.common.errors import InputError, ModelError
from program.common.keys import keys_named_after, usable_key, use_keys
from program.common.settings import Settings
from program.expert import MODEL, NAME
from program.fusion import ScoreFusion
from program.lms.reference_engine import Connection, ReferenceEngine, ServerTransport
from program.lms.servers import CAPABILITIES, declared_traits, route, served, server_connection, server_name
from program.lms.traits import ModelTraits, as_listed, known_traits, record_of, traits_of
from program.tools.registry import ToolRegistry
from program.tools.runner import ToolRunner

if TYPE_CHECKING:
    from program.expert import Viewer


SERVER_KEY = "AGENTICIQA_API_KEY"
"""The variable with the key for a server given by `api_base`, never a provider's own."""


def model_name(backend: str) -> str:
    """Return `provider/model` for `provider.model` or `provider/model`; ModelError for anything else.

    >>> model_name("openai.gpt-4o"), model_name("openai/gpt-4o")
    ('openai/gpt-4o', 'openai/gpt-4o')
    """
    name = backend if "/" in backend else backend.replace(".", "/", 1)
    if re.fullmatch(r"[^\s/]\S*/\S*[^\s/]", name):
        return name
    raise ModelError(f"model {backend!r}: not of the form provider/model; try 'perceptual/expert' or 'openai/gpt-4o'")


def build_lm(role: RoleSettings, *, cache_dir: Path | None) -> dspy.LM:
    """Return the LM a role's settings name; no connection is made, and keys come from the environment.

    Its answers are kept under `cache_dir`; with None each is asked for again. Raises ModelError for
    a backend without its key, and KeyFormError for a key that no header takes.
    """
    entry = role.entry or BackendSettings()
    name = role_model(role)
    options = {"temperature": role.temperature, "max_tokens": role.max_tokens, "cache": cache_dir is not None}
    if cache_dir is not None:
        use_lm_cache(cache_dir / "lm-answers")
    api_base = entry.api_base or role.api_base
    variable = entry.key_env or (SERVER_KEY if api_base else "")  # else the provider's own is used
    key = usable_key(variable, os.environ.get(variable, "")) or None
    if entry.key_env and not key:
        raise ModelError(f"model {role.backend!r}: its key_env {entry.key_env} is not set; export it first")
    if api_base is None and not entry.key_env:
        use_keys(keys_named_after(name.partition("/")[0]))
    if api_base is None:
        connection = _hosted(name, key)
    else:
        connection = _at_address(name, api_base, key)
    if connection is None:
        _check_provider(role.backend, name)
        allowed = _allowed(name, options)
        if key:
            allowed["api_key"] = key
        return dspy.LM(name, **allowed)
    able = _with_entry(connection.capabilities, entry)
    declared = declared_traits(able, api_base)
    if entry.vision is not None:
        declared["reads_images"] = entry.vision
    record = record_of(connection.lm_name, api_base, cache_dir, declared)
    if not connection.is_asked:
        as_listed(record, connection.wire_model or connection.lm_name)
    connection = connection._replace(capabilities=able)
    secrets = {}
    if key:
        secrets[variable] = key
    engine = ReferenceEngine(connection, role.images or ImageLimits(), record, role.backend, api_base, secrets)
    return dspy.LM(connection.lm_name, engine=engine, **_allowed(name, options))


def role_model(role: RoleSettings) -> str:
    """Return `provider/model` for a role, from the entry that its backend names or the backend."""
    if role.entry is None:
        return model_name(role.backend)
    name, _, model = role.backend.partition("/")
    model = model or role.entry.model or ""
    if not model:
        raise ModelError(f"model {name!r}: this backend has no model of its own; give one as {name}/MODEL")
    return f"{role.entry.provider}/{model}"


def _at_address(name: str, api_base: str, key: str | None) -> Connection:
    """Connect to an OpenAI-compatible server, or to a gateway with another provider's protocol."""
    provider, _, model = name.partition("/")
    known = None if provider in SERVER_PROVIDERS else route(name)
    if known is None:
        return server_connection(model, api_base, key)
    keys = {known.provider: key or "none"}
    gateway = lm15.RouterConfig(
        env={}, base_urls={known.provider: api_base}, api_keys=keys, transport=ServerTransport(api_base)
    )
    digest = server_name(model, api_base).partition("/")[0].removeprefix("server-")
    return Connection(f"{provider}-{digest}/{model}", lambda _: gateway, _declared_capabilities(name), wire_model=name)


def _hosted(name: str, key: str | None) -> Connection | None:
    """Connect to a hosted model by its provider's own key; None when only LiteLLM can reach it."""
    prefix, known = name.partition("/")[0].upper(), route(name)
    # Where the environment names a gateway (OPENAI_BASE_URL), LiteLLM goes there with the key.
    if known is None or any(os.environ.get(f"{prefix}_{end}") for end in ("API_BASE", "BASE_URL")):
        return None
    keys = {known.provider: key} if key else None
    config, capabilities = lm15.RouterConfig(api_keys=keys), _declared_capabilities(name)
    return Connection(name, lambda _: config, capabilities, priced_as=(known.provider, known.model))


def _check_provider(backend: str, name: str) -> None:
    """Raise ModelError for a provider that neither DSPy nor LiteLLM knows."""
    import litellm

    provider, _, model = name.partition("/")
    providers = {str(getattr(p, "value", p)) for p in litellm.provider_list}
    if provider not in providers:
        hint = "for a server of your own give --api-base"
        if close := get_close_matches(provider, {*providers, "perceptual"}, n=1, cutoff=0.75):
            hint = f"did you mean '{close[0]}/{model}'?"
        raise ModelError(f"model {backend!r}: there is no provider {provider!r}; {hint}")


def _with_entry(capabilities: Mapping[str, Any], entry: BackendSettings) -> Mapping[str, Any]:
    """Take away what a named backend is said to lack."""
    params = set(capabilities["supported_params"])
    if not entry.logprobs:
        params -= {"logprobs", "top_logprobs"}
    if not entry.structured_output:
        params.discard("response_format")
    by_schema = capabilities["supports_response_schema"] and entry.structured_output
    return {**capabilities, "supports_response_schema": by_schema, "supported_params": frozenset(params)}


def _allowed(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options a model takes: reasoning models set temperature and length themselves."""
    try:
        dspy.LM(name, **options)
    except LMConfigurationError:
        return {**options, "temperature": None, "max_tokens": None}
    return dict(options)


def _declared_capabilities(name: str) -> dict[str, Any]:
    plain = dspy.LM(name)
    return {capability: getattr(plain, capability) for capability in CAPABILITIES}


Role = Literal["planner", "executor", "summarizer"]
ROLES: tuple[Role, ...] = get_args(Role)


def lm_of(role: RoleSettings, *, cache_dir: Path | None) -> dspy.LM:
    """Return the LM that a role's settings name: the expert, or a service's. ModelError else."""
    name = role_model(role)
    if name.partition("/")[0] != NAME.partition("/")[0]:
        return build_lm(role, cache_dir=cache_dir)
    from program.expert import make_perceptual_lm

    if name.partition("@")[0] != NAME:
        raise ModelError(f"model {name!r}: unknown (did you mean {NAME!r}?)")
    if name not in {NAME, MODEL}:
        raise ModelError(f"model {name!r}: this version holds {MODEL!r}; use that name or plain {NAME!r}")
    return make_perceptual_lm(cache_dir, temperature=role.temperature, max_tokens=role.max_tokens)


_CAST = "agentic_iqa_cast"
"""Among DSPy's settings, which threads inherit: the models that play roles."""


def cast_as(models: Mapping[str, dspy.BaseLM]) -> AbstractContextManager[Any]:
    """Return a context in which these models play their roles, whatever else names any."""
    return cast("AbstractContextManager[Any]", dspy.context(**{_CAST: models}))


class Resources:
    """Shared by all copies of a program: copying a program copies its predictors, never these."""

    def __init__(self, settings: Settings, lm: dspy.BaseLM | None = None) -> None:
        if lm is not None and not isinstance(lm, dspy.BaseLM):
            raise ModelError(f"lm of type {type(lm).__name__}: give a dspy.LM, or a name through the settings")
        self.settings = settings
        self._given_lm = lm
        self._built: dict[Role, dspy.LM] = {}
        self._lock = threading.Lock()
        self._last_answers: dict[str, Literal["read", "read as text", "unread"]] = {}
        """How the last answer of each model was understood."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Resources":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        mend = "program.agent.saving.save writes a folder that holds data alone"
        raise InputError(f"program: is not pickled, as a pickle holds keys and runs code; {mend}")

    @cached_property
    def registry(self) -> ToolRegistry:
        """The tools known here."""
        return ToolRegistry.load()

    @cached_property
    def runner(self) -> ToolRunner:
        """What runs them."""
        return ToolRunner(self.settings, self.registry)

    @property
    def fusion(self) -> ScoreFusion:
        """How tools and belief become one score, by settings, else by the Summarizer's traits."""
        traits = self.known_traits("summarizer")
        stated = self.settings.fusion.model_dump(exclude_none=True)
        return ScoreFusion(**{"smoothing": traits.smoothing, "model_weight": traits.model_weight, **stated})

    def known_traits(self, role: Role) -> ModelTraits:
        """Return what is known of the model of a role; nothing is asked."""
        return known_traits(self.lm(role))

    def traits(self, role: Role) -> ModelTraits:
        """Return what the model of a role can do; its service is asked where it never was."""
        return traits_of(self.lm(role))

    def note_answer(self, result: SummarizerOutput) -> None:
        """Take down how the Summarizer's model was understood in its last answer."""
        how: Literal["read", "read as text", "unread"] = "read"
        if result.is_unread:
            how = "unread"
        elif result.attempt == "text":
            how = "read as text"
        self._last_answers[str(self.lm("summarizer").model)] = how

    @property
    def reads_levels_as_text(self) -> bool:
        """Whether a level in the text of a broken answer will do, as it had to before."""
        return self._last_answers.get(str(self.lm("summarizer").model)) == "read as text"

    def wordings(self, role: Role, state: AssessmentState) -> int | None:
        """Return in how many wordings a model is asked what an answer can do without; None: in all.

        One that was not understood, in the plan or in its last answer, is asked once; in both,
        never.
        """
        if self.known_traits(role).embedded:
            return None
        is_unread = self._last_answers.get(str(self.lm(role).model)) == "unread"
        if is_unread and state.plan_error is not None:
            return 0
        return 1 if is_unread or state.plan_error is not None else None

    @cached_property
    def expert(self) -> dspy.LM:
        """The embedded expert, whoever plays the roles."""
        return lm_of(RoleSettings(backend=NAME), cache_dir=self.settings.kept_dir)

    @cached_property
    def viewer(self) -> "Viewer":
        """What measures images for the embedded expert; each once."""
        from program.expert import Viewer

        return Viewer(self.settings.kept_dir)

    @property
    def distortion_model(self) -> dspy.BaseLM:
        """Who looks: the Executor's model, or the expert where that is blind or spared."""
        if self._is_spared("executor") or not self._sees:
            return self.expert
        return self.lm("executor")

    @property
    def _sees(self) -> bool:
        return self.traits("executor").reads_images is not False

    @property
    def answers_with_distortions(self) -> bool:
        """Whether distortions are asked for with the score, of a model that plays both roles."""
        if self.settings.assessment.diagnosis != "answer":
            return False
        traits = self.traits("executor")
        if traits.answers_at_once is False or not traits.reads_images:
            return False
        executor = self.lm("executor")
        return self.distortion_model is executor and executor.model == self.lm("summarizer").model

    def _is_spared(self, role: Role) -> bool:
        """Whether a model is asked for scores and options alone, as each call has a price."""
        return self.settings.assessment.score_only and not self.known_traits(role).embedded

    @property
    def sight_note(self) -> str | None:
        """Which model looked, where that is not the Executor's own."""
        lm = self.lm("executor")
        if self.distortion_model is lm:
            return None
        name = getattr(getattr(lm, "engine", None), "name", None) or lm.model
        why = "is asked for a score only" if self._sees else "reads no images"
        return f"{name} {why}: the embedded expert's findings are used"

    @property
    def answers_alone(self) -> bool:
        """Whether a language model is asked for levels and options alone: no plan, no reasons."""
        return self._is_spared("summarizer")

    def one_word(self, reading: QueryReading) -> bool:
        """Return whether a question costs a language model one word: a level or an option."""
        return self.answers_alone and reading.type is not QueryType.EXPLANATION

    def own_lm(self, role: Role) -> dspy.BaseLM:
        """Return the language model of a role as its user gave it: see `lm`."""
        return self._chosen(role) or self.lm(role)

    def _chosen(self, role: Role) -> dspy.BaseLM | None:
        cast_lm: dspy.BaseLM | None = getattr(dspy.settings, _CAST, {}).get(role)
        return cast_lm or self._given_lm or dspy.settings.lm

    def lm(self, role: Role) -> dspy.BaseLM:
        """Return the LM of a role as it is asked: by `set_lm`, the caller, DSPy or the settings."""
        chosen = self._chosen(role)
        if chosen is not None:
            return served(chosen, self.settings)
        with self._lock:
            if role not in self._built:
                self._built[role] = lm_of(getattr(self.settings.models, role), cache_dir=self.settings.kept_dir)
            return self._built[role]
