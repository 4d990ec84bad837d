"""Keys: as headers take them, and never in a text that is shown, written or kept."""

import binascii
import copy
import os
import re
import traceback
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from program.common.errors import EndpointError

_NAME = re.compile(
    r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PAT)(?:$|_)|PASSWORD|PASSWD|PASSPHRASE|(?<=_)PWD$", re.IGNORECASE
)
"""Of variables and options that hold keys; PWD itself is the working folder."""
_PASSWORD = re.compile(r"(?<=://)[^/\s\"'<>\\]+@")
"""User and password in a URL; the password may hold an @."""
_SHORTEST = 8
"""Shorter values of such variables are words and numbers that turn up in any text."""
_BLANKS = " \t\n\v\f\r\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"
_BLANKS += "".join(map(chr, range(0x2000, 0x2010)))  # of all widths, none among them
_QUOTES = "\"'`\u2018\u2019\u201c\u201d\u00ab\u00bb"
_IMAGE_BYTES = re.compile(r"(data:[\w.+-]+/[\w.+-]+;base64,)[A-Za-z0-9+/=_-]{16,}")
PRIVATE_OPTION = re.compile(r"headers$|api_?key$|^authorization$", re.IGNORECASE)
"""Of a language model: it may hold a key."""
_ALSO_NAMED = {"gemini": "GOOGLE_", "vertex_ai": "GOOGLE_", "huggingface": "HF_"}
"""Providers whose keys are named otherwise, too."""


class KeyFormError(EndpointError):
    """A key, or a header's value, that no request can carry: every question would fail."""

    is_repeated = True


def usable_key(name: str, value: str) -> str:
    r"""Return a key as a header takes it: the blanks at its ends cut.

    Raises KeyFormError, which names the key and quotes nothing of it, where it holds anything but
    visible ASCII.

    >>> usable_key("OPENAI_API_KEY", " sk-1234\r\n")
    'sk-1234'
    """
    key = value.strip(_BLANKS)
    if not re.fullmatch(r"[!-~]*", key):
        fault = "holds a character that no key has (as a curly quote, or a blank inside)"
        raise KeyFormError(f"{name}: {fault}; copy the key again")
    return key


def use_keys(names: Iterable[str]) -> None:
    """Cut these variables of the environment as `usable_key` does, for other libraries."""
    for name in names:
        value = os.environ.get(name)
        if value is not None and (key := usable_key(name, value)) != value:
            os.environ[name] = key


def holds_key(name: str) -> bool:
    """Return whether a variable or an option holds a key, by its name.

    >>> holds_key("AWS_SECRET_ACCESS_KEY"), holds_key("api_key"), holds_key("max_tokens")
    (True, True, False)
    """
    return bool(_NAME.search(name))


def keys_named_after(provider: str) -> list[str]:
    """Return the variables that hold a provider's keys: of "together_ai" TOGETHER_API_KEY, ..."""
    words = re.findall("[A-Z0-9]+", provider.upper())
    if not words:
        return []
    own = f"{words[0]}_"
    beginnings = (own, f"{''.join(words)}_", _ALSO_NAMED.get(provider, own))
    return [name for name in os.environ if name.startswith(beginnings) and name.endswith(("_KEY", "_TOKEN"))]


def usable_options(options: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return those of a language model's options that have to be cut: key and headers.

    Raises KeyFormError, which names the option and the model (`owner`), for what no header holds.
    """
    cut: dict[str, Any] = {}
    for name, value in options.items():
        where = f"{name} of {owner}"
        if name == "api_key" and isinstance(value, str):
            cut[name] = usable_key(where, value)
        elif name.endswith("headers") and isinstance(value, Mapping):
            cut[name] = {header: _usable_header(f"{where}: {header}", text) for header, text in value.items()}
    return {name: value for name, value in cut.items() if value != options[name]}


def _usable_header(name: str, value: Any) -> Any:
    """Return a header's value with the blanks at its ends cut; there may be some inside."""
    if not isinstance(value, str):
        return value
    text = value.strip(_BLANKS)
    if not re.fullmatch(r"[ -~\t]*", text):
        fault = "holds a character that no header has (as a curly quote, or a line's end)"
        raise KeyFormError(f"{name}: {fault}; copy it again")
    return text


def keys_among(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys among a model's options or the environment, by name; headers' and URLs' too.

    Blanks and quotes at their ends are cut: a text may hold a key without them. Keys of fewer than
    8 characters are left out.

    >>> keys_among({"api_key": "abcdefgh", "seed": 1, "extra_headers": {"Authorization": "Bearer ijklmnop"}})
    {'api_key': 'abcdefgh', 'Authorization': 'ijklmnop'}
    """
    keys: dict[str, str] = {}
    for name, value in options.items():
        if isinstance(value, str):
            if holds_key(name):
                keys[name] = value
            elif "://" in value and (user := _PASSWORD.search(value)):
                from urllib.parse import unquote  # none of the environment's, usually

                keys[f"password of {name}"] = unquote(user[0][:-1].partition(":")[2] or user[0][:-1])
        elif name.endswith("headers") and isinstance(value, Mapping):
            for header, text in value.items():
                keys[str(header)] = " ".join(str(text).split()[-1:])  # a scheme ("Bearer") goes before the key
    cut = {name: value.strip(_BLANKS + _QUOTES) for name, value in keys.items()}
    return {name: key for name, key in cut.items() if len(key) >= _SHORTEST}


def redact(text: str, secrets: Mapping[str, str] | None = None) -> str:
    """Return a text with every key of the environment, and passwords in URLs, replaced.

    `secrets` are further keys, by the name to put in their place. A key is found as it is and as it
    is escaped in JSON, Python, HTML, URLs and base64. Redact before a text is cut: of a key cut in
    half the rest would stay.

    >>> redact("no such key: abcdefgh", {"LAB": "abcdefgh"}), redact("http://me:pass@host/v1")
    ('no such key: <LAB>', 'http://<password>@host/v1')
    """
    return _redacted(text, _in_force(secrets))


def without_keys(value: Any, secrets: Mapping[str, str] | None = None) -> Any:
    """Return a value with every text in it redacted, in lists, mappings, dataclasses and models.

    What holds no key is returned itself. Where an answer's text held one its `logprobs` are
    dropped: their tokens spell the key in pieces.
    """
    return _cleared(value, _in_force(secrets))


def strip_bytes(value: Any) -> Any:
    """Return a value (text, or lists and mappings of it) without images and headers."""
    if isinstance(value, str):
        return _IMAGE_BYTES.sub(r"\1(left out)", value)
    if isinstance(value, Mapping):
        stripped: dict[Any, Any] = {}
        for name, item in value.items():
            is_private = PRIVATE_OPTION.search(str(name))
            stripped[name] = "(left out)" if is_private else strip_bytes(item)
        return stripped
    if isinstance(value, list | tuple):
        return [strip_bytes(item) for item in value]
    url = getattr(value, "url", None)
    if isinstance(url, str) and url.startswith("data:"):
        return strip_bytes(url)
    return value


def scrub(error: BaseException, secrets: Mapping[str, str] | None = None) -> None:
    """Take out of an error what `redact` takes out of a text; causes that quote it are dropped."""
    for name, value in list(vars(error).items()):
        if (cleared := without_keys(value, secrets)) is not value:
            setattr(error, name, cleared)
    error.args = without_keys(error.args, secrets)
    text = "".join(traceback.format_exception(error))
    if redact(text, secrets) != text:
        error.__cause__ = error.__context__ = None


_Keys = list[tuple[str, str]]
_PLAIN = {type(None), bool, int, float}


def _in_force(secrets: Mapping[str, str] | None) -> _Keys:
    """Return the keys to look for, with their names: the longest first, as one may hold another."""
    # Of two names for one key the environment's comes first: it tells the user where to look.
    return _longest_first(tuple(os.environ.items()), tuple((secrets or {}).items()))


@lru_cache(maxsize=16)
def _longest_first(environment: tuple[tuple[str, str], ...], further: tuple[tuple[str, str], ...]) -> _Keys:
    """Return the keys among the environment's variables and further ones; kept, as each answer asks for them."""
    keys = [*keys_among(dict(environment)).items(), *further]
    return sorted((item for item in keys if len(item[1]) >= _SHORTEST), key=lambda item: -len(item[1]))


def _redacted(text: str, keys: _Keys) -> str:
    if "://" in text:
        text = _PASSWORD.sub("<password>@", text)
    for name, key in keys:
        spellings, parts = _spellings(key)
        if any(part in text for part in parts):
            text = spellings.sub(lambda _, name=name: f"<{name}>", text)  # type: ignore[misc]
    return text


@lru_cache(maxsize=256)
def _spellings(key: str) -> tuple[re.Pattern[str], tuple[str, ...]]:
    """Return what finds a key in all its forms, and strings of which a text with it holds one.

    Letters and digits are the same in every form but base64.
    """
    encoded = [_base64(key, shift) for shift in range(3)]
    pattern = "|".join(["".join(map(_spelled, key)), *(re.sub("[+/]", r"[+/_-]", text) for text in encoded)])
    parts = tuple(max(re.split(r"[^A-Za-z0-9]", text), key=len) for text in (key, *encoded))
    return re.compile(pattern), parts


def _base64(key: str, shift: int) -> str:
    """Return the part of a text's base64 that a key in it determines, at one of three shifts."""
    data = key.encode("utf-8", "surrogateescape")
    whole = binascii.b2a_base64(b"\0" * shift + data).decode("ascii")
    return whole[(shift * 8 + 5) // 6 : (shift + len(data)) * 8 // 6]


def _spelled(character: str) -> str:
    """Return a pattern of a character as it is, or escaped for JSON, Python, URLs or HTML."""
    if re.fullmatch(r"[A-Za-z0-9]", character):
        return character
    itself = r"[\s+]{1,8}" if character.isspace() else re.escape(character)
    return rf"(?:\\{{0,8}}{itself}|[\\%&][\\%&;#\w]{{1,40}}?)"


def _cleared(value: Any, keys: _Keys) -> Any:
    if type(value) in _PLAIN:  # most parts of an answer
        return value
    if isinstance(value, str):
        return _text_cleared(value, keys)
    if isinstance(value, list | tuple):
        items = [_cleared(item, keys) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        if isinstance(value, list):
            return items
        return tuple(items)
    if isinstance(value, Mapping):
        entries = _entries_cleared(value, keys)
        if entries is None or not isinstance(value, dict):
            if entries is None:
                return value
            return entries
        emptied = copy.copy(value)  # of its own kind, as LiteLLM and DSPy have theirs
        emptied.clear()
        emptied.update(entries)
        return emptied
    is_record = hasattr(value, "__dataclass_fields__") or hasattr(value, "__pydantic_private__")
    if is_record and not isinstance(value, type):
        return _record_cleared(value, keys)
    return value


def _text_cleared(text: str, keys: _Keys) -> str:
    if len(text) < _SHORTEST:
        return text
    cleared = _redacted(text, keys)
    if cleared == text:
        return text
    return cleared


def _entries_cleared(entries: Mapping[Any, Any], keys: _Keys) -> dict[Any, Any] | None:
    """Return named values without keys; None where they hold none."""
    cleared = {}
    is_same = True
    for name, value in entries.items():
        new_name = _cleared(name, keys)
        # Thousands of tokens, each a piece of the text beside them.
        new_value = value if name == "logprobs" else _cleared(value, keys)
        is_same = is_same and new_name is name and new_value is value
        cleared[new_name] = new_value
    if is_same:
        return None
    if "logprobs" in cleared:
        return {**cleared, "logprobs": None}
    return cleared


def _record_cleared(record: Any, keys: _Keys) -> Any:
    """Return a dataclass or a pydantic model without keys, not validated again."""
    from dataclasses import fields

    if hasattr(record, "__pydantic_private__"):  # LiteLLM's have private parts with the headers
        names = ["__dict__", "__pydantic_extra__", "__pydantic_private__"]
    else:
        names = [field.name for field in fields(record)]
    parts = {name: getattr(record, name) for name in names}
    entries = _entries_cleared(parts, keys)
    if entries is None:
        return record
    cleared = copy.copy(record)
    for name, part in entries.items():
        object.__setattr__(cleared, name, part)
    return cleared
