"""Disk caches stand in nobody's way: a folder that cannot be used is told once, and the work goes on without it."""

import contextlib
import json
import logging
import os
import sqlite3

import dspy
import pytest
from PIL import Image

from data.manifest import Sample
from program import AgenticIQA
from program.assess import main as assess
from program.common.cache import PlainCache, _tell_once, use_lm_cache
from program.common.settings import load_settings
from program.evaluation.figures import summarize
from program.evaluation.record import LabelledRow
from program.expert.judge.views import MEASURED, VIEWS
from tests.pictures import noise

pytestmark = pytest.mark.usefixtures("answers_on_disk")


@pytest.fixture(autouse=True)
def _untold():
    _tell_once.cache_clear()


@pytest.fixture
def blocked(tmp_path):
    """A place where no folder can be made, whoever asks."""
    (tmp_path / "file").write_text("no folder")
    return tmp_path / "file" / "cache"


def test_what_is_kept_comes_back_to_another_process_of_the_same_folder(tmp_path):
    PlainCache(tmp_path / "a").set("key", {"x": [0.1, None]})
    again = PlainCache(tmp_path / "a")
    assert again.get("key") == {"x": [0.1, None]}
    assert again.get("other") is None
    assert len(again) == 1


def test_a_folder_that_cannot_be_made_keeps_nothing_and_is_told_once(blocked, caplog):
    caches = [PlainCache(blocked / name) for name in ("readings", "features")]
    for cache in caches:
        cache.set("key", 1)
        assert cache.get("key") is None
        assert len(cache) == 0
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "cannot be used" in told[0]
    assert "AGENTICIQA_CACHE_DIR" in told[0]


def test_a_damaged_file_is_begun_anew_and_told_once(tmp_path, caplog):
    (tmp_path / "cache.db").write_bytes(b"not a database at all" * 100)
    (tmp_path / "cache.db-journal").write_bytes(b"of the same kind" * 100)
    cache = PlainCache(tmp_path)
    assert cache.get("key") is None
    cache.set("key", 1)
    assert cache.get("key") == PlainCache(tmp_path).get("key") == 1
    assert len(caplog.records) == 1
    assert "not a database" in caplog.text


def test_a_file_that_is_damaged_meanwhile_is_begun_anew(tmp_path, caplog):
    cache = PlainCache(tmp_path)
    for number in range(200):
        cache.set(str(number), "x" * 100)
    content = (tmp_path / "cache.db").read_bytes()
    (tmp_path / "cache.db").write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    assert cache.get("150") is None
    cache.set("150", 2)
    assert (cache.get("150"), len(cache)) == (2, 1)
    assert len(caplog.records) == 1


@pytest.mark.skipif(os.name == "nt", reason="no such permissions there")
def test_what_is_kept_is_for_the_owner_alone(tmp_path):
    for folder in (tmp_path / "new", tmp_path / "earlier"):
        if folder.name == "earlier":
            folder.mkdir()
            (folder / "cache.db").touch(0o644)
        PlainCache(folder).set("key", 1)
        assert (folder / "cache.db").stat().st_mode & 0o777 == 0o600
    use_lm_cache(tmp_path / "lm-answers")
    assert (tmp_path / "lm-answers").stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.name == "nt", reason="no limit on file sizes there")
def test_a_disk_that_fills_up_meanwhile_is_no_error(tmp_path, caplog):
    import resource

    cache = PlainCache(tmp_path)
    cache.set("before", 1)
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "cache.db").stat().st_size, usual[1]))
    try:
        for key in ("key", "other"):
            cache.set(key, os.urandom(50_000).hex())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert (cache.get("before"), cache.get("key")) == (1, None)
    cache.set("after", 2)
    assert cache.get("after") == 2
    assert len(caplog.records) == 1


def test_a_file_that_another_process_holds_is_waited_for_once(tmp_path, caplog, monkeypatch):
    cache = PlainCache(tmp_path)
    cache.set("key", 1)
    monkeypatch.setattr("program.common.cache._PATIENCE_S", 0.05)
    with contextlib.closing(sqlite3.connect(tmp_path / "cache.db", isolation_level=None)) as database:
        database.execute("BEGIN EXCLUSIVE")
        assert [cache.get("key"), cache.get("key")] == [None, None]
    assert PlainCache(tmp_path).get("key") == 1
    assert len(caplog.records) == 1


def test_what_another_program_left_under_a_key_is_as_good_as_missing(tmp_path):
    cache = PlainCache(tmp_path)
    cache.set("key", 1)
    with contextlib.closing(sqlite3.connect(tmp_path / "cache.db", isolation_level=None)) as database:
        database.execute("UPDATE entries SET value = ?", (b"garbage",))
    assert cache.get("key") is None


def test_a_value_larger_than_the_limit_is_no_error(tmp_path):
    cache = PlainCache(tmp_path, size_limit_mb=1)
    cache.set("small", 1)
    cache.set("large", os.urandom(2**20).hex())
    assert (cache.get("small"), cache.get("large"), len(cache)) == (None, None, 0)


def test_answers_are_kept_in_memory_where_the_folder_cannot_be_made(blocked, caplog):
    use_lm_cache(blocked / "lm-answers")
    assert not dspy.cache.enable_disk_cache
    assert dspy.cache.enable_memory_cache
    assert dspy.cache.memory_cache.maxsize < 100_000
    assert "cannot be used" in caplog.text


def test_an_image_is_judged_without_a_cache(blocked, rng, caplog, monkeypatch):
    image = noise(rng, 64, 64)
    usual = AgenticIQA()(image=image)
    monkeypatch.setenv("AGENTICIQA_CACHE_DIR", str(blocked))
    with caplog.at_level(logging.WARNING):
        found = AgenticIQA(load_settings())(image=image)
    assert found.status == "ok"
    assert found.quality_score == usual.quality_score
    assert sum("cannot be used" in record.getMessage() for record in caplog.records) == 1


@pytest.fixture
def process(tmp_path, monkeypatch):
    """Make a program as in another process: with nothing in memory."""

    def make(name, **options):
        monkeypatch.delattr(dspy, "cache", raising=False)
        VIEWS.clear()
        settings = load_settings(overrides={"cache_dir": str(tmp_path / name)})
        return AgenticIQA(settings.with_model(*options.values()) if options else settings)

    return make


def test_the_next_process_pays_for_no_answer_again(tmp_path, process, loopback, picture, monkeypatch):
    server = loopback()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    remote = {"backend": "openai/test", "api_base": server.base}
    first, again = (process("one", **remote)(image=picture()) for _ in range(2))
    asked = server.stats()["requests"]
    assert asked > 0
    assert again.usage.lm_cache_hits == first.usage.lm_calls == asked
    assert again.usage.lm_calls == 0
    assert again.usage.input_tokens + again.usage.output_tokens == 0
    assert again.usage.kept_tokens == first.usage.input_tokens + first.usage.output_tokens > 0
    assert first.usage.kept_tokens == 0
    sample = Sample(id="a", image=str(tmp_path / "a.png"), mos=3.0)
    paces = [summarize([LabelledRow.of(sample, each)]).pace for each in (first, again)]
    assert paces[0]["tokens_per_image"] == paces[1]["tokens_per_image"] == again.usage.kept_tokens
    assert "model_seconds_per_image" in paces[0].keys() - paces[1].keys()
    assert again.usage.tool_cache_hits == again.usage.tool_readings > 0
    assert again.quality_score == first.quality_score

    expert = [process("two")(image=picture(1)) for _ in range(2)]
    assert len(PlainCache(tmp_path / "two" / f"features-{MEASURED}")) > 0
    assert expert[0].quality_score == expert[1].quality_score


@pytest.mark.parametrize("hosted", [True, False])
def test_no_cache_asks_and_measures_anew_and_keeps_nothing(tmp_path, loopback, rng, capsys, monkeypatch, hosted):
    monkeypatch.setenv("AGENTICIQA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DSPY_CACHEDIR", str(tmp_path / "cache" / "dspy"))
    Image.fromarray(noise(rng, 64, 64)).save(tmp_path / "a.png")
    server = loopback()
    model = ["--lm", "openai/x", "--api-base", server.base] if hosted else []
    arguments = [str(tmp_path / "a.png"), "--json", *model]

    def assessed(*more):
        before = server.stats()["requests"]
        VIEWS.clear()  # as in another process
        assert assess([*arguments, *more]) == 0
        usage = json.loads(capsys.readouterr().out)["usage"]
        return server.stats()["requests"] - before, usage["lm_cache_hits"], usage["tool_cache_hits"]

    first, again = assessed("--no-cache"), assessed("--no-cache")
    assert first == again
    assert first[1:] == (0, 0)
    assert (first[0] > 0) == hosted
    assert [file for file in (tmp_path / "cache").rglob("*") if file.is_file()] == []

    asked = assessed()
    assert asked == first, "what was asked without a cache was kept"
    repeated = assessed()
    assert repeated[0] == 0
    assert (repeated[2] > 0) == hosted
    assert assessed("--no-cache") == first, "what was kept was used"


def test_dspy_does_not_warn_of_each_answer_that_is_cut_short(tmp_path, loopback, loopback_module, rng, caplog):
    def cut_short(question):
        message = {"role": "assistant", "content": loopback_module.answers.plausible(question)}
        choice = {"index": 0, "finish_reason": "length", "message": message}
        return loopback_module.Reply(200, {"id": "1", "object": "chat.completion", "choices": [choice], "usage": {}})

    server = loopback(rules=[(lambda question: True, cut_short)])
    for number in range(2):
        Image.fromarray(noise(rng, 64, 64)).save(tmp_path / f"{number}.png")
        caplog.clear()
        assert assess([str(tmp_path / f"{number}.png"), "--lm", "openai/x", "--api-base", server.base]) == 1
        assert "truncated" not in caplog.text
    assert server.stats()["requests"] > 2
