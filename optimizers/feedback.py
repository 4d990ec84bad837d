"""What an optimizer that reads is told: where an answer was wrong, and what the evidence had shown."""

from collections.abc import Mapping, Sequence
from typing import Any

import dspy

from program.evidence import tool_scores
from program.state import Assessment, ExecutorOutput
from signatures.schemas import SEVERITIES

__all__ = ("answer_words", "distortion_words", "plan_words")


def answer_words(example: dspy.Example, assessment: Assessment | None) -> str:
    """Compare an answer with the human one: how far, in which direction, and which evidence led there or warned."""
    if assessment is None:
        return "The program failed on this image; answer in the asked form."
    if assessment.status == "failed":
        return f"No usable answer came ({assessment.error or 'unreadable'}); answer in the asked form."
    evidence = evidence_words(assessment.state.executor_evidence)
    if example.get("answer") is not None:
        if assessment.final_answer == example.answer:
            return f"{example.answer} is right. {evidence}"
        return f"{assessment.final_answer} is wrong: people chose {example.answer}. {evidence}"
    if not isinstance(assessment.final_answer, float):
        return f"A score was asked; the answer was {str(assessment.final_answer)[:60]!r}."
    return (
        f"{_distance_words(assessment.final_answer, example)} {_sources(assessment, float(example.quality))} {evidence}"
    )


def plan_words(changes: Sequence[str], wrong: Sequence[str], truth: Mapping[str, Any]) -> str:
    """Say which fields of a plan broke the rules and what they should have been."""
    if not changes and not wrong:
        return "The plan follows the rules."
    told = [f"{name} should be {truth[name]!r}" for name in wrong]
    told += [f"the rules had to correct {change}" for change in changes]
    return f"The plan is wrong: {'; '.join(told)}."


def distortion_words(found: Mapping[str, str], truth: Mapping[str, str]) -> str:
    """Say which distortions were missed, invented, or judged too strong or too weak, and by how many steps."""
    told = []
    for category, severity in truth.items():
        if severity == "none":
            continue
        judged = found.get(category, "none")
        steps = SEVERITIES.index(judged) - SEVERITIES.index(severity)
        if judged == "none":
            told.append(f"missed {severity} {category}")
        elif steps:
            side = "too strong" if steps > 0 else "too weak"
            told.append(f"judged {category} {judged}, {abs(steps)} step(s) {side}: it is {severity}")
    told += [f"reported {severity} {category}, which is not there" for category, severity in found.items()
             if severity != "none" and truth.get(category, "none") == "none"]  # fmt: skip
    return f"Distortions: {'; '.join(told)}." if told else "The distortions found are right."


def evidence_words(output: ExecutorOutput | None) -> str:
    """List the findings and tool scores an answer could rest on."""
    if output is None or output.is_empty:
        return "There was no evidence but the image."
    found = [f"{f.severity} {f.type}" for fs in (output.distortion_analysis or {}).values() for f in fs]
    read = {f"{tool} {score:.2f}" for by in (output.quality_scores or {}).values() for tool, score in by.values()}
    parts = [f"found {', '.join(found)}" if found else "no distortion found"]
    parts.append(f"tools said {', '.join(sorted(read))} of 5" if read else "no tool score")
    return f"Evidence: {'; '.join(parts)}."


def _distance_words(score: float, example: dspy.Example) -> str:
    human, std = float(example.quality), example.get("quality_std")
    gap = score - human
    spread = f" (opinions spread by {std:.2f})" if std else ""
    if abs(gap) < 0.25:
        return f"The score {score:.2f} agrees with people's {human:.2f}{spread}."
    side = "too high" if gap > 0 else "too low"
    return f"The score {score:.2f} is {abs(gap):.2f} {side}: people gave {human:.2f} of 5{spread}."


def _sources(assessment: Assessment, human: float) -> str:
    """Say which of the two beliefs behind a fused score was nearer to people."""
    evidence = assessment.state.executor_evidence
    scores = tool_scores(evidence.quality_scores) if evidence else []
    belief = assessment.level_probabilities
    if not scores or not belief:
        return ""
    tools, model = sum(scores) / len(scores), sum(level * p for level, p in belief.items())
    nearer = "the tools were" if abs(tools - human) < abs(model - human) else "your own level probabilities were"
    return f"Your probabilities say {model:.2f}, the tools' mean {tools:.2f}; {nearer} nearer."
