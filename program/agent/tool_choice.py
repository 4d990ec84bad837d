"""Which tool measures what in which region, and how a model is told of tools. Pure."""

from collections.abc import Mapping, Sequence

from program.agent.state import compact_json
from program.tools.registry import ToolSpec
from signatures.schemas import DISTORTION_CATEGORIES

OVERALL = "Overall"
"""What a tool measures that was taken for no distortion: a region as a whole."""
_LISTED = 4
"""The strongest for what is to be measured: a longer list costs more tokens than it helps."""

Choice = dict[str, dict[str, str]]
"""Region -> label (a distortion, or `OVERALL`) -> tool; an empty region is measured by none."""


def as_a_whole(tools: Sequence[str], distortions: Sequence[str] = ()) -> dict[str, str]:
    """Return the tools of a region by what they measure: each once, whatever is wrong there.

    A single tool sharpens its score by the distortion, where that is a single one.

    >>> as_a_whole(["VIF"]), as_a_whole(["VIF"], ["Blurs"]), as_a_whole(["VIF", "PSNR"], ["Blurs"])
    ({'Overall': 'VIF'}, {'Blurs': 'VIF'}, {'Overall (VIF)': 'VIF', 'Overall (PSNR)': 'PSNR'})
    """
    if len(tools) != 1:
        return {f"{OVERALL} ({tool})": tool for tool in tools}
    if len(distortions) == 1:
        return {distortions[0]: tools[0]}
    return {OVERALL: tools[0]}


def distortion_in(label: str) -> str | None:
    """Return the distortion that a label names; None for a region as a whole."""
    return label if label in DISTORTION_CATEGORIES else None


def wanted_of(regions: Sequence[str], distortions: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the distortions to measure by region, in a fixed order: equal sets ask the same."""
    wanted: dict[str, list[str]] = {}
    for region in regions:
        present = distortions.get(region, ())
        wanted[region] = [category for category in DISTORTION_CATEGORIES if category in present]
    return wanted


def listed(ready: Sequence[ToolSpec], wanted: Mapping[str, Sequence[str]]) -> str:
    """Return the strongest ready tools as JSON, with their strengths for the distortions."""
    categories = [c for c in DISTORTION_CATEGORIES if any(c in names for names in wanted.values())]
    tools = []
    for spec in ready:
        strengths = {category: round(spec.strength(category), 2) for category in categories}
        best = max([spec.general, *strengths.values()])
        general = round(spec.general, 2)
        facts = {"name": spec.name, "description": spec.description, "strengths": strengths, "general": general}
        tools.append((best, facts))
    tools.sort(key=lambda each: each[0], reverse=True)
    return compact_json([facts for _, facts in tools[:_LISTED]])
