"""Malformed images, manifests, settings and programs: `python -m benchmarks.malformed STATE [--images N] [--texts N]`.

Images: seeded mutations (cut files, flipped bits, edited widths and heights, damaged chunks, junk at the end, wrong
suffixes, empty files) of PNG, JPEG, BMP, GIF, TIFF, WebP and PPM, in folders of 500 with three whole images among them.
`python -m program.assess FOLDER --out table.jsonl` must end with code 0 or 1, without a traceback, with a row for every
file, the rows of the whole images as they are without the others, no score beside an error, and below 2 GB.

Texts: mutations of a manifest, a settings file and a `program.json`. The commands that read them must end with one of
their exit codes within 20 s of processor time, a refusal in one line.

STATE keeps a line for each part, so that later runs go on with other seeds; what is printed adds up over all.
"""

import argparse
import io
import json
import os
import random
import resource
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.malformed_texts import fault_of, mutated_text

SUFFIXES = {"PNG": ".png", "JPEG": ".jpg", "BMP": ".bmp", "GIF": ".gif", "TIFF": ".tif", "WEBP": ".webp", "PPM": ".ppm"}
MUTATIONS = ("cut", "bits", "size", "chunk", "junk", "suffix", "empty")
_FOLDER = 500
_WHOLE = ("whole-1", "whole-2", "whole-3")
_LONGEST_S, _MOST_MB = 60.0, 2000.0
LINES = (
    {"id": "a", "image": "photo.png", "mos": 3.1, "mos_std": 0.4, "group": "a", "split": "test", "distortion": "blur"},
    {"id": "b", "image": "photo.png", "mos": 50, "mos_range": [0, 100], "higher_is_better": False, "group": "b"},
    {"id": "c", "image": "photo.png", "query": "Is it sharp?", "options": {"A": "Yes", "B": "No"}, "answer": "A",
     "regions": {"sign": [0, 0, 50, 40]}},
    {"id": "d", "image": "photo.png", "reference": "photo.png", "mos": 4.0, "note": "kept"},
)  # fmt: skip
_SIZES = (0, 65535, 49_000_000, 119_999_999, 119_999_999, 2**32 - 1)
_TIFF_KIND = {3: "H", 4: "I"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run so many more trials; exit code 1 where one of all that were ever tried failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.malformed", description=str(__doc__).split("\n")[0])
    parser.add_argument("state", type=Path, metavar="STATE")
    parser.add_argument("--images", type=int, default=500, metavar="N")
    parser.add_argument(
        "--texts", type=int, default=50, metavar="N", help="of each kind: manifests, settings, programs"
    )
    arguments = parser.parse_args(argv)
    state: Path = arguments.state
    lines = [json.loads(line) for line in state.read_text("utf-8").splitlines()] if state.is_file() else []
    with state.open("a", encoding="utf-8") as file:
        for part in _parts(arguments.images, arguments.texts, len(lines)):
            lines.append(part)
            file.write(json.dumps(part) + "\n")
            file.flush()
    return _report(lines)


def _parts(images: int, texts: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield what became of each part: its kind, how many were tried, and the faults."""
    while images > 0:
        with tempfile.TemporaryDirectory() as home:
            yield _images_part(Path(home), min(images, _FOLDER), seed)
        images, seed = images - _FOLDER, seed + 1
    for kind in ("manifest", "settings", "program") if texts else ():
        with tempfile.TemporaryDirectory() as home:
            yield _texts_part(Path(home), kind, texts, seed)


def _report(lines: list[dict[str, Any]]) -> int:
    failed = 0
    for kind in dict.fromkeys(line["kind"] for line in lines):
        own = [line for line in lines if line["kind"] == kind]
        tried, faults = sum(line["tried"] for line in own), [fault for line in own for fault in line["faults"]]
        failed += len(faults)
        print(f"{kind}: tried {tried}, survived {tried - len(faults)}, failed {len(faults)}, "
              f"peak {max(line['peak_mb'] for line in own):.0f} MB")  # fmt: skip
        for fault in faults[:20]:
            print("  " + fault)
    return 1 if failed else 0


def write_mutated(folder: Path, count: int, seed: int = 0) -> None:
    """Write so many mutated images, named NUMBER-FORMAT-MUTATION; formats and mutations take turns."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    whole = {kind: _encoded(kind, seed) for kind in SUFFIXES}
    for number in range(count):
        kind = list(SUFFIXES)[number % len(SUFFIXES)]
        mutation = MUTATIONS[(number // len(SUFFIXES) + number) % len(MUTATIONS)]
        suffix = SUFFIXES[kind]
        if mutation == "suffix":
            suffix = rng.choice([other for other in SUFFIXES.values() if other != suffix])
        data = mutated(whole[kind], kind, mutation, rng)
        (folder / f"{number:03}-{kind.lower()}-{mutation}{suffix}").write_bytes(data)


def mutated(data: bytes, kind: str, mutation: str, rng: random.Random) -> bytes:
    """Return an encoded image after a mutation; the same bytes where its suffix alone is wrong."""
    changed = bytearray(data)
    if mutation == "cut":
        del changed[rng.randrange(1, len(data)) :]
    elif mutation == "bits":
        for _ in range(rng.choice((1, 8, 64))):
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif mutation == "size":
        _resize(changed, kind, rng)
    elif mutation == "chunk":
        start = rng.randrange(4, len(data))
        length = rng.randrange(1, 64)
        changed[start : start + length] = rng.choice((b"", rng.randbytes(length), changed[start : start + length] * 2))
    elif mutation == "junk":
        changed += rng.choice((rng.randbytes(5000), bytes(5000), data))
    elif mutation == "empty":
        changed.clear()
    return bytes(changed)


def _encoded(kind: str, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    rough = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8))
    pixels = np.asarray(rough.resize((192, 144), Image.Resampling.BICUBIC)) // 2 + rng.integers(0, 32, (144, 192, 1))
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, kind)
    return buffer.getvalue()


def _resize(data: bytearray, kind: str, rng: random.Random) -> None:
    """Write another width or height, or a single row or column of such a length, into the head."""
    size = rng.choice(_SIZES)
    sides = rng.choice(((size, 1), (size, 1), (1, size), (size, None), (None, size)))
    if kind == "PPM":
        data[: data.index(b"255")] = b"P6\n%d %d\n" % tuple(144 if side is None else side for side in sides)
        return
    places, form = _places(data, kind)
    for place, side in zip(places, sides, strict=True):
        if side is not None:
            struct.pack_into(form, data, place, side % 256 ** struct.calcsize(form))
    if kind == "PNG":
        data[24] = rng.choice((8, 16))  # bits a channel: a row of 16 is twice as long
        data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))


def _places(data: bytearray, kind: str) -> tuple[list[int], str]:
    """Return where width and height lie, and how they are packed."""
    if kind == "PNG":
        return [16, 20], ">I"
    if kind == "BMP":
        return [18, 22], "<I"
    if kind == "GIF":
        return [6, 8], "<H"
    if kind == "WEBP":  # lossy: after the frame tag and the start code
        start = data.index(b"\x9d\x01\x2a") + 3
        return [start, start + 2], "<H"
    if kind == "JPEG":
        start = data.index(b"\xff\xc0") + 5
        return [start, start + 2], ">H"
    order = "<" if data.startswith(b"II") else ">"
    directory = struct.unpack_from(f"{order}I", data, 4)[0]
    entries = range(directory + 2, directory + 2 + 12 * struct.unpack_from(f"{order}H", data, directory)[0], 12)
    tags = {struct.unpack_from(f"{order}H", data, at)[0]: at for at in entries}
    form = _TIFF_KIND[struct.unpack_from(f"{order}H", data, tags[256] + 2)[0]]
    return [tags[256] + 8, tags[257] + 8], order + form


def _images_part(home: Path, count: int, seed: int) -> dict[str, Any]:
    write_mutated(home / "images", count, seed)
    for name in _WHOLE:
        (home / "images" / f"{name}.png").write_bytes(_encoded("PNG", int(name[-1])))
    table = home / "table.jsonl"
    command = [sys.executable, "-m", "program.assess", str(home / "images"), "--out", str(table)]
    folders = {"AGENTICIQA_CACHE_DIR": str(home / "cache"), "AGENTICIQA_MLRUNS_DIR": str(home / "mlruns")}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **folders}, check=False)
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    lines = table.read_text("utf-8").splitlines() if table.is_file() else []
    rows = {row["id"]: row for row in map(json.loads, lines)}
    faults = [f"{row['id']}: a score beside {row['status']}" for row in rows.values()
              if row["status"] in {"error", "failed"} and row["score"]]  # fmt: skip
    faults += [f"{row['id']}: {row['seconds']} s" for row in rows.values() if (row["seconds"] or 0) > _LONGEST_S]
    if done.returncode not in {0, 1} or "Traceback" in done.stderr + done.stdout:
        faults.append(f"exit code {done.returncode}: {done.stderr[-1000:]}")
    if len(lines) != count + len(_WHOLE) or len(rows) != len(lines):
        faults.append(f"{len(lines)} rows of {count + len(_WHOLE)}")
    faults += [f"{name}: {rows.get(name + '.png', {}).get('status')}" for name in _WHOLE
               if rows.get(f"{name}.png", {}).get("status") != "ok"]  # fmt: skip
    if peak_mb > _MOST_MB:
        faults.append(f"peak {peak_mb:.0f} MB")
    return {"kind": "images", "seed": seed, "tried": count, "faults": faults, "peak_mb": peak_mb}


def _texts_part(home: Path, kind: str, count: int, seed: int) -> dict[str, Any]:
    from program import assess, evaluate
    from program.agent.loop import AgenticIQA
    from program.agent.saving import save

    os.environ |= {"AGENTICIQA_CACHE_DIR": str(home / "cache"), "AGENTICIQA_MLRUNS_DIR": str(home / "mlruns")}
    rng = random.Random(f"{kind} {seed}")
    photo = home / "photo.png"
    photo.write_bytes(_encoded("PNG", 1))
    if kind == "program":
        file = save(AgenticIQA(), home / "program") / "program.json"
        argv = [str(photo), "--json", "--program", str(file.parent)]
    elif kind == "settings":
        file = home / "settings.yaml"
        file.write_text((Path(__file__).parents[1] / "configs/default.yaml").read_text("utf-8"), "utf-8")
        argv = [str(photo), "--json", "--config", str(file)]
    else:
        file = home / "manifest.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in LINES), "utf-8")
        argv = []
    whole, faults, peak_mb = file.read_bytes(), [], 0.0
    for number in range(count):
        file.write_bytes(mutated_text(whole, rng, lines=kind == "manifest", as_yaml=kind == "settings"))
        table = home / f"{number}.jsonl"
        main, words = assess.main, argv or [str(file), "--out", str(table)]
        if kind == "manifest" and number % 2:
            main, words = evaluate.main, [str(file), "--json"]
        fault, peak = fault_of(main, words, table)
        peak_mb = max(peak_mb, peak)
        if fault:
            faults.append(f"{kind} {seed} {number}: {fault}")
            if kept := os.environ.get("MALFORMED_KEEP"):
                (Path(kept) / f"{kind}-{seed}-{number}").write_bytes(file.read_bytes())
    return {"kind": kind, "seed": seed, "tried": count, "faults": faults, "peak_mb": peak_mb}


if __name__ == "__main__":
    raise SystemExit(main())
