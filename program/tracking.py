"""MLflow, and nothing else in the project, is spoken to here: runs with params, figures, tables and files.

The local store is sqlite at `<mlruns>/mlflow.db` with artifacts under `<mlruns>/artifacts`; nothing is written
elsewhere. MLflow is imported when a Tracker is made, not before: it takes over a second.
"""

import contextlib
import hashlib
import logging
import math
import os
import platform
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from program.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from program.evaluation.intervals import Figure

__all__ = ("RunHandle", "Tracker", "annotate_trace")

_PROCESS_TAG = "agentic_iqa.process"

_MAX_PARAM = 5000
"""MLflow refuses values of more than 6000 characters."""

_BATCH = 100
"""MLflow refuses more params in one request."""

logger = logging.getLogger(__name__)


def annotate_trace(facts: Mapping[str, Any]) -> None:
    """Write facts as attributes on the MLflow span that is being recorded, if there is one.

    Costs nothing where nobody traces: MLflow is not imported for it.
    """
    if "mlflow" not in sys.modules:
        return
    import mlflow

    span = mlflow.get_current_active_span()
    if span is not None:
        span.set_attributes({f"agentic_iqa.{name}": value for name, value in facts.items() if value is not None})


class RunHandle:
    """One MLflow run that is being written; made by `Tracker.run`."""

    def __init__(self, client: "MlflowClient", run: "Run", ui_hint: str) -> None:
        self._client = client
        self.run_id: str = run.info.run_id
        self.ui_hint = ui_hint
        """The command that opens the store in a browser, or the server's address."""

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log what was chosen; nested mappings become dotted names. A param cannot be changed later."""
        from mlflow.entities import Param

        flat = [Param(key, str(value)[:_MAX_PARAM]) for key, value in _flat(params)]
        for start in range(0, len(flat), _BATCH):
            self._client.log_batch(self.run_id, params=flat[start : start + _BATCH])

    def log_metrics(self, metrics: Mapping[str, float | None], *, step: int = 0) -> None:
        """Log numbers; undefined ones (None, nan) are left out."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        known = [(name, value) for name, value in metrics.items() if value is not None and math.isfinite(value)]
        self._client.log_batch(self.run_id, metrics=[Metric(name, float(value), now, step) for name, value in known])

    def log_figure(self, name: str, figure: "Figure | None", *, step: int = 0) -> None:
        """Log a figure as metrics `name`, `name_low` and `name_high`; None logs nothing."""
        if figure is not None:
            ends = {name: figure.value, f"{name}_low": figure.low, f"{name}_high": figure.high}
            self.log_metrics(ends, step=step)

    def log_table(self, rows: Sequence[Mapping[str, Any]], name: str = "samples") -> None:
        """Log rows as the table `name`.json, which the MLflow UI shows and compares between runs."""
        columns = dict.fromkeys(key for row in rows for key in row)
        if columns:
            data = {column: [row.get(column) for row in rows] for column in columns}
            self._client.log_table(self.run_id, data, f"{name}.json")

    def log_plot(self, plot: "Plot", name: str) -> None:
        """Log a matplotlib figure as the picture `name`.png."""
        self._client.log_figure(self.run_id, plot, f"{name}.png", save_kwargs={"dpi": 150, "bbox_inches": "tight"})

    def log_json(self, content: Mapping[str, Any], name: str) -> None:
        """Log a JSON object as `name`.json."""
        self._client.log_dict(self.run_id, dict(content), f"{name}.json")

    def log_file(self, path: Path, folder: str | None = None) -> None:
        """Log a copy of one file, under `folder` among the artifacts."""
        self._client.log_artifact(self.run_id, str(path), folder)

    def log_folder(self, path: Path, folder: str | None = None) -> None:
        """Log a copy of a folder's content, under `folder` (default: its own name)."""
        self._client.log_artifacts(self.run_id, str(path), folder or path.name)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags, overwriting those of the same name."""
        for key, value in tags.items():
            self._client.set_tag(self.run_id, key, str(value)[:_MAX_PARAM])


class Tracker:
    """An MLflow experiment to write runs into.

    The store is `tracking_uri`, else the environment's MLFLOW_TRACKING_URI, else sqlite inside `mlruns_dir`.
    Raises InputError where the store cannot be opened.
    """

    def __init__(self, mlruns_dir: Path, experiment: str, tracking_uri: str | None = None) -> None:
        self._folder = mlruns_dir.resolve()
        own_store = f"sqlite:///{(self._folder / 'mlflow.db').as_posix()}"
        self.tracking_uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or own_store
        self.experiment = experiment
        self._local = self.tracking_uri.startswith("sqlite:")
        try:
            if self._local:
                self._folder.mkdir(parents=True, exist_ok=True)
            self._client = _quiet_client(self.tracking_uri)
            self._experiment_id = self._open_experiment()
        except Exception as error:  # MLflow, SQLAlchemy and the network each raise their own kinds
            reason = " ".join(str(error).split())[:200]
            raise InputError(
                f"MLflow store {self.tracking_uri!r} cannot be opened ({reason}); "
                "start that server, or set MLFLOW_TRACKING_URI or the mlruns folder to another one"
            ) from error
        self._fail_abandoned_runs()

    @property
    def ui_hint(self) -> str:
        """The command that opens the store in a browser, or the server's address."""
        if not self._local:
            return self.tracking_uri
        uri = self.tracking_uri
        with contextlib.suppress(ValueError):
            uri = f"sqlite:///{Path(uri.removeprefix('sqlite:///')).relative_to(Path.cwd()).as_posix()}"
        # MLflow's job runner looks for model prices on the network at start; without one the server never comes up.
        offline = "" if os.name == "nt" else "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false "
        return f"{offline}mlflow ui --backend-store-uri {shlex.quote(uri)}"

    @property
    def runs_url(self) -> str:
        """The page with the table of runs, once the UI is up; MLflow's front page shows chat traces instead."""
        server = self.tracking_uri.rstrip("/") if self.tracking_uri.startswith("http") else "http://127.0.0.1:5000"
        return f"{server}/#/experiments/{self._experiment_id}/runs"

    @contextlib.contextmanager
    def run(self, name: str, tags: Mapping[str, str] | None = None) -> Iterator[RunHandle]:
        """Yield a handle on a new run; it ends FINISHED, or FAILED when the block is left by any exception.

        SIGTERM counts as one. A run whose process was killed outright is marked FAILED by the next Tracker.
        """
        shown = {"mlflow.source.name": "agentic-iqa", "mlflow.source.type": "LOCAL"}
        own = {**shown, **(tags or {}), _PROCESS_TAG: _process_name(os.getpid())}
        run = self._client.create_run(self._experiment_id, run_name=name, tags=own)
        status = "FAILED"
        try:
            with _sigterm_as_exit():
                yield RunHandle(self._client, run, self.ui_hint)
            status = "FINISHED"
        finally:
            self._client.set_terminated(run.info.run_id, status)

    def _open_experiment(self) -> str:
        found = self._client.get_experiment_by_name(self.experiment)
        if found is not None:
            if found.lifecycle_stage == "deleted":
                self._client.restore_experiment(found.experiment_id)
            return str(found.experiment_id)
        # Without a location of its own MLflow would write artifacts into the current folder.
        location = (self._folder / "artifacts").as_uri() if self._local else None
        try:
            return str(self._client.create_experiment(self.experiment, artifact_location=location))
        except Exception:
            found = self._client.get_experiment_by_name(self.experiment)  # another process was faster
            if found is None:
                raise
            return str(found.experiment_id)

    def _fail_abandoned_runs(self) -> None:
        if not self._local or os.name == "nt":  # pids mean nothing elsewhere; os.kill(pid, 0) kills on Windows
            return
        for run in self._client.search_runs([self._experiment_id], "attributes.status = 'RUNNING'"):
            process = run.data.tags.get(_PROCESS_TAG, "")
            machine, _, rest = process.partition(":")
            pid = rest.partition(":")[0]
            if machine == _machine() and pid.isdigit() and _process_name(int(pid)) != process:
                logger.warning("run %s was killed before it ended; marked as FAILED", run.info.run_name)
                self._client.set_terminated(run.info.run_id, "FAILED")


def _quiet_client(tracking_uri: str) -> "MlflowClient":
    """Return a client, without telemetry, long waits for dead servers or a first-time flood of messages."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    from mlflow import MlflowClient  # importing configures MLflow's loggers, so they are hushed after it

    for noisy in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=tracking_uri)


@contextlib.contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """Turn SIGTERM into SystemExit inside the block, unless somebody handles it already."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    if ours:
        signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _machine() -> str:
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _process_name(pid: int) -> str:
    """Return machine, pid and start time of a process, so that a reused pid is told apart; "" for a dead one."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass  # alive, but somebody else's
    started = ""
    with contextlib.suppress(OSError, IndexError):
        started = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    return f"{_machine()}:{pid}:{started}"


def _flat(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in params.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
