"""Groups and the best of each on bursts made of photographs: `python -m benchmarks.gallery_bursts FOLDER|MANIFEST`.

Each burst is a photograph as it is and four versions of it, each also cropped: softer, darker, brighter and compressed
(plain); or five windows of 85 % of its sides, moved by up to 15 %, with other brightness (`--shifted`). Other
photographs stand among them. Printed: precision, recall and F1 of the pairs that share a group, by look alone and with
times as a camera writes them; and in how many groups the version as it was taken is chosen as the best, with 95 %
intervals (Wilson). A manifest's rows are those of --split. Seeded; nothing of the photographs is kept.
"""

import argparse
import io
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import combinations
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter

from data.decisions import Decisions
from data.manifest import read_manifest
from program.agent.loop import AgenticIQA
from program.batch.inputs import find_items
from program.common.request import Request
from program.evaluation.intervals import wilson
from program.gallery.choice import Choosing, choose, groups_of
from program.gallery.picture import Picture, Taking

AS_TAKEN = "as-taken"
_START = datetime(2026, 5, 1, 9, 0, 0)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gallery_bursts", description=__doc__.split("\n")[0])
    parser.add_argument("source", metavar="FOLDER|MANIFEST")
    parser.add_argument("--split", default="validation", help="rows of a manifest (default: validation)")
    parser.add_argument("--bursts", type=int, default=20)
    parser.add_argument("--others", type=int, default=100)
    parser.add_argument("--least-mos", type=float, help="bursts are made of photographs with at least this MOS, 1..5")
    parser.add_argument(
        "--shifted", action="store_true", help="move the subject by 15 %% and change brightness by 20 %%"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    rng = random.Random(arguments.seed)
    good, rest = photographs(arguments.source, arguments.split, arguments.least_mos)
    rng.shuffle(good)
    chosen = good[: arguments.bursts]
    others = [path for path in [*good[arguments.bursts :], *rest] if path not in chosen]
    rng.shuffle(others)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), chosen, others[: arguments.others], rng, shifted=arguments.shifted)
        take = Taking(AgenticIQA(), Path(folder, "copies"), {})
        pictures = [take(Request(id=path.name, image=path)) for path in sorted(Path(folder).glob("*.jpg"))]
    found = {how: measured(pictures, how) for how in ("look", "auto")}
    print(json.dumps(found, indent=1) if arguments.json else "\n".join(map(told, found.items())))
    return 0


def photographs(source: str, split: str, least: float | None) -> tuple[list[Path], list[Path]]:
    """Return the photographs that bursts may be made of, and the others."""
    if not source.endswith((".jsonl", ".csv")):
        return [Path(request.image) for request in find_items([source], recursive=True)], []
    samples = [sample for sample in read_manifest(Path(source)) if sample.split == split]
    is_good = [least is None or (sample.quality or 0) >= least for sample in samples]
    pairs = [(Path(sample.image), good) for sample, good in zip(samples, is_good, strict=True)]
    return [path for path, good in pairs if good], [path for path, good in pairs if not good]


def write(folder: Path, chosen: Sequence[Path], others: Sequence[Path], rng: random.Random, *, shifted: bool) -> None:
    """Write the bursts and the other photographs as JPEGs with times."""
    minutes = iter(rng.sample(range(600), len(chosen) + len(others)))
    for number, path in enumerate(chosen):
        photo, start = opened(path), _START + timedelta(minutes=next(minutes))
        for at, (kind, version) in enumerate(versions(photo, rng, shifted=shifted)):
            save(version, folder / f"burst{number:03}_{kind}.jpg", start + timedelta(seconds=at))
    for number, path in enumerate(others):
        save(opened(path), folder / f"other{number:03}.jpg", _START + timedelta(minutes=next(minutes)))


def versions(photo: Image.Image, rng: random.Random, *, shifted: bool) -> Iterator[tuple[str, Image.Image]]:
    """Yield a photograph as it was taken and four worse ones."""
    places = iter(rng.sample([(0, 0), (1, 1), (0, 1), (1, 0), (0.5, 0.5)], 5))

    def framed() -> Image.Image:
        if not shifted:
            return window(photo, rng.random(), rng.random(), rng.uniform(0.92, 0.98))
        moved = window(photo, *next(places), 0.85)
        return ImageEnhance.Brightness(moved).enhance(rng.uniform(0.8, 1.2))

    yield AS_TAKEN, window(photo, *next(places), 0.85) if shifted else photo
    yield "softer", framed().filter(ImageFilter.GaussianBlur(rng.uniform(0.8, 2.0)))
    yield "darker", exposed(framed(), -rng.uniform(0.8, 1.6))
    yield "brighter", exposed(framed(), rng.uniform(0.8, 1.4))
    yield "compressed", compressed(framed(), rng.randrange(15, 40))


def opened(path: Path) -> Image.Image:
    """Return a photograph as RGB."""
    with Image.open(path) as image:
        return image.convert("RGB")


def window(image: Image.Image, across: float, down: float, kept: float) -> Image.Image:
    """Return a part of an image, a share of its sides; 0 is its left or top end, 1 the other."""
    width, height = round(image.width * kept), round(image.height * kept)
    left, top = round((image.width - width) * across), round((image.height - height) * down)
    return image.crop((left, top, left + width, top + height))


def exposed(image: Image.Image, stops: float) -> Image.Image:
    """Return an image with linear light changed by so many stops, clipped at white."""
    light = np.minimum((np.arange(256) / 255.0) ** 2.2 * 2.0**stops, 1.0)
    return image.point(np.round(255 * light ** (1 / 2.2)).astype(int).tolist() * 3)


def compressed(image: Image.Image, quality: int) -> Image.Image:
    """Return an image as a JPEG of this quality shows it."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return opened(file)  # type: ignore[arg-type]


def save(image: Image.Image, path: Path, at: datetime) -> None:
    """Write an image with its time."""
    exif = Image.Exif()
    exif[0x8769] = {36867: f"{at:%Y:%m:%d %H:%M:%S}"}
    image.save(path, quality=95, exif=exif)


def measured(pictures: Sequence[Picture], how: str) -> dict[str, object]:
    """Return how well pairs are found, and how often the version as it was taken is the best of its group."""
    groups = groups_of(pictures, how, 3.0)  # type: ignore[arg-type]
    pairs = {pair for group in groups for pair in combinations(group, 2)}
    bursts: dict[str, list[int]] = {}
    for place, picture in enumerate(pictures):
        if picture.id.startswith("burst"):
            bursts.setdefault(picture.id.split("_")[0], []).append(place)
    same = {pair for burst in bursts.values() for pair in combinations(burst, 2)}
    right = len(pairs & same)
    # The best is asked for of every whole burst, however it was grouped.
    best = [
        picture.id
        for picture in choose(pictures, list(bursts.values()), Decisions(), Choosing())
        if picture.best_of_group
    ]
    wins = sum(AS_TAKEN in name for name in best)
    low, high = wilson(wins / max(len(best), 1), len(best))
    return {
        "pictures": len(pictures), "precision": right / max(len(pairs), 1), "recall": right / max(len(same), 1),
        "f1": 2 * right / max(len(pairs) + len(same), 1), "best": wins, "of": len(best), "low": low, "high": high,
        "missed": sorted(name for name in best if AS_TAKEN not in name),
    }  # fmt: skip


def told(found: tuple[str, dict[str, object]]) -> str:
    """Return one way's figures as a line."""
    how, each = found
    return (
        f"--group {how}: {each['pictures']} pictures; pairs: precision {each['precision']:.3f}, recall "
        f"{each['recall']:.3f}, F1 {each['f1']:.3f}; best as taken in {each['best']} of {each['of']} "
        f"[{each['low']:.2f}, {each['high']:.2f}]; else {', '.join(each['missed']) or 'none'}"  # type: ignore[arg-type]
    )


if __name__ == "__main__":
    raise SystemExit(main())
