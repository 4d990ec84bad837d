"""Does any answer about a photograph contradict another one?

    python -m benchmarks.contradictions FOLDER|MANIFEST [...] [--count 600] [--maps 120] [--out LINES]

Of each photograph all answers are drawn: the rating with its reasons, why, the exposure, sharpness, noise and colours
(as open questions, yes or no, and a choice), the columns, the findings, and where the map of the worst fault is
reddest; of the first `--maps` also where quality is lost. Rules then look for contradictions. Photographs of a
manifest's test split are left out. LINES keeps the answers, so that a stopped run goes on; delete it to begin anew.
Printed: each contradiction, and how many photographs each rule finds one in; exit code 1 where there is any.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.manifest import read_manifest
from program import AgenticIQA, Assessment
from program.common.pool import progress
from program.common.request import Request
from program.expert.answer.findings import ENGLISH
from program.expert.judge.learning import quality_map
from program.images.store import IMAGES
from program.running.row import Row
from signatures.schemas import FAULTS, SEVERITIES, category_of

QUESTIONS = {
    "why": "Why does it look like this?",
    "faults": "What is wrong with this image?",
    "describe": "Describe the distortions of this image and how they affect its quality.",
    "exposure": "How is the exposure?",
    "dark": "Is the image too dark?",
    "bright": "Is the image too bright?",
    "sharp": "Is the image sharp?",
    "blurred": "Is the image blurry?",
    "noisy": "Is the image noisy?",
    "how noisy": "How noisy is the image?",
    "colours": "How are the colours?",
    "cast": "Is there a colour cast?",
    "chinese": "请描述这张图片的质量。",
}
MAIN = (
    "What is the main quality problem of this image?",
    ["Blur", "Noise", "Compression artifacts", "Colour", "Brightness or contrast", "None"],
)
STRENGTHS = ("slight", "moderate", "strong")
OPPOSITES = (("too dark", "too bright"), ("oversaturated", "muted colours"), ("oversharpened", "low resolution"))
ASKED = {
    "dark": ("too dark",), "bright": ("too bright", "blown highlights"), "noisy": ("noise",), "cast": ("colour cast",),
    "blurred": ("motion blur", "defocus blur"),
}  # fmt: skip
FAIR, POOR, MUCH = 3.5, 2.5, 3.3
"""Scores below which a sentence without a fault says what costs the points; and from which no fault is strong."""
IMAGES_IN = {".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp"}
Answers = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Draw what is missing, look for contradictions, print them."""
    first = str(__doc__).partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.contradictions", description=first)
    parser.add_argument("sources", nargs="+", type=Path, metavar="FOLDER|MANIFEST")
    parser.add_argument("--count", type=int, default=600, metavar="N", help="photographs in all")
    parser.add_argument("--maps", type=int, default=120, metavar="N", help="photographs whose quality map is drawn")
    parser.add_argument("--out", type=Path, default=Path("contradictions.jsonl"), metavar="LINES")
    arguments = parser.parse_args(argv)
    drawn: dict[str, Answers] = {}
    if arguments.out.is_file():
        lines = [json.loads(line) for line in arguments.out.read_text("utf-8").splitlines()]
        drawn = {line["image"]: line for line in lines}
    chosen = _chosen(arguments.sources, arguments.count)
    program = AgenticIQA()
    with arguments.out.open("a", encoding="utf-8") as file, progress("photographs", len(chosen)) as advance:
        for number, path in enumerate(chosen):
            if str(path) not in drawn:
                drawn[str(path)] = draw_answers(program, path, is_mapped=number < arguments.maps)
                file.write(json.dumps(drawn[str(path)], ensure_ascii=False) + "\n")
                file.flush()
            advance()
    counts: Counter[str] = Counter()
    for path in chosen:
        by_rule: dict[str, str] = {}
        for rule, text in contradictions(drawn[str(path)]):
            by_rule.setdefault(rule, text)
        counts.update(by_rule.keys())
        for rule, text in by_rule.items():
            sys.stdout.write(f"{path.name}: {rule}: {text}\n")
    sys.stdout.write(f"{len(chosen)} photographs, {counts.total()} contradictions\n")
    for rule, count in counts.most_common():
        sys.stdout.write(f"{count:5} {rule}\n")
    return int(bool(counts))


def _chosen(sources: Sequence[Path], count: int) -> list[Path]:
    """Return as many photographs of each source in turn, none of a test split."""
    lists = []
    for source in sources:
        if source.is_dir():
            paths = sorted(path for path in source.rglob("*") if path.suffix.lower() in IMAGES_IN)
        else:
            paths = [Path(each.image) for each in read_manifest(source) if each.split != "test"]
        lists.append(paths)
    share = -(-count // len(lists))
    kept = [paths[:share] for paths in lists]
    mixed = [path for at in range(share) for paths in kept for path in paths[at : at + 1]]
    return mixed[:count]


def draw_answers(program: AgenticIQA, image: Any, *, is_mapped: bool = False) -> Answers:
    """Return all answers about an image as JSON values."""
    result = program(image)
    row = Row.of(Request(id="a"), result)
    answers = {name: str(program(image, query).final_answer) for name, query in QUESTIONS.items()}
    choice = program(image, MAIN[0], options=MAIN[1])
    findings = [each.model_dump() for _, each in result.state.evidence.findings()]
    return {
        "image": str(image), "score": row.score, "sentence": result.summary, "sharp": row.subject_sharp,
        "kind": row.kind, "columns": row.faults, "distortions": row.distortions or "", "findings": findings,
        "answers": answers, "main": choice.option, "main why": choice.summary,
        **_map_of(program, result, is_mapped=is_mapped),
    }  # fmt: skip


def _map_of(program: AgenticIQA, result: Assessment, *, is_mapped: bool) -> Answers:
    from program.expert.judge.faults import fault_map

    view = program.resources.viewer.view(result.images[0])
    maps: Answers = {"maps": {}}
    for fault, _ in result.faults:
        maps["maps"][fault] = int(fault_map(view, fault).argmin())
    if is_mapped:
        with IMAGES.borrow():
            tiles = quality_map(*result.images)
        maps["tiles"] = np.round(tiles, 3).tolist()
    return maps


def faults_in(text: str) -> list[str]:
    """Return the faults that an English sentence names, in its order; what it calls possible is none."""
    stated = re.sub(r"(?:At most|What may cost it points)[^.]*[.]", "", text)
    stated = re.sub(r"\b(?:There is|there is) no [\w -]+", "", stated)
    places = []
    for fault in FAULTS:
        words = {"colour cast": r"\bcast (?:tints|over)", "noise": r"\bnoise roughens"}.get(fault, rf"\b{fault}\b")
        if match := re.search(words, stated, re.IGNORECASE):
            places.append((match.start(), fault))
    return [fault for _, fault in sorted(places)]


def contradictions(drawn: Answers) -> Iterator[tuple[str, str]]:
    """Yield each contradiction among the answers about one image: the rule, and what shows it."""
    yield from _of_columns(drawn)
    yield from _of_score(drawn)
    yield from _of_sharpness(drawn)
    yield from _of_questions(drawn)
    yield from _of_exposure(drawn)
    yield from _of_explanations(drawn)
    yield from _of_words(drawn)
    yield from _of_places(drawn)


def _of_columns(drawn: Answers) -> Iterator[tuple[str, str]]:
    columns, sentence = drawn["columns"], drawn["sentence"]
    names, strengths = [name for name, _ in columns], [STRENGTHS.index(strength) for _, strength in columns]
    if strengths != sorted(strengths, reverse=True):
        yield "a stronger fault stands after a weaker one", str(columns)
    if faults_in(sentence) != names:
        yield "sentence and columns name other faults, or in another order", f"{sentence} {columns}"
    of_findings = [each["fault"] for each in drawn["findings"] if each["severity"] != "none"]
    if of_findings != names:
        yield "findings and columns name other faults, or in another order", f"{of_findings} {columns}"
    listed = {text.partition(":")[0] for text in drawn["distortions"].split("; ") if text}
    if listed != {FAULTS[name] for name in names}:
        yield "the broad categories are not those of the faults", f"{drawn['distortions']} {columns}"
    for one, other in OPPOSITES:
        if {one, other} <= set(names):
            yield "opposite faults", str(columns)


def _of_score(drawn: Answers) -> Iterator[tuple[str, str]]:
    score, sentence, columns = drawn["score"], drawn["sentence"], drawn["columns"]
    if drawn["kind"] not in {"photograph", "packshot"}:
        return
    says_cost = re.search("At most|What may cost|No single|not sharp", sentence)
    if score < FAIR and not columns and not says_cost:
        yield "nothing is wrong, and the score is fair at most", f"{score:.2f} {sentence}"
    if score >= MUCH and any(strength == "strong" for _, strength in columns):
        yield "a strong fault beside a fair score", f"{score:.2f} {columns}"
    if score >= 4.2 and any(strength != "slight" for _, strength in columns):
        yield "a plain fault beside a high score", f"{score:.2f} {columns}"
    if score < POOR and re.search("^Sharp|^Well exposed|^Rich|Nothing stands out", sentence):
        yield "praise beside a low score", f"{score:.2f} {sentence}"


def _of_sharpness(drawn: Answers) -> Iterator[tuple[str, str]]:
    sentence, sharp = drawn["sentence"], drawn["sharp"]
    blurred = any(FAULTS[name] == "Blurs" for name, _ in drawn["columns"])
    if sharp == "yes" and re.search(r"blur (?:smears|softens) the whole picture", sentence):
        yield "blur all over a sharp subject", sentence
    if sharp != "yes" and re.match("Sharp", sentence):
        yield "a sharp picture without a sharp subject", f"{sharp}: {sentence}"
    if sharp == "yes" and "not sharp" in sentence:
        yield "the subject is sharp, and it is not", sentence
    if sharp == "no" and _is_yes(drawn["answers"]["sharp"]):
        yield "a sharp picture without a sharp subject", f"{drawn['answers']['sharp']}"
    if sharp == "yes" and re.match("No[.]|Probably not", drawn["answers"]["sharp"]) and not blurred:
        yield "a sharp subject, and no sharp picture", drawn["answers"]["sharp"]
    if _is_yes(drawn["answers"]["sharp"]) and _is_yes(drawn["answers"]["blurred"]):
        yield "sharp and blurred", f"{drawn['answers']['sharp']} / {drawn['answers']['blurred']}"


def _is_yes(answer: str) -> bool:
    return answer.startswith("Yes")


def _of_questions(drawn: Answers) -> Iterator[tuple[str, str]]:
    columns, answers = dict(drawn["columns"]), drawn["answers"]
    for asked, faults in ASKED.items():
        strengths = [STRENGTHS.index(columns[each]) for each in faults if each in columns]
        answer = answers[asked]
        if strengths and max(strengths) >= 1 and re.match("No|Probably not", answer):
            yield "a named fault is denied", f"{asked}: {answer} {columns}"
        if strengths and re.match("No[.]", answer):
            yield "a named fault is denied", f"{asked}: {answer} {columns}"
        if not strengths and re.match("Yes|Mostly", answer):
            yield "a fault that nothing else names is affirmed", f"{asked}: {answer} | {drawn['sentence']}"


def _of_exposure(drawn: Answers) -> Iterator[tuple[str, str]]:
    columns, answers = dict(drawn["columns"]), drawn["answers"]
    for name in ("dark", "bright"):
        if f"too {name}" in columns and name not in answers["exposure"].partition(".")[0]:
            yield "the exposure is right, and it is not", f"{answers['exposure']} {columns}"
    if "about right" in answers["exposure"] and {"too dark", "too bright"} & set(faults_in(answers["exposure"])):
        yield "the exposure is right, and it is not", answers["exposure"]
    praised = re.search("well exposed", drawn["sentence"], re.IGNORECASE)
    if praised and (_is_yes(answers["dark"]) or _is_yes(answers["bright"]) or "about right" not in answers["exposure"]):
        yield "well exposed, and it is not", f"{answers['exposure']} | {drawn['sentence']}"
    if re.match("Sharp", drawn["sentence"]) and _is_yes(answers["blurred"]):
        yield "sharp and blurred", f"{answers['blurred']} | {drawn['sentence']}"


def _of_explanations(drawn: Answers) -> Iterator[tuple[str, str]]:
    answers, named = drawn["answers"], [name for name, _ in drawn["columns"]]
    for name in ("why", "faults", "describe"):
        if faults_in(answers[name]) != named:
            yield "an explanation names other faults than the columns", f"{answers[name]} {named}"
    severities = [each["severity"] for each in drawn["findings"]]
    worst = max(map(SEVERITIES.index, severities), default=0)
    if drawn["main"] == "None" and worst >= SEVERITIES.index("moderate"):
        yield "the main problem is none, and there is one", f"{drawn['columns']} {drawn['main why']}"
    if drawn["main"] != "None" and named and worst >= SEVERITIES.index("moderate"):
        families = {category_of(part) for part in drawn["main"].split(" or ")}
        offered = {category_of(part) for option in MAIN[1] for part in option.split(" or ")}
        if FAULTS[named[0]] in offered - families:
            yield "the main problem is not the worst fault", f"{drawn['main']} {drawn['columns']}"


def _of_words(drawn: Answers) -> Iterator[tuple[str, str]]:
    texts = [drawn["sentence"], drawn["main why"], *drawn["answers"].values()]
    texts += [each["explanation"] for each in drawn["findings"]]
    for text in texts:
        if re.search(r"(?:brightness|contrast) problem|colour distortion|亮度问题|对比度问题", text):
            yield "a fault has no name", text
    for each in drawn["findings"]:
        if each["severity"] == "none":
            continue
        if not each["fault"]:
            yield "a fault has no name", str(each)
        figures = re.search(r"about (\d[.]\d) grey levels", each["explanation"])
        if figures and float(figures[1]) < 1:
            yield "a figure denies the fault", each["explanation"]
        if each["fault"] in {"blown highlights", "crushed shadows"}:
            share = re.search(r"([\d.]+) ?% of the pixels are (?:clipped|black)", each["explanation"])
            if not share or float(share[1]) == 0:
                yield "clipping without its share", each["explanation"]


def _of_places(drawn: Answers) -> Iterator[tuple[str, str]]:
    items = re.split("; |[.]", drawn["sentence"])
    cells = [ENGLISH.say(f"cell.{at}") for at in range(9)]
    for fault, worst in drawn["maps"].items():
        own = [item for item in items if fault in faults_in(item)]
        told = re.search(rf"\b(?:the|at the) ({'|'.join(sorted(cells, key=len, reverse=True))})\b", " ".join(own))
        if told and cells.index(told[1]) != worst:
            yield "the map of a fault is reddest elsewhere than it is told", f"{own} {cells[worst]}"
    tiles = np.array(drawn.get("tiles", [[0]]))
    if tiles.size < 9 or not drawn["columns"]:
        return
    told = re.search(rf"\b(?:the|at the) ({'|'.join(sorted(cells, key=len, reverse=True))})\b", items[0])
    if told and tiles.min() < 3.5 and drawn["columns"][0][1] != "slight":
        row, column = divmod(cells.index(told[1]), 3)
        edge = np.linspace(0, len(tiles), 4).round().astype(int)
        here = tiles[max(edge[row] - 1, 0) : edge[row + 1] + 1, max(edge[column] - 1, 0) : edge[column + 1] + 1]
        if here.min() > tiles.min() + 0.3:
            lost = f"{items[0]}: {here.min():.2f}, {tiles.min():.2f}"
            yield "quality is lost elsewhere than the worst fault is", lost


if __name__ == "__main__":
    sys.exit(main())
