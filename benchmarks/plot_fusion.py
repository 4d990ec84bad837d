"""Draw docs/fusion.png: where the fusion formula, as it is printed, leaves the scale, and what is used instead.

Run `python -m benchmarks.plot_fusion [FILE]`; no data, no randomness.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from program.fusion import ScoreFusion

TOOL_MEANS = np.linspace(1, 5, 201)
EXAMPLE_MEAN, EXAMPLE = 2.6, {1: -3.2, 2: -0.5, 3: -0.1, 4: -2.1, 5: -4.5}
"""A tool mean and a model's log-probabilities by level."""
UNIFORM = dict.fromkeys(range(1, 6), 0.2)
INK, MUTED, SHADE = "#222222", "#777777", "#f6dede"


def agreeing(mean: float) -> dict[int, float]:
    """Return a belief as sharp as the tools' own, about the same place: model and tools agree."""
    return ScoreFusion().compute_perceptual_weights([mean])


def certain(mean: float) -> dict[int, float]:
    """Return all mass on the level nearest to the tools' mean: the best case for the printed formula."""
    nearest = min(5, max(1, int(np.floor(mean + 0.5))))
    return {c: float(c == nearest) for c in range(1, 6)}


BELIEFS = (
    ("the model is undecided", UNIFORM.copy, "#4477aa"),
    ("the model agrees with the tools", agreeing, "#228833"),
    ("the model is certain of the nearest level", certain, "#aa3377"),
)


def curve(belief: Any, *, printed: bool) -> list[float]:
    """Return the score before clipping for each tool mean (1..5)."""
    fusion = ScoreFusion()
    scores = []
    for mean in TOOL_MEANS:
        p = belief(mean) if belief in {agreeing, certain} else belief()
        if printed:
            scores.append(sum(a * p[c] * c for c, a in fusion.compute_perceptual_weights([mean]).items()))
        else:
            scores.append(fusion.fuse_scores([mean], p))
    return scores


def draw(path: Path) -> None:
    """Write the figure."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    example = ScoreFusion().extract_vlm_probabilities(EXAMPLE)
    with plt.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "text.color": INK}):
        figure, axes = plt.subplots(1, 2, figsize=(10, 5), sharey=True, layout="constrained")
        titles = (
            r"as printed: $q = \sum_c \alpha_c\, p_c\, c$",
            r"as used: $q = \sum_c \alpha_c\, p_c\, c \;/\; \sum_c \alpha_c\, p_c$",
        )
        for axis, title, printed in zip(axes, titles, (True, False), strict=True):
            axis.axhspan(0, 1, color=SHADE, linewidth=0)
            axis.plot(
                TOOL_MEANS,
                TOOL_MEANS,
                color=MUTED,
                linewidth=1,
                linestyle=(0, (2, 3)),
                label="score = mean of the tools",
            )
            for label, belief, colour in BELIEFS:
                axis.plot(TOOL_MEANS, curve(belief, printed=printed), color=colour, linewidth=2, label=label)
            axis.set(
                title=title,
                xlim=(1, 5),
                ylim=(0, 5.1),
                xticks=range(1, 6),
                yticks=range(6),
                xlabel="mean of the tool scores",
            )
            score = ScoreFusion(normalize=not printed).fuse_scores([EXAMPLE_MEAN], example)
            axis.plot(
                EXAMPLE_MEAN,
                score,
                "o",
                color=INK,
                markersize=6,
                label="an example: tools 2.6, model between 2 and 3",
                linestyle="",
            )
            axis.annotate(f"{score:.2f}", (EXAMPLE_MEAN, score), (7, -13), textcoords="offset points", fontsize=9)
        axes[0].set_ylabel("score")
        axes[0].text(4.95, 0.06, "off the scale: below 1", ha="right", va="bottom", fontsize=9, color="#aa3333")
        figure.legend(
            *axes[0].get_legend_handles_labels(), frameon=False, fontsize=9, loc="outside lower center", ncols=3
        )
        figure.savefig(path, dpi=110, metadata={"Software": None})
        plt.close(figure)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1] / "docs" / "fusion.png")
