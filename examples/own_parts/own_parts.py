"""Parts for AgenticIQA from another package: once it is installed, every command knows them by their names."""

import torch

from optimizers.recipes import Recipe
from optimizers.search import Candidate, Search

__all__ = ("COLOURFULNESS", "FIRST_DEMO", "MY_LAB", "colourfulness")


def colourfulness(image: torch.Tensor) -> torch.Tensor:
    """Return Hasler and Suesstrunk's colourfulness (2003, equation 7) of 1 x 3 x H x W in 0..1, as a tensor of one."""
    red, green, blue = image[0] * 255
    red_green, yellow_blue = red - green, (red + green) / 2 - blue
    spread = (red_green.var(correction=0) + yellow_blue.var(correction=0)).sqrt()
    return spread + 0.3 * (red_green.mean() ** 2 + yellow_blue.mean() ** 2).sqrt()


COLOURFULNESS = {
    "python": "own_parts:colourfulness",
    "package": "own-parts",
    "mode": "NR",
    "higher_is_better": True,
    "description": "How colourful the image is; says nothing of blur or noise.",
    "needs": "none",
    "licence": "MIT",
    "cost": "cheap",
    "minimum_size_px": 8,
}
"""The same keys as an entry of configs/tools.yaml."""


def _first_demo(search: Search) -> list[Candidate]:
    student = search.student.deepcopy()
    for name, predictor in student.named_parameters():
        predictor.demos = [each.demo for each in search.train.demos.get(name, [])[:1]]
    return [Candidate("first-demo", student.program)]


FIRST_DEMO = Recipe(name="first-demo", run=_first_demo)


MY_LAB = {
    "title": "My lab's photographs",
    "task": "scoring",
    "source": "my lab",
    "licence": "mine",
    "citation": "none",
    "score": {"range": [1, 5], "higher_is_better": True},
    "count": None,
    "groups": None,
    "split": "none",
    "layout": "scores.csv (image, mos) and the images beside it",
    "documented": [],
    "read": {
        "tables": [{"file": ["scores.csv"]}],
        "fields": {"id": "{image.stem}", "image": "{image}", "mos": "{mos}"},
    },
}
"""The same keys as an entry of configs/datasets.yaml."""
