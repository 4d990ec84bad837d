"""What can be wrong with data: one line that names the input, the fault and the mend."""

__all__ = ("DataError",)


class DataError(ValueError):
    """A manifest, photograph, distortion or dataset name cannot be used as given."""
