"""Cells of tables that no spreadsheet takes for a formula, without control marks; and back."""

import json
import re
from typing import Any

_GUARDED = re.compile(r"'*[\s=+\-@＝＋－＠]")
"""How a formula begins: spreadsheets skip spaces before it, and so do readers of CSV; after an
apostrophe it is text. A text that begins with apostrophes before such a mark would be read as
ours."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Marks that have no place in a table of text: all controls but tab and newline."""


def text_cell(value: Any) -> Any:
    r"""Return a text for people as a cell, on one line; other values as they are, None as "".

    >>> text_cell("=1+1"), text_cell("-x"), text_cell(-1.5), text_cell("a\nb\x1b"), text_cell(None)
    ("'=1+1", "'-x", -1.5, 'a b\\x1b', '')
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        return value
    line = " ".join(value.split()) if re.search(r"[\r\n\t]", value) else value
    shown = _CONTROL.sub(lambda mark: ascii(mark[0])[1:-1], line)
    if _GUARDED.match(shown):
        return f"'{shown}"
    return shown


def name_cell(value: str | None) -> str:
    r"""Return a name as a cell of which `plain_cell` makes the same name again.

    >>> name_cell("-a.png"), name_cell("'-a.png"), name_cell("a\x1b.png"), name_cell("'a'.png")
    ("'-a.png", "''-a.png", '"a\\u001b.png"', "'a'.png")
    """
    if value is None:
        return ""
    if _CONTROL.search(value):
        return json.dumps(value)
    if _GUARDED.match(value):
        return f"'{value}"
    if plain_cell(value) != value:
        return json.dumps(value)
    return value


def plain_cell(text: str) -> str:
    r"""Return what a cell stands for: without the apostrophe before a formula, or out of JSON.

    >>> plain_cell("'-a.png"), plain_cell("''-a.png"), plain_cell('"a\\u001b.png"'), plain_cell("'a'.png")
    ('-a.png', "'-a.png", 'a\x1b.png', "'a'.png")
    """
    if text.startswith("'") and _GUARDED.match(text[1:]):
        return text[1:]
    if text.startswith('"') and text.endswith('"'):
        try:
            name = json.loads(text)
        except ValueError:
            return text
        if isinstance(name, str) and name_cell(name) == text:
            return name
    return text


def json_line(row: Any) -> str:
    """Return a row as JSON on one line, every control mark in it by its code."""
    line = json.dumps(row, ensure_ascii=False)
    return re.sub(r"[\x7f-\x9f\u2028\u2029]", lambda mark: rf"\u{ord(mark[0]):04x}", line)
