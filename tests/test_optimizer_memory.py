"""A repeated compile measures nothing again and says the same to the last bit."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from optimizers.compiling import compile_program
from optimizers.job import prepare_job
from optimizers.report import Compiled
from program.agent.saving import load, program_sha256
from program.common.settings import load_settings
from program.tools.runner import ToolRunner


@pytest.fixture
def compiled(
    few_photographs: Path, fifteen_photographs: Path, tmp_path: Path, undrawn: None, unlogged: None, coarse: None,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    """Compile the manifest; the uncompiled program alone is tried on fifteen photographs."""

    def make(optimizer: str = "finetune,fusion") -> Compiled:
        monkeypatch.setenv("AGENTICIQA_CACHE_DIR", str(tmp_path / "cache"))
        compiling = {"rerank": 2, "baselines": optimizer != "none"}
        loaded = load_settings(overrides={"tracking": {"traces": 0}, "compile": compiling})
        data = str(fifteen_photographs if optimizer == "none" else few_photographs)
        return compile_program(prepare_job(loaded, data, optimizer, tmp_path / "out"))

    return make


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was measured by tools and was not in the cache: tool and image, in order."""
    done: list[Any] = []
    measured = ToolRunner.measure

    def measure(self, name, image, *args, **named):
        reading = measured(self, name, image, *args, **named)
        if not reading.cached:
            done.append((name, image.sha256))
        return reading

    monkeypatch.setattr(ToolRunner, "measure", measure)
    return done


def told(result: Compiled) -> dict[str, Any]:
    """Return all figures, rows and choices; no time."""
    timed = {"seconds", "usage"}
    rows = [[row.model_dump(exclude=timed) for row in record.rows] for record in (result.uncompiled, result.compiled)]
    figures = [
        {name: figure.model_dump() for name, figure in figures.items()}
        for figures in (result.uncompiled.figures, result.compiled.figures, result.differences)
    ]
    beside = {name: way.model_dump() for name, way in result.uncompiled.baselines.items()}
    return {"rows": rows, "figures": figures, "baselines": beside, "chosen": result.chosen, "curve": result.curve,
            "validation": result.validation, "difference": result.difference, "notes": result.notes,
            "program": program_sha256(load(result.folder))}  # fmt: skip


@pytest.mark.slow
def test_a_repeat_measures_nothing_and_says_the_same_to_the_last_bit(compiled, work) -> None:
    first = told(compiled())
    assert len(work) == len(set(work)) > 0, "a tool read an image twice"
    del work[:]
    assert told(compiled()) == first
    assert work == []


def darkened(manifest: Path) -> None:
    for number in range(0, 40, 3):
        path = manifest.with_name(f"{number}.png")
        Image.open(path).point(lambda value: value // 2).save(path)


def test_changed_images_are_measured_anew(compiled, blurred_manifest) -> None:
    before = told(compiled(optimizer="none"))
    darkened(blurred_manifest)
    assert told(compiled(optimizer="none"))["rows"] != before["rows"]


def test_a_lost_image_is_told_where_it_is_opened(compiled, blurred_manifest) -> None:
    before = compiled(optimizer="none")
    blurred_manifest.with_name("4.png").unlink()
    after = compiled(optimizer="none")
    assert (before.uncompiled.failed, after.uncompiled.failed) == (0, 1)
