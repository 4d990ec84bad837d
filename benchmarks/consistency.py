"""Do all views of an assessment say the same, in words that people use?

    python -m benchmarks.consistency ../shared/data/clive/manifest.jsonl [MANIFEST ...] [--images 300] [--plant]

Images are a split's photographs and pairs in turn with what the quickstart makes of photographs. Each is asked for a
rating, for a part of it, whether it is blurred and noisy, for an explanation and by options, in English and Chinese.
Of each assessment by the embedded expert these are compared with its findings, score and level: the words, the
terminal with and without sources, the table's row, the JSON, the notebook's card and the page (drawn by its own script
in a headless Chromium; without one it is left out). Printed: assessments, and each contradiction once.

`--plant` shows one view another assessment's facts each time; nearly every comparison has to fail then.
"""

import argparse
import base64
import contextlib
import html
import io
import itertools
import json
import random
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from data.catalogue import resolve_dataset
from data.manifest import Sample, read_manifest
from program import AgenticIQA, Assessment
from program.batch.output import show
from program.common.pool import progress
from program.common.request import Request
from program.common.settings import load_settings
from program.common.text import is_chinese
from program.expert.answer.findings import CHINESE, ENGLISH, phrases_for
from program.running.row import Row
from signatures.schemas import CATEGORY_WORDS, GLOBAL, LEVEL_WORDS, LEVELS_CHINESE, SEVERITIES

INTERNAL = re.compile(
    r"Global|Blurs|\blevel [A-E]\b|Contradict|Planning again|deviation|belief|first call|-0 ?%|fuses|"
    r"\bNone\b|\bnull\b|\bnan\b|did not count|\d\.\d\d|scoring phrase"
)
MOST_WORDS = 60
QUERIES: Sequence[tuple[str, dict[str, Any]]] = (
    ("Rate the quality of this image.", {}), ("请给这张图片的质量打分。", {}),
    ("Is the image blurry?", {}), ("图片模糊吗？", {}), ("Is there noise?", {}), ("图片有噪声吗？", {}),
    ("Describe the quality of this image.", {}), ("请描述这张图片的质量。", {}),
    ("Is the image blurry?", {"options": ["Yes", "No"]}), ("Is there noise?", {"options": ["Yes", "No"]}),
    ("Is the image too dark?", {"options": ["Yes", "No"]}), ("图片清晰吗？", {"options": ["清晰", "模糊"]}),
    ("Rate the quality of the left side.", {"regions": "left side"}),
)  # fmt: skip
ASKED = {
    "Is the image blurry?": "Blurs",
    "图片模糊吗？": "Blurs",
    "Is there noise?": "Noise",
    "图片有噪声吗？": "Noise",
}
YES, NO = ("Yes.", "Slightly.", "是。", "稍有一点。"), ("No.", "否。", "Probably not.", "很可能否。")
DRAW = """async ([script, result]) => {
  const page = await import("data:text/javascript;base64," + script);
  document.body.replaceChildren(...page.draw(result));
  document.querySelectorAll("details").forEach((part) => { part.open = true; });
  return [document.querySelector(".hero")?.innerText ?? "", document.body.innerText];
}"""
LEAST_SAME = 4.0
"""Quality beside a reference below which some difference shows."""
Views = dict[str, Any]
Checks = Iterator[tuple[bool, str, object]]
"""Whether something holds, what is wrong where it does not, and what shows it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print how many assessments were compared and what contradicts itself; exit code 1 where anything does."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.consistency", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("manifests", nargs="+", type=Path)
    parser.add_argument("--split", default="validation")
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--plant", action="store_true")
    arguments = parser.parse_args(argv)
    samples = chosen(arguments.manifests, arguments.split, arguments.images)
    program, faults, earlier = AgenticIQA(), Counter[str](), None
    compared, examples = 0, {}
    with browser() as draw, progress("images", len(samples)) as advance:
        for sample in samples:
            for result in assessments(program, sample):
                views = views_of(result, draw)
                found = contradictions(result, {**views, **planted(views, earlier)} if arguments.plant else views)
                earlier, compared = views, compared + 1
                faults.update(fault for fault, _ in found)
                for fault, text in found:
                    examples.setdefault(fault, f"{sample.id}: {text}")
            advance()
    pairs = sum(sample.reference is not None for sample in samples)
    print(f"{len(samples)} images ({pairs} with a reference), {compared} assessments, {sum(faults.values())} faults")
    for fault, count in faults.most_common():
        print(f"{count:6} {fault}\n       {examples[fault][:300]}")
    return int(bool(faults))


def chosen(manifests: Sequence[Path], split: str, count: int) -> list[Sample]:
    """Return samples of the manifests and of the quickstart in turn, each drawn by a fixed seed."""
    quickstart = resolve_dataset("quickstart", load_settings().cache_dir)
    pools = []
    for path in (*manifests, quickstart):
        pool = list({s.image: s for s in read_manifest(path) if s.split == split and s.quality is not None}.values())
        random.Random(20).shuffle(pool)
        pools.append(pool)
    turns = itertools.chain.from_iterable(itertools.zip_longest(*pools))
    return list(itertools.islice((s for s in turns if s is not None), count))


def assessments(program: AgenticIQA, sample: Sample) -> Iterator[Assessment]:
    """Yield the answers to every question about an image, with its reference where there is one."""
    for query, given in QUERIES:
        box = {"regions": {given["regions"]: (0, 0, 100, 100)}} if "regions" in given else given
        reference = str(sample.reference) if sample.reference else None
        yield program(image=str(sample.image), query=query, reference=reference, **box)


def views_of(result: Assessment, draw: Callable[[Any], tuple[str, str]] | None) -> Views:
    """Return an assessment as each view shows it."""
    terminal = []
    for sources in (False, True):
        with contextlib.redirect_stdout(io.StringIO()) as text:
            show(result, sources=sources)
        terminal.append(" ".join(text.getvalue().split()))
    # The card's words; its pictures are the same whatever the answer.
    card = result.model_copy()
    card._images = None
    views = {
        "words": str(result), "terminal": terminal[0], "terminal -v": terminal[1],
        "table": Row.of(Request(id="a"), result), "json": json.loads(result.model_dump_json()),
        "card": html.unescape(card._repr_html_()),
    }  # fmt: skip
    return views | ({"page": draw(views["json"])} if draw else {})


def planted(views: Views, earlier: Views | None) -> Views:
    """Return one view of another assessment, another view in each turn."""
    name = random.choice(sorted(views))
    return {name: earlier[name]} if earlier else {}


def contradictions(result: Assessment, views: Views) -> list[tuple[str, str]]:
    """Return what a view says against an assessment's findings, score or level, or in words of the program's own."""
    checks = (_wording(views), _score(result, views), _findings(result, views), _prose(result, views))
    return [(fault, str(text)) for holds, fault, text in itertools.chain(*checks) if not holds]


def _wording(views: Views) -> Checks:
    for name in ("words", "terminal", "card"):
        yield not INTERNAL.search(re.sub("<[^>]*>", " ", views[name])), f"internal word in {name}", views[name]
    yield len(views["words"].split()) <= MOST_WORDS, "too many words", views["words"]


def _score(result: Assessment, views: Views) -> Checks:
    score, level, row, stored = result.quality_score, result.level, views["table"], views["json"]
    yield row.score == stored["quality_score"] == score and row.level == stored["level"] == level, "score", row
    if score is None or level is None:
        return
    place = "EDCBA".index(level)
    yield place == min(4, int(score + 0.5) - 1), "level", (score, level)
    word = (LEVELS_CHINESE if is_chinese(result.state.query) else LEVEL_WORDS)[place]
    yield word in views["terminal"].casefold(), "level's word in terminal", (word, views["terminal"])
    if result.rating is None:
        return
    for name in ("words", "terminal", "terminal -v"):
        yield views[name].casefold().startswith(word), f"score does not stand first in {name}", views[name]
    tenth = f"{score:.1f}" if int(float(f"{score:.1f}") + 0.5) == place + 1 else f"{int(10 * score) / 10:.1f}"
    for name in ("words", "terminal", "terminal -v", "card"):
        yield bool(re.search(rf"[(（]{tenth}\b", views[name])), f"score in {name}", (score, views[name])
    if "page" in views:
        shown = " ".join(views["page"][0].split()).casefold()
        yield f"{tenth} of 5 {LEVEL_WORDS[place]}" in shown, "score on the page", shown


def _findings(result: Assessment, views: Views) -> Checks:
    found, row, kept = found_in(result), views["table"], views["json"]["state"]["executor_evidence"]
    listed = {tuple(part.split(": ")) for part in (row.distortions or "").split("; ") if part}
    expected = {
        (kind, severity + ("" if place == GLOBAL else f" ({place})")) for (place, kind), severity in found.items()
    }
    yield listed == expected, "table", (listed, expected)
    analysis = (kept or {}).get("distortion_analysis") or {}
    stored = {
        (place, f["type"]): f["severity"] for place, of in analysis.items() for f in of if f["severity"] != "none"
    }
    yield stored == found, "json", stored
    for (_, kind), severity in found.items():
        name = CATEGORY_WORDS.get(kind, kind)
        yield f"{name}: {severity}" in views["card"], "finding in the card", (name, severity, views["card"])
        yield f"{name} {severity}" in views["terminal -v"], "finding in terminal -v", (name, severity)
        if "page" in views:
            yield severity in views["page"][1].casefold(), "finding on the page", (kind, severity)


def _prose(result: Assessment, views: Views) -> Checks:
    found, words = found_in(result), views["words"]
    asked = set(result.state.plan.query_scope) if result.state.plan else {GLOBAL}
    severities = {kind: severity for (place, kind), severity in found.items() if place in asked}
    said = spoken(words, chinese=is_chinese(result.state.query))
    for kind, severity in said:
        yield severities.get(kind) == severity, "prose says what was not found", (kind, severity, severities, words)
    if found and not result.state.options and not result.state.regions:
        worst = max(found.values(), key=SEVERITIES.index)
        yield any(severity == worst for _, severity in said), "prose leaves out the strongest", (found, words)
    unseen = phrases_for(result.state.query).say("sentence.same")
    yield unseen not in words or (result.quality_score or 5) >= LEAST_SAME, "a difference that costs is unseen", words
    if kind := ASKED.get(result.state.query):
        severity, first = severities.get(kind, "none"), str(result.final_answer)
        if options := result.state.options:  # of what is slight, both are right
            holds = severity == "slight" or (options[first] == "Yes") == (severity != "none")
        else:
            holds = first.startswith(NO if severity == "none" else YES)
        yield holds, "yes or no against the finding", (kind, severities, first)


def found_in(result: Assessment) -> dict[tuple[str, str], str]:
    """Return the severity of each distortion that was found, by region and category."""
    evidence = result.state.executor_evidence
    analysis = (evidence.distortion_analysis if evidence else None) or {}
    return {(place, f.type): f.severity for place, of in analysis.items() for f in of if f.severity != "none"}


def spoken(text: str, *, chinese: bool) -> list[tuple[str, str]]:
    """Return the (category, severity) that a text names."""
    phrases, pairs = CHINESE if chinese else ENGLISH, []
    causes = {"motion": "Blurs", "defocus": "Blurs", "overexposure": "Brightness change",
              "underexposure": "Brightness change"}  # fmt: skip
    names = {phrases.say(f"{table}.{kind}"): kind for kind in CATEGORY_WORDS for table in ("damage", "change")}
    names |= {phrases.say(f"damage.{cause}"): kind for cause, kind in causes.items()}
    for name, kind in sorted(names.items(), key=lambda pair: -len(pair[0])):
        for severity in reversed(SEVERITIES[1:]):
            text, count = re.subn(
                re.escape(phrases.say(f"severity.{severity}")) + r"\s?" + re.escape(name), "", text, flags=re.I
            )
            pairs += [(kind, severity)] * count
    return pairs


@contextlib.contextmanager
def browser() -> Iterator[Callable[[Any], tuple[str, str]] | None]:
    """Yield what draws a result as the page does and returns its head and all its text; None without a Chromium."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("no Chromium: the page is left out", file=sys.stderr)
        yield None
        return
    from playwright.sync_api import sync_playwright

    script = files("program.service").joinpath("static", "draw.js").read_bytes()
    with sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]).new_page()
        yield lambda result: tuple(page.evaluate(DRAW, [base64.b64encode(script).decode(), result]))


if __name__ == "__main__":
    sys.exit(main())
