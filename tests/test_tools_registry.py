"""The registry of tools and its file."""

import importlib.util
import inspect
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.tool_strengths import strength_of
from program.common.errors import SettingsError, ToolError
from program.common.files import CONFIGS
from program.tools.calibration import Calibration, Strengths
from program.tools.registry import ToolRegistry, ToolSpec, pyiqa_table
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


PAPER_FR = set("TOPIQ_FR AHIQ DISTS GMSD FSIM LPIPS WaDIQaM_FR PieAPP MS-SSIM SSIM CKDN VIF PSNR VSI".split())
PAPER_NR = set(
    "QAlign UNIQUE LIQE CLIPIQA HyperIQA TReS MUSIQ WaDIQaM_NR DBCNN ARNIQA MANIQA NIMA BRISQUE NIQE".split()
)


def _of(mode):
    return [spec for spec in REGISTRY.specs() if spec.mode == mode]


MEASURED = [spec for spec in REGISTRY.specs() if spec.strengths]


def test_the_shipped_registry_holds_the_papers_tools_and_others():
    others = {"NLPD", "CW-SSIM", "MAD", "MDSI", "HaarPSI", "SR-SIM", "MS-GMSD", "DSS", "LiteFR"}
    assert {s.name for s in _of("FR")} == PAPER_FR | others
    assert {s.name for s in _of("NR")} == PAPER_NR | {"PIQE", "ILNIQE", "LiteNR"}
    assert set(REGISTRY.names()) == {s.name for s in REGISTRY.specs()}
    assert len(PAPER_FR | PAPER_NR) == 28


@pytest.mark.parametrize("spec", [s for s in REGISTRY.specs() if s.pyiqa], ids=lambda s: s.name)
def test_what_an_entry_says_of_pyiqa_holds_for_the_one_installed(spec):
    entry = pyiqa_table()[spec.pyiqa]
    assert entry["metric_mode"] == spec.mode
    assert entry.get("lower_better", False) is not spec.higher_is_better


@pytest.mark.parametrize("spec", [s for s in REGISTRY.specs() if s.needs != "none"], ids=lambda s: s.name)
def test_the_files_an_entry_names_are_those_that_pyiqa_asks_for(spec):
    folder = Path(importlib.util.find_spec("pyiqa").origin).parent / "archs"
    sources = "".join(path.read_text("utf-8") for path in folder.rglob("*.py"))
    named = [spec.parameter_file] if spec.parameter_file else spec.weights
    own = [name.rsplit("/", 1)[-1] for name in named if name.startswith(("pyiqa/", "clip/")) or "/" not in name]
    assert named
    # ILNIQE's name is joined from two pieces.
    assert [name for name in own if name not in sources and name.removeprefix("ILNIQE_") not in sources] == []


@pytest.mark.slow
def test_the_tools_that_piq_measures_are_functions_of_its_with_those_options():
    import piq

    specs = [spec for spec in REGISTRY.specs() if spec.library == "piq"]
    assert {s.name for s in specs} == {"MDSI", "HaarPSI", "SR-SIM", "MS-GMSD", "DSS"}
    for spec in specs:
        assert set(spec.options) <= set(inspect.signature(getattr(piq, spec.function)).parameters)
        assert spec.licence == "Apache-2.0"
        assert spec.key.startswith("piq.")


@pytest.mark.parametrize("spec", MEASURED, ids=lambda s: s.name)
def test_measured_tools_have_a_strength_for_every_category(spec):
    assert set(spec.strengths) == set(DISTORTION_CATEGORIES)
    assert spec.general > 0


def test_strengths_come_from_measurements_with_their_sources_else_from_publications():
    strengths = Strengths.load()
    affordable = {s.name for s in REGISTRY.specs() if s.needs != "weights" and s.cost != "expensive"}
    assert affordable <= set(strengths.tools)
    assert all(REGISTRY.get(name).name == name for name in strengths.tools)
    for name, tool in strengths.tools.items():
        assert tool.sources
        assert set(tool.sources) <= set(strengths.sources)
        assert REGISTRY.get(name).general == tool.general.srcc
        assert not [
            s for s in tool.sources if s.split(" ")[0].casefold() in map(str.casefold, REGISTRY.get(name).trained_on)
        ]
    assert {source.split for source in strengths.sources.values()} == {"train"}
    assert REGISTRY.get("TOPIQ_FR").general == REGISTRY.get("TOPIQ_FR").published == 0.917
    assert REGISTRY.get("AHIQ").general == 0


def test_the_planned_tool_for_a_distortion_is_the_strongest_declared_one():
    ready = [spec for spec in _of("FR") if spec.strengths and spec.cost != "expensive"]
    for category in DISTORTION_CATEGORIES:
        best = REGISTRY.best(category, ready)
        assert best.strength(category) == max(spec.strengths[category] for spec in ready)


def test_a_metric_that_only_pyiqa_knows_is_found_by_its_exact_name_and_claims_nothing():
    found = REGISTRY.get("TOPIQ_NR")
    assert (found.name, found.mode, found.higher_is_better) == ("topiq_nr", "NR", True)
    assert (found.general, found.strengths) == (0, {})
    assert "not calibrated" in found.description
    assert REGISTRY.get("clipiqa+").pyiqa == "clipiqa+"
    assert REGISTRY.get("clipiqa").name == "CLIPIQA"
    assert not REGISTRY.get("lpips-vgg").higher_is_better
    assert "topiq_nr" not in REGISTRY.names()
    assert REGISTRY.find("fid") is None
    assert REGISTRY.find("clipscore") is None


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
    with pytest.raises(ToolError, match=r"tool 'SuperIQA_tool': is not known here .*program\.tools"):
        REGISTRY.get("SuperIQA_tool")
    assert REGISTRY.get("TopIQ_FR_tool").name == "TOPIQ_FR"
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


def test_entries_do_not_change():
    with pytest.raises(ValueError, match="frozen"):
        REGISTRY.get("VIF").general = 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strenghts": {}}, r"tools\.Toy\.strenghts: unknown field"),
        ({"general": 1.5}, r"Toy\.general: input should be less than or equal to 1"),
        ({"mode": "XR"}, r"Toy\.mode: input should be 'FR' or 'NR'"),
        ({"strengths": {"Fog": 0.4}}, r"Toy\.strengths\.Fog"),
        ({"licence": ...}, r"Toy\.licence: field required"),
        ({"needs": "parameters"}, "Toy: parameter_file goes with needs: parameters"),
        ({"identity": 1.0}, "identity is given for FR tools"),
        ({"description": "a\nb"}, "description must be one line"),
        ({"piq": "toy"}, "Toy: give the tool's name in one library"),
        ({"weights": ["pyiqa/toy.pth"]}, "Toy: weights go with needs: weights"),
        ({"minimum_size_px": 0}, r"Toy\.minimum_size_px: input should"),
    ],
)
def test_a_malformed_entry_is_named_with_its_key(tmp_path, change, message):
    entry = {k: v for k, v in {**ENTRY, **change}.items() if v is not ...}
    path = _file(tmp_path, Toy=entry)
    with pytest.raises(SettingsError, match=f"(?i){message}") as caught:
        ToolRegistry.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "tools: field required"),
        ("tools: []", "tools: dictionary should have at least 1 item"),
        ("tools: {A: 3}", "tools.A: input should be a valid dictionary"),
        ("tools: {A: ", "not valid YAML"),
        ("tools: 2020-99-99", "not valid YAML"),
        ("tools: !!timestamp x", "not valid YAML"),
        ("tools: {}\nother: 1", "other: unknown field"),
    ],
)
def test_a_malformed_file_is_named(tmp_path, text, message):
    path = tmp_path / "tools.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=f"(?i){message}"):
        ToolRegistry.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"none\.yaml.*cannot be read"):
        ToolRegistry.load(tmp_path / "none.yaml")


def test_strengths_are_rank_correlations_averaged_over_datasets(rng):
    import pandas as pd
    from scipy.stats import spearmanr

    human = rng.uniform(1, 5, 60)
    raw = [-human + rng.normal(0, 1, 60), -human + rng.normal(0, 2, 60)]
    kinds = ["Noise"] * 20 + ["Blurs"] * 5 + [None] * 35
    rows = [{"source": "ab"[i], "raw": raw[i], "human": human, "category": kinds} for i in range(2)]
    found = strength_of("toy 1", pd.concat([pd.DataFrame(each) for each in rows]))
    each = [abs(spearmanr(r, human).statistic) for r in raw]
    noise = [abs(spearmanr(r[:20], human[:20]).statistic) for r in raw]
    assert found.general.srcc == pytest.approx(np.mean(each), abs=5e-5)
    assert found.by_category["Noise"].srcc == pytest.approx(np.mean(noise), abs=5e-5)
    assert (found.general.n, found.by_category["Noise"].n) == (120, 40)
    assert set(found.by_category) == {"Noise"}
    assert found.sources == ("a", "b")
    flat = pd.DataFrame({"source": "c", "raw": [1.0] * 9, "human": human[:9], "category": None})
    assert strength_of("toy 1", flat) is None


def test_a_strengths_file_is_read_back_and_a_malformed_one_is_named(tmp_path):
    path = tmp_path / "strengths.json"
    path.write_text(Strengths.load().to_json(), encoding="utf-8")
    assert Strengths.load(path).tools == Strengths.load().tools
    path.write_text('{"tools": {"VIF": {"general": 2}}}', encoding="utf-8")
    with pytest.raises(SettingsError, match=r"strengths\.json': tools\.VIF\..*correct the file"):
        Strengths.load(path)
    with pytest.raises(SettingsError, match=r"none\.json': cannot be read"):
        Strengths.load(tmp_path / "none.json")


def test_without_pyiqa_piq_stands_in_with_maps_and_strengths_of_its_own(monkeypatch):
    stand_ins = {
        name for name in yaml.safe_load((CONFIGS / "tools.yaml").read_text("utf-8"))["tools"] if name.endswith("-piq")
    }
    assert not stand_ins & set(REGISTRY.names())
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *given: None if name == "pyiqa" else found(name))
    pyiqa_table.cache_clear()
    without = ToolRegistry.load()
    assert {spec.name for spec in without.specs() if spec.stands_in_for} == stand_ins
    assert (without.get("VIF").name, without.get("psnr").name) == ("VIF-piq", "PSNR-piq")
    calibration = Calibration.load()
    for name in stand_ins:
        spec, own = without.get(name), calibration.tools[name]
        assert spec.general == Strengths.load().tools[name].general.srcc > 0.7
        assert (own.function, own.library) == (spec.key, "piq 0.8.0")
        assert calibration.score(name, spec.identity) == 5
        assert spec.mode == REGISTRY.get(spec.stands_in_for).mode
    monkeypatch.undo()
    pyiqa_table.cache_clear()
