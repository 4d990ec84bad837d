"""The model registry: what a registered program holds, who leads, and the same score wherever it is served from."""

import base64
import contextlib
import json
import os
import shlex
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest

from optimizers.command import gain_is_clear, register_compiled
from program import AgenticIQA
from program.agent.saving import load, program_sha256, save
from program.common.errors import InputError
from program.common.settings import load_settings
from program.compile import main as compile_command
from program.evaluation.figures import summarize
from program.evaluation.intervals import Figure
from program.evaluation.record import EvaluationRecord
from program.running.row import Row
from program.tracking import Tracker
from program.tracking.models import CHAMPION, check_name, fetch, find_champion, log_program
from tests.rows import labelled
from tests.scenarios import grain

ROOT = Path(__file__).resolve().parents[1]
KEY = "sk-planted-0123456789"

pytestmark = [
    pytest.mark.filterwarnings("default"),  # MLflow's model code warns of type hints and of its own parts
    pytest.mark.usefixtures("coarse"),
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("registry")


@pytest.fixture
def settings(base: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("AGENTICIQA_MLRUNS_DIR", str(base / "mlruns"))
    monkeypatch.setenv("AGENTICIQA_CACHE_DIR", str(base / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    return load_settings()


@pytest.fixture(scope="module")
def photo(base: Path) -> Path:
    grain(np.random.default_rng(5), 12, 16, 16).save(base / "photo.jpg", quality=40)
    return base / "photo.jpg"


def _record(predicted) -> EvaluationRecord:
    truths = np.linspace(1, 5, len(predicted))
    return summarize([
        labelled(id=f"{i:03}", group=f"{i}", task="scoring", truth=float(t),
                 predicted=None if np.isnan(p) else float(p), status="failed" if np.isnan(p) else "ok")
        for i, (t, p) in enumerate(zip(truths, predicted, strict=True))
    ])  # fmt: skip


@pytest.fixture(scope="module")
def logged():
    """The run of this module's tests that holds the program: to log it takes longer than to register it."""
    return {}


@pytest.fixture
def register(base, settings, logged, monkeypatch):
    """Register the shipped program with a test record, after its rival's: `register(name, record, rival)`."""
    tracker = Tracker(settings.mlruns_dir, "registry")
    if not logged:
        folder = save(AgenticIQA(settings), base / "program")
        with tracker.run("compile") as run:
            log_program(run, folder, program_sha256(AgenticIQA(settings)), Row.kinds(), "plain", {})
        logged["run"] = run
    job = SimpleNamespace(settings=settings, splits={"test": []}, optimizers=("rubric",))

    def one(name, record, rival=None):
        monkeypatch.setattr("optimizers.command.run_samples", lambda *_, **__: rival)
        return register_compiled(name, job, record, tracker, logged["run"])

    one.tracker, one.job, one.run = tracker, job, logged["run"]
    return one


def test_a_champion_is_dethroned_only_by_a_paired_interval_above_zero(register):
    rng = np.random.default_rng(1)
    truth = np.linspace(1, 5, 60)
    good, poor = truth + rng.normal(0, 0.3, 60), truth + rng.normal(0, 2.0, 60)
    first = register("rivals", _record(poor))
    assert (first.champion, first.version) == (True, 1)
    same = register("rivals", _record(poor + 0.01), rival=_record(poor))
    assert not same.champion
    assert "against version 1" in same.why
    better = register("rivals", _record(good), rival=_record(poor))
    assert better.champion
    assert find_champion(register.tracker, "rivals").version == better.version == 3
    worse = register("rivals", _record(poor), rival=_record(good))
    assert not worse.champion
    assert find_champion(register.tracker, "rivals").version == 3


def test_of_two_that_end_together_the_second_is_compared_with_what_the_first_left(register, monkeypatch):
    rng = np.random.default_rng(1)
    truth = np.linspace(1, 5, 60)
    poor, good, between = truth + rng.normal(0, 2.0, 60), truth + rng.normal(0, 0.2, 60), truth + rng.normal(0, 0.5, 60)
    register("crowded", _record(poor))
    rivals = {"models:/crowded/1": _record(poor), "models:/crowded/2": _record(good)}
    late = []

    def end_too():
        late.append(register_compiled("crowded", register.job, _record(between), register.tracker, register.run))

    second = threading.Thread(target=end_too)

    def judge(rival, *_, **__):
        if not second.ident:
            second.start()
            second.join(0.5)
        return rivals[rival]

    monkeypatch.setattr("optimizers.command.load", lambda uri, settings: uri)
    monkeypatch.setattr("optimizers.command.run_samples", judge)
    first = register_compiled("crowded", register.job, _record(good), register.tracker, register.run)
    second.join()
    assert (first.champion, first.version) == (True, 2)
    assert not late[0].champion
    assert "against version 2" in late[0].why


@pytest.fixture
def locked_store():
    """A tracker whose store answers every request as one whose database is locked."""

    import mlflow

    class Locked(BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps({"error_code": "INTERNAL_ERROR", "message": "database is locked"}).encode()
            self.send_response(400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Locked)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield SimpleNamespace(client=mlflow.MlflowClient(f"http://127.0.0.1:{server.server_port}"))
    server.shutdown()
    server.server_close()


def test_a_store_that_does_not_answer_makes_no_champion(locked_store):
    with pytest.raises(
        InputError, match=r"model 'rivals': .*database is locked.*; once it does, .* --resume"
    ) as caught:
        find_champion(locked_store, "rivals")
    assert "\n" not in str(caught.value)


def test_a_model_without_a_champion_has_none(base, settings):
    tracker = Tracker(settings.mlruns_dir, "registry")
    assert find_champion(tracker, "nameless") is None
    tracker.client.create_registered_model("nameless")
    assert find_champion(tracker, "nameless") is None


def test_a_champion_is_not_dethroned_by_failing_on_the_hard_samples(register):
    rng = np.random.default_rng(1)
    truth = np.linspace(1, 5, 200)
    poor, partial = truth + rng.normal(0, 1.0, 200), truth + rng.normal(0, 0.2, 200)
    partial[60:] = np.nan
    register("whole", _record(poor))
    failing = register("whole", _record(partial), rival=_record(poor))
    assert not failing.champion
    assert failing.why == "fails on 140 of 200 test samples, version 1 on 0"
    assert find_champion(register.tracker, "whole").version == 1
    poor[0] = np.nan
    partial = np.where(np.arange(200) == 7, np.nan, truth)
    assert register("whole", _record(partial), rival=_record(poor)).champion


@pytest.mark.parametrize(
    ("differences", "better"),
    [
        ({"srcc": (0.05, 0.01, 0.09), "accuracy": (-0.1, -0.2, -0.05)}, True),
        ({"srcc": (0.05, 0.0, 0.1)}, False),
        ({"accuracy": (0.05, 0.01, 0.1)}, True),
        ({"srcc": (-0.05, -0.1, 0.0), "preference": (0.05, 0.01, 0.1)}, True),
        ({"srcc": (0.05, 0.01, 0.1), "preference": (0.05, 0.0, 0.1)}, False),
        ({"srcc": (None, None, None)}, False),
        ({"srcc": (0.05, None, None)}, False),
        ({}, False),
    ],
)
def test_the_verdict_needs_an_interval(differences, better):
    figures = {
        name: Figure(value=value, low=low, high=high, n=9, groups=9, method="m")
        for name, (value, low, high) in differences.items()
    }
    verdict_, why = gain_is_clear(figures)
    assert verdict_ is better
    assert "\n" not in why


@pytest.fixture
def registered(settings, register):
    with contextlib.suppress(InputError):
        fetch("models:/served@champion", settings)
        return settings
    register("served", _record(np.linspace(1, 5, 20)))
    return settings


def test_a_registered_program_loads_by_alias_and_by_version(base, registered):
    program = load("models:/served@champion", registered)
    assert program_sha256(program) == program_sha256(load(Path("models:/served/1"), registered))
    assert program_sha256(program) == program_sha256(AgenticIQA(registered))
    with pytest.raises(InputError, match="not in the MLflow store"):
        load("models:/served@other", registered)
    with pytest.raises(InputError, match="NAME@champion"):
        load("models:/served", registered)
    with pytest.raises(InputError, match="does not exist"):
        load("models:/x@champion", load_settings(overrides={"mlruns_dir": str(base / "nowhere")}))


def test_the_same_program_from_two_folders_is_registered_twice(base, settings):
    versions = []
    for out in ("here", "there"):
        program = AgenticIQA(settings)
        job = SimpleNamespace(settings=settings, splits={"test": []}, optimizers=("rubric",))
        tracker = Tracker(settings.mlruns_dir, "registry")
        with tracker.run("compile") as run:
            log_program(run, save(program, base / out), program_sha256(program), Row.kinds(), out, {})
            versions.append(register_compiled("twins", job, _record([1.0, 2.0, 3.0]), tracker, run))
    assert [program_sha256(load(version.uri, settings)) for version in versions] == [program_sha256(program)] * 2


def test_a_registered_program_that_was_altered_is_refused_wherever_it_is_loaded(registered):
    from program.service.model import ServedProgram

    file = fetch("models:/served@champion", registered) / "program.json"
    text = file.read_text("utf-8")
    try:
        file.write_text(text.replace('"demos": []', '"demos": [{"query": "x"}]', 1), "utf-8")
        with pytest.raises(InputError, match="altered"):
            load("models:/served@champion", registered)
        with pytest.raises(InputError, match="altered"):
            ServedProgram().load_context(SimpleNamespace(artifacts={"program": str(file.parent)}))
    finally:
        file.write_text(text, "utf-8")


def test_nothing_registered_is_a_pickle_or_holds_a_key(registered):
    files = [path for path in (registered.mlruns_dir / "artifacts").rglob("*") if path.is_file()]
    assert any(path.name == "MLmodel" for path in files)
    assert not [path for path in files if path.suffix in {".pkl", ".pickle", ".cloudpickle"} or "pickle" in path.name]
    kept = [*files, *registered.mlruns_dir.glob("mlflow.db*")]
    assert not [path for path in kept if KEY.encode() in path.read_bytes()]
    assert not [path for path in files if path.suffix == ".pyc"]
    texts = [path.read_bytes() for path in kept if path.suffix not in {".py", ".npz", ".html"}]
    assert not [text for text in texts if b"iVBORw0KGgo" in text or b"/9j/4AAQ" in text or b";base64," in text]


@pytest.mark.parametrize("name", ["", "a/b", "a@b", "-x", "x" * 101])
def test_a_name_that_could_not_be_asked_for_is_refused(name):
    with pytest.raises(InputError, match="cannot be registered"):
        check_name(name)


def _rows(photo):
    data = photo.read_bytes()
    return [
        {"image": base64.urlsafe_b64encode(data).decode()},
        {"image": f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"},
        {"image_path": photo.name},
        {"image_path": "/etc/passwd"},
        {"image": base64.b64encode(data).decode(), "query": "Is it sharp?", "options": '["Yes", "No"]'},
    ]


def _check(answers, photo, settings):
    expected = load("models:/served@champion", settings)(image=photo)
    for answer in answers[:3]:
        assert answer["status"] == "ok", answer
        assert answer["score"] == pytest.approx(expected.score, abs=1e-6)
        assert answer["level"] == expected.level
    assert (answers[3]["status"], answers[3]["score"]) == ("error", None)
    assert answers[4]["answer"] in {"A", "B"}
    assert json.loads(answers[0]["assessment"])["state"]["executor_evidence"]


@pytest.fixture
def allowed(base, monkeypatch):
    config = base / "served.yaml"
    config.write_text(f"serve: {{image_folders: [{json.dumps(str(base))}]}}\n", "utf-8")
    monkeypatch.setenv("AGENTICIQA_CONFIG", str(config))


def test_rows_are_answered_in_python(registered, photo, monkeypatch, capsys):
    import mlflow
    import pandas as pd

    mlflow.set_tracking_uri(f"sqlite:///{registered.mlruns_dir / 'mlflow.db'}")
    model = mlflow.pyfunc.load_model(f"models:/served@{CHAMPION}")
    monkeypatch.chdir(photo.parent)
    answers = json.loads(model.predict(pd.DataFrame(_rows(photo))).to_json(orient="records"))
    _check(answers, photo, registered)
    page = (ROOT / "docs" / "tracking.md").read_text("utf-8").partition("mlflow.pyfunc")[2]
    block = page.partition("```python\n")[2].partition("```")[0].replace("models:/quality@", "models:/served@")
    exec(compile(block, "tracking.md", "exec"), {})  # noqa: S102 - our own page
    assert "score" in capsys.readouterr().out
    answer = model.predict(pd.DataFrame([{"image_bytes": photo.read_bytes()}, {"image_bytes": b"no image"}]))
    assert list(answer["status"]) == ["ok", "error"]
    assert answer["score"][0] == pytest.approx(load("models:/served@champion", registered)(image=photo).quality_score)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn", "untraced", "coarse")
@pytest.mark.spec("issue-44/mlflow-model-has-content")
@pytest.mark.skipif(os.name == "nt", reason="process groups differ on Windows")
def test_the_model_of_any_compile_predicts_from_a_path_wherever_the_store_is(
    settings, photo, few_photographs, tmp_path, started_server, monkeypatch
):
    import mlflow
    import pandas as pd

    words = shlex.split(f"mlflow server --host 127.0.0.1 --workers 1 --backend-store-uri sqlite:///{tmp_path}/own.db")
    words += ["--artifacts-destination", str(tmp_path / "artifacts")]
    offline = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with started_server(words, tmp_path, ready="/health", environment=offline) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        out = tmp_path / "out"
        assert compile_command(["--data", str(few_photographs), "--optimizer", "none", "--out", str(out)]) == 0
        tracker = Tracker(settings.mlruns_dir, few_photographs.parent.name)
        (logged,) = tracker.client.search_logged_models([tracker.experiment_id])
        assert logged.status == "READY"
        mlflow.set_tracking_uri(address)
        model = mlflow.pyfunc.load_model(logged.model_uri)
        answer = model.predict(pd.DataFrame([{"image_path": str(photo)}, {"image_path": "nowhere.png"}]))
        assert list(answer["status"]) == ["ok", "error"]
        assert answer["score"][0] == pytest.approx(load(out, settings)(image=photo).quality_score)
        assert "no such file" in answer["error"][1]


@pytest.fixture(scope="module")
def running():
    """The server of this module's tests, which is started by the first that needs it: its address, and how it stops."""
    with contextlib.ExitStack() as stack:
        yield [], stack


@pytest.fixture
def scoring_server(registered, base, allowed, started_server, running):
    """`mlflow models serve` as it is started by hand."""
    addresses, stack = running
    if addresses:
        return addresses[0]
    words = shlex.split("mlflow models serve -m models:/served@champion --env-manager local --host 127.0.0.1")
    words += ["--workers", "1"]
    environment = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{registered.mlruns_dir / 'mlflow.db'}",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    address = stack.enter_context(started_server(words, base, ready="/ping", environment=environment))
    addresses.append(f"{address}/invocations")
    return addresses[0]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="process groups differ on Windows")
def test_mlflow_models_serve_gives_the_score_that_python_gives(scoring_server, registered, photo, base):
    sent = {"dataframe_records": _rows(photo)}
    response = httpx.post(scoring_server, json=sent, timeout=120, trust_env=False)
    assert response.status_code == 200, response.text
    _check(response.json()["predictions"], photo, registered)
    assert "serve.image_folders" in response.json()["predictions"][3]["error"]
    in_bytes = {"dataframe_records": [{"image_bytes": base64.b64encode(photo.read_bytes()).decode()}]}
    (answer,) = httpx.post(scoring_server, json=in_bytes, timeout=120, trust_env=False).json()["predictions"]
    assert answer["score"] == pytest.approx(load("models:/served@champion", registered)(image=photo).quality_score)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="process groups differ on Windows")
def test_the_request_of_the_documentation_is_answered(scoring_server, photo, monkeypatch, capsys):
    page = (Path(__file__).resolve().parents[1] / "docs" / "serving.md").read_text("utf-8")
    block = page.partition("## MLflow's scoring server")[2].partition("```python\n")[2].partition("```")[0]
    assert "http://127.0.0.1:5000/invocations" in block
    monkeypatch.chdir(photo.parent)
    monkeypatch.setenv("no_proxy", "*")
    code = block.replace("http://127.0.0.1:5000/invocations", scoring_server).replace("photo.jpg", photo.name)
    exec(compile(code, "serving.md", "exec"), {})  # noqa: S102 - our own page
    assert len(capsys.readouterr().out.strip()) > 10


def test_the_service_gives_the_score_that_python_gives(registered, photo, served):
    url = served(load("models:/served@champion", registered))
    with photo.open("rb") as file:
        response = httpx.post(f"{url}/assess", files={"image": file}, timeout=120, trust_env=False)
    assert response.status_code == 200, response.text
    expected = load("models:/served@champion", registered)(image=photo)
    assert response.json()["quality_score"] == pytest.approx(expected.quality_score, abs=1e-6)
