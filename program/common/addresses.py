"""What an address says: whether a file lies here, and by which kind of address else; proxies."""

import ipaddress
import os
import re
from urllib.parse import unquote, urljoin, urlsplit

from program.common.errors import EndpointError, showable

URI = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]+::)*[A-Za-z][A-Za-z0-9+.-]+://")
FILE = re.compile(r"file:(?://(?:localhost(?=/))?|(?=/))", re.IGNORECASE)
DATA = re.compile(r'data:(?:[^,"]|"[^"]*"){0,500}?;\s*base64,', re.IGNORECASE)
WEB = frozenset({"http", "https"})
"""Nothing is ever opened by such an address."""
CHAIN = "::"
"""What joins addresses to a chain for fsspec. None is opened: each link may lead anywhere."""
_KIND = re.compile("[a-z][a-z0-9+.-]+")
_SHARE = re.compile(r"\\\\" if os.sep == "/" else r"[\\/]{2}")
"""How the name of another machine's folder begins; only Windows takes two slashes for one."""


def kind_elsewhere(name: str) -> str:
    r"""Return by which kind of address a name leads away from this machine; "" where it does not.

    "file" is a folder that another machine shares: file://host/folder, or \\host\folder of Windows.

    >>> kind_elsewhere("S3://bucket/a.png"), kind_elsewhere("a.png"), kind_elsewhere("data:image/png;base64,AA==")
    ('s3', '', '')
    """
    if DATA.match(name):
        return ""
    if FILE.match(name) or _SHARE.match(name):
        if _SHARE.match(path_in(name)):
            return "file"
        return ""
    if not URI.match(name):
        return ""
    return re.split("::|://", name, maxsplit=1)[0].casefold()


def kind_of_address(text: str) -> str:
    """Return a kind of address that may be opened, as it stands before ://; or ValueError.

    >>> kind_of_address("S3")
    's3'
    """
    kind = text.strip().casefold().removesuffix("://")
    if not _KIND.fullmatch(kind):
        raise ValueError(f"{text!r} is no kind of address; give what stands before ://, as s3 or gs")
    if kind in WEB:
        raise ValueError(f"{text!r} is never opened; download such images and give their paths")
    return kind


def path_in(name: str) -> str:
    r"""Return the path in a file: URI, one of a host's as \\host\...; other names as they are."""
    scheme = FILE.match(name)
    if scheme is None:
        return name
    path = unquote(name[scheme.end() :], errors="surrogateescape")
    if path.startswith("/") or re.match("[A-Za-z]:", path):
        return path
    return rf"\\{path}"


def joined(folder: str, name: str) -> str:
    """Return the address of a file below a folder elsewhere."""
    return _as_folder(folder) + name


def parent(address: str) -> str:
    """Return the folder of a file elsewhere."""
    kind, slashes, path = address.partition("://")
    return f"{kind}{slashes}{path.rpartition('/')[0]}"


def is_below(address: str, folder: str) -> bool:
    """Tell whether an address surely leads below a folder elsewhere, however it is written."""
    start = _as_folder(folder)
    if start.endswith("://"):  # the file's own name could be a host
        return False
    if CHAIN in address or not address.startswith(start):
        return False
    inside = address.removeprefix(start)
    once = unquote(inside)
    twice = unquote(once)
    steps = re.split(r"[/\\]", "/".join((inside, once, twice)))
    return ".." not in steps and unquote(twice) == twice


def _as_folder(address: str) -> str:
    if address.endswith("://"):
        return address
    return address.rstrip("/") + "/"


def proxies_for(address: str) -> dict[str, str]:
    """Return the environment's proxies for a server, by kind; none for a server of this machine.

    A proxy is another machine: it would be told what this one's own servers are asked.
    """
    from urllib.request import getproxies, proxy_bypass

    host = urlsplit(address).hostname or ""
    if _is_own(host) or proxy_bypass(host):
        return {}
    return getproxies()


def redirected(address: str, location: str) -> str:
    """Return where a server sends a request on to by a redirect.

    Raises EndpointError where that is another server, which is to get no key and no image.
    """
    scheme, host, port = _server(address)
    allowed = [(scheme, host, port)]
    if (scheme, port) == ("http", 80):  # as browsers do
        allowed.append(("https", host, 443))
    try:
        target = urljoin(address, location)
        is_allowed = _server(target) in allowed
    except ValueError:
        target, is_allowed = location, False
    if not is_allowed:
        elsewhere = showable(target.partition("?")[0])[:200]
        mend = "if that is right give its address with --api-base"
        raise EndpointError(f"{address} sends requests on to {elsewhere}; {mend}")
    return target


def _server(address: str) -> tuple[str, str, int]:
    """Return scheme, host and port of an address; ValueError where it has no such form."""
    parts = urlsplit(address)
    usual = 443 if parts.scheme == "https" else 80
    return parts.scheme, parts.hostname or "", parts.port or usual


def _is_own(host: str) -> bool:
    """Tell whether a server's name or address is always this machine's."""
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return host.rstrip(".") == "localhost" or host.rstrip(".").endswith(".localhost")
    return number.is_loopback or number.is_unspecified
