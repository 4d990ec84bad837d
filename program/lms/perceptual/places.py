"""Places in a picture that words name, as cells of the 3 x 3 maps. Objects cannot be found; places can. Pure text."""

import re
from collections.abc import Sequence

__all__ = ("Cells", "cells_in", "local", "place_name")

Cells = tuple[tuple[int, int], ...]
"""(row, column) pairs of the 3 x 3 maps, rows from the top."""

_ALL: Cells = tuple((row, column) for row in range(3) for column in range(3))
_CENTRE: Cells = ((1, 1),)
_BORDER: Cells = tuple(cell for cell in _ALL if cell != (1, 1))


def _rows(*rows: int) -> Cells:
    return tuple(cell for cell in _ALL if cell[0] in rows)


def _columns(*columns: int) -> Cells:
    return tuple(cell for cell in _ALL if cell[1] in columns)


_PLACES: tuple[tuple[re.Pattern[str], Cells], ...] = tuple(
    (re.compile(rf"\b(?:{english})\b|{chinese}"), cells)
    for english, chinese, cells in (
        (r"(?:upper|top)[- ]left(?: corner)?", "左上角?", ((0, 0),)),
        (r"(?:upper|top)[- ]right(?: corner)?", "右上角?", ((0, 2),)),
        (r"(?:lower|bottom)[- ]left(?: corner)?", "左下角?", ((2, 0),)),
        (r"(?:lower|bottom)[- ]right(?: corner)?", "右下角?", ((2, 2),)),
        (r"corners?|(?:image |picture )?(?:borders|periphery|surroundings)|four sides", "四角|边缘区|四周|周围",
         _BORDER),
        (r"backgrounds?|backdrop", "背景", ((0, 0), (0, 1), (0, 2), (1, 0), (1, 2))),
        (r"foregrounds?", "前景", ((1, 1), (2, 0), (2, 1), (2, 2))),
        (r"main (?:subjects?|objects?|body|part|characters?|content)|subjects?|cent(?:er|re)|middle|central(?:ly)?",
         "主体|主要物体|中心|中央|中间", _CENTRE),
        (r"top|upper|above|sky|ceiling|clouds?", "上方|上部|顶部|天空|上半|云", _rows(0)),
        (r"bottom|lower|below|ground|floor|grass|lawn|road|street", "下方|下部|底部|地面|下半|草地|道路", _rows(2)),
        (r"left(?:[- ]hand)?(?: side| part)?", "左侧|左边|左半|左方|左部", _columns(0)),
        (r"right(?:[- ]hand)? (?:side|part|half|area|region|edge|corner)|(?:on|to|in) the right|^(?:the )?right\W*$",
         "右侧|右边|右半|右方|右部", _columns(2)),
    )
)  # fmt: skip


def cells_in(text: str) -> Cells | None:
    """Return the cells that a text's place words name, or None for none or the whole picture.

    >>> cells_in("Is the upper left corner dark?"), cells_in("Is this image dark?")
    (((0, 0),), None)
    """
    folded = text.casefold().strip()
    return next((cells for pattern, cells in _PLACES if pattern.search(folded)), None)


def place_name(text: str) -> str:
    """Return the words by which a text names a place, or ""."""
    folded = text.casefold().strip()
    return next((match[0] for pattern, _ in _PLACES if (match := pattern.search(folded))), "")


def local(grid: Sequence[Sequence[float]], cells: Cells) -> tuple[float, float]:
    """Return the mean over some cells and over all of them.

    >>> local([[1, 1, 1], [1, 10, 1], [1, 1, 1]], ((1, 1),))
    (10.0, 2.0)
    """
    here = [grid[row][column] for row, column in cells]
    every = [value for row in grid for value in row]
    return float(sum(here) / len(here)), float(sum(every) / len(every))
