"""Tools and what one measures: `configs/tools.yaml` as checked, and files of fitted figures and measured strengths."""

import importlib.util
import re
import runpy
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from program.common import offered
from program.common.backends import Frozen, Record
from program.common.errors import SettingsError, ToolError, did_you_mean, first_fault
from program.common.files import CONFIGS
from program.images.refs import Box
from signatures.schemas import DistortionCategory, category_of

FEWEST = 8
"""Fewer images of a category in one dataset say nothing of it."""

Agreement: TypeAlias = Annotated[float, Field(ge=0, le=1)]


class ConfigFile(Frozen):
    """A file of `configs/` that a user may replace by one of their own."""

    FILE: ClassVar[str]
    MEND: ClassVar[str] = "correct the file"
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
            raise SettingsError(f"{name}: not valid YAML ({' '.join(str(error).split())}); {cls.MEND}") from error
        except ValidationError as error:
            raise SettingsError(f"{name}: {first_fault(error, 'the file')}; {cls.MEND}") from error
        return content.model_copy(update={"origin": origin})


class Provenance(Frozen):
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
        """Return the text of a file that `load` reads as equal figures."""
        return self.model_dump_json(indent=1, exclude_none=True) + "\n"

    def updated(self, tools: Mapping[str, Any], sources: Mapping[str, Provenance]) -> Self:
        """Return the file with these figures in place of their namesakes; sources no figure rests on are dropped."""
        merged = {**self.tools, **tools}
        used = {source for entry in merged.values() for source in entry.sources}
        rest = {name: source for name, source in {**self.sources, **sources}.items() if name in used}
        return self.model_copy(update={"sources": rest, "tools": merged})


class MeasuredStrength(Frozen):
    """|SRCC| over datasets (the mean where several have the category) and the images it rests on."""

    srcc: Agreement
    n: int = Field(ge=FEWEST)


class Strength(Frozen):
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
    MEND: ClassVar[str] = "make it again with `python -m program.calibrate DATA --strengths`"
    schema_version: Literal[1] = 1
    tools: dict[str, Strength] = Field(default_factory=dict)


Mode: TypeAlias = Literal["FR", "NR"]
Cost: TypeAlias = Literal["cheap", "medium", "expensive"]

_NOT_PER_IMAGE = ("fid", "inception_score", "clipscore", "fgresq_pair")
"""pyiqa's metrics of sets of images, of texts or of pairs in no order."""

COSTS: tuple[Cost, ...] = ("cheap", "medium", "expensive")
"""Per 384 x 384 image on one CPU core: up to 0.1 s, up to 0.3 s, more. From cheapest to dearest."""

GENERAL_SHARE = 0.5
"""Weight of a no-reference tool's general strength in its strength for one category: PIQE finds generated blur as well
as any tool, and knows nothing of blurred photographs (|SRCC| 0.28 with people on LIVE In the Wild)."""


class Measurement(Record):
    """One tool's reading of one image: a score, or a one-line error and no score."""

    tool: str
    raw: float | None = None
    """In the tool's own unit and direction."""
    score: float | None = None
    """1..5, higher is better."""
    seconds: float = 0.0
    """What this call took; next to nothing when cached."""
    cached: bool = False
    error: str | None = None
    box: Box | None = None
    """The pixels measured (the box asked for, grown to the tool's minimum size), or None for the whole image."""
    note: str | None = None
    """What was measured, where it is not the image as it is: averaged down, or against a resampled reference."""


class ToolSpec(Frozen):
    """One tool: how to run it, what it is good at, what it needs and costs."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_+.-]*$")
    """As shown to models and users."""
    pyiqa: str | None = None
    """The metric's name in pyiqa."""
    piq: str | None = None
    """The function's name in piq, for a tool that piq measures instead."""
    python: str | None = Field(None, pattern=r"^[\w.]+:\w+$")
    """`module:function` of a tool that neither has: it takes one or two images (the reference second) and the options,
    and returns one value."""
    takes: Literal["tensors", "pixels"] = "tensors"
    """What that function takes images as: PyTorch's tensors, 1 x 3 x H x W in 0..1, on the device that is set, or
    H x W x 3 uint8 arrays, which need no PyTorch; such a tool stays on the processor."""
    package: str | None = None
    """The distribution that `python` measures with; its version is part of every cached reading's key."""
    stands_in_for: str | None = None
    """The tool of pyiqa that this one measures in its own way; it takes that one's place where there is no pyiqa."""
    options: Mapping[str, bool | int | float | str] = Field(default_factory=dict)
    """What the library is called with besides the images."""
    mode: Mode
    """FR compares with a reference, NR looks at the image alone."""
    higher_is_better: bool
    identity: float | None = None
    """FR: the raw value of an image equal to its reference; None for a network that has no fixed one."""
    description: str = Field(min_length=1, max_length=200)
    """One line that a model reads when it chooses."""
    strengths: Mapping[DistortionCategory, Agreement] = Field(default_factory=dict)
    """|SRCC| with human scores by distortion category, from the strengths file where it holds the tool."""
    general: Agreement = 0.0
    """|SRCC| over all distortions together: measured, else as published, else 0, which is no claim."""
    published: Agreement | None = None
    """SRCC on TID2013 as its authors or pyiqa's publish it."""
    trained_on: tuple[str, ...] = ()
    """Datasets whose human scores it was fitted on: it is neither measured nor calibrated on those."""
    needs: Literal["none", "parameters", "weights"]
    """none; parameters: a small file; weights: a network's."""
    parameter_file: str | None = None
    weights: tuple[str, ...] = ()
    """Network files by their place below torch's hub folder (pyiqa/..., checkpoints/..., clip/...), or `hf:` and a
    Hugging Face repository."""
    packages: Mapping[str, str] = Field(default_factory=dict)
    """Python modules it needs beside its library, each with what to install for it."""
    licence: str
    cost: Cost
    minimum_size_px: int = Field(ge=1)
    """Shortest side the tool can measure."""

    @model_validator(mode="after")
    def _complete(self) -> "ToolSpec":
        if "\n" in self.description:
            raise ValueError("description must be one line")
        if [self.pyiqa, self.piq, self.python].count(None) != 2 or (self.python is None) != (self.package is None):
            raise ValueError("give the tool's name in one library: pyiqa, piq, or python with its package")
        if self.takes == "pixels" and self.python is None:
            raise ValueError("takes: pixels goes with python")
        if (self.needs == "parameters") != (self.parameter_file is not None):
            raise ValueError("parameter_file goes with needs: parameters")
        if self.weights and self.needs != "weights":
            raise ValueError("weights go with needs: weights")
        if (self.mode == "NR" and self.identity is not None) or (
            self.mode == "FR" and self.identity is None and self.needs != "weights"
        ):
            raise ValueError("identity is given for FR tools, and for them only")
        return self

    @property
    def library(self) -> str:
        """The package that measures."""
        return self.package or ("pyiqa" if self.pyiqa is not None else "piq")

    @property
    def function(self) -> str:
        """The tool's name in its library."""
        return self.pyiqa or self.piq or str(self.python)

    @property
    def key(self) -> str:
        """What is measured, as one text: the name in pyiqa, or library, function and options."""
        if not self.options and self.pyiqa is not None:
            return self.pyiqa
        options = ",".join(f"{name}={value}" for name, value in sorted(self.options.items()))
        return f"{self.library}.{self.function}({options})"

    def strength(self, category: str | None) -> float:
        """Return the declared strength for a distortion category (or a word for one), else the general one."""
        known = category_of(category) if category else None
        return self.strengths.get(known, self.general) if known else self.general


class ToolRegistry:
    """The known tools, in their file's order."""

    def __init__(self, specs: Sequence[ToolSpec], hidden: Sequence[ToolSpec] = ()) -> None:
        """Take the tools to list, and those that are found by a name that no listed one has."""
        self._specs = {spec.name: spec for spec in specs}
        known = [(name, spec) for spec in (*hidden, *specs) for name in (spec.function, spec.name, spec.stands_in_for)]
        named = [(name, spec) for name, spec in known if name is not None]
        self._by_name = {name.casefold(): spec for name, spec in named}
        self._by_key = {_key(name): spec for name, spec in named}

    @classmethod
    def load(cls, path: Path | None = None, strengths: Path | None = None) -> "ToolRegistry":
        """Read a registry file and the measured strengths (by default the shipped ones). Raises SettingsError."""
        measured = Strengths.load(strengths).tools
        entries, specs = _ToolsFile.load(path).tools, []
        if path is None:
            entries = {**offered("tools", lambda name, entry: ToolSpec(name=name, **entry)), **entries}
        for name, spec in entries.items():
            if name in measured:
                general, own = measured[name].general.srcc, measured[name].by_category
                # Without a reference a category is a guess, and figures by category are of generated distortions alone.
                share = GENERAL_SHARE if spec.mode == "NR" else 0.0
                by = {category: round((1 - share) * of.srcc + share * general, 4) for category, of in own.items()}
                specs.append(spec.model_copy(update={"strengths": by, "general": general}))
            else:
                specs.append(spec.model_copy(update={"general": spec.general or spec.published or 0.0}))
        without, replaced = importlib.util.find_spec("pyiqa") is None, {spec.stands_in_for for spec in specs}
        hidden = [spec for spec in specs if (spec.name in replaced if without else spec.stands_in_for)]
        return cls([spec for spec in specs if spec not in hidden], hidden)

    def names(self) -> tuple[str, ...]:
        """Return the display names."""
        return tuple(self._specs)

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return every entry."""
        return tuple(self._specs.values())

    def find(self, name: str) -> ToolSpec | None:
        """Return the tool of this display or library name, whatever its case, hyphens or `_tool` suffix, or None.

        A name that only pyiqa knows gives an unlisted entry. `clipiqa+` is not `CLIPIQA`: an exact name goes first.
        """
        exact = name.strip().casefold()
        return self._by_name.get(exact) or unlisted_tool(exact) or self._by_key.get(_key(name))

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


class _ToolsFile(ConfigFile):
    FILE: ClassVar[str] = "tools.yaml"
    tools: dict[str, ToolSpec] = Field(min_length=1)

    @field_validator("tools", mode="before")
    @classmethod
    def _named(cls, tree: Any) -> Any:
        entries = tree.items() if isinstance(tree, dict) else ()
        return {name: {"name": name, **entry} if isinstance(entry, dict) else entry for name, entry in entries}


@cache
def pyiqa_table() -> Mapping[str, Mapping[str, Any]]:
    """Return pyiqa's own table of metrics (mode, direction, options) without importing pyiqa; empty without it."""
    package = importlib.util.find_spec("pyiqa")
    if package is None or package.origin is None:
        return {}
    table = runpy.run_path(str(Path(package.origin).with_name("default_model_configs.py")))["DEFAULT_CONFIGS"]
    return dict(table)


def unlisted_tool(name: str) -> ToolSpec | None:
    """Return an uncalibrated entry for a metric that pyiqa knows by this very name (in lower case), or None."""
    known = next((key for key in pyiqa_table() if key.casefold() == name), None)
    if known is None or known.startswith(_NOT_PER_IMAGE):
        return None
    entry = pyiqa_table()[known]
    return ToolSpec(
        name=known, pyiqa=known, mode=entry["metric_mode"], higher_is_better=not entry.get("lower_better", False),
        description=f"pyiqa's {known}; not calibrated here, so it gives a raw value and no score.", needs="weights",
        licence="PolyForm-Noncommercial-1.0.0; its weights' own", cost="expensive", minimum_size_px=32,
    )  # fmt: skip


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold()).removesuffix("tool")
