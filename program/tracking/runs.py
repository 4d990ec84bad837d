"""One MLflow run that is being written; a broken store costs a warning and the run."""

import contextlib
import itertools
import json
import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from program.common.keys import redact, without_keys
from program.tracking.store import Store, reason

if TYPE_CHECKING:
    from mlflow.entities.model_registry import PromptVersion


_MAX_PARAM, _MAX_DIGEST = 5000, 36
"""MLflow refuses values of more than 6000 characters, and longer digests of datasets."""
_MAX_PROMPT = 90_000
_MAX_RECORDS = 500
"""Of a dataset that MLflow shows: a second's work."""
_FOREIGN = re.compile(r"[/:.%\"']+")
"""What the name of a model must not hold."""
_PROGRAM = "agentic_iqa.program_sha256"

logger = logging.getLogger(__name__)


class Prompt(NamedTuple):
    """A predictor's prompt: its text, what changed in it (if anything did), and the model that is asked."""

    text: str
    change: str
    model: str


class RunHandle:
    """A run made by `Tracker.run` or `RunHandle.run_beside`; `result` says where else to find what it is about."""

    def __init__(
        self, store: Store, name: str, tags: Mapping[str, str], result: str, root: "RunHandle | None" = None
    ) -> None:
        self._store, self._name, self._result = store, name, result
        self._root: RunHandle = root or self
        self._broken = False
        self._data = ("", "")
        self.model_id: str | None = None
        """The linked LoggedModel's; None where there is none, or the store broke."""
        self.prompts: list[PromptVersion] = []
        """The prompt versions of the program that the run made."""
        self._id: str = self._write(lambda: store.create_run(name, tags)) or ""

    @property
    def run_id(self) -> str | None:
        """The run's id in the store; None where the store broke, so that the run is not whole."""
        return None if self._root._broken else self._id

    @property
    def where(self) -> str:
        """How to look at the list of runs, and this run's id; empty where the store broke."""
        return f"{self._store.ui_hint}  (run {self.run_id})" if self.run_id else ""

    def enter_experiment(self) -> None:
        """Make the store and the experiment those that MLflow's own functions write to in this process."""
        import mlflow

        mlflow.set_tracking_uri(self._store.tracking_uri)
        mlflow.set_experiment(experiment_id=self._store.experiment_id)

    def show(self) -> None:
        """Print where the run is, if it is whole."""
        from program.common.console import Console

        if self.where:
            Console(soft_wrap=True).print(f"MLflow run  {self.where}", highlight=False)

    def run_beside(self, name: str, tags: Mapping[str, str]) -> "RunHandle":
        """Return a run of its own in the same experiment; it ends with the `with` block."""
        return RunHandle(self._store, name, tags, self._result, self._root)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log what was chosen. A param cannot be changed later."""
        from mlflow.entities import Param

        self._log("log_batch", params=[Param(key, redact(str(value))[:_MAX_PARAM]) for key, value in params.items()])

    def log_metrics(self, metrics: Mapping[str, float | None], *, step: int = 0) -> None:
        """Log numbers, the linked model's on the last dataset too; undefined ones (None, nan) are left out."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        about: dict[str, Any] = {}
        if self.model_id:
            about = {"model_id": self.model_id, "dataset_name": self._data[0], "dataset_digest": self._data[1]}
        known = {name: value for name, value in metrics.items() if value is not None and math.isfinite(value)}
        if known:
            # The list of runs shows every digit.
            shown = [Metric(name, round(float(value), 4), now, step, **about) for name, value in known.items()]
            self._log("log_batch", metrics=shown)

    def log_dataset(
        self, name: str, digest: str, source: str, context: str, rows: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        """Log which data went in: name, hash of its labels, where it lay, and what for ("train", "test", ...).

        `rows` are what *Datasets* shows of it: inputs and expectations of its first samples.
        """
        from mlflow.entities import Dataset, DatasetInput, InputTag
        from mlflow.exceptions import MlflowException

        name, digest = self._data = name[:500], digest[:_MAX_DIGEST]

        def write() -> None:
            shown: dict[str, str] = {}
            with contextlib.suppress(MlflowException):  # of a server without datasets, as before MLflow 3.4
                shown = self._shown_dataset(f"{name} {context}", digest, rows)
            kind, place = ("mlflow_evaluation_dataset", shown) if shown else ("local", {"uri": redact(source)})
            dataset = Dataset(name, digest, source_type=kind, source=json.dumps(place))
            entry = DatasetInput(dataset=dataset, tags=[InputTag(key="mlflow.data.context", value=context)])
            try:
                self._store.client.log_inputs(self._id, datasets=[entry])
            except MlflowException:
                # Another run entered the same dataset after MLflow had looked for it: now it is there.
                self._store.client.log_inputs(self._id, datasets=[entry])

        self._write(write)

    def _shown_dataset(self, name: str, digest: str, rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
        """Return the id of MLflow's own dataset with these labels, made where there is none yet; {} for no rows."""
        client, experiment = self._store.client, self._store.experiment_id
        first = [without_keys(dict(row)) for row in itertools.islice(rows, _MAX_RECORDS)]
        if not first:
            return {}
        known = client.search_datasets([experiment], filter_string=f"tags.digest = '{digest}'")
        if known:
            return {"dataset_id": known[0].dataset_id}
        self.enter_experiment()
        made = client.create_dataset(name, experiment)
        made.merge_records(first)
        client.set_dataset_tags(made.dataset_id, {"digest": digest})
        return {"dataset_id": made.dataset_id}

    def link_model(
        self, sha256: str, name: str = "", params: Mapping[str, Any] | None = None,
        log: Callable[[str], object] | None = None,
    ) -> None:  # fmt: skip
        """Link the run with the LoggedModel of a program, the experiment's with this hash; see `model_id`.

        A run that made the program gives `log`, which fills a new one, by its id, where there is none yet; one that
        judged it does not. `params` stand beside its name in the list of *Agent versions*.
        """
        from mlflow.entities import LoggedModelInput, LoggedModelOutput

        client = self._store.client

        def write() -> None:
            experiment = self._store.experiment_id
            models = client.search_logged_models([experiment], f"tags.`{_PROGRAM}` = '{sha256}'")
            whole = [model.model_id for model in models if str(model.status) == "READY"]
            if whole:
                self.model_id = whole[0]
            elif log is not None:
                shown = {key: str(value) for key, value in (params or {}).items()}
                named = _FOREIGN.sub("-", name)
                model = client.create_logged_model(experiment, named, self._id, {_PROGRAM: sha256}, shown).model_id
                log(model)
                client.finalize_logged_model(model, "READY")
                self.model_id = model
            if self.model_id and log is not None:
                client.log_outputs(self._id, [LoggedModelOutput(self.model_id, step=0)])
            elif self.model_id:
                client.log_inputs(self._id, models=[LoggedModelInput(self.model_id)])

        self.set_tags({_PROGRAM: sha256})
        self._write(write)

    def log_prompts(self, name: str, prompts: Mapping[str, Prompt]) -> None:
        """Log each prompt as a version of NAME.KEY; one as its last version is that one.

        Those that changed are linked with the run.
        """
        client, base = self._store.client, re.sub(r"[^A-Za-z0-9_.-]+", "-", name)

        def write() -> None:
            self.enter_experiment()
            for key, (whole, change, model) in prompts.items():
                text, config = whole[:_MAX_PROMPT], {"model_name": model}
                version = client.load_prompt(f"prompts:/{base}.{key}@latest", allow_missing=True)
                if version is None or (version.template, version.model_config) != (text, config):
                    message = change[:_MAX_PARAM] or "as shipped"
                    version = client.register_prompt(f"{base}.{key}", text, message, model_config=config)
                if change:
                    client.link_prompt_version_to_run(self._id, version)
                self.prompts.append(version)

        self._write(write)

    def log_table(self, rows: Sequence[Mapping[str, Any]], name: str = "samples") -> None:
        """Log rows as the table `name`.json, which the MLflow UI shows and compares between runs."""
        columns = dict.fromkeys(key for row in rows for key in row)
        if columns:
            data = {column: [row.get(column) for row in rows] for column in columns}
            self._log("log_table", data, f"{name}.json")

    def log_content(self, content: Mapping[str, Any], name: str) -> None:
        """Log a mapping of what JSON holds, or shows as text, as the file `name`, .json or .yaml."""
        self._log("log_dict", json.loads(json.dumps(dict(content), default=str)), name)

    def log_text(self, text: str, name: str) -> None:
        """Log a text as the file `name`."""
        self._log("log_text", text, name)

    def log_file(self, path: Path) -> None:
        """Log a copy of one file."""
        self._log("log_artifact", str(path))

    def describe(self, text: str) -> None:
        """Set the run's description, which MLflow shows on top of it (Markdown)."""
        self.set_tags({"mlflow.note.content": text})

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags, overwriting those of the same name."""
        for key, value in tags.items():
            self._log("set_tag", key, redact(str(value))[:_MAX_PARAM])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the run: FINISHED, or FAILED where the block was left by any exception or the run is not whole."""
        self._log("set_terminated", "FAILED" if kind else "FINISHED")
        if self._broken and self._id:
            with contextlib.suppress(Exception):  # border: as below; the next Tracker marks it otherwise
                self._store.client.set_terminated(self._id, "FAILED")

    def _log(self, method: str, *arguments: Any, **named: Any) -> None:
        arguments = without_keys(arguments)
        self._write(lambda: getattr(self._store.client, method)(self._id, *arguments, **named))

    def _write(self, action: Callable[[], Any]) -> Any:
        """Return what an action returns; None where the store broke."""
        root = self._root
        if root._broken:
            return None
        try:
            return action()
        except Exception as error:  # border: MLflow, SQLAlchemy, the network and the disk each raise their own kinds
            root._broken = True
            logger.warning(
                "MLflow store %r broke (%s): the run %r is not whole there; %s",
                redact(self._store.tracking_uri), reason(error), root._name, self._result,
            )  # fmt: skip
            return None


class Tracker(Store):
    """An MLflow experiment to write runs into. A store that breaks later costs its run, and raises no error."""

    def run(
        self, name: str, tags: Mapping[str, str] | None = None, *, result: str = "the result is printed"
    ) -> RunHandle:
        """Return a new run; it ends with the `with` block, FAILED when that is left by any exception.

        A run whose process was killed is marked FAILED by the next Tracker. Where the store breaks, a warning says with
        `result` where to find what the run is about.
        """
        return RunHandle(self, name, tags or {}, result)
