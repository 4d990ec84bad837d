"""Which language model plays a role, what its service takes, and what its calls cost. Pure."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from program.common.errors import SettingsError

ROLES = ("planner", "executor", "summarizer", "reflection")
"""Who asks a language model; `reflection` is the optimizers' own, and may be left out."""

SERVER_PROVIDERS = frozenset(
    {"openai", "vllm", "hosted_vllm", "ollama", "ollama_chat", "lm_studio", "llamacpp", "llamafile", "server"}
)
"""Providers that `--api-base` is for: each speaks OpenAI's protocol at its user's address."""

ApiBase = Annotated[str | None, AfterValidator(lambda value: checked_api_base(value))]
ImageFormat = Literal["png", "jpeg", "webp", "gif", "bmp", "tiff"]


class Frozen(BaseModel):
    """Base of what does not change: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Section(Frozen):
    """Base of all settings: an error quotes none of them."""

    model_config = ConfigDict(hide_input_in_errors=True)


class ImageLimits(Section):
    """What images a service takes; others are converted or scaled. Tools see the original."""

    formats: tuple[ImageFormat, ...] = ("png", "jpeg")
    """Sent as they are; every other format is sent as PNG, without loss."""
    max_bytes: int | None = Field(None, ge=10_000)
    """Of the image itself; base64 makes it a third longer on the wire."""
    max_side_px: int | None = Field(None, ge=64)
    max_request_bytes: int | None = Field(None, ge=100_000)
    """Of all images of a request together, those of demos too."""
    many: int = Field(20, ge=1)
    max_side_px_of_many: int | None = Field(None, ge=64)
    """Where a request holds more images than `many`."""


class BackendSettings(Section):
    """A service configured by name: `--lm NAME` or `--lm NAME/MODEL`; see docs/models.md."""

    provider: str = "openai"
    model: str | None = None
    api_base: ApiBase = None
    key_env: str | None = Field(None, pattern="^[A-Za-z_][A-Za-z0-9_]*$")
    structured_output: bool = True
    logprobs: bool = True
    vision: bool | None = None
    """Whether it reads images; None: it is asked."""
    images: ImageLimits | None = None


class RoleSettings(Section):
    """The language model that plays one role."""

    backend: str
    """`provider/model`, `provider.model`, or a name from `backends`."""
    temperature: float = Field(0.0, ge=0)
    max_tokens: int = Field(1024, gt=0)
    api_base: ApiBase = None
    """An OpenAI-compatible server, as http://127.0.0.1:8000/v1, or a gateway to a provider."""
    entry: BackendSettings | None = None
    """What `backend` names in `backends`; filled in, not written."""
    images: ImageLimits | None = None
    """What images its service takes; filled in from `images`."""


class LanguageModels(Section):
    """A language model per role, the services known by name, and what images services take."""

    planner: RoleSettings
    executor: RoleSettings
    summarizer: RoleSettings
    reflection: RoleSettings | None = None
    """What optimizers ask to rewrite instructions; None: the summarizer's."""
    backends: dict[str, BackendSettings] = Field(default_factory=dict, exclude=True)
    images: dict[str, ImageLimits] = Field(default_factory=dict, exclude=True)
    """By provider; `server` for a given address, `default` for all others."""
    ambient: str | None = Field(None, exclude=True)
    """The environment's server, for models that are chosen later; filled in, not written."""

    @model_validator(mode="after")
    def _filled_in(self) -> Self:
        for name in ROLES:
            if (role := getattr(self, name)) is not None:
                self.__dict__[name] = self._resolved(role)
        return self

    def _resolved(self, role: RoleSettings) -> RoleSettings:
        """Return a role with what its model's name stands for."""
        entry = self.backends.get(role.backend.partition("/")[0])
        base = (entry and entry.api_base) or role.api_base
        provider = entry.provider if entry else _provider(role.backend)
        own = entry.images if entry else None
        images = self.image_limits(provider, base, own, role.images)
        return role.model_copy(update={"entry": entry, "images": images})

    def image_limits(self, provider: str, api_base: str | None, *own: ImageLimits | None) -> ImageLimits:
        """Return what images a service takes; what is said of it alone goes first."""
        service = "server" if api_base and provider in SERVER_PROVIDERS else provider
        parts = (self.images.get("default"), self.images.get(service), *own)
        limits: dict[str, Any] = {}
        for part in filter(None, parts):
            limits |= part.model_dump(exclude_unset=True)
        return ImageLimits.model_validate(limits)

    def replace(self, names: Mapping[str, str], api_base: str | None) -> "LanguageModels":
        """Return the models with others in some roles; a new role starts as the summarizer.

        `api_base` is the server of every model whose name leaves it open. Without it a model chosen
        again is on the server that was set for its role, else on the environment's; a hosted one on
        none.
        """
        if not names and api_base is None:
            return self
        tree: dict[str, Any] = {"backends": self.backends, "images": self.images, "ambient": self.ambient}
        on_server = False
        for role in ROLES:
            before: RoleSettings | None = getattr(self, role)
            if before is None and role not in names:
                continue
            section = (before or self.summarizer).model_dump(exclude={"entry", "images"})  # filled in again
            section["backend"] = names.get(role, section["backend"])
            open_ended = takes_api_base(section["backend"], self.backends)
            on_server |= open_ended
            if open_ended and api_base is not None:
                section["api_base"] = api_base
            elif role in names:
                section["api_base"] = (section["api_base"] or self.ambient) if open_ended else None
            tree[role] = section
        if api_base is not None and not on_server:
            models = ", ".join(sorted({tree[role]["backend"] for role in ROLES if role in tree}))
            raise SettingsError(
                f"--api-base: no role's model is on a server (they are {models}); name one as --lm openai/NAME"
            )
        return type(self).model_validate(tree)


def takes_api_base(backend: str, entries: Mapping[str, Any] | None = None) -> bool:
    """Return whether a model's name leaves open where its server is; one of `backends` does not.

    >>> takes_api_base("openai/qwen-vl"), takes_api_base("perceptual/expert"), takes_api_base("anthropic/claude")
    (True, False, False)
    """
    return backend.partition("/")[0] not in (entries or {}) and _provider(backend) in SERVER_PROVIDERS


def checked_api_base(value: str | None) -> str | None:
    """Return a server's address. ValueError where it is no http(s) URL or carries a secret.

    >>> checked_api_base("http://127.0.0.1:8000/v1/chat/completions/")
    'http://127.0.0.1:8000/v1'
    """
    if value is None:
        return None
    try:
        parts = urlsplit(value)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if "@" in value or parts.query or parts.fragment:
        raise ValueError(
            "the address holds a password or a query, which would be logged; "
            "give the plain address and the key in the environment (AGENTICIQA_API_KEY, or a backend's key_env)"
        )
    if parts.scheme not in {"http", "https"} or not host or re.search(r"\s", value):
        raise ValueError(f"api_base {value!r}: not an http(s) URL; give one as http://127.0.0.1:8000/v1")
    return value.rstrip("/").removesuffix("/chat/completions").rstrip("/")


def _provider(backend: str) -> str:
    return re.split(r"[/.]", backend, maxsplit=1)[0]


class Record(BaseModel):
    """Base of what an assessment leaves: unknown keys refused, assignments checked."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class WireImage(Record):
    """One image as a language model was sent it."""

    sha256: str
    """Of the original."""
    name: str
    media_type: str
    width: int
    height: int
    size_bytes: int
    change: str | None = None
    """How it differs from the original, as "bmp as png"; None: original bytes."""


class StageUsage(Record):
    """What the model calls of one stage cost."""

    lm_calls: int = 0
    """Calls of a model's service, repeats after a fault among them."""
    lm_cache_hits: int = 0
    """Questions whose answer a cache held, which cost nothing."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    """None where no call's price is known."""


class Usage(StageUsage):
    """What one assessment cost: model calls, tokens, money, and seconds per stage."""

    stages: dict[str, StageUsage] = Field(default_factory=dict)
    """The calls by stage: planner, executor, summarizer."""
    tool_readings: int = 0
    tool_cache_hits: int = 0
    tool_failures: int = 0
    replans: int = 0
    seconds: dict[str, float] = Field(default_factory=dict)
    """Wall time by stage: planner, executor, tools (part of the executor), summarizer, total."""
    wire_images: list[WireImage] = Field(default_factory=list)
    """Images that went to a model's service; a cache and the embedded expert get none."""
    wire_notes: list[str] = Field(default_factory=list)
    """What a model's service refused or was sent otherwise than asked, as its JSON schema."""
    kept_tokens: SkipJsonSchema[int] = Field(0, exclude=True, repr=False)
    """Tokens of the answers that a cache gave: unpaid, they say what an answer takes."""
