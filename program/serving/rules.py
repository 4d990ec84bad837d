"""Who may ask: Host, Origin and token of a request, checked before a byte of its body is read. Pure."""

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from program.serving.refusals import Refused

__all__ = ("MIN_TOKEN_CHARS", "OPEN_ROUTES", "Rules", "is_loopback")

MIN_TOKEN_CHARS = 16
"""A shorter token could be guessed at the rate a service answers."""

OPEN_ROUTES = ("/", "/docs", "/openapi.json", "/health")
"""Answered without a token, and /assets/*: they hold nothing but what is in the source."""


@dataclass(frozen=True)
class Rules:
    """What a request's head must hold."""

    token: str | None = None
    hosts: Sequence[str] = ()
    """Names answered to besides localhost and IP addresses."""

    def check(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """Raise Refused for a request of a foreign page, for a foreign name, or without the token.

        `headers` by lower-case name.
        """
        host = headers.get("host", "")
        self._check_host(host)
        _check_origin(host, method, headers)
        if self.token is not None and not _is_open(path):
            self._check_token(headers.get("authorization", ""))

    def _check_host(self, host: str) -> None:
        name = _name_of(host)
        # A page of another site reaches a local service by a name of its own that resolves to 127.0.0.1 (DNS
        # rebinding); it cannot do so by an address.
        if name is None or not (name == "localhost" or _is_address(name) or name in {h.casefold() for h in self.hosts}):
            raise Refused(
                403, "host", f"host {host[:80]!r}: not answered to; use localhost or an address, "
                "or add the name to serve.allowed_hosts in the settings",
            )  # fmt: skip

    def _check_token(self, given: str) -> None:
        scheme, _, value = given.partition(" ")
        expected = hashlib.sha256((self.token or "").encode()).digest()
        digest = hashlib.sha256(value.strip().encode()).digest()
        # Hashes are of one length, so that comparing tells nothing of the token's.
        if not (hmac.compare_digest(digest, expected) and scheme.casefold() == "bearer"):
            raise Refused(
                401, "token", "a token is needed: send the header Authorization: Bearer TOKEN",
                {"WWW-Authenticate": 'Bearer realm="agentic-iqa"'},
            )  # fmt: skip


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address to bind to.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host.casefold() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_open(path: str) -> bool:
    return path in OPEN_ROUTES or path.startswith("/assets/")


def _check_origin(host: str, method: str, headers: Mapping[str, str]) -> None:
    origin = headers.get("origin")
    if origin is not None and not _same_place(origin, host):
        raise Refused(403, "origin", f"origin {origin[:80]!r}: only the service's own page may ask from a browser")
    # Some browsers leave the Origin out where a form of another site posts; this header they never do.
    if method not in {"GET", "HEAD"} and headers.get("sec-fetch-site") in {"cross-site", "same-site"}:
        raise Refused(403, "origin", "sent by a page of another site: only the service's own page may ask")


def _same_place(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
        own = urlsplit(f"{parts.scheme}://{host}")
        default = {"http": 80, "https": 443}[parts.scheme]
        return (parts.hostname, parts.port or default) == (own.hostname, own.port or default)
    except (KeyError, ValueError):
        return False


def _name_of(host: str) -> str | None:
    """Return a Host header's name without its port, or None where it is none."""
    if not host or any(c in host for c in "/@?#\\ ,"):
        return None
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    return (parts.hostname or "").rstrip(".") or None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
