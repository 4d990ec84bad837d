"""Draw docs/images/scale.png: one photograph at five places of the scale: `python -m benchmarks.plot_scale [FILE]`.

The photograph is blurred and compressed more and more. The versions whose scores are nearest to `WANTED` are shown,
each as a crop of its middle at full size, with the program's own answer.
"""

import io
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFilter, ImageFont

from data.quickstart import load_photograph
from program import AgenticIQA

WANTED = (4.5, 4.0, 3.0, 2.0, 1.2)
SIDE, BORDER, LINE = 220, 8, 24
"""Pixels of a crop, around it, and of the text below."""


def draw(path: Path) -> None:
    """Write the figure."""
    program, photo = AgenticIQA(), Image.fromarray(load_photograph("coffee"))
    shown = {}
    for step in range(24):
        file = io.BytesIO()
        photo.filter(ImageFilter.GaussianBlur(step / 6)).save(file, "JPEG", quality=98 - 4 * step)
        result = program(image=file.getvalue())
        shown[float(result.final_answer)] = Image.open(file), result.headline.split(",")[0] + ")"
    width, height = BORDER + len(WANTED) * (SIDE + BORDER), SIDE + LINE + 2 * BORDER
    page = Image.new("RGB", (width, height), "white")
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(15)
    for place, wanted in enumerate(WANTED):
        picture, words = shown[min(shown, key=lambda score: abs(score - wanted))]
        left, top = (picture.width - SIDE) // 2, (picture.height - SIDE) // 2
        x = BORDER + place * (SIDE + BORDER)
        page.paste(picture.crop((left, top, left + SIDE, top + SIDE)), (x, BORDER))
        pen.text((x, BORDER + SIDE + 4), words, fill="#222222", font=font)
    page.quantize(255, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    draw(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images/scale.png"))
