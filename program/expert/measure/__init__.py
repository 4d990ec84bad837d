"""From pixels to numbers and maps."""
