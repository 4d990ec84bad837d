"""From a folder of images to a ranked table and a contact sheet: worst first, with thumbnails and reasons.

    python examples/ranked_folder.py FOLDER --out ranked

writes ranked/ranked.csv and ranked/contact_sheet.html, one page that fetches nothing.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import jinja2

from program import AgenticIQA
from program.batch.command import judge
from program.batch.inputs import find_items
from program.batch.output import write_rows
from program.common.cli import Parser, run_command
from program.images.store import IMAGES, thumbnail
from program.running.row import Row

THUMBNAIL_PX = 260
SHEET = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{{ title }}</title><style>
body { margin: 24px; font: 14px/1.45 system-ui, sans-serif; color: #18222d; background: #f3f6f9; }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(260px, 1fr)); gap: 16px; }
figure { margin: 0; background: #fff; border: 1px solid #dfe5eb; border-radius: 10px; overflow: hidden; }
img { display: block; width: 100%; height: 190px; object-fit: contain; background: #e9edf2; }
figcaption { padding: 10px 14px 12px; overflow-wrap: anywhere; } b { font-size: 20px; } small { color: #5b6774; }
</style></head><body><h1>{{ title }}</h1><p>{{ rows|length }} images, worst first; scores on 1 to 5.</p><main>
{% for row, thumbnail in rows %}<figure>{% if thumbnail %}<img alt="" src="{{ thumbnail }}">{% endif %}
<figcaption><b>{{ "%.2f"|format(row.score) if row.score is not none else "no score" }}</b>
<small>{{ loop.index }}.</small><div>{{ row.id }}</div><small>{{ row.distortions or row.error or "" }}</small>
</figcaption></figure>
{% endfor %}</main></body></html>
"""


def main(argv: list[str] | None = None) -> int:
    """Run the example and return its exit code."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--out", type=Path, default=Path("ranked"))
    arguments = parser.parse_args(argv)
    return run_command(lambda: rank(arguments.folder, arguments.out))


def rank(folder: str, out: Path) -> int:
    """Judge a folder's images and write the table and the sheet."""
    out.mkdir(parents=True, exist_ok=True)
    items = find_items([folder], recursive=True)
    judged: list[Row] = []
    judge(AgenticIQA(), items, judged.append, out=out / "ranked.csv")
    ranked = sorted(judged, key=lambda row: (row.score is None, row.score, row.id))
    write_rows(out / "ranked.csv", ranked)
    page = sheet(f"Ranked: {Path(folder).name}", ranked, {item.id: item.image for item in items})
    (out / "contact_sheet.html").write_text(page, "utf-8")
    sys.stdout.write(f"{len(ranked)} images ranked in {out / 'ranked.csv'} and {out / 'contact_sheet.html'}\n")
    return 0


def sheet(title: str, ranked: list[Row], files: Mapping[str, Path | str | None]) -> str:
    """Return the page; names and errors are escaped."""
    template = jinja2.Environment(autoescape=True).from_string(SHEET)
    with IMAGES.borrow():
        shown = [thumbnail(file, 2 * THUMBNAIL_PX) if (file := files[row.id]) and row.score else None for row in ranked]
    return template.render(title=title, rows=list(zip(ranked, shown, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
