"""Nothing is fetched because data names it: a cell, a listing, an agent's argument; only what the user allowed."""

import json

import fsspec
import fsspec.core
import pyarrow
import pyarrow.parquet
import pytest

from data import check, prepare
from program import assess, calibrate, evaluate
from program import compile as compile_command
from program.agent.loop import AgenticIQA
from program.common.keys import redact
from program.common.settings import load_settings
from tests.tables import as_lines

FOREIGN = {
    "webhdfs://namenode:50070/x.png": "webhdfs", "ftp://lab.example/x.png": "ftp", "FTP://lab.example/x.png": "ftp",
    "github://org:repo@main/x.png": "github", "S3://bucket/x.png": "s3", "hf://datasets/org/name/x.png": "hf",
    "simplecache::ftp://lab.example/x.png": "simplecache", "zip://x.png::ftp://lab.example/b.zip": "zip",
    "memory://lab/a.png": "memory", "local:///etc/hostname": "local", "zip://x.png::ftp": "zip",
    r"\\server\share\x.png": "file", "file://server/share/x.png": "file", "FILE://server/x.png": "file",
}  # fmt: skip
"""Names of images on other machines, and what would have to be allowed."""


@pytest.fixture
def asked(monkeypatch, encoded):
    """The addresses that were asked, of a store in memory with images below memory://lab and memory://other."""
    store = fsspec.filesystem("memory")
    store.store.clear()
    for name in ("lab/a.png", "lab/deep/b.png", "other/c.png"):
        store.pipe(f"/{name}", encoded())
    addresses, url_to_fs = [], fsspec.core.url_to_fs

    def noted(address, **options):
        addresses.append(address)
        return url_to_fs(address, **options)

    monkeypatch.setattr(fsspec.core, "url_to_fs", noted)
    yield addresses
    store.store.clear()


def judged(source, *flags, folder):
    """Return the rows of a run over a manifest by their ids."""
    out = folder / "rows.jsonl"
    assess.main([str(source), "--out", str(out), "--force", *flags])
    return {row["id"]: row for row in map(json.loads, out.read_text("utf-8").splitlines())}


def lines(*rows):
    return as_lines(rows)


def test_a_row_that_names_another_machine_is_an_error_and_nothing_is_asked(program, asked, encoded, tmp_path):
    (tmp_path / "here.png").write_bytes(encoded())
    named = [{"image": "here.png"}, *({"image": name} for name in FOREIGN)]
    named += [{"id": f"reference {name}", "image": "here.png", "reference": name} for name in FOREIGN]
    (tmp_path / "m.jsonl").write_text(lines(*named), "utf-8")
    rows = judged(tmp_path / "m.jsonl", folder=tmp_path)
    assert rows.pop("here.png")["status"] == "ok"
    assert len(rows) == 2 * len(FOREIGN)
    for row, (name, kinds) in zip(rows.values(), [*FOREIGN.items()] * 2, strict=True):
        text = (
            f"image {name!r}: is on another machine; allow its kind with --remote {kinds} (images.remote), or download"
        )
        assert redact(text) in row["error"], name  # what stands before an @ may be a password
    assert asked == []


@pytest.mark.parametrize("name", ["https://lab.example/x.png", "HTTP://lab.example/x.png"])
def test_a_web_page_is_never_opened(program, asked, tmp_path, capsys, name):
    (tmp_path / "m.jsonl").write_text(lines({"id": "a", "image": name}), "utf-8")
    row = judged(tmp_path / "m.jsonl", "--remote", "memory", folder=tmp_path)[f"{tmp_path / 'm.jsonl'}:1"]
    assert "is a URL; download it" in row["error"]
    assert assess.main([name]) == 2
    assert "is a URL; download it" in capsys.readouterr().err
    assert asked == []


def test_what_the_user_allows_is_opened(program, asked, tmp_path):
    cells = ["memory://other/c.png", "MEMORY://lab/a.png", "simplecache::memory://lab/a.png", "ftp://lab.example/x.png"]
    (tmp_path / "m.csv").write_text("image\n" + "".join(f"{name}\n" for name in cells), "utf-8")
    rows = judged(tmp_path / "m.csv", "--remote", "memory,s3", folder=tmp_path)
    assert [row["status"] for row in rows.values()] == ["ok", "ok", "error", "error"]
    assert not [address for address in asked if not address.startswith("memory://")]
    (tmp_path / "settings.yaml").write_text("images: {remote: [memory, simplecache]}\n", "utf-8")
    rows = judged(tmp_path / "m.csv", "--config", str(tmp_path / "settings.yaml"), folder=tmp_path)
    assert [row["status"] for row in rows.values()] == ["ok", "ok", "error", "error"]
    assert "simplecache::memory://lab/a.png': is a chain of addresses (::); download it" in rows[cells[2]]["error"]


@pytest.mark.parametrize("kind", ["http", "HTTPS://", "s3 gs", "://"])
def test_a_kind_that_is_none_is_one_line(capsys, tmp_path, kind):
    with pytest.raises(SystemExit) as ended:
        assess.main(["m.jsonl", "--remote", kind])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --remote: {kind!r} is ")
    assert error.count("\n") == 1
    (tmp_path / "settings.yaml").write_text(f"images: {{remote: [{kind!r}]}}\n", "utf-8")
    assert assess.main(["m.jsonl", "--config", str(tmp_path / "settings.yaml")]) == 2
    assert f"images.remote: {kind!r} is " in capsys.readouterr().err


def test_a_table_given_by_an_address_names_what_lies_below_it(program, asked, tmp_path):
    below = ["a.png", "deep/b.png", "memory://lab/deep/b.png", "MEMORY://lab/a.png"]
    out = [
        "../other/c.png", "deep/../../other/c.png", "%2e%2e/other/c.png", "%252e%252e/other/c.png", "..%2fother/c.png",
        "..\\other\\c.png", "memory://other/c.png", "memory://lab/../other/c.png", "memory://lab%2f../other/c.png",
        "memory://labor/c.png", "x::memory://other/c.png", "a.png::memory://other/c.png", "ftp://lab/a.png",
        "simplecache::memory://lab/a.png", "memory://",
    ]  # fmt: skip
    rows = [{"id": name, "image": name} for name in (*below, *out)]
    fsspec.filesystem("memory").pipe("/lab/m.jsonl", lines(*rows).encode())
    answers = judged("memory://lab/m.jsonl", folder=tmp_path)
    assert [row["status"] for row in answers.values()] == ["ok"] * len(below) + ["error"] * len(out)
    for name, row in zip(out, list(answers.values())[len(below) :], strict=True):
        assert "--remote " in row["error"], name
    assert set(asked) <= {"memory://lab/m.jsonl", "memory://lab/a.png", "memory://lab/deep/b.png"}
    allowed = judged("memory://lab/m.jsonl", "--remote", "memory", folder=tmp_path)
    assert allowed["memory://other/c.png"]["status"] == "ok"


def test_a_table_at_the_root_of_a_store_has_no_address_to_lie_below(program, asked, tmp_path):
    fsspec.filesystem("memory").pipe("/m.jsonl", lines({"image": "other/c.png"}).encode())
    assert "--remote memory" in judged("memory://m.jsonl", folder=tmp_path)["memory://m.jsonl:1"]["error"]
    assert judged("memory://m.jsonl", "--remote", "memory", folder=tmp_path)["other/c.png"]["status"] == "ok"


def test_what_the_user_names_needs_no_flag(program, asked, capsys):
    assert assess.main(["MEMORY://lab/a.png", "--reference", "memory://other/c.png", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"]["image_path"] == "a.png"
    assert program(image="memory://lab/a.png").status == "ok"
    assert "ftp" not in str(asked)


def test_names_in_a_listing_lead_nowhere_else(program, asked, encoded, tmp_path):
    store = fsspec.filesystem("memory")
    store.pipe("/lab/x::memory:/other/c.png", encoded())
    store.pipe("/refs/a.png", encoded())
    rows = judged("memory://lab", "--recursive", "--reference", "memory://refs", folder=tmp_path)
    assert rows["a.png"]["status"] == "ok"
    assert "has '::' in its name" in rows["x::memory:/other/c.png"]["error"]
    assert not [address for address in asked if "other" in address]


@pytest.mark.parametrize("name", ["ftp://lab.example/x.png", "memory://lab/a.png", r"\\server\share\x.png"])
def test_every_command_that_reads_a_table_refuses(asked, tmp_path, capsys, encoded, name):
    (tmp_path / "a.png").write_bytes(encoded())
    table = tmp_path / "m.jsonl"
    table.write_text(lines({"id": "1", "image": name, "mos": 3, "split": "test"}), "utf-8")
    (tmp_path / "t.csv").write_text(f"image,mos\n{name},3\n", "utf-8")
    (tmp_path / "p.csv").write_text(f"image,other,better,reference\na.png,b.png,image,{name}\n", "utf-8")
    made = ["--out", str(tmp_path / "made.jsonl")]
    for command, words, code in (
        (evaluate, [str(table)], 2), (compile_command, ["--data", str(table), "--dry-run"], 2),
        (calibrate, [str(table), "--out", str(tmp_path / "c.json")], 2),
        (check, [str(table)], 1), (prepare, ["table", "--root", str(tmp_path / "t.csv"), *made], 2),
        (prepare, ["pairs", "--root", str(tmp_path / "p.csv"), *made], 2),
    ):  # fmt: skip
        assert command.main(words) == code, (command, words)
        said = capsys.readouterr()
        assert f"image {name!r}: is on another machine; " in said.out + said.err
    assert asked == []


def test_a_check_opens_what_it_was_allowed(asked, tmp_path, capsys):
    table = tmp_path / "m.jsonl"
    table.write_text(lines({"id": "1", "image": "memory://lab/a.png", "mos": 3, "split": "test"}), "utf-8")
    assert check.main([str(table), "--remote", "memory"]) == 0, capsys.readouterr().out


def test_an_agent_and_a_client_name_no_other_machine(service_program, served, asked):
    pytest.importorskip("mcp", reason="the extra [mcp] is not installed")
    import anyio
    import httpx
    import mcp

    from program.service.agents import server_of

    def told(program, names):
        async def ask():
            async with mcp.Client(server_of(program, local=True)[0]) as client:
                return [
                    (await client.call_tool("assess_image", {"image": name}),
                     await client.call_tool("assess_folder", {"folder": name}))
                    for name in names
                ]  # fmt: skip

        return anyio.run(ask)

    for (name, kinds), (image, folder) in zip(FOREIGN.items(), told(service_program(), FOREIGN), strict=True):
        assert f"allow its kind with --remote {kinds} " in image.content[0].text, name
        assert "is on another machine; name a folder of this one" in folder.content[0].text
    assert asked == []
    allowed = service_program(images={"remote": ["memory"]}, serve={"image_folders": ["/"]})
    ((image, _),) = told(allowed, ["memory://lab/a.png"])
    assert not image.is_error
    asked.clear()
    url = served(allowed)
    with httpx.Client(trust_env=False) as client:
        for name in FOREIGN:
            answer = client.post(f"{url}/assess", json={"image_path": name})
            assert (answer.status_code, "not a file of the folders" in answer.text) == (403, True), name
    assert asked == []


def test_a_dataset_names_no_other_machine(program, asked, encoded, tmp_path, capsys):
    folder = tmp_path / "set"
    folder.mkdir()
    table = pyarrow.table({
        "picture": [{"bytes": encoded(), "path": None}],
        "others": [[{"bytes": None, "path": "ftp://lab.example/x.png"}]],
        "address": ["ftp://lab.example/x.png"], "name": ["etc/hostname"],
    })  # fmt: skip
    image = {"_type": "Image"}
    text = {"dtype": "string", "_type": "Value"}
    features = {"picture": image, "others": [image], "address": text, "name": text}
    schema = table.schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pyarrow.parquet.write_table(table.cast(schema), folder / "train.parquet")
    assert assess.main([f"hf:{folder}", "--columns", "image=picture", "--json"]) == 0
    assert assess.main([f"hf:{folder}", "--columns", "image=address", "--json"]) == 1
    assert assess.main([f"hf:{folder}", "--columns", "image=name", "--json"]) == 1
    said = capsys.readouterr().out
    assert "--remote ftp" in said
    assert "set/etc/hostname': no such file" in said
    files = "- {split: train, path: 'ftp://lab.example/x.parquet'}"
    card = f"---\nconfigs:\n- config_name: default\n  data_files:\n  {files}\n---\n"
    (folder / "README.md").write_text(card, "utf-8")
    assert assess.main([f"hf:{folder}"]) == 2
    assert prepare.main(["huggingface", "--root", str(folder), "--out", str(tmp_path / "made.jsonl")]) == 2
    assert capsys.readouterr().err.count("its card names 'ftp://lab.example/x.parquet'; download") == 2


def test_the_settings_of_python_users_allow_kinds(asked, tmp_path):
    settings = load_settings(overrides={"images": {"remote": ["S3", "gs"]}})
    assert AgenticIQA(settings).resources.settings.images.remote == ("s3", "gs")
