"""How often a fault is named where none is: `python -m benchmarks.published_photographs UNPACKED OUT`.

Judges 132 photographs that Debian's packages ship. UNPACKED holds the packages below, each by `apt-get download NAME`
and `dpkg -x NAME_*.deb UNPACKED`. Somebody chose each photograph for others to look at, and those that show a fault on
a contact sheet are left out. OUT gets them as PNGs of at most 700 pixels, and `rows.jsonl`. Prints how many get a
fault, a moderate or strong one, or are not judged, each with its 95 % interval.
"""

import argparse
import io
import json
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from program import AgenticIQA
from program.common.files import whole_file
from program.common.pool import progress
from program.evaluation.intervals import wilson

SIDE = 700
"""Pixels of the longer side, at most."""
GCOMPRIS: Mapping[str, Sequence[str]] = {
    "categorization": "victoriaMemorial baseball volleyball windmill6 spray".split(),
    "details": [f"{name}_background" for name in (
        "Chenonceau EgeskovSlotSpejling EilanDonanCastle FanoeWindmill GizahPyramids NDP Nagoya Neuschwanstein"
        " OperaSidney TajMahal TowerBridgeLondon"
    ).split()],
    "erase": (
        "alpaca bee butterfly calf camels caterpillar chamaeleon cheetah crab dolphin flying_fox gibbon giraffe goat"
        " gorilla gosling heron horse kingfisher kitten long_nosed_monkey macaque meerkats northern_harrier nubian_ibex"
        " penguin pika red_panda rhinoceros spoonbills squirrel swans toucan"
    ).split(),
    "explore_farm_animals": "chicken dog duck horse owl sheep".split(),
    "explore_monuments": (
        "redPyramid arlesAmphitheater chateaudeChambord chateaudeChenonceau citedeCarcassonne eiffelTower montStMichel"
        " palaisdesPapes pontduGard reimsCathedral rocamadour aulaPalatina berlinCathedral brandenburgGate"
        " neuschwansteinCastle schwerinPalace trierImperialBaths wormsCathedral ajantaCave konarkSunTemple mysorePalace"
        " qutubMinar rangGhar victoriaMemorial mountRushmore statueofLiberty chichenItza colosseum greatWallofChina"
        " petra"
    ).split(),
    "explore_world_animals": (
        "bison chameleon dragon hedgehog jaguar koala lemur moose panda polar_bear"
    ).split(),
    "explore_world_music": "africa australia ireland italy middleeast".split(),
}  # fmt: skip
"""Photographs in the resources of the activities of gcompris-qt-data (3.1)."""
FILES: Mapping[str, Sequence[str]] = {
    "share/backgrounds": [f"{name}.jpg" for name in (
        "Bridge_by_Sander_Klootwijk Picture_0B_by_freespace aitzgorri_by_Aitzol_Berasategi"
        " friends_by_Aitzol_Berasategi life_by_Aitzol_Berasategi seeding_by_Clements_Engelhardt"
    ).split()],
    "share/backgrounds/mate/nature": [f"{name}.jpg" for name in (
        "Aqua Blinds Dune FreshFlower Garden GreenMeadow LadyBird RainDrops TwoWings Wood YellowFlower"
    ).split()],
    "share/palapeli/collection": [f"{name}.jpg" for name in (
        "castle-maintenon cincinnati-bridge citrus-fruits european-honey-bee"
    ).split()],
    "share/wallpapers": [f"{name}/contents/images/2560x1600.jpg" for name in (
        "BytheWater ColdRipple ColorfulCups DarkestHour EveningGlow FallenLeaf Grey Kite OneStandsOut Path"
    ).split()] + ["Volna/contents/images/5120x2880.jpg"],
}  # fmt: skip
"""Photographs of lomiri-wallpapers-16.04, mate-backgrounds, palapeli-data and plasma-workspace-wallpapers."""


def main(argv: Sequence[str] | None = None) -> int:
    """Write the photographs and what is said of them, and print the counts as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.published_photographs", description=str(__doc__).split("\n")[0]
    )
    parser.add_argument("unpacked", type=Path, metavar="UNPACKED")
    parser.add_argument("out", type=Path, metavar="OUT")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    files = []
    for number, picture in enumerate(_pictures(options.unpacked / "usr")):
        picture.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        files.append(options.out / f"{number:03}.png")
        picture.save(files[-1])
    rows = _judged(files)
    with whole_file(options.out / "rows.jsonl") as part:
        part.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    counts = {
        "any": sum(bool(row["faults"]) for row in rows),
        "moderate": sum(any(strength != "slight" for _, strength in row["faults"]) for row in rows),
        "not judged": sum(row["not_judged"] is not None for row in rows),
    }
    figures = {
        name: [count, *(round(end, 3) for end in wilson(count / len(rows), len(rows)))]
        for name, count in counts.items()
    }
    sys.stdout.write(json.dumps({"n": len(rows), **figures}) + "\n")
    return 0


def _judged(files: Sequence[Path]) -> list[dict[str, Any]]:
    program, rows = AgenticIQA(), []
    with progress("judging", len(files)) as advance:
        for file in files:
            result = program(image=file)
            said = {"score": result.final_answer, "reasoning": result.summary, "not_judged": result.not_judged}
            rows.append({"id": file.name, **said, "faults": result.faults})
            advance()
    return rows


def _pictures(packages: Path) -> Iterator[Image.Image]:
    for folder, names in FILES.items():
        for name in names:
            yield Image.open(packages / folder / name).convert("RGB")
    for activity, names in GCOMPRIS.items():
        (resources,) = packages.rglob(f"{activity}.rcc")
        contents = {Path(name).stem: content for name, content in _files_in(resources) if name.endswith(".webp")}
        for name in names:
            yield Image.open(io.BytesIO(contents[name])).convert("RGB")


def _files_in(resources: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file in a Qt resource file (`qres`), as Qt's rcc writes it."""
    content = resources.read_bytes()
    _, version, tree, data, names = struct.unpack(">4s4I", content[:20])
    size = 22 if version > 1 else 14

    def below(at: int) -> Iterator[tuple[str, bytes]]:
        node = tree + at * size
        name_at, flags = struct.unpack(">IH", content[node : node + 6])
        if flags & 2:  # a folder
            count, first = struct.unpack(">2I", content[node + 6 : node + 14])
            for child in range(first, first + count):
                yield from below(child)
            return
        (length,) = struct.unpack(">H", content[names + name_at : names + name_at + 2])
        name = content[names + name_at + 6 : names + name_at + 6 + 2 * length].decode("utf-16-be")
        (start,) = struct.unpack(">I", content[node + 10 : node + 14])
        (length,) = struct.unpack(">I", content[data + start : data + start + 4])
        yield name, content[data + start + 4 : data + start + 4 + length]

    yield from below(0)


if __name__ == "__main__":
    sys.exit(main())
