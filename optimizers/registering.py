"""A compiled program enters MLflow's model registry, and becomes its champion only by beating the one before."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy

from optimizers.job import Job
from optimizers.report import Compiled
from program.agent.loop import AgenticIQA
from program.agent.saving import load
from program.common.errors import InputError
from program.common.settings import Settings
from program.evaluation.figures import compare
from program.evaluation.intervals import Figure
from program.evaluation.record import EvaluationRecord
from program.evaluation.runner import run_samples
from program.service.columns import interface
from program.tracking import RunHandle, Tracker
from program.tracking.models import Version, find_champion, promote, register

__all__ = ("Registered", "register_compiled", "register_result", "verdict")


@dataclass(frozen=True)
class Registered:
    """A new version of a registered program, and whether it leads now."""

    version: Version
    champion: bool
    why: str
    """One line."""

    @property
    def line(self) -> str:
        """What is printed."""
        leads = "champion" if self.champion else "not the champion"
        return f"registered        {self.version.uri}  ({leads}: {self.why})"

    def summary(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {"name": self.version.name, "version": self.version.version, "champion": self.champion, "why": self.why}


def register_result(name: str, job: Job, result: Compiled, tracker: Tracker, run: RunHandle) -> Registered:
    """Register what a compile ended with; the present champion is judged on the same test samples."""

    def judge(program: AgenticIQA) -> EvaluationRecord:
        with dspy.context(disable_history=True, trace=None):
            return run_samples(
                program, job.splits["test"], workers=job.settings.compile.workers, progress=False,
                seed=job.settings.seed, dataset=job.dataset, label="champion",
            )  # fmt: skip

    return register_compiled(name, job.out, result.compiled, job.settings, tracker=tracker, run=run, judge=judge)


def register_compiled(
    name: str,
    folder: Path,
    record: EvaluationRecord,
    settings: Settings,
    *,
    tracker: Tracker,
    run: RunHandle,
    judge: Callable[[AgenticIQA], EvaluationRecord],
) -> Registered:
    """Register the program of `folder`, whose test record is `record`, and promote it if it beats the champion.

    It beats it with a paired interval above zero, and no more failed samples.

    `judge` runs a program over the samples of `record`. The present champion is judged on them now, with the same
    settings and language models: figures of another day or model would not compare.
    """
    before = find_champion(tracker, name)
    version = register(tracker, run, folder, name, interface(), _tags(record))
    if before is None:
        promote(tracker, version)
        return Registered(version, True, "the first version of its name")
    try:
        rival = judge(load(before.uri, settings))
    except InputError as error:
        return Registered(version, False, f"the champion, version {before.version}, could not be judged: {error}")
    if record.failed > rival.failed:
        # Only samples that both answered can be paired: a program must not lead by failing on the hard ones.
        why = f"fails on {record.failed} of {len(record.rows)} test samples, version {before.version} on {rival.failed}"
        return Registered(version, False, why)
    better, why = verdict(compare(rival.rows, record.rows, seed=settings.seed))
    if better:
        promote(tracker, version)
    return Registered(version, better, f"{why} against version {before.version}")


def verdict(differences: Mapping[str, Figure]) -> tuple[bool, str]:
    """Return whether paired differences (new minus old) show a better program, and the figure that says so.

    SRCC decides where there are scores, else accuracy; its 95 % interval must lie above zero.
    """
    metric = "srcc" if "srcc" in differences else "accuracy"
    figure = differences.get(metric)
    if figure is None or figure.value is None:
        return False, "no test sample that both answered"
    if figure.low is None or figure.high is None:
        return False, f"test {metric} {figure.value:+.3f} with no interval (n = {figure.n})"
    shown = f"test {metric} {figure.value:+.3f} [{figure.low:+.3f}, {figure.high:+.3f}], n = {figure.n}"
    return figure.low > 0, shown


def _tags(record: EvaluationRecord) -> dict[str, str]:
    data = record.dataset
    tags = {"data": data.name, "manifest_sha256": data.manifest_sha256 or "", "split": data.split or "all"}
    for name, figure in record.figures.items():
        if figure.value is not None:
            tags[f"test_{name}"] = f"{figure.value:.4f}"
    return tags
