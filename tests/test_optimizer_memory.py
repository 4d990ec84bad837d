"""A repeated compile works nothing out again, says the same to the last bit, and never says what no longer holds."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from data.manifest import read_manifest
from optimizers import examples
from optimizers.compiling import compile_program
from optimizers.examples import Store, code_sha256
from optimizers.job import prepare_job
from optimizers.report import Compiled
from program.agent.loop import AgenticIQA
from program.agent.saving import load, program_sha256
from program.agent.state import AssessmentState, ExecutorOutput, SummarizerOutput, ToolLog
from program.common.settings import load_settings
from program.expert.engine import PerceptualEngine
from program.tools.runner import ToolRunner

SMALL = {"tracking": {"traces": 0}}


@pytest.fixture
def compiled(
    few_photographs: Path, fifteen_photographs: Path, tmp_path: Path, undrawn: None, unlogged: None, coarse: None,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    """Compile the manifest with a cache folder by name; settings, recipe and seed may differ.

    The uncompiled program alone is tried on fifteen photographs: it needs none to learn from.
    """

    def make(cache: str = "cache", settings: dict[str, Any] | None = None, seed: int = 0, lm: Any = None,
             optimizer: str = "finetune,fusion") -> Compiled:  # fmt: skip
        monkeypatch.setenv("AGENTICIQA_CACHE_DIR", str(tmp_path / cache))
        # Of the uncompiled program alone no more is read than it asks for.
        compiling = {"rerank": 2, "baselines": optimizer != "none"}
        loaded = load_settings(overrides={**SMALL, "compile": compiling, "seed": seed, **(settings or {})})
        data = str(fifteen_photographs if optimizer == "none" else few_photographs)
        return compile_program(prepare_job(loaded, data, optimizer, tmp_path / "out", lm=lm))

    return make


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was asked of the expert and measured by tools, in order: the image, too, where it was not in the cache."""
    done: list[Any] = []
    asked, measured = PerceptualEngine.complete, ToolRunner.measure

    def complete(self, request):
        done.append("question")
        return asked(self, request)

    def measure(self, name, image, *args, **named):
        reading = measured(self, name, image, *args, **named)
        done.append(name if reading.cached else (name, image.sha256))
        return reading

    monkeypatch.setattr(PerceptualEngine, "complete", complete)
    monkeypatch.setattr(ToolRunner, "measure", measure)
    return done


def told(result: Compiled) -> dict[str, Any]:
    """Return all figures, rows and choices; no time."""
    timed = {"seconds", "spent", "baseline_cost"}
    rows = [[row.model_dump(exclude=timed) for row in record.rows] for record in (result.uncompiled, result.compiled)]
    figures = [
        {name: figure.model_dump() for name, figure in figures.items()}
        for figures in (result.uncompiled.figures, result.compiled.figures, result.differences)
    ]
    beside = {name: way.model_dump() for name, way in result.uncompiled.baselines.items()}
    return {"rows": rows, "figures": figures, "baselines": beside, "chosen": result.chosen, "curve": result.curve,
            "validation": result.validation, "difference": result.difference, "notes": result.notes,
            "program": program_sha256(load(result.folder))}  # fmt: skip


def test_a_repeat_asks_and_measures_nothing_and_says_the_same_to_the_last_bit(compiled, work) -> None:
    first = told(compiled())
    read = [each for each in work if isinstance(each, tuple)]
    assert len(read) == len(set(read)) > 0, "a tool read an image twice"
    del work[:]
    again = compiled()
    assert set(work) == {"question"}, "only a fit asks the expert again"
    assert again.runs == 0
    assert told(again) == first
    # Another seed takes over what holds, and ends as it would alone.
    found, asked = told(compiled(seed=1)), len(work)
    del work[:]
    assert told(compiled(cache="another", seed=1)) == found
    assert asked < len(work) / 2
    assert told(compiled(cache="another")) == first


def rescored(manifest: Path) -> None:
    lines = [json.loads(line) for line in manifest.read_text("utf-8").splitlines()]
    for number, line in enumerate(lines):
        if "mos" in line:
            line["mos"] = 1.2 + (number * 7 % 30) / 10
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


def darkened(manifest: Path) -> None:
    for number in range(0, 40, 3):
        path = manifest.with_name(f"{number}.png")
        Image.open(path).point(lambda value: value // 2).save(path)


def test_changed_data_is_worked_out_anew(compiled, blurred_manifest) -> None:
    before = told(compiled())
    for change in (rescored, darkened):
        change(blurred_manifest)
        after = told(compiled())
        assert after["rows"] != before["rows"], change
        before = after
    assert told(compiled(cache="another")) == after


def test_changed_settings_are_worked_out_anew(compiled, work) -> None:
    compiled(optimizer="none")
    settings: dict[str, Any] = {}
    for change in (
        {"fusion": {"eta": 4.0}}, {"tools": {"calibration": "paper"}}, {"assessment": {"diagnosis": "separate"}},
    ):  # fmt: skip
        del work[:]
        settings |= change
        after = told(compiled(optimizer="none", settings=settings))
        assert work, change
    assert told(compiled(optimizer="none", settings=settings, cache="another")) == after


def test_changed_code_is_worked_out_anew(compiled, work, monkeypatch) -> None:
    compiled(optimizer="none")
    del work[:]
    compiled(optimizer="none")
    assert work == []
    monkeypatch.setattr(examples, "code_sha256", lambda: "another")
    compiled(optimizer="none")
    assert work


def test_the_hash_of_the_code_follows_every_file_that_counts(tmp_path, monkeypatch) -> None:
    package = tmp_path / "package"
    (package / "raw").mkdir(parents=True)
    for name in ("a.py", "b.npz", "raw/c.json", "d.txt"):
        (package / name).write_text("1", "utf-8")
    monkeypatch.setattr(examples, "_PACKAGES", ("package",))
    monkeypatch.setattr(examples, "files", lambda name: tmp_path / name)
    hashed = code_sha256.__wrapped__
    before = hashed()
    for name, counts in (("a.py", True), ("b.npz", True), ("raw/c.json", False), ("d.txt", False)):
        (package / name).write_text("2", "utf-8")
        assert (hashed() != before) == counts, name
        before = hashed()


def test_no_cache_and_other_models_leave_nothing_behind(compiled, scripted_lm, tmp_path) -> None:
    compiled(cache="off", settings={"cache": False}, optimizer="none")
    assert not (tmp_path / "off" / "compiles").exists()
    program = AgenticIQA(load_settings(), lm=scripted_lm([]))
    Store.of(program).put("what", value=1)
    assert Store.of(program).get("what") is None
    assert not (program.resources.settings.cache_dir / "compiles").exists()


def test_what_failed_is_not_kept(blurred_manifest, tmp_path) -> None:
    sample = next(iter(read_manifest(blurred_manifest)))
    stored = Store(tmp_path / "store")

    def state(**evidence: Any) -> AssessmentState:
        answer = SummarizerOutput(final_answer=3.1, quality_reasoning="Because.")
        return AssessmentState(
            query="Rate it.", image_path="0.png", executor_evidence=ExecutorOutput(**evidence), summarizer_result=answer
        )

    lost = ToolLog(tool="PSNR", region="Global", distortion="Blurs", error="took too long")
    for failed in (state(tool_logs=[lost]), state(failed_steps=["analysis"])):
        stored.put_evidence(sample, failed, [])
        assert stored.evidence(sample) is None
    whole = state(quality_scores={"Global": {"Blurs": ("PSNR", 0.1 + 0.2)}})
    stored.put_evidence(sample, whole, [("planner.plan", {"query": "x", "tool_names": ("a", "b")})])
    assert stored.evidence(sample) is None, "a tuple would come back as a list"
    questions = [("planner.plan", {"query": "x", "tool_names": ["a", "b"]})]
    stored.put_evidence(sample, whole, questions)
    assert stored.evidence(sample) == (whole, questions)


def test_a_lost_image_is_told_where_it_is_opened(compiled, blurred_manifest) -> None:
    before = compiled(optimizer="none")
    blurred_manifest.with_name("4.png").unlink()
    after = compiled(optimizer="none")
    assert (before.uncompiled.failed, after.uncompiled.failed) == (0, 1)
    assert compiled(optimizer="none").uncompiled.failed == 1
