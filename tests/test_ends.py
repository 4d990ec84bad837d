"""What a command leaves when the MLflow store breaks, when another run has its folder, and when it is refused."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from program import assess, evaluate
from program import compile as compiler
from program.gallery.__main__ import main as gallery
from program.running.runner import Asking
from tests.scenarios import grain, write_lines

pytestmark = pytest.mark.usefixtures("undrawn", "coarse")

FULL = "CREATE TRIGGER full BEFORE INSERT ON {} BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, settings, and one cache and MLflow store for all tests: making a store takes seconds."""
    home = tmp_path_factory.mktemp("ends")
    rng, lines = np.random.default_rng(7), []
    for number, split in enumerate(["train"] * 4 + ["validation"] * 8 + ["test"] * 4):
        grain(rng, 6, 8, 8).save(home / f"{number}.png")
        lines.append({"id": f"s{number}", "image": f"{number}.png", "mos": 1 + number % 4, "split": split})
    write_lines(home / "data.jsonl", lines)
    (home / "small.yaml").write_text(
        "compile: {rerank: 1, workers: 1, baselines: false}\ntracking: {traces: 0}\n", "utf-8"
    )
    return home


@pytest.fixture(autouse=True)
def _shared(home: Path, _hermetic: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTICIQA_CACHE_DIR", str(home / "cache"))
    monkeypatch.setenv("AGENTICIQA_MLRUNS_DIR", str(home / "mlruns"))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def full(home: Path):
    """Let the store take nothing more into a table: `full("runs")`; afterwards it takes everything again."""
    database = home / "mlruns" / "mlflow.db"
    if not database.is_file():
        assert evaluate.main(evaluation(home)) == 0

    def fill(table: str) -> None:
        with closing(sqlite3.connect(database)) as store:
            store.execute(FULL.format(table))

    yield fill
    with closing(sqlite3.connect(database)) as store:
        store.execute("DROP TRIGGER IF EXISTS full")


def compilation(home: Path, out: Path, *more: str) -> list[str]:
    return ["--data", str(home / "data.jsonl"), "--config", str(home / "small.yaml"), "--optimizer", "none", "--out",
            str(out), *more]  # fmt: skip


def evaluation(home: Path, *more: str) -> list[str]:
    return [str(home / "data.jsonl"), "--config", str(home / "small.yaml"), *more]


def runs(home: Path) -> list[str]:
    with closing(sqlite3.connect(home / "mlruns" / "mlflow.db")) as store:
        own = "run_uuid not in (select run_uuid from tags where value = 'test')"
        return [status for (status,) in store.execute(f"select status from runs where {own}")]  # noqa: S608


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize(("table", "shape"), [("runs", []), ("metrics", ["--json"])])
def test_a_store_that_is_full_costs_a_compile_one_warning(home, tmp_path, full, capsys, caplog, table, shape) -> None:
    full(table)
    assert compiler.main(compilation(home, tmp_path / "program", *shape)) == 0
    shown = capsys.readouterr().out
    if shape:
        result = json.loads(shown)
        assert (result["mlflow_run"], result["uncompiled"]["scoring"]["used"]) == (None, 4)
    else:
        assert f"--program {tmp_path / 'program'}" in shown
        assert "all runs" not in shown
    (line,) = warnings(caplog)
    assert "database or disk is full" in line
    assert repr(str(tmp_path / "program")) in line
    assert "\n" not in line
    left = json.loads((tmp_path / "program" / "program.json").read_text("utf-8"))["record"]
    assert left["finished"]
    assert left["compiled"]["scoring"]["used"] == 4
    assert "RUNNING" not in runs(home)


def test_a_compile_that_cannot_be_registered_says_so_after_its_result(home, tmp_path, full, capsys, caplog) -> None:
    full("registered_model_aliases")
    assert compiler.main(compilation(home, tmp_path / "program", "--json", "--register", "mine")) == 1
    result = json.loads(capsys.readouterr().out)
    assert len(result["mlflow_run"]) == 32
    assert result["registered"] is None
    (line,) = warnings(caplog)
    assert "'mine'" in line
    assert "--resume" in line


@pytest.mark.parametrize(("table", "shape"), [("runs", []), ("metrics", ["--json"])])
def test_a_store_that_is_full_costs_an_evaluation_one_warning(home, full, capsys, caplog, table, shape) -> None:
    full(table)
    assert evaluate.main(evaluation(home, *shape)) == 0
    shown, told = capsys.readouterr()
    assert "Traceback" not in told
    if shape:
        record = json.loads(shown)
        assert (record["mlflow_run"], record["scoring"]["used"]) == (None, 4)
    else:
        assert "4 samples in" in shown
        assert "MLflow run" not in shown
    (line,) = warnings(caplog)
    assert "database or disk is full" in line


def test_a_dataset_that_another_run_enters_meanwhile_is_logged_all_the_same(home, tmp_path, full, capsys) -> None:
    from mlflow.store.tracking.dbmodels.models import SqlDataset
    from sqlalchemy import event

    # A manifest of its own: of the shared one the dataset is in the store already.
    manifest = home / "other.jsonl"
    manifest.write_text((home / "data.jsonl").read_text("utf-8").replace('"mos": 1', '"mos": 1.5'), "utf-8")
    entered = []

    def enter(_row, _arguments, values):
        """Be the other run: MLflow looked for the dataset, found none, and is about to enter it."""
        if not entered:
            entered.append(values)
            row = {**values, "dataset_uuid": "f" * 32}
            names = ", ".join(row)
            with closing(sqlite3.connect(home / "mlruns" / "mlflow.db")) as store, store:
                places = ", ".join("?" * len(row))
                store.execute(f"INSERT INTO datasets ({names}) VALUES ({places})", list(row.values()))  # noqa: S608

    event.listen(SqlDataset, "init", enter)
    try:
        arguments = [str(manifest) if word.endswith("data.jsonl") else word
                     for word in compilation(home, tmp_path / "program", "--json")]  # fmt: skip
        assert compiler.main(arguments) == 0
    finally:
        event.remove(SqlDataset, "init", enter)
    run = json.loads(capsys.readouterr().out)["mlflow_run"]
    assert entered
    with closing(sqlite3.connect(home / "mlruns" / "mlflow.db")) as store:
        inputs = store.execute("select source_id from inputs where destination_id = ?", (run,)).fetchall()
    assert len(inputs) == 3  # train, validation and test
    assert ("f" * 32,) in inputs


@pytest.mark.parametrize("main", [compiler.main, evaluate.main])
def test_a_server_that_does_not_answer_is_refused_before_any_work(
    home, tmp_path, capsys, caplog, monkeypatch, main
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret-word@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    out = tmp_path / "out"
    arguments = {compiler.main: compilation(home, out), evaluate.main: evaluation(home, "--report", str(out))}[main]
    assert main(arguments) == 2
    said = capsys.readouterr()
    last = said.err.splitlines()[-1]
    assert last.startswith("error: ")
    assert "127.0.0.1:9" in last
    assert "MLFLOW_TRACKING_URI" in last
    assert "secret-word" not in said.err + caplog.text
    assert said.out == ""
    assert not (out / "program.json").exists()
    assert not (out / "report.html").exists()
    assert not out.is_file()


class Tracking(BaseHTTPRequestHandler):
    """A tracking server that takes all there is, or refuses to begin a run (`refusal`)."""

    refusal = ""

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        status, content = 200, {}
        if self.path.startswith("/api/2.0/mlflow/experiments/get-by-name"):
            content = {"experiment": {"experiment_id": "7", "name": "data", "lifecycle_stage": "active"}}
        elif self.path.startswith("/api/2.0/mlflow/runs/create") and self.refusal:
            status, content = 400, {"error_code": "INVALID_PARAMETER_VALUE", "message": self.refusal}
        elif self.path.startswith(("/api/2.0/mlflow/runs/create", "/api/2.0/mlflow/runs/get")):
            names = {"run_id": "f" * 32, "run_uuid": "f" * 32, "experiment_id": "7"}
            content = {"run": {"info": {**names, "artifact_uri": "mlflow-artifacts:/7/f/artifacts"}, "data": {}}}
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_PATCH = answer  # noqa: N815 (the names that http.server looks for)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def tracking(monkeypatch: pytest.MonkeyPatch):
    """Serve `Tracking` at an address with a password, which MLFLOW_TRACKING_URI names."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(Tracking, "refusal", "")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Tracking)
    thread = Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret-word@127.0.0.1:{server.server_port}")
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("before", [0, 160])
def test_a_server_that_breaks_is_told_without_its_password_or_half_of_a_key(
    home, tracking, capsys, caplog, monkeypatch, before
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "a-token-that-is-cut-4f9c2a17e6")
    monkeypatch.setattr(Tracking, "refusal", f"{'x' * before} a-token-that-is-cut-4f9c2a17e6 of secret-word")
    assert evaluate.main(evaluation(home)) == 0
    (line,) = warnings(caplog)
    assert f"http://<password>@{tracking}" in line
    said = "".join(capsys.readouterr()) + line
    assert [word for word in ("secret-word", "a-token", "4f9c") if word in said] == []


def test_the_page_of_a_run_is_told_without_the_servers_password(home, tracking, capsys) -> None:
    assert evaluate.main(evaluation(home)) == 0
    out, err = capsys.readouterr()
    assert f"http://{tracking}/#/experiments/7/runs" in out
    assert "secret-word" not in out + err


@pytest.mark.parametrize("more", ["--resume", "--force"])
def test_a_folder_that_a_compile_is_writing_is_refused_to_another(home, tmp_path, capsys, monkeypatch, more) -> None:
    from optimizers import compiling

    out, gather, codes = tmp_path / "program", compiling.collect_examples, []

    def meanwhile(*arguments, **named):
        if not codes:
            codes.append(None)  # one at a time, should it not be refused
            codes[0] = compiler.main(compilation(home, out, more))
        return gather(*arguments, **named)

    monkeypatch.setattr(compiling, "collect_examples", meanwhile)
    before = len(runs(home)) if (home / "mlruns" / "mlflow.db").is_file() else 0
    assert compiler.main(compilation(home, out)) == 0
    said = capsys.readouterr()
    assert codes == [2]
    (line,) = (line for line in said.err.splitlines() if line.startswith("error: "))
    assert repr(str(out))[:-1] in line
    assert said.out.count(f"--program {out}") == 1, said.out
    assert len(runs(home)) == before + 1
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.fixture
def compiled(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder that a compile wrote."""
    if not (home / "compiled").is_dir():
        assert compiler.main(compilation(home, home / "compiled")) == 0
        capsys.readouterr()
    return Path(shutil.copytree(home / "compiled", tmp_path / "program"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_program_that_is_there_is_replaced_with_force_only(home, compiled, tmp_path, capsys) -> None:
    before = contents(tmp_path)
    assert compiler.main(compilation(home, compiled, "--seed", "3")) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    for word in (repr(str(compiled)), "--force", "--resume"):
        assert word in said.err
    assert compiler.main(compilation(home, compiled, "--seed", "3", "--dry-run")) == 0
    assert contents(tmp_path) == before
    assert compiler.main(compilation(home, compiled, "--seed", "3", "--force")) == 0
    assert json.loads((compiled / "program.json").read_text("utf-8"))["record"]["seed"] == 3


def test_a_resume_that_is_refused_prints_no_plan_and_leaves_no_run(home, compiled, tmp_path, capsys) -> None:
    before, logged = contents(tmp_path), runs(home)
    assert compiler.main(compilation(home, tmp_path / "nowhere", "--resume")) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "no compile was begun there" in said.err
    assert (contents(tmp_path), runs(home)) == (before, logged)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
@pytest.mark.parametrize(
    ("main", "number"),
    [(assess.main, "SIGTERM"), (evaluate.main, "SIGTERM"), (gallery, "SIGTERM"), (assess.main, "SIGHUP")],
    ids=["assess", "evaluate", "gallery", "assess on hang-up"],
)
def test_a_command_that_is_told_to_end_says_how_to_go_on_and_does(
    home, tmp_path, capsys, monkeypatch, request, main, number
) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for each in range(4):
        shutil.copy(home / f"{each}.png", pictures)
    arguments, kept = {
        assess.main: ([str(pictures), "--out", str(tmp_path / "table.jsonl")], "the same command continues there"),
        evaluate.main: (evaluation(home), "the same command goes on from there"),
        gallery: ([str(pictures), "--out", str(tmp_path / "gallery")], "the same command"),
    }[main]
    sent = getattr(signal, number)
    # Below nohup a hang-up is ignored, and commands heed that.
    request.addfinalizer(partial(signal.signal, sent, signal.signal(sent, signal.SIG_DFL)))
    judge, judged, ends_at = Asking.__call__, [], 2

    def counted(self, asked):
        judged.append(asked.id)
        if len(judged) == ends_at:
            os.kill(os.getpid(), sent)
            time.sleep(0.1)  # the main thread begins nothing else
        return judge(self, asked)

    monkeypatch.setattr(Asking, "__call__", counted)
    assert main([*arguments, "--workers", "1"]) == 128 + sent
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"stopped by {number}; ")
    assert kept in last
    assert signal.getsignal(getattr(signal, number)) == signal.SIG_DFL
    before = set(judged)
    assert len(before) < 4
    judged.clear()
    ends_at = 0
    assert main([*arguments, "--workers", "1"]) == 0
    # An evaluation has its answers from the cache, the others from their log.
    assert len(judged) == 4 - (len(before) if main is not evaluate.main else 0), (before, judged)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="children are looked up in /proc")
def test_no_process_of_a_command_outlives_sigterm(home, tmp_path) -> None:
    table = tmp_path / "table.jsonl"
    for each in range(400):
        shutil.copy(home / f"{each % 16}.png", tmp_path / f"{each}.png")
    process = subprocess.Popen(
        [sys.executable, "-m", "program.assess", str(tmp_path), "--out", str(table)],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[1], env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip
    log = table.with_name("table.jsonl.partial")
    while process.poll() is None and not (log.is_file() and log.read_text("utf-8").count("\n") > 2):
        time.sleep(0.02)
    children = [int(child) for task in Path(f"/proc/{process.pid}/task").iterdir()
                for child in (task / "children").read_text().split()]  # fmt: skip
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143, said
    assert said.splitlines()[-1].startswith("stopped by SIGTERM; what was judged is kept"), said
    assert children
    assert len(log.read_text("utf-8").splitlines()) < 400
    while any(map(is_alive, children)):  # they end when they see that nobody sends them work
        time.sleep(0.05)


def is_alive(process: int) -> bool:
    try:
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())  # of one that ended, and was not waited for: empty
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals to a child differ on Windows")
def test_a_server_of_an_agent_ends_on_sigterm_though_its_input_is_open() -> None:
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; from program.serve import offer; sys.exit(offer([]))"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip
    with process:
        process.stdin.write(json.dumps(hello) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == -signal.SIGTERM
