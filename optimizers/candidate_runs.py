"""Each candidate of a compile as a run of MLflow, nested in the compile's own and written as it happens."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from optimizers.search import Candidate
from program.agent.taught import taught
from program.tracking import RunHandle, traced

__all__ = ("CandidateRuns",)


class CandidateRuns:
    """What every candidate was taught, and its figures: of the search at once, of validation when that ends.

    Without a run nothing is written.
    """

    def __init__(self, run: RunHandle | None = None) -> None:
        self._run = run
        self._runs: dict[str, RunHandle] = {}
        self._searched = 0

    def scored(self, candidate: Candidate, best: float) -> None:
        """Log the search score of a candidate, and the best so far, which is the next point of the run's curve."""
        if self._run is not None:
            score = candidate.search_score
            self._run.log_metrics({"search/score": score, "search/best_so_far": best}, step=self._searched)
            self._searched += 1
            self._of(self._run, candidate).log_metrics({"search/score": score})

    def judged(self, candidate: Candidate, figures: Mapping[str, float | None]) -> None:
        """Log the figures of a candidate on validation."""
        if self._run is not None:
            values = {f"validation/{name}": value for name, value in figures.items()}
            self._of(self._run, candidate).log_metrics(values)

    def traced(self, rate: float, expected: int) -> AbstractContextManager[None]:
        """Return a context in which a share of the assessments is recorded as traces of the compile's run."""
        return nullcontext() if self._run is None else traced(self._run, rate, expected)

    def chosen(self, name: str) -> None:
        """Mark the candidate that is recommended."""
        if name in self._runs:
            self._runs[name].set_tags({"chosen": "true"})

    def _of(self, parent: RunHandle, candidate: Candidate) -> RunHandle:
        if candidate.name not in self._runs:
            with parent.nested(candidate.name, {"command": "compile", "step": "candidate"}) as run:
                run.log_params(taught(candidate.program))
            self._runs[candidate.name] = run
        return self._runs[candidate.name]
