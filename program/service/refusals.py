"""What the service refuses: an HTTP status with one line that says why and what to do."""

from collections.abc import Mapping

import dspy
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from program.common.errors import InputError, first_fault
from program.service.logs import logger, shortened

__all__ = ("Refused", "misfit", "reason_of", "refusal_of")


class Refused(HTTPException):
    """A request that gets no assessment. Raised anywhere on its way; answered as `{"error": message}`."""

    def __init__(self, status: int, reason: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, message, headers)
        self.reason = reason
        """A fixed word for the metrics: body, host, origin, token, busy, timeout, path, url, ..."""


def refusal_of(error: BaseException) -> Refused | None:
    """Return how an error of a request or of its assessment is answered; None for a fault of the program itself."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, InputError):
        return Refused(422, "input", _one_line(str(error)))
    if isinstance(error, dspy.LMError):
        # A provider's words can hold the address or part of the key of an account: they are for the log only.
        logger.error("language model: %s", _one_line(str(error)))
        text = f"the language model gave no answer ({type(error).__name__}); the service's log says more"
        return Refused(502, "model", text)
    return None


def reason_of(error: BaseException) -> str:
    """Return the one line for who sent it; a fault of the program itself goes to the log."""
    if (refusal := refusal_of(error)) is not None:
        return str(refusal.detail)
    logger.error("an assessment failed", exc_info=error)
    return "the program failed on this; its log says why"


def misfit(error: ValidationError) -> Refused:
    """Return the refusal of what pydantic finds wrong, without what was sent: that may be an image."""
    return Refused(422, "request", _one_line(first_fault(error, "request")))


def _one_line(text: str) -> str:
    return shortened(" ".join(text.split()), 300)
