"""A ridge correction of the embedded expert's reading, fitted on every label: what fine-tuning is to a network.

It is fitted on what labels differ from the reading by; how strongly is chosen on train, each group left out, down to
not at all. Whether it takes the place of demos or goes before them is decided on validation.
"""

from collections.abc import Callable

import dspy

from optimizers.recipes import Bound, Recipe
from optimizers.search import Candidate, Search
from program.agent.labels import Corrections
from program.expert import Belief, Labels, View, belief

_LEAST = 30
"""Labels of a kind below which no penalty can be chosen."""


def fitted_corrections(search: Search, reading: Callable[[dspy.Example, View], Belief]) -> Corrections | None:
    """Return what the labels of the training examples add to a reading of them; None where nothing carries over."""
    viewer, found = search.base.program.resources.viewer, {}
    for kind in ("nr", "fr"):
        scored = [example for example in search.train.examples if example.get("quality") is not None]
        examples = [example for example in scored if (example.get("reference") is None) == (kind == "nr")]
        if len(examples) < _LEAST:
            continue
        labels = Labels(len(examples))
        for example in examples:
            search.advance()
            view = viewer.view(example.image, example.get("reference"))
            label = min(5.0, max(1.0, float(example.quality)))
            labels.add(view, reading(example, view), label, example.group)
        if (correction := labels.correction(search.seed)) is not None:
            found[kind] = correction
    return Corrections(found) if found else None


def _moved(search: Search, corrections: Corrections, demo: dspy.Example) -> dspy.Example:
    """Return a demo with what its own score is moved by, without its label."""
    view = search.base.program.resources.viewer.view(demo["image"], demo.get("reference"))
    return dspy.Example({**demo, "similar_photographs": corrections.shift_told(view)})


def _run(search: Search) -> list[Candidate]:
    program, parameters = search.base.program, dict(search.student.named_parameters())
    taught = [name for name in ("summarizer.score", "summarizer.classify") if name in parameters]
    if not taught or not program.resources.known("summarizer").weighs_demos:
        search.note = "finetune: corrects the scores of the embedded expert alone"
        return []
    instructions, candidates = parameters[taught[0]].signature.instructions, []
    corrections = fitted_corrections(search, lambda _, view: belief(view, (), instructions))
    if corrections is None:
        search.note = "finetune: the labels say nothing that carries over to other photographs"
        return []
    keeps = (False, True) if any(parameters[name].demos for name in taught) else (False,)
    for keeps_demos in keeps:
        copy = program.deepcopy()
        copy.summarizer.corrections = corrections
        for name, predictor in copy.named_parameters():
            if name in taught:
                predictor.demos = [_moved(search, corrections, demo) for demo in predictor.demos if keeps_demos]
        candidates.append(Candidate(search.named("finetune") if keeps_demos else "finetune", copy))
    search.note = f"finetune: {told_of(corrections)}"
    return candidates


def told_of(corrections: Corrections) -> str:
    """Say what was fitted, and what it is worth."""
    return "; ".join(
        f"{each.labels} labels{' with references' * (kind == 'fr')}, penalty {each.penalty:g}, RMSE of the "
        f"reading {each.before:.3f}, corrected {each.after:.3f} (on train, each group left out)"
        for kind, each in corrections.by_kind.items()
    )


RECIPE = Recipe(
    name="finetune",
    run=_run,
    bound=lambda budget, sizes: Bound(sizes.train, candidates=2),
    teaches="evidence",
    fits_scores=True,
    takes_all=True,
    least=lambda budget: _LEAST,
)
