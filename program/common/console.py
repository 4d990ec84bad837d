"""Rich's console for tables, colours and progress."""

from collections.abc import Iterable

from rich import console
from rich.segment import Segment

from program.common.errors import showable


class Console(console.Console):
    """A console that shows what steers a terminal in a text by its code."""

    def render(
        self, renderable: console.RenderableType, options: console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the pieces of what is shown."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else showable(text), style, control)
