"""What was measured, by name: the values in one vector, and coarse maps."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ("Maps", "Measurement")

Maps = dict[str, list[list[float]]]
"""3 x 3 rows by name: where a property is how strong."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """An image's features, or its differences from a reference; `measurement["noise_all"]` is one of them."""

    vector: NDArray[np.float64]
    maps: Maps
    names: tuple[str, ...]
    """Of the values in the vector; shared where many are kept, since names take ten times the memory of the values."""

    @classmethod
    def of(cls, named: Mapping[str, float], maps: Maps) -> "Measurement":
        """Return a measurement of finite values."""
        values = np.nan_to_num(np.array(list(named.values())), nan=0.0, posinf=1e6, neginf=-1e6)
        return cls(values, maps, tuple(named))

    def __getitem__(self, name: str) -> float:
        return float(self.vector[self.names.index(name)])
