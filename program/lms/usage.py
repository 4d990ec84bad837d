"""What one assessment's model calls cost, and which images they carried. Pure."""

from pydantic import BaseModel, ConfigDict, Field

__all__ = ("Record", "StageUsage", "Usage", "WireImage")


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
    """How it differs from the original ("bmp as png", "scaled from 9000x6000 to 8000x5333"); None: original bytes."""


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
    """What one assessment cost: model calls, tokens, money where prices are known, and seconds per stage."""

    stages: dict[str, StageUsage] = Field(default_factory=dict)
    """The calls by stage: planner, executor, summarizer."""
    tool_readings: int = 0
    tool_cache_hits: int = 0
    tool_failures: int = 0
    replans: int = 0
    seconds: dict[str, float] = Field(default_factory=dict)
    """Wall time by stage: planner, executor, tools (part of the executor), summarizer, total."""
    wire_images: list[WireImage] = Field(default_factory=list)
    """Images that went to a model's service; answers from a cache and the embedded expert send none."""
    wire_notes: list[str] = Field(default_factory=list)
    """What a model's service refused or was sent otherwise than asked, as its JSON schema or log-probabilities."""
