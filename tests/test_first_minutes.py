"""What a newcomer meets first: formats of cameras, short lists, addresses as they were typed, folders made."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

from agentic_iqa.__main__ import main
from program.common.errors import ImageError
from program.images import decoding
from program.images.store import IMAGES
from program.tools.registry import ToolRegistry
from tests.pictures import blocks

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def squares(rng: np.random.Generator) -> Image.Image:
    return Image.fromarray(blocks(rng, 6, 8, 16))


def packed(squares: Image.Image, kind: str, turn: int) -> bytes:
    buffer, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = turn
    squares.save(buffer, kind, quality=95, exif=exif)
    return buffer.getvalue()


# In HEIF the turn is a property of the picture, which its decoder applies; Exif's is not looked at.
@pytest.mark.parametrize(("kind", "turn"), [("AVIF", 1), ("AVIF", 6), ("HEIF", 1)])
def test_what_cameras_write_is_read_as_displayed(squares: Image.Image, kind: str, turn: int) -> None:
    if kind == "HEIF":
        heif = pytest.importorskip("pillow_heif", reason="the extra [heif] is not installed")
        heif.register_heif_opener(thumbnails=False)
    elif not features.check("avif"):
        pytest.skip("this Pillow reads no AVIF")
    shown = np.asarray(squares.transpose(Image.Transpose.ROTATE_270) if turn == 6 else squares, float)
    ref = IMAGES.add(packed(squares, kind, turn))
    assert (ref.width, ref.height) == shown.shape[1::-1]
    assert ref.media_type == {"AVIF": "image/avif", "HEIF": "image/heic"}[kind]
    assert np.abs(IMAGES.pixels(ref) - shown).mean() < 12


def test_a_heif_without_its_extra_is_one_line_with_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "find_spec", lambda name: None)
    with pytest.raises(ImageError, match=re.escape("pip install 'agentic-iqa[heif]'")):
        decoding.decode(b"\0\0\0\x18ftypheic" + bytes(64), "photo.heic")


def test_the_tools_that_are_ready_are_told_shortly_and_the_others_on_request(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["tools"]) == 0
    short = capsys.readouterr().out
    assert "LiteNR" in short
    assert "TOPIQ_FR" not in short
    assert "--all" in short
    assert short.count("\n") < 60
    told, registry = " ".join(short.replace("│", " ").split()), ToolRegistry.load()
    assert all(registry.get(name).description in told for name in ("PSNR", "LiteNR"))
    assert max(map(len, short.splitlines())) <= 80
    assert main(["tools", "--all"]) == 0
    assert "TOPIQ_FR" in capsys.readouterr().out


def test_an_address_is_told_as_it_was_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = "https://example.org/photo.jpg"
    for words in (["assess", address], ["data", "check", address], ["evaluate", "quickstart", "--program", address]):
        assert main(words) == 2
        assert f"'{address}'" in capsys.readouterr().err
    with pytest.raises(ImageError, match=f"'{address}'"):
        IMAGES.add(address)


def test_the_folder_of_a_table_is_made(
    tmp_path: Path, squares: Image.Image, capsys: pytest.CaptureFixture[str]
) -> None:
    squares.save(tmp_path / "a.png")
    out = tmp_path / "new" / "folder" / "scores.csv"
    assert main(["assess", str(tmp_path / "a.png"), "--out", str(out)]) == 0, capsys.readouterr().err
    assert out.is_file()


def test_a_page_names_no_program_that_no_command_of_the_pages_makes() -> None:
    text = "".join(page.read_text("utf-8") for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))))
    made = set(re.findall(r"--out (programs/\w+)", text))
    assert set(re.findall(r"--program (programs/\w+)", text)) <= made
