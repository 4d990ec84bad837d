"""One MLflow run that is being written, and traces of assessments; a broken store costs a warning and the run."""

import contextlib
import json
import logging
import math
import re
import sys
import time
import urllib.parse
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from program.common.keys import PRIVATE_OPTION, holds_key, redact, strip_bytes, without_keys
from program.tracking.store import Store, reason, sigterm_as_exit

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot
    from mlflow.entities.model_registry import PromptVersion
    from PIL.Image import Image


_MAX_PARAM, _MAX_DIGEST = 5000, 36
"""MLflow refuses values of more than 6000 characters, and longer digests of datasets."""
_MAX_PROMPT = 90_000
_PROGRAM = "agentic_iqa.program_sha256"

logger = logging.getLogger(__name__)


class RunHandle:
    """A run made by `Tracker.run` or `RunHandle.nested_run`; `result` says where else to find what it is about."""

    def __init__(
        self, store: Store, name: str, tags: Mapping[str, str], result: str, parent: "RunHandle | None" = None
    ) -> None:
        self._store, self._name, self._result = store, name, result
        self._root: RunHandle = self if parent is None else parent._root
        self._broken = False
        self._data = ("", "")
        self.model_id: str | None = None
        """The linked LoggedModel's; None where there is none, or the store broke."""
        self.prompts: list[PromptVersion] = []
        """The prompt versions of the program that the run made."""
        if parent is not None:
            tags = {**tags, "mlflow.parentRunId": parent._id}
        self._id: str = self._write(lambda: store.create_run(name, tags)) or ""

    @property
    def run_id(self) -> str | None:
        """The run's id in the store; None where the store broke, so that the run is not whole."""
        return None if self._root._broken else self._id

    @property
    def where(self) -> str:
        """How to look at the list of runs, and this run's id; empty where the store broke."""
        return f"{self._store.ui_hint}  (run {self.run_id})" if self.run_id else ""

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
        from program.common.console import Console

        if self.where:
            Console(soft_wrap=True).print(f"MLflow run  {self.where}", highlight=False)

    def nested_run(self, name: str, tags: Mapping[str, str] | None = None) -> "RunHandle":
        """Return a run shown under this one, as for a candidate program of a compile; it ends with the `with` block."""
        return RunHandle(self._store, name, tags or {}, self._result, parent=self)

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
        known = {name: float(value) for name, value in metrics.items() if value is not None and math.isfinite(value)}
        if known:
            self._log("log_batch", metrics=[Metric(name, value, now, step, **about) for name, value in known.items()])

    def log_dataset(self, name: str, digest: str, source: str, context: str) -> None:
        """Log which data went in: name, hash of its manifest, where it lay, and what for ("train", "test", ...)."""
        from mlflow.entities import Dataset, DatasetInput, InputTag
        from mlflow.exceptions import MlflowException

        name, digest = self._data = name[:500], digest[:_MAX_DIGEST]
        dataset = Dataset(name, digest, source_type="local", source=json.dumps({"uri": redact(source)}))
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
            models = client.search_logged_models([experiment], f"tags.`{_PROGRAM}` = '{sha256}'")
            whole = [model.model_id for model in models if str(model.status) == "READY"]
            if whole:
                self.model_id = whole[0]
            elif log is not None:
                model = client.create_logged_model(experiment, "program", self._id, {_PROGRAM: sha256}).model_id
                log(model)
                client.finalize_logged_model(model, "READY")
                self.model_id = model
            if self.model_id and log is not None:
                client.log_outputs(self._id, [LoggedModelOutput(self.model_id, step=0)])
            elif self.model_id:
                client.log_inputs(self._id, models=[LoggedModelInput(self.model_id)])

        self.set_tags({_PROGRAM: sha256})
        self._write(write)

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

    @contextlib.contextmanager
    def run(
        self, name: str, tags: Mapping[str, str] | None = None, *, result: str = "the result is printed"
    ) -> Iterator[RunHandle]:
        """Yield a handle on a new run; it ends FINISHED, or FAILED when the block is left by any exception.

        SIGTERM counts as one. A run whose process was killed outright is marked FAILED by the next Tracker. Where the
        store breaks, a warning says with `result` where to find what the run is about.
        """
        with RunHandle(self, name, tags or {}, result) as handle, sigterm_as_exit():
            yield handle


_NOISE = tuple(f"on_adapter_{what}_{when}" for what in ("format", "parse") for when in ("start", "end"))
"""Events that MLflow would make spans of, which hold what the model's own span holds."""


def annotate_trace(facts: Mapping[str, Any]) -> None:
    """Write facts on the MLflow span that is being recorded, if there is one."""
    if (span := _current_span()) is not None:
        span.set_attributes({f"agentic_iqa.{name}": value for name, value in facts.items() if value is not None})


def _current_span() -> Any:
    """Return the MLflow span that is being recorded, or None; MLflow is not imported to find out."""
    if "mlflow" not in sys.modules:
        return None
    import mlflow

    return mlflow.get_current_active_span()


@contextlib.contextmanager
def tool_span(name: str, inputs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Record a tool's reading as a span of the assessment that is being recorded, if there is one.

    Yields a mapping to be filled with the span's outputs; an `error` among them makes it a failed one.
    """
    outputs: dict[str, Any] = {}
    if _current_span() is None:
        yield outputs
        return
    import mlflow

    with mlflow.start_span(name, span_type="TOOL") as span:
        span.set_inputs(dict(inputs))
        yield outputs
        span.set_outputs(outputs)
        if outputs.get("error"):
            span.set_status("ERROR")


@contextlib.contextmanager
def record_traces(run: "RunHandle") -> Iterator[dict[str, tuple[float | str, bool]]]:
    """Record the process's assessments meanwhile as traces of a run; yields what was true, to be filled by trace."""
    import dspy
    import mlflow

    expected: dict[str, tuple[float | str, bool]] = {}
    with warnings.catch_warnings(action="ignore"):  # of its own types
        from mlflow.dspy.callback import MlflowCallback
    run.enter_experiment()
    counted = dspy.settings.track_usage
    with mlflow.tracing.context(metadata={"mlflow.sourceRun": run.run_id}):
        mlflow.tracing.reset()
        mlflow.tracing.configure(span_processors=[_strip])
        try:
            mlflow.dspy.autolog(log_traces=True, log_traces_from_eval=True, log_traces_from_compile=False, silent=True)
        except RuntimeError as error:  # DSPy's settings belong to another thread
            logger.info("no traces of this run: %s", error)
            yield expected
            return
        # It switches on DSPy's own count of tokens, which complains of programs that return no Prediction.
        dspy.configure(track_usage=counted)
        callback = MlflowCallback()
        vars(callback).update(dict.fromkeys(_NOISE, lambda **_: None))
        others = [other for other in dspy.settings.callbacks if not isinstance(other, MlflowCallback)]
        try:
            # What autolog configured is not seen inside a context of DSPy's.
            with dspy.context(callbacks=[*others, callback]):
                yield expected
        finally:
            mlflow.dspy.autolog(disable=True, silent=True)
            mlflow.flush_trace_async_logging()
            mlflow.tracing.configure(span_processors=[])
        # Once all are written, which takes a second's wait each time.
        run.log_expectations(expected)


@contextlib.contextmanager
def miss_trace(sample: str, inputs: Mapping[str, Any], truth: float | str) -> Iterator[dict[str, Any]]:
    """Record what is assessed inside, itself inside of `record_traces`, as one trace.

    Yields a mapping with the trace's "id", to be filled with the "answer".
    """
    import mlflow

    with mlflow.start_span(f"sample {sample}", span_type="CHAIN") as span:
        span.set_inputs({"sample": sample, **inputs})
        trace: dict[str, Any] = {"id": str(span.trace_id)}
        yield trace
        answer = round(trace["answer"], 3) if isinstance(trace["answer"], float) else str(trace["answer"])
        span.set_outputs({"answer": answer, "truth": truth})
        tags = {"sample": sample, "truth": truth, "answer": answer, "picture": inputs.get("picture")}
        mlflow.update_current_trace(tags={name: str(value) for name, value in tags.items() if value is not None})


def _strip(span: Any) -> None:
    """Leave out keys, the image bytes that a caller's own language model was sent inline, and its headers."""
    span.set_inputs(without_keys(strip_bytes(span.inputs)))
    span.set_outputs(without_keys(strip_bytes(span.outputs)))
    for key, value in list(span.attributes.items()):
        if PRIVATE_OPTION.search(key) or holds_key(key):
            span.set_attribute(key, "(left out)")
        elif not key.startswith("mlflow.") and (kept := without_keys(strip_bytes(value))) != value:
            span.set_attribute(key, kept)
