"""The quickstart data: distorted photographs with KADID-10k's mean human scores, made on first use.

Photographs that ship in installed packages x KADID-10k's distortions x five levels. The score of an
image is the mean over KADID-10k's references at that distortion and level: a population mean, not a score
of that image (people were shown other photographs, of 512 x 384 pixels). Nothing is downloaded.

Two manifests lie beside the images: `manifest.jsonl` (scoring without reference, and multiple choice)
and `manifest-fr.jsonl` (the same scoring images with their reference). Files are named by their content.
"""

import hashlib
import io
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from data.catalogue import catalogue
from data.distortions import DISTORTIONS, check_distortion, distort, distortions_for, generator_for
from data.kadid import LEVELS, level_means_sha256
from data.manifest import write_manifest
from data.photographs import LONGEST_SIDE_PX, PHOTOGRAPHS, load_photograph, photograph_bytes
from data.questions import Version
from data.quickstart_lines import Images, lines_with_reference, lines_without_reference
from program.common.errors import DataError
from program.common.pool import in_order
from program.common.progress import progress as progress_bar

__all__ = ("DATASETS", "FULL", "QuickstartPlan", "build_quickstart", "resolve_dataset")

GENERATOR_VERSION = 2
"""Raise it when the same inputs would give other images, questions or lines: old folders are then left aside."""

DATASETS: Mapping[str, str] = {"quickstart": "manifest.jsonl", "quickstart-fr": "manifest-fr.jsonl"}
"""Names that stand for a generated manifest, with its file."""

RECORD = "quickstart.json"
STALE_AFTER_S = 6 * 3600

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QuickstartPlan:
    """What to generate; a part of the whole is for tests and quick trials, in a folder of its own."""

    photographs: tuple[str, ...] = tuple(PHOTOGRAPHS)
    distortions: tuple[str, ...] = DISTORTIONS
    levels: tuple[int, ...] = LEVELS

    def revision(self) -> str:
        """Return 12 hex digits that change with the generator, the plan, the photographs and the human scores."""
        parts: dict[str, Any] = {
            "generator": GENERATOR_VERSION,
            "distortions": self.distortions,
            "levels": self.levels,
            "longest_side_px": LONGEST_SIDE_PX,
            "photographs": {name: hashlib.sha256(photograph_bytes(name)).hexdigest() for name in self.photographs},
            "scores": level_means_sha256(),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


FULL = QuickstartPlan()


def resolve_dataset(name_or_path: str | Path, cache_dir: Path, *, progress: bool = True) -> Path:
    """Return the manifest that a name ("quickstart", "quickstart-fr") or a path stands for.

    Quickstart data is generated on first use. Raises DataError when there is neither such a name nor such a file.
    """
    if str(name_or_path) in DATASETS:
        return build_quickstart(cache_dir, progress=progress).with_name(DATASETS[str(name_or_path)])
    path, name = Path(name_or_path).expanduser(), str(name_or_path)
    if path.is_file():
        return path
    if name in catalogue():
        raise DataError(
            f"dataset {name!r}: give its prepared manifest; to make one: python -m data.prepare {name} --root DIR "
            f"--out {name}/manifest.jsonl"
        )
    if path.is_dir():
        inside = ", ".join(sorted(p.name for p in path.glob("*.jsonl"))) or "none is there; make one"
        raise DataError(f"dataset {name!r}: is a folder; give a manifest in it ({inside})")
    beside = [str(p) for p in path.parent.glob("*.jsonl")] if path.parent.is_dir() else []
    close = get_close_matches(name, [*DATASETS, *beside], n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"give a manifest's path or {' or '.join(DATASETS)}"
    raise DataError(f"dataset {name!r}: neither a known name nor a file; {hint}")


def build_quickstart(
    cache_dir: Path, *, progress: bool = True, plan: QuickstartPlan = FULL, workers: int | None = None
) -> Path:
    """Return the quickstart's manifest.jsonl, made first where it is not there whole.

    The folder appears under its name only when it is whole, so a killed run leaves nothing that is taken
    for it, and of several runs at once the first one to finish stands. The same package versions give the
    same bytes. Raises DataError when a photograph is missing or the folder cannot be written.
    """
    folder = cache_dir / f"quickstart-{plan.revision()}"
    if not _is_whole(folder):
        try:
            cache_dir.mkdir(parents=True, exist_ok=True)
            _clear_stale(cache_dir)
            _build(folder, plan, progress=progress, workers=workers or os.cpu_count() or 1)
        except OSError as error:
            raise DataError(
                f"quickstart data in {str(cache_dir)!r}: cannot be written ({error.strerror or error}); "
                "free space, mend its permissions, or set another cache folder"
            ) from error
    return folder / "manifest.jsonl"


def _build(folder: Path, plan: QuickstartPlan, *, progress: bool, workers: int) -> None:
    temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.tmp")
    try:
        (temporary / "images").mkdir(parents=True)
        images = _make_images(temporary / "images", plan, progress=progress, workers=workers)
        write_manifest(temporary / "manifest.jsonl", lines_without_reference(images, temporary / "images"))
        write_manifest(temporary / "manifest-fr.jsonl", lines_with_reference(images, temporary / "images"))
        count = len(list((temporary / "images").iterdir()))
        record = {"images": count, "revision": plan.revision()}
        (temporary / RECORD).write_text(json.dumps(record) + "\n", encoding="utf-8")
        _put_in_place(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _put_in_place(temporary: Path, folder: Path) -> None:
    if folder.exists() and not _is_whole(folder):
        logger.warning("quickstart folder %s was damaged; it is made anew", folder.name)
        shutil.rmtree(folder, ignore_errors=True)
    try:
        os.replace(temporary, folder)
    except OSError:
        # A folder that is not empty is not replaced: another run was faster, and its result is the same.
        if not _is_whole(folder):
            raise


def _is_whole(folder: Path) -> bool:
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        images = sum(entry.name.endswith(".png") for entry in os.scandir(folder / "images"))
        return bool(record["images"] == images and all((folder / name).is_file() for name in DATASETS.values()))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _clear_stale(cache_dir: Path) -> None:
    for folder in cache_dir.glob(".quickstart-*.tmp"):
        try:
            old = time.time() - folder.stat().st_mtime > STALE_AFTER_S
        except OSError:
            continue
        if old:
            shutil.rmtree(folder, ignore_errors=True)


def _make_images(folder: Path, plan: QuickstartPlan, *, progress: bool, workers: int) -> Images:
    for distortion in plan.distortions:
        check_distortion(distortion)
    photographs = {name: load_photograph(name)[0] for name in plan.photographs}
    jobs = [(name, version) for name, pixels in photographs.items() for version in _versions(pixels, plan)]
    with progress_bar("Making quickstart images", len(jobs), shown=progress) as advance:

        def make(job: tuple[str, Version]) -> str:
            name, version = job
            pixels = photographs[name]
            if version.distortion is not None:
                rng = generator_for(name, version.distortion, version.level)
                pixels = distort(pixels, version.distortion, version.level, rng)
            file = _store(folder, pixels)
            advance(facts=version.distortion or "undistorted")
            return file

        files = in_order(make, jobs, workers=workers)
    images: dict[str, dict[Version, str]] = {name: {} for name in photographs}
    for (name, version), file in zip(jobs, files, strict=True):
        images[name][version] = file
    return images


def _versions(pixels: NDArray[np.uint8], plan: QuickstartPlan) -> list[Version]:
    fitting = set(distortions_for(pixels))
    return [Version(), *(Version(d, level) for d in plan.distortions if d in fitting for level in plan.levels)]


def _store(folder: Path, pixels: NDArray[np.uint8]) -> str:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    data = buffer.getvalue()
    path = folder / f"{hashlib.sha256(data).hexdigest()[:20]}.png"
    # Two threads may hold the same image (identities); each writes the same bytes.
    path.write_bytes(data)
    return path.name
