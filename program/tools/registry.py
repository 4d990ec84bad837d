"""What is known of each tool: `configs/tools.yaml` as checked, frozen entries, found by any of their names."""

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from program.errors import SettingsError, ToolError, did_you_mean
from signatures.schemas import DistortionCategory, category_of

__all__ = ("COSTS", "Cost", "Mode", "Needs", "ToolRegistry", "ToolSpec")

Mode: TypeAlias = Literal["FR", "NR"]
Needs: TypeAlias = Literal["none", "parameters"]
Cost: TypeAlias = Literal["cheap", "medium", "expensive"]
Strength: TypeAlias = Annotated[float, Field(ge=0, le=1)]

COSTS: tuple[Cost, ...] = ("cheap", "medium", "expensive")
"""Per 384 x 384 image on one CPU core: up to 0.1 s, up to 0.3 s, more. From cheapest to dearest."""


class ToolSpec(BaseModel):
    """One tool: how to run it, what it is good at, what it needs and costs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")
    """As shown to models and users."""
    pyiqa: str
    """The metric's name in pyiqa."""
    mode: Mode
    """FR compares with a reference, NR looks at the image alone."""
    higher_is_better: bool
    identity: float | None = None
    """FR: the raw value of an image equal to its reference."""
    description: str = Field(min_length=1, max_length=200)
    """One line that a model reads when it chooses."""
    strengths: Mapping[DistortionCategory, Strength]
    """Measured |SRCC| against human scores, by distortion category."""
    general: Strength
    """Measured |SRCC| over all distortions together."""
    needs: Needs
    parameter_file: str | None = None
    licence: str
    cost: Cost
    minimum_size_px: int = Field(ge=1)
    """Shortest side the tool can measure."""

    @model_validator(mode="after")
    def _complete(self) -> "ToolSpec":
        if "\n" in self.description:
            raise ValueError("description must be one line")
        if (self.needs == "parameters") != (self.parameter_file is not None):
            raise ValueError("parameter_file goes with needs: parameters")
        if (self.mode == "FR") != (self.identity is not None):
            raise ValueError("identity is given for FR tools, and for them only")
        return self

    def strength(self, category: str | None) -> float:
        """Return the declared strength for a distortion category (or a word for one), else the general one."""
        known = category_of(category) if category else None
        return self.strengths.get(known, self.general) if known else self.general


class ToolRegistry:
    """The known tools, in their file's order."""

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._by_key = {_key(name): spec for spec in specs for name in (spec.pyiqa, spec.name)}

    @classmethod
    def load(cls, path: Path | None = None) -> "ToolRegistry":
        """Read a registry file (the shipped one by default). Raises SettingsError naming the file and the key."""
        origin = str(path) if path else "configs/tools.yaml"
        try:
            text = path.read_text("utf-8") if path else files("configs").joinpath("tools.yaml").read_text("utf-8")
            tree = yaml.safe_load(text)
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"tools file {origin!r}: cannot be read ({error}); check the path") from error
        except yaml.YAMLError as error:
            raise SettingsError(f"tools file {origin!r}: not valid YAML ({' '.join(str(error).split())})") from error
        if (
            not isinstance(tree, dict)
            or set(tree) != {"tools"}
            or not isinstance(tree["tools"], dict)
            or not tree["tools"]
        ):
            raise SettingsError(f"tools file {origin!r}: must hold one key, 'tools', with an entry per tool name")
        return cls([_spec(str(name), entry, origin) for name, entry in tree["tools"].items()])

    def names(self) -> tuple[str, ...]:
        """Return the display names."""
        return tuple(self._specs)

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return every entry."""
        return tuple(self._specs.values())

    def for_mode(self, mode: Mode) -> tuple[ToolSpec, ...]:
        """Return the entries of one mode."""
        return tuple(spec for spec in self._specs.values() if spec.mode == mode)

    def find(self, name: str) -> ToolSpec | None:
        """Return the tool of this display or pyiqa name, whatever its case, hyphens or `_tool` suffix, or None."""
        return self._by_key.get(_key(name))

    def get(self, name: str) -> ToolSpec:
        """Return the tool of this name; ToolError with the closest known one when there is none."""
        spec = self.find(name)
        if spec is None:
            hint = did_you_mean(re.sub(r"(?i)[ _-]tool$", "", name.strip()), self.names())
            raise ToolError(f"tool {name!r}: is not known here{hint}; list the tools with `python -m program.tools`")
        return spec

    @staticmethod
    def best(category: str | None, ready: Sequence[ToolSpec]) -> ToolSpec:
        """Return the tool declared strongest for a category; ties go to general strength, then to the cheaper one.

        `category` None (or no known category) asks for general strength. Raises ToolError when `ready` is empty.
        """
        if not ready:
            raise ToolError("no tool is ready for this image; see `python -m program.tools` for what is missing")
        return max(ready, key=lambda s: (s.strength(category), s.general, -COSTS.index(s.cost)))


def _key(name: str) -> str:
    folded = re.sub(r"[^a-z0-9]", "", name.casefold())
    return folded.removesuffix("tool")


def _spec(name: str, entry: Any, origin: str) -> ToolSpec:
    if not isinstance(entry, dict):
        raise SettingsError(f"tools file {origin!r}: {name} holds {type(entry).__name__}; give its keys and values")
    try:
        return ToolSpec(**{"name": name, **entry})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join([name, *map(str, first["loc"])])
        if first["type"] == "extra_forbidden":
            hint = did_you_mean(str(first["loc"][-1]), ToolSpec.model_fields)
            raise SettingsError(f"tools file {origin!r}: unknown key {key!r}{hint}") from error
        if first["type"] == "missing":
            raise SettingsError(f"tools file {origin!r}: key {key!r} is missing; add it") from error
        if first["type"] == "value_error":
            raise SettingsError(f"tools file {origin!r}: {key}: {first['ctx']['error']}") from error
        raise SettingsError(f"tools file {origin!r}: {key} = {first['input']!r}: {first['msg'].lower()}") from error
