"""What is written beside pictures: XMP sidecars for Lightroom, darktable and digiKam, and verified copies.

What another program wrote stays: `new` makes a sidecar only where there is none, `merge` puts a description of its own
behind those that are there, with the fields that none of them has, and leaves every other byte as it is.
"""

import hashlib
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from program.common.errors import InputError, one_line
from program.common.files import new_file, plain_file, sync, whole_file

Naming = Literal["basename", "full"]
_RDF, _XMP, _DC = (
    "http://www.w3.org/1999/02/22-rdf-syntax-ns#", "http://ns.adobe.com/xap/1.0/", "http://purl.org/dc/elements/1.1/",
)  # fmt: skip
_OWN = "urn:agentic-iqa:1"
_RATING, _LABEL, _SUBJECT = f"{_XMP} Rating", f"{_XMP} Label", f"{_DC} subject"
_MOST_BYTES = 2**24
_PACKET = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
 <rdf:RDF xmlns:rdf="{rdf}">{description}
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""


@dataclass(frozen=True)
class Fields:
    """What a sidecar is to say of a picture."""

    rating: int | None = None
    """1..5, or -1 for a picture that a person rejected."""
    is_suggested: bool = False
    """Whether the rating is the program's: as long as nobody changes it, it is not read as a person's."""
    label: str | None = None
    keywords: Sequence[str] = ()


@dataclass
class Packet:
    """What an XMP packet holds, as far as it matters here."""

    properties: dict[str, str] = field(default_factory=dict)
    """By namespace and name with a space between; the text of those that are plain."""
    about: str = ""
    end: int | None = None
    """The byte at which its RDF ends, where that is called rdf:RDF: where more descriptions may stand."""


def sidecar_of(picture: Path, naming: Naming) -> Path:
    """Return where a picture's sidecar is written: IMG.xmp (`basename`) or IMG.CR3.xmp (`full`)."""
    return picture.with_suffix(".xmp") if naming == "basename" else picture.with_name(f"{picture.name}.xmp")


def sidecars_of(picture: Path) -> list[Path]:
    """Return the sidecars that a picture has, by either name."""
    names = (sidecar_of(picture, "full"), sidecar_of(picture, "basename"))
    return [path for path in names if os.path.lexists(path)]


def read_packet(data: bytes) -> Packet:
    """Read an XMP packet. Raises ValueError, saying why, for what is none or declares a document type."""
    if len(data) > _MOST_BYTES:
        raise ValueError(f"has over {_MOST_BYTES >> 20} MiB")
    try:
        return _Reading(data).packet
    except expat.ExpatError as error:
        raise ValueError(f"is no XML ({one_line(error)})") from error


class _Reading:
    """One pass of expat, which resolves no entity from elsewhere, over a packet."""

    def __init__(self, data: bytes) -> None:
        self.packet = Packet()
        self._data, self._path, self._texts = data, list[str](), list[str]()
        self._parser = parser = expat.ParserCreate(namespace_separator=" ")
        parser.namespace_prefixes = True  # names come as "namespace name prefix"
        parser.StartDoctypeDeclHandler = self._refuse
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._text
        parser.Parse(data, True)

    def _refuse(self, *_: object) -> None:
        raise ValueError("declares a document type")

    def _start(self, full: str, attributes: dict[str, str]) -> None:
        name = _name_of(full)
        if name == f"{_RDF} Description" and self._path[-1:] == [f"{_RDF} RDF"]:
            plain = {_name_of(key): value for key, value in attributes.items()}
            self.packet.about = plain.pop(f"{_RDF} about", self.packet.about)
            self.packet.properties |= plain
        self._path.append(name)
        self._texts.append("")

    def _end(self, full: str) -> None:
        name, text = self._path.pop(), self._texts.pop()
        if self._path[-2:] == [f"{_RDF} RDF", f"{_RDF} Description"]:
            self.packet.properties[name] = text.strip()
        if name == f"{_RDF} RDF":
            at = self._parser.CurrentByteIndex
            self.packet.end = at if full == f"{name} rdf" and self._data[at : at + 2] == b"</" else None

    def _text(self, value: str) -> None:
        if self._texts:
            self._texts[-1] += value


def _name_of(full: str) -> str:
    return " ".join(full.split(" ")[:2])


def rating_in(data: bytes) -> int | None:
    """Return a person's rating -1..5 in a packet; None where it has none, only a suggestion, or cannot be read."""
    with suppress(ValueError):
        stated = read_packet(data).properties
        value = int(float(stated.get(_RATING, "")))
        return value if -1 <= value <= 5 and stated.get(f"{_OWN} Suggested") != str(value) else None
    return None


def write_sidecar(
    picture: Path, fields: Fields, mode: Literal["new", "merge"], naming: Naming, *, dry: bool = False
) -> str:
    """Write a picture's sidecar and return what became of it: "written", "merged" or "kept".

    With `dry` nothing is written. Raises InputError, one line, where the sidecar that is there cannot be read, is a
    link or is another picture's, and OSError where it cannot be written.
    """
    path = sidecar_of(picture, naming)
    if path.is_symlink():
        raise _fault(path, "is a link", "put a file there")
    there = sidecars_of(picture)
    if not there:
        if not dry:
            _create(path, _PACKET.format(rdf=_RDF, description=_description(fields, "")).encode())
        return "written"
    if mode == "new":
        return "kept"
    before, path = None, there[0] if path not in there else path
    try:
        before = path.read_bytes()
        packet = read_packet(before)
    except ValueError as error:
        raise _fault(path, str(error), "correct or remove it") from error
    added = _absent(fields, packet)
    if not added:
        return "kept"
    try:
        block = _description(added, packet.about, indent="").encode(_encoding_of(before))
    except UnicodeError as error:
        raise _fault(path, "is in an encoding that is not written here", "save it as UTF-8") from error
    if packet.end is None:
        raise _fault(path, "has no <rdf:RDF> that more can be added to", "write it again with the program that made it")
    if not dry:
        _replace(path, before, before[: packet.end] + block + before[packet.end :])
    return "merged"


def _fault(path: Path, fault: str, mend: str) -> InputError:
    return InputError(f"sidecar {path.name!r}: {fault}; {mend}")


def _encoding_of(data: bytes) -> str:
    if data[:2] in {b"\xff\xfe", b"\xfe\xff"} or b"\0" in data[:64]:
        raise UnicodeError("UTF-16")
    declared = data[:200].split(b"?>")[0]
    if b"encoding=" in declared and b"utf-8" not in declared.lower():
        return "ascii"  # what any encoding of XML's has in common
    return "utf-8"


def _absent(fields: Fields, packet: Packet) -> Fields | None:
    """Return the fields that a packet lacks; None where it has all."""
    there = packet.properties
    left = Fields(
        None if _RATING in there else fields.rating, fields.is_suggested, None if _LABEL in there else fields.label,
        () if _SUBJECT in there else fields.keywords,
    )  # fmt: skip
    return left if left.rating is not None or left.label is not None or left.keywords else None


def _description(fields: Fields, about: str, indent: str = "\n  ") -> str:
    """Return a description of a picture, with namespaces of its own."""
    plain = {"xmp:Rating": fields.rating, "xmp:Label": fields.label}
    if fields.is_suggested and fields.rating is not None:
        plain |= {"xmlns:aiqa": _OWN, "aiqa:Suggested": fields.rating}
    attributes = "".join(f" {name}={quoteattr(str(value))}" for name, value in plain.items() if value is not None)
    head = f'<rdf:Description rdf:about={quoteattr(about)} xmlns:xmp="{_XMP}" xmlns:dc="{_DC}"{attributes}'
    if not fields.keywords:
        return f"{indent}{head}/>"
    bag = "".join(f"<rdf:li>{escape(word)}</rdf:li>" for word in fields.keywords)
    return f"{indent}{head}><dc:subject><rdf:Bag>{bag}</rdf:Bag></dc:subject></rdf:Description>"


def _create(path: Path, data: bytes) -> None:
    try:
        with new_file(path) as file:
            file.write(data)
    except FileExistsError:
        raise _fault(path, "appeared meanwhile", "run the command again") from None


def _replace(path: Path, before: bytes, data: bytes) -> None:
    with whole_file(path) as partial:
        with partial.open("wb") as file:
            file.write(data)
            sync(file)
        shutil.copymode(path, partial)
        if path.read_bytes() != before:
            raise _fault(path, "changed meanwhile", "run the command again")


Copied = Literal["copied", "there", "to copy"]
_BLOCK = 2**20


def copy_picture(source: Path, target: Path, sha256: str, companions: Iterable[Path] = (), *, dry: bool) -> Copied:
    """Copy a picture, and its sidecars beside it; "there" where the same bytes are there already.

    What is written is read back and compared with the hash of the picture that was judged. With `dry` all is checked
    and nothing written. Raises InputError for a picture that changed and for a name that is taken, OSError where it
    cannot be read or written.
    """
    pairs = [(source, target), *((each, target.with_name(each.name)) for each in companions)]
    obstacles = [goal for _, goal in pairs if os.path.lexists(goal)]
    if target in obstacles and not target.is_symlink() and _hash_of(target) == sha256:
        return "there"
    if obstacles:
        raise InputError(f"{str(obstacles[0])!r}: is there already; name another --to, or move it away")
    if _hash_of(source) != sha256:
        raise InputError(f"image {str(source)!r}: changed since it was judged; run the command again")
    if dry:
        return "to copy"
    target.parent.mkdir(parents=True, exist_ok=True)
    for one, goal in reversed(pairs):  # the picture last: a copy that is cut off is made again
        _copy_file(one, goal, sha256 if one == source else _hash_of(one))
    return "copied"


def _copy_file(source: Path, target: Path, sha256: str) -> None:
    try:
        with open(source, "rb", opener=plain_file) as reading, new_file(target) as writing:
            shutil.copyfileobj(reading, writing, _BLOCK)
            sync(writing)
            if _hash_of(Path(writing.name)) != sha256:
                raise InputError(f"image {str(source)!r}: changed while it was copied; run the command again")
            shutil.copystat(source, writing.name)
    except FileExistsError:
        raise InputError(f"{str(target)!r}: appeared meanwhile; name another --to, or move it away") from None


def _hash_of(path: Path) -> str:
    with open(path, "rb", opener=plain_file) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
