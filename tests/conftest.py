"""Every test: no network, no user's cache or MLflow store, no key, fresh DSPy settings, seeded randomness."""

import asyncio
import collections
import contextlib
import dataclasses
import functools
import gc
import importlib.util
import itertools
import json
import logging
import os
import queue
import re
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["TQDM_DISABLE"] = "1"

# Seeded like everything else, and no folder of Hypothesis's in the tree.
set_hypothesis_home_dir(Path(tempfile.gettempdir()) / "agentic-iqa-hypothesis")
# A busy machine is no fault of a test: neither its deadline nor the pace of making examples counts.
settings.register_profile(
    "hermetic", database=None, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("hermetic")

# LiteLLM takes the thread's event loop, makes one where none is, and leaves closing it to the garbage collector, whose
# complaint fails whichever test runs then. A thread that was told it has none is left alone.
asyncio.set_event_loop(None)

# To search what is imported for garbage is two fifths of what a collection of tests takes, and finds none.
gc.disable()

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "AGENTICIQA_API_KEY")


def _module_at(name):
    """Load a file beside this one by path: no test imports another."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a change of wording be one review."""
    parser.addoption("--renew-transcripts", action="store_true", help="write tests/transcripts anew, then review them")


def pytest_configure(config: pytest.Config) -> None:
    """Count what the tests take."""
    config.pluginmanager.register(_module_at("processor_time").ProcessorTime())
    sys.meta_path.insert(0, _AtImport())


OF_PYIQA = re.compile(r"import pyiqa|pyiqa_table|\b(PSNR|SSIM|VIF|GMSD|FSIM|VSI|NLPD|MAD|PIQE|NIQE|BRISQUE)\b")
FAKED = {"fake_runner", "scripted_iqa", "service_program"}
"""Fixtures whose tools are called by names of pyiqa's."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what speaks of pyiqa's tools where pyiqa was left out (PERMISSIVE=1)."""
    if importlib.util.find_spec("pyiqa") is not None:
        return
    files = {item.path for item in items}
    about = {path for path in files if OF_PYIQA.search(path.read_text("utf-8"))}
    for item in items:
        if item.path in about or FAKED & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.skip(reason="pyiqa is not installed"))


class _AtImport:
    """Finds MLflow's making of its tables as it is imported, so that the first store is copied, too."""

    def find_spec(self, name, path, target=None):
        """Hand the module on to who finds it, and hasten it once it is loaded."""
        if name != "mlflow.store.db.utils":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (load(module), _hasten_database(module))
        return spec


def pytest_collection_finish() -> None:
    """Search for garbage again, but less often than Python does, and not in what was loaded until now."""
    gc.freeze()
    gc.set_threshold(7_000)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _quick_png() -> None:
    """Compress PNGs little, and photographs not: they hold the same, and to make them took more than any test."""
    from PIL import Image, PngImagePlugin

    def save(image, file, name):
        image.encoderinfo.setdefault("compress_level", 0 if image.width * image.height > 50_000 else 1)
        PngImagePlugin._save(image, file, name)

    Image.register_save("PNG", save)


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folders for the tests' homes, made where one writes: to make each takes longer than most tests."""
    root = tmp_path_factory.mktemp("homes")
    return (root / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _hermetic(
    request: pytest.FixtureRequest, _homes: Iterator[Path], shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = next(_homes)
    for name in list(os.environ):
        if name in KEYS or name.startswith(("AGENTICIQA_", "MLFLOW_TRACKING", "MLFLOW_EXPERIMENT")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AGENTICIQA_CACHE_DIR", str(home / "cache"))
    monkeypatch.setenv("AGENTICIQA_MLRUNS_DIR", str(home / "mlruns"))
    monkeypatch.setenv("DSPY_CACHEDIR", str(home / "dspy"))
    # A list of the machine's fonts, which a process makes in half a second where it finds none.
    monkeypatch.setenv("MPLCONFIGDIR", str(shared_folder / "matplotlib"))
    if "dspy" in sys.modules:
        _forget_answers(sys.modules["dspy"], on_disk="answers_on_disk" in request.fixturenames)
    _hasten_mlflow()
    _forget_models()
    for logger in map(logging.getLogger, ("program", "optimizers", "data")):  # commands set these for their process
        if logger.level != logging.NOTSET:  # setting a level empties what all loggers have worked out
            logger.setLevel(logging.NOTSET)


def _forget_answers(dspy: ModuleType, *, on_disk: bool) -> None:
    """Take another test's cache away; in its place comes one in memory, as one on disk takes a tenth of a second."""
    vars(dspy).pop("cache", None)
    if not on_disk:
        dspy.configure_cache(enable_disk_cache=False, disk_cache_dir=None, memory_max_entries=10_000)


def _forget_models() -> None:
    """Forget what models could do, as another process does."""
    if "program.lms.traits" in sys.modules:
        sys.modules["program.lms.traits"]._RECORDS.clear()


@pytest.fixture
def forget_models() -> Callable[[], None]:
    """What forgets models in the middle of a test."""
    return _forget_models


@pytest.fixture
def no_answers_kept() -> None:
    """Ask a language model each time anew."""
    import dspy

    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)


@pytest.fixture
def answers_on_disk() -> None:
    """Let language models' answers be kept where the product keeps them, in a folder of this test's."""


def _hasten_mlflow() -> None:
    """Where MLflow is loaded: work out once a process what is always the same, and wait for no disk or queue."""
    queues = sys.modules.get("mlflow.tracing.export.async_export_queue")
    requirements = sys.modules.get("mlflow.utils.requirements_utils")
    if requirements is not None and not hasattr(requirements._check_requirement_satisfied, "cache_info"):
        requirements._check_requirement_satisfied = functools.cache(requirements._check_requirement_satisfied)
    if queues is not None:
        queues.Queue = _PromptQueue


def _hasten_database(database: ModuleType) -> None:
    from sqlalchemy import Engine, event

    database._initialize_tables = _Migrated(database._initialize_tables)
    database._get_latest_schema_revision = functools.cache(database._get_latest_schema_revision)
    event.listen(Engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))


class _Migrated:
    """MLflow's own making of its tables, done once and copied."""

    def __init__(self, original):
        self.original, self.template = original, None

    def __call__(self, engine):
        """Make the tables of an SQLite file."""
        with contextlib.closing(sqlite3.connect(engine.url.database)) as made:
            if self.template is None or made.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
                self.original(engine)
                self.template = self.template or made.serialize()
            else:
                with contextlib.closing(sqlite3.connect(":memory:")) as template:
                    template.deserialize(self.template)
                    template.backup(made)


class _PromptQueue(queue.Queue):
    """A queue whose reader looks up often: MLflow's own waits out its second before it sees that it is to stop."""

    def get(self, block=True, timeout=None):
        """Return the next item, or raise Empty early."""
        return super().get(block, timeout and min(timeout, 0.02))


_SHORTCUTS = _module_at("shortcuts")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no chart; see shortcuts.py, as for the next ones."""
    _SHORTCUTS.undrawn(monkeypatch)


@pytest.fixture
def untraced(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace no misses, which takes half a second each, unless settings of a test's own say otherwise."""
    file = tmp_path_factory.mktemp("settings") / "untraced.yaml"
    file.write_text("tracking: {traces: 0}\n", "utf-8")
    monkeypatch.setenv("AGENTICIQA_CONFIG", str(file))


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw few resamples."""
    _SHORTCUTS.coarse(monkeypatch)


@pytest.fixture
def unlogged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put no program into MLflow."""
    _SHORTCUTS.unlogged(monkeypatch)


@pytest.fixture
def tracked() -> None:
    """Let one test of a file of `untracked` ones write to MLflow after all."""


@pytest.fixture
def untracked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand MLflow nothing; so a scenario that is read for its runs is made by tests without this."""
    if "tracked" not in request.fixturenames:
        _SHORTCUTS.untracked(monkeypatch)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all processes of this session."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def scenario(shared_folder: Path):
    """Return a scenario's record: `scenario("taught").out`; see scenarios.py."""
    return _module_at("scenarios").Scenarios(shared_folder)


@pytest.fixture
def measured_once(
    shared_folder: Path, _hermetic: None, _homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep what is measured of pictures for all tests, as they make the same ones, and for the scenarios."""
    monkeypatch.setenv("AGENTICIQA_CACHE_DIR", str(shared_folder / "cache"))
    # What models can do is a test's own: the server of another one may have had the same address.
    monkeypatch.setattr("program.lms.traits.MODEL_RECORDS", str(next(_homes) / "models"))


@pytest.fixture
def transcript(request: pytest.FixtureRequest):
    """Compare what a scenario printed with its reviewed transcript: `transcript(scenario("taught"))`."""

    def compare(record):
        file = Path(__file__).parent / "transcripts" / f"{record.folder.name}.txt"
        shown = record.transcript()
        if request.config.getoption("--renew-transcripts"):
            file.write_text(shown, "utf-8")
        assert shown == file.read_text("utf-8"), "review it, and renew it: python -m pytest --renew-transcripts"

    return compare


@pytest.fixture
def few_photographs(blurred_manifest: Path) -> Path:
    """Of the blurred photographs 32 to train on, 11 to choose by (a fusion needs 10), 8 to test on, and 5 questions."""
    lines = [json.loads(line) for line in blurred_manifest.read_text("utf-8").splitlines()]
    most = {"train": 54, "validation": 54, "test": 40}
    kept = [line for line in lines if int(line["group"]) < (most[line["split"]] if "mos" in line else 15)]
    blurred_manifest.write_text("".join(json.dumps(line) + "\n" for line in kept), "utf-8")
    return blurred_manifest


@pytest.fixture
def fifteen_photographs(few_photographs: Path) -> Path:
    """A manifest of fifteen of these with their questions: enough where nothing is learned."""
    fifteen = few_photographs.with_name("fifteen.jsonl")
    lines = few_photographs.read_text("utf-8").splitlines(keepends=True)
    fifteen.write_text("".join(line for line in lines if int(json.loads(line)["group"]) < 15), "utf-8")
    return fifteen


@pytest.fixture
def rng() -> np.random.Generator:
    """A seeded generator."""
    return np.random.default_rng(20260101)


@pytest.fixture
def shared_data() -> Path:
    """The folder with human-scored images; skips where it is not."""
    if not SHARED.is_dir():
        pytest.skip(f"human-scored images not found at {SHARED.name}/ beside the project")
    return SHARED


@pytest.fixture(scope="session")
def _blurred_photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `blurred_manifest` copies: to make it takes a fifth of a second."""
    from PIL import Image

    folder, rng, lines = tmp_path_factory.mktemp("blurred"), np.random.default_rng(20260101), []
    for number in range(54):
        split, level = ("train", "train", "train", "validation", "test")[number % 5], number % 4
        base = Image.fromarray(np.kron(rng.integers(0, 256, (12, 16, 3)), np.ones((8, 8, 1))).astype(np.uint8))
        base.resize((128 >> level, 96 >> level)).resize((128, 96)).save(folder / f"{number}.png")
        shared = {"image": f"{number}.png", "group": str(number), "split": split}
        lines.append({"id": f"s{number}", "mos": 4.8 - 1.2 * level, "mos_std": 0.5, "distortion": "blur", **shared})
        options = {"A": "Yes", "B": "No"}
        question = {"query": "Is the image blurry?", "options": options, "answer": "A" if level > 1 else "B"}
        lines += [{"id": f"q{number}", **question, **shared}] * (number % 3 == 0)
    (folder / "manifest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return folder


@pytest.fixture
def blurred_manifest(_blurred_photographs: Path, tmp_path: Path) -> Path:
    """Photographs from sharp to blurred, each of its own content, with scores and questions."""
    return shutil.copytree(_blurred_photographs, tmp_path, dirs_exist_ok=True) / "manifest.jsonl"


class ScriptedEngine:
    """Answers a model's questions from a script and keeps what it was asked.

    The script is a list of answers in order, or answers by the name of an output field of the question ("plan",
    "findings", "quality_probs", ...): one answer for every time, or a list used up in order. An answer is text as the
    model would send it, or anything JSON for it.
    """

    supports_response_schema, supports_function_calling, supports_reasoning = True, False, False

    def __init__(self, script, *, logprobs=None, params=None):
        from program.lms.traits import ModelRecord

        if isinstance(script, dict):
            script = {name: list(answer) if isinstance(answer, list) else answer for name, answer in script.items()}
        self.script = script if isinstance(script, dict) else list(script)
        self.logprobs = logprobs
        params = (("logprobs", "top_logprobs") if logprobs else ()) if params is None else params
        self.supported_params = frozenset({"response_format", "temperature", "max_tokens", *params})
        self.requests = []
        declared = {} if "logprobs" in self.supported_params else {"token_probabilities": 0}
        self.record = ModelRecord(declared={"takes_references": True, **declared})

    def complete(self, request):
        """Answer one request."""
        from dspy import lm15

        self.requests.append(request)
        answer = self._next(request)
        text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
        wanted = self.logprobs if request.config.logprobs is not None else None
        tokens = wanted and tuple(
            lm15.TokenLogprob(token=t, logprob=p, top=tuple(lm15.TopLogprob(token=u, logprob=q) for u, q in top))
            for t, p, top in wanted
        )
        return lm15.Response(
            id=None,
            model=request.model,
            message=lm15.Message.assistant(text),
            finish_reason="stop",
            usage=lm15.Usage(input_tokens=7, output_tokens=3),
            logprobs=tokens or None,
        )

    def _next(self, request):
        if isinstance(self.script, list):
            assert self.script, "the script has no answer left"
            return self.script.pop(0)
        key = next((k for k in self.fields(request) if k in self.script), None)
        assert key is not None, f"the script has no answer for {self.fields(request)}"
        answer = self.script[key]
        if isinstance(answer, list):
            assert answer, f"the script has no answer left for {key}"
            return answer.pop(0)
        return answer

    @staticmethod
    def fields(request):
        """Return the output fields a request asks for."""
        return list(request.config.response_format["schema"]["properties"])

    @classmethod
    def name(cls, request):
        """Return the output field that a request is known by: the first one that is no reasons."""
        return next(field for field in cls.fields(request) if field != "quality_reasoning")

    def asked(self, field):
        """Return the requests that asked for an output field."""
        return [r for r in self.requests if field in self.fields(r)]

    @staticmethod
    def text(request):
        """Return a request's whole text, instructions first."""
        parts = [part for message in request.messages for part in message.parts]
        return "\n".join([str(request.system or ""), *(p.text for p in parts if hasattr(p, "text"))])

    @staticmethod
    def images(request):
        """Return the URLs of a request's images."""
        return [p.url for message in request.messages for p in message.parts if hasattr(p, "url")]


class FakeRunner:
    """Tools without pixels: scores by tool name, failures by name, and a record of what was measured."""

    def __init__(self, scores=None, *, failing=(), ready=("PSNR", "VIF", "PIQE"), default=2.6):
        from program.tools.registry import ToolRegistry

        registry = ToolRegistry.load()
        self.scores, self.failing, self.default = dict(scores or {}), set(failing), default
        self.specs = tuple(registry.get(name) for name in ready)
        self.measured = []

    def ready(self, mode, **_):
        """Return the ready tools of a mode."""
        return tuple(spec for spec in self.specs if spec.mode == mode)

    @property
    def calibration(self):
        """Maps without figures of how sure the tools are."""
        from program.tools.calibration import PaperCalibration

        return PaperCalibration()

    def precisions(self, readings, belief=None):
        """Say nothing of how sure the tools are."""
        return [None] * len(readings)

    def measure(self, tool_name, image, reference=None, box=None, **_):
        """Measure nothing; say what the script says."""
        from program.tools.registry import Measurement

        self.measured.append((tool_name, image.sha256, reference.sha256 if reference else None, box))
        if tool_name in self.failing:
            return Measurement(tool=tool_name, error=f"tool {tool_name!r}: failed; use another tool", seconds=0.5)
        score = self.scores.get(tool_name, self.default)
        return Measurement(tool=tool_name, raw=score * 10, score=score, seconds=0.25, cached=True, box=box)


@pytest.fixture
def fake_runner():
    """Make a runner of tools that need no pixels: `fake_runner({"VIF": 2.6}, failing=["PSNR"])`."""
    return FakeRunner


@pytest.fixture
def scripted_lm():
    """Make a language model that answers from a script; `lm.engine.requests` are the questions it was asked."""
    import dspy

    def make(script, *, model="scripted/model", cache=False, **engine):
        return dspy.LM(model, engine=ScriptedEngine(script, **engine), cache=cache)

    return make


@pytest.fixture
def scripted_iqa(scripted_lm, fake_runner):
    """Make a program on a scripted model and fake tools; `settings` overrides have the settings' shape."""
    from program.agent.loop import AgenticIQA
    from program.common.settings import load_settings

    def make(script, runner=None, settings=None, **engine):
        # The documents' arithmetic and way to choose tools, unless a test wants the defaults.
        given = settings or {}
        tree = {
            **given,
            "fusion": {"smoothing": 0, "model_weight": 1, **given.get("fusion", {})},
            "executor": {"selection": "model", **given.get("executor", {})},
        }
        iqa = AgenticIQA(load_settings(overrides=tree), lm=scripted_lm(script, **engine))
        iqa.resources.__dict__["runner"] = runner if runner is not None else fake_runner()
        iqa.engine = iqa.resources.lm("planner").engine
        return iqa

    return make


@pytest.fixture
def picture():
    """Make an H x W x 3 uint8 image of seeded noise."""

    def make(seed=0, height=32, width=48):
        return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)

    return make


@pytest.fixture
def photo(picture):
    """A picture of seeded noise, 40 x 60 x 3."""
    return picture(20260101, 40, 60)


@pytest.fixture
def photo_file(tmp_path, picture):
    """A PNG of seeded noise that fades to the right, 120 x 160: it is not the same everywhere."""
    from PIL import Image

    file = tmp_path / "photo.png"
    Image.fromarray(picture(0, 120, 160) // np.arange(1, 9, dtype=np.uint8).repeat(20)[None, :, None]).save(file)
    return file


@pytest.fixture(scope="session")
def loopback_module():
    """The module of the loopback server (`Loopback`, `Faults`, `Reply`, `FAULTS`, ...)."""
    return _module_at("loopback")


@pytest.fixture
def loopback(loopback_module):
    """Start OpenAI-compatible servers on the loopback: `loopback(latency_s=0.2, faults=["drop"])`; see loopback.py."""
    running = []

    def start(**options):
        running.append(loopback_module.Loopback(**options).start())
        return running[-1]

    yield start
    for server in running:
        server.stop()


@pytest.fixture
def on(fake_runner, forget_models):
    """Make the program on a server, as a process that has just started does: `on(server, assessment={...})`."""
    from program.agent.loop import AgenticIQA
    from program.common.settings import load_settings

    def make(server, model="openai/small-vlm", **overrides):
        forget_models()
        assessment = {"max_replan_iterations": 0, **overrides.pop("assessment", {})}
        tree = {"assessment": assessment, "wire": {"backoff_s": 0.01}, **overrides}
        base = None if "models" in overrides else server.base
        iqa = AgenticIQA(load_settings(overrides=tree).with_model(model, base))
        iqa.resources.__dict__["runner"] = fake_runner()
        return iqa

    return make


@pytest.fixture
def hosted(loopback, monkeypatch):
    """Make openai/gpt-4o as `--lm` does, with the loopback in its provider's place: `lm, server = hosted()`."""
    from dspy import lm15

    from program.agent.resources import build_lm
    from program.common.settings import load_settings

    def make(**options):
        server = loopback(**options)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-for-a-hosted-model")
        lm = build_lm(load_settings().with_model("openai/gpt-4o").models.summarizer, cache_dir=None)
        config = lm15.RouterConfig(base_urls={"openai-chat": server.base})
        connection = lm.engine.connection._replace(config=lambda _: config)
        return lm.copy(engine=dataclasses.replace(lm.engine, connection=connection), cache=False), server

    return make


SERVICE_SCRIPT = {
    "plan": {"plan": {
        "query_type": "IQA", "query_scope": ["Global"], "reference_mode": "No-Reference", "distortion_detection": True,
        "distortion_analysis": True, "tool_selection": True, "tool_execute": True,
    }},
    "findings": {"findings": [{"region": "Global", "type": "Blurs", "severity": "moderate", "explanation": "Soft."}]},
    "selected_tools": {"selected_tools": [{"region": "Global", "distortion": "Blurs", "tool": "PIQE"}]},
    "region_boxes": {"region_boxes": []},
    "quality_probs": {"quality_probs": {"2": 0.3, "3": 0.6, "4": 0.1}, "quality_reasoning": "Soft edges."},
    "final_answer": {"final_answer": "B", "quality_reasoning": "Soft edges."},
}  # fmt: skip


@pytest.fixture
def service_program(scripted_iqa):
    """Make a program that answers at once, for services: `service_program(serve={...}, script={...})`."""

    def make(serve=None, script=None, **settings):
        return scripted_iqa({**SERVICE_SCRIPT, **(script or {})}, settings={"serve": serve or {}, **settings})

    return make


@pytest.fixture
def program(service_program, monkeypatch):
    """A program that answers at once, in place of the command's own."""
    made = service_program()
    monkeypatch.setattr("program.agent.saving.AgenticIQA", lambda *_: made)
    return made


@pytest.fixture
def served():
    """Serve a program on a free port of this machine, as long as the test runs; returns the service's URL."""
    with _serving() as start:
        yield start


@pytest.fixture(scope="module")
def served_on():
    """Serve a program as long as a module's tests run."""
    with _serving() as start:
        yield start


@contextlib.contextmanager
def _serving():
    import socket
    import threading
    import time

    import uvicorn

    from program.common.settings import load_settings
    from program.service.app import create_app
    from program.service.server import uvicorn_config

    class Prompt(uvicorn.Server):
        """A server that looks up often: uvicorn's own sees after a tenth of a second that it is to stop."""

        async def main_loop(self):
            while not await self.on_tick(0):
                await asyncio.sleep(0.01)

    running = []

    def start(program=None, token=None, *, app=None):
        listener = socket.create_server(("127.0.0.1", 0))
        settings = load_settings() if program is None else program.resources.settings
        config = uvicorn_config(app or create_app(program, token), settings.serve)
        config.timeout_graceful_shutdown = 2
        server = Prompt(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        running.append((server, thread, listener))
        while not server.started:
            time.sleep(0.01)
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for server, thread, listener in running:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture(scope="session")
def started_server():
    """Run a server's command line on a free port: `with started_server(words, folder, ready="/health") as address`.

    `environment` is added to this process's. The server's own processes end with the block.
    """
    import signal
    import socket
    import subprocess
    import time

    import httpx

    @contextlib.contextmanager
    def run(words, folder, *, ready, environment):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        log = folder / "server.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *words, "--port", str(port)], cwd=folder,
                env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", **environment}, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        address = f"http://127.0.0.1:{port}"
        try:
            with httpx.Client(timeout=2, trust_env=False) as client:
                for _ in range(360):
                    with contextlib.suppress(httpx.HTTPError):
                        if client.get(address + ready).status_code == 200:
                            break
                    assert process.poll() is None, log.read_text()
                    time.sleep(0.5)
            yield address
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    return run


@pytest.fixture
def encoded(picture):
    """Make the bytes of a PNG of seeded noise."""
    import io

    from PIL import Image

    def make(seed=0, height=32, width=48):
        buffer = io.BytesIO()
        Image.fromarray(picture(seed, height, width)).save(buffer, "PNG")
        return buffer.getvalue()

    return make


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium; skips where there is none. Playwright's event loop runs as long as this is in use."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this machine (apt-get install chromium)")
    flags = [
        "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync",
    ]  # fmt: skip
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def violations():
    """Return what axe-core finds wrong on a page, a line a rule; skips where it is not installed."""
    package = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    script = Path(package.__file__).with_name("axe.min.js").read_text("utf-8")

    def of(page):
        page.evaluate(script)
        found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
        return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found]

    return of


@pytest.fixture(scope="module")
def _pages(browser):
    """Pages that no test uses, by what they were made with: a new one takes longer than most tests of it."""
    return collections.defaultdict(list)


@pytest.fixture
def open_page(browser, _pages):
    """Open an address in Chromium; faults of the page, and requests to anything but `own`, fail the test.

    What is open at once shares neither storage nor cookies, and a page begins without either.
    """
    opened, faults, foreign = [], [], []

    def make(url: str, own: str, **given):
        unused = _pages[tuple(given.items())]
        page = unused.pop() if unused else browser.new_context(**given).new_page()
        listeners = {
            "pageerror": lambda error: faults.append(str(error)),
            "console": lambda m: faults.append(m.text) if m.type == "error" and "status of 4" not in m.text else None,
            "request": lambda r: foreign.append(r.url) if not r.url.startswith((own, "blob:", "data:")) else None,
        }
        for event, listener in listeners.items():
            page.on(event, listener)
        opened.append((page, listeners, unused))
        page.set_viewport_size({"width": 1280, "height": 720})
        page.goto(url)
        return page

    yield make
    for page, listeners, unused in opened:
        for event, listener in listeners.items():
            page.remove_listener(event, listener)
        for other in set(page.context.pages) - {page}:
            other.close()
        page.evaluate("localStorage.clear(), sessionStorage.clear()")
        page.context.clear_cookies()
        page.goto("about:blank")
        unused.append(page)
    assert faults == []
    assert foreign == []
