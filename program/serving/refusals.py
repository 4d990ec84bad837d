"""What the service refuses: an HTTP status with one line that says why and what to do."""

from collections.abc import Mapping

__all__ = ("Refused",)


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """A request that gets no assessment. Raised anywhere on its way; answered as `{"error": message}`."""

    def __init__(self, status: int, reason: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        """A fixed word for the metrics: body, host, origin, token, busy, timeout, path, url, ..."""
        self.message = message
        self.headers = dict(headers or {})
