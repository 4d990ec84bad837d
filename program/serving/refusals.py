"""What the service refuses: an HTTP status with one line that says why and what to do."""

from collections.abc import Mapping

from program.serving.logs import logger, shortened

__all__ = ("Refused", "model_fault")


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """A request that gets no assessment. Raised anywhere on its way; answered as `{"error": message}`."""

    def __init__(self, status: int, reason: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        """A fixed word for the metrics: body, host, origin, token, busy, timeout, path, url, ..."""
        self.message = message
        self.headers = dict(headers or {})


def model_fault(error: Exception) -> str:
    """Log what a language model's service said, and return the line for the client, which holds none of it.

    A provider's words can hold the address or part of the key of an account.
    """
    logger.error("language model: %s", shortened(" ".join(str(error).split()), 300))
    return f"the language model gave no answer ({type(error).__name__}); the service's log says more"
