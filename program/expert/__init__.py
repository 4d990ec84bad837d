"""The embedded expert: it measures pixels and answers the program's own signatures.

This is the room's one door: nothing outside imports what lies inside.
"""

from typing import TYPE_CHECKING

from program.common import lazy

if TYPE_CHECKING:
    from program.expert.answer.findings import advice_on
    from program.expert.answer.planning import named_distortions, named_tools, plan_assessment, region_pattern
    from program.expert.engine import belief, make_perceptual_lm, properties_of
    from program.expert.judge.faults import (
        KINDS,
        STRENGTHS,
        TOO_SMALL,
        fault_map,
        frame_of,
        kind_of,
        not_judged,
        sharpness_of,
    )
    from program.expert.judge.learning import TILE, Correction, Labels, Lesson, heatmap, inputs_of
    from program.expert.judge.quality import SEVERITIES, QualityBelief
    from program.expert.judge.views import WIDTH, View, Viewer, appearance, damage, likeness
    from program.expert.store import MODEL, NAME

__all__ = (
    "KINDS", "MODEL", "NAME", "SEVERITIES", "STRENGTHS", "TILE", "TOO_SMALL", "WIDTH", "Correction", "Labels",
    "Lesson", "QualityBelief", "View", "Viewer", "advice_on", "appearance", "belief", "damage", "fault_map",
    "frame_of", "heatmap", "inputs_of", "kind_of", "likeness", "make_perceptual_lm", "named_distortions",
    "named_tools", "not_judged", "plan_assessment", "properties_of", "region_pattern", "sharpness_of",
)  # fmt: skip

# So that reading a question loads nothing that measures pixels.
__getattr__ = lazy(__name__, {
    "answer.findings": ("advice_on",),
    "answer.planning": ("named_distortions", "named_tools", "plan_assessment", "region_pattern"),
    "engine": ("belief", "make_perceptual_lm", "properties_of"),
    "judge.faults": (
        "KINDS", "STRENGTHS", "TOO_SMALL", "fault_map", "frame_of", "kind_of", "not_judged", "sharpness_of",
    ),
    "judge.learning": ("TILE", "Correction", "Labels", "Lesson", "heatmap", "inputs_of"),
    "judge.quality": ("SEVERITIES", "QualityBelief"),
    "judge.views": ("WIDTH", "View", "Viewer", "appearance", "damage", "likeness"),
    "store": ("MODEL", "NAME"),
})  # fmt: skip
