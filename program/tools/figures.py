"""Files of fitted figures and of tools: how they are read, what they say of their data, and the measured strengths."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from program.common.errors import SettingsError, first_fault
from program.common.files import CONFIGS
from signatures.schemas import DistortionCategory

__all__ = ("FEWEST", "Agreement", "ConfigFile", "Figures", "MeasuredStrength", "Provenance", "Strength", "Strengths")

FEWEST = 8
"""Fewer images of a category in one dataset say nothing of it."""

Agreement: TypeAlias = Annotated[float, Field(ge=0, le=1)]


class Stored(BaseModel):
    """Part of a file: frozen, with no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ConfigFile(Stored):
    """A file of `configs/` that a user may replace by one of their own."""

    FILE: ClassVar[str]
    MEND: ClassVar[str] = "mend it"
    origin: str = Field("memory", exclude=True)

    @classmethod
    def load(cls, path: Path | None = None) -> Self:
        """Read a file (the shipped one by default). Raises SettingsError naming the file and the key."""
        origin = str(path) if path else f"configs/{cls.FILE}"
        name = f"{Path(cls.FILE).stem} file {origin!r}"
        try:
            text = (path or CONFIGS / cls.FILE).read_text("utf-8")
            if cls.FILE.endswith(".json"):
                content = cls.model_validate_json(text)
            else:
                loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
                content = cls.model_validate(yaml.load(text, loader))  # noqa: S506 - both are safe
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{name}: cannot be read ({error}); check the path, or {cls.MEND}") from error
        except yaml.YAMLError as error:
            raise SettingsError(f"{name}: not valid YAML ({' '.join(str(error).split())})") from error
        except ValidationError as error:
            raise SettingsError(f"{name}: {first_fault(error, 'the file')}; {cls.MEND}") from error
        return content.model_copy(update={"origin": origin})


class Provenance(Stored):
    """What figures rest on."""

    dataset: str
    manifest_sha256: str
    split: str
    samples: int = Field(ge=1)
    groups: tuple[str, ...] = ()
    """The photographs (content groups)."""
    date: str
    """Day of the fit, ISO 8601."""


class Figures(ConfigFile):
    """Figures by tool, and the data behind them by source name."""

    schema_version: int = 1
    sources: dict[str, Provenance] = Field(default_factory=dict)
    tools: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _sourced(self) -> Self:
        missing = {source for entry in self.tools.values() for source in entry.sources} - set(self.sources)
        if missing:
            raise ValueError(f"no source {min(missing)!r}")
        return self

    def to_json(self) -> str:
        """Return the file's text; `load` gives back equal figures."""
        return self.model_dump_json(indent=1, exclude_none=True) + "\n"

    def updated(self, tools: Mapping[str, Any], sources: Mapping[str, Provenance]) -> Self:
        """Return the file with these figures in place of their namesakes; sources no figure rests on are dropped."""
        merged = {**self.tools, **tools}
        used = {source for entry in merged.values() for source in entry.sources}
        rest = {name: source for name, source in {**self.sources, **sources}.items() if name in used}
        return self.model_copy(update={"sources": rest, "tools": merged})


class MeasuredStrength(Stored):
    """|SRCC| over datasets (the mean where several have the category) and the images it rests on."""

    srcc: Agreement
    n: int = Field(ge=FEWEST)


class Strength(Stored):
    """What one tool was measured to be good at."""

    library: str
    """With its version, as "pyiqa 0.1.16"."""
    sources: tuple[str, ...]
    """Keys of the file's sources."""
    general: MeasuredStrength
    """All distortions together."""
    by_category: dict[DistortionCategory, MeasuredStrength] = Field(default_factory=dict)


class Strengths(Figures):
    """|SRCC| of tools with human scores, by distortion category."""

    FILE: ClassVar[str] = "strengths.json"
    MEND: ClassVar[str] = "make it anew with `python -m program.calibrate DATA --strengths`"
    schema_version: Literal[1] = 1
    tools: dict[str, Strength] = Field(default_factory=dict)
