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
from signatures.schemas import CATEGORY_WORDS, GLOBAL, SEVERITIES

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


def _found(row: LabelledRow) -> str | None:
    """Return the worst fault or the strongest distortion that was found in the whole image, if any."""
    evidence: Any = row.evidence or {}
    found = [f for f in evidence.get("findings", ()) if f["region"] == GLOBAL and f["severity"] != "none"]
    if found and found[0].get("fault"):  # faults come with the worst first
        return str(found[0]["fault"])
    strongest = max(found, key=lambda f: SEVERITIES.index(f["severity"]), default=None)
    return CATEGORY_WORDS[strongest["type"]] if strongest else None


def _maps(sample: Sample, distortion: str | None) -> dict[str, str]:
    """Return where quality is lost, in all and to one distortion, by what the picture shows."""
    try:
        with IMAGES.borrowing():
            image, reference = IMAGES.add(sample.image), IMAGES.add(sample.reference) if sample.reference else None
            if reference and (reference.width, reference.height) != (image.width, image.height):
                reference = None
            maps = {"quality lost": heatmap(image, reference, step=TILE)}
            if distortion is not None:
                maps[f"lost to {distortion}"] = heatmap(image, reference, distortion, TILE)
            return {title: data_url(drawn, _MAP_PX) for title, drawn in maps.items()}
    except InputError:
        return {}
