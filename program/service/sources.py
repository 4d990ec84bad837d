"""Where an image of a request comes from: its own bytes, or a path or URL that the settings allow."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import httpx

from program.common.errors import ImageError
from program.common.places import from_base64, plain_file
from program.common.redaction import UNSHOWABLE
from program.common.settings import ServeSettings
from program.images.store import IMAGES, ImageRef
from program.running.request import Request
from program.service.refusals import Refused

__all__ = ("Sent", "Sources", "decoded", "opened", "shown_name")

_FETCH_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Sent:
    """Encoded image bytes and what the client calls them."""

    data: bytes
    name: str

    def opened(self, max_megapixels: float) -> ImageRef:
        """Check and decode the image; ImageError naming it, before decoding where it has too many pixels."""
        try:
            return replace(IMAGES.add(self.data, max_pixels=int(max_megapixels * 1e6)), name=self.name)
        except ImageError as error:
            # The store knows the bytes' hash and the operator's settings; the client knows its own name for them.
            text = re.sub(r"'bytes:[0-9a-f]+'", lambda _: repr(self.name), str(error))
            raise ImageError(text.replace(", or raise images.max_pixels", "")) from error


def opened(request: Request, max_megapixels: float) -> Request:
    """Return a request with its image and reference, as they were sent, checked and decoded. Raises ImageError."""
    named = {name: getattr(request, name) for name in ("image", "reference")}
    return request.model_copy(update={name: sent and sent.opened(max_megapixels) for name, sent in named.items()})


class Sources:
    """Reads what a request names, within the settings' allow-lists. Blocking: call it in a thread."""

    def __init__(self, settings: ServeSettings, *, local: bool = False) -> None:
        """`local` admits any file of this machine, for a client that is its user's own program."""
        self._local = local
        self._folders = (
            [Path.cwd()] if local else [Path(os.path.expanduser(f)).resolve() for f in settings.image_folders]
        )
        self._hosts = frozenset(host.casefold() for host in settings.image_hosts)
        self._limit = int(settings.max_body_mb * 2**20)

    def file(self, named: str) -> Sent:
        """Return a file of an allowed folder. Symbolic links are followed first, then judged by where they lead."""
        for path in self._found(named):
            if path.is_file():
                return Sent(self._read(path, named), shown_name(path.name))
        if self._local:
            raise Refused(422, "path", f"image {named[:200]!r}: no such file; check the path")
        # One answer for what is outside and what is missing: which files exist elsewhere is nobody's business.
        raise Refused(
            403, "path", f"path {named[:200]!r}: not a file of the folders under serve.image_folders in the settings; "
            "send the image itself",
        )  # fmt: skip

    def folder(self, named: str) -> Path:
        """Return a folder that may be looked into. Raises Refused."""
        for path in self._found(named):
            if path.is_dir():
                return path
        allowed = "no such folder" if self._local else "not one of the folders under serve.image_folders"
        raise Refused(422, "path", f"folder {named[:200]!r}: {allowed}; check the path")

    def url(self, named: str) -> Sent:
        """Return what an allowed host holds under a URL. Redirects are not followed, proxies not used."""
        url = _parsed(named)
        if url is None or url.netloc.decode() not in self._hosts:
            raise Refused(
                403, "url", f"url {named[:200]!r}: its host is not under serve.image_hosts in the settings; "
                "send the image itself",
            )  # fmt: skip
        try:
            data = self._fetch(url, named)
        except httpx.HTTPError as error:
            raise Refused(422, "url", f"url {named[:200]!r}: cannot be read ({type(error).__name__})") from error
        return Sent(data, shown_name(url.path))

    def _found(self, named: str) -> Iterator[Path]:
        for folder in self._folders:
            with suppress(OSError, ValueError, RuntimeError):  # missing, a zero byte, a loop of links
                path = (folder / os.path.expanduser(named)).resolve(strict=True)
                if self._local or path.is_relative_to(folder):
                    yield path

    def _read(self, path: Path, named: str) -> bytes:
        try:
            with open(path, "rb", opener=_unlinked) as file:
                data = file.read(self._limit + 1)
        except OSError as error:
            raise Refused(422, "path", f"path {named[:200]!r}: cannot be read ({error.strerror})") from error
        self._check_size(data, f"path {named[:200]!r}")
        return data

    def _fetch(self, url: httpx.URL, named: str) -> bytes:
        what = f"url {named[:200]!r}"
        data, deadline = bytearray(), time.monotonic() + _FETCH_TIMEOUT_S
        plain = {"Accept-Encoding": "identity", "User-Agent": "agentic-iqa"}
        with (
            httpx.Client(trust_env=False, follow_redirects=False, timeout=_FETCH_TIMEOUT_S) as client,
            client.stream("GET", url, headers=plain) as response,
        ):
            if response.status_code != 200:
                text = f"answered {response.status_code}; give one that answers 200 (redirects are not followed)"
                raise Refused(422, "url", f"{what}: {text}")
            for part in response.iter_raw():
                data += part
                self._check_size(data, what)
                if time.monotonic() > deadline:  # a host that sends a byte now and then keeps no thread
                    raise Refused(422, "url", f"{what}: took over {_FETCH_TIMEOUT_S:g} s; send the image")
        return bytes(data)

    def _check_size(self, data: bytes | bytearray, what: str) -> None:
        if len(data) > self._limit:
            raise Refused(413, "body", f"{what}: is over {self._limit / 2**20:.3g} MiB; give a smaller image")


def _unlinked(path: str, flags: int) -> int:
    """Open a plain file that no link or pipe has taken the place of since its path was resolved."""
    return plain_file(path, flags | getattr(os, "O_NOFOLLOW", 0))


def decoded(text: str, what: str) -> bytes:
    """Return the bytes of a base64 text: plain, URL-safe, or a data: URL; Refused for anything else."""
    try:
        return from_base64(text)
    except ValueError:
        raise Refused(422, "image", f"{what}: not base64; encode the file's bytes, or send multipart") from None


def shown_name(given: str | None, otherwise: str = "image") -> str:
    r"""Return a client's file name as it is shown and logged: no folders, no control or direction marks.

    >>> shown_name("../../etc/x.png"), shown_name("C:\\a\\b.jpg"), shown_name("a\x1b[2J.png"), shown_name("")
    ('x.png', 'b.jpg', 'a[2J.png', 'image')
    """
    name = UNSHOWABLE.sub("", PurePosixPath((given or "").replace("\\", "/")).name)
    return " ".join(name.split())[:120] or otherwise


def _parsed(named: str) -> httpx.URL | None:
    """Return a plain http(s) URL as it will be fetched; None for any other."""
    try:
        url = httpx.URL(named)
    except httpx.InvalidURL:
        return None
    return url if url.scheme in {"http", "https"} and url.host and not url.userinfo else None
