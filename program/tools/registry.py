"""Tools as `configs/tools.yaml` names them, what one measures, and whether it can run here."""

import hashlib
import importlib.util
import os
import re
import runpy
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from program.common import load_offers
from program.common.backends import Frozen, Record
from program.common.errors import ToolError, did_you_mean
from program.common.settings import ConfigFile
from program.images.refs import Box
from program.tools.calibration import Agreement, Strengths
from signatures.schemas import DistortionCategory, category_of

Mode: TypeAlias = Literal["FR", "NR"]
Cost: TypeAlias = Literal["cheap", "medium", "expensive"]

_NOT_PER_IMAGE = ("fid", "inception_score", "clipscore", "fgresq_pair")
"""pyiqa's metrics of sets of images, of texts or of pairs in no order."""

COSTS: tuple[Cost, ...] = ("cheap", "medium", "expensive")
"""Per 384 x 384 image on one CPU core: up to 0.1 s, up to 0.3 s, more. From cheapest to dearest."""

GENERAL_SHARE = 0.5
"""Weight of a no-reference tool's general strength in its strength for one category: PIQE finds
generated blur as well as any tool, and knows nothing of blurred photographs (|SRCC| 0.28 with
people on LIVE In the Wild)."""


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
    """The pixels measured (the box asked for, grown to the tool's minimum size), or None for the
    whole image."""
    note: str | None = None
    """What was measured, where it is not the image as it is: averaged down, or against a resampled
    reference."""


class ToolSpec(Frozen):
    """One tool: how to run it, what it is good at, what it needs and costs."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_+.-]*$")
    """As shown to models and users."""
    pyiqa: str | None = None
    """The metric's name in pyiqa."""
    piq: str | None = None
    """The function's name in piq, for a tool that piq measures instead."""
    python: str | None = Field(None, pattern=r"^[\w.]+:\w+$")
    """`module:function` of a tool that neither has: it takes one or two images (the reference
    second) and the options, and returns one value."""
    takes: Literal["tensors", "pixels"] = "tensors"
    """What that function takes images as: PyTorch's tensors, 1 x 3 x H x W in 0..1, on the device
    that is set, or H x W x 3 uint8 arrays, which need no PyTorch; such a tool stays on the
    processor."""
    package: str | None = None
    """The distribution that `python` measures with; its version is part of every cached reading's
    key."""
    stands_in_for: str | None = None
    """The tool of pyiqa that this one measures in its own way; it takes that one's place where
    there is no pyiqa."""
    options: Mapping[str, bool | int | float | str] = Field(default_factory=dict)
    """What the library is called with besides the images."""
    mode: Mode
    """FR compares with a reference, NR looks at the image alone."""
    higher_is_better: bool
    identity: float | None = None
    """FR: the raw value of an image equal to its reference; None for a network that has no fixed
    one."""
    description: str = Field(min_length=1, max_length=200)
    """One line that a model reads when it chooses."""
    strengths: Mapping[DistortionCategory, Agreement] = Field(default_factory=dict)
    """|SRCC| with human scores by distortion category, from the strengths file where it holds the
    tool."""
    general: Agreement = 0.0
    """|SRCC| over all distortions together: measured, else as published, else 0, which is no
    claim."""
    published: Agreement | None = None
    """SRCC on TID2013 as its authors or pyiqa's publish it."""
    trained_on: tuple[str, ...] = ()
    """Datasets whose human scores it was fitted on: it is neither measured nor calibrated on
    those."""
    needs: Literal["none", "parameters", "weights"]
    """none; parameters: a small file; weights: a network's."""
    parameter_file: str | None = None
    weights: tuple[str, ...] = ()
    """Network files by their place below torch's hub folder (pyiqa/..., checkpoints/..., clip/...),
    or `hf:` and a Hugging Face repository."""
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
        lacks_identity = self.identity is None and self.needs != "weights"
        if (self.mode == "FR" and lacks_identity) or (self.mode == "NR" and self.identity is not None):
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
        """Return the declared strength for a distortion category or word, else the general one."""
        known = category_of(category) if category else None
        if known:
            return self.strengths.get(known, self.general)
        return self.general


class ToolRegistry:
    """The known tools, in their file's order."""

    def __init__(self, specs: Sequence[ToolSpec], hidden: Sequence[ToolSpec] = ()) -> None:
        """Take the tools to list, and those that are found by a name that no listed one has."""
        self._specs = {spec.name: spec for spec in specs}
        self._by_name: dict[str, ToolSpec] = {}
        self._by_key: dict[str, ToolSpec] = {}
        for spec in (*hidden, *specs):
            for name in filter(None, (spec.function, spec.name, spec.stands_in_for)):
                self._by_name[name.casefold()] = spec
                self._by_key[_key(name)] = spec

    @classmethod
    def load(cls, path: Path | None = None, strengths: Path | None = None) -> "ToolRegistry":
        """Read a registry file and the measured strengths. Raises SettingsError."""
        measured = Strengths.load(strengths).tools
        entries, specs = _ToolsFile.load(path).tools, []
        if path is None:
            entries = {**load_offers("tools", lambda name, entry: ToolSpec(name=name, **entry)), **entries}
        for name, spec in entries.items():
            if name in measured:
                general, own = measured[name].general.srcc, measured[name].by_category
                # Without a reference a category is a guess, and figures by category are of generated distortions alone.
                share = GENERAL_SHARE if spec.mode == "NR" else 0.0
                by = {category: round((1 - share) * of.srcc + share * general, 4) for category, of in own.items()}
                specs.append(spec.model_copy(update={"strengths": by, "general": general}))
            else:
                specs.append(spec.model_copy(update={"general": spec.general or spec.published or 0.0}))
        if importlib.util.find_spec("pyiqa") is None:
            replaced = {spec.stands_in_for for spec in specs}
            hidden = [spec for spec in specs if spec.name in replaced]
        else:
            hidden = [spec for spec in specs if spec.stands_in_for]
        return cls([spec for spec in specs if spec not in hidden], hidden)

    def names(self) -> tuple[str, ...]:
        """Return the display names."""
        return tuple(self._specs)

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return every entry."""
        return tuple(self._specs.values())

    def ready(self, mode: Mode, params_dir: Path | None, *, expensive: bool = False) -> tuple[ToolSpec, ...]:
        """Return the tools of a mode that can run here; expensive ones only if asked. No torch."""
        specs = [spec for spec in self.specs() if spec.mode == mode and (expensive or spec.cost != "expensive")]
        return tuple(spec for spec in specs if why_not(spec, params_dir) is None)

    def find(self, name: str) -> ToolSpec | None:
        """Return the tool of this display or library name, however it is spelled, or None.

        A name that only pyiqa knows gives an unlisted entry. `clipiqa+` is not `CLIPIQA`: an exact
        name goes first.
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
        """Return the tool declared strongest for a category, else in general, else the cheaper.

        `category` None (or no known category) asks for general strength. Raises ToolError when
        `ready` is empty.
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
    """Return pyiqa's own table of metrics without importing pyiqa; empty without it."""
    package = importlib.util.find_spec("pyiqa")
    if package is None or package.origin is None:
        return {}
    table = runpy.run_path(str(Path(package.origin).with_name("default_model_configs.py")))["DEFAULT_CONFIGS"]
    return dict(table)


def unlisted_tool(name: str) -> ToolSpec | None:
    """Return an uncalibrated entry for a metric of pyiqa's by this very name, or None."""
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


Device: TypeAlias = Literal["auto", "cpu", "cuda"]

HUGGING_FACE = "hf:"
"""Begins the name of a Hugging Face repository among a tool's weights; the others lie below torch's
hub folder."""

failures: dict[str, str] = {}
"""Why a library, or a tool by its key, is left out for the rest of the process."""
loaded: set[str] = set()
"""Keys of tools that were loaded before: they need no loading."""
hanging: dict[str, "Future[Any]"] = {}
"""Loadings that nobody waits for any more, by the tool's name: they hold the process's settings for
loading."""


def why_not(spec: ToolSpec, params_dir: Path | None) -> str | None:
    """Return why a tool cannot run here and the mend, or None when it can. No torch."""
    return what_is_missing(spec, params_dir) or left_out(spec)


def left_out(spec: ToolSpec) -> str | None:
    """Return why this tool cannot be loaded in this process: it failed, or another hangs."""
    failure = failures.get(spec.library) or failures.get(spec.key)
    if failure is not None or spec.key in loaded:
        return failure
    other = next((name for name, loading in list(hanging.items()) if not loading.done()), None)
    return other and f"cannot be loaded while the loading of {other!r} hangs; start again without that tool"


def leave_out(spec: ToolSpec, reason: str, mend: str = "") -> ToolError:
    """Leave a tool out for the rest of the process; returns the error that says why."""
    failures[spec.key] = reason
    return ToolError(f"tool {spec.name!r}: {reason}{mend}")


def likely_device(device: Device, spec: ToolSpec) -> str:
    """Return `cpu` or `cuda`: where a tool runs, as far as is known without torch."""
    if spec.takes == "pixels" or (device == "auto" and not _has_accelerator()):
        return "cpu"
    if device == "auto":
        return "cuda"
    return device


@cache
def _has_accelerator() -> bool:
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in {"", "-1"}  # as Ray does for a worker without a share of a GPU
    if hidden or (installed_version("torch") or "").endswith("+cpu"):
        return False
    return os.name != "posix" or any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd"))


@cache
def installed_version(package: str) -> str | None:
    """Return the version of an installed package without importing it; None where there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def library_label(spec: ToolSpec) -> str:
    """Return the library of a tool with its version, as "pyiqa 0.1.16"."""
    return f"{spec.library} {installed_version(spec.library) or 'unknown'}"


def hub_folder(variable: str = "TORCH_HOME", library: str = "torch") -> Path:
    """Return the folder where torch's hub, or another library, keeps its downloads."""
    # As torch.hub.get_dir(), without importing torch.
    home = os.environ.get(variable) or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", library)
    return Path(os.path.expanduser(home)) / "hub"


def needed_files(spec: ToolSpec, folder: Path | None) -> dict[str, Path | None]:
    """Return, for each file of a tool by its place in the hub, where it lies (or None).

    `folder` holds files by name and goes before torch's hub folder. Hugging Face repositories have
    their own cache.
    """
    places = [f"pyiqa/{spec.parameter_file}"] if spec.parameter_file else list(spec.weights)
    return {place: _path_of(place, folder) for place in places}


def parameter_path(spec: ToolSpec, params_dir: Path | None) -> Path | None:
    """Return the file that decides a tool's values: parameters or first weights; or None."""
    return next((path for path in needed_files(spec, params_dir).values() if path is not None and path.is_file()), None)


def what_is_missing(spec: ToolSpec, params_dir: Path | None) -> str | None:
    """Return which package or file a tool lacks here and the mend, or None."""
    if installed_version(spec.library) is None:
        return f"{spec.library} is not installed; install it with `pip install {spec.library}`"
    for module, requirement in spec.packages.items():
        if importlib.util.find_spec(module) is None:
            return f"needs the Python package {module!r}; install it with `pip install '{requirement}'`"
    missing = [place for place, path in needed_files(spec, params_dir).items() if path is None]
    if not missing:
        return None
    files = ", ".join(repr(place if place.startswith(HUGGING_FACE) else Path(place).name) for place in missing)
    where = f"{str(params_dir)!r} nor in " if params_dir else ""
    return (
        f"{'parameter file' if spec.parameter_file else 'weights'} {files} not found in {where}{str(hub_folder())!r}; "
        f"with a network `python -m program.tools --fetch {spec.name}`, without set tools.params_dir or "
        "AGENTICIQA_PARAMS_DIR to the folder that holds what is missing"
    )


def file_sha256(path: Path) -> str:
    """Return a file's SHA-256 in hex; read again only when its time or size changed."""
    stat = path.stat()
    return _sha256(path, stat.st_mtime_ns, stat.st_size)


@cache
def _sha256(path: Path, *_: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _path_of(place: str, folder: Path | None) -> Path | None:
    if place.startswith(HUGGING_FACE):
        named = os.environ.get("HF_HUB_CACHE")
        hub = Path(os.path.expanduser(named)) if named else hub_folder("HF_HOME", "huggingface")
        snapshots = hub / f"models--{place.removeprefix(HUGGING_FACE).replace('/', '--')}" / "snapshots"
        return next((snapshot for snapshot in sorted(snapshots.glob("*")) if any(snapshot.iterdir())), None)
    candidates = [*([folder / Path(place).name] if folder else []), hub_folder() / place]
    return next((path for path in candidates if path.is_file()), None)
