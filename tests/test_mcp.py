"""The program as tools of agents, tried with the protocol's official client."""

import asyncio
import base64
import errno
import io
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from program.agent.comparison import Comparison
from program.images.store import IMAGES
from program.running.row import Row
from tests.pictures import noise

TOKEN = "a-token-of-a-test-0123456789"
NAMES = {"assess_image", "compare_images", "assess_folder", "list_tools"}


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    for name in "abc":
        Image.fromarray(noise(rng, 48, 64)).save(tmp_path / f"{name}.png")
    (tmp_path / "d.png").write_bytes(b"no image")
    return tmp_path


@pytest.fixture(scope="module")
def agents():
    """What serves agents, imported only where it is tried: the protocol's types alone take half a second."""
    pytest.importorskip("mcp", reason="the extra [mcp] is not installed")
    from program.service import agents

    return agents


@pytest.fixture
def over_http(service_program, agents):
    """Serve a program's tools on the loopback; returns the URL and stops with the test."""
    import uvicorn

    running = []

    def start(token=None, **serve):
        app = agents.http_app(service_program(serve=serve), token)
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="on"))
        thread = threading.Thread(target=server.run)
        thread.start()
        running.append((server, thread))
        while not server.started:
            thread.join(0.01)
            assert thread.is_alive()
        return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp"

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join()


def asked(server, *calls, **options):
    """Return the results of calls (name, arguments) to a server."""
    import mcp

    async def ask():
        async with mcp.Client(server, **options) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == NAMES
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(ask())


def all_calls(folder: Path):
    photo = str(folder / "a.png")
    return (
        ("assess_image", {"image": photo, "heatmap": True}),
        ("assess_image", {"image": photo, "query": "Is it noisy?", "options": ["Yes", "No"]}),
        ("compare_images", {"image_a": photo, "image_b": str(folder / "b.png")}),
        ("assess_folder", {"folder": str(folder)}),
        ("list_tools", {}),
    )


def check_all(agents, results, folder: Path):
    judged, answered, compared, several, tools = results
    assert not any(result.is_error for result in results)
    assert Row.model_validate(judged.structured_content).score is not None
    text, picture = judged.content
    assert "of 5" in text.text
    assert picture.mime_type == "image/png"
    assert Image.open(io.BytesIO(base64.b64decode(picture.data))).size == (64, 48)
    assert Row.model_validate(answered.structured_content).answer == "B"
    assert Comparison.model_validate(compared.structured_content).verdict
    rows = agents.FolderRows.model_validate(several.structured_content)
    assert [row.id for row in rows.rows] == ["a.png", "b.png", "c.png", "d.png"]
    assert [row.status == "error" for row in rows.rows] == [False, False, False, True]
    assert (rows.total, rows.next_start) == (4, None)
    listed = [agents.ListedTool.model_validate(tool) for tool in tools.structured_content["result"]]
    assert {"PIQE", "LiteNR"} <= {tool.name for tool in listed}


def test_an_agents_client_calls_every_tool(agents, service_program, folder):
    server, _ = agents.server_of(service_program(), local=True)
    check_all(agents, asked(server, *all_calls(folder)), folder)


def test_over_http_the_services_settings_hold(agents, over_http, folder):
    check_all(agents, asked(over_http(image_folders=[str(folder)]), *all_calls(folder)), folder)
    data = base64.b64encode((folder / "a.png").read_bytes()).decode()
    outside, sent, elsewhere = asked(
        over_http(),
        ("assess_image", {"image": str(folder / "a.png")}),
        ("assess_image", {"image": f"data:image/png;base64,{data}"}),
        ("assess_folder", {"folder": str(folder)}),
    )
    assert (outside.is_error, sent.is_error, elsewhere.is_error) == (True, False, True)
    assert "serve.image_folders" in outside.content[0].text
    url = over_http(token=TOKEN)
    with pytest.raises(Exception) as refused:  # noqa: PT011 - a group of the client's own tasks
        asked(url, ("list_tools", {}))
    assert "401" in repr(refused.value) or "MCPError" in repr(refused.value)


def test_a_comparison_judges_both_images_against_the_reference(agents, service_program, folder):
    program = service_program()
    server, _ = agents.server_of(program, local=True)
    files = {"image_a": folder / "a.png", "image_b": folder / "b.png", "reference": folder / "c.png"}
    (result,) = asked(server, ("compare_images", {name: str(file) for name, file in files.items()}))
    assert not result.is_error
    first, second, reference = (IMAGES.add(file).sha256 for file in files.values())
    measured = [(image, against) for _, image, against, _ in program.resources.runner.measured]
    assert measured == [(first, reference), (second, reference)]


def test_a_folder_is_judged_some_images_at_a_time(agents, service_program, folder):
    server, _ = agents.server_of(service_program(serve={"max_batch": 3}), local=True)
    first, rest = asked(
        server, ("assess_folder", {"folder": str(folder)}), ("assess_folder", {"folder": str(folder), "start": 3})
    )
    assert (len(first.structured_content["rows"]), first.structured_content["next_start"]) == (3, 3)
    assert (len(rest.structured_content["rows"]), rest.structured_content["next_start"]) == (1, None)


def test_a_folder_below_that_cannot_be_read_is_a_row_with_its_error(agents, service_program, folder, monkeypatch):
    (folder / "deep").mkdir()
    scandir = os.scandir

    def without_rights(path="."):
        if Path(path) == folder / "deep":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", without_rights)
    server, _ = agents.server_of(service_program(), local=True)
    (result,) = asked(server, ("assess_folder", {"folder": str(folder), "recursive": True}))
    rows = {row["id"]: row for row in result.structured_content["rows"]}
    assert rows["a.png"]["status"] == "ok"
    assert "cannot be read (Permission denied)" in rows["deep"]["error"]


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("assess_image", {"image": "{folder}/none.png"}, "no such file"),
        ("assess_image", {"image": "{folder}/d.png"}, "not an image"),
        ("assess_image", {"image": "data:image/png;base64,%%%"}, "not base64"),
        ("assess_image", {"image": "https://example.org/a.png"}, "serve.image_hosts"),
        ("assess_image", {"image": "{folder}/a.png", "query": "x" * 5000}, "characters"),
        ("assess_image", {"image": "{folder}/a.png", "options": ["only"]}, "only"),
        ("assess_image", {}, "image"),
        ("compare_images", {"image_a": "{folder}/a.png", "image_b": "{folder}/d.png"}, "not an image"),
        ("assess_folder", {"folder": "{folder}/none"}, "no such folder"),
        ("assess_folder", {"folder": "{folder}", "start": -1}, "start"),
    ],
)
def test_bad_input_is_a_clean_error(agents, service_program, folder, name, given, message):
    filled = {k: v.format(folder=folder) if isinstance(v, str) else v for k, v in given.items()}
    server, _ = agents.server_of(service_program(), local=True)
    (result,) = asked(server, (name, filled))
    assert result.is_error
    assert message in result.content[0].text
    assert "Traceback" not in result.content[0].text


def test_a_busy_program_says_so(agents, service_program, folder):
    server, tools = agents.server_of(service_program(serve={"concurrency": 1, "queue": 0}), local=True)
    with tools.assessor.admit():
        (result,) = asked(server, ("assess_image", {"image": str(folder / "a.png")}))
    assert result.is_error
    assert "try again" in result.content[0].text
