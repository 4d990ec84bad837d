"""The embedded expert: it measures pixels and answers the program's own signatures. Not a language model.

This is the room's one door: nothing outside imports what lies inside.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from program.expert.answer.planning import (
        moved_text,
        named_distortions,
        named_tools,
        plan_assessment,
        region_pattern,
    )
    from program.expert.engine import make_perceptual_lm
    from program.expert.judge.correction import Correction, Labels
    from program.expert.judge.demo_belief import TILE, belief, heatmap, telling
    from program.expert.judge.demo_belief import traits_of as properties_of
    from program.expert.judge.faults import KINDS, STRENGTHS, kind_of, sharpness_of
    from program.expert.judge.quality import Belief
    from program.expert.judge.views import WIDTH, View, Viewer, appearance, likeness
    from program.expert.store import MODEL, NAME

__all__ = (
    "KINDS", "MODEL", "NAME", "STRENGTHS", "TILE", "WIDTH", "Belief", "Correction", "Labels", "View", "Viewer",
    "appearance", "belief", "heatmap", "kind_of", "likeness", "make_perceptual_lm", "moved_text", "named_distortions",
    "named_tools", "plan_assessment", "properties_of", "region_pattern", "sharpness_of", "telling",
)  # fmt: skip

_HOMES = {
    "KINDS": "judge.faults.KINDS",
    "MODEL": "store.MODEL",
    "NAME": "store.NAME",
    "appearance": "judge.views.appearance",
    "STRENGTHS": "judge.faults.STRENGTHS",
    "TILE": "judge.demo_belief.TILE",
    "WIDTH": "judge.views.WIDTH",
    "Belief": "judge.quality.Belief",
    "Correction": "judge.correction.Correction",
    "Labels": "judge.correction.Labels",
    "View": "judge.views.View",
    "Viewer": "judge.views.Viewer",
    "belief": "judge.demo_belief.belief",
    "heatmap": "judge.demo_belief.heatmap",
    "kind_of": "judge.faults.kind_of",
    "likeness": "judge.views.likeness",
    "make_perceptual_lm": "engine.make_perceptual_lm",
    "moved_text": "answer.planning.moved_text",
    "named_distortions": "answer.planning.named_distortions",
    "named_tools": "answer.planning.named_tools",
    "plan_assessment": "answer.planning.plan_assessment",
    "properties_of": "judge.demo_belief.traits_of",
    "region_pattern": "answer.planning.region_pattern",
    "sharpness_of": "judge.faults.sharpness_of",
    "telling": "judge.demo_belief.telling",
}


def __getattr__(name: str) -> Any:
    # Lazy, so that reading a question loads nothing that measures pixels.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module, _, own = _HOMES[name].rpartition(".")
    return getattr(importlib.import_module(f"{__name__}.{module}"), own)
