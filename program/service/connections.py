"""Connections that never get to a request: each holds one of the service's places until it is closed here."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ("patient",)


class _Patient(H11Protocol):
    """uvicorn's HTTP/1.1, with an end to waiting for a request's head.

    uvicorn waits for ever for the first one, and for the next as soon as a byte of it has come.
    """

    head_timeout_s: float
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for the first head."""
        super().connection_made(transport)
        self._wait(self.head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Wait no more once a request is under way."""
        super().data_received(data)
        if self._at_work():
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Wait for the next head: it may begin at the end of the idle time that uvicorn allows."""
        super().on_response_complete()
        if not self._at_work():
            self._wait(self.timeout_keep_alive + self.head_timeout_s)

    def _at_work(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._waiting = self.loop.call_later(seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        if not self._at_work():
            self.transport.close()


def patient(head_timeout_s: float) -> type[H11Protocol]:
    """Return the protocol that waits so long for the head of a request."""
    return type("Patient", (_Patient,), {"head_timeout_s": head_timeout_s})
