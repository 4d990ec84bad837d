"""Objectives: how well one answer agrees with people, as numbers, as a verdict and in words.

| part | of what | agreement 0..1 | passes |
|---|---|---|---|
| answer | a score against the human one | 1 - |score - human score| / 4 | within half a level |
| answer | a letter against the right one | 1 or 0 | exact |
| plan | the plan against the rules | share of its fields that the rules left alone | all of them |
| distortion | findings against known ones | F1 of the categories, less the distance in severity | at least 0.5 |

The parts are averaged with the weights of configs/optimizers.yaml over those the example has a truth for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import dspy

from program.agent.assessment import Assessment
from program.agent.state import ExecutorOutput
from program.fusion.levels import expected_level
from signatures.schemas import SEVERITIES

GATE = 0.5
"""An answer is worth showing when it lies within half a level of the human score."""
_RULED_FIELDS = 9
"""Fields of a plan that the rules may change."""
_PARTS_OF_ROLE = {"planner": ("plan", "answer"), "executor": ("distortion", "answer"), "summarizer": ("answer",)}


@dataclass(frozen=True)
class Part:
    """The agreement of one part of an assessment (0..1), whether it is worth showing, and why, in words."""

    agreement: float
    passes: bool
    words: str


@dataclass(frozen=True)
class Objective:
    """The weighted agreement of an assessment with what people said of the sample."""

    weights: Mapping[Any, float] = field(default_factory=lambda: {"answer": 1.0})

    def parts(self, example: dspy.Example, assessment: Assessment | None) -> dict[str, Part]:
        """Return the parts that the example has a truth for, by name ("answer", "plan", "distortion")."""
        parts = {"answer": _answer(example, assessment)}
        if assessment is None:
            return parts
        if example.get("plan_by_rule") is not None and assessment.state.plan is not None:
            parts["plan"] = _plan(example, assessment)
        if example.get("distortion_truth") is not None and assessment.state.executor_evidence is not None:
            parts["distortion"] = _distortion(example, assessment)
        return {name: part for name, part in parts.items() if self.weights.get(name, 0.0) > 0}

    def score(self, example: dspy.Example, assessment: Assessment | None) -> float:
        """Return the weighted mean agreement, 0..1; a failed assessment agrees with nobody."""
        parts = self.parts(example, assessment)
        total = sum(self.weights[name] for name in parts)
        return sum(self.weights[name] * part.agreement for name, part in parts.items()) / total if total else 0.0

    def passes(self, example: dspy.Example, assessment: Assessment | None) -> bool:
        """Return whether every part is worth showing as a demo: a verdict, never the truth of a small number."""
        parts = self.parts(example, assessment)
        return bool(parts) and all(part.passes for part in parts.values())

    def feedback(self, example: dspy.Example, assessment: Assessment | None, role: str | None = None) -> str:
        """Say what was wrong and what the evidence showed; of one role only, or of all."""
        parts = self.parts(example, assessment)
        wanted = _PARTS_OF_ROLE.get(role or "", tuple(parts))
        return " ".join(part.words for name, part in parts.items() if name in wanted) or "Nothing is known of this one."


def distortion_agreement(findings: Mapping[str, str], truth: Mapping[str, str]) -> float:
    """Return the agreement of two findings (category -> severity word), 0..1.

    F1 of the visible categories, times 1 - mean distance in severity (0 none .. 4 extreme, over 4) of those in both.
    Nothing found where there is nothing agrees fully.

    >>> distortion_agreement({"Blurs": "severe"}, {"Blurs": "moderate"})
    0.75
    """
    visible = {c for c, s in findings.items() if s != "none"}
    real = {c for c, s in truth.items() if s != "none"}
    both = visible & real
    if not both:
        return float(not visible and not real)
    f1 = 2 * len(both) / (len(visible) + len(real))
    apart = sum(abs(SEVERITIES.index(findings[c]) - SEVERITIES.index(truth[c])) for c in both) / len(both)
    return f1 * (1 - apart / 4)


def _answer(example: dspy.Example, assessment: Assessment | None) -> Part:
    """Compare an answer with the human one: how far, in which direction, and which evidence led there or warned."""
    fault = "the program failed on this image" if assessment is None else assessment.error or "it was unreadable"
    if assessment is None or assessment.status == "failed":
        return Part(0.0, False, f"No usable answer came ({fault}); answer in the asked form.")
    answer, judge = assessment.final_answer, str(example.get("judge", "people"))
    evidence = _evidence_words(assessment.state.evidence)
    if example.get("answer") is not None:
        right = bool(answer == example.answer)
        words = f"{answer} is right." if right else f"{answer} is wrong: {judge} chose {example.answer}."
        return Part(float(right), right, f"{words} {evidence}")
    if not isinstance(answer, float):
        return Part(0.0, False, f"A score was asked; the answer was {str(answer)[:60]!r}.")
    gap = answer - float(example.quality)
    words = f"The score {answer:.2f} agrees with {judge}'s {example.quality:.2f}."
    if abs(gap) >= 0.25:
        side = "too high" if gap > 0 else "too low"
        words = f"The score {answer:.2f} is {abs(gap):.2f} {side}: {judge} gave {example.quality:.2f} of 5."
    words = f"{words} {_sources(assessment, float(example.quality))} {evidence}"
    return Part(max(0.0, 1 - abs(gap) / 4), abs(gap) <= GATE, words)


def _plan(example: dspy.Example, assessment: Assessment) -> Part:
    truth, plan, unusable = example.plan_by_rule, assessment.state.plan, assessment.state.unusable_tools
    wrong = [name for name in ("query_type", "query_scope", "distortion_source") if getattr(plan, name) != truth[name]]
    faults = [f"{name} should be {truth[name]!r}" for name in wrong]
    faults += [f"the rules had to correct {each}" for each in assessment.state.plan_repairs if each not in unusable]
    words = f"The plan is wrong: {'; '.join(faults)}." if faults else "The plan follows the rules."
    return Part(max(0.0, 1.0 - len(faults) / _RULED_FIELDS), not faults, words)


def _distortion(example: dspy.Example, assessment: Assessment) -> Part:
    """Compare findings with known ones: which are missed, invented, or judged too strong or too weak."""
    truth, strongest, faults = example.distortion_truth, dict[str, str](), []
    for _, finding in assessment.state.evidence.findings():
        severities = finding.severity, strongest.get(finding.type, "none")
        strongest[finding.type] = max(severities, key=SEVERITIES.index)
    for category in dict.fromkeys((*truth, *strongest)):
        real, judged = truth.get(category, "none"), strongest.get(category, "none")
        if real == judged:
            continue
        if judged == "none":
            faults.append(f"missed {real} {category}")
        elif real == "none":
            faults.append(f"reported {judged} {category}, which is not there")
        else:
            faults.append(f"judged {category} {judged}: it is {real}")
    words = f"Distortions: {'; '.join(faults)}." if faults else "The distortions found are right."
    agreement = distortion_agreement(strongest, truth)
    return Part(agreement, agreement >= 0.5, words)


def _evidence_words(output: ExecutorOutput) -> str:
    """List the findings and tool scores an answer could rest on."""
    if output.is_empty:
        return "There was no evidence but the image."
    findings = [f"{f.severity} {f.type}" for _, f in output.findings()]
    read = {f"{tool} {score:.2f}" for by in (output.quality_scores or {}).values() for tool, score in by.values()}
    said = f"tools said {', '.join(sorted(read))} of 5" if read else "no tool score"
    return f"Evidence: found {', '.join(findings) or 'no distortion'}; {said}."


def _sources(assessment: Assessment, human: float) -> str:
    """Say which of the two beliefs behind a fused score was nearer to the label."""
    scores, belief = assessment.state.evidence.readings.scores, assessment.level_probabilities
    if not scores or not belief:
        return ""
    tools, model = sum(scores) / len(scores), expected_level(belief)
    nearer = "the tools were" if abs(tools - human) < abs(model - human) else "your own level probabilities were"
    return f"Your probabilities say {model:.2f}, the tools' mean {tools:.2f}; {nearer} nearer."
