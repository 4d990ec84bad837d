"""A folder of mutated images in one run: `python -m benchmarks.mutated_images [COUNT] [--seed N] [--keep DIR]`.

Seeded mutations (cut files, flipped bits, edited widths and heights, damaged chunks, junk at the end, wrong suffixes,
empty files) of PNG, JPEG, BMP, GIF, TIFF, WebP and PPM. `python -m program.assess FOLDER --out table.csv` must end with
code 0 or 1, without a traceback, and with a row for every file.
"""

import argparse
import csv
import io
import os
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

SUFFIXES = {"PNG": ".png", "JPEG": ".jpg", "BMP": ".bmp", "GIF": ".gif", "TIFF": ".tif", "WEBP": ".webp", "PPM": ".ppm"}
MUTATIONS = ("cut", "bits", "size", "chunk", "junk", "suffix", "empty")
_SIZES = (0, 65535, 49_000_000, 119_999_999, 119_999_999, 2**32 - 1)
_TIFF_KIND = {3: "H", 4: "I"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return its exit code: 0 where every file has its row."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mutated_images", description=str(__doc__).split("\n")[0]
    )
    parser.add_argument("count", nargs="?", type=int, default=200, metavar="COUNT")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write images, table and cache there, and leave them")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        home = arguments.keep or Path(temporary)
        write_mutated(home / "images", arguments.count, arguments.seed)
        return _judged(home, arguments.count)


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


def _judged(home: Path, count: int) -> int:
    table = home / "table.csv"
    folders = {"AGENTICIQA_CACHE_DIR": str(home / "cache"), "AGENTICIQA_MLRUNS_DIR": str(home / "mlruns")}
    command = [sys.executable, "-m", "program.assess", str(home / "images"), "--out", str(table), "--force"]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **folders}, check=False)
    seconds = time.perf_counter() - started
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    rows: list[dict[str, str]] = []
    if table.exists():
        with table.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    states = Counter((row["id"].split("-")[2].split(".")[0], row["status"]) for row in rows)
    for mutation in MUTATIONS:
        told = ", ".join(f"{n} {status}" for (kind, status), n in sorted(states.items()) if kind == mutation)
        print(f"{mutation:<8}{told}")
    traceback = "Traceback" in done.stdout + done.stderr
    print(f"exit code {done.returncode}, {len(rows)} rows of {count}, {'a' if traceback else 'no'} traceback, "
          f"{seconds:.0f} s, peak {peak_mb:.0f} MB")  # fmt: skip
    if done.stderr:
        print(done.stderr[-2000:], file=sys.stderr)
    return 0 if done.returncode in {0, 1} and len(rows) == count and not traceback else 1


if __name__ == "__main__":
    raise SystemExit(main())
