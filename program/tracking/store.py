"""The MLflow store that runs are written into: a server or the local sqlite file, and the one instead of the other."""

import contextlib
import hashlib
import logging
import os
import platform
import re
import shlex
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from program.errors import InputError
from program.tracking.runs import RunHandle

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ("Tracker", "experiment_name", "open_client", "short_hash")

_PROCESS_TAG = "agentic_iqa.process"

logger = logging.getLogger(__name__)


def experiment_name(data: str) -> str:
    """Return the experiment that runs on a dataset belong to: MLFLOW_EXPERIMENT_NAME, else the dataset's own name.

    A manifest named manifest.jsonl is called by its folder.

    >>> experiment_name("quickstart"), experiment_name("scores/clive/manifest.jsonl"), experiment_name("mine.jsonl")
    ('quickstart', 'clive', 'mine')
    """
    path = Path(data)
    own = path.resolve().parent.name if path.name == "manifest.jsonl" else path.name.removesuffix(".jsonl")
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or own or "images"


def open_client(mlruns_dir: Path) -> "tuple[MlflowClient, str]":
    """Return a client of the store that exists, and its address; nothing is created. InputError where there is none."""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or _own_store(mlruns_dir.resolve())
    if uri.startswith("sqlite:") and not Path(uri.removeprefix("sqlite:///")).is_file():
        raise InputError(f"MLflow store {uri!r}: does not exist; set MLFLOW_TRACKING_URI or the mlruns folder")
    return _quiet_client(uri), uri


class Tracker:
    """An MLflow experiment to write runs into.

    The store is `tracking_uri`, else the environment's MLFLOW_TRACKING_URI, else sqlite inside `mlruns_dir`.
    A server that does not answer, at the start or later, is said once, and the runs go to the local store instead.
    Raises InputError where the local store cannot be opened.
    """

    def __init__(self, mlruns_dir: Path, experiment: str, tracking_uri: str | None = None) -> None:
        self._folder = mlruns_dir.resolve()
        self.tracking_uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or _own_store(self._folder)
        self.experiment = experiment
        try:
            self._open()
        except Exception as error:  # border: MLflow, SQLAlchemy and the network each raise their own kinds
            if not self.remote:
                raise InputError(
                    f"MLflow store {self.tracking_uri!r} cannot be opened ({_reason(error)}); "
                    "set MLFLOW_TRACKING_URI or the mlruns folder to another one"
                ) from error
            self.fall_back(error)

    @property
    def remote(self) -> bool:
        """Whether the store in use is a server."""
        return not self.tracking_uri.startswith("sqlite:")

    @property
    def client(self) -> "MlflowClient":
        """MLflow's client of the store in use."""
        return self._client

    @property
    def experiment_id(self) -> str:
        """The experiment's id in the store in use."""
        return self._experiment_id

    def fall_back(self, error: Exception) -> None:
        """Use the local store from now on, and say so; raises InputError where that cannot be opened either."""
        server, self.tracking_uri = self.tracking_uri, _own_store(self._folder)
        logger.warning(
            "MLflow server %r does not answer (%s); the run is kept in the local store: %s",
            server, _reason(error), self.ui_hint,
        )  # fmt: skip
        try:
            self._open()
        except Exception as second:  # border: as above
            raise InputError(
                f"MLflow store {self.tracking_uri!r} cannot be opened ({_reason(second)}), nor the server {server!r}; "
                "start that server, or set the mlruns folder to another one"
            ) from second

    def create_run(self, name: str, tags: Mapping[str, str]) -> str:
        """Create a run and return its id."""
        shown = {"mlflow.source.name": "agentic-iqa", "mlflow.source.type": "LOCAL"}
        own = {**shown, **tags, _PROCESS_TAG: _process_name(os.getpid())}
        return str(self._client.create_run(self._experiment_id, run_name=name, tags=own).info.run_id)

    @property
    def ui_hint(self) -> str:
        """The command that opens the store in a browser, or the server's address."""
        if self.remote:
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
        handle = RunHandle(self, name, tags or {})
        status = "FAILED"
        try:
            with _sigterm_as_exit():
                yield handle
            status = "FINISHED"
        finally:
            handle.terminate(status)

    def _open(self) -> None:
        if not self.remote:
            self._folder.mkdir(parents=True, exist_ok=True)
        self._client = _quiet_client(self.tracking_uri)
        self._experiment_id = self._open_experiment()
        self._fail_abandoned_runs()

    def _open_experiment(self) -> str:
        found = self._client.get_experiment_by_name(self.experiment)
        if found is not None:
            if found.lifecycle_stage == "deleted":
                self._client.restore_experiment(found.experiment_id)
            return str(found.experiment_id)
        # Without a location of its own MLflow would write artifacts into the current folder.
        location = (self._folder / "artifacts").as_uri() if not self.remote else None
        try:
            return str(self._client.create_experiment(self.experiment, artifact_location=location))
        except Exception:
            found = self._client.get_experiment_by_name(self.experiment)  # another process was faster
            if found is None:
                raise
            return str(found.experiment_id)

    def _fail_abandoned_runs(self) -> None:
        if self.remote or os.name == "nt":  # pids mean nothing elsewhere; os.kill(pid, 0) kills on Windows
            return
        for run in self._client.search_runs([self._experiment_id], "attributes.status = 'RUNNING'"):
            process = run.data.tags.get(_PROCESS_TAG, "")
            machine, _, rest = process.partition(":")
            pid = rest.partition(":")[0]
            if machine == _machine() and pid.isdigit() and _process_name(int(pid)) != process:
                logger.warning("run %s was killed before it ended; marked as FAILED", run.info.run_name)
                self._client.set_terminated(run.info.run_id, "FAILED")


def _own_store(folder: Path) -> str:
    return f"sqlite:///{(folder / 'mlflow.db').as_posix()}"


def _quiet_client(tracking_uri: str) -> "MlflowClient":
    """Return a client, without telemetry, long waits for dead servers or a first-time flood of messages."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    from mlflow import MlflowClient  # importing configures MLflow's loggers, so they are hushed after it

    for noisy in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=tracking_uri)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    # Of urllib3's account of its retries only what the system said is of use.
    said = re.search(r"Max retries exceeded.*\[Errno -?\d+\] ([\w ]+)", text)
    return said[1] if said else text[:200]


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


def short_hash(text: str) -> str:
    """Return the first 8 hex digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _machine() -> str:
    return short_hash(platform.node())


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
