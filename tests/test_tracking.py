"""MLflow tracking: what a run holds, where it lies, how it ends, and how quiet it is."""

import base64
import contextlib
import itertools
import json
import os
import re
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from program.common.cli import Parser, add_settings_flags, settings_from
from program.common.errors import InputError
from program.runs import main as runs_command
from program.tracking import Tracker, experiment_name
from program.tracking.store import open_client, runs_url
from program.tracking.traces import record_traces

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One store for the module (its creation takes seconds), in a folder whose name holds a space."""
    return tmp_path_factory.mktemp("with space") / "mlruns"


@pytest.fixture(autouse=True)
def _no_server(monkeypatch, tmp_path):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)


def _read(tracker, run_id):
    return tracker.client.get_run(run_id)


def _files(store):
    return sorted(path.name for path in (store / "artifacts").rglob("*") if path.is_file())


def test_a_run_holds_params_figures_tables_and_files(store, tmp_path):
    tracker = Tracker(store, "contents")
    folder = tmp_path / "compiled"
    folder.mkdir()
    (folder / "program.json").write_text("{}", encoding="utf-8")
    with tracker.run("first", {"optimizer": "labeled"}) as run:
        run.log_params({"seed": 1, "long": "z" * 9000})
        run.log_metrics({"seconds": 1.5, "undefined": None, "nan": float("nan")})
        run.log_table([{"id": "a", "predicted": 1.5}, {"id": "b", "error": "E"}])
        run.log_table([], "nothing")
        run.log_text("<svg/>", "plots/scatter.svg")
        run.log_content({"srcc": 0.5}, "record.yaml")
        run.log_file(folder / "program.json")
        run.set_tags({"note": "fine"})
    found = _read(tracker, run.run_id)
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "first"
    assert found.data.params["seed"] == "1"
    assert len(found.data.params["long"]) == 5000
    assert found.data.metrics == {"seconds": 1.5}
    assert {"optimizer": "labeled", "note": "fine"}.items() <= found.data.tags.items()
    base = store / "artifacts" / run.run_id / "artifacts"
    table = json.loads((base / "samples.json").read_text(encoding="utf-8"))
    assert table["columns"] == ["id", "predicted", "error"]
    assert table["data"][0][:2] == ["a", 1.5]
    assert (base / "plots" / "scatter.svg").read_text("utf-8") == "<svg/>"
    assert (base / "record.yaml").read_text("utf-8") == "srcc: 0.5\n"
    assert _files(store).count("program.json") == 1


def test_a_cursor_that_cannot_be_closed_shows_no_traceback(store, caplog):
    import sqlalchemy

    class Cursor:
        def close(self):
            raise sqlite3.ProgrammingError("interrupted")

    Tracker(store, "cursors")
    with sqlalchemy.create_engine("sqlite://").connect() as connection:
        connection._safe_close_cursor(Cursor())
    assert not caplog.records


def test_nothing_is_written_outside_the_store(store, tmp_path):
    with Tracker(store, "tidy").run("r") as run:
        run.log_content({}, "x.json")
        run.log_table([{"a": 1}])
    assert list(tmp_path.iterdir()) == []
    assert sorted(path.name for path in store.iterdir() if not path.name.startswith("mlflow.db")) == ["artifacts"]
    with sqlite3.connect(store / "mlflow.db") as database:
        locations = {
            row[0] for row in database.execute("select artifact_location from experiments where name = 'tidy'")
        }
    assert locations == {(store / "artifacts").resolve().as_uri()}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_run_that_ends_badly_is_marked_failed(store, error):
    tracker = Tracker(store, "failures")
    with pytest.raises(error), tracker.run("bad") as run:
        raise error
    assert _read(tracker, run.run_id).info.status == "FAILED"


_FORKING = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, {root!r})
import program.tracking as tracking
with tracking.Tracker(Path('mlruns'), 'first').run('r') as run:
    run.log_metrics({{'a': 1.0}})
print(os.environ['MLFLOW_DISABLE_TELEMETRY'], flush=True)
for request in map(json.loads, sys.stdin):
    if isinstance(request, int):
        print(os.waitpid(request, 0)[1], flush=True)
    elif not os.fork():
        code, output = request
        os.dup2(os.open(output, os.O_WRONLY), 1)
        os.dup2(os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        print(os.getpid(), flush=True)
        exec(code)
        sys.exit()
"""


class Forks:
    """A process that has MLflow, whose import takes seconds, and forks to run code."""

    def __init__(self, folder: Path):
        self.folder, self.log, self.errors = folder / "empty", folder / "log", folder / "errors"
        self.folder.mkdir()
        self._outputs = (folder / f"output-{number}" for number in itertools.count())
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("AGENTIC", "MLFLOW"))}
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _FORKING.format(root=str(ROOT), log=str(self.log))], cwd=self.folder,
                env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        self.first_line = self.process.stdout.readline()

    def _ask(self, request: object) -> None:
        print(json.dumps(request), file=self.process.stdin, flush=True)

    @contextlib.contextmanager
    def begin(self, code: str) -> Iterator[tuple[IO[str], Callable[[int], int]]]:
        """Run code in a fork; what it prints, and a function that kills it and returns its status."""
        output = next(self._outputs)
        os.mkfifo(output)
        self._ask([code, str(output)])
        with output.open() as printed:
            process, ended = int(printed.readline()), []

            def end(number: int = signal.SIGKILL) -> int:
                if not ended:
                    os.kill(process, number)
                    self._ask(process)
                    ended.append(int(self.process.stdout.readline()))
                return ended[0]

            try:
                yield printed, end
            finally:
                end()


@pytest.fixture(scope="module")
def forks(tmp_path_factory):
    if os.name == "nt":
        pytest.skip("Windows has no fork")
    forks = Forks(tmp_path_factory.mktemp("forks"))
    yield forks
    forks.process.communicate(timeout=60)
    assert (forks.process.returncode, forks.errors.read_text("utf-8")) == (0, "")


_WAITING = """
import time
with tracking.Tracker(Path({store!r}), "killed").run("victim") as run:
    print(run.run_id, flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_a_killed_run_is_marked_failed_and_a_living_one_is_not(store, caplog, forks):
    with forks.begin(_WAITING.format(store=str(store))) as (printed, end):
        run_id = printed.readline().strip()
        tracker = Tracker(store, "killed")
        assert _read(tracker, run_id).info.status == "RUNNING"
        end()
    assert _read(tracker, run_id).info.status == "RUNNING"
    Tracker(store, "killed")
    assert "the earlier run 'victim' was stopped before it ended; MLflow lists it as failed" in caplog.text
    assert _read(tracker, run_id).info.status == "FAILED"


_STOPPED = """
import signal
from sqlalchemy import Engine, event
left = iter(range({step}))
def stop(*_):
    if next(left, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)
event.listen(Engine, "after_cursor_execute", stop)
tracking.Tracker(Path({store!r}), "killed")
"""


@pytest.mark.slow
def test_a_store_whose_making_was_killed_is_made_by_the_next_run(tmp_path, caplog, forks):
    store = tmp_path / "mlruns"
    for step in (40, 120):
        with forks.begin(_STOPPED.format(store=str(store), step=step)) as (printed, end):
            assert (printed.read(), end(0)) == ("", signal.SIGKILL), forks.log.read_text()
    with Tracker(store, "next").run("r") as run:
        pass
    assert _read(Tracker(store, "next"), run.run_id).info.status == "FINISHED"
    assert not caplog.records
    assert sorted(path.name for path in store.iterdir()) == ["mlflow.db", "mlflow.db.lock"]


def test_a_database_with_rows_of_anybody_is_never_moved(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database, database:
        database.execute("CREATE TABLE experiments (name)")
        database.execute("CREATE TABLE runs (name)")
        database.execute("INSERT INTO runs VALUES ('mine')")
    with pytest.raises(InputError, match="cannot be opened"):
        Tracker(tmp_path, "x")
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        assert database.execute("SELECT name FROM runs").fetchall() == [("mine",)]
    assert [path.name for path in tmp_path.glob("*unfinished*")] == []


def test_reopening_keeps_the_experiment_and_revives_a_deleted_one(store):
    first = Tracker(store, "again")
    with first.run("one") as run:
        pass
    first.client.delete_experiment(first.experiment_id)
    second = Tracker(store, "again")
    with second.run("two"):
        pass
    assert second.experiment_id == first.experiment_id
    assert _read(second, run.run_id).info.run_name == "one"


def test_the_environment_chooses_the_store(store, tmp_path, monkeypatch):
    elsewhere = f"sqlite:///{tmp_path / 'other.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", elsewhere)
    assert Tracker(store, "x").tracking_uri == elsewhere
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert Tracker(store, "x").tracking_uri.endswith("mlruns/mlflow.db")


def test_a_store_that_cannot_be_opened_is_one_line(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="cannot be opened") as caught:
        Tracker(tmp_path / "file", "x")
    assert "\n" not in str(caught.value)


def test_a_server_that_is_down_is_refused_in_our_words_alone(store, caplog, monkeypatch):
    """A refused connection is one line, without the client's accounts of its repeats."""
    parser = Parser()
    add_settings_flags(parser)
    settings_from(parser.parse_args([]))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_JITTER", "0")
    words = r"'http://127\.0\.0\.1:9' .*\(Connection refused\).* MLFLOW_TRACKING_URI"
    with pytest.raises(InputError, match=words) as caught:
        Tracker(store, "refused")
    assert "\n" not in str(caught.value)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


_SERVING = """
import socket, uvicorn
from mlflow import server
os.environ[server.BACKEND_STORE_URI_ENV_VAR] = {database!r}
os.environ[server.ARTIFACTS_DESTINATION_ENV_VAR] = {artifacts!r}
os.environ[server.ARTIFACT_ROOT_ENV_VAR] = "mlflow-artifacts:/"
os.environ[server.SERVE_ARTIFACTS_ENV_VAR] = "true"
os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config("mlflow.server.fastapi_app:app")).run(sockets=[listener])
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory, forks):
    """A real MLflow server on its own store: what `mlflow server` starts; (address, what kills it)."""
    from mlflow import MlflowClient

    folder = tmp_path_factory.mktemp("server")
    database = f"sqlite:///{folder / 'mlflow.db'}"
    MlflowClient(database).search_experiments()  # makes the database
    with forks.begin(_SERVING.format(database=database, artifacts=str(folder / "artifacts"))) as (printed, kill):
        port = int(printed.readline())
        yield f"http://127.0.0.1:{port}", kill


def test_no_warning_holds_the_password_of_a_stores_address(store, caplog, monkeypatch):
    address = "https://me:hidden-word@store.example"
    tracker = Tracker(store, "with a password")

    def lost(*_args, **_named):
        raise ConnectionError(f"no route to {address}/api")

    with tracker.run("r") as run:
        monkeypatch.setattr(tracker, "tracking_uri", address)
        monkeypatch.setattr(tracker.client, "log_batch", lost)
        run.log_params({"seed": 1})
    (warning,) = [record.getMessage() for record in caplog.records if "broke" in record.getMessage()]
    assert "hidden-word" not in warning
    assert warning.count("https://<password>@store.example") == 2


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("quickstart", "quickstart"),
        ("a/clive/manifest.jsonl", "clive"),
        ("/a/mine.jsonl", "mine"),
        ("mcq.jsonl", "mcq"),
    ],
)
def test_an_experiment_is_called_by_its_dataset(data, name, monkeypatch):
    assert experiment_name(data) == name
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine alone")
    assert experiment_name(data) == "mine alone"


@pytest.mark.filterwarnings("default")  # as below
def test_what_is_assessed_inside_is_traced_and_no_image_bytes_are(store, assess_a_picture, scripted_lm, picture):
    import dspy

    from program.agent.loop import AgenticIQA
    from program.common.settings import load_settings

    tracker = Tracker(store, "traces")
    seen = scripted_lm([{"text": "fine"}])
    seen.engine.record = None
    program = AgenticIQA(load_settings(overrides={"executor": {"selection": "model"}}))
    with tracker.run("traced") as run, record_traces(run, program) as recording:
        assess_a_picture(program)
        with dspy.context(lm=seen, adapter=dspy.JSONAdapter()):
            inline = dspy.Image(f"data:image/png;base64,{base64.b64encode(picture().tobytes()).decode()}")
            dspy.Predict("image: dspy.Image -> text")(image=inline)
    assess_a_picture()
    own = f"metadata.`mlflow.sourceRun` = '{run.run_id}'"
    traces = tracker.client.search_traces(locations=[tracker.experiment_id], filter_string=own)
    assert len(traces) == 2 == len(tracker.client.search_traces(locations=[tracker.experiment_id]))
    spans = [span for trace in traces for span in trace.data.spans]
    steps = {"AgenticIQA", "planner", "executor", "executor.select_tools", "summarizer", "summarizer.score"}
    assert steps | {"scripted/model"} <= {span.name for span in spans}
    assert "PARSER" not in {span.span_type for span in spans}
    assert {"executor.select_tools", "summarizer.score"} <= recording.asked
    tools = [span for span in spans if span.span_type == "TOOL"]
    assert tools
    assert all(1 <= span.outputs["score"] <= 5 and span.inputs["image"] for span in tools)
    written = json.dumps([trace.to_dict() for trace in traces], default=str)
    assert not re.search("base64,(?!.?left out)[A-Za-z0-9+/]{8}", written)
    assert "base64,(left out)" in written
    assert None not in [value for span in spans for value in span.inputs.values()]


@pytest.mark.spec("issue-44/mlflow-list-with-metrics")
def test_the_list_that_commands_name_has_its_columns_and_its_order_in_the_store(store):
    tracker = Tracker(store, "listed")
    address = runs_url("http://mlflow.example", tracker.experiment_id)
    (key,) = parse_qs(urlsplit(address.replace("/#/", "/")).query)["viewStateShareKey"]
    view = json.loads(tracker.client.get_experiment(tracker.experiment_id).tags[f"mlflow.sharedViewState.{key}"])
    asked = {"tags.`agreement`", "tags.`gain`", "params.`chosen`", "params.`model`", "params.`fusion`"}
    assert asked <= set(view["selectedColumns"]) <= set(view["columnOrder"]) == set(view["columnWidths"])
    assert (view["orderByKey"], view["orderByAsc"]) == ("metrics.`srcc`", False)


@pytest.mark.spec("issue-44/mlflow-survives-moving")
def test_a_store_that_was_moved_finds_its_artifacts(tmp_path, monkeypatch):
    tracker = Tracker(tmp_path / "before", "moving")
    with tracker.run("r") as run:
        run.log_content({"a": 1}, "x.json")
    model = tracker.client.create_logged_model(tracker.experiment_id, "m")
    other = tracker.client.create_experiment("elsewhere", artifact_location="file:///elsewhere/artifacts/0")
    (tmp_path / "before").rename(tmp_path / "after")
    client, _ = open_client(tmp_path / "after")
    artifacts = (tmp_path / "after" / "artifacts").as_uri()
    assert client.get_run(run.run_id).info.artifact_uri.startswith(f"{artifacts}/")
    assert client.get_logged_model(model.model_id).artifact_location.startswith(f"{artifacts}/")
    assert client.get_experiment(tracker.experiment_id).artifact_location == artifacts
    assert client.get_experiment(other).artifact_location == "file:///elsewhere/artifacts/0"
    assert json.loads(Path(client.download_artifacts(run.run_id, "x.json")).read_text("utf-8")) == {"a": 1}
    with Tracker(tmp_path / "after", "moving").run("again") as again:
        again.log_content({"a": 2}, "x.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["after"]


def test_the_page_of_runs_refuses_what_it_cannot_show(tmp_path, monkeypatch, capsys):
    assert runs_command([str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err
    tracker = Tracker(tmp_path / "mlruns", "empty")
    assert runs_command([str(tmp_path / "mlruns")]) == 2
    assert "holds no run; agentic-iqa compile makes the first" in capsys.readouterr().err
    with tracker.run("r"), socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert runs_command([str(tmp_path / "mlruns"), "--data", "other"]) == 2
        assert "holds no run over 'other'" in capsys.readouterr().err
        assert runs_command([str(tmp_path / "mlruns"), "--port", str(port)]) == 2
    assert f"port {port}: is taken" in capsys.readouterr().err
    monkeypatch.setattr("program.runs._PATIENCE_S", 0)
    assert runs_command([str(tmp_path / "mlruns"), "--port", str(port)]) == 2
    assert "no answer in 0 s" in capsys.readouterr().err  # busy, which another folder does not cure


def test_the_wait_for_the_page_of_runs_is_announced_before_it_begins(store, monkeypatch, capsys):
    def begun(folder):
        raise InputError(capsys.readouterr().err)

    monkeypatch.setattr("program.tracking.store.open_client", begun)
    assert runs_command([str(store)]) == 2
    assert f"opening the runs in {str(store)!r} with MLflow, which takes some seconds" in capsys.readouterr().err


@pytest.mark.slow
def test_the_page_of_runs_is_only_opened_where_a_server_shows_it(server, tmp_path, monkeypatch, capsys):
    address, _ = server
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    tracker, opened = Tracker(tmp_path, "shown"), []
    with tracker.run("r"):
        pass
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert runs_command([]) == 0
    assert opened == [tracker.ui_hint]
    assert f"{address}/#/experiments/{tracker.experiment_id}/runs?" in capsys.readouterr().out


def test_ui_hint_names_the_store_as_seen_from_here(store, monkeypatch):
    tracker = Tracker(store, "hint")
    *words, folder = shlex.split(tracker.ui_hint)
    assert words == ["agentic-iqa", "runs"]
    assert Path(folder).resolve() == store.resolve()
    monkeypatch.delenv("AGENTICIQA_MLRUNS_DIR")
    monkeypatch.chdir(store.parent)
    assert tracker.ui_hint == "agentic-iqa runs"


def test_the_import_is_light():
    code = "import sys, program.tracking; print({'mlflow', 'dspy', 'torch', 'scipy', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("set()\n", "")


@pytest.mark.slow
def test_the_first_store_is_made_quietly(forks):
    assert (forks.first_line, forks.errors.read_text("utf-8")) == ("true\n", "")
    assert sorted(path.name for path in forks.folder.iterdir()) == ["mlruns"]


@pytest.mark.filterwarnings("default")  # MLflow turns any warning of its own dependencies into a trace that is lost
def test_an_assessment_writes_its_facts_on_the_trace_that_is_recorded(tmp_path, assess_a_picture):
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    mlflow.create_experiment("traces", artifact_location=(tmp_path / "artifacts").as_uri())
    mlflow.set_experiment("traces")
    with mlflow.start_span("request") as span:
        result = assess_a_picture()
    stored = mlflow.get_trace(span.trace_id, flush=True).data.spans[0].attributes
    assert stored["agentic_iqa.mode"] == "scoring"
    assert stored["agentic_iqa.score"] == result.quality_score
    assert stored["agentic_iqa.lm_calls"] == result.usage.lm_calls == 0  # the expert is free


@pytest.fixture
def assess_a_picture(rng):
    from program.agent.loop import AgenticIQA

    picture = rng.integers(0, 256, (32, 48, 3), dtype=np.uint8)
    return lambda program=None: (program or AgenticIQA())(image=picture)


@pytest.mark.spec("047/a-store-of-files-names-its-migration")
@pytest.mark.parametrize("address", ["file://{f}/my%20runs", "{f}/my runs", "file:{f}/my%20runs"])
def test_a_store_of_files_names_what_makes_a_database_of_it(tmp_path, monkeypatch, address):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address.format(f=tmp_path))
    (tmp_path / "my runs").mkdir()
    for opened in (lambda: Tracker(tmp_path, "x"), lambda: open_client(tmp_path)):
        with pytest.raises(InputError, match="cannot be opened") as caught:
            opened()
        assert f"mlflow migrate-filestore --source '{tmp_path}/my runs' --target sqlite:///mlflow.db" in str(
            caught.value
        )
        assert "\n" not in str(caught.value)


@pytest.mark.spec("047/two-stores-never-share-a-file")
@pytest.mark.parametrize("name", ["a?b", "a%20b", "a%2Fb", "a#b", "50%", "a?mode=memory"])
def test_two_stores_never_share_a_file(tmp_path, monkeypatch, name):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for folder in (tmp_path / name, tmp_path / f"{name}2"):
        with contextlib.suppress(InputError):
            tracker = Tracker(folder, "x")
            assert (folder / "mlflow.db").is_file()
            assert [each.name for each in tracker.client.search_experiments() if each.name == "x"] == ["x"]
    assert {path.name for path in tmp_path.iterdir()} <= {name, f"{name}2"}
    if "?" in name:
        with pytest.raises(InputError, match="an address reads the"):
            Tracker(tmp_path / name, "x")


@pytest.mark.slow
def test_a_real_server_that_dies_costs_one_warning_and_no_error(server, store, caplog, monkeypatch):
    address, kill = server
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    tracker = Tracker(store, "dying")
    with tracker.run("whole", {"note": "fine"}, result="the result is in 'here'") as run:
        run.log_params({"seed": 1})
        run.log_dataset("clive", "0" * 64, "clive/manifest.jsonl", "test")
        with run.run_beside("chosen", {"command": "test"}) as child:
            child.log_metrics({"srcc": 0.1})
        begun = tracker.client.get_run(run.run_id)
        assert (begun.data.params, begun.data.tags["note"]) == ({"seed": "1"}, "fine")
        assert begun.inputs.dataset_inputs[0].dataset.digest == "0" * 36
        (beside,) = tracker.client.search_runs([tracker.experiment_id], "tags.command = 'test'")
        assert (beside.info.status, beside.data.metrics) == ("FINISHED", {"srcc": 0.1})
        kill()
        with run.run_beside("later", {"command": "test"}) as child:
            child.log_metrics({"srcc": 0.7})
        run.log_table([{"id": "a"}])
    assert run.run_id is None
    (line,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert address in line
    assert "the result is in 'here'" in line
