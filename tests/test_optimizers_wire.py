"""Optimizers over a real wire: what they may ask is bounded, what was asked is not asked again, whatever ends them."""

import base64
import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dspy
import numpy as np
import pytest
from PIL import Image

from data.manifest import read_manifest
from optimizers import student
from optimizers.command import compile_tracked
from optimizers.examples import collect_examples
from optimizers.job import prepare_job
from optimizers.student import metered_lm
from program.agent.loop import AgenticIQA
from program.agent.saving import load, program_sha256, save
from program.common.settings import load_settings
from program.compile import main
from program.lms.limits import Budget
from program.lms.traits import ModelTraits
from program.running.row import Row
from program.tracking import Tracker
from program.tracking.models import log_program, promote, register

pytestmark = pytest.mark.usefixtures("undrawn", "unlogged", "untracked", "coarse")

ROOT = Path(__file__).resolve().parents[1]

SETTINGS = """
compile: {rerank: 2, workers: 2, baselines: false}
tracking: {traces: 0}
tools: {device: cpu}
optimizers:
  model:
"""
SMALL = (
    SETTINGS
    + """
    random-search: {demos: 2, role_demos: 1, bootstrapped: 1, starts: 2, search_samples: 6}
    mipro: {demos: 2, role_demos: 1, candidates: 2, trials: 2, search_samples: 4}
    gepa: {metric_calls: 16, minibatch: 2, search_samples: 4}
"""
)


PROPOSALS = ("new_instruction", "proposed_instruction")
"""Outputs of the questions in which GEPA and MIPRO let a model write."""
REFLECTING = ("gepa", pytest.param("mipro", marks=pytest.mark.slow))


@dataclass
class Whole:
    """An undisturbed compile: its data, the server it asked and what it printed."""

    data: Path
    server: Any
    told: dict[str, Any]

    def lead(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let commands use the compile's cache and its MLflow store."""
        for name in ("cache", "mlruns"):
            monkeypatch.setenv(f"AGENTICIQA_{name.upper()}_DIR", str(self.data / name))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, loopback_module):
    """Compile with an optimizer, once for all tests: `whole("gepa")`."""
    done: dict[str, Whole] = {}

    def make(optimizer: str) -> Whole:
        if optimizer not in done:
            made = Whole(written(tmp_path_factory.mktemp("whole")), loopback_module.Loopback().start(), {})
            done[optimizer] = made
            printed, said = io.StringIO(), io.StringIO()
            with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(said):
                made.lead(patch)
                assert main(command(made.data, made.server.base, optimizer)) == 0
            made.told.update(json.loads(printed.getvalue()), stderr=said.getvalue())
        return done[optimizer]

    yield make
    for each in done.values():
        each.server.stop()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Four scored photographs a split, and a settings file of small budgets."""
    return written(tmp_path)


def written(folder: Path) -> Path:
    rng, lines = np.random.default_rng(20260101), []
    for number, split in enumerate(["train"] * 4 + ["validation"] * 4 + ["test"] * 4):
        name = f"{number}.png"
        blocks = np.kron(rng.integers(0, 256, (8, 12, 3)), np.ones((8, 8, 1))).astype(np.uint8)
        Image.fromarray(blocks).save(folder / name)
        shared = {"id": f"s{number}", "image": name, "split": split, "labels": "made-up"}
        lines.append({**shared, "mos": 1 + number % 4, "mos_std": 0.6})
    (folder / "small.yaml").write_text(SMALL, "utf-8")
    (folder / "manifest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return folder


def command(data: Path, base: str, optimizer: str, *more: str) -> list[str]:
    return [
        "--data", str(data / "manifest.jsonl"), "--config", str(data / "small.yaml"), "--optimizer", optimizer,
        "--lm", "openai/small-vlm", "--api-base", base, "--out", str(data / "program"), "--json", *more,
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("answers_on_disk")
@pytest.mark.parametrize("optimizer", ["random-search", "mipro", "gepa"])
def test_calls_stay_under_the_printed_bound_and_a_repeat_asks_nothing(
    data, whole, loopback, capsys, monkeypatch, optimizer
) -> None:
    server = loopback()
    assert main(command(data, server.base, optimizer, "--dry-run")) == 0
    plan = json.loads(capsys.readouterr().out)
    assert server.stats()["requests"] == 0
    assert plan["paid"]
    assert [phase["name"] for phase in plan["phases"]] == ["evidence", optimizer, "choose on validation", "test"]

    done = whole(optimizer)
    data, server, result = done.data, done.server, done.told
    asked = server.stats()["requests"]
    assert 0 < asked <= plan["expected_calls"]
    assert result["uncompiled"]["scoring"]["used"] == 4
    assert result["helped"] == (result["chosen"] != "uncompiled")
    logged = [json.loads(line) for line in (data / "program" / "candidates.jsonl").read_text("utf-8").splitlines()]
    scored = [entry["score"] for entry in logged if entry["event"] == "candidate"]
    assert scored, "no candidate was scored"
    assert "/s]" not in result["stderr"], "a bar of DSPy's stands beside the program's progress"
    assert "not in signature" not in result["stderr"]

    done.lead(monkeypatch)
    assert main(command(data, server.base, optimizer, "--resume")) == 0
    again = json.loads(capsys.readouterr().out)
    assert server.stats()["requests"] == asked
    assert again["chosen"] == result["chosen"]


@pytest.mark.skipif(os.name == "nt", reason="signals differ on Windows")
def test_sigterm_in_the_middle_of_a_round_of_dspy_begins_no_other_run(data, loopback, capsys, monkeypatch) -> None:
    begun, forward = [], student.Student.forward

    def ended(self, **inputs):
        begun.append(None)
        if len(begun) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.3)
        return forward(self, **inputs)

    monkeypatch.setattr(student.Student, "forward", ended)
    assert main(command(data, loopback().base, "gepa")) == 143
    for thread in [each for each in threading.enumerate() if each.name.startswith("ThreadPoolExecutor")]:
        thread.join()
    assert len(begun) <= 2  # one a worker
    *_, first, last = capsys.readouterr().err.splitlines()
    assert first == "stopping: waiting for what is in flight, which may be paid for"
    assert last.startswith("stopped by SIGTERM; the best candidate so far is in")


def test_the_plan_counts_the_champion(data, loopback, capsys) -> None:
    server = loopback()

    def plan(*more: str) -> dict[str, dict[str, int]]:
        assert main(command(data, server.base, "labeled", "--dry-run", *more)) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["expected_calls"] == sum(phase["calls"] for phase in told["phases"])
        return {phase["name"]: {key: phase[key] for key in ("runs", "calls")} for phase in told["phases"]}

    alone, registered = plan(), plan("--register", "mine")
    champion = registered.pop("champion on test")
    assert registered == alone
    assert champion["runs"] == 4
    assert 2 * champion["calls"] == alone["test"]["calls"]
    assert server.stats()["requests"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["gepa", "mipro"])
def test_a_killed_compile_leaves_its_best_and_repeats_no_call_when_resumed(
    data, whole, loopback, tmp_path, optimizer
) -> None:
    undisturbed = whole(optimizer).server.stats()["requests"]
    server = loopback(latency_s=0.05)
    arguments = [sys.executable, "-m", "program.compile", *command(data, server.base, optimizer)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with subprocess.Popen(
        arguments, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as killed:
        log = data / "program" / "candidates.jsonl"
        limit = time.monotonic() + 120
        while (
            time.monotonic() < limit
            and killed.poll() is None
            and not (log.is_file() and "candidate" in log.read_text())
        ):
            time.sleep(0.02)
        assert killed.poll() is None, killed.stderr.read().decode()[-2000:]
        killed.send_signal(signal.SIGKILL)
        killed.wait(10)
    before = server.stats()
    assert before["requests"] > 8
    left = json.loads((data / "program" / "program.json").read_text("utf-8"))
    assert left["record"]["finished"] is False

    done = subprocess.run(
        [*arguments, "--resume"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((data / "program" / "program.json").read_text("utf-8"))["record"]["finished"] is True
    # Only calls that were on their way when the process died, one a worker, may have been sent twice.
    asked = server.stats()["requests"]
    assert before["requests"] < undisturbed <= asked <= undisturbed + 2


@pytest.mark.slow
def test_ctrl_c_in_a_trial_of_optunas_is_told_in_one_line(data, loopback, tmp_path) -> None:
    (data / "small.yaml").write_text(SMALL.replace("trials: 2", "trials: 9"), "utf-8")
    arguments = [sys.executable, "-m", "program.compile", *command(data, loopback(latency_s=0.1).base, "mipro")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    log = data / "program" / "candidates.jsonl"
    with subprocess.Popen(
        arguments, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as stopped:
        while stopped.poll() is None and not (log.is_file() and log.read_text("utf-8").count("\n") > 1):
            time.sleep(0.02)
        stopped.send_signal(signal.SIGINT)
        _, said = stopped.communicate(timeout=120)
    assert stopped.returncode == 130, said
    assert said.splitlines()[-1].startswith("interrupted; the best candidate so far is in ")
    assert "Traceback" not in said


GREEDY = (
    SETTINGS
    + """
    random-search: {demos: 2, role_demos: 1, bootstrapped: 1, starts: 40, search_samples: 4}
    mipro: {demos: 2, role_demos: 1, candidates: 9, trials: 30, search_samples: 4}
    gepa: {metric_calls: 400, minibatch: 2, search_samples: 4}
"""
)


@pytest.mark.parametrize(
    "optimizer", ["random-search", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gepa", "mipro"))]
)
def test_few_model_calls_scale_a_search_or_are_refused_before_anything_is_asked(
    data, loopback, capsys, optimizer
) -> None:
    (data / "small.yaml").write_text(GREEDY, "utf-8")
    server = loopback()
    assert main(command(data, server.base, optimizer, "--dry-run")) == 0
    whole = json.loads(capsys.readouterr().out)["expected_calls"]

    assert main(command(data, server.base, optimizer, "--max-calls", "20")) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    refused = re.fullmatch(
        rf"error: --max-calls 20: {optimizer} needs about (\d+) model calls at least \(.*\); allow as many, .*", said
    )
    assert refused, said
    least = int(refused[1])
    assert 20 < least < whole / 3
    assert server.stats()["requests"] == 0
    assert not (data / "program").exists()

    limit = least + 30
    assert main(command(data, server.base, optimizer, "--max-calls", str(limit))) == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert least <= told["plan"]["expected_calls"] <= limit
    assert f"as --max-calls {limit} allows" in captured.err
    assert told["verdict"]
    assert (data / "program" / "candidates.jsonl").read_text("utf-8"), "nothing was searched"
    assert server.stats()["requests"] <= limit

    asked = server.stats()["requests"]
    assert main(command(data, server.base, optimizer, "--resume", "--max-calls", str(limit))) == 0
    assert json.loads(capsys.readouterr().out)["chosen"] == told["chosen"]
    assert server.stats()["requests"] == asked


def test_a_spent_budget_ends_in_one_line_and_keeps_the_best_so_far(data, loopback, capsys) -> None:
    server = loopback()
    assert main(command(data, server.base, "gepa", "--max-tokens", "4000")) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.match(r"error: budget: \d+ of 4000 tokens are spent", said), said
    assert "--resume continues" in said
    assert (data / "program" / "program.json").is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("tracked")
@pytest.mark.filterwarnings("default")  # MLflow's model code warns of type hints and of its own parts
def test_the_budget_holds_for_judging_the_champion_too(data, loopback, capsys, monkeypatch) -> None:
    monkeypatch.setattr("optimizers.report.log_program", log_program)
    counting, server = loopback(), loopback()
    assert main(command(data, counting.base, "none", "--register", "mine")) == 0
    assert json.loads(capsys.readouterr().out)["registered"]["champion"]
    spent = counting.stats()["requests"]
    other = AgenticIQA(load_settings())
    other.summarizer.classify.signature = other.summarizer.classify.signature.with_instructions("Rate it.")
    settings = load_settings()
    tracker = Tracker(settings.mlruns_dir, "champion")
    with tracker.run("by hand") as run:
        log_program(run, save(other, data / "other"), program_sha256(other), Row.kinds(), "other", {})
        version = register(tracker, run, "mine", {})
    promote(tracker, version)

    monkeypatch.setenv("AGENTICIQA_CACHE_DIR", str(data / "another cache"))
    small = load_settings(data / "small.yaml").with_model("openai/small-vlm", server.base)
    job = prepare_job(small, str(data / "manifest.jsonl"), "none", data / "again")
    registered = compile_tracked(job, register="mine", budget=Budget(max_calls=spent)).registered
    assert (registered.version, registered.champion) == (3, False)
    assert f"budget: {spent} model calls are spent" in registered.why
    assert server.stats()["requests"] == spent


@pytest.mark.parametrize(("token_probabilities", "belief"), [(20, "quality_level"), (0, "quality_probs")])
def test_demos_reach_the_prompt_of_every_role_that_is_taught(data, loopback, token_probabilities, belief) -> None:
    server = loopback(token_probabilities=token_probabilities)
    assert main(command(data, server.base, "labeled", "--roles", "planner,executor,summarizer")) == 0
    for field in ("plan", belief):
        prompts = [question.body["messages"] for question in server.asked if field in question.fields]
        taught = [messages for messages in prompts if any(message["role"] == "assistant" for message in messages)]
        assert taught, f"no demo in any prompt for {field}"
        answers = [m["content"] for messages in taught for m in messages if m["role"] == "assistant"]
        assert all(field in json.loads(answer) for answer in answers)
        if field == belief:
            assert all("findings" in json.loads(answer) for answer in answers)


@pytest.mark.spec("45/nearest")
@pytest.mark.parametrize("optimizer", ["labeled", "bootstrap"])
def test_demos_reach_a_model_that_reads_no_images_and_say_which_photograph_they_are_of(
    data, loopback, optimizer
) -> None:
    server = loopback(modalities=("text",), token_probabilities=0)
    assert main(command(data, server.base, optimizer)) == 0
    prompts = [question.body["messages"] for question in server.asked if "quality_probs" in question.fields]
    assert any(message["role"] == "assistant" for messages in prompts for message in messages)
    assert not any(question.images for question in server.asked)
    program = load(data / "program", load_settings().with_model("openai/small-vlm", server.base))
    assert all(
        demo.get("image") for demo in program.summarizer.score.demos
    )  # so that none is shown with a question about its own photograph


@pytest.mark.spec("45/nearest")
def test_roles_that_score_only_asks_nothing_are_not_optimized(data, loopback, capsys) -> None:
    server = loopback()
    assert main(command(data, server.base, "labeled", "--score-only", "--roles", "planner,summarizer")) == 2
    assert re.match(r"error: roles planner, summarizer: --score-only asks", capsys.readouterr().err.splitlines()[-1])
    assert server.stats()["requests"] == 0
    assert main(command(data, server.base, "labeled", "--score-only", "--dry-run")) == 0
    plan = json.loads(capsys.readouterr().out)
    assert main(command(data, server.base, "labeled", "--score-only")) == 0
    asked = server.stats()
    assert set(asked["by_field"]) == {"quality_level"}
    assert asked["requests"] <= plan["expected_calls"]


@pytest.mark.parametrize(
    ("modalities", "diagnosis", "looks"),
    [(("text", "image"), "merged", True), (("text", "image"), "answer", False), (("text",), "merged", False)],
)
def test_a_predictor_that_no_sample_asks_is_not_optimized(data, loopback, modalities, diagnosis, looks) -> None:
    # In the second the answer names the distortions; in the third the embedded expert does.
    settings = load_settings(overrides={"assessment": {"diagnosis": diagnosis}})
    program = AgenticIQA(settings.with_model("openai/small-vlm", loopback(modalities=modalities).base))
    samples = list(read_manifest(data / "manifest.jsonl"))[:2]
    asked = collect_examples(program, samples, workers=1).asked
    names = student.optimized_predictors(program, ("executor", "summarizer"), ("scoring",), asked)
    assert ("executor.diagnose" in names, "executor.select_tools" in names) == (looks, False)


@pytest.mark.parametrize("optimizer", ["random-search", pytest.param("mipro", marks=pytest.mark.slow)])
def test_no_demo_shows_an_image_that_candidates_are_ranked_or_tested_on(whole, optimizer) -> None:
    done = whole(optimizer)
    train = {(done.data / f"{number}.png").read_bytes() for number in range(4)}
    shown = [
        image for asked in done.server.asked for image in asked.images[: -len(asked.last_images)] if asked.last_images
    ]
    assert shown, "no demo was shown"
    assert set(shown) <= train


def test_reflection_is_priced_and_a_failed_call_of_it_leaves_nobody_waiting(hosted):
    lm, server = hosted(faults=[None, "error_500"])
    metered = metered_lm(lm.copy(num_retries=0))
    with Budget(max_cost_usd=1) as budget:
        metered("Write an instruction.")
        spent = budget.cost_usd
        with pytest.raises(dspy.utils.exceptions.LMError):
            metered("Write another.")
        metered("Write a third.")
    assert server.stats()["requests"] == budget.calls == 3
    assert 0 < spent < budget.cost_usd < 0.01


def objects_of_others() -> dict[tuple[str, ...], int]:
    """Return the identity of every function, class and filter of DSPy, logging and tqdm, by where it stands."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] not in {"dspy", "logging", "tqdm"}:
            continue
        for attribute, value in vars(module).items():
            if callable(value):
                found[name, attribute] = id(value)
            if isinstance(value, type) and value.__module__ == name:
                members = {member: each for member, each in vars(value).items() if callable(each)}
                found |= {(name, attribute, member): id(each) for member, each in members.items()}
    found |= {("cache", name): id(value) for name, value in vars(dspy.cache).items() if callable(value)}
    for name in [*logging.root.manager.loggerDict]:
        if name.split(".")[0] == "dspy":
            found["filters", name] = tuple(map(id, logging.getLogger(name).filters))
            found["handlers", name] = tuple(map(id, logging.getLogger(name).handlers))
    return found


@pytest.mark.parametrize("optimizer", ["bootstrap", pytest.param("mipro", marks=pytest.mark.slow)])
def test_dspy_logging_and_tqdm_are_afterwards_what_they_were(data, loopback, optimizer, request) -> None:
    heard: list[logging.LogRecord] = []
    loggers = [logging.getLogger(f"dspy.{name}") for name in ("clients.lm", "predict.predict")]
    for each in loggers:
        each.addFilter(heard.append)
        request.addfinalizer(partial(each.removeFilter, heard.append))
    AgenticIQA()  # loads what is loaded late
    before = objects_of_others()
    assert main(command(data, loopback().base, optimizer)) == 0
    after = objects_of_others()
    assert {place: after.get(place) for place in before} == before
    for each in loggers:
        each.error("truncated; fields not in signature")
    assert len([record for record in heard if record.msg.startswith("truncated; ")]) == len(loggers)


def asks_for_an_instruction(question) -> bool:
    return not set(question.fields).isdisjoint(PROPOSALS)


def is_a_reflection(question) -> bool:
    program = {"plan", "findings", "selected_tools", "quality_probs", "quality_level", "final_answer"}
    return program.isdisjoint(question.fields)


def reflections_of(server) -> list:
    found = list(filter(is_a_reflection, server.asked))
    assert any(asks_for_an_instruction(question) for question in found)
    return found


@pytest.mark.parametrize("optimizer", REFLECTING)
def test_no_token_probabilities_reach_a_reflection(whole, optimizer) -> None:
    server = whole(optimizer).server
    assert any(question.body.get("logprobs") for question in server.asked)
    for question in reflections_of(server):
        assert not re.search(r"logprob\W+-?\d", question.text)
        assert len(question.text) <= 12_000, "more than a small context holds"


@pytest.mark.spec("D29/a-text-only-model-is-a-full-citizen")
def test_a_model_without_eyes_reflects_on_words_alone_and_leaves_the_question_room(data, loopback, monkeypatch) -> None:
    monkeypatch.setattr(student, "traits_of", lambda lm: ModelTraits(reads_images=False, context_tokens=4096))
    server = loopback()
    assert main(command(data, server.base, "gepa")) == 0
    reflections = reflections_of(server)
    assert not any(question.images for question in reflections)
    assert all(isinstance(m["content"], str) for question in reflections for m in question.body["messages"])
    assert {question.body["max_tokens"] for question in reflections} == {1024}


@pytest.mark.spec("D29/a-text-only-model-is-a-full-citizen")
@pytest.mark.parametrize(("reads_images", "shown"), [(False, 0), (None, 1), (True, 1)])
def test_a_reflection_shows_pictures_unless_the_model_reads_none(loopback, encoded, monkeypatch, reads_images, shown):
    monkeypatch.setattr(student, "traits_of", lambda lm: ModelTraits(reads_images=reads_images))
    server = loopback()
    lm = AgenticIQA(load_settings().with_model("openai/small-vlm", server.base)).resources.lm("summarizer")
    address = f"data:image/png;base64,{base64.b64encode(encoded()).decode()}"
    content = [
        {"type": "text", "text": "Write an instruction."}, {"type": "image_url", "image_url": {"url": address}}
    ]  # fmt: skip
    metered_lm(lm)(messages=[{"role": "user", "content": content}])
    assert [len(question.images) for question in server.asked] == [shown]


@pytest.mark.parametrize("optimizer", REFLECTING)
def test_a_compile_whose_reflections_all_failed_says_that(data, loopback, loopback_module, capsys, optimizer) -> None:
    full = {"error": {"message": "the request exceeds the available context size", "type": "exceed_context_size"}}
    server = loopback(rules=[(is_a_reflection, loopback_module.Reply(400, full))])
    assert main(command(data, server.base, optimizer)) == 0
    told = json.loads(capsys.readouterr().out)
    assert "did not help" not in told["verdict"] or told["chosen"] != "uncompiled"
    said = told["verdict"] if told["chosen"] == "uncompiled" else " ".join(told["notes"])
    assert re.search(r"\b(\d+) of \1 reflections failed: .*the context is full", said), said
    assert not told["helped"] or optimizer == "mipro"  # demos need no instructions


def test_some_failed_reflections_are_counted_and_the_others_used(data, loopback, loopback_module, capsys) -> None:
    refused = loopback_module.Reply(400, {"error": {"message": "no room", "type": "invalid_request_error"}})
    faults = [refused, "", refused]
    server = loopback(rules=[(lambda q: asks_for_an_instruction(q) and faults and (faults.pop() or False), refused)])
    assert main(command(data, server.base, "gepa")) == 0
    told = json.loads(capsys.readouterr().out)
    assert any(re.match(r"2 of \d+ reflections failed: .*no room", note) for note in told["notes"]), told["notes"]
    assert "reflections failed" not in told["verdict"]
    instructions = {question.text for question in server.asked if "Look closely at fine detail" in question.system}
    assert instructions, "no proposal was tried"
