"""The pictures of a report: samples made small, and where their quality is lost."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from data.manifest import Sample
from program.common.errors import InputError
from program.common.places import Place
from program.evaluation.row import LabelledRow
from program.expert import TILE, heatmap
from program.images.store import IMAGES
from program.images.thumbnails import data_url, thumbnail
from signatures.schemas import CATEGORY_WORDS, GLOBAL, SEVERITIES, DistortionCategory, category_of

__all__ = ("pictures_of",)

_THUMBNAIL_PX, _MAP_PX = 320, 200


def pictures_of(
    samples: Iterable[Sample], wanted: set[str], mapped: Iterable[LabelledRow]
) -> Mapping[str, Mapping[str, Any]]:
    """Return what to show of the samples whose ids are wanted, by id; with maps for the rows of `mapped`.

    Pictures are data: URLs, None or left out where the image cannot be read.
    """
    distortions = {row.id: _found(row) for row in mapped}
    return {
        sample.id: {
            "image": _thumbnail(sample.image),
            "reference": _thumbnail(sample.reference) if sample.reference else None,
            "maps": _maps(sample, distortions[sample.id]) if sample.id in distortions else {},
            "query": sample.query,
            "options": sample.options,
        }
        for sample in islice((sample for sample in samples if sample.id in wanted), len(wanted))
    }


def _thumbnail(path: Place) -> str | None:
    try:
        return thumbnail(path, _THUMBNAIL_PX)
    except InputError:
        return None


def _found(row: LabelledRow) -> DistortionCategory | None:
    """Return the strongest distortion that was found in the whole image, if any."""
    evidence: Any = row.evidence or {}
    found = [
        (SEVERITIES.index(f["severity"]), f["type"]) for f in evidence.get("findings", ()) if f["region"] == GLOBAL
    ]
    strength, worst = max(found, default=(0, ""))
    return category_of(worst) if strength else None


def _maps(sample: Sample, distortion: DistortionCategory | None) -> dict[str, str]:
    """Return where quality is lost, in all and to one distortion, by what the picture shows."""
    try:
        with IMAGES.borrowing():
            image, reference = IMAGES.add(sample.image), IMAGES.add(sample.reference) if sample.reference else None
            if reference and (reference.width, reference.height) != (image.width, image.height):
                reference = None
            maps = {"quality lost": heatmap(image, reference, step=TILE)}
            if distortion is not None:
                maps[f"lost to {CATEGORY_WORDS[distortion]}"] = heatmap(image, reference, distortion, TILE)
            return {title: data_url(drawn, _MAP_PX) for title, drawn in maps.items()}
    except InputError:
        return {}
