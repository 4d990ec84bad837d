"""From numbers to beliefs: quality, and the severity of each distortion."""
