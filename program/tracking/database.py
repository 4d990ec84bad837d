"""MLflow's own sqlite database: making it whole or not at all, and opening it quietly."""

import contextlib
import logging
import os
import sqlite3
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from program.common.files import locked, remove_database

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ("client_of", "database_file", "is_made", "make_database")

logger = logging.getLogger(__name__)


def database_file(uri: str) -> Path:
    """Return the file that an address beginning with sqlite:/// names."""
    return Path(uri.removeprefix("sqlite:///").partition("?")[0])


def make_database(path: Path, artifacts: Path) -> None:
    """Make MLflow's database where there is none.

    MLflow does so in many steps that take seconds, and cannot go on after half of them: it works on a file of another
    name, which takes this one at the end. A database that was left unfinished under this name is moved aside.
    """
    if is_made(path):
        return
    with locked(path.with_name(f"{path.name}.lock")):
        if is_made(path):  # by another process meanwhile
            return
        if path.is_file():
            aside = path.with_name(f"{path.name}.unfinished-{uuid.uuid4().hex[:8]}")
            path.rename(aside)
            logger.warning("MLflow store %s was left unfinished, without any run: moved to %s", path.name, aside.name)
        partial = path.with_name(f"{path.name}.partial")
        remove_database(path)
        remove_database(partial)
        _import_quietly()
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        SqlAlchemyStore(f"sqlite:///{partial.as_posix()}", artifacts.as_uri()).engine.dispose()
        partial.rename(path)


def is_made(path: Path) -> bool:
    """Return whether a database is there that is more than what MLflow's unfinished making leaves.

    The last step writes the first experiment; until then there are rows only in tables that MLflow fills itself.
    Raises sqlite3.Error where the file cannot be read.
    """
    if not path.is_file():
        return False
    with contextlib.closing(sqlite3.connect(path, timeout=20)) as database:
        tables = {str(name) for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        own = {name for name in tables if name.startswith("alembic_") or name == "workspaces"}
        return any(database.execute(f'SELECT 1 FROM "{name}" LIMIT 1').fetchone() for name in tables - own)  # noqa: S608


def client_of(tracking_uri: str) -> "MlflowClient":
    """Return a client, without telemetry, long waits for dead servers or a first-time flood of messages."""
    _import_quietly()
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=tracking_uri)


def _import_quietly() -> None:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    import mlflow  # noqa: F401  (importing configures MLflow's loggers, so they are hushed after it)

    for noisy in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
