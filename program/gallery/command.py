"""What `agentic-iqa gallery` does: judge, group, choose, make the page, and hand over.

The page is one file that fetches nothing, with the small copies beside it or inside.
"""

import argparse
import base64
import hashlib
import html
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

from data.decisions import DECISIONS, KEPT_STARS, Decision, Decisions, read_decisions
from program.agent.saving import context_of, program_from
from program.batch.inputs import find_items, left_out_text
from program.batch.output import write_rows
from program.common.cli import EXIT_PROBLEMS
from program.common.errors import InputError, showable
from program.common.files import is_remote, leads_out, new_file, read_bounded, remove_leftovers, write_whole
from program.common.outputs import GALLERY, check_outputs_in, replacing
from program.common.request import Request
from program.common.settings import Settings
from program.gallery.choice import Choosing, choose, groups_of
from program.gallery.picture import Entry, Picture, Taking, copy_name, rating_fields
from program.gallery.sidecars import copy_picture, write_sidecar
from program.images.packets import Fields, Source
from program.images.stated import sidecar_of, sidecars_of, stated_beside
from program.running.journal import Journal
from program.running.runner import run as run_all

_JOURNAL = "gallery.journal"
_LABELS = {"keep": "Green", "alternate": "Yellow", "reject": "Red", "look": "Blue"}
_THUMB_PX, _MOST_THUMB = 320, 2**24
_KEYWORDS = {"defocus blur": "soft"}
"""Faults whose keyword is another word."""


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Do what the flags ask for, and return the exit code."""
    folder, out = _checked(arguments)
    from_page = read_decisions(arguments.decisions) if arguments.decisions else None
    program = program_from(arguments, settings)
    sizes = {"thumbs": _THUMB_PX, "previews": 0 if arguments.single_file else arguments.preview}
    context = {name: value for name, value in context_of(program).items() if name != "settings"}
    header = {"journal": "gallery", "context": {**context, "sizes": sizes}}
    items = find_items([str(folder)], recursive=arguments.recursive, globs=arguments.glob or ())
    requests = list(_own(items, folder, out))
    _clean(arguments, requests)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with Journal(out / _JOURNAL, header, Picture, mend="give another --out, or --force") as journal:
            if arguments.force:
                journal.begin_again()
            journal.resume()
            by_place: dict[int, Picture] = {}
            run_all(
                Taking(program, out, sizes), requests, by_place.__setitem__, workers=arguments.workers, journal=journal,
                total=len(requests), progress=sys.stderr.isatty() or arguments.verbose > 0,
            )  # fmt: skip
            pictures = [by_place[place] for place in sorted(by_place)]
            decisions = _kept_decisions(out, from_page, pictures)
            pictures = _chosen(arguments, pictures, requests, decisions)
            paths = {request.id: request.image for request in requests}
            pictures = list(_with_sidecars(arguments, pictures, paths, decisions))
            _write(arguments, pictures, paths, decisions)
    except OSError as error:
        raise InputError(f"--out {str(out)!r}: cannot be written ({error.strerror}); give another folder") from error
    failed = _copy(arguments, pictures, paths) if arguments.apply else 0
    sys.stdout.write(f"{_line(_standard(arguments))}\n")
    return _tell(pictures, out, left_out_text(items.left_out()), failed, dry=arguments.dry_run)


def _standard(arguments: argparse.Namespace) -> str:
    """Say by whose standard pictures are judged."""
    if arguments.program:
        return f"by the standard of {arguments.program}"
    return "by the program's own standard; --program judges by yours"


def _checked(arguments: argparse.Namespace) -> tuple[Path, Path]:
    """Return the folder and where the gallery goes; InputError for flags that do not fit."""
    folder, out, to = arguments.folder, arguments.out, arguments.to
    if is_remote(str(folder)) or not folder.is_dir():
        raise InputError(f"folder {str(folder)!r}: is no folder of this machine; give one")
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {str(out)!r}: is a file; name a folder")
    if folder.resolve().is_relative_to(out.resolve()):
        raise InputError(f"--out {str(out)!r}: holds the pictures; give another folder")
    if (to is None) != (arguments.apply is None):
        raise InputError("--to: goes with --apply copy; give both")
    if to is not None and to.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"--to {str(to)!r}: lies among the pictures; give a folder elsewhere")
    check_outputs_in(out, GALLERY)
    return folder, out


def _own(items: Iterable[Request], folder: Path, out: Path) -> Iterator[Request]:
    """Yield the folder's pictures, none of the gallery's copies; and links with an error."""
    for request in items:
        if isinstance(request.image, Path):
            if not leads_out(request.image, out):
                continue
            if leads_out(request.image, folder):
                fault = f"image {request.id!r}: is a link out of the folder; put a copy in its place"
                request = request.model_copy(update={"error": fault})
        yield request


def _clean(arguments: argparse.Namespace, requests: Iterable[Request]) -> None:
    """Remove what killed runs left half-written in the folders that this run writes into."""
    if arguments.dry_run:
        return
    among = {request.image.parent for request in requests if isinstance(request.image, Path)}
    own = {arguments.out / kind for kind in ("", "thumbs", "previews")}
    copied = set() if arguments.to is None else {_goal(arguments, folder) for folder in among}
    for folder in among | own | copied:
        if folder not in copied or not leads_out(folder, arguments.to):
            remove_leftovers(folder)


def _goal(arguments: argparse.Namespace, path: Path) -> Path:
    """Return where a picture of the folder, or a folder below it, is copied to."""
    return Path(arguments.to, path.relative_to(arguments.folder))


def _kept_decisions(out: Path, from_page: Decisions | None, pictures: Iterable[Picture]) -> Decisions:
    """Return earlier decisions with those of the page, and keep them in the gallery.

    Where any is replaced, the older file stays beside.
    """
    path = out / DECISIONS
    kept = read_decisions(path) if path.exists() else Decisions()
    if from_page is None:
        return kept
    hashes = {picture.id: picture.sha256 for picture in pictures}
    decisions = kept.updated(from_page, hashes, time.time_ns() // 1_000_000)
    if any(decisions.pictures[name] != decision for name, decision in kept.pictures.items()):
        _copy_beside(path)
    if decisions != kept:
        write_whole(path, decisions.model_dump_json(indent=1) + "\n")
    return decisions


def _copy_beside(path: Path) -> None:
    """Copy a file to the first free of `path`.1, .2, ...; not where one holds the same."""
    content = path.read_bytes()
    for number in count(1):
        copy = path.with_name(f"{path.name}.{number}")
        try:
            with new_file(copy) as file:
                file.write(content)
            return
        except FileExistsError:
            if copy.is_file() and copy.read_bytes() == content:
                return


def _chosen(
    arguments: argparse.Namespace, pictures: Sequence[Picture], requests: Sequence[Request], decisions: Decisions
) -> list[Picture]:
    """Return the pictures with their groups and verdicts."""
    rated = [_rated(picture, request, arguments.folder) for picture, request in zip(pictures, requests, strict=True)]
    places = [place for place, picture in enumerate(rated) if picture.hash]
    groups = groups_of([rated[place] for place in places], arguments.group, arguments.gap)
    choosing = Choosing(arguments.keep, arguments.reject_below, arguments.sure)
    return choose(rated, [[places[n] for n in group] for group in groups], decisions, choosing)


def _rated(picture: Picture, request: Request, folder: Path) -> Picture:
    """Return a picture with a person's rating beside it, or with why its sidecar cannot be read."""
    try:
        stated = stated_beside(request.image, folder)
    except InputError as error:
        return picture.model_copy(update={"xmp_state": f"error: {error}"})
    if not stated.rating:
        return picture
    return picture.model_copy(update=rating_fields(stated))


def _with_sidecars(
    arguments: argparse.Namespace, pictures: Sequence[Picture], paths: Mapping[str, Path], decisions: Decisions
) -> Iterator[Picture]:
    """Write the sidecars, and yield the pictures with what became of theirs."""
    owners: dict[Path, str] = {}
    for picture in pictures:
        if arguments.xmp == "off" or picture.status == "error" or picture.xmp_state is not None:
            yield picture
            continue
        path = paths[picture.id]
        first = owners.setdefault(sidecar_of(path, arguments.xmp_name), picture.id)
        try:
            if first != picture.id:
                raise InputError(f"sidecar of {picture.id!r}: is that of {first!r}, too; use --xmp-name full")
            fields = _fields_of(picture, decisions.of(picture.id, picture.sha256))
            state = write_sidecar(path, fields, arguments.xmp, arguments.xmp_name, dry=arguments.dry_run)
        except (InputError, OSError) as error:
            state = f"error: {_why(error)}"
        yield picture.model_copy(update={"xmp_state": state})


def _fields_of(picture: Picture, decision: Decision | None) -> Fields:
    """Return what a picture's sidecar says: a person's stars before what is suggested."""
    rates = decision is not None and bool(decision.stars or decision.verdict == "reject")
    source: Source = "person"
    if not picture.user_rating:
        source = "suggested"
    elif decision is not None and rates and not decision.is_own:
        source = "confirmed"
    return Fields(
        picture.user_rating or picture.suggested_rating, source, _LABELS.get(picture.verdict or ""),
        [f"aiqa:{_KEYWORDS.get(fault, fault)}" for fault, _ in picture.faults],
    )  # fmt: skip


def _write(
    arguments: argparse.Namespace, pictures: Sequence[Picture], paths: Mapping[str, Path], decisions: Decisions
) -> None:
    out, single, tables = arguments.out, arguments.single_file, ("gallery.csv", "gallery.jsonl")
    fields = set(Entry.model_fields)
    entries = [Entry(**each.model_dump(include=fields)) for each in shown_order(pictures)]
    title, standard = arguments.folder.resolve().name or "Pictures", _standard(arguments)
    preview = 0 if single else arguments.preview
    shown = page(
        pictures, paths, out, title=title, standard=standard, decisions=decisions, preview=preview, single=single
    )  # fmt: skip
    with replacing(out, GALLERY, ("gallery.html", *tables)):
        for name in tables:
            write_rows(out / name, entries, kind=Entry)
        write_whole(out / "gallery.html", shown)


def _copy(arguments: argparse.Namespace, pictures: Sequence[Picture], paths: Mapping[str, Path]) -> int:
    """Copy what is kept, say what became of it, and return how many could not be."""
    done: Counter[str] = Counter()
    for picture in pictures:
        if picture.verdict != "keep" or picture.sha256 is None:
            continue
        source = paths[picture.id]
        try:
            companions = sidecars_of(source)
            _check_links(arguments, source, *companions)
            state = copy_picture(source, _goal(arguments, source), picture.sha256, companions, dry=arguments.dry_run)
            done[state] += 1
            if state == "to copy":
                sys.stdout.write(f"would copy {_line(picture.id)}\n")
        except (InputError, OSError) as error:
            done["refused"] += 1
            _complain(picture, _why(error))
    names = {"copied": "copied", "to copy": "to copy", "there": "there already", "refused": "refused"}
    counts = " · ".join(f"{done[state]} {name}" for state, name in names.items() if done[state])
    sys.stdout.write(f"{counts or 'nothing to copy'} · {_line(str(arguments.to))}\n")
    return done["refused"]


def _check_links(arguments: argparse.Namespace, source: Path, *companions: Path) -> None:
    """Raise InputError where a copy would follow a link out of its folder."""
    for each in (source, *companions):
        if leads_out(each, arguments.folder):
            raise InputError(f"{each.name!r}: is a link out of the folder; put a copy in its place")
    if leads_out(_goal(arguments, source.parent), arguments.to):
        raise InputError(f"{str(source.parent)!r}: --to has a link out of it in this place; give another --to")


def _tell(pictures: Sequence[Picture], out: Path, left_out: str, failed: int, *, dry: bool) -> int:
    """Print the gallery in figures and what failed, and return the exit code."""
    for picture in pictures:
        if picture.status == "error":
            _complain(picture, picture.error or "could not be judged")
        elif (picture.xmp_state or "").startswith("error: "):
            _complain(picture, str(picture.xmp_state).removeprefix("error: "))
            failed += 1
    counts = Counter(map(_outcome, pictures))
    unjudged = counts["failed"]
    degraded = sum(picture.status == "degraded" for picture in pictures)
    groups = len({picture.group for picture in pictures} - {None})
    parts = [
        f"{len(pictures)} picture{'s' * (len(pictures) != 1)}", f"{groups} group{'s' * (groups != 1)}",
        f"{counts['keep']} keep", f"{counts['alternate']} alternate",
        f"{counts['reject']} reject", f"{counts['look']} not sure", f"{unjudged} failed",
    ]  # fmt: skip
    if degraded:
        parts.append(f"{degraded} degraded")
    states = Counter(picture.xmp_state for picture in pictures if picture.xmp_state in {"written", "merged", "kept"})
    if states:
        would = "would be " if dry else ""
        parts.append("sidecars: " + ", ".join(f"{count} {would}{state}" for state, count in sorted(states.items())))
    lines = filter(None, (left_out, " · ".join(parts), _line(str(out / "gallery.html"))))
    sys.stdout.writelines(f"{line}\n" for line in lines)
    if failed or unjudged or 0 < degraded == len(pictures):
        return EXIT_PROBLEMS
    return 0


def _outcome(picture: Picture) -> str | None:
    """Return a picture's verdict, or "failed" where it could not be judged."""
    if picture.status == "error":
        return "failed"
    return picture.verdict


def _complain(picture: Picture, fault: str) -> None:
    sys.stderr.write(f"{_line(picture.id)}: {_line(fault)}\n")


def _line(text: str) -> str:
    return showable(" ".join(text.split()))


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        name = Path(str(error.filename)).name if error.filename else ""
        return f"{name!r}: {error.strerror or error}; check its permissions and the space left"
    return str(error)


def shown_order(pictures: Sequence[Picture]) -> list[Picture]:
    """Return pictures as shown: groups by their first time, else by name; then by rank."""
    first: dict[str, tuple[bool, str, str]] = {}
    for picture in pictures:
        key = picture.group or f"alone {picture.id}"
        first[key] = min(first.get(key, picture.moment), picture.moment)
    return sorted(pictures, key=lambda p: (first[p.group or f"alone {p.id}"], p.rank or 0, p.id))


def page(
    pictures: Sequence[Picture],
    paths: Mapping[str, Path],
    out: Path,
    *,
    title: str,
    standard: str,
    decisions: Decisions,
    preview: int,
    single: bool,
) -> str:
    """Return the page of a gallery in the folder `out`.

    `paths` are the pictures' files by their ids, `standard` says by whose they are judged, `preview` is the longer side
    of the larger copies in pixels, 0 for none. With `single` the thumbnails are inside, and it shows nothing larger.
    """
    static = files("program.gallery").joinpath("static")
    parts = {name: static.joinpath(f"gallery.{name}").read_text("utf-8") for name in ("html", "css", "js")}
    data = {
        "id": hashlib.sha256(os.fsencode(out.resolve())).hexdigest()[:16],
        "preview": preview,
        "kept_stars": KEPT_STARS,
        "pictures": list(_shown(shown_order(pictures), paths, out, preview=bool(preview), single=single)),
        "decisions": {name: each.model_dump(exclude_defaults=True) for name, each in decisions.pictures.items()},
    }
    # What would end the element that holds it, or a line of a script.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    filled = {
        "policy": _policy(parts["css"], parts["js"]), "title": html.escape(title), "standard": html.escape(standard),
        "style": parts["css"], "data": text, "script": parts["js"],
    }  # fmt: skip
    pieces = parts["html"].split("@")
    return "".join(filled.get(piece, piece) if n % 2 else piece for n, piece in enumerate(pieces))


def _policy(style: str, script: str) -> str:
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii") for text in (style, script)]
    return (
        f"default-src 'none'; img-src 'self' file: data:; style-src 'sha256-{hashes[0]}'; "
        f"script-src 'sha256-{hashes[1]}'; base-uri 'none'; form-action 'none'"
    )


def _shown(
    pictures: Sequence[Picture], paths: Mapping[str, Path], out: Path, *, preview: bool, single: bool
) -> Iterator[dict[str, Any]]:
    for each in pictures:
        digest, thumb, larger, original = each.sha256, None, None, None
        if digest is not None and single:
            inside = read_bounded(out / copy_name("thumbs", digest), _MOST_THUMB)
            thumb = f"data:image/jpeg;base64,{base64.b64encode(inside).decode('ascii')}"
        elif digest is not None:
            thumb = copy_name("thumbs", digest)
            larger = copy_name("previews", digest) if preview else None
            original = _address(paths[each.id], out)
        verdict, reason = each.program_said or (_outcome(each), each.reason)
        if verdict == "failed":  # the page may be mailed: it names no folder of this machine
            reason = (each.error or "").replace(str(paths[each.id]), each.id)
        yield {
            "file": each.id, "sha256": digest, "group": each.group, "taken": each.taken_at, "verdict": verdict,
            "reason": reason, "advice": each.advice, "score": each.score, "kind": each.kind,
            "not_judged": each.not_judged, "rating": each.stored_rating, "faults": each.faults,
            "width": each.width or 3, "height": each.height or 2, "focus": each.focus, "thumb": thumb,
            "preview": larger, "original": original, "camera": each.camera, "where": each.where,
            "why": each.reasoning if each.group else None,
            "suggested": None if each.suggested is None else each.suggested.model_dump(exclude_none=True),
        }  # fmt: skip


def _address(path: Path, out: Path) -> str:
    """Return a file's address from the page's."""
    try:
        return quote(os.fsencode(os.path.relpath(path.absolute(), out.resolve())).replace(os.sep.encode(), b"/"))
    except ValueError:  # another drive of Windows
        return path.absolute().as_uri()
