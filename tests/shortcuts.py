"""What a test leaves out of a command to spare its time; each is a fixture of its own name, and a scenario names it."""

from pathlib import Path

import pytest


def undrawn(patch: pytest.MonkeyPatch) -> None:
    """Make charts, and save empty files in their place: drawing is half of what a small run takes."""
    from matplotlib.figure import Figure

    def saved(self, file, **given):
        content = b"<svg/>" if given.get("format") == "svg" else b""
        file.write(content) if hasattr(file, "write") else Path(file).write_bytes(content)

    patch.setattr(Figure, "savefig", saved)


def coarse(patch: pytest.MonkeyPatch) -> None:
    """Draw a tenth of the resamples for intervals of fitted curves, which are half of what a small evaluation takes."""
    patch.setattr("program.evaluation.intervals._SLOW_RESAMPLES", 50)


def unlogged(patch: pytest.MonkeyPatch) -> None:
    """Put neither the program's files nor its prompts into MLflow, which is a third of what a small compile takes."""
    patch.setattr("optimizers.report.log_program", lambda run, folder, sha256, *_: run.link_model(sha256))
    patch.setattr("optimizers.report.prompts", lambda before, after, asked: {})


def untracked(patch: pytest.MonkeyPatch) -> None:
    """Hand MLflow nothing, and make no store: that is a third of what a small compile takes."""
    from program.tracking.runs import RunHandle
    from program.tracking.store import Store

    def opened(self, mlruns_dir, experiment):
        self._folder, self.tracking_uri, self.remote = mlruns_dir.resolve(), "sqlite:///untracked", False
        self.experiment, self.client, self.experiment_id = experiment, None, "0"

    patch.setattr(Store, "__init__", opened)
    patch.setattr(RunHandle, "_write", lambda self, action: "0" * 32)
