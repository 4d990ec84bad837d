"""What an address says: whether a file lies on this machine, and by which kinds of address elsewhere; proxies."""

import ipaddress
import os
import re
from urllib.parse import unquote, urlsplit

URI = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]+::)*[A-Za-z][A-Za-z0-9+.-]+://")
"""Of a chain of links (simplecache::s3://..., zip://a.png::s3://...), what goes before the file's own name."""
FILE = re.compile(r"file:(?://(?:localhost(?=/))?|(?=/))", re.IGNORECASE)
DATA = re.compile(r'data:(?:[^,"]|"[^"]*"){0,500}?;\s*base64,', re.IGNORECASE)
WEB = frozenset({"http", "https"})
"""Nothing is ever opened by such an address."""
_KIND = re.compile("[a-z][a-z0-9+.-]+")
_SHARE = re.compile(r"\\\\" if os.sep == "/" else r"[\\/]{2}")
"""How the name of another machine's folder begins; only Windows takes two slashes for one."""


def kinds_elsewhere(name: str) -> list[str]:
    r"""Return by which kinds of address a name leads away from this machine's files; none for a data: URI.

    "file" is a folder that another machine shares: file://host/folder, or \\host\folder of Windows.

    >>> kinds_elsewhere("S3://bucket/a.png"), kinds_elsewhere("zip://a.png::ftp://host/b.zip"), kinds_elsewhere("a.png")
    (['s3'], ['zip', 'ftp'], [])
    """
    if DATA.match(name):
        return []
    if FILE.match(name) or _SHARE.match(name):
        return ["file"] if _SHARE.match(path_in(name)) else []
    if not URI.match(name):
        return []
    *links, last = name.split("::")
    # A last link without an address is a file of this machine, unless it may be a kind by itself.
    if "://" in last or last.isalpha():
        links.append(last)
    return [link.partition("://")[0].casefold() for link in links]


def kind_of_address(text: str) -> str:
    """Return a kind of address that may be opened, as it stands before ://. Raises ValueError for anything else.

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


def links_of(address: str) -> tuple[str, str, str]:
    """Return the link of an address that names the file, and the links before and behind it.

    >>> links_of("simplecache::s3://bucket/a.png"), links_of("zip://a.png::s3://bucket/b.zip")
    (('simplecache::', 's3://bucket/a.png', ''), ('', 'zip://a.png', '::s3://bucket/b.zip'))
    """
    before, own = "", address
    while "::" in own and "://" not in own.partition("::")[0]:
        link, chain, own = own.partition("::")
        before += link + chain
    own, chain, after = own.partition("::")
    return before, own, chain + after


def joined(folder: str, name: str) -> str:
    """Return the address of a file below a folder elsewhere."""
    before, own, after = links_of(folder)
    return f"{before}{_as_folder(own)}{name}{after}"


def parent(address: str) -> str:
    """Return the folder of a file elsewhere."""
    before, own, after = links_of(address)
    kind, slashes, path = own.partition("://")
    return f"{before}{kind}{slashes}{path.rpartition('/')[0]}{after}"


def is_below(address: str, folder: str) -> bool:
    """Tell whether an address surely leads below a folder elsewhere, however its dots and slashes are written."""
    before, own, after = links_of(folder)
    start = _as_folder(own)
    names_host = not start.endswith("://") or bool(after)  # else the file's own name could be a host
    its_before, its_own, its_after = links_of(address)
    if not names_host or not its_own.startswith(start) or (its_before, its_after) != (before, after):
        return False
    inside = its_own.removeprefix(start)
    once = unquote(inside)
    twice = unquote(once)
    steps = {step for text in (inside, once, twice) for step in re.split(r"[/\\]", text)}
    return ".." not in steps and unquote(twice) == twice


def _as_folder(own: str) -> str:
    return own if own.endswith("://") else own.rstrip("/") + "/"


def proxies_for(address: str) -> dict[str, str]:
    """Return the environment's proxies for a server, by kind; none for a server of this machine.

    A proxy is another machine: it would be told what this one's own servers are asked.
    """
    from urllib.request import getproxies, proxy_bypass

    host = urlsplit(address).hostname or ""
    return {} if _is_own(host) or proxy_bypass(host) else getproxies()


def _is_own(host: str) -> bool:
    """Tell whether a server's name or address is always this machine's."""
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return host.rstrip(".") == "localhost" or host.rstrip(".").endswith(".localhost")
    return number.is_loopback or number.is_unspecified
