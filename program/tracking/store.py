"""The MLflow store that runs are written into: a server, or the local sqlite file."""

import contextlib
import hashlib
import json
import logging
import os
import platform
import re
import shlex
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from program.common.cli import as_started
from program.common.errors import InputError
from program.common.files import path_lock, place_of, remove_database
from program.common.keys import redact, use_keys
from program.common.settings import load_settings

if TYPE_CHECKING:
    from mlflow import MlflowClient

_ANOTHER = "set MLFLOW_TRACKING_URI or the mlruns folder"
_PROCESS_TAG = "agentic_iqa.process"
_OPENED = "SELECT file FROM pragma_database_list"
_LIST = "agentic-iqa"
_COLUMNS = {
    "attributes.`Run Name`": 225, "runDateAndNestInfo": 45, "tags.`agreement`": 225, "tags.`gain`": 178,
    "params.`chosen`": 85, "params.`fusion`": 205, "params.`model`": 140,
}  # fmt: skip
_VIEW = {
    "selectedColumns": [column for column in _COLUMNS if "`" in column],
    "columnOrder": [*_COLUMNS], "columnWidths": _COLUMNS,
    "orderByKey": "metrics.`srcc`", "orderByAsc": False,
    "searchFilter": "tags.command != 'test'",
}  # fmt: skip
"""What the list of runs shows at the address that commands print. MLflow's own list shows no figure."""
_ADDRESSES = (
    ("experiments", "artifact_location"), ("runs", "artifact_uri"), ("logged_models", "artifact_location"),
    ("model_versions", "source"), ("model_versions", "storage_location"), ("trace_tags", "value"),
)  # fmt: skip
"""Where MLflow's database holds addresses of artifacts, which are absolute."""

logger = logging.getLogger(__name__)


def dataset_name(data: str) -> str:
    """Return a dataset's own name: that of its manifest, or of the folder of a manifest.jsonl."""
    path = Path(data)
    own = path.resolve().parent.name if path.name == "manifest.jsonl" else path.name.removesuffix(".jsonl")
    return own or "images"


def experiment_name(data: str) -> str:
    """Return a dataset's experiment: MLFLOW_EXPERIMENT_NAME, else its own name."""
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or dataset_name(data)


def open_client(mlruns_dir: Path) -> "tuple[MlflowClient, str]":
    """Return a client of the store that exists, and its address; nothing is created. InputError where there is none."""
    folder = mlruns_dir.resolve()
    uri = os.environ.get("MLFLOW_TRACKING_URI") or _own_store(folder)
    if uri.startswith("sqlite:") and not _database_file(uri).is_file():
        raise InputError(f"MLflow store {redact(uri)!r}: does not exist; {_ANOTHER}")
    use_keys(["MLFLOW_TRACKING_TOKEN"])
    try:
        if uri.startswith("sqlite:"):
            _follow_move(folder)
        _import_quietly()
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=uri), uri
    except Exception as error:  # border: as below
        raise _unopened(uri, error) from error


def reason(error: Exception) -> str:
    """Return what an error of MLflow says, in one short line."""
    text = " ".join(str(error).split())
    # Of urllib3's account of its retries only what the system said is of use.
    said = re.search(r"Max retries exceeded.*\[Errno -?\d+\] ([\w ]+)", text)
    return said[1] if said else redact(text)[:200]


def _unopened(uri: str, error: Exception) -> InputError:
    """Return what to say of a store that cannot be opened, and what to do about it."""
    mend = "start that server, or unset MLFLOW_TRACKING_URI"
    if uri.startswith("sqlite:"):
        mend = f"{_ANOTHER} to another one"
    elif uri.startswith("file:") or "://" not in uri:  # a folder of files, as MLflow wrote before 3
        source = shlex.quote(str(place_of(uri)))
        mend = f"mlflow migrate-filestore --source {source} --target sqlite:///mlflow.db makes a database of it"
    return InputError(f"MLflow store {redact(uri)!r} cannot be opened ({reason(error)}); {mend}")


def page_of(uri: str) -> str:
    """Return the address of a server's pages, without the user and password that its store may be named with.

    >>> page_of("https://me:word@mlflow.example/team/")
    'https://mlflow.example/team'
    """
    scheme, _, rest = uri.rstrip("/").partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def runs_url(server: str, experiment_id: str) -> str:
    """Return the page with the list of an experiment's runs; MLflow's front page shows chat traces instead."""
    return f"{server}/#/experiments/{experiment_id}/runs?viewStateShareKey={_LIST}"


class Store:
    """A store that is open for one experiment: the environment's MLFLOW_TRACKING_URI, else sqlite inside `mlruns_dir`.

    Raises InputError where it cannot be opened.
    """

    def __init__(self, mlruns_dir: Path, experiment: str) -> None:
        self._folder = mlruns_dir.resolve()
        self.tracking_uri = os.environ.get("MLFLOW_TRACKING_URI") or _own_store(self._folder)
        self.experiment = experiment
        self.remote = not self.tracking_uri.startswith("sqlite:")
        try:
            if not self.remote:
                self._folder.mkdir(parents=True, exist_ok=True)
                _make_database(_database_file(self.tracking_uri), self._folder / "artifacts")
            self.client, _ = open_client(self._folder)
            self.experiment_id = self._open_experiment()
            self._fail_abandoned_runs()
        except InputError:
            raise
        except Exception as error:  # border: MLflow, SQLAlchemy and the network each raise their own kinds
            raise _unopened(self.tracking_uri, error) from error

    def create_run(self, name: str, tags: Mapping[str, str]) -> str:
        """Create a run and return its id."""
        source = {"mlflow.source.name": "agentic-iqa", "mlflow.source.type": "LOCAL"}
        all_tags = {**source, **tags, _PROCESS_TAG: _process()}
        return str(self.client.create_run(self.experiment_id, run_name=name, tags=all_tags).info.run_id)

    @property
    def ui_hint(self) -> str:
        """The command that opens the list of runs in a browser, or its page on the server."""
        if self.tracking_uri.startswith("http"):
            return runs_url(page_of(self.tracking_uri), self.experiment_id)
        usual = self._folder == load_settings().mlruns_dir.resolve()
        return as_started(f"python -m program.runs{'' if usual else ' ' + shlex.quote(os.path.relpath(self._folder))}")

    def _open_experiment(self) -> str:
        experiment = self.client.get_experiment_by_name(self.experiment)
        if experiment is None:
            # Without a location of its own MLflow would write artifacts into the current folder.
            location = (self._folder / "artifacts").as_uri() if not self.remote else None
            try:
                self.client.create_experiment(self.experiment, artifact_location=location)
            except Exception:
                if self.client.get_experiment_by_name(self.experiment) is None:  # else another process was faster
                    raise
            experiment = self.client.get_experiment_by_name(self.experiment)
        if experiment.lifecycle_stage == "deleted":
            self.client.restore_experiment(experiment.experiment_id)
        tag, view = f"mlflow.sharedViewState.{_LIST}", json.dumps(_VIEW)
        if experiment.tags.get(tag) != view:
            self.client.set_experiment_tag(experiment.experiment_id, tag, view)
        return str(experiment.experiment_id)

    def _fail_abandoned_runs(self) -> None:
        if self.remote or os.name == "nt":  # pids mean nothing elsewhere; os.kill(pid, 0) kills on Windows
            return
        for run in self.client.search_runs([self.experiment_id], "attributes.status = 'RUNNING'"):
            if not _is_running(run.data.tags.get(_PROCESS_TAG, "")):
                logger.warning(
                    "the earlier run %r was stopped before it ended; MLflow lists it as failed", run.info.run_name
                )
                self.client.set_terminated(run.info.run_id, "FAILED")


def _own_store(folder: Path) -> str:
    """Return the address of a folder's store. InputError where it would name another file, as with a question mark."""
    file = folder / "mlflow.db"
    uri = f"sqlite:///{file.as_posix()}"
    if _database_file(uri) != file:
        fault = "an address reads the ?, # or % in its name otherwise"
        raise InputError(f"mlruns folder {str(folder)!r}: {fault}; {_ANOTHER} to another one")
    return uri


def _database_file(uri: str) -> Path:
    from sqlalchemy import make_url

    return Path(make_url(uri).database or "")


def _make_database(path: Path, artifacts: Path) -> None:
    """Make MLflow's database where there is none.

    MLflow does so in many steps that take seconds, and cannot go on after half of them: it works on a file of another
    name, which takes this one at the end. Until then nothing waits for the disk.
    """
    if path.is_file():
        return
    with path_lock(path.with_name(f"{path.name}.lock")):
        if path.is_file():  # another process was faster
            return
        partial = path.with_name(f"{path.name}.partial")
        remove_database(partial)
        _import_quietly()
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
        from sqlalchemy import Engine, event

        def hasten(connection: Any, _record: object) -> None:
            if isinstance(connection, sqlite3.Connection) and connection.execute(_OPENED).fetchone() == (str(partial),):
                connection.executescript("PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY")

        event.listen(Engine, "connect", hasten)
        try:
            SqlAlchemyStore(f"sqlite:///{partial.as_posix()}", artifacts.as_uri()).engine.dispose()
        finally:
            event.remove(Engine, "connect", hasten)
        with partial.open("rb+") as made:
            os.fsync(made.fileno())
        partial.rename(path)


def _follow_move(folder: Path) -> None:
    """Write the addresses of artifacts again where a store's folder was moved or copied since MLflow wrote them."""
    new, database = (folder / "artifacts").as_uri(), folder / "mlflow.db"
    if not database.is_file():
        return
    with contextlib.closing(sqlite3.connect(database)) as opened, opened, contextlib.suppress(sqlite3.OperationalError):
        # The experiment that MLflow makes with every store tells where that was.
        first = opened.execute("SELECT artifact_location FROM experiments WHERE experiment_id = 0").fetchone()
        old, _, number = (first[0] if first else "").rpartition("/")
        if number != "0" or not old.endswith("/artifacts") or old == new:
            return
        for table, column in _ADDRESSES:
            opened.execute(
                f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) IN (?, ?)",  # noqa: S608 - our own names
                (new, len(old) + 1, len(old) + 1, old, f"{old}/"),
            )


def _import_quietly() -> None:
    """Import MLflow, without telemetry, long waits for dead servers or a first-time flood of messages."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    # It prints an address with the password, and among what --json prints.
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    # It writes so many spans at a time: five, its default, cost as much as judging what they show.
    os.environ.setdefault("MLFLOW_ASYNC_TRACE_LOGGING_MAX_SPAN_BATCH_SIZE", "200")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    import mlflow  # noqa: F401  (importing configures MLflow's loggers, so they are hushed after it)

    logging.getLogger("alembic").setLevel(logging.WARNING)
    # It tells of every flush at the end of a process.
    logging.getLogger("mlflow.tracing.export.async_export_queue").setLevel(logging.WARNING)
    # Whoever uses the store tells in one line what it says in a hundred.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    # After Ctrl-C in the middle of a query it shows how a cursor could not be closed, which is of no use.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)


def short_hash(text: str) -> str:
    """Return the first 8 hex digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _process() -> str:
    """Return a name for this machine and process."""
    return f"{short_hash(platform.node())}:{os.getpid()}"


def _is_running(process: str) -> bool:
    """Return whether a process with such a name may still run; one of another machine may."""
    machine, _, pid = process.partition(":")
    if machine != short_hash(platform.node()) or not pid.isdigit():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # alive, but somebody else's
    return True
