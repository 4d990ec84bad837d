"""Measurements by name, looked up in their vector: a mapping of its own would take ten times the memory."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ("Named",)


class Named(Mapping[str, float]):
    """The values of a vector by name; `places` says where each name stands."""

    __slots__ = ("_places", "_vector")

    def __init__(self, places: Mapping[str, int], vector: NDArray[np.float64]) -> None:
        self._places, self._vector = places, vector

    def __getitem__(self, name: str) -> float:
        return float(self._vector[self._places[name]])

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
