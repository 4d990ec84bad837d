"""Disk caches stand in nobody's way: a folder that cannot be used is told once, and the work goes on without it."""

import logging
import sqlite3

import diskcache
import dspy
import numpy as np
import pytest

from program import AgenticIQA
from program.cache import PlainCache, _tell_once, use_lm_cache
from program.settings import load_settings


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
    assert again.volume() > 0


def test_a_folder_that_cannot_be_made_keeps_nothing_and_is_told_once(blocked, caplog):
    caches = [PlainCache(blocked / name) for name in ("readings", "features")]
    for cache in caches:
        cache.set("key", 1)
        assert cache.get("key") is None
        assert (len(cache), cache.volume()) == (0, 0)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "cannot be used" in told[0]
    assert "AGENTICIQA_CACHE_DIR" in told[0]


def test_a_damaged_file_is_no_error(tmp_path, caplog):
    (tmp_path / "cache.db").write_bytes(b"not a database at all" * 100)
    cache = PlainCache(tmp_path)
    cache.set("key", 1)
    assert cache.get("key") is None
    assert "not a database" in caplog.text


@pytest.mark.parametrize("fault", [sqlite3.OperationalError("database or disk is full"), OSError(28, "No space left")])
def test_a_disk_that_fills_up_meanwhile_is_no_error(tmp_path, caplog, monkeypatch, fault):
    cache = PlainCache(tmp_path)

    def full(*_, **__):
        raise fault

    cache.set("before", 1)
    monkeypatch.setattr(diskcache.Cache, "set", full)
    cache.set("key", 2)
    cache.set("other", 3)
    assert (cache.get("before"), cache.get("key")) == (1, None)
    assert len(caplog.records) == 1


def test_what_another_program_left_under_a_key_is_as_good_as_missing(tmp_path):
    disk = diskcache.Cache(str(tmp_path), disk=diskcache.JSONDisk, disk_compress_level=1)
    disk.set("key", 1)
    with sqlite3.connect(tmp_path / "cache.db") as database:
        database.execute("UPDATE Cache SET value = ?", (sqlite3.Binary(b"garbage"),))
    assert PlainCache(tmp_path).get("key") is None


def test_answers_are_kept_in_memory_where_the_folder_cannot_be_made(blocked, caplog):
    use_lm_cache(blocked / "lm-answers")
    assert not dspy.cache.enable_disk_cache
    assert dspy.cache.enable_memory_cache
    assert dspy.cache.memory_cache.maxsize < 100_000
    assert "cannot be used" in caplog.text


def test_an_image_is_judged_without_a_cache(blocked, rng, caplog, monkeypatch):
    image = rng.integers(0, 256, (64, 64, 3), np.uint8)
    usual = AgenticIQA()(image=image)
    monkeypatch.setenv("AGENTICIQA_CACHE_DIR", str(blocked))
    with caplog.at_level(logging.WARNING):
        found = AgenticIQA(load_settings())(image=image)
    assert found.status == "ok"
    assert found.quality_score == usual.quality_score
    assert sum("cannot be used" in record.getMessage() for record in caplog.records) == 1
