"""One question about one image, as commands, services and optimizers put it."""

import json
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, field_validator

from program.common.files import place_of

DEFAULT_QUERY = "Rate the perceptual quality of this image."
"""What is asked of an image that comes without a question."""
ARGUMENTS = ("image", "query", "reference", "options", "regions", "intended", "kind")
"""Names of a program's arguments."""


class Request(BaseModel):
    """One image and what is asked of it; or `error`, why there is nothing to ask."""

    model_config = ConfigDict(frozen=True)

    id: str = ""
    image: Any = None
    """Path or URI; in a process also whatever else the program takes. Likewise the reference."""
    reference: Any = None
    query: str | None = None
    """None asks for a quality score."""
    options: dict[str, str] | list[str] | None = None
    regions: dict[str, tuple[float, float, float, float]] | None = None
    """Boxes of named regions, in pixels: left, top, right, bottom."""
    intended: list[str] | None = None
    """Effects that are meant, and what kind of picture it is; None: as the settings say."""
    kind: str | None = None
    group: str | None = None
    split: str | None = None
    """Content and split, as a manifest says."""
    error: str | None = None

    def arguments(self) -> dict[str, Any]:
        """Return what a program is called with."""
        asked = {name: getattr(self, name) for name in ARGUMENTS}
        return {**asked, "query": self.query or DEFAULT_QUERY}

    def to_json(self) -> str:
        """Return the request as ASCII text for another process; its images are paths or URIs."""
        # Only ASCII: names may hold bytes that are no UTF-8.
        return json.dumps(self.model_dump(), default=str)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the request of such a text."""
        return cls.model_validate(json.loads(text))

    def stamp(self) -> list[Any]:
        """Return JSON that changes when its images do: sizes and times in ns; zeros for no file."""
        stamp: list[Any] = []
        for place in (self.image, self.reference):
            try:
                facts = place.stat() if isinstance(place, Path) else None
            except (OSError, ValueError):  # ValueError: a name that no file can have
                facts = None
            stamp += [facts.st_size, facts.st_mtime_ns] if facts else [0, 0]
        return stamp

    @field_validator("image", "reference", mode="before")
    @classmethod
    def _place(cls, value: Any) -> Any:
        if isinstance(value, str):
            return place_of(value)
        return value
