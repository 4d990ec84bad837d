"""Write the tables of fields in docs/reading-a-result.md from the fields: `python docs/make_fields.py`."""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

PAGE = Path(__file__).resolve().parent / "reading-a-result.md"
ROOT = PAGE.parent.parent
_WORDS = {
    "string": "text", "number": "number", "integer": "whole number", "boolean": "true or false", "array": "list",
    "object": "object",
}  # fmt: skip


def page(text: str) -> str:
    """Return the page with both tables made anew; each stands between a comment with its name and a blank line."""
    from program.agent.assessment import Assessment
    from program.running.row import Row

    further = [name for name in Assessment.model_fields if name not in Row.model_fields]
    for name, model, fields in (("columns", Row, list(Row.model_fields)), ("answer", Assessment, further)):
        mark = f"<!-- {name}: python docs/make_fields.py -->\n"
        start = text.index(mark) + len(mark)
        end = text.index("\n\n", start) + 1
        text = text[:start] + table(model, fields) + text[end:]
    return text


def table(model: type[BaseModel], fields: Sequence[str]) -> str:
    """Return these fields of a model as a table in Markdown. Raises KeyError for a field without a docstring."""
    from program.agent.assessment import Assessment

    meanings = {name: str(getattr(Assessment, name).__doc__) for name in ("score", "option", "advice", "subject_sharp")}
    for each in (Assessment, model):
        for base in reversed(each.__mro__):
            if issubclass(base, BaseModel) and base is not BaseModel:
                meanings.update(_docstrings(base))
    schema = model.model_json_schema(mode="serialization")
    lines = ["| name | type | what it holds |", "|---|---|---|"]
    for name in fields:
        part = schema["properties"][name]
        meaning = re.sub(r"\s+", " ", meanings[name]).rstrip(".").replace("|", r"\|")
        lines.append(f"| `{name}` | {_kind(part, schema.get('$defs', {}))} | {meaning} |")
    return "\n".join(lines) + "\n"


def _docstrings(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yield the fields that a class itself declares, each with the text below it."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(body, ast.ClassDef)  # noqa: S101 - what a class's source is
    for line, below in zip(body.body, body.body[1:], strict=False):
        is_field = isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        if is_field and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            yield line.target.id, str(below.value.value)


def _kind(part: Mapping[str, Any], named: Mapping[str, Any]) -> str:
    """Return the type that a part of a JSON schema has, in a reader's words; `named` are the schema's own types."""
    if "$ref" in part:
        return _kind(named[part["$ref"].rpartition("/")[2]], named)
    kinds = [_kind(each, named) for each in part.get("anyOf", ()) if each.get("type") != "null"]
    return " or ".join(kinds) or _WORDS[part["type"]]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
