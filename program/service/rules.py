"""Who may ask: Host, Origin and token of a request, checked before a byte of its body is read. Pure."""

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from program.service.refusals import Refused

__all__ = ("MIN_TOKEN_CHARS", "OPEN_ROUTES", "Rules", "is_loopback")

MIN_TOKEN_CHARS = 16
"""A shorter token could be guessed at the rate a service answers."""

OPEN_ROUTES = ("/", "/docs", "/openapi.json", "/health")
"""Answered without a token, and /assets/*: they hold nothing but what is in the source."""

_PROXY = "a proxy before the service has to pass the Host header"
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9a-f:.]+)\]|(?P<name>[^\s/@?#\\,:\[\]]+))(?::[0-9]{0,5})?", re.IGNORECASE)


@dataclass(frozen=True)
class Rules:
    """What a request's head must hold."""

    token: str | None = None
    hosts: Sequence[str] = ()
    """Names answered to besides localhost and IP addresses."""

    def check(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """Raise Refused for a foreign page, a foreign name, or no token. `headers` by lower-case name."""
        host = headers.get("host", "")
        self._check_host(host)
        _check_origin(host, method, headers)
        if self.token is not None and path not in OPEN_ROUTES and not path.startswith("/assets/"):
            self._check_token(headers.get("authorization", ""))

    def _check_host(self, host: str) -> None:
        # A page of another site reaches a local service by a name of its own that resolves to 127.0.0.1 (DNS
        # rebinding); it cannot do so by an address. Starlette's TrustedHostMiddleware knows names only.
        match = _HOST.fullmatch(host)
        name = (match["ipv6"] or match["name"]).casefold().rstrip(".") if match else ""
        if _address(name) is None and name not in {"localhost", *(known.casefold() for known in self.hosts)}:
            raise Refused(
                403, "host", f"host {host[:80]!r}: not answered to; use localhost or an address, "
                f"or add the name to serve.allowed_hosts in the settings; {_PROXY}",
            )  # fmt: skip

    def _check_token(self, sent: str) -> None:
        scheme, _, value = sent.partition(" ")
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
    address = _address(host)
    return host.casefold() == "localhost" or (address is not None and address.is_loopback)


def _check_origin(host: str, method: str, headers: Mapping[str, str]) -> None:
    origin = headers.get("origin")
    if origin is not None and not _same_place(origin, host):
        raise Refused(
            403, "origin", f"origin {origin[:80]!r}: only the service's own page may ask from a browser; {_PROXY}"
        )
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


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
