"""The project's own errors: input, fault and remedy in a line; and text that steers nothing."""

import difflib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


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
    """A model's service cannot be used as it is addressed; the next question fails, too."""

    is_repeated = False
    """Whether it failed like this before, with no answer since: a run over many images ends."""


class UnreadError(ModelError):
    """Several answers in a row of a model could not be read: a run over many images ends here."""


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


_MENDS = {
    "LMTransportError": "check the network connection", "LMTimeoutError": "check the network connection, or try later",
    "LMServerError": "the service's log says more", "LMRateLimitError": "wait, or set wire.requests_per_minute",
    "LMAuthError": "set its key in the environment", "LMUnsupportedModelError": "check the model's name",
}  # fmt: skip
"""What to do about a failing model service, by the error's type."""
_MENDS_OF_SERVERS = _MENDS | {
    "LMTransportError": "is the server running at --api-base?", "LMTimeoutError": "is the server running, and idle?",
}  # fmt: skip
"""The same where the user gave its address."""


def fault_and_mend(error: Exception) -> tuple[str, str]:
    """Return what an error of ours or of a model's service says is wrong, and what to do, or "".

    >>> fault_and_mend(InputError("image 'a.png': no such file; check the path"))
    ("image 'a.png': no such file", 'check the path')
    """
    kind, words = type(error).__name__, one_line(error)
    if isinstance(error, InputError) or kind == "LMNotConfiguredError":
        fault, _, mend = words.rpartition("; ")
        if fault:
            return (fault, mend)
        return (words, "")
    mends = _MENDS_OF_SERVERS if "://" in str(getattr(error, "model", "")) else _MENDS
    return words, mends.get(kind, "check --lm, --api-base and the key in the environment")


def first_fault(error: "ValidationError", whole: str, model: "type[BaseModel] | None" = None) -> str:
    """Return on one line where pydantic finds the first fault, and which; not what was given.

    A name that is unknown goes before all others: a misspelt field is missing as well. Of a `model`
    the nearest field is named, or all of them.
    """
    errors = error.errors(include_input=False, include_url=False)
    first = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
    place = ".".join(map(str, first["loc"]))[:120] or whole
    what = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        *above, name = first["loc"]
        what = "unknown field" + (did_you_mean(str(name), keys_at(model, tuple(above))) if model else "")
    return " ".join(f"{place}: {what}".split())[:300]


def keys_at(section: Any, location: tuple[int | str, ...]) -> list[str]:
    """Return the keys that a part of a tree, or of a request, may hold."""
    for part in location:
        fields = getattr(section, "model_fields", {})
        kind = fields[str(part)].annotation if str(part) in fields else section
        section = next((t for t in (kind, *get_args(kind)) if hasattr(t, "model_fields")), kind)
    return list(getattr(section, "model_fields", ()))


UNSHOWABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Marks with no place in a line: controls but tab and newline, directions, half characters."""


def showable(text: str) -> str:
    r"""Return a text with what steers a terminal, or turns the writing, shown by its code.

    >>> showable("a\x1b[2Jb.png")
    'a\\x1b[2Jb.png'
    """
    return UNSHOWABLE.sub(lambda match: ascii(match[0])[1:-1], text)
