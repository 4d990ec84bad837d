"""XMP packets: what one says of a picture, a new one, and one of another program's with more in it.

What is merged into a packet is a description of its own behind those that are there. Every other
byte stays as it was, but for a rating of 0, which means "unrated". Any packet costs time and memory
in proportion to its length: expat takes names as they are written, for it would copy a namespace's
whole address to each of them.
"""

import re
from collections.abc import Container, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from program.common.errors import one_line

MOST_BYTES = 2**24
"""The longest packet that is read."""
_DEEPEST = 200
"""Elements inside each other: photo managers write about ten."""
_PIECE = 2**16
_RDF, _XMP, _DC, _XML, _OWN = (
    "http://www.w3.org/1999/02/22-rdf-syntax-ns#", "http://ns.adobe.com/xap/1.0/", "http://purl.org/dc/elements/1.1/",
    "http://www.w3.org/XML/1998/namespace", "urn:agentic-iqa:1",
)  # fmt: skip
_WINDOWS = [("http://ns.microsoft.com/photo/1.0" + end, "Rating") for end in ("/", "")]
"""A rating in percent: programs write the namespace either way."""
_FLAGS = {
    ("http://ns.adobe.com/xmp/1.0/DynamicMedia/", "pick"): {"1": "pick", "-1": "reject"},  # Lightroom, from 13.2 on
    ("http://www.digikam.org/ns/1.0/", "PickLabel"): {"3": "pick", "1": "reject"},
}
_ROOT, _NODE, _ABOUT = (_RDF, "RDF"), (_RDF, "Description"), {(_RDF, "about"), ("", "about")}
_RATING, _LABEL, _SUBJECT = (_XMP, "Rating"), (_XMP, "Label"), (_DC, "subject")
Source = Literal["person", "confirmed", "suggested"]
"""Whose a rating is: a person's own, the program's that a person confirmed, or the program's alone."""
_MARKS: Mapping[Source, tuple[str, str]] = {"suggested": (_OWN, "Suggested"), "confirmed": (_OWN, "Confirmed")}
"""Each holds the rating that was written with it: once a person changes that, they differ."""
_PREFIXES = {_RDF: "rdf", _XMP: "xmp", _DC: "dc", _OWN: "aiqa"}
_PACKET = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
 <rdf:RDF xmlns:rdf="{rdf}">
  {description}
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""
_READ_ONLY = re.compile(r"""\bend\s*=\s*["']r["']""")

Name: TypeAlias = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True)
class Fields:
    """What a packet is to say of a picture."""

    rating: int | None = None
    """1..5, or -1 for a picture that a person rejected."""
    source: Source = "person"
    label: str | None = None
    keywords: Sequence[str] = ()


class _Place(NamedTuple):
    """Where the value of a property stands, in bytes."""

    tag: int
    """Start of the tag that holds it as an attribute, or of the element that holds it as text."""
    attribute: int | None = None
    """Which attribute of the tag it is, from 0 on."""
    end: int = 0
    """Start of the element's end tag."""
    name: str = ""
    """As it is written there."""


@dataclass
class Packet:
    """What an XMP packet holds, as far as it matters here."""

    properties: dict[Name, str] = field(default_factory=dict)
    """The text of those that are plain."""
    about: str = ""
    places: dict[Name, list[_Place]] = field(default_factory=dict)
    """Of the rating, and of the marks of whose it is."""
    prefixes: dict[str, str] = field(default_factory=dict)
    """Of the namespaces of RDF and the properties: Adobe's XMP Toolkit refuses a packet with two
    for one of them."""
    roots: list[_Place] = field(default_factory=list)
    """The elements of RDF that descriptions stand in."""
    is_read_only: bool = False


def read_packet(data: bytes) -> Packet:
    """Read an XMP packet. Raises ValueError for what is none or declares a document type."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"has over {MOST_BYTES >> 20} MiB")
    return _Reading(data).packet


class Stated(NamedTuple):
    """What a person says of a picture in its file or beside it."""

    rating: int | None = None
    """Stars 1..5, -1 for a rejected picture, 0 for none; None where nothing is said."""
    picked: bool = False
    is_suggested: bool = False
    """Whether the program gave stars that a person confirmed, as `rating`, or never saw."""


def stated_in(data: bytes) -> Stated:
    """Return a person's rating and flag in a packet, which a suggestion is none of."""
    try:
        properties = read_packet(data).properties
    except ValueError:
        return Stated()
    flags = {words.get(properties.get(name, "")) for name, words in _FLAGS.items()}
    rating = _number(properties.get(_RATING))
    marked = [source for source, mark in _MARKS.items() if properties.get(mark) == str(rating)]
    if rating is None:
        percents = [_number(properties.get(name)) for name in _WINDOWS]
        rating = next((stars_of_percent(each) for each in percents if each is not None), None)
    if "reject" in flags and rating != -1:
        rating, marked = -1, []
    if "suggested" in marked or (rating is not None and not -1 <= rating <= 5):
        rating = None
    return Stated(rating, "pick" in flags, bool(marked))


def stars_of_percent(percent: int) -> int:
    """Return the stars that Windows shows for a rating in percent, 0 for none.

    >>> [stars_of_percent(each) for each in (0, 1, 25, 50, 75, 99)]
    [0, 1, 2, 3, 4, 5]
    """
    return 1 + (percent + 12) // 25 if percent > 0 else 0


def _number(text: str | None) -> int | None:
    with suppress(ValueError, OverflowError):  # the latter for one that is infinite
        return int(float(text or ""))
    return None


def new_packet(fields: Fields) -> bytes:
    """Return a packet that says this and no more."""
    description = _description(_changes(fields, Packet()), "", _PREFIXES)
    return _PACKET.format(rdf=_RDF, description=description).encode()


def merged(data: bytes, fields: Fields) -> bytes | None:
    """Return a packet with the fields that it lacks; None where it lacks none.

    Raises ValueError, saying why, where it cannot be read, is read-only, or would not hold the same
    afterwards.
    """
    packet = read_packet(data)
    changes = _changes(fields, packet)
    if changes == _NO_CHANGES:
        return None
    if packet.is_read_only:
        raise ValueError('is marked as read-only (<?xpacket end="r"?>)')
    units, block = _Units(data), ""
    edits = [units.replacement(packet.places[name], value) for name, value in changes.values.items()]
    if changes.attributes or changes.keywords:
        prefixes = {**_PREFIXES, **packet.prefixes}
        if not all(prefixes[address].isascii() and prefixes[address] for address in _PREFIXES):
            raise ValueError("has names without a prefix, or with one that is not ASCII")
        block = _description(changes, packet.about, prefixes, f' xmlns:{prefixes[_RDF]}="{_RDF}"')
        edits.append(units.addition(packet.roots, block))
    after = units.edited(edits)
    replaced = {place.name for name in changes.values for place in packet.places[name]}
    if not _holds_the_same(data, after, block, replaced) or _changes(fields, read_packet(after)) != _NO_CHANGES:
        raise ValueError("cannot be added to without a change of what it holds")
    return after


# What is to be written


class _Changes(NamedTuple):
    """What a packet lacks of the fields."""

    attributes: Mapping[Name, str]
    """Of a new description."""
    keywords: Sequence[str]
    values: Mapping[Name, str]
    """In place of those that stand there."""


_NO_CHANGES = _Changes({}, (), {})


def _changes(fields: Fields, packet: Packet) -> _Changes:
    there = packet.properties
    attributes: dict[Name, str] = {}
    values: dict[Name, str] = {}
    if fields.rating is not None and _is_unrated(there.get(_RATING, "0")):
        rating = str(fields.rating)
        if _RATING in there:
            values[_RATING] = rating
        else:
            attributes[_RATING] = rating
        for source, mark in _MARKS.items():
            stated = rating if fields.source == source else ""
            if mark in there and (there[mark] == rating) != bool(stated):
                values[mark] = stated
            elif mark not in there and stated:
                attributes[mark] = stated
    if fields.label is not None and _LABEL not in there:
        attributes[_LABEL] = fields.label
    keywords = () if _SUBJECT in there else tuple(fields.keywords)
    return _Changes(attributes, keywords, values)


def _is_unrated(rating: str) -> bool:
    try:
        return float(rating) == 0
    except ValueError:
        return False


def _description(changes: _Changes, about: str, prefixes: Mapping[str, str], declared: str = "") -> str:
    """Return a description of a picture in ASCII; it declares its prefixes but RDF's."""
    rdf, dc = prefixes[_RDF], prefixes[_DC]
    used = {address for address, _ in changes.attributes} | {_DC for _ in changes.keywords}
    declared += "".join(f' xmlns:{prefixes[address]}="{address}"' for address in sorted(used))
    attributes = "".join(
        f" {prefixes[address]}:{name}={quoteattr(value)}" for (address, name), value in changes.attributes.items()
    )
    head = f"<{rdf}:Description {rdf}:about={quoteattr(about)}{declared}{attributes}"
    text = f"{head}/>"
    if changes.keywords:
        words = "".join(f"<{rdf}:li>{escape(word)}</{rdf}:li>" for word in changes.keywords)
        text = f"{head}><{dc}:subject><{rdf}:Bag>{words}</{rdf}:Bag></{dc}:subject></{rdf}:Description>"
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


# Where it is written


class _Edit(NamedTuple):
    """What takes the place of some units."""

    start: int
    end: int
    text: str


_TAG = re.compile(r"<[^\s/>]+", re.ASCII)
_ATTRIBUTE = re.compile(r"""\s+[^\s=]+\s*=\s*(?:"([^"]*)"|'([^']*)')""", re.ASCII)
_VALUE = re.compile(r"\s*(?:<!\[CDATA\[\s*)?([^\s<\]]*)\s*(?:\]\]>\s*)?", re.ASCII)


class _Units:
    """A well-formed packet with one character for each unit of its encoding."""

    def __init__(self, data: bytes) -> None:
        self._data, self.size, self._encoding = data, 1, "latin-1"  # encodings of bytes agree in ASCII
        for encoding, kind, starts in _UTF_16:
            if data.startswith(starts):
                self.size, self._encoding = 2, encoding
                units = np.frombuffer(data, kind)
                self.text = np.where(units < 128, units, ord("?")).astype(np.uint8).tobytes().decode("ascii")
                return
        self.text = data.decode("latin-1")

    def replacement(self, places: Sequence[_Place], value: str) -> _Edit:
        """Return what puts another value in the place of the only one that is there."""
        if len(places) != 1:
            raise ValueError("has several ratings")
        place = places[0]
        spans, start, is_empty = self._tag(place.tag)
        end = place.end // self.size
        if place.attribute is not None:
            (start, end), is_empty = spans[place.attribute], False
        match = None if is_empty else _VALUE.fullmatch(self.text, start, end)
        if match is None:
            raise ValueError("has its rating of 0 between comments or tags")
        return _Edit(*match.span(1), value)

    def addition(self, roots: Sequence[_Place], block: str) -> _Edit:
        """Return what puts a block at the end of the only RDF."""
        if len(roots) != 1:
            raise ValueError("has no <rdf:RDF> that more can be added to" if not roots else "has several <rdf:RDF>")
        _, end, is_empty = self._tag(roots[0].tag)
        if is_empty:
            return _Edit(end - 2, end, f">{block}</{roots[0].name}>")
        return _Edit(roots[0].end // self.size, roots[0].end // self.size, block)

    def edited(self, edits: Iterable[_Edit]) -> bytes:
        """Return the packet with the edits."""
        parts, at = [], 0
        for edit in sorted(edits):
            parts += [self._data[at : edit.start * self.size], edit.text.encode(self._encoding)]
            at = edit.end * self.size
        return b"".join([*parts, self._data[at:]])

    def _tag(self, byte: int) -> tuple[list[tuple[int, int]], int, bool]:
        """Return where a tag's attributes stand, where it ends, and whether it is empty."""
        name = _TAG.match(self.text, byte // self.size)
        at, spans = name.end() if name else 0, []
        while match := _ATTRIBUTE.match(self.text, at):
            spans.append(match.span(match.lastindex or 0))
            at = match.end()
        end = self.text.index(">", at) + 1
        return spans, end, self.text[end - 2] == "/"


_UTF_16 = (("utf-16-le", "<u2", (b"\xff\xfe", b"<\0")), ("utf-16-be", ">u2", (b"\xfe\xff", b"\0<")))


def _holds_the_same(before: bytes, after: bytes, block: str, replaced: Set[str]) -> bool:
    """Tell whether a packet holds what it held, in its order, and the block at the end of its RDF.

    The values of what is `replaced`, by the names as they are written, are not compared.
    """
    try:
        old, new, added = _events(before, replaced), _events(after, replaced), _events(block.encode(), ())
    except ValueError:
        return False
    at = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), len(old))
    return [*old[:at], *added, *old[at:]] == new


def _events(data: bytes, hidden: Container[str]) -> list[tuple[Any, ...]]:
    """Return all that XML holds, in order, without the values under hidden names."""
    events: list[tuple[Any, ...]] = []
    if not data:
        return events
    texts: list[str] = []
    is_hidden = [False]

    def add(*event: Any) -> None:
        if texts:
            events.append(("text", "" if is_hidden[-1] else "".join(texts)))
            texts.clear()
        events.append(event)

    def start(name: str, attributes: Mapping[str, str]) -> None:
        add("start", name, [(key, "" if key in hidden else value) for key, value in attributes.items()])
        is_hidden.append(name in hidden)

    def end(name: str) -> None:
        if is_hidden[-1] and not texts:
            texts.append("")
        add("end", name)
        is_hidden.pop()

    parser = _parser()
    parser.XmlDeclHandler = lambda *given: add("declaration", *given)
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, texts.append
    parser.CommentHandler = lambda text: add("comment", text)
    parser.ProcessingInstructionHandler = lambda *given: add("instruction", *given)
    _parse(parser, data)
    return events


# Reading


def _parser() -> expat.XMLParserType:
    parser = expat.ParserCreate()
    parser.buffer_text = True  # else every line is a text of its own

    def refuse(*_: object) -> None:
        raise ValueError("declares a document type")

    parser.StartDoctypeDeclHandler = refuse
    return parser


def _parse(parser: expat.XMLParserType, data: bytes) -> None:
    """Parse in growing pieces: after an error of a handler expat goes on to a piece's end.

    Raises ValueError for what is no XML.
    """
    at, size = 0, _PIECE
    try:
        while at < len(data):
            parser.Parse(data[at : at + size])
            at, size = at + size, 2 * size
        parser.Parse(b"", True)
    except (expat.ExpatError, LookupError) as error:  # the latter for an unknown encoding
        raise ValueError(f"is no XML ({one_line(error)})") from error


class _Reading:
    """One pass over a packet, in which expat resolves no entity from elsewhere."""

    def __init__(self, data: bytes) -> None:
        self.packet = Packet()
        self._path: list[tuple[Name, list[str]]] = []  # with the prefixes that each element declares
        self._addresses: dict[str, list[str]] = {"": [""], "xml": [_XML]}
        self._texts: list[str] = []
        self._root: int | None = None
        """How deep the RDF lies that is being read."""
        self._root_at = self._property_at = 0
        self._parser = parser = _parser()
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler, parser.ProcessingInstructionHandler = self._text, self._instruction
        _parse(parser, data)

    def _start(self, written: str, attributes: Mapping[str, str]) -> None:
        if len(self._path) >= _DEEPEST:
            raise ValueError(f"has over {_DEEPEST} elements inside each other")
        declared = self._declare(attributes)
        element, stated = self._name(written), self._names_of(attributes)
        depth, at = len(self._path), self._parser.CurrentByteIndex
        if self._root is None:
            if element == _ROOT:
                self._root, self._root_at = depth, at
                self._note_prefix(element, written)
        elif depth == self._root + 1 and element == _NODE:
            for own, (number, name) in stated.items():
                self._note(own, attributes[name], _Place(at, number, name=name))
        elif depth == self._root + 2:
            self._property_at = at
            self._texts.clear()
        self._path.append((element, declared))

    def _end(self, written: str) -> None:
        element, declared = self._path.pop()
        for prefix in declared:
            self._addresses[prefix].pop()
        depth, at = len(self._path), self._parser.CurrentByteIndex
        if self._root is None:
            return
        if depth == self._root:
            self.packet.roots.append(_Place(self._root_at, end=at, name=written))
            self._root = None
        elif depth == self._root + 2 and self._path[-1][0] == _NODE:
            place = _Place(self._property_at, end=at, name=written)
            self._note(element, "".join(self._texts), place)

    def _declare(self, attributes: Mapping[str, str]) -> list[str]:
        """Take in what a tag's prefixes stand for, and return them."""
        declared = []
        for name, address in attributes.items():
            if _is_declaration(name):
                prefix = name[6:]
                if name != "xmlns" and (not _is_name(prefix) or not address):
                    raise ValueError("is no XML (a prefix is declared wrongly)")
                self._addresses.setdefault(prefix, []).append(address)
                declared.append(prefix)
        return declared

    def _names_of(self, attributes: Mapping[str, str]) -> dict[Name, tuple[int, str]]:
        """Return by a tag's attributes which of them each is, and as what it is written."""
        names: dict[Name, tuple[int, str]] = {}
        for number, written in enumerate(attributes):
            if _is_declaration(written):
                continue
            name = self._name(written) if ":" in written else ("", written)
            if name in names:
                raise ValueError("is no XML (duplicate attribute)")
            names[name] = number, written
        return names

    def _note(self, name: Name, value: str, place: _Place) -> None:
        if name in _ABOUT:
            self.packet.about = value
            return
        self.packet.properties[name] = value.strip()
        self._note_prefix(name, place.name)
        if name == _RATING or name in _MARKS.values():
            self.packet.places.setdefault(name, []).append(place)

    def _note_prefix(self, name: Name, written: str) -> None:
        prefix = written.rpartition(":")[0]
        self.packet.prefixes.setdefault(name[0], prefix)

    def _text(self, value: str) -> None:
        if self._root is not None and len(self._path) == self._root + 3:
            self._texts.append(value)

    def _instruction(self, target: str, value: str) -> None:
        if target == "xpacket" and _READ_ONLY.search(value):
            self.packet.is_read_only = True

    def _name(self, written: str) -> Name:
        prefix, colon, name = written.rpartition(":")
        addresses = self._addresses.get(prefix)
        if not addresses or not _is_name(name) or (colon and not prefix):
            raise ValueError("is no XML (unbound prefix)")
        return addresses[-1], name


def _is_name(part: str) -> bool:
    """Tell whether a part of a name that expat took is a name by itself."""
    return bool(part) and ":" not in part and part[0] not in "-.0123456789"


def _is_declaration(name: str) -> bool:
    return name == "xmlns" or name.startswith("xmlns:")
