"""How strong the strongest distortion is, by two judges: the detectors, and the quality regression.

Both say how far people would put an image below an undistorted one. The detectors know kinds but read few features;
the regression reads all of them but knows no kinds. Their errors differ, so a weighted sum of both misses less: on
photographs left out of the fit, and on natural photographs, whose scores the detectors alone hardly follow. Pure numpy.
"""

import numpy as np

from program.lms.perceptual.regression import Matrix

__all__ = ("grades", "grading_weights", "judged")

_NOISE = 0.05
"""Ridge on the weights, in squared severities an image."""


def judged(severities: Matrix, quality: Matrix) -> Matrix:
    """Return N x 3: the strongest of N x K severities, the quality limited to 0.6 .. 4.6, and 1.

    >>> judged(np.array([[0.5, 2.0, 1.0]]), np.array([5.0])).tolist()
    [[2.0, 4.6, 1.0]]
    """
    return np.column_stack([severities.max(axis=1), np.clip(quality, 0.6, 4.6), np.ones(len(severities))])


def grades(severities: Matrix, quality: Matrix, weights: Matrix) -> Matrix:
    """Return N x K severities whose strongest is the weighted sum of what both judges say; others are at most that.

    >>> grades(np.array([[0.5, 2.0, 1.8]]), np.array([3.0]), np.array([0.5, -0.2, 1.2])).tolist()
    [[0.5, 1.6, 1.6]]
    """
    strength = np.clip(judged(severities, quality) @ weights, 0.0, 4.0)[:, None]
    graded = np.minimum(severities, strength)
    rows, first = np.arange(len(severities)), severities.argmax(axis=1)
    # Where no detector sees anything there is no strongest: nothing is named.
    graded[rows, first] = np.where(severities[rows, first] > 0, strength[:, 0], 0.0)
    return np.asarray(graded)


def grading_weights(severities: Matrix, quality: Matrix, truth: Matrix) -> Matrix:
    """Fit the three weights by least squares on N images that neither judge was fitted on; `truth`: N severities."""
    known = judged(severities, quality)
    return np.asarray(np.linalg.solve(known.T @ known + _NOISE * np.eye(3), known.T @ truth))
