"""What a compile changed, for people: instructions line by line, demos with their answers, the fusion."""

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from program.agent import AgenticIQA
from program.images import parse_url

__all__ = ("difference_markdown",)

_SHOWN_CHARS = 300


def difference_markdown(before: AgenticIQA, after: AgenticIQA) -> str:
    """Return the changes from one program to another as Markdown; one line where there are none."""
    old = dict(before.named_predictors())
    parts = []
    for name, predictor in after.named_predictors():
        changed = _instructions(old[name].signature.instructions, predictor.signature.instructions)
        demos = [_demo(number, demo) for number, demo in enumerate(predictor.demos, 1)]
        if changed or demos:
            parts.append("\n".join([f"## {name}", "", *changed, *_counted(demos)]))
    fitted = after.summarizer.fitted
    if fitted is not None and before.summarizer.fitted is None:
        knots = ", ".join(f"{x:g} -> {y:.2f}" for x, y in fitted.curve[:: max(1, len(fitted.curve) // 4)])
        parts.append(
            f"## fusion\n\n- eta: {before.resources.fusion.eta:g} -> {fitted.eta:g}\n"
            f"- model weight: 1 -> {fitted.model_weight:g}\n- map: {knots or 'none'}"
        )
    body = "\n\n".join(parts) if parts else "Nothing changed: the compiled program is the uncompiled one."
    return f"# Compiled against uncompiled\n\n{body}\n"


def _instructions(before: str, after: str) -> list[str]:
    if before == after:
        return []
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), "uncompiled", "compiled", lineterm=""))
    return ["```diff", *lines, "```", ""]


def _counted(demos: list[str]) -> list[str]:
    return [f"{len(demos)} demo(s):", "", *demos, ""] if demos else []


def _demo(number: int, demo: Mapping[str, Any]) -> str:
    shown = []
    for name, value in dict(demo).items():
        if name in {"augmented", "tools", "tool_names"}:
            continue
        url = getattr(value, "url", None)
        text = parse_url(url)[0][:12] if isinstance(url, str) else _text(value)
        shown.append(f"{name}: {text[:_SHOWN_CHARS]}")
    return f"{number}. " + "; ".join(shown)


def _text(value: Any) -> str:
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_defaults=True)
    if isinstance(value, list):
        value = [v.model_dump(mode="json", exclude_defaults=True) if isinstance(v, BaseModel) else v for v in value]
    return " ".join(str(value).split())
