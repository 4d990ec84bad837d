"""The report's page: self-contained, escaped, complete, and the same charts for MLflow."""

import base64
import html.parser
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.manifest import Sample
from program.common.errors import InputError
from program.evaluation.baselines import with_baselines
from program.evaluation.charts import notes, plain, scatter_svg, svg_url
from program.evaluation.figures import details_of, summarize
from program.evaluation.publishing import render, worst_rows, write_report
from program.evaluation.record import WORST, Dataset, EvaluationRecord, WorstRows
from tests.pictures import noise
from tests.rows import labelled

pytestmark = pytest.mark.usefixtures("coarse")

EVIL = '<script>alert("x")</script><img src=http://evil.example/x onerror=alert(1)>"\'{{7*7}}$\\frac'


class Page(html.parser.HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.texts = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.texts.append(data)


def _images(folder: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    paths = [folder / f"{i}.png" for i in range(3)]
    for path in paths:
        Image.fromarray(noise(rng, 40, 60)).save(path)
    return paths


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    return _images(tmp_path)


def _record(evil=""):
    rng = np.random.default_rng(0)
    rows = []
    for i in range(30):
        truth = float(rng.uniform(1, 5))
        rows.append(
            labelled(
                id=f"s{i}{evil}", group=f"g{i}", task="scoring", truth=truth, mos_std=0.5,
                distortion="blur"[: i % 2 + 2] + evil,
                predicted=float(np.clip(truth + rng.normal(0, 0.6), 1, 5)), status="ok", attempt="first call",
                level_probabilities=dict(zip(range(1, 6), rng.dirichlet(np.ones(5)), strict=True)),
                tool_mean_equal=2.5, expected_level=3.0, fusion_printed=1.2, fusion_normalised=2.8,
                baselines={f"Tool{evil}": truth, "model only": 3.0 + truth / 10},
                quality_reasoning=f"Because. {evil}",
                evidence={"findings": [{"region": f"sky{evil}", "type": "Blurs", "severity": "severe"},
                                       {"region": "Global", "type": "Noise", "severity": "slight"}],
                          "readings": [{"region": "Global", "tool": f"VIF{evil}", "score": 2.5}]},
            )
        )  # fmt: skip
    options = {"A": f"Yes{evil}", "B": "No"}
    rows += [
        labelled(id=f"q{i}", group=f"g{i}", task="mcq", truth="A", predicted="AB"[i % 2], status="ok", choices=2,
            question_type=f"how{evil}", quality_reasoning="Guessed.")
        for i in range(6)
    ]  # fmt: skip
    context = {"models": {"summarizer": f"model{evil}"}, "tools": {f"VIF{evil}": "1"}, "scoring_mode": "probabilities"}
    record = summarize(rows, dataset=Dataset(name=f"data{evil}", split="test"), context=context)
    return with_baselines(record.model_copy(update={"details": details_of(rows)})), options


def _samples(record, options, images, evil=""):
    for i, row in enumerate(record.rows):
        more = {"options": options, "query": f"Blurry?{evil}", "answer": "A"} if row.task == "mcq" else {"mos": 3.0}
        yield Sample(id=row.id, image=images[i % 3], reference=images[0] if i % 2 else None, **more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[EvaluationRecord, str]:
    """A record and its page."""
    record, options = _record()
    images = _images(tmp_path_factory.mktemp("whole"))
    return record, render(record, _samples(record, options, images))


def test_page_holds_everything_and_fetches_nothing(whole):
    record, text = whole
    page = Page(text)
    shown = " ".join(page.texts)
    for words in (
        "SRCC", "What the agent adds", "Tool alone", "The worst misses", "Wrong answers", "How this came about",
        "severe blur in sky", "VIF 2.50", "Because.", "Blurry?", "A. Yes (true)", "first call: 30",
    ):  # fmt: skip
        assert words in shown
    assert f"{record.srcc.value:.3f}" in shown
    assert "script" not in page.tags
    links = [value for name, value in page.attributes if name in {"src", "href", "action", "data", "srcset"}]
    assert links
    assert all(link.startswith("data:image/") for link in links)
    assert "url(" not in text
    assert "@import" not in text
    assert page.tags.count("article") == 12 + 3
    assert "By level of the label" in shown
    assert len(text) < 3_000_000


def test_everything_from_data_and_models_is_escaped(images, whole):
    record, options = _record(EVIL)
    text = render(record, _samples(record, options, images, EVIL))
    page = Page(text)
    assert sorted(page.tags) == sorted(Page(whole[1]).tags)
    assert "script" not in page.tags
    assert not any(name.startswith("on") for name, _ in page.attributes)
    assert "49" not in [part.strip() for part in page.texts]
    assert any("<script>" in part for part in page.texts)  # shown as text
    policy = next(value for name, value in page.attributes if name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none'; img-src data:")


def test_the_chart_is_a_whole_picture_whatever_the_names_are():
    record, _ = _record(EVIL)
    data = base64.b64decode(svg_url(scatter_svg({"program": record})).partition(",")[2])
    root = ElementTree.fromstring(data)  # noqa: S314 - our own
    assert root.tag.endswith("svg")
    assert not [e for e in root.iter() if e.tag.endswith(("script", "foreignObject"))]
    assert b"evil.example" not in re.sub(rb"<!--.*?-->", b"", data)


def test_chart_names_hold_no_formula_and_no_missing_glyph():
    assert plain("$x$") == r"\$x\$"
    assert plain("模糊") == "??"
    assert len(plain("long " * 20)) <= 28


@pytest.mark.usefixtures("undrawn")
def test_a_record_without_scores_has_a_page_too(images):
    rows = [labelled(id="a", group="g", task="scoring", truth=2.0, status="failed", error="down")]
    record = summarize(rows)
    record = record.model_copy(update={"details": details_of(rows)})
    text = render(record, [])
    assert "1 of 1 samples failed" in text
    assert "The worst misses" not in text


@pytest.mark.usefixtures("undrawn")
def test_a_missing_image_leaves_its_card(images):
    record, options = _record()
    images[1].unlink()
    text = render(record, _samples(record, options, images))
    assert "image not readable" in text


@pytest.mark.usefixtures("undrawn")
def test_report_is_written_whole_with_its_record(tmp_path, images):
    record, options = _record()
    page = write_report(record, _samples(record, options, images), tmp_path / "deep" / "report")
    assert page.name == "report.html"
    assert sorted(p.name for p in page.parent.iterdir()) == [
        ".agentic-iqa.json", "misses.jsonl", "record.json", "report.html",
    ]  # fmt: skip
    assert json.loads((page.parent / "record.json").read_text("utf-8")) == record.summary()
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot be written"):
        write_report(record, [], tmp_path / "file")


def _miss(i, error, task="scoring"):
    fields = {"truth": 3.0, "predicted": 3.0 + error} if task == "scoring" else {"truth": "A", "predicted": "B"}
    return labelled(id=f"r{i}", group="g", task=task, status="ok", quality_reasoning="r", **fields)


def test_only_the_worst_misses_keep_their_reasons():
    rng = np.random.default_rng(0)
    rows = [_miss(i, e) for i, e in enumerate(rng.normal(0, 0.6, 500).tolist())]
    misses = WorstRows()
    kept = [misses.trim(row) for row in rows]
    expected = sorted(rows, key=lambda row: -abs(row.predicted - row.truth))[:WORST]
    found = worst_rows(kept, "scoring")
    assert [row.id for row in found] == [row.id for row in expected]
    assert all(row.quality_reasoning for row in found)
    assert sum(row.quality_reasoning is not None for row in kept) < 100  # 12 (1 + ln(500 / 12)) = 57
    bare = [[row.model_copy(update={"quality_reasoning": None}) for row in some] for some in (kept, rows)]
    assert bare[0] == bare[1]


def test_right_and_failed_answers_are_no_misses():
    right = labelled(id="a", group="g", task="mcq", truth="A", predicted="A", status="ok", quality_reasoning="r")
    failed = labelled(id="b", group="g", task="scoring", truth=2.0, status="failed")
    misses = WorstRows()
    assert [misses.trim(row).quality_reasoning for row in (right, failed)] == [None, None]
    assert worst_rows([right, failed], "mcq") == []
    wrong = [_miss(i, 0, "mcq") for i in range(40)]
    assert [r.id for r in worst_rows(wrong, "mcq")] == [r.id for r in worst_rows(wrong[::-1], "mcq")]


def test_notes_say_where_the_agent_adds_nothing_sure():
    record, _ = _record()
    assert any("no sure gain over 'model only, no evidence'" in note for note in notes(record))
