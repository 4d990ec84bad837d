"""Scores from votes between pairs."""

from collections.abc import Mapping

import numpy as np

_PRIOR_SD = 2.0
"""Of strengths in logits: an image that won every vote stays finite. Scores of LIVE In the Wild spread by 1.3."""

_POINTS_PER_LOGIT = 0.6
"""By Thurstone's case V, one logit is sqrt(2) s / 1.702 points; single opinions of LIVE In the Wild spread by s = 0.77
points of 1..5 on average."""


def scores_of_votes(won: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the score on 1..5 of each name that has a vote; `won[a][b]` is the number of votes for a over b.

    It is `1 + 4 / (1 + exp(-0.6 s))` of the strength s, held together by a prior.
    """
    strengths = fit_strengths(won, prior_sd=_PRIOR_SD)
    return {name: round(float(1 + 4 / (1 + np.exp(-_POINTS_PER_LOGIT * s))), 4) for name, s in strengths.items()}


def fit_strengths(won: Mapping[str, Mapping[str, float]], *, prior_sd: float = float("inf")) -> dict[str, float]:
    """Return the Bradley-Terry strength of each name that has a vote, in logits, of mean 0: P(a beats b) = s(a - b).

    `won[a][b]` is the number of votes for a over b, s the logistic function; a tie is half a vote for each. With
    `prior_sd` strengths have a normal prior around 0, without one a name that won every vote has no finite strength.
    Source: Bradley & Terry 1952, Biometrika 39; as a logistic regression Agresti 2013, 11.6.

    >>> {name: round(s, 2) for name, s in fit_strengths({"a": {"b": 3}, "b": {"a": 1}}).items()}  # ln 3 apart
    {'a': 0.55, 'b': -0.55}
    """
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression

    votes = [(a, b, n) for a, row in sorted(won.items()) for b, n in sorted(row.items()) if n]
    if not votes:
        return {}
    place = {name: i for i, name in enumerate(sorted({name for *ends, _ in votes for name in ends}))}
    columns = np.array([[place[a], place[b]] for a, b, _ in votes]).ravel()
    signs, starts = np.tile([1.0, -1.0], len(votes)), np.arange(0, columns.size + 1, 2)
    design = sparse.csr_matrix((signs, columns, starts), shape=(len(votes), len(place)))
    # Each vote stands twice, mirrored, with half its weight: a regression asks for both outcomes.
    model = LogisticRegression(C=prior_sd**2, fit_intercept=False, tol=1e-8, max_iter=10_000)
    outcomes, weights = np.repeat([1, 0], len(votes)), np.tile([n / 2 for *_, n in votes], 2)
    strengths = model.fit(sparse.vstack([design, -design]), outcomes, weights).coef_[0]
    return {name: float(strengths[i] - strengths.mean()) for name, i in place.items()}
