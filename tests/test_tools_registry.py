"""The registry of tools and its file."""

from pathlib import Path

import pytest
import yaml

from program.errors import SettingsError, ToolError
from program.tools.registry import ToolRegistry, ToolSpec
from signatures.schemas import DISTORTION_CATEGORIES

REGISTRY = ToolRegistry.load()
ENTRY = {
    "pyiqa": "toy", "mode": "NR", "higher_is_better": True, "description": "A toy.", "strengths": {"Noise": 0.5},
    "general": 0.5, "needs": "none", "licence": "MIT", "cost": "cheap", "minimum_size_px": 8,
}  # fmt: skip


def _file(tmp_path: Path, **tools) -> Path:
    path = tmp_path / "tools.yaml"
    path.write_text(yaml.safe_dump({"tools": tools}), encoding="utf-8")
    return path


def _spec(name, cost="cheap", general=0.5, **strengths):
    return ToolSpec(**{**ENTRY, "name": name, "cost": cost, "general": general, "strengths": strengths})


def test_the_shipped_registry_holds_the_tools_that_need_no_network():
    full = {"PSNR", "SSIM", "MS-SSIM", "FSIM", "VIF", "GMSD", "VSI", "NLPD"}
    assert {s.name for s in REGISTRY.for_mode("FR")} == full
    assert {s.name for s in REGISTRY.for_mode("NR")} == {"PIQE", "NIQE", "BRISQUE", "ILNIQE"}
    assert set(REGISTRY.names()) == {s.name for s in REGISTRY.specs()}
    assert {s.name for s in REGISTRY.specs() if not s.higher_is_better} == {
        "GMSD",
        "NLPD",
        "PIQE",
        "NIQE",
        "BRISQUE",
        "ILNIQE",
    }


@pytest.mark.parametrize("spec", REGISTRY.specs(), ids=lambda s: s.name)
def test_every_entry_declares_strengths_for_every_category(spec):
    # A tool of ten seconds an image is not measured, and not offered for choice.
    assert set(spec.strengths) == (set() if spec.name == "ILNIQE" else set(DISTORTION_CATEGORIES))
    assert spec.licence
    assert spec.parameter_file is None or spec.needs == "parameters"


@pytest.mark.parametrize(
    "name",
    [
        "VIF",
        "vif",
        "VIF_tool",
        "Vif tool",
        "MS_SSIM",
        "ms-ssim",
        "ms_ssim",
        "MSSSIM",
        "IL-NIQE",
        "ilniqe_tool",
        " psnr ",
    ],
)
def test_a_tool_is_found_by_any_of_its_names(name):
    expected = {"vif": "VIF", "msssim": "MS-SSIM", "ilniqe": "ILNIQE", "psnr": "PSNR"}
    folded = "".join(c for c in name.casefold() if c.isalnum()).removesuffix("tool")
    assert REGISTRY.get(name).name == expected[folded]


def test_an_unknown_tool_is_an_error_with_a_hint():
    with pytest.raises(ToolError, match=r"tool 'VIFF': is not known here \(did you mean 'VIF'\?\)"):
        REGISTRY.get("VIFF")
    with pytest.raises(ToolError, match=r"tool 'TOPIQ_FR_tool': is not known here .*program\.tools"):
        REGISTRY.get("TOPIQ_FR_tool")
    assert REGISTRY.find("topiq_fr") is None
    assert REGISTRY.find("") is None


def test_best_goes_by_strength_then_general_then_cost():
    strong, weak = _spec("strong", Noise=0.9), _spec("weak", Noise=0.8, general=0.9)
    assert REGISTRY.best("Noise", [weak, strong]) is strong
    assert REGISTRY.best("grain", [weak, strong]) is strong
    assert REGISTRY.best(None, [weak, strong]) is weak
    assert REGISTRY.best("Blurs", [strong, weak]) is weak
    assert REGISTRY.best("no such word", [strong, weak]) is weak
    dear, cheap = _spec("dear", "medium", Noise=0.9), _spec("cheap", "cheap", Noise=0.9)
    assert REGISTRY.best("Noise", [dear, cheap]) is cheap
    assert REGISTRY.best("Noise", [dear, _spec("broad", "expensive", general=0.6, Noise=0.9)]).name == "broad"
    with pytest.raises(ToolError, match="no tool is ready"):
        REGISTRY.best("Noise", [])


@pytest.mark.parametrize("category", [None, *DISTORTION_CATEGORIES])
def test_declared_strengths_lead_to_a_tool_that_is_not_slow(category):
    assert REGISTRY.best(category, [s for s in REGISTRY.for_mode("FR") if s.cost != "expensive"]).name in {
        "VIF",
        "FSIM",
        "VSI",
        "GMSD",
        "PSNR",
        "NLPD",
    }


def test_entries_do_not_change():
    with pytest.raises(ValueError, match="frozen"):
        REGISTRY.get("VIF").general = 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strenghts": {}}, r"unknown key 'Toy\.strenghts' \(did you mean 'strengths'\?\)"),
        ({"general": 1.5}, r"Toy\.general = 1\.5: input should be less than or equal to 1"),
        ({"mode": "XR"}, r"Toy\.mode = 'XR'"),
        ({"strengths": {"Fog": 0.4}}, r"Toy\.strengths\.Fog"),
        ({"licence": ...}, r"key 'Toy\.licence' is missing"),
        ({"needs": "parameters"}, "Toy: parameter_file goes with needs: parameters"),
        ({"identity": 1.0}, "identity is given for FR tools"),
        ({"description": "a\nb"}, "description must be one line"),
        ({"minimum_size_px": 0}, r"Toy\.minimum_size_px = 0"),
    ],
)
def test_a_malformed_entry_is_named_with_its_key(tmp_path, change, message):
    entry = {k: v for k, v in {**ENTRY, **change}.items() if v is not ...}
    path = _file(tmp_path, Toy=entry)
    with pytest.raises(SettingsError, match=message) as caught:
        ToolRegistry.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold one key, 'tools'"),
        ("tools: []", "must hold one key, 'tools'"),
        ("tools: {A: 3}", "A holds int"),
        ("tools: {A: ", "not valid YAML"),
        ("tools: {}\nother: 1", "must hold one key, 'tools'"),
    ],
)
def test_a_malformed_file_is_named(tmp_path, text, message):
    path = tmp_path / "tools.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=message):
        ToolRegistry.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"none\.yaml.*cannot be read"):
        ToolRegistry.load(tmp_path / "none.yaml")
