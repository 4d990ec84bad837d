"""Short versions of `benchmarks.malformed`: damaged manifests, settings and programs are refused in one line."""

import random

import pytest

from benchmarks.malformed import LINES
from benchmarks.malformed_texts import TEXTS, mutated_text
from data.manifest import read_manifest, scan_manifest
from program import AgenticIQA, load
from program.agent.saving import save
from program.common.errors import DataError, InputError
from program.common.settings import load_settings
from tests.tables import as_lines

SETTINGS = b"seed: 1\nserve: {port: 8000, allowed_hosts: [a], image_folders: [b]}\nfusion: {eta: 1.0}\n"


def told(work, *given):
    """Run something that may refuse what it is given, in one line of bearable length."""
    try:
        made = work(*given)
    except InputError as error:
        made = error
    assert not isinstance(made, InputError) or ("\n" not in str(made) and len(str(made)) < 1500)
    return made


def variants(whole, count, **kind):
    rng = random.Random(f"{count} {sorted(kind)}")
    return [*TEXTS, *(mutated_text(whole, rng, **kind) for _ in range(count))]


def test_damaged_settings_are_refused_in_a_line_or_read(tmp_path):
    file = tmp_path / "settings.yaml"
    seen = set()
    for text in variants(SETTINGS, 20, lines=False, as_yaml=True):
        file.write_bytes(text)
        seen.add(type(told(load_settings, file)).__name__)
    assert seen == {"Settings", "SettingsError"}


def test_each_damaged_line_of_a_manifest_is_its_own_fault(tmp_path):
    file = tmp_path / "manifest.jsonl"
    whole = as_lines(LINES).encode()
    refused = 0
    for text in variants(whole, 200, lines=True, as_yaml=False):
        file.write_bytes(text)
        lines = told(lambda: list(scan_manifest(file)))
        refused += isinstance(lines, InputError)
        for _, sample in [] if isinstance(lines, InputError) else lines:
            assert not isinstance(sample, DataError) or "\n" not in str(sample)
        told(lambda: list(read_manifest(file)))
    assert refused < 100


@pytest.mark.parametrize("force", [False, True])
def test_a_damaged_program_is_refused_in_a_line(tmp_path, force):
    file = save(AgenticIQA(), tmp_path / "program") / "program.json"
    whole = file.read_bytes()
    seen = set()
    for text in variants(whole, 60, lines=False, as_yaml=False):
        file.write_bytes(text)
        seen.add(isinstance(told(lambda: load(file.parent, force=force)), AgenticIQA))
    assert False in seen
