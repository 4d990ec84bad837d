"""How strong the strongest distortion is, by two judges: the detectors, and the quality regression.

Both say how far people would put an image below an undistorted one. The detectors know kinds but read few features;
the regression reads all of them but knows no kinds. Their errors differ, so together they miss less: on photographs
left out of the fit, and on natural photographs, whose scores the detectors alone hardly follow. Pure numpy.
"""

import numpy as np

from program.lms.perceptual.regression import Matrix

__all__ = ("GRADING", "WORST_AND_BEST", "grades")

GRADING = {"nr": (1.0, -0.4, 1.24), "fr": (0.5, -0.5, 2.3)}
"""Weights of the strongest severity, of the quality (0.6 .. 4.6), and a constant. Without a reference: a severity is
0.4 higher for each level that the quality is below 3.1; with one: the mean of the severity and of how far the quality
is below 4.6, an undistorted image's. Chosen by the words' kappa on the quickstart's validation photographs, on its
train photographs left out of detectors and regression in turn, and on distorted CLIVE validation images (nr) or train
images (fr), on which neither was fitted: the kappa is within 0.02 for weights of 0.3 to 0.5. Least squares on the
photographs left out gives words too strong on images of poor quality."""


WORST_AND_BEST = (0.6, 4.6)
"""What a quality beside an original may be: 4.6 is `tables.UNDISTORTED`."""


def grades(severities: Matrix, quality: Matrix, weights: Matrix) -> Matrix:
    """Return N x K severities whose strongest is the weighted sum of what both judges say; others are at most that.

    >>> grades(np.array([[0.5, 2.0, 1.8]]), np.array([3.0]), np.array([0.5, -0.2, 1.2])).tolist()
    [[0.5, 1.6, 1.6]]
    """
    judged = np.column_stack([severities.max(axis=1), np.clip(quality, *WORST_AND_BEST), np.ones(len(severities))])
    strength = np.clip(judged @ weights, 0.0, 4.0)[:, None]
    graded = np.minimum(severities, strength)
    rows, first = np.arange(len(severities)), severities.argmax(axis=1)
    # Where no detector sees anything there is no strongest: nothing is named.
    graded[rows, first] = np.where(severities[rows, first] > 0, strength[:, 0], 0.0)
    return np.asarray(graded)
