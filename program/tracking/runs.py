"""One MLflow run that is being written, with the runs nested in it.

What is written to a server is remembered until the run ends. If the server dies, the run and everything in it moves to
the local store, once, and goes on there.
"""

import contextlib
import json
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot
    from mlflow import MlflowClient

    from program.evaluation.intervals import Figure

__all__ = ("RunHandle", "Store")

_MAX_PARAM = 5000
"""MLflow refuses values of more than 6000 characters."""

_BATCH = 100
"""MLflow refuses more params in one request."""

_MAX_DIGEST = 36
"""MLflow refuses longer digests of datasets."""

_PARENT_TAG = "mlflow.parentRunId"


class Store(Protocol):
    """Where runs are created: a Tracker."""

    @property
    def ui_hint(self) -> str:
        """How to open the store in use."""
        ...

    @property
    def client(self) -> "MlflowClient":
        """The client of the store in use; another one after `fall_back`."""
        ...

    @property
    def remote(self) -> bool:
        """Whether the store in use is a server, which may die."""
        ...

    def create_run(self, name: str, tags: Mapping[str, str]) -> str:
        """Create a run in the store in use and return its id."""
        ...

    def fall_back(self, error: Exception) -> None:
        """Use the local store from now on, and say why."""
        ...


_Action = Callable[["MlflowClient", str], object]


class RunHandle:
    """One MLflow run that is being written; made by `Tracker.run` or `RunHandle.nested`."""

    def __init__(self, store: Store, name: str, tags: Mapping[str, str], parent: "RunHandle | None" = None) -> None:
        self._store, self._name, self._tags, self._parent = store, name, dict(tags), parent
        self._journal: list[_Action] = []
        self._children: list[RunHandle] = []
        self._spool: Path | None = None
        self.run_id = ""
        self._create()

    @property
    def ui_hint(self) -> str:
        """The command that opens the store in a browser, or the server's address."""
        return self._store.ui_hint

    @contextlib.contextmanager
    def nested(self, name: str, tags: Mapping[str, str] | None = None) -> "Iterator[RunHandle]":
        """Yield a handle on a run shown under this one, as for a candidate program of a compile."""
        child = RunHandle(self._store, name, tags or {}, parent=self)
        self._children.append(child)
        status = "FAILED"
        try:
            yield child
            status = "FINISHED"
        finally:
            child.terminate(status)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log what was chosen; nested mappings become dotted names. A param cannot be changed later."""
        from mlflow.entities import Param

        flat = [Param(key, str(value)[:_MAX_PARAM]) for key, value in _flat(params)]

        def write(client: "MlflowClient", run_id: str) -> None:
            for start in range(0, len(flat), _BATCH):
                client.log_batch(run_id, params=flat[start : start + _BATCH])

        self._write(write)

    def log_metrics(self, metrics: Mapping[str, float | None], *, step: int = 0) -> None:
        """Log numbers; undefined ones (None, nan) are left out."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        known = [
            Metric(name, float(value), now, step)
            for name, value in metrics.items()
            if value is not None and math.isfinite(value)
        ]
        if known:
            self._write(lambda client, run_id: client.log_batch(run_id, metrics=known))

    def log_figure(self, name: str, figure: "Figure | None", *, step: int = 0) -> None:
        """Log a figure as metrics `name`, `name_low` and `name_high`; None logs nothing."""
        self.log_figures({name: figure}, step=step)

    def log_figures(self, figures: "Mapping[str, Figure | None]", *, step: int = 0) -> None:
        """Log figures in one request, each as metrics `name`, `name_low` and `name_high`; None logs nothing."""
        ends: dict[str, float | None] = {}
        for name, figure in figures.items():
            if figure is not None:
                ends |= {name: figure.value, f"{name}_low": figure.low, f"{name}_high": figure.high}
        self.log_metrics(ends, step=step)

    def log_dataset(self, name: str, digest: str, source: str, context: str) -> None:
        """Log which data went in: name, hash of its manifest, where it lay, and what for ("train", "test", ...)."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        dataset = Dataset(
            name=name[:500], digest=digest[:_MAX_DIGEST], source_type="local",
            source=json.dumps({"uri": source}), profile=None, schema=None,
        )  # fmt: skip
        given = DatasetInput(dataset=dataset, tags=[InputTag(key="mlflow.data.context", value=context)])
        self._write(lambda client, run_id: client.log_inputs(run_id, datasets=[given]))

    def log_table(self, rows: Sequence[Mapping[str, Any]], name: str = "samples") -> None:
        """Log rows as the table `name`.json, which the MLflow UI shows and compares between runs."""
        columns = dict.fromkeys(key for row in rows for key in row)
        if columns:
            data = {column: [row.get(column) for row in rows] for column in columns}
            self._write(lambda client, run_id: client.log_table(run_id, data, f"{name}.json"))

    def log_plot(self, plot: "Plot", name: str) -> None:
        """Log a matplotlib figure as the picture `name`.png."""
        options = {"dpi": 150, "bbox_inches": "tight"}
        self._write(lambda client, run_id: client.log_figure(run_id, plot, f"{name}.png", save_kwargs=options))

    def log_json(self, content: Mapping[str, Any], name: str) -> None:
        """Log a JSON object as `name`.json."""
        self._write(lambda client, run_id: client.log_dict(run_id, dict(content), f"{name}.json"))

    def log_file(self, path: Path, folder: str | None = None) -> None:
        """Log a copy of one file, under `folder` among the artifacts."""
        kept = self._kept(path)
        self._write(lambda client, run_id: client.log_artifact(run_id, str(kept), folder))

    def log_folder(self, path: Path, folder: str | None = None) -> None:
        """Log a copy of a folder's content, under `folder` (default: its own name)."""
        kept = self._kept(path)
        self._write(lambda client, run_id: client.log_artifacts(run_id, str(kept), folder or path.name))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags, overwriting those of the same name."""

        def write(client: "MlflowClient", run_id: str) -> None:
            for key, value in tags.items():
                client.set_tag(run_id, key, str(value)[:_MAX_PARAM])

        self._write(write)

    def terminate(self, status: str) -> None:
        """End the run; nothing can be logged after it."""
        self._write(lambda client, run_id: client.set_terminated(run_id, status))
        if self._parent is None:
            self._forget()

    def _create(self) -> None:
        tags = dict(self._tags)
        if self._parent is not None:
            tags[_PARENT_TAG] = self._parent.run_id
        try:
            self.run_id = self._store.create_run(self._name, tags)
        except Exception as error:  # border: the network, MLflow and the server each raise their own kinds
            if not self._store.remote:
                raise
            self._root()._move(error)
            # A run that is not yet listed among its parent's was not moved with it.
            if self._parent is not None:
                tags[_PARENT_TAG] = self._parent.run_id
            self.run_id = self.run_id or self._store.create_run(self._name, tags)

    def _write(self, action: _Action) -> None:
        if not self._store.remote:
            action(self._store.client, self.run_id)
            return
        self._journal.append(action)
        try:
            action(self._store.client, self.run_id)
        except Exception as error:  # border: as above
            self._root()._move(error)

    def _move(self, error: Exception) -> None:
        """Write this run and those nested in it again, to the local store; nothing is asked of the server."""
        if self._store.remote:
            self._store.fall_back(error)
        tags = dict(self._tags)
        if self._parent is not None:
            tags[_PARENT_TAG] = self._parent.run_id
        self.run_id = self._store.create_run(self._name, tags)
        for action in self._journal:
            action(self._store.client, self.run_id)
        for child in self._children:
            child._move(error)
        self._journal = []

    def _root(self) -> "RunHandle":
        return self if self._parent is None else self._parent._root()

    def _kept(self, path: Path) -> Path:
        """Return a copy that outlives the caller's file, where the run may have to be written again."""
        if not self._store.remote:
            return path
        if self._spool is None:
            self._spool = Path(tempfile.mkdtemp(prefix="agentic-iqa-run-"))
        kept = self._spool / str(len(self._journal)) / path.name
        if path.is_dir():
            shutil.copytree(path, kept)
        else:
            kept.parent.mkdir(parents=True)
            shutil.copyfile(path, kept)
        return kept

    def _forget(self) -> None:
        self._journal = []
        if self._spool is not None:
            shutil.rmtree(self._spool, ignore_errors=True)
        for child in self._children:
            child._forget()


def _flat(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in params.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
