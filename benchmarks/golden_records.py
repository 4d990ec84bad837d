"""The sections of the golden records: `python -m benchmarks.golden_records SECTION FOLDER IMAGES`, one in a process.

`benchmarks/golden.py` starts it in a clean environment. It writes FOLDER/record.json; IMAGES is the folder of the
quickstart data. Nothing here imports what is not public.
"""

import argparse
import asyncio
import csv
import hashlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.golden import ROOT, SAVED
from benchmarks.golden_public import service, surface
from benchmarks.golden_section import QUESTIONS, Section
from benchmarks.golden_wire import wire

# Assessments


def assessments(section: Section) -> Iterator[tuple[str, Any]]:
    """Yield each question over two images, one of them with its reference; other ways in; the command and its table."""
    from program import AgenticIQA

    iqa, samples = AgenticIQA(), section.samples
    for number, question in enumerate(QUESTIONS):
        alone, compared = samples[number], samples[(number + 7) % len(samples)]
        yield f"{number} {alone}", section.assessment(iqa(image=section.image(alone), **question))
        result = iqa(image=section.image(compared), reference=section.reference(compared), **question)
        yield f"{number} {compared} with reference", section.assessment(result)
    yield "ways in", ways_in(iqa, section.image(samples[0]))
    results = iqa.batch([section.image(sample) for sample in samples[:4]] + ["missing.png"], workers=2)
    yield "batch", [(result.status, getattr(result, "final_answer", None)) for result in results]
    yield from assess_command(section, samples)


def ways_in(iqa: Any, image: str) -> dict[str, Any]:
    """Return the score of one image given in each way that there is."""
    import numpy as np
    from PIL import Image

    with Image.open(image) as picture:
        picture.load()
    data = Path(image).read_bytes()
    ways = {"path": Path(image), "bytes": data, "PIL image": picture, "array": np.array(picture.convert("RGB"))}
    scores = {name: iqa(image=way).final_answer for name, way in ways.items()}
    return {**scores, "awaited": asyncio.run(iqa.acall(image=image)).final_answer}


def assess_command(section: Section, samples: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield what `program.assess` prints of one image, two, a folder's table and unusable input."""
    images = [section.image(sample) for sample in samples]
    once = section.command("program.assess", images[0], "--json")
    yield "command", {**once, "printed": section.assessment(once["printed"])}
    compared = section.command("program.assess", images[0], images[4], "--compare", "--json")
    yield "compare", section.normal(compared)
    referred = section.command(
        "program.assess", images[5], images[6], "--compare", "--json", "--reference", section.reference(samples[5])
    )
    yield "compare with reference", section.normal(referred)
    table = section.folder / "table.csv"
    done = section.command("program.assess", *images[:3], "--out", str(table), "--min-score", "3", "--json")
    rows = list(csv.DictReader(io.StringIO(table.read_text("utf-8"))))
    yield "table", section.normal({**done, "rows": rows})
    refused = section.command("program.assess", "missing.png")
    yield "unusable", section.normal(refused)


# Evaluation and compile


def evaluation(section: Section) -> Iterator[tuple[str, Any]]:
    """Yield the records of two small evaluations with baselines."""
    alone = section.manifest("alone", {("test", "scoring"): 36, ("test", "mcq"): 16})
    referred = section.manifest("referred", {("test", "scoring"): 12}, "manifest-fr.jsonl")
    for name, manifest in (("without reference", alone), ("with reference", referred)):
        done = section.command("program.evaluate", manifest, "--baselines", "--json")
        yield name, _shorter(section.normal(done))


def compiled(section: Section) -> Iterator[tuple[str, Any]]:
    """Yield the figures of a short seeded compile, the program that it saved, and what that answers."""
    parts = {("train", "scoring"): 36, ("validation", "scoring"): 24, ("test", "scoring"): 24}
    parts |= {(split, "mcq"): 8 for split in ("train", "validation", "test")}
    manifest, out = section.manifest("short", parts), section.folder / "program"
    done = section.command(
        "program.compile", "--data", manifest, "--config", str(ROOT / ".ci" / "short.yaml"), "--optimizer",
        "rubric", "--seed", "0", "--out", str(out), "--json",
    )  # fmt: skip
    yield "figures", _shorter(section.normal(done))
    document = json.loads((out / SAVED).read_text("utf-8"))
    yield "hashes", {name: document[name] for name in ("format", "program_sha256", "schema_sha256")}
    yield "images", sorted(path.name for path in (out / "images").iterdir())
    yield from answers(section, out)
    yield SAVED, {**document, "record": {}}


def saved(section: Section) -> Iterator[tuple[str, Any]]:
    """Yield what a program answers that was saved before; its demos' images come from the quickstart data."""
    document = (section.folder / SAVED).read_text("utf-8")
    program = section.folder / "program"
    (program / "images").mkdir(parents=True)
    (program / SAVED).write_text(document, "utf-8")
    shown = set(re.findall(r"([0-9a-f]{64})\.png", document))
    for file in (section.images / "images").iterdir():
        data = file.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if digest in shown:
            (program / "images" / f"{digest}.png").write_bytes(data)
    yield from answers(section, program, force=True)  # else an earlier expert's program is refused


def answers(section: Section, program: Path, *, force: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the answers of a saved program to a few questions."""
    from program import load

    iqa = load(program, force=force)
    yield "demos", {name: len(predictor.demos) for name, predictor in iqa.named_predictors()}
    for number in (0, 2, 6, 1):
        sample = section.samples[number]
        result = iqa(image=section.image(sample), **QUESTIONS[number])
        yield f"answer {number}", section.normal({
            "final_answer": result.final_answer, "level_probabilities": result.level_probabilities,
            "score_interval": result.score_interval, "quality_reasoning": result.quality_reasoning,
        })  # fmt: skip


def _shorter(done: Any, *, inside: bool = False) -> Any:
    """Leave out hashes that hold this run's folders, and how intervals were made within a baseline or detail."""
    if isinstance(done, Mapping):
        left_out = {"manifest_sha256", "settings_sha256"}
        parts = {"baselines", "details", "gain"}
        return {k: _shorter(v, inside=inside or k in parts) for k, v in done.items() if k not in left_out}
    if isinstance(done, list):
        is_figure = len(done) == 5 and isinstance(done[0], float) and isinstance(done[4], str)
        return done[:4] if is_figure and inside else [_shorter(item, inside=inside) for item in done]
    return done


# Command


def main(argv: Sequence[str] | None = None) -> int:
    """Record one section into FOLDER/record.json."""
    recorders: dict[str, Callable[[Section], Iterator[tuple[str, Any]]]] = {
        "assessments": assessments, "evaluation": evaluation, "compile": compiled, "saved": saved, "wire": wire,
        "service": service, "surface": surface,
    }  # fmt: skip
    summary = str(__doc__).split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.golden_records", description=summary)
    parser.add_argument("section", choices=recorders)
    parser.add_argument("folder", type=Path)
    parser.add_argument("images", type=Path)
    arguments = parser.parse_args(argv)
    section = Section(arguments.folder, arguments.images)
    values = dict(recorders[arguments.section](section))
    (arguments.folder / "record.json").write_text(json.dumps(values, ensure_ascii=False), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
