"""The gallery as a page: one file that fetches nothing, with the small copies beside it or inside."""

import base64
import hashlib
import html
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from program.gallery.decisions import Decisions
from program.gallery.picture import Picture, copy_name

__all__ = ("page", "shown_order")


def shown_order(pictures: Sequence[Picture]) -> list[Picture]:
    """Return pictures as they are shown: groups by their first time, else by name; in a group by rank."""
    first: dict[str, tuple[bool, str, str]] = {}

    def at(picture: Picture) -> tuple[bool, str, str]:
        return picture.taken_at is None, picture.taken_at or "", picture.id

    for picture in pictures:
        key = picture.group or f"alone {picture.id}"
        first[key] = min(first.get(key, at(picture)), at(picture))
    return sorted(pictures, key=lambda p: (first[p.group or f"alone {p.id}"], p.rank or 0, p.id))


def page(
    pictures: Sequence[Picture],
    paths: Mapping[str, Path],
    out: Path,
    *,
    title: str,
    decisions: Decisions,
    preview: int,
    single: bool,
) -> str:
    """Return the page of a gallery in the folder `out`.

    `paths` are the pictures' files by their ids, `preview` the longer side of the larger copies in pixels, 0 for none.
    With `single` the thumbnails are inside, and it shows nothing larger.
    """
    static = files("program.gallery").joinpath("static")
    parts = {name: static.joinpath(f"gallery.{name}").read_text("utf-8") for name in ("html", "css", "js")}
    known = f"{out.resolve()} {decisions.model_dump_json()}"
    data = {
        "id": hashlib.sha256(known.encode(errors="surrogateescape")).hexdigest()[:16],
        "preview": preview,
        "pictures": list(_shown(shown_order(pictures), paths, out, preview=bool(preview), single=single)),
        "decisions": {name: each.model_dump(exclude_defaults=True) for name, each in decisions.pictures.items()},
    }
    # What would end the element that holds it, or a line of a script.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    filled = {
        "policy": _policy(parts["css"], parts["js"]), "title": html.escape(title), "style": parts["css"], "data": text,
        "script": parts["js"],
    }  # fmt: skip
    pieces = parts["html"].split("@")
    return "".join(filled.get(piece, piece) if n % 2 else piece for n, piece in enumerate(pieces))


def _policy(style: str, script: str) -> str:
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii") for text in (style, script))
    style_hash, script_hash = hashes
    return (
        f"default-src 'none'; img-src 'self' file: data:; style-src 'sha256-{style_hash}'; "
        f"script-src 'sha256-{script_hash}'; base-uri 'none'; form-action 'none'"
    )


def _shown(
    pictures: Sequence[Picture], paths: Mapping[str, Path], out: Path, *, preview: bool, single: bool
) -> Iterator[dict[str, Any]]:
    for each in pictures:
        faults = [(each.fault_1, each.strength_1), (each.fault_2, each.strength_2), (each.fault_3, each.strength_3)]
        digest = each.sha256
        yield {
            "file": each.id, "sha256": digest, "group": each.group, "taken": each.taken_at, "verdict": each.verdict,
            "reason": each.reason, "score": each.score, "kind": each.kind, "rating": each.user_rating,
            "faults": [fault for fault in faults if fault[0]], "width": each.width or 3, "height": each.height or 2,
            "focus": each.focus,
            "thumb": None if digest is None else _thumb(out, digest, single=single),
            "preview": None if digest is None or single or not preview else copy_name("previews", digest),
            "original": None if digest is None or single else _address(paths[each.id], out),
        }  # fmt: skip


def _thumb(out: Path, digest: str, *, single: bool) -> str:
    name = copy_name("thumbs", digest)
    if not single:
        return name
    return f"data:image/jpeg;base64,{base64.b64encode((out / name).read_bytes()).decode('ascii')}"


def _address(path: Path, out: Path) -> str:
    """Return a file's address from the page's."""
    try:
        return quote(os.fsencode(os.path.relpath(path.absolute(), out.resolve())).replace(os.sep.encode(), b"/"))
    except ValueError:  # another drive of Windows
        return path.absolute().as_uri()
