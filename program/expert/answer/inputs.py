"""What the inputs of a question hold, as models are given them (text or JSON), in the form the answers read. Pure."""

import functools
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from program.common.questions import is_chinese, options_shown
from program.fusion.levels import softmax
from signatures.schemas import GLOBAL, SEVERITIES, DistortionCategory, LevelProbabilities, category_of
from signatures.schemas import level_of as level_named

__all__ = (
    "Inputs", "categories_by_region", "level_of", "options_of", "parsed_json", "region_crops",
    "region_pattern", "regions_of", "scores_of", "severities_of",
)  # fmt: skip

Inputs = Mapping[str, Any]


@functools.lru_cache(maxsize=1024)
def region_pattern(name: str) -> re.Pattern[str]:
    """Return what finds a region's name in a question, however it is typed.

    >>> [bool(region_pattern("Dog face").search(text)) for text in ("the dog's face", "dog-faces", "Dogface", "a dog")]
    [True, True, True, False]
    """
    words = r"(?:'s|[\s_-])*".join(map(re.escape, re.findall(r"[^\W_]+", name))) or re.escape(name)
    return re.compile(words if is_chinese(name) else rf"(?<!\w){words}s?(?!\w)", re.IGNORECASE)


def parsed_json(text: Any) -> Any:
    """Return what JSON text holds, None for text that is none; anything but text is returned as it is."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


def _object(inputs: Inputs, name: str) -> Mapping[str, Any]:
    """Return the JSON object that an input holds; an empty one for anything else."""
    stated = parsed_json(inputs.get(name))
    return stated if isinstance(stated, dict) else {}


def regions_of(inputs: Inputs) -> list[str]:
    """Return the regions that are asked about; the whole image if none is."""
    names = parsed_json(inputs.get("regions"))
    if isinstance(names, str):
        names = [names]
    return [str(name) for name in names] if names else [GLOBAL]


def region_crops(inputs: Inputs) -> dict[str, Any]:
    """Return the regions that were cut out of the image, to be measured as images are; "Global" is the whole of it."""
    crops = inputs.get("region_crops")
    return {str(name): crop for name, crop in crops.items()} if isinstance(crops, Mapping) else {}


def categories_by_region(inputs: Inputs) -> dict[str, list[DistortionCategory]]:
    """Return the categories of each region in `distortion_set`; regions without any are left out."""
    stated = _object(inputs, "distortion_set").items()
    listed = {str(region): names if isinstance(names, list) else [names] for region, names in stated if names}
    return {
        region: list(dict.fromkeys(c for n in names if (c := category_of(str(n))))) for region, names in listed.items()
    }


def options_of(inputs: Inputs) -> dict[str, str]:
    """Return the options by letter; none where they cannot be read."""
    stated = inputs.get("options")
    if isinstance(stated, Mapping):
        return {str(letter): str(text) for letter, text in stated.items()}
    return options_shown(str(stated or "")) or {}


def severities_of(inputs: Inputs, query: str) -> dict[str, str]:
    """Return the strongest severity word per category in the given analysis: of the regions asked about, or of all."""
    regions = _object(inputs, "distortion_analysis")
    in_query = [name for name in regions if name != GLOBAL and region_pattern(name).search(query)]
    given = [regions[name] for name in in_query or regions]
    found = [finding for region in given if isinstance(region, list) for finding in region if isinstance(finding, dict)]
    words = [(str(each.get("type")), each["severity"]) for each in found if each.get("severity") in SEVERITIES]
    # In the order given, and of each category the strongest, which comes last when they are sorted.
    return dict(words) | dict(sorted(words, key=lambda pair: SEVERITIES.index(pair[1])))


def scores_of(inputs: Inputs) -> list[tuple[str, float]]:
    """Return each distinct tool and its score, in the order given."""
    regions = [by for by in _object(inputs, "quality_scores").values() if isinstance(by, dict)]
    given = [reading for by in regions for reading in by.values() if isinstance(reading, list) and len(reading) == 2]
    return list(dict.fromkeys((str(tool), float(score)) for tool, score in given if isinstance(score, int | float)))


def level_of(demo: Inputs) -> float | None:
    """Return the level 1..5 a demo states: its expected level, or the one it names."""
    if (named := level_named(str(demo.get("quality_level") or ""))) is not None:
        return float(named)
    try:
        probabilities = LevelProbabilities.model_validate(parsed_json(demo.get("quality_probs")))
    except ValueError:
        return None
    masses = {level: mass for level, mass in probabilities.by_level().items() if math.isfinite(mass)}
    if masses and min(masses.values()) < 0:
        masses = softmax(masses)
    total = sum(masses.values())
    return sum(level * mass for level, mass in masses.items()) / total if total > 0 else None
