"""Running tools: what is ready here, a measurement that never raises, readings remembered, raw values scored 1..5."""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from program.common.errors import InputError, ToolError
from program.common.pool import single_flight
from program.common.settings import Settings
from program.images.store import LARGE, Box, ImageRef
from program.tools.cache import CacheState, ReadingKey, ReadingsCache
from program.tools.calibration import Calibration
from program.tools.models import Device, Running, evaluate, load_failure, resolved_device
from program.tools.paper import open_calibration
from program.tools.registry import Mode, ToolRegistry, ToolSpec
from program.tools.target import Target, target_of
from program.tools.weights import file_sha256, library_version, parameter_path, what_is_missing

__all__ = ("LOAD_TIMEOUT_S", "TIMEOUT_S", "Measurement", "ReadingCounts", "ToolRunner")

TIMEOUT_S = 120.0
"""The dearest tool takes 40 s for an image of half a megapixel on one core."""
LOAD_TIMEOUT_S = 300.0
"""The first tool brings PyTorch with it: 4 s on a warm disk, a minute on a slow one; weights have up to a gigabyte."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Measurement:
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


class ReadingCounts(NamedTuple):
    """How many readings were computed, came from the cache, or failed."""

    fresh: int = 0
    cached: int = 0
    failed: int = 0


class ToolRunner:
    """Measures images with the registry's tools. One runner serves several threads."""

    def __init__(
        self,
        registry: ToolRegistry,
        *,
        params_dir: Path | None = None,
        device: Device = "auto",
        cache_dir: Path | None = None,
        calibration: Path | Calibration | None = None,
        cache_mb: int = 512,
        threads: int = 1,
        timeout_s: float = TIMEOUT_S,
        load_timeout_s: float = LOAD_TIMEOUT_S,
        reduce_above_px: int = LARGE,
        resize_reference: bool = False,
    ) -> None:
        """Set up; no tool is loaded yet.

        `params_dir` holds parameter files by name, `cache_dir` gets the readings (None: nothing is kept) up to
        `cache_mb`, `calibration` is a file or its content (None: the shipped one). The others are the settings of the
        same names (see `ToolSettings`). Raises SettingsError for a malformed calibration.
        """
        self.registry = registry
        self.calibration = calibration if isinstance(calibration, Calibration) else open_calibration(calibration)
        self.params_dir = params_dir
        self._running = Running(device, threads, timeout_s, load_timeout_s)
        self._reduce_above_px, self._resize_reference = reduce_above_px, resize_reference
        self._cache = ReadingsCache(cache_dir / "readings" if cache_dir else None, size_limit_mb=cache_mb)
        self._lock = threading.Lock()
        self._counts = ReadingCounts()

    @classmethod
    def of(cls, settings: Settings, registry: ToolRegistry | None = None) -> "ToolRunner":
        """Return the runner that the settings ask for."""
        tools = dict(settings.tools)
        cache_dir = settings.cache_dir if tools.pop("cache") else None
        return cls(registry or ToolRegistry.load(), cache_dir=cache_dir, **tools)

    @property
    def cache_state(self) -> CacheState | None:
        """How full the readings cache is, or None where nothing is kept."""
        return self._cache.state

    @property
    def counts(self) -> ReadingCounts:
        """Readings so far, over all threads."""
        with self._lock:
            return self._counts

    def precisions(self, readings: Sequence[tuple[str, str | None]]) -> list[float | None]:
        """Return what each reading (tool, distortion category) of one image adds to its score, as 1 / variance on 1..5.

        They add up; None for a tool whose calibration does not say (see `Calibration.precisions`).
        """
        return self.calibration.precisions(readings)

    def ready(self, mode: Mode, *, expensive: bool = False) -> tuple[ToolSpec, ...]:
        """Return the tools of a mode that can run here, to choose from. Imports no torch.

        Expensive tools (over 0.3 s an image) are left out unless asked for; they run when named.
        """
        return tuple(
            spec
            for spec in self.registry.for_mode(mode)
            if (expensive or spec.cost != "expensive") and self.why_not(spec) is None
        )

    def unavailable(self) -> dict[str, str]:
        """Return, for each tool that cannot run here, why and what to do about it. Imports no torch."""
        return {spec.name: reason for spec in self.registry.specs() if (reason := self.why_not(spec)) is not None}

    def measure(
        self,
        tool_name: str,
        image: ImageRef,
        reference: ImageRef | None = None,
        box: Box | None = None,
        category: str | None = None,
    ) -> Measurement:
        """Measure an image, or a box (left, top, right, bottom in pixels) of it. Never raises: see `Measurement.error`.

        An FR tool compares with `reference`, of the same size; an NR tool ignores it. `category` is the distortion
        the tool was taken for: it sharpens the score, not the raw value. With a raw value but no calibration entry
        for the tool, `raw` is set and the error says so.
        """
        started = time.perf_counter()
        known = self.registry.find(tool_name)
        name = known.name if known else tool_name
        result = Measurement(tool=name)
        try:
            result = self._read(known or self.registry.get(tool_name), image, reference, box)
            if result.raw is not None:
                result = replace(result, score=self.calibration.score(name, result.raw, category))
        except InputError as error:
            result = replace(result, error=str(error))
        except Exception as error:  # Border: one failing tool must not end an assessment.
            logger.exception("tool %s failed on %s", name, image.name)
            text = " ".join(str(error).split()) or type(error).__name__
            result = replace(result, error=f"tool {name!r}: failed on {image.name!r} ({text[:200]}); use another tool")
        if result.error is not None:
            logger.info("%s", result.error)
        self._count(result)
        return replace(result, seconds=time.perf_counter() - started)

    def _read(self, spec: ToolSpec, image: ImageRef, reference: ImageRef | None, box: Box | None) -> Measurement:
        target = target_of(
            spec, image, reference, box, reduce_above_px=self._reduce_above_px, resize_reference=self._resize_reference
        )
        reason = self.why_not(spec)
        if reason is not None:
            raise ToolError(f"tool {spec.name!r}: {reason}")
        parameters = parameter_path(spec, self.params_dir)
        key = ReadingKey(
            tool=spec.key,
            version=library_version(spec.library) or "",
            parameters=file_sha256(parameters) if parameters else None,
            image=image.sha256,
            reference=target.reference.sha256 if target.reference else None,
            box=target.box,
            factor=target.factor,
            device=resolved_device(self._running.device),
            threads=self._running.threads,
        )
        raw, cached = self._cache.get(key), True
        if raw is None:
            # Two threads that judge one image (a score and a question of it) must not both measure it.
            with single_flight(key):
                raw = self._cache.get(key)
                if raw is None:
                    raw, cached = self._evaluate(spec, parameters, target), False
                    self._cache.put(key, raw)
        return Measurement(tool=spec.name, raw=raw, cached=cached, box=target.box, note=target.note)

    def _evaluate(self, spec: ToolSpec, parameters: Path | None, target: Target) -> float:
        image = target.pixels(target.image)
        reference = target.pixels(target.reference) if target.reference is not None else None
        return evaluate(spec, parameters, self._running, image, reference)

    def why_not(self, spec: ToolSpec) -> str | None:
        """Return why a tool cannot run here and what to do about it, or None when it can. Imports no torch."""
        return what_is_missing(spec, self.params_dir) or load_failure(spec)

    def _count(self, result: Measurement) -> None:
        field = "failed" if result.raw is None else "cached" if result.cached else "fresh"
        with self._lock:
            self._counts = self._counts._replace(**{field: getattr(self._counts, field) + 1})
