"""Sidecars of other programs: merged or refused, never broken; what any packet costs; files that appear whole."""

import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import textwrap
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from PIL import Image, PngImagePlugin

from program.common.errors import InputError
from program.common.files import new_file, remove_leftovers, whole_file, write_whole
from program.gallery.sidecars import copy_picture, write_sidecar
from program.images.decode_worker import tags_bounded
from program.images.packets import Fields, read_packet, stated_in
from program.images.stated import sidecars_of


def rating_in(packet: bytes) -> int | None:
    return stated_in(packet).rating


SAID = Fields(4, source="suggested", label="Green", keywords=["aiqa:soft", "aiqa:<noise> & more"])
NAMES = (
    'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"',
    'xmlns:xmp="http://ns.adobe.com/xap/1.0/"',
    'xmlns:dc="http://purl.org/dc/elements/1.1/"',
    'xmlns:crs="http://ns.adobe.com/camera-raw-settings/1.0/"',
    'xmlns:darktable="http://darktable.sf.net/"',
    'xmlns:digiKam="http://www.digikam.org/ns/1.0/"',
)
RDF, DECLARED = NAMES[0], " ".join(NAMES[1:])
BEGIN, END = '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n', '\n<?xpacket end="w"?>'
META = '<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="XMP Core 5.6-c140">\n{}\n</x:xmpmeta>'
SHARPNESS = "<crs:Sharpness>40</crs:Sharpness>"


def rdf(*descriptions: str) -> str:
    return META.format(f"<rdf:RDF {RDF}>\n" + "\n".join(descriptions) + "\n</rdf:RDF>")


def described(inside: str = SHARPNESS, attributes: str = "") -> str:
    return f'<rdf:Description rdf:about="" {DECLARED} {attributes}>{inside}</rdf:Description>'


HISTORY = described(
    "<darktable:history><rdf:Seq>"
    + "".join(f'<rdf:li darktable:num="{n}" darktable:operation="exposure" darktable:params="00ff"/>' for n in range(3))
    + "</rdf:Seq></darktable:history><darktable:mask_id><rdf:Seq/></darktable:mask_id>",
    'darktable:xmp_version="5" xmp:Rating="1"',
)
DIGIKAM = described(
    "<digiKam:TagsList><rdf:Seq><rdf:li>Places/Rome</rdf:li><rdf:li>People</rdf:li></rdf:Seq></digiKam:TagsList>"
    "<dc:subject><rdf:Bag><rdf:li>Rome</rdf:li></rdf:Bag></dc:subject>"
)
TITLE = (
    '<dc:title><rdf:Alt><rdf:li xml:lang="x-default">Sea</rdf:li><rdf:li xml:lang="de">Meer</rdf:li></rdf:Alt>'
    "</dc:title>"
)
PREFIXED = META.format(
    '<r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><r:Description r:about="uuid:1" '
    'xmlns:c="http://ns.adobe.com/camera-raw-settings/1.0/" c:Sharpness="40"/></r:RDF>'
)
DEFAULT = META.format(
    '<RDF xmlns="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><Description about="uuid:1">'
    '<Sharpness xmlns="http://ns.adobe.com/camera-raw-settings/1.0/">40</Sharpness></Description></RDF>'
)
OUTSIDE = (
    f'<x:xmpmeta xmlns:x="adobe:ns:meta/" {" ".join(NAMES)}><rdf:RDF><rdf:Description rdf:about="" crs:Sharpness="40"/>'
    "</rdf:RDF></x:xmpmeta>"
)
TAKEN = (
    '<x:xmpmeta xmlns:x="adobe:ns:meta/">'
    '<r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:rdf="urn:1">'
    '<r:Description r:about="" xmlns:crs="http://ns.adobe.com/camera-raw-settings/1.0/" crs:Sharpness="40">'
    "<crs:Look><r:Seq><r:li>1</r:li></r:Seq></crs:Look></r:Description></r:RDF></x:xmpmeta>"
)
PAINTED = described(
    SHARPNESS + "<!-- </rdf:RDF> --><?keep </rdf:RDF>?><crs:Name><![CDATA[</rdf:RDF> & <b>]]></crs:Name>"
)
LATIN = '<?xml version="1.0" encoding = "{}"?>'
KINDS: dict[str, tuple[bytes, str]] = {
    "attributes": (rdf(described("", 'crs:Sharpness="40" crs:Version="15.0"')).encode(), "merged"),
    "elements": (rdf(described()).encode(), "merged"),
    "several descriptions": (rdf(described(), described(TITLE), described("", 'crs:Tint="3"')).encode(), "merged"),
    "empty description": (rdf('<rdf:Description rdf:about=""/>').encode(), "merged"),
    "no description": (rdf().encode(), "merged"),
    "self-closed RDF": (META.format(f"<rdf:RDF {RDF} />").encode(), "merged"),
    "self-closed RDF alone": (f"<rdf:RDF {RDF}/>".encode(), "merged"),
    "self-closed RDF of another prefix": (f"<é:RDF {RDF.replace('xmlns:rdf', 'xmlns:é')}/>".encode(), "prefix"),
    "other prefix": (PREFIXED.encode(), "merged"),
    "default namespace": (DEFAULT.encode(), "prefix"),
    "declared outside": (OUTSIDE.encode(), "merged"),
    "prefix taken": (TAKEN.encode(), "merged"),
    "wrapper": ((BEGIN + rdf(described()) + END).encode(), "merged"),
    "wrapper with padding": ((BEGIN + rdf(described()) + "\n" + (" " * 99 + "\n") * 20 + END).encode(), "merged"),
    "read-only wrapper": ((BEGIN + rdf(described()) + END.replace('"w"', "'r'")).encode(), "read-only"),
    "UTF-8 with a mark": (("\ufeff" + rdf(described(TITLE.replace("Sea", "Señal 🌊")))).encode(), "merged"),
    "UTF-16 LE": ((BEGIN + rdf(described(TITLE.replace("Sea", "海 🌊"))) + END).encode("utf-16"), "merged"),
    "UTF-16 BE": (
        ("\ufeff" + BEGIN + rdf(described(TITLE.replace("Sea", "海 🌊"))) + END).encode("utf-16-be"),
        "merged",
    ),
    "UTF-16 that says so": (
        ('\ufeff<?xml version="1.0" encoding="UTF-16"?>' + rdf(HISTORY)).encode("utf-16-le"),
        "merged",
    ),
    "UTF-32": (rdf(described()).encode("utf-32"), "is no XML"),
    "UTF-8 that says UTF-16": (('<?xml version="1.0" encoding="UTF-16"?>' + rdf(described())).encode(), "is no XML"),
    "Latin 1": (
        (LATIN.format("ISO-8859-1") + rdf(described(TITLE.replace("Sea", "Señal")))).encode("latin-1"),
        "merged",
    ),
    "Windows 1252": ((LATIN.format("windows-1252") + rdf(described("<dc:x>„a“</dc:x>"))).encode("cp1252"), "merged"),
    "unknown encoding": ((LATIN.format("x-none") + rdf(described())).encode(), "is no XML"),
    "CDATA, comments, instructions": (rdf(PAINTED).encode(), "merged"),
    "entities": (rdf(described("<dc:x>&amp;&lt;/rdf:RDF&gt;</dc:x>", "crs:x='&lt;&#x41;&quot;'")).encode(), "merged"),
    "declared entities": (
        ('<!DOCTYPE x [<!ENTITY a "b">]>' + rdf(described("<dc:x>&a;</dc:x>"))).encode(),
        "document type",
    ),
    "language alternatives": (rdf(described(TITLE)).encode(), "merged"),
    "darktable": (("<?xml version='1.0' encoding='UTF-8' standalone='yes'?>\n" + rdf(HISTORY)).encode(), "merged"),
    "digiKam": ((BEGIN + rdf(DIGIKAM) + END).encode(), "merged"),
    "single quotes": (
        rdf(described("", "crs:Sharpness = '40'\n crs:Name='a \"b\" > c'"))
        .replace('rdf:about=""', "rdf:about=''")
        .encode(),
        "merged",
    ),
    "CRLF": (rdf(described(TITLE)).replace("\n", "\r\n").encode(), "merged"),
    "no xmpmeta": (rdf(described()).partition(">\n")[2].rpartition("\n")[0].encode(), "merged"),
    "two RDF": (META.format(2 * f"<rdf:RDF {RDF}>{described()}</rdf:RDF>").encode(), "several <rdf:RDF>"),
    "RDF inside": (rdf(described(f"<dc:x><rdf:RDF>{described()}</rdf:RDF></dc:x>")).encode(), "merged"),
    "no RDF": (META.format("").encode(), "no <rdf:RDF>"),
    "no prefix before a colon": (rdf(described("", ':x=""')).encode(), "is no XML"),
    "digit behind a colon": (rdf(described("<dc:1/>")).encode(), "is no XML"),
    "two colons": (rdf(described("", 'xmlns:a:b="urn:1"')).encode(), "is no XML"),
    "prefix without a namespace": (rdf(described("", 'xmlns:a=""')).encode(), "is no XML"),
    "unbound prefix": (rdf(described("<none:x/>")).encode(), "is no XML"),
    "an attribute twice": (
        rdf(described("", 'xmlns:c2="http://purl.org/dc/elements/1.1/" dc:x="" c2:x=""')).encode(),
        "is no XML",
    ),
    "cut off": (rdf(described()).encode()[:-30], "is no XML"),
    "deep": (rdf(described("<dc:x>" * 300 + "</dc:x>" * 300)).encode(), "inside each other"),
    "unrated attribute": (rdf(described("", "xmp:Rating = ' 0 '")).encode(), "merged"),
    "unrated element": (rdf(described("<xmp:Rating> 0.0 </xmp:Rating>")).encode(), "merged"),
    "unrated in another prefix": (
        rdf(described("<xap:Rating><![CDATA[0]]></xap:Rating>", 'xmlns:xap="http://ns.adobe.com/xap/1.0/"')).encode(),
        "merged",
    ),
    "unrated in UTF-16": (
        ("\ufeff" + BEGIN + rdf(described(TITLE.replace("Sea", "海"), 'xmp:Rating="0"'))).encode("utf-16-be"),
        "merged",
    ),
    "unrated between comments": (
        rdf(described("<xmp:Rating>0<!-- none --></xmp:Rating>")).encode(),
        "between comments",
    ),
    "unrated twice": (
        rdf(described("", 'xmp:Rating="0"'), described("", 'xmp:Rating="0"')).encode(),
        "several ratings",
    ),
}


def tree(data: bytes) -> ET.Element:
    builder = ET.TreeBuilder(insert_comments=True, insert_pis=True)
    return ET.fromstring(data, ET.XMLParser(target=builder))  # noqa: S314 - our own text


def flat(element: ET.Element) -> list[tuple]:
    """Return an element's content in order, an unrated rating as one that is rated."""
    rating = "{http://ns.adobe.com/xap/1.0/}Rating"
    attributes = {name: "*" if name == rating else value for name, value in element.attrib.items()}
    text = "*" if element.tag == rating else element.text or ""
    inside = [each for child in element for each in (*flat(child), ("tail", child.tail or ""))]
    return [(element.tag, attributes, text), *inside]


def root_of(element: ET.Element) -> ET.Element:
    tag = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}RDF"
    return element if element.tag == tag else element.find(tag)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sidecar_of_any_kind_is_merged_or_refused_and_never_broken(tmp_path, kind):
    before, outcome = KINDS[kind]
    path = tmp_path / "a.xmp"
    path.write_bytes(before)
    if outcome != "merged":
        with pytest.raises(InputError, match=outcome) as caught:
            write_sidecar(tmp_path / "a.jpg", SAID, "merge", "basename")
        assert "\n" not in str(caught.value)
        assert [each.read_bytes() for each in tmp_path.iterdir()] == [before]
        return
    assert write_sidecar(tmp_path / "a.jpg", SAID, "merge", "basename") == "merged"
    after = path.read_bytes()
    old, new = tree(before), tree(after)
    added = root_of(new)[-1]
    root_of(new).remove(added)
    assert flat(new) == flat(old)
    said = read_packet(after).properties
    unrated = "unrated" in kind
    assert rating_in(after) == (rating_in(before) or None)
    assert said["http://ns.adobe.com/xap/1.0/", "Label"] == "Green"
    words = [each.text for each in added.iter("{http://www.w3.org/1999/02/22-rdf-syntax-ns#}li")]
    assert words == ([] if kind == "digiKam" else SAID.keywords)
    if unrated:
        assert said["http://ns.adobe.com/xap/1.0/", "Rating"] == said["urn:agentic-iqa:1", "Suggested"] == "4"
    assert write_sidecar(tmp_path / "a.jpg", SAID, "merge", "basename") == "kept"


@pytest.fixture
def merged(tmp_path) -> tuple[Path, Path]:
    """A folder of sidecars, and one of the same with more in them."""
    before, after = tmp_path / "before", tmp_path / "after"
    for folder in (before, after):
        folder.mkdir()
        for kind, (content, outcome) in KINDS.items():
            if outcome == "merged":
                (folder / f"{kind}.xmp").write_bytes(content)
    for path in after.iterdir():
        assert write_sidecar(path.with_suffix(".jpg"), SAID, "merge", "basename") == "merged"
    return before, after


def said_by(*words: str, folder: Path) -> tuple[str, str]:
    """Return what a program prints of a folder's sidecars, and of what it complains."""
    if shutil.which(words[0]) is None:
        pytest.skip(f"no {words[0]} on this machine")
    names = sorted(path.name for path in folder.iterdir())
    ran = subprocess.run([*words, *names], cwd=folder, capture_output=True, text=True, check=False)
    return ran.stdout, ran.stderr


def test_exiftool_reads_all_that_it_read_before(merged):
    before, after = (json.loads(said_by("exiftool", "-j", "-G1", "-struct", folder=each)[0]) for each in merged)
    changed = ("System:", "File:", "XMP-xmp:Rating")
    assert len(after) > 20
    for old, new in zip(before, after, strict=True):
        kept = {name: value for name, value in old.items() if not name.startswith(changed)}
        assert kept.items() <= new.items()
        assert new["XMP-xmp:Label"] == "Green", new
        assert str(new["XMP-xmp:Rating"]).strip() == ("1" if old.get("XMP-xmp:Rating") == 1 else "4")


def test_exiv2_reads_all_that_it_read_before(merged):
    (old, complaints), (new, more) = (said_by("exiv2", "-pa", folder=each) for each in merged)
    assert more.splitlines() == complaints.splitlines()
    kept = {line for line in old.splitlines() if "Rating" not in line}
    assert kept <= set(new.splitlines())
    assert new.count("Xmp.xmp.Label") > 20


# What is replaced, and what is not


def test_of_a_merge_one_value_is_new_and_no_other_byte(tmp_path):
    text = rdf(
        described("<xap:Note>0</xap:Note><xap:Rating> 0 </xap:Rating>", 'xmlns:xap="http://ns.adobe.com/xap/1.0/"')
    )
    path = tmp_path / "a.xmp"
    path.write_text(text, "utf-8")
    assert write_sidecar(tmp_path / "a.jpg", SAID, "merge", "basename") == "merged"
    before, _, behind = path.read_text("utf-8").rpartition("<rdf:Description")
    assert before == text.replace("<xap:Rating> 0 <", "<xap:Rating> 4 <").removesuffix("</rdf:RDF>\n</x:xmpmeta>")
    assert behind.endswith("</rdf:Description></rdf:RDF>\n</x:xmpmeta>")


@pytest.mark.parametrize(
    ("there", "fields", "person"),
    [
        ('xmp:Rating="0" a:Suggested="3"', Fields(4, source="suggested"), None),
        ('xmp:Rating="0" a:Suggested="4"', Fields(4), 4),
        ('xmp:Rating="0" a:Suggested="3"', Fields(4), 4),
        ('xmp:Rating="0"', Fields(-1), -1),
        ('xmp:Rating="3"', Fields(4), 3),
        ('xmp:Rating="-1"', Fields(4, source="suggested"), -1),
    ],
)  # fmt: skip
def test_what_takes_the_place_of_0_is_the_persons_or_a_suggestion(tmp_path, there, fields, person):
    path = tmp_path / "a.xmp"
    path.write_text(rdf(described("", f'xmlns:a="urn:agentic-iqa:1" {there}')), "utf-8")
    replaced = 'Rating="0"' in there
    assert write_sidecar(tmp_path / "a.jpg", fields, "merge", "basename") == ("merged" if replaced else "kept")
    assert rating_in(path.read_bytes()) == person
    assert (f'xmp:Rating="{fields.rating}"' in path.read_text("utf-8")) == replaced


# What any packet costs


def seconds(data: bytes) -> float:
    times = []
    for _ in range(3):
        begun = time.process_time()
        assert rating_in(data) is None
        times.append(time.process_time() - begun)
    return min(times)


def of_lines(size: int) -> str:
    return rdf(described("<dc:x>" + "\n" * size + "</dc:x>"))


def of_elements(size: int) -> str:
    return rdf(described("<dc:x>" + "<dc:y/>" * (size // 7) + "</dc:x>"))


def of_a_long_namespace(size: int) -> str:
    return rdf(described(f'<a:x xmlns:a="{"a" * (size // 2)}">' + '<a:y a:z=""/>' * (size // 26) + "</a:x>"))


@pytest.mark.parametrize("made", [of_lines, of_elements, of_a_long_namespace])
def test_a_packet_costs_time_in_proportion_to_its_length(made):
    few, many = 20_000, 400_000
    assert seconds(made(many).encode()) < 60 * max(seconds(made(few).encode()), 1e-4)


def test_packets_of_no_end_depth_or_bound_are_refused_before_they_cost(tmp_path):
    entities = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    laughs = f'<!DOCTYPE x [<!ENTITY a0 "haha">{entities}]><x>&a9;</x>'
    with pytest.raises(ValueError, match="declares a document type"):
        read_packet(laughs.encode())
    with pytest.raises(ValueError, match="over 200 elements inside each other"):
        read_packet(b"<a>" * 1_000_000)
    for number in ("inf", "nan", "1e400", "9" * 5000):
        assert rating_in(rdf(described("", f'xmp:Rating="{number}"')).encode()) is None
    with (tmp_path / "a.xmp").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(InputError, match=r"sidecar .a.xmp.: cannot be read .has over 16 MiB.; put a plain file"):
        write_sidecar(tmp_path / "a.jpg", SAID, "merge", "basename")


def test_a_packet_that_a_picture_holds_packed_is_read_within_bounds():
    def png(text: str) -> bytes:
        chunks, file = PngImagePlugin.PngInfo(), io.BytesIO()
        chunks.add_itxt("XML:com.adobe.xmp", text, zip=True)
        Image.new("RGB", (8, 8)).save(file, "PNG", pnginfo=chunks)
        return file.getvalue()

    long = png(rdf(described("<dc:x>" + "\n" * 900_000 + "</dc:x>", 'xmp:Rating="3"')))
    assert len(long) < 10_000
    assert rating_in(tags_bounded(long, 64)[1]) == 3
    assert tags_bounded(png("\n" * 2**25), 64) == ({}, b"")  # 32 MiB of text in 33 KB


# Files that appear whole, in their owner's way


def test_a_file_that_cannot_be_replaced_as_it_is_stays_and_one_line_says_why(tmp_path):
    content, image = rdf(described()), tmp_path / "a.jpg"
    elsewhere, path = tmp_path / "elsewhere", tmp_path / "a.jpg.xmp"
    elsewhere.write_text(content, "utf-8")
    makes = {
        "is a link": lambda: path.symlink_to(elsewhere),
        "has another name": lambda: path.hardlink_to(elsewhere),
        "is read-only": lambda: shutil.copyfile(elsewhere, path).chmod(0o444),
        "cannot be read": lambda: path.mkdir(),
    }
    for fault, make in makes.items():
        make()
        before = path.lstat()
        with pytest.raises(InputError, match=f"sidecar 'a.jpg.xmp': {fault}"):
            write_sidecar(image, SAID, "merge", "basename")
        assert (before.st_ino, before.st_mode) == (path.lstat().st_ino, path.lstat().st_mode)
        assert elsewhere.read_text("utf-8") == content
        path.rmdir() if path.is_dir() else path.unlink()
    assert [each.name for each in tmp_path.iterdir()] == ["elsewhere"]


def test_a_merged_sidecar_keeps_its_owner_mode_and_attributes(tmp_path):
    path = tmp_path / "a.xmp"
    path.write_text(rdf(described()), "utf-8")
    path.chmod(0o640)
    os.utime(path, (0, 0))
    if os.geteuid() == 0:
        os.chown(path, 12345, 23456)
    if hasattr(os, "setxattr"):
        try:
            os.setxattr(path, "user.note", b"mine")
        except OSError:
            pytest.skip("no extended attributes on this file system")
    before = path.stat()
    assert write_sidecar(tmp_path / "a.jpg", SAID, "merge", "basename") == "merged"
    after = path.stat()
    assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)
    assert after.st_mtime > 1_000_000
    if hasattr(os, "getxattr"):
        assert os.getxattr(path, "user.note") == b"mine"


def test_a_sidecar_in_capitals_is_one_and_an_empty_one_is_none(tmp_path):
    (tmp_path / "a.XMP").write_text(rdf(described()), "utf-8")
    assert write_sidecar(tmp_path / "a.jpg", SAID, "new", "basename") == "kept"
    assert write_sidecar(tmp_path / "a.jpg", SAID, "merge", "basename") == "merged"
    assert [path.name for path in tmp_path.iterdir()] == ["a.XMP"]
    (tmp_path / "b.xmp").touch()
    for mode in ("new", "merge"):
        assert write_sidecar(tmp_path / "b.jpg", SAID, mode, "basename", dry=True) == "written"
    assert (tmp_path / "b.xmp").read_bytes() == b""
    assert write_sidecar(tmp_path / "b.jpg", SAID, "new", "basename") == "written"
    assert read_packet((tmp_path / "b.xmp").read_bytes()).properties
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("has_links", [True, False])
def test_a_new_file_is_whole_or_not_there_and_replaces_nothing(tmp_path, monkeypatch, has_links):
    def refused(*_, **__):
        raise PermissionError(1, "Operation not permitted")  # as FAT says it

    if not has_links:
        monkeypatch.setattr(os, "link", refused)
    path = tmp_path / "a.xmp"
    with new_file(path) as file:
        file.write(b"whole")
        assert not path.exists()
    with pytest.raises(FileExistsError), new_file(path) as file:
        file.write(b"other")
    assert path.read_bytes() == b"whole"
    with pytest.raises(ValueError, match="cut"), new_file(tmp_path / "b.xmp") as file:
        raise ValueError("cut")
    assert [each.name for each in tmp_path.iterdir()] == ["a.xmp"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def run_apart(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(os.name == "nt", reason="no such signal on Windows")
@pytest.mark.parametrize("maker", ["new_file", "output_file"])
def test_a_kill_at_any_step_leaves_a_whole_file_or_none_and_nothing_once_cleaned(tmp_path, maker):
    code = f"""
        import os, signal, sys
        from pathlib import Path
        from program.common.files import {maker} as make, remove_leftovers

        def kill(event, given):
            global left
            if event in {{"open", "fcntl.flock", "os.link", "os.rename", "os.remove"}}:
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)

        path, step, status = Path("a.xmp"), 0, 9
        while status == 9:
            step += 1
            child = os.fork()
            if not child:
                left = step
                sys.addaudithook(kill)
                with make(path) as file:
                    file.write(b"whole")
                os._exit(0)
            status = os.waitpid(child, 0)[1]
            assert not path.exists() or path.read_bytes() == b"whole", step
            remove_leftovers(Path())
            assert set(os.listdir()) <= {{"a.xmp"}}, step
            path.unlink(missing_ok=True)
        assert status == 0
        assert step > 3
    """
    assert run_apart(code, tmp_path).stderr == ""


def test_what_a_killed_run_left_goes_and_nothing_else(tmp_path):
    name = ".a.xmp.89abcdef.agentic-iqa.tmp"
    mine = [name[1:], f"{name}.jpg", ".a.xmp.tmp", ".a.xmp.0123abcd.tmp", name.replace("agentic-iqa", "agentic")]
    for each in (name, *mine):
        (tmp_path / each).write_bytes(b"mine")
    folder, link = ".folder.01234567.agentic-iqa.tmp", ".link.01234567.agentic-iqa.tmp"
    (tmp_path / folder).mkdir()
    (tmp_path / link).symlink_to(tmp_path / mine[0])
    with whole_file(tmp_path / "c.csv") as partial:
        assert len(partial.name) == len(name)
        partial.write_bytes(b"goes on")
        remove_leftovers(tmp_path)
        assert partial.exists()
    assert {each.name for each in tmp_path.iterdir()} == {*mine, "c.csv", folder, link}
    remove_leftovers(tmp_path / "none")


def test_without_locks_what_is_a_day_old_goes(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("program.common.files.lock_file", refused)
    young, old = (tmp_path / f".a.xmp.{digits}.agentic-iqa.tmp" for digits in ("00000001", "00000002"))
    young.touch()
    old.touch()
    os.utime(old, (1, 1))
    write_whole(tmp_path / "b", "whole")
    remove_leftovers(tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {"b", young.name}


def test_a_run_whose_file_another_one_took_for_a_left_one_makes_it_again(tmp_path, monkeypatch):
    from program.common import files

    lock, taken = files.lock_file, []

    def late(file, *, wait):
        if not taken:  # another run comes between the making of the file and its lock
            taken.append(file.name)
            remove_leftovers(tmp_path)
        return lock(file, wait=wait)

    monkeypatch.setattr(files, "lock_file", late)
    write_whole(tmp_path / "a", "whole")
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_a_copy_that_was_cut_off_is_made_again(tmp_path):
    source, goal = tmp_path / "a.jpg", tmp_path / "goal"
    source.write_bytes(b"picture")
    (tmp_path / "a.xmp").write_bytes(b"beside")
    goal.mkdir()
    (goal / "a.xmp").write_bytes(b"beside")  # what a kill between the two leaves
    digest = hashlib.sha256(b"picture").hexdigest()
    assert copy_picture(source, goal / "a.jpg", digest, sidecars_of(source), dry=False) == "copied"
    (goal / "a.jpg").unlink()
    (goal / "a.xmp").write_bytes(b"another")
    with pytest.raises(InputError, match="is there already"):
        copy_picture(source, goal / "a.jpg", digest, sidecars_of(source), dry=False)
    assert {path.name: path.read_bytes() for path in goal.iterdir()} == {"a.xmp": b"another"}
