"""Measuring images with tools: a measurement never raises, readings are remembered."""

import logging
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from program.common.cache import PlainCache
from program.common.errors import InputError, ToolError, one_line
from program.common.pool import single_flight
from program.common.settings import Settings
from program.images.decoding import READING_RULES
from program.images.refs import reduced_size, reduction, whole_pixels
from program.images.store import IMAGES, LARGEST, Box, ImageRef
from program.tools import registry
from program.tools.calibration import PAPER, BeliefError, Calibration, PaperCalibration
from program.tools.loading import device_of, evaluate
from program.tools.registry import Measurement, Mode, ToolRegistry, ToolSpec
from program.tracking import tool_span

logger = logging.getLogger(__name__)


class Target(NamedTuple):
    """Images that suit a tool, which part of them, and how much averaged down."""

    image: ImageRef
    reference: ImageRef | None
    box: Box | None
    """The box asked for, grown to the tool's minimum size; None for the whole image."""
    at_most: int
    """Pixels that the tool is shown."""
    factor: int
    note: str | None


class ToolRunner:
    """Measures images with the registry's tools. One runner serves several threads."""

    def __init__(self, settings: Settings, registry: ToolRegistry | None = None) -> None:
        """Set up; no tool is loaded yet. Raises SettingsError for a malformed calibration."""
        tools = self.settings = settings.tools
        self.registry = registry or ToolRegistry.load()
        self.calibration = open_calibration(tools.calibration)
        kept = settings.kept_dir
        self._cache = PlainCache(kept / "readings", size_limit_mb=tools.cache_mb) if kept is not None else None

    def precisions(
        self, readings: Sequence[tuple[str, str | None]], belief: BeliefError | None = None
    ) -> list[float | None]:
        """Return what each reading of one image adds; see `Calibration.precisions`."""
        return self.calibration.precisions(readings, belief)

    def ready(self, mode: Mode, *, expensive: bool = False) -> tuple[ToolSpec, ...]:
        """Return the tools of a mode that can run here; expensive ones only if asked. No torch."""
        return self.registry.ready(mode, self.settings.params_dir, expensive=expensive)

    def unavailable(self) -> dict[str, str]:
        """Return, for each tool that cannot run here, why and the mend. No torch."""
        return {spec.name: reason for spec in self.registry.specs() if (reason := self.why_not(spec)) is not None}

    def why_not(self, spec: ToolSpec) -> str | None:
        """Return why a tool cannot run here and the mend, or None when it can. No torch."""
        return registry.why_not(spec, self.settings.params_dir)

    def measure(
        self,
        tool_name: str,
        image: ImageRef,
        reference: ImageRef | None = None,
        box: Box | None = None,
        category: str | None = None,
    ) -> Measurement:
        """Measure an image, or a box of it in pixels. Never raises: see `Measurement.error`.

        An FR tool compares with `reference`, of the same size; an NR tool ignores it. `category` is
        the distortion the tool was taken for: it sharpens the score, not the raw value. With a raw
        value but no calibration entry for the tool, `raw` is set and the error says so.
        """
        with tool_span(tool_name, {"image": image.name, "box": box, "category": category}) as outputs:
            result = self._measured(tool_name, image, reference, box, category)
            outputs |= {name: getattr(result, name) for name in ("raw", "score", "cached", "note", "error")}
        return result

    def _measured(
        self, tool_name: str, image: ImageRef, reference: ImageRef | None, box: Box | None, category: str | None
    ) -> Measurement:
        started = time.perf_counter()
        result = Measurement(tool=tool_name)
        try:
            spec = self.registry.get(tool_name)
            result.tool = spec.name
            result = self._read(spec, image, reference, box)
            if result.raw is not None:
                result.score = self.calibration.score(spec.name, result.raw, category)
        except InputError as error:
            result.error = str(error)
        except Exception as error:  # Border: one failing tool must not end an assessment.
            logger.exception("tool %s failed on %s", result.tool, image.name)
            text = one_line(error)
            result.error = f"tool {result.tool!r}: failed on {image.name!r} ({text[:200]}); use another tool"
        if result.error is not None:
            logger.info("%s", result.error)
        result.seconds = time.perf_counter() - started
        return result

    def _read(self, spec: ToolSpec, image: ImageRef, reference: ImageRef | None, box: Box | None) -> Measurement:
        target = self._target(spec, image, reference, box)
        reason = self.why_not(spec)
        if reason is not None:
            raise ToolError(f"tool {spec.name!r}: {reason}")
        parameters = registry.parameter_path(spec, self.settings.params_dir)
        device = registry.likely_device(self.settings.device, spec)
        stored = raw = self._stored(_key(spec, parameters, target, device, self.settings.threads))
        if stored is None:
            # torch is needed from here on, and knows: readings of both devices never share a key.
            key = _key(spec, parameters, target, device_of(self.settings.device, spec), self.settings.threads)
            # Two threads that judge one image (a score and a question of it) must not both measure it.
            with single_flight(key):
                stored = self._stored(key)
                raw = self._evaluate(spec, parameters, target, key) if stored is None else stored
        return Measurement(tool=spec.name, raw=raw, cached=stored is not None, box=target.box, note=target.note)

    def _stored(self, key: str) -> float | None:
        entry = self._cache.get(key) if self._cache is not None else None
        if entry is None:
            return None
        return float(entry[0])

    def _evaluate(self, spec: ToolSpec, parameters: Path | None, target: Target, key: str) -> float:
        shown = partial(IMAGES.pixels, box=target.box, at_most=target.at_most)
        reference = shown(target.reference) if target.reference is not None else None
        raw = evaluate(spec, parameters, self.settings, shown(target.image), reference)
        if self._cache is not None:
            # A list, as earlier files hold the seconds beside the value. JSON keeps the float exactly.
            self._cache.set(key, [raw])
        return raw

    def _target(self, spec: ToolSpec, image: ImageRef, reference: ImageRef | None, box: Box | None) -> Target:
        """Return what to measure, nothing decoded; ToolError where pair or size do not fit.

        A box is grown to the tool's minimum size; a large image or box is averaged down.
        """
        notes = []
        if spec.mode == "NR":
            reference = None
        elif reference is None:
            raise ToolError(f"tool {spec.name!r}: needs a reference image; give one or use a no-reference tool")
        elif reference.size != image.size:
            notes.append(f"reference {reference.name!r} resampled from {reference.size} to {image.size}")
            reference = IMAGES.match_size(reference, image, resample=self.settings.resize_reference)
        width, height = image.width, image.height
        if box is not None:
            x0, y0, x1, y1 = box = whole_pixels(box, width, height, minimum_px=spec.minimum_size_px)
            box = None if box == (0, 0, width, height) else box
            width, height = x1 - x0, y1 - y0
        # What reads the network as the embedded model does is shown the same pixels, so that they are read once.
        at_most = LARGEST if spec.takes == "pixels" else self.settings.reduce_above_px
        factor = reduction(width, height, at_most)
        width, height = reduced_size(width, height, factor)
        if min(width, height) < spec.minimum_size_px:
            size = f"{'is' if factor == 1 else 'is measured at'} {width}x{height}"
            mend = "use a larger image" if factor == 1 else "raise tools.reduce_above_px"
            raise ToolError(
                f"tool {spec.name!r}: image {image.name!r} {size}, it needs at least {spec.minimum_size_px} pixels a "
                f"side; {mend} or use another tool"
            )
        if factor > 1:
            notes.append(f"measured at {width}x{height}, each pixel the mean of {factor}x{factor}")
        return Target(image, reference, box, at_most, factor, "; ".join(notes) or None)


def open_calibration(path: Path | None) -> Calibration:
    """Return the calibration that the settings name: a file, `paper`, or the shipped one."""
    if str(path) == PAPER:
        return PaperCalibration()
    return Calibration.load(path)


def _key(spec: ToolSpec, parameters: Path | None, target: Target, device: str, threads: int) -> str:
    """Return what a raw value depends on as one line; calibration is applied afterwards."""
    box = ",".join(f"{v:g}" for v in target.box) if target.box else "-"
    # Readings kept under "cuda" and "auto" were taken in the reduced precision of TensorFloat-32.
    place = "cuda-fp32" if device == "cuda" else device
    return "|".join(
        (
            spec.key,
            registry.installed_version(spec.library) or "",
            registry.file_sha256(parameters) if parameters else "-",
            target.image.sha256,
            target.reference.sha256 if target.reference else "-",
            box,
            f"{READING_RULES}/{target.factor}/{place}/{threads}",
        )
    )
