"""Files of fitted figures: their base, what they say of their data, and how they are read."""

from importlib.resources import files
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from program.common.errors import SettingsError

__all__ = ("Provenance", "Stored", "read_stored")

_Content = TypeVar("_Content", bound="Stored")


class Stored(BaseModel):
    """Part of a file of figures: frozen, with no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Provenance(Stored):
    """What maps were fitted on."""

    dataset: str
    manifest_sha256: str
    split: str
    samples: int = Field(ge=1)
    groups: tuple[str, ...] = ()
    """The photographs (content groups)."""
    date: str
    """Day of the fit, ISO 8601."""


def read_stored(
    model: type[_Content], what: Literal["calibration", "strengths"], path: Path | None
) -> tuple[_Content, str]:
    """Return the content of a file (None: the shipped one) and its name. Raises SettingsError naming file and key."""
    origin = str(path) if path else f"configs/{what}.json"
    mend = f"make it anew with `python -m program.calibrate{' DATA --strengths' if what == 'strengths' else ''}`"
    try:
        text = (path or files("configs").joinpath(f"{what}.json")).read_text("utf-8")
        return model.model_validate_json(text), origin
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{what} file {origin!r}: cannot be read ({error}); {mend}") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        fault = f"{key}: {' '.join(first['msg'].split()).lower()}"
        raise SettingsError(f"{what} file {origin!r}: {fault}; {mend}") from error
