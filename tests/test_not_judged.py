"""What cannot be judged: it gets no fault, no sharp subject, and a field that says why, at every door."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont
from skimage import data as photographs

from program import AgenticIQA, assess
from program.agent.comparison import compare_images
from program.common.errors import InputError
from program.common.request import Request
from program.gallery.choice import Choosing, Decisions, choose
from program.gallery.picture import Picture
from program.images.store import IMAGES
from program.running.row import Row, side_of_minimum
from tests.pictures import as_jpeg, blurred, noisy
from tests.tables import read_csv, read_lines

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
CAT = np.ascontiguousarray(photographs.chelsea()[:240, :320])


def flat(value: int, sigma: float = 0) -> Pixels:
    pixels = np.full((160, 200, 3), value, np.uint8)
    return noisy(pixels, sigma) if sigma else pixels


def _page(paper: tuple[int, int, int] = (255, 255, 255)) -> Pixels:
    image = Image.new("RGB", (420, 560), paper)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(11)
    for line in range(30):
        draw.text((40, 40 + 16 * line), "words that are read and not looked at " * 2, fill=(25, 25, 25), font=font)
    return np.asarray(image)


def _chart(ground: int, ink: int) -> Pixels:
    image = Image.new("RGB", (400, 300), (ground,) * 3)
    draw = ImageDraw.Draw(image)
    draw.rectangle((40, 20, 380, 270), outline=(ink,) * 3)
    heights = 150 + 60 * np.sin(np.arange(0, 330, 5) / 30)
    draw.line([(45 + 5 * n, float(height)) for n, height in enumerate(heights)], fill=(31, 119, 180), width=2)
    return np.asarray(image)


def _cartoon() -> Pixels:
    image = Image.new("RGB", (640, 440), (150, 205, 240))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 300, 640, 440), fill=(110, 180, 80), outline=0, width=4)
    draw.ellipse((200, 100, 420, 320), fill=(240, 190, 150), outline=0, width=6)
    draw.ellipse((260, 160, 300, 210), fill=(255, 255, 255), outline=0, width=4)
    return np.asarray(image.resize((320, 220), Image.Resampling.LANCZOS))


def grain(low: int, high: int, channels: int = 3) -> Pixels:
    drawn = np.random.default_rng(5).integers(low, high, (160, 200, channels), dtype=np.uint8)
    return np.broadcast_to(drawn, (160, 200, 3)).copy()


UNJUDGED: dict[str, tuple[Pixels, str]] = {
    "black": (flat(0), "black frame"), "lens cap": (flat(3, 3), "black frame"), "white": (flat(255), "white frame"),
    "burnt out": (flat(253, 4), "white frame"), "grey": (flat(128), "flat frame"),
    "sensor noise": (flat(120, 3), "flat frame"),
    "gradient": (np.tile(np.linspace(0, 255, 200, dtype=np.uint8)[None, :, None], (160, 1, 3)), "flat frame"),
    "noise": (grain(0, 256), "noise"), "grey noise": (grain(0, 256, 1), "noise"),
    "compressed noise": (as_jpeg(grain(60, 200), 70), "noise"), "page": (_page(), "document"),
    "scan": (noisy(_page((244, 236, 216)), 3), "document"), "chart": (_chart(255, 0), "screenshot or graphic"),
    "compressed chart": (as_jpeg(_chart(255, 0), 85), "screenshot or graphic"),
    "dark chart": (_chart(0, 255), "screenshot or graphic"), "cartoon": (_cartoon(), "screenshot or graphic"),
    "pixels": (np.kron(grain(0, 256)[:12, :16], np.ones((16, 16, 1), np.uint8)), "screenshot or graphic"),
    "small": (CAT[:20, :20], "too small"),
}  # fmt: skip
JUDGED: dict[str, Pixels] = {
    "photograph": CAT, "strong noise": noisy(CAT, 60), "blur": blurred(CAT, 4), "compression": as_jpeg(CAT, 5),
    "dark": (CAT * 0.15).astype(np.uint8), "mist": (CAT * 0.25 + 165).astype(np.uint8),
    "high key": np.clip(CAT * 1.8, 0, 255).astype(np.uint8),
    "grass": np.repeat(photographs.grass()[..., None], 3, axis=2),
}  # fmt: skip


@pytest.fixture(scope="module")
def iqa() -> AgenticIQA:
    return AgenticIQA()


@pytest.mark.spec("issue-71/not-judged")
@pytest.mark.parametrize("name", UNJUDGED)
def test_what_is_no_photograph_has_no_fault_and_no_sharp_subject(iqa: AgenticIQA, name: str) -> None:
    pixels, why = UNJUDGED[name]
    result = iqa(np.ascontiguousarray(pixels))
    row = Row.of(Request(id="a"), result)
    assert (result.not_judged, row.not_judged, row.status) == (why, why, "ok")
    assert result.headline.startswith(f"Not judged: {why}. A guess: ")
    assert (result.faults, row.distortions, row.subject_sharp, result.notes) == ([], None, None, [])
    low, high = result.score_interval or (3, 3)
    assert high - low > 2
    assert side_of_minimum(row, 1.5) == side_of_minimum(row, 4.5) == "not sure"


@pytest.mark.spec("issue-71/not-judged")
@pytest.mark.parametrize("name", JUDGED)
def test_a_photograph_is_judged_however_it_was_damaged_or_meant(iqa: AgenticIQA, name: str) -> None:
    result = iqa(np.ascontiguousarray(JUDGED[name]))
    assert result.not_judged is None
    assert "Not judged" not in result.headline


@pytest.mark.spec("issue-71/not-judged")
def test_beside_a_reference_differences_are_judged(iqa: AgenticIQA) -> None:
    assert iqa(flat(0), reference=flat(90)).not_judged is None
    small = np.ascontiguousarray(CAT[:20, :20])
    assert iqa(small, reference=small).not_judged is None
    assert iqa(small, reference=blurred(small, 1)).not_judged == "too small"


@pytest.mark.spec("issue-71/not-judged")
def test_a_gate_is_not_sure_of_what_is_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, pixels in (("black", flat(0)), ("cat", CAT)):
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    black, cat = (str(tmp_path / f"{name}.png") for name in ("black", "cat"))
    assert assess.main([cat, "--min-score", "2", "--fail-on", "noise"]) == 0
    for gate in (["--min-score", "2"], ["--min-score", "5"], ["--fail-on", "noise"]):
        assert assess.main([black, *gate]) == 4
    capsys.readouterr()
    assert assess.main([black, cat, "--min-score", "2", "--out", str(tmp_path / "t.csv")]) == 4
    told = " ".join(capsys.readouterr().out.split())
    assert "not judged: black frame" in told
    assert "0 below 2 · 1 not sure" in told
    assert [row["not_judged"] for row in read_csv(tmp_path / "t.csv")] == ["black frame", ""]
    assert assess.main([black, cat, "--min-score", "2", "--out", str(tmp_path / "t.jsonl"), "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["not_sure"] == 1
    assert [row["not_judged"] for row in read_lines(tmp_path / "t.jsonl")] == ["black frame", None]


@pytest.mark.spec("issue-71/not-judged")
@pytest.mark.parametrize("name", ["black", "white", "sensor noise", "noise", "small"])
def test_whoever_judges_the_field_is_the_same(service_program: Callable[..., AgenticIQA], name: str) -> None:
    pixels, why = UNJUDGED[name]
    result = service_program()(np.ascontiguousarray(pixels))
    assert (result.not_judged, result.faults, Row.of(Request(id="a"), result).distortions) == (why, [], None)
    assert json.loads(result.model_dump_json())["not_judged"] == why


def test_a_language_model_judges_a_page_as_it_likes(service_program: Callable[..., AgenticIQA]) -> None:
    assert service_program()(_page()).not_judged is None


@pytest.mark.spec("issue-71/not-judged")
def test_an_agent_and_a_service_are_told_too(iqa: AgenticIQA, tmp_path: Path, served: Callable[..., str]) -> None:
    import httpx

    from tests.test_mcp import asked
    from tests.test_serving import CLIENT, as_json

    Image.fromarray(flat(0)).save(tmp_path / "a.png")
    url = served(iqa)
    with httpx.Client(**CLIENT, timeout=30) as client:
        answer = client.post(f"{url}/assess", **as_json((tmp_path / "a.png").read_bytes())).json()
    assert (answer["status"], answer["not_judged"]) == ("ok", "black frame")
    pytest.importorskip("mcp", reason="the extra [mcp] is not installed")
    from program.service.agents import server_of

    (told,) = asked(server_of(iqa, local=True)[0], ("assess_image", {"image": str(tmp_path / "a.png")}))
    assert told.structured_content["not_judged"] == "black frame"
    assert "Not judged: black frame" in told.content[0].text


@pytest.mark.spec("issue-71/not-judged")
def test_the_gallery_leaves_it_to_a_person() -> None:
    picture = Picture(id="a", status="ok", score=1.5, low=1.0, high=1.6, not_judged="black frame", sha256="0" * 64)
    (chosen,) = choose([picture], [], Decisions(), Choosing())
    assert (chosen.verdict, chosen.suggested_rating) == ("look", None)
    assert str(chosen.reason).endswith("Its score is a guess.")


def test_a_comparison_says_which_score_is_a_guess(iqa: AgenticIQA) -> None:
    told = compare_images(iqa, IMAGES.add(CAT), IMAGES.add(flat(0)))
    assert "B is not judged (black frame): its score is a guess." in told.reasons


# What a person says of a picture

HIGH_KEY = np.clip(CAT * 1.2 + 90, 0, 255).astype(np.uint8)


@pytest.mark.spec("issue-71/intended")
def test_an_effect_that_is_meant_is_no_fault_and_lowers_no_score(iqa: AgenticIQA) -> None:
    plain, meant = iqa(HIGH_KEY), iqa(HIGH_KEY, intended=["high-key"])
    explained = {"too bright", "blown highlights", "low contrast", "haze or flare"}
    assert {fault for fault, _ in plain.faults} & explained
    assert not {fault for fault, _ in meant.faults} & explained
    assert not any(fault in meant.summary.lower() for fault in explained)
    assert plain.rating is not None
    assert meant.rating is not None
    assert meant.rating > plain.rating + 0.2
    assert iqa(HIGH_KEY, intended=["panning"]).faults == plain.faults
    assert iqa(CAT, intended=["high-key"]).rating == pytest.approx(iqa(CAT).rating, abs=0.2)


@pytest.mark.spec("issue-71/intended")
def test_what_a_person_says_is_taken_at_every_door(
    iqa: AgenticIQA, tmp_path: Path, served: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    import httpx

    from tests.test_serving import CLIENT, as_json

    Image.fromarray(HIGH_KEY).save(tmp_path / "a.png")
    assert assess.main([str(tmp_path / "a.png"), "--json", "--intended", "high-key", "--intended", "mist"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["state"]["intended"] == ["high-key", "mist"]
    assert assess.main([str(tmp_path / "a.png"), "--intended", "high key"]) == 2
    assert "high-key" in capsys.readouterr().err
    assert assess.main([str(tmp_path / "a.png"), "--kind", "document", "--min-score", "1"]) == 4
    assert "Not judged: document" in capsys.readouterr().out
    url, data = served(iqa), (tmp_path / "a.png").read_bytes()
    with httpx.Client(**CLIENT, timeout=30) as client:
        by_json = client.post(f"{url}/assess", **as_json(data, intended=["high-key", "mist"])).json()
        fields = {"intended": ["high-key", "mist"]}
        by_form = client.post(f"{url}/assess", files={"image": ("a.png", data)}, data=fields).json()
        refused = client.post(f"{url}/assess", **as_json(data, intended=["high key"]))
    scores = [each["quality_score"] for each in (told, by_json, by_form)]
    assert scores == [scores[0]] * 3
    assert refused.status_code == 422


@pytest.mark.spec("issue-71/intended")
def test_the_kind_may_be_told(iqa: AgenticIQA, service_program: Callable[..., AgenticIQA]) -> None:
    page = _page()
    assert (iqa(page, kind="photograph").not_judged, iqa(page, kind="photograph").state.kind) == (None, "photograph")
    for program in (iqa, service_program()):
        assert program(CAT, kind="document").not_judged == "document"
    with pytest.raises(InputError, match=r"kind .documnt.: is not known .did you mean .document."):
        iqa(CAT, kind="documnt")


def test_a_fault_that_a_language_model_names_may_be_meant(service_program: Callable[..., AgenticIQA]) -> None:
    soft = {"type": "Blurs", "severity": "moderate", "explanation": "Soft edges.", "fault": "defocus blur"}
    program = service_program(script={"findings": {"findings": [soft]}})
    assert program(CAT).faults == [("defocus blur", "moderate")]
    assert program(CAT, intended=["shallow-depth"]).faults == []
