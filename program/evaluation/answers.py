"""What a row keeps of an assessment."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter

from program.agent.evidence import tool_precisions, tool_scores, used_evidence
from program.common.redaction import redact
from program.fusion import ScoreFusion

__all__ = ("answer_fields", "expected_level", "one_line")

_BELIEF: TypeAdapter[dict[int, float] | None] = TypeAdapter(dict[int, float] | None)

_MAX_TEXT = 300
_MAX_REASONING = 1200


def answer_fields(program: Callable[..., Any], task: str, assessment: Any) -> dict[str, Any]:
    """Return the fields of a row that come from the assessment; raises for one that is no assessment."""
    usage = _usage(getattr(assessment, "usage", None))
    notes: dict[str, Any] = {"reasoning": str(getattr(assessment, "quality_reasoning", "") or "")[:_MAX_REASONING]}
    evidence = getattr(getattr(assessment, "state", None), "executor_evidence", None)
    if evidence is not None:
        notes["evidence"] = getattr(assessment, "used_evidence", None) or used_evidence(evidence)
    status, error = assessment.status, getattr(assessment, "error", None)
    if status == "failed":
        return {"status": status, "error": one_line(error or "the program gave no reason"), **usage}
    answer: Any = assessment.final_answer
    if task == "scoring":
        score = assessment.quality_score if assessment.quality_score is not None else answer
        if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
            return {"status": "failed", "error": one_line(f"answered {score!r} where a score was asked"), **usage}
        answer = float(score)
    else:
        answer = str(answer).strip()[:_MAX_TEXT]
    probabilities = _BELIEF.validate_python(getattr(assessment, "level_probabilities", None))
    return {
        "predicted": answer.upper() if task == "mcq" else answer,
        "level": getattr(assessment, "level", None),
        "level_probabilities": {c: _rounded(p) for c, p in probabilities.items()} if probabilities else None,
        **_beliefs(program, evidence, probabilities),
        "status": status,
        "rung": getattr(assessment, "rung", None),
        "error": one_line(error) if error else None,
        "notes": notes,
        **usage,
    }


def expected_level(probabilities: Mapping[int, float] | None) -> float | None:
    """Return the mean of a belief over the levels, or None without one.

    >>> expected_level({3: 0.5, 4: 0.5})
    3.5
    """
    return math.fsum(c * p for c, p in probabilities.items()) if probabilities else None


def one_line(text: str) -> str:
    """Return a message on one line, short, without base64 and keys."""
    shortened = re.sub(r"[A-Za-z0-9+/=_-]{120,}", "...", " ".join(redact(str(text)).split()))
    return shortened if len(shortened) <= _MAX_TEXT else shortened[: _MAX_TEXT - 3] + "..."


def _beliefs(program: Any, evidence: Any, probabilities: Mapping[int, float] | None) -> dict[str, float | None]:
    """Return the two beliefs a score is fused from, and what each formula makes of them with the settings' eta.

    Plain mean of the tools: the printed and the normalised formula. Tools by reliability: the normalised one. A fitted
    fusion plays no part: the formulas are compared alike whatever was compiled.
    """
    scores = tool_scores(evidence.quality_scores) if evidence is not None else []
    if not scores and not probabilities:
        return {}
    mean = math.fsum(scores) / len(scores) if scores else None
    eta = float(getattr(getattr(getattr(program, "resources", None), "fusion", None), "eta", 1.0))
    beliefs = {"tool_mean": _rounded(mean), "expected_level": _rounded(expected_level(probabilities))}
    if mean is not None and probabilities:
        fusion = ScoreFusion(eta)
        beliefs["fusion_normalised"] = _rounded(fusion.fuse_scores([mean], probabilities))
        # Written out: ScoreFusion would warn of nearly every sample that the printed formula leaves the scale.
        weights = fusion.compute_perceptual_weights([mean])
        printed = math.fsum(weights[c] * probabilities.get(c, 0.0) * c for c in weights)
        beliefs["fusion_printed"] = _rounded(min(5.0, max(1.0, printed)))
    precisions = tool_precisions(evidence)
    if scores and precisions is not None:
        reliable = ScoreFusion(eta, tool_weights="reliability")
        beliefs["tool_mean_reliable"] = _rounded(reliable.tool_mean(scores, precisions))
        if probabilities:
            beliefs["fusion_reliable"] = _rounded(reliable.fuse_scores(scores, probabilities, precisions))
    return beliefs


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


_SPENT = (
    "lm_calls", "lm_cache_hits", "input_tokens", "output_tokens", "tool_readings", "tool_cache_hits", "tool_failures",
    "replans",
)  # fmt: skip


def _usage(usage: Any) -> dict[str, Any]:
    if usage is None:
        return {}
    counts = usage if isinstance(usage, Mapping) else usage.model_dump()
    tokens = [counts[key] for key in ("input_tokens", "output_tokens") if counts.get(key) is not None]
    total = sum(tokens) if tokens else counts.get("tokens")
    spent = {name: float(counts[name]) for name in _SPENT if counts.get(name) is not None}
    spent |= {f"seconds_{name}": round(float(s), 6) for name, s in (counts.get("seconds") or {}).items()}
    for name, costs in (counts.get("stages") or {}).items():
        sums = {"lm_calls": costs.get("lm_calls"), "cost_usd": costs.get("cost_usd")}
        sums["tokens"] = costs.get("input_tokens", 0) + costs.get("output_tokens", 0)
        spent |= {f"{key}_{name}": float(amount) for key, amount in sums.items() if amount is not None}
    return {
        "lm_calls": counts.get("lm_calls"),
        "tokens": total,
        "cost_usd": counts.get("cost_usd"),
        "spent": spent or None,
    }
