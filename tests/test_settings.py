from pathlib import Path

import pytest

from program.common.errors import SettingsError
from program.common.settings import load_settings


def test_precedence_is_defaults_file_environment_arguments(tmp_path, monkeypatch) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("seed: 3\nfusion: {eta: 2.0}\nmodels: {planner: {backend: openai/gpt-4o}}\n")
    settings = load_settings(file)
    assert (settings.seed, settings.fusion.eta, settings.fusion.normalize) == (3, 2.0, True)
    assert settings.models.planner.backend == "openai/gpt-4o"
    assert settings.models.executor.backend == "perceptual/expert"
    monkeypatch.setenv("AGENTICIQA_LM", "gemini/flash")
    assert load_settings(file).models.planner.backend == "gemini/flash"
    assert load_settings(file, {"seed": 9}).seed == 9
    assert load_settings(file).with_model("openai/x").models.summarizer.backend == "openai/x"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fusion: {etta: 1}", r"mine\.yaml': unknown key 'fusion\.etta' \(did you mean 'eta'\?\)"),
        ("sed: 1", r"unknown key 'sed' \(did you mean 'seed'\?\)"),
        ("seed: -1", r"seed = -1: input should be greater than or equal to 0"),
        ("assessment: {diagnosis: both}", "assessment.diagnosis = 'both'"),
        ("a: [", "not valid YAML"),
        ("a: 2020-99-99", "not valid YAML"),
        ("a: !!timestamp x", "not valid YAML"),
        ("a: !!bool x", "not valid YAML"),
        ("- " * 5000, "not valid YAML"),
        ("seed: " + "x" * 9999, r"seed = 'x.{1,60}: input should"),
        ("- 1", "give keys and values"),
    ],
)
def test_a_bad_key_is_named_with_its_file(tmp_path, text, message) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=message) as caught:
        load_settings(file)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings(tmp_path / "none.yaml")


def test_a_user_without_a_home_is_told_so(monkeypatch):
    monkeypatch.delenv("AGENTICIQA_CACHE_DIR")

    def nobody(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", nobody)
    with pytest.raises(SettingsError, match=r"cache_dir .*: no home folder is known here; set HOME"):
        load_settings()
