"""Whole runs of commands, each made once for all tests of a session, which then read what came of it.

A scenario runs in a folder of its own, with its own data and MLflow store, and is the same in every session.
The first test that asks for one makes it, also where several processes run the tests. A test that looks at the
result alone reads the record; one that has to change a file takes a copy.
"""

import contextlib
import functools
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pictures import blocks
from tests.tables import as_lines

KEY = "sk-planted-4f9c2a17e6"
"""The key that the scenarios with a language model send."""
SECRET = "9.png-is-a-key-1234"
"""A key that is the name of a file, too."""


MASKS = (
    (r"(?m)^Next, after .*$", "Next"),  # where the environment lies
    (r"\b[0-9a-f]{12,}\b", "<hash>"),
    (r"\b\d+\.\d+\.\d+\b|(?<=@)r\d+", "<version>"),
    (r"\b(?:about )?\d+(?:\.\d+)? (?:ms|s|min)\b", "<time>"),
    (r"[-+](?=0\.0+\b)", "±"),  # rounding of nothing
    (r"\d+\.\d+", lambda figure: re.sub(r"\d", "0", figure[0])),  # tests of their own hold figures
)
"""What differs between runs, machines and versions, and what stands in a transcript in its place."""


@dataclass(frozen=True)
class Record:
    """What a command left: its folder, exit code, output, and what MLflow and a model's server were told."""

    folder: Path
    code: int
    out: str
    err: str
    runs: list[dict[str, Any]]
    """Of each MLflow run, parents first: name, status, parent, params, metrics, tags, artifacts."""
    requests: list[dict[str, Any]]
    """Of each request to the loopback server: headers and body."""

    @property
    def said(self) -> str:
        """The output in one line, whatever the width."""
        return " ".join(self.out.split())

    def json(self, name: str) -> Any:
        """Return what a file of JSON in the folder holds."""
        return json.loads((self.folder / name).read_text("utf-8"))

    def transcript(self) -> str:
        """Return what was printed, without what differs between runs; no lines of progress."""
        out, err = (text.replace(str(self.folder), "<folder>") for text in (self.out, self.err))
        told = [line for line in err.splitlines() if not re.fullmatch(r"[\w ]+: \d+/\d+.*", line)]
        text = "\n".join([*(line.rstrip() for line in out.splitlines()), "", "stderr:", *told, ""])
        for pattern, mask in MASKS:
            text = re.sub(pattern, mask, text)
        return f"exit code {self.code}\n\n{text}"

    def copy(self, to: Path) -> Path:
        """Copy the folder, to change it."""
        return Path(shutil.copytree(self.folder, to, ignore=shutil.ignore_patterns("mlruns")))

    def client(self) -> Any:
        """Return MLflow's client of the scenario's store."""
        from program.tracking.store import open_client

        return open_client(self.folder / "mlruns")[0]


@dataclass(frozen=True)
class Scenario:
    """A command, its words, and what it needs; the words may name `{base}`, a server's address, and other scenarios."""

    module: str
    words: Sequence[str]
    data: Callable[[Path], object] = lambda folder: None
    settings: dict[str, Any] = field(default_factory=dict)
    spared: Sequence[str] = ()
    """Names of shortcuts."""
    server: Callable[[], dict[str, Any]] | None = None
    """Options of the loopback server."""
    environment: dict[str, str] = field(default_factory=dict)
    after: Sequence[str] = ()
    """Scenarios whose folders the words name, as `{taught}`."""


class Scenarios:
    """The scenarios of a session, in a folder that its processes share."""

    def __init__(self, root: Path) -> None:
        """Keep records under `root`."""
        self.root = root

    @functools.cache  # noqa: B019 - as long-lived as the session
    def __call__(self, name: str) -> Record:
        """Return a scenario's record; it is made where no process has made it."""
        from program.common.files import path_lock, write_whole

        folder, kept = self.root / name, self.root / f"{name}.json"
        with path_lock(self.root / f"{name}.lock"):
            if not kept.is_file():
                shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed in the middle
                made = self._made(SCENARIOS[name], folder)
                write_whole(kept, json.dumps(made))
        return Record(folder, **json.loads(kept.read_text("utf-8")))

    def _made(self, scenario: Scenario, folder: Path) -> dict[str, Any]:
        others = {name: str(self(name).folder) for name in scenario.after}
        folder.mkdir()
        scenario.data(folder)
        (folder / "settings.yaml").write_text(json.dumps(scenario.settings), "utf-8")
        out, err = io.StringIO(), io.StringIO()
        with self._alone(scenario, folder), self._served(scenario) as server:
            words = [word.format(base=server.base if server else "", **others) for word in scenario.words]
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = import_module(scenario.module).main(words)
        asked = zip(server.headers, server.asked, strict=True) if server else ()
        return {
            "code": code, "out": out.getvalue(), "err": err.getvalue(), "runs": runs_in(folder),
            "requests": [{"headers": dict(headers), "body": question.body} for headers, question in asked],
        }  # fmt: skip

    @contextlib.contextmanager
    def _alone(self, scenario: Scenario, folder: Path) -> Iterator[None]:
        """Work in the folder, without what the test that asked has set."""
        from tests import shortcuts

        with pytest.MonkeyPatch.context() as patch:
            for name in list(os.environ):
                if name.startswith(("AGENTICIQA_", "MLFLOW_TRACKING", "MLFLOW_EXPERIMENT", "OPENAI_")):
                    patch.delenv(name)
            patch.setenv("AGENTICIQA_CACHE_DIR", str(self.root / "cache"))
            patch.setenv("AGENTICIQA_MLRUNS_DIR", str(folder / "mlruns"))
            patch.setenv("AGENTICIQA_CONFIG", str(folder / "settings.yaml"))
            patch.setenv("COLUMNS", "80")
            if scenario.server is not None:
                patch.setenv("AGENTICIQA_API_KEY", KEY)
            for name, value in scenario.environment.items():
                patch.setenv(name, value)
            patch.chdir(folder)
            for name in scenario.spared:
                getattr(shortcuts, name)(patch)
            yield

    @contextlib.contextmanager
    def _served(self, scenario: Scenario) -> Iterator[Any]:
        if scenario.server is None:
            yield None
            return
        from tests.loopback import Loopback

        server = Loopback(**scenario.server()).start()
        try:
            yield server
        finally:
            server.stop()


def runs_in(folder: Path) -> list[dict[str, Any]]:
    """Return the runs of a folder's MLflow store, the earliest first."""
    if not (folder / "mlruns" / "mlflow.db").is_file():
        return []
    from program.tracking.store import open_client

    client, _ = open_client(folder / "mlruns")
    experiments = [each.experiment_id for each in client.search_experiments()]
    runs = client.search_runs(experiments, order_by=["attributes.start_time ASC"])
    return [
        {
            "id": run.info.run_id, "name": run.info.run_name, "status": run.info.status,
            "params": run.data.params, "metrics": run.data.metrics, "tags": run.data.tags,
            "artifacts": [entry.path for entry in client.list_artifacts(run.info.run_id)],
        }
        for run in runs
    ]  # fmt: skip


# Data: seeded, so that a scenario is the same in every session


def grain(rng: np.random.Generator, rows: int, columns: int, side: int) -> Any:
    """Return a photograph of squares in seeded colours."""
    from PIL import Image

    return Image.fromarray(blocks(rng, rows, columns, side))


def write_lines(path: Path, lines: Sequence[dict[str, Any]]) -> Path:
    """Write JSON lines."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(as_lines(lines), "utf-8")
    return path


def judged_photographs(folder: Path) -> Path:
    """Photographs from sharp to blurred in four kinds of damage, 4 for validation and 20 for test, with questions."""
    rng, lines = np.random.default_rng(20260101), []
    for number in range(24):
        level = number % 4
        grain(rng, 6, 8, 16).resize((128 >> level, 96 >> level)).resize((128, 96)).save(folder / f"{number}.png")
        split = "validation" if number < 4 else "test"
        shared = {"image": f"../{number}.png", "group": str(number), "split": split}
        scored = {"mos": 4.8 - level + number / 50, "mos_std": 0.5, "distortion": f"d{level}"}
        lines.append({"id": f"s{number}", **scored, **shared})
        if number % 4 == 0:
            question = {"query": "Is the image blurry?", "options": {"A": "Yes", "B": "No"}, "answer": "AB"[number % 2]}
            lines.append({"id": f"q{number}", **question, "question_type": "yes-or-no", **shared})
    return write_lines(folder / "some" / "manifest.jsonl", lines)


def damaged_photographs(folder: Path) -> None:
    """The same, but seven of the files are no images, and one of them has the name of a key."""
    manifest = judged_photographs(folder)
    for number in range(8, 15):
        (folder / f"{number}.png").write_bytes(b"damaged")
    (folder / "9.png").rename(folder / SECRET)
    manifest.write_text(manifest.read_text("utf-8").replace("../9.png", f"../{SECRET}"), "utf-8")


def noise_unminded(folder: Path) -> None:
    """40, 16 and 16 photographs, noisy or blurred, whose made-up scores do not mind noise; some have a question."""
    from PIL import Image

    from data.distortions import distort
    from data.quickstart import load_photograph
    from program.expert.judge.views import Viewer
    from program.images.store import IMAGES

    names, viewer, lines = ("astronaut", "coffee", "flower", "chelsea", "rocket", "china"), Viewer(), []
    for number in range(72):
        pixels = load_photograph(names[number % 6])[number : number + 128, number : number + 128]
        kind = "white_noise" if number % 3 else "gaussian_blur"
        damaged = distort(pixels, kind, 1 + number % 5, np.random.default_rng(number))
        Image.fromarray(damaged).save(folder / f"{number}.png")
        view = viewer.view(IMAGES.add(folder / f"{number}.png"))
        mos = float(np.clip(view.prior.mean + view.severities["Noise"], 1, 5))
        split = "train" if number < 40 else "validation" if number < 56 else "test"
        shared = {"image": f"{number}.png", "group": str(number), "split": split, "labels": "made-up"}
        question = {"query": "Is it noisy?", "options": {"A": "Yes", "B": "No"}, "answer": "AB"[number % 3 == 0]}
        lines.append({"id": str(number), "mos": mos, **shared})
        lines += [{"id": f"q{number}", **question, **shared}] * (number % 4 == 0)
    write_lines(folder / "made-up.jsonl", lines)


def blurred(folder: Path, count: int, rng: np.random.Generator | None = None) -> list[dict[str, Any]]:
    """Write photographs from sharp to blurred, and return a row for each with the MOS that suits it."""
    folder.mkdir(exist_ok=True)
    rng, rows = rng or np.random.default_rng(20260101), []
    for number in range(count):
        level, photo = number % 4, grain(rng, 12, 16, 8)
        photo.resize((128 >> level, 96 >> level)).resize((128, 96)).save(folder / f"{number}.png")
        rows.append({"image": f"{number}.png", "mos": round(4.8 - 1.1 * level + rng.normal(0, 0.2), 2)})
    return rows


def with_splits(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give rows to splits, four by four, so that each split has every level."""
    splits = ("train", "train", "validation", "test")
    return [{**row, "split": splits[number // 4 % 4]} for number, row in enumerate(rows)]


def labelled_at_random(folder: Path) -> None:
    """56 photographs whose scores say nothing; groups made of a folder's path would give other folds in every run."""
    rows = [{**row, "group": row["image"]} for row in blurred(folder, 56)]
    labels = np.random.default_rng(3).uniform(1, 5, 56).round(2).tolist()
    write_lines(folder / "data.jsonl", [{**row, "mos": mos} for row, mos in zip(rows, labels, strict=True)])


def questions_alone(folder: Path) -> None:
    """32 photographs with a question each, and no score."""
    asked = {"query": "Is the image blurry?", "options": {"A": "Yes", "B": "No"}}
    rows = with_splits(blurred(folder, 32))
    lines = [{"image": r["image"], "split": r["split"], **asked, "answer": "AB"[r["mos"] > 3]} for r in rows]
    write_lines(folder / "data.jsonl", lines)


def unlabelled(folder: Path) -> None:
    """A manifest of 32 photographs without a label."""
    rows = with_splits(blurred(folder, 32))
    write_lines(folder / "data.jsonl", [{"image": r["image"], "group": r["image"], "split": r["split"]} for r in rows])


SMALL_COMPILE = {
    "compile": {"rerank": 2, "baselines": False}, "tracking": {"traces": 0},
}  # fmt: skip
QUICK = ("undrawn", "coarse", "unlogged", "untracked")

SCENARIOS = {
    "evaluation": Scenario(
        "program.evaluate", ["some/manifest.jsonl", "--baselines", "--report", "report", "--seed", "7"],
        data=judged_photographs, settings={"tracking": {"traces": 1}}, spared=["coarse"],
    ),
    "failures": Scenario(
        "program.evaluate", ["some/manifest.jsonl", "--report", "report"], data=damaged_photographs,
        settings={"tracking": {"traces": 0}}, spared=["coarse", "undrawn"], environment={"LAB_API_KEY": SECRET},
    ),
    "taught": Scenario(
        "program.compile", ["--data", "made-up.jsonl", "--out", "taught"], data=noise_unminded,
        settings={"tracking": {"traces": 0}}, spared=QUICK,
    ),
    "taught-evaluated": Scenario(
        "program.evaluate", ["{taught}/made-up.jsonl", "--program", "{taught}/taught", "--json"], after=["taught"],
        settings={"tracking": {"traces": 0}}, spared=["coarse", "undrawn", "untracked"],
    ),
    "labels-at-random": Scenario(
        "program.compile", ["--data", "data.jsonl", "--out", "out", "--optimizer", "finetune", "--force"],
        data=labelled_at_random, settings=SMALL_COMPILE, spared=QUICK,
    ),
    "few-labels": Scenario(
        "program.compile", ["--data", "data.jsonl", "--out", "out"], settings=SMALL_COMPILE, spared=QUICK,
        data=lambda folder: write_lines(folder / "data.jsonl", blurred(folder, 8)),
    ),
    "questions-alone": Scenario(
        "program.compile", ["--data", "data.jsonl", "--out", "out"], data=questions_alone, settings=SMALL_COMPILE,
        spared=QUICK,
    ),
    "folder": Scenario("program.assess", ["data.jsonl", "--out", "tables/review.csv"], data=unlabelled),
    "gallery": Scenario(
        "program.gallery.__main__", ["photos", "--out", "gallery"],
        data=lambda folder: blurred(folder / "photos", 8),
    ),
}  # fmt: skip
