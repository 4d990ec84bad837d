"""What a structured call to the expert holds: each input as it is read, whatever form it came in."""

import json
from collections.abc import Mapping
from typing import Any

from program.common.text import options_shown
from program.expert.answer.planning import Inputs
from signatures.schemas import GLOBAL, DistortionCategory, Intention, ScoreShift, category_of


def parsed_json(text: Any) -> Any:
    """Return what JSON text holds, None for other text; anything but text as it is."""
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
    names = parsed_json(inputs.get("regions")) or [GLOBAL]
    if isinstance(names, str):
        return [names]
    return list(map(str, names))


def region_crops(inputs: Inputs) -> dict[str, Any]:
    """Return the regions that were cut out of the image."""
    crops = inputs.get("region_crops")
    return dict(crops) if isinstance(crops, Mapping) else {}


def categories_by_region(inputs: Inputs) -> dict[str, list[DistortionCategory]]:
    """Return the categories of each region in `distortion_set` that has any."""
    categories: dict[str, list[DistortionCategory]] = {}
    for region, stated in _object(inputs, "distortion_set").items():
        if not stated:
            continue
        names = stated if isinstance(stated, list) else [stated]
        known = dict.fromkeys(map(category_of, map(str, names)))
        categories[region] = [category for category in known if category]
    return categories


def options_of(inputs: Inputs) -> dict[str, str]:
    """Return the options by letter; none where they cannot be read."""
    stated = inputs.get("options")
    if isinstance(stated, Mapping):
        return {str(letter): str(text) for letter, text in stated.items()}
    return options_shown(str(stated or "")) or {}


def scores_of(inputs: Inputs) -> list[tuple[str, float]]:
    """Return each distinct tool and its score, in the order given."""
    scores: dict[tuple[str, float], None] = {}
    for readings in _object(inputs, "quality_scores").values():
        if not isinstance(readings, dict):
            continue
        for reading in readings.values():
            match reading:
                case [tool, int() | float() as score]:
                    scores[str(tool), float(score)] = None
    return list(scores)


def score_shift_of(inputs: Inputs) -> ScoreShift:
    """Return how labels move the score in a question; by nothing where none are known."""
    return ScoreShift(*inputs.get("score_shift") or ())


def description_of(inputs: Inputs) -> tuple[list[Intention], str | None]:
    """Return the effects that are meant in a picture, and what kind it is by a person's word."""
    return list(inputs.get("intended") or []), inputs.get("kind")


def option_shares(inputs: Inputs) -> dict[str, float]:
    """Return by option's letter the share of similar photographs it is right for, where known."""
    return dict(inputs.get("option_shares") or {})


def choose_tools(inputs: Inputs) -> list[dict[str, str]]:
    """Pick for each region and distortion the tool of the best strength, then in general."""
    listed = parsed_json(inputs.get("tools"))
    if not isinstance(listed, list):
        return []
    tools = [tool for tool in listed if isinstance(tool, dict) and tool.get("name")]
    if not tools:
        return []
    chosen = []
    for region, distortions in (_object(inputs, "distortion_set") or {GLOBAL: []}).items():
        for distortion in map(str, distortions or [OVERALL]):
            tool = max(tools, key=lambda tool: _merit(tool, distortion))
            chosen.append({"region": region, "distortion": distortion, "tool": str(tool["name"])})
    return chosen


OVERALL = "Overall"


def _merit(tool: Mapping[str, Any], distortion: str) -> tuple[float, float]:
    general = float(tool.get("general") or 0.0)
    strengths, strength = tool.get("strengths"), 0.0
    if isinstance(strengths, dict):
        strength = float(strengths.get(distortion, 0.0))
    if distortion == OVERALL:
        return general, strength
    return strength, general
