"""Fitted maps from raw tool values to scores 1..5: as they are stored, and applied."""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, FiniteFloat, model_validator

from program.tools.stored import Stored

__all__ = ("HIGHEST", "IDENTITY_SLACK", "LOWEST", "MapParameters", "apply_map", "is_identity", "logistic")

LOWEST, HIGHEST = 1.0, 5.0
_FARTHEST = 1e6
"""Standardised raw values are cut here, so that no finite raw value overflows."""
IDENTITY_SLACK = 1e-5
"""A raw value this close to the identity's (times it, where that is above 1) is it: piq's HaarPSI is up to 6e-6 off."""


class MapParameters(Stored):
    """A fitted map in numbers; z = sign (raw - centre) / scale."""

    kind: Literal["logistic", "isotonic"]
    sign: Literal[-1, 1]
    centre: FiniteFloat
    scale: FiniteFloat = Field(gt=0)
    logistic: tuple[FiniteFloat, FiniteFloat, FiniteFloat, FiniteFloat, FiniteFloat] | None = None
    """a, b, s, m, c of a + b / (1 + exp(-s (z - m))) + c z, with b, s, c >= 0."""
    knots: tuple[tuple[FiniteFloat, FiniteFloat], ...] | None = None
    """Isotonic: (z, score), linear between them."""
    ramp: tuple[FiniteFloat, FiniteFloat] | None = None
    """FR: the z where the rise to 5 begins and the z of the identity."""

    @model_validator(mode="after")
    def _monotone(self) -> "MapParameters":
        if self.kind == "logistic" and (
            self.logistic is None or min(self.logistic[1], self.logistic[2], self.logistic[4]) < 0
        ):
            raise ValueError("a logistic map needs its five numbers, with b, s and c not below 0")
        if self.kind == "isotonic":
            z, scores = np.asarray(self.knots or [], float).reshape(-1, 2).T
            if len(z) < 2 or np.any(np.diff(z) <= 0) or np.any(np.diff(scores) < 0):
                raise ValueError("an isotonic map needs two or more rising knots")
        if self.ramp is not None and not self.ramp[0] < self.ramp[1]:
            raise ValueError("the ramp must end above its start")
        return self


def apply_map(parameters: MapParameters, raw: ArrayLike) -> NDArray[np.float64]:
    """Return the scores of a stored map, in 1..5."""
    # Cut before the division: a huge value over a small scale would overflow.
    reach = _FARTHEST * parameters.scale
    values = np.clip(np.asarray(raw, float), parameters.centre - reach, parameters.centre + reach)
    z = parameters.sign * (values - parameters.centre) / parameters.scale
    scores = _base(parameters, z)
    if parameters.ramp is not None:
        start, end = parameters.ramp
        foot = float(np.clip(_base(parameters, np.asarray(start)), LOWEST, HIGHEST))
        share = np.clip((z - start) / (end - start), 0, 1)
        scores = np.where(share > 0, np.maximum(scores, foot + (HIGHEST - foot) * share), scores)
        # The identity itself, whatever float32 made of it.
        identity = parameters.centre + parameters.sign * end * parameters.scale
        slack = IDENTITY_SLACK * max(1.0, abs(identity)) / parameters.scale
        scores = np.where(z >= end - slack, HIGHEST, scores)
    return np.clip(scores, LOWEST, HIGHEST)


def is_identity(raw: ArrayLike, identity: float | None) -> NDArray[np.bool_]:
    """Return which raw values are those of an image equal to its reference."""
    if identity is None:
        return np.zeros(np.shape(raw), bool)
    return np.asarray(np.abs(np.subtract(raw, identity)) <= IDENTITY_SLACK * max(1.0, abs(identity)))


def _base(parameters: MapParameters, z: NDArray[np.float64]) -> NDArray[np.float64]:
    if parameters.logistic is not None:
        return logistic(np.asarray(parameters.logistic), z)
    knots = np.asarray(parameters.knots, float)
    value: NDArray[np.float64] = np.interp(z, knots[:, 0], knots[:, 1])
    return value


def logistic(theta: NDArray[np.float64], z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a + b / (1 + exp(-s (z - m))) + c z for theta = (a, b, s, m, c)."""
    a, b, s, m, c = theta
    # tanh form of the logistic: finite for any argument.
    value: NDArray[np.float64] = a + b * 0.5 * (1 + np.tanh(np.clip(s * (z - m), -700, 700) / 2)) + c * z
    return value
