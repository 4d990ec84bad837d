"""The project's own errors: each message is one line that names the input, the fault and the mend."""

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

__all__ = (
    "DataError", "EndpointError", "ImageError", "ImagesRefused", "InputError", "ModelError", "SettingsError",
    "ToolError", "did_you_mean", "first_fault", "one_line",
)  # fmt: skip


class InputError(ValueError):
    """Something a caller gave cannot be used; commands end with exit code 2."""


class DataError(InputError):
    """A manifest, photograph, distortion or dataset name cannot be used as given."""


class ImageError(InputError):
    """An image is missing, empty, truncated, altered or not an image."""


class SettingsError(InputError):
    """A settings file, environment variable or flag holds something unusable."""


class ToolError(InputError):
    """A tool is unknown, not ready on this machine, or wants a reference that is not there."""


class ModelError(InputError):
    """A language model is unknown, unreachable or cannot do what was asked of it."""


class EndpointError(ModelError):
    """A model's service cannot be used as it is addressed: address, key, model or context. The next question fails."""

    is_repeated = False
    """Whether the service failed like this before, with no answer since: a run over many images ends here."""


class ImagesRefused(ModelError):  # noqa: N818 (it says what happened)
    """A model turned out to read no images; the same question can be asked without."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `" (did you mean 'X'?)"` for the closest known name, else the list of known names.

    >>> did_you_mean("visf", ["vif", "ssim"])
    " (did you mean 'vif'?)"
    >>> did_you_mean("zzz", ["vif", "ssim"])
    ' (known: ssim, vif)'
    """
    names = sorted(known)
    by_folded = {n.casefold(): n for n in names}
    close = difflib.get_close_matches(name.casefold(), list(by_folded), n=1, cutoff=0.6)
    if close:
        return f" (did you mean {by_folded[close[0]]!r}?)"
    return f" (known: {', '.join(names)})"


def one_line(error: BaseException) -> str:
    """Return what an error says on one line, or its type where it says nothing.

    >>> one_line(OSError("no   space")), one_line(MemoryError())
    ('no space', 'MemoryError')
    """
    return " ".join(str(error).split()) or type(error).__name__


def first_fault(error: "ValidationError", whole: str) -> str:
    """Return on one line where pydantic finds the first fault (`whole`: in no part), and which; not what was given.

    A name that is unknown goes before all others: a misspelt field is missing as well.
    """
    errors = error.errors(include_input=False, include_url=False)
    first = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
    place = ".".join(map(str, first["loc"]))[:120] or whole
    return " ".join(f"{place}: {first['msg'].removeprefix('Value error, ')}".split())[:300]
