"""One row per sample."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, JsonValue

__all__ = ("Cost", "Notes", "Row", "Task")

Task = Literal["scoring", "mcq", "open"]


_NO_FIELDS: set[str] = set()


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Cost(_Frozen):
    """What was spent on language models; None where nobody counted."""

    lm_calls: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None


class Notes(_Frozen):
    """Why the program answered as it did; kept for the worst misses only."""

    reasoning: str = ""
    evidence: dict[str, JsonValue] | None = None
    """The findings and tool readings it used."""


class Row(_Frozen):
    """One sample: what was true, what the program said, and what it cost. Holds no image and no prompt."""

    id: str
    group: str
    """The content (photograph) it shows; samples of one group are not independent."""
    task: Task
    distortion: str | None = None
    question_type: str | None = None
    choices: int | None = None
    """Options to choose from (mcq)."""
    truth: float | str | None = None
    """Human score on 1..5 (scoring), option letter (mcq), None (open)."""
    mos_std: float | None = None
    """Standard deviation of the opinions behind the truth, on the 1..5 scale."""
    predicted: float | str | None = None
    """Score on 1..5, option letter or text as the program gave it; None where it failed."""
    level: str | None = None
    """Letter A..E of the predicted score."""
    level_probabilities: dict[int, float] | None = None
    tool_mean: float | None = None
    """Plain mean of the tool scores the program used (q-bar), on 1..5."""
    tool_mean_reliable: float | None = None
    """The same weighted by what each tool's calibration says of it."""
    expected_level: float | None = None
    """Mean of the level probabilities."""
    fusion_printed: float | None = None
    """Tool mean and level probabilities fused by the formula as printed, clipped to 1..5."""
    fusion_normalised: float | None = None
    """The same by the normalised formula."""
    fusion_reliable: float | None = None
    """The normalised formula with the tools weighted by reliability, its width too."""
    baselines: dict[str, float | str] | None = None
    """What each baseline answered, by its name; one that failed is absent."""
    baseline_cost: Cost | None = None
    status: Literal["ok", "degraded", "failed"]
    """"failed" samples are counted and enter no figure."""
    rung: str | None = None
    """What the answer was read from, where the program says so."""
    seconds: float = 0.0
    lm_calls: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    spent: dict[str, float] | None = None
    """Input and output tokens, cache hits, tool readings, replans, and seconds by stage ("seconds_planner")."""
    error: str | None = None
    """One line, for a failed or degraded sample."""
    notes: Notes | None = None

    def model_post_init(self, context: Any) -> None:
        """Forget which fields were given, which nobody asks: that would be half of a row's 4.8 KB."""
        object.__setattr__(self, "__pydantic_fields_set__", _NO_FIELDS)

    @property
    def counts(self) -> bool:
        """Whether the row enters the figures: it has a truth and did not fail."""
        return self.status != "failed" and self.truth is not None

    def line(self) -> str:
        """Return the row as one line of JSON, without what is at its default."""
        return self.model_dump_json(exclude_defaults=True)
