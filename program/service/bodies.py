"""Bodies of requests while they arrive: bounded each in size and time, and together in memory."""

import asyncio
import contextlib

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

from program.common.settings import ServeSettings
from program.service.refusals import Refused

__all__ = ("Bodies", "Body")

_DRAIN_S = 1.0


class Bodies:
    """Those that are not whole yet. They hold no place of those that are worked on, but memory, and that is bounded.

    Beyond it the one that has been coming longest is given up: whoever sends slowly keeps nobody else out.
    """

    def __init__(self, most_each: int, most_together: int, timeout_s: float) -> None:
        self.most_each, self.timeout_s = most_each, timeout_s
        self._most = most_together
        self._arriving: dict[Body, None] = {}

    @classmethod
    def of(cls, settings: ServeSettings) -> "Bodies":
        """Return those that the settings allow: together as much as may be worked on or wait."""
        most = int(settings.max_body_mb * 2**20)
        return cls(most, most * (settings.concurrency + settings.queue), settings.body_timeout_s)

    def __len__(self) -> int:
        return len(self._arriving)

    def enter(self, body: "Body") -> None:
        """Count a body that begins to arrive."""
        self._arriving[body] = None

    def grew(self) -> None:
        """Give up the oldest where there is too much of all."""
        while sum(each.read for each in self._arriving) > self._most:
            oldest = next(iter(self._arriving))
            self.leave(oldest)
            oldest.give_up()

    def leave(self, body: "Body") -> None:
        """Count a body no more: it is whole, or its request is over."""
        self._arriving.pop(body, None)


class Body:
    """The receiving side: stops reading at the limits of size and time."""

    def __init__(self, receive: Receive, headers: Headers, bodies: Bodies) -> None:
        self._receive, self._bodies = receive, bodies
        self.read = 0
        self._patience: asyncio.Timeout | None = None
        self._given_up = False
        self._deadline: float | None = None
        self._length = headers.get("content-length", "0")
        self._waits_for_word = "expect" in headers
        self._whole = "transfer-encoding" not in headers and self._length == "0"

    def check_length(self) -> None:
        """Refuse a body that says itself that it is too large."""
        if not (self._length.isascii() and self._length.isdigit()) or int(self._length[:20]) > self._bodies.most_each:
            raise self._too_large()

    def give_up(self) -> None:
        """Wait for it no longer."""
        self._given_up = True
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time())

    async def drain(self) -> None:
        """Read and drop what is still coming, for a second at most: a client cut off while sending reads no answer."""
        if self._whole or (self._waits_for_word and self._deadline is None):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                while not self._whole:
                    message = await self._receive()
                    self._whole = message["type"] != "http.request" or not message.get("more_body", False)

    async def __call__(self) -> Message:
        """Return the next part of it. Raises Refused."""
        if self._whole:
            return await self._receive()
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + self._bodies.timeout_s
            self._bodies.enter(self)
        message = await self._awaited(self._deadline)
        self._whole = not message.get("more_body", False)
        if message["type"] == "http.disconnect":  # 499, as nginx counts those who left before an answer
            raise HTTPException(499, "the client left before its request was whole")
        self.read += len(message.get("body", b""))
        if self.read > self._bodies.most_each:
            raise self._too_large()
        if self._whole:
            self._bodies.leave(self)
        else:
            self._bodies.grew()
        return message

    async def _awaited(self, deadline: float) -> Message:
        try:
            async with asyncio.timeout_at(deadline) as self._patience:
                if self._given_up:
                    raise TimeoutError
                return await self._receive()
        except TimeoutError:
            text = f"the body did not arrive within {self._bodies.timeout_s:g} s; send it faster, or a smaller image"
            if self._given_up:
                text = "the body arrived too slowly while others were sent; send it faster, or a smaller image"
            raise Refused(408, "slow", text) from None
        finally:
            self._patience = None

    def _too_large(self) -> Refused:
        text = f"the body is over {self._bodies.most_each / 2**20:.3g} MiB; send smaller or fewer images"
        return Refused(413, "body", text)
