"""One MLflow run that is being written; a store that breaks meanwhile costs a warning and the run, nothing else."""

import contextlib
import json
import logging
import math
import re
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from program.common.redaction import redact

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot
    from mlflow.entities.model_registry import PromptVersion
    from PIL.Image import Image

    from program.tracking.store import Tracker

__all__ = ("RunHandle", "reason")

_MAX_PARAM, _MAX_DIGEST = 5000, 36
"""MLflow refuses values of more than 6000 characters, and longer digests of datasets."""
_MAX_PROMPT = 90_000
_PROGRAM = "agentic_iqa.program_sha256"

logger = logging.getLogger(__name__)


class RunHandle:
    """A run made by `Tracker.run` or `RunHandle.nested`; `result` says where else to find what it is about."""

    def __init__(
        self, store: "Tracker", name: str, tags: Mapping[str, str], result: str, parent: "RunHandle | None" = None
    ) -> None:
        self._store, self._name, self._result = store, name, result
        self._root: RunHandle = self if parent is None else parent._root
        self._broken = False
        self._id, self._model, self._data = "", "", ("", "")
        self.prompts: list[PromptVersion] = []
        """The prompt versions of the program that the run made."""
        if parent is not None:
            tags = {**tags, "mlflow.parentRunId": parent._id}

        def create() -> None:
            self._id = store.create_run(name, tags)

        self._write(create)

    @property
    def run_id(self) -> str | None:
        """The run's id in the store; None where the store broke, so that the run is not whole."""
        return None if self._root._broken else self._id

    @property
    def where(self) -> str:
        """How to look at the list of runs, and this run's id; empty where the store broke."""
        shown = self._store.runs_url if self._store.remote else self._store.ui_hint
        return f"{shown}  (run {self.run_id})" if self.run_id else ""

    def address(self, file: str) -> str:
        """Return where a logged file is shown once the UI is up."""
        return f"{self._store.server}/get-artifact?{urllib.parse.urlencode({'run_uuid': self._id, 'path': file})}"

    def enter_experiment(self) -> None:
        """Make the store and the experiment those that MLflow's own functions write to in this process."""
        import mlflow

        mlflow.set_tracking_uri(self._store.tracking_uri)
        mlflow.set_experiment(experiment_id=self._store.experiment_id)

    def show(self) -> None:
        """Print where the run is, if it is whole."""
        from rich.console import Console

        if self.where:
            Console(soft_wrap=True).print(f"MLflow run  {self.where}", highlight=False)

    def nested(self, name: str, tags: Mapping[str, str] | None = None) -> "RunHandle":
        """Return a run shown under this one, as for a candidate program of a compile; it ends with the `with` block."""
        return RunHandle(self._store, name, tags or {}, self._result, parent=self)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log what was chosen. A param cannot be changed later."""
        from mlflow.entities import Param

        self._log("log_batch", params=[Param(key, str(value)[:_MAX_PARAM]) for key, value in params.items()])

    def log_metrics(self, metrics: Mapping[str, float | None], *, step: int = 0) -> None:
        """Log numbers, the linked model's on the last dataset too; undefined ones (None, nan) are left out."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        about: dict[str, Any] = {}
        if self._model:
            about = {"model_id": self._model, "dataset_name": self._data[0], "dataset_digest": self._data[1]}
        entries = [
            Metric(name, float(value), now, step, **about)
            for name, value in metrics.items()
            if value is not None and math.isfinite(value)
        ]
        if entries:
            self._log("log_batch", metrics=entries)

    def log_dataset(self, name: str, digest: str, source: str, context: str) -> None:
        """Log which data went in: name, hash of its manifest, where it lay, and what for ("train", "test", ...)."""
        from mlflow.entities import Dataset, DatasetInput, InputTag
        from mlflow.exceptions import MlflowException

        self._data = name[:500], digest[:_MAX_DIGEST]
        dataset = Dataset(
            name=name[:500], digest=digest[:_MAX_DIGEST], source_type="local",
            source=json.dumps({"uri": source}), profile=None, schema=None,
        )  # fmt: skip
        entry = DatasetInput(dataset=dataset, tags=[InputTag(key="mlflow.data.context", value=context)])

        def write() -> None:
            try:
                self._store.client.log_inputs(self._id, datasets=[entry])
            except MlflowException:
                # Another run entered the same dataset after MLflow had looked for it: now it is there.
                self._store.client.log_inputs(self._id, datasets=[entry])

        self._write(write)

    def link_model(self, sha256: str, log: Callable[[str], object] | None = None) -> None:
        """Link the run with the LoggedModel of a program, the experiment's with this hash; see `model_id`.

        A run that made the program gives `log`, which fills a new one, by its id, where there is none yet; one that
        judged it does not.
        """
        from mlflow.entities import LoggedModelInput, LoggedModelOutput

        client = self._store.client

        def write() -> None:
            experiment = self._store.experiment_id
            found = client.search_logged_models([experiment], f"tags.`{_PROGRAM}` = '{sha256}'")
            whole = [model.model_id for model in found if str(model.status) == "READY"]
            if whole:
                self._model = whole[0]
            elif log is not None:
                model = client.create_logged_model(experiment, "program", self._id, {_PROGRAM: sha256}).model_id
                log(model)
                client.finalize_logged_model(model, "READY")
                self._model = model
            if self._model and log is not None:
                client.log_outputs(self._id, [LoggedModelOutput(self._model, step=0)])
            elif self._model:
                client.log_inputs(self._id, models=[LoggedModelInput(self._model)])

        self.set_tags({_PROGRAM: sha256})
        self._write(write)

    @property
    def model_id(self) -> str | None:
        """The linked LoggedModel's id; None where there is none, or the store broke."""
        return self._model or None

    def log_prompts(self, name: str, prompts: Mapping[str, tuple[str, str]]) -> None:
        """Log each text, with what changed in it if anything did, as a version of the prompt NAME.KEY.

        A text as the last version's is that one. Changed ones are linked with the run.
        """
        client, base = self._store.client, re.sub(r"[^A-Za-z0-9_.-]+", "-", name)

        def write() -> None:
            self.enter_experiment()
            for key, (text, change) in prompts.items():
                version = client.load_prompt(f"prompts:/{base}.{key}@latest", allow_missing=True)
                if version is None or version.template != text[:_MAX_PROMPT]:
                    message = change[:_MAX_PARAM] or "as shipped"
                    version = client.register_prompt(f"{base}.{key}", text[:_MAX_PROMPT], message)
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

    def log_plot(self, plot: "Plot", name: str) -> None:
        """Log a matplotlib figure as the picture `name`.png."""
        self._log("log_figure", plot, f"{name}.png", save_kwargs={"dpi": 150, "bbox_inches": "tight"})

    def log_picture(self, picture: "Image", name: str) -> None:
        """Log a Pillow image as the file `name`."""
        self._log("log_image", picture, name)

    def log_content(self, content: Mapping[str, Any], name: str) -> None:
        """Log a mapping of what JSON holds, or shows as text, as the file `name`, .json or .yaml."""
        self._log("log_dict", json.loads(json.dumps(dict(content), default=str)), name)

    def log_text(self, text: str, name: str) -> None:
        """Log a text as the file `name`."""
        self._log("log_text", text, name)

    def log_file(self, path: Path) -> None:
        """Log a copy of one file."""
        self._log("log_artifact", str(path))

    def log_expectations(self, expected: Mapping[str, tuple[float | str, bool]]) -> None:
        """Log what was true of each trace that was kept, by its id, and whether people said so."""
        from mlflow import log_expectation
        from mlflow.entities import AssessmentSource

        def write() -> None:
            for trace, (truth, by_people) in expected.items():
                source = AssessmentSource(source_type="HUMAN" if by_people else "CODE", source_id="labels")
                if trace.startswith("tr-"):
                    log_expectation(trace_id=trace, name="truth", value=truth, source=source)

        self._write(write)

    def describe(self, text: str) -> None:
        """Set the run's description, which MLflow shows on top of it (Markdown)."""
        self.set_tags({"mlflow.note.content": text})

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags, overwriting those of the same name."""
        for key, value in tags.items():
            self._log("set_tag", key, str(value)[:_MAX_PARAM])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the run: FINISHED, or FAILED where the block was left by any exception or the run is not whole."""
        self._log("set_terminated", "FAILED" if kind else "FINISHED")
        if self._broken and self._id:
            with contextlib.suppress(Exception):  # border: as below; the next Tracker marks it otherwise
                self._store.client.set_terminated(self._id, "FAILED")

    def _log(self, method: str, *arguments: Any, **named: Any) -> None:
        self._write(lambda: getattr(self._store.client, method)(self._id, *arguments, **named))

    def _write(self, action: Callable[[], object]) -> None:
        root = self._root
        if root._broken:
            return
        try:
            action()
        except Exception as error:  # border: MLflow, SQLAlchemy, the network and the disk each raise their own kinds
            root._broken = True
            logger.warning(
                "MLflow store %r broke (%s): the run %r is not whole there; %s",
                redact(self._store.tracking_uri), reason(error), root._name, self._result,
            )  # fmt: skip


def reason(error: Exception) -> str:
    """Return what an error of MLflow says, in one short line."""
    text = " ".join(str(error).split())
    # Of urllib3's account of its retries only what the system said is of use.
    said = re.search(r"Max retries exceeded.*\[Errno -?\d+\] ([\w ]+)", text)
    return said[1] if said else redact(text[:200])
