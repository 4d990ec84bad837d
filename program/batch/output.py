"""What is shown of an assessment and of a batch, and tables in CSV, JSONL or Parquet."""

import csv
import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, count, islice, takewhile
from pathlib import Path
from typing import Any

from rich import markup
from rich.table import Table

from program.agent.assessment import Assessment, answer_line
from program.agent.comparison import Comparison
from program.agent.state import ExecutorOutput
from program.common.cells import json_line, name_cell, text_cell
from program.common.console import Console
from program.common.errors import InputError, did_you_mean, one_line, showable
from program.common.files import Place, exists, join_place, open_file, output_file, place_of, remove, remove_leftovers
from program.common.outputs import TABLE, check_outputs_in, replacing
from program.common.text import is_chinese
from program.fusion import LETTERS
from program.fusion.scores import score_line
from program.running.journal import Journal
from program.running.row import Row, side_of_minimum
from signatures.schemas import CATEGORY_WORDS, FAULTS, GLOBAL, LEVEL_WORDS

FORMATS = (".csv", ".jsonl", ".parquet")
PART_ROWS = 10_000
"""Of one Parquet file in the folder; each is written as soon as its rows are judged."""
_ROWS_AT_ONCE = 1000
_NAMES = {"id", "file", "image", "reference", "group", "split"}
"""Columns that rows are found and joined by: reading their cells again gives the same names
(`cells.plain_cell`)."""

_SCORES, _DECIMALS = {"score", "low", "high", "tool_mean"}, 6
"""Columns on the scale, and their decimals in a CSV: those of the beliefs that scores are made
of."""


def format_of(out: Place) -> str:
    """Return how a table's name ends. Raises InputError for an unknown kind."""
    for suffix in FORMATS:
        if str(out).rstrip("/").endswith(suffix):
            return suffix
    raise InputError(f"file {str(out)!r}: unknown kind; end its name in {', '.join(FORMATS)}")


def write_rows(out: Place | str, rows: Iterable[Row], first: int = 0, kind: type[Row] = Row) -> None:
    """Write the table: a file whole or not at all, a folder of Parquet files part by part.

    The rows are of one `kind`; in Parquet, of the plain one. Raises InputError for an unknown
    suffix or where it cannot be written.
    """
    out, suffix = place_of(out), format_of(out)
    if suffix == ".parquet":
        return _write_parts(out, first, rows)
    try:
        with output_file(out) as file:
            text = io.TextIOWrapper(file, "utf-8", newline="" if suffix == ".csv" else "\n", write_through=True)
            if suffix == ".jsonl":
                text.writelines(json_line(row.model_dump()) + "\n" for row in rows)
            else:
                table = csv.writer(text)
                table.writerow(kind.model_fields)
                table.writerows([_cell(*each) for each in row.model_dump().items()] for row in rows)
            text.flush()
            text.detach()  # who opened the file closes it
    except OSError as error:
        raise _unwritable(out, error) from error


def _write_parts(out: Place, first: int, rows: Iterable[Row]) -> None:
    """Write the rows of a folder from one part on, and remove the parts behind them."""
    left = iter(rows)
    for number in count(first):
        row = next(left, None)
        if number and row is None:
            break
        write_part(out, number, () if row is None else chain([row], islice(left, PART_ROWS - 1)))
    longer = [_part_name(left) for left in takewhile(lambda left: exists(_part(out, left)), count(number))]
    with _replacing(out, longer):
        for name in reversed(longer):  # a kill leaves no gap, behind which others would stay
            remove(join_place(out, name))


def write_part(out: Place, number: int, rows: Iterable[Row]) -> None:
    """Write one Parquet file of a folder, in place of an earlier one; `number` counts from 0."""
    import pyarrow
    import pyarrow.parquet

    arrow = {str: pyarrow.string(), float: pyarrow.float64(), int: pyarrow.int64()}
    schema = pyarrow.schema([(name, arrow[kind]) for name, kind in Row.kinds().items()])
    left = iter(rows)
    try:
        if isinstance(out, Path):
            out.mkdir(parents=True, exist_ok=True)
        with (
            _replacing(out, [_part_name(number)]), output_file(_part(out, number)) as file,
            pyarrow.parquet.ParquetWriter(file, schema) as table,
        ):  # fmt: skip
            while some := [row.model_dump() for row in islice(left, _ROWS_AT_ONCE)]:
                table.write_table(pyarrow.Table.from_pylist(some, schema))
    except OSError as error:
        raise _unwritable(out, error) from error


def _replacing(out: Place, names: Sequence[str]) -> AbstractContextManager[None]:
    """Return what guards and records the parts of a folder; of one elsewhere nothing does."""
    if isinstance(out, Path) and names:
        return replacing(out, TABLE, names)
    return nullcontext()


def _part(out: Place, number: int) -> Place:
    return join_place(out, _part_name(number))


def _part_name(number: int) -> str:
    return f"part-{number:06}.parquet"


def _cell(name: str, value: Any) -> Any:
    if name in _SCORES and value is not None:
        return round(value, _DECIMALS)
    if name in _NAMES:
        return name_cell(value)
    return text_cell(value)


def _unwritable(out: Place, error: OSError) -> InputError:
    return InputError(f"file {str(out)!r}: cannot be written ({error.strerror or one_line(error)}); give another --out")


_MARK = "_run.json"
"""Lies in a folder elsewhere while its parts are written: with whose work they are."""


def is_begun(out: Place, cache_dir: Path) -> bool:
    """Tell whether a run into this output was stopped before its end, and can go on."""
    return _log_of(out, cache_dir).exists() or (not isinstance(out, Path) and exists(join_place(out, _MARK)))


def _log_of(out: Place, cache_dir: Path) -> Path:
    if isinstance(out, Path):
        return out.with_name(f"{out.name}.partial")
    return cache_dir / "batches" / f"{hashlib.sha256(out.encode()).hexdigest()[:16]}.partial"


class TableLog(Journal[Row]):
    """The log of a run whose rows become a table; full parts of a folder are written at once."""

    def __init__(self, out: Place, cache_dir: Path, header: Mapping[str, Any]) -> None:
        """Open or make the log, beside the table or, of one elsewhere, in the cache folder.

        Raises InputError for a folder of parts where something else has the name of one.
        """
        self._out, self._number, self._in_parts = out, 0, format_of(out) == ".parquet"
        self._mark = None if isinstance(out, Path) or not self._in_parts else join_place(out, _MARK)
        if isinstance(out, Path) and self._in_parts:
            check_outputs_in(out, TABLE)
        super().__init__(_log_of(out, cache_dir), header, Row, mend="give another --out")
        if isinstance(out, Path):
            remove_leftovers(out if self._in_parts else out.parent)

    def resume(self) -> int:
        """Take in what an earlier run finished, of a folder elsewhere also another machine's."""
        if self._mark is not None and self.empty:
            self._sign(self._mark, json.dumps(self._header, sort_keys=True).encode())
        return super().resume()

    def finish(self) -> None:
        """Write what is left, all rows of a file or the last part of a folder; the log goes."""
        write_rows(self._out, self.rows(self._number * PART_ROWS), self._number)
        if self._mark is not None:
            remove(self._mark)
        self.remove()

    def _enter(self, place: int, start: int) -> None:
        super()._enter(place, start)
        while self._in_parts and self.first_open >= (self._number + 1) * PART_ROWS:
            write_part(self._out, self._number, self.rows(self._number * PART_ROWS, PART_ROWS))
            self._number += 1

    def _sign(self, mark: Place, text: bytes) -> None:
        """Say whose work the parts are, or go on with those of another machine's same work."""
        import pyarrow.parquet

        if not exists(mark):
            with output_file(mark) as file:
                file.write(text)
            return
        with open_file(mark) as file:
            if file.read() != text:
                raise InputError(f"table {str(self._out)!r}: belongs to another run; give another --out")
        super().resume()
        for part in takewhile(exists, (_part(self._out, number) for number in count())):
            with open_file(part) as file:
                for batch in pyarrow.parquet.ParquetFile(file).iter_batches(1024):
                    for row in batch.to_pylist():
                        self.adopt(Row.model_validate(row))


WORST = 10
_ERRORS = 1000
"""Errors that a summary names; the table has all."""


def limits_of(text: str | None) -> dict[str, str]:
    """Return the least strength that fails an image, by fault, of `--fail-on`; slight by default.

    Raises InputError for what is no fault or no strength.

    >>> limits_of("defocus blur>=moderate, too dark")
    {'defocus blur': 'moderate', 'too dark': 'slight'}
    """
    from program.expert import STRENGTHS

    limits = {}
    for part in filter(None, map(str.strip, (text or "").split(","))):
        fault, _, least = (each.strip().casefold() for each in part.partition(">="))
        for name, known in ((fault, FAULTS), (least or STRENGTHS[0], STRENGTHS)):
            if name not in known:
                raise InputError(f"--fail-on {part!r}: {name!r} is not known{did_you_mean(name, known)}")
        limits[fault] = least or STRENGTHS[0]
    return limits


def faults_beyond(row: Row, limits: Mapping[str, str]) -> list[str]:
    """Return a row's faults at a limit or beyond it, as "moderate defocus blur"."""
    if not limits:
        return []
    from program.expert import STRENGTHS

    return [f"{s} {f}" for f, s in row.faults if f in limits and STRENGTHS.index(s) >= STRENGTHS.index(limits[f])]


class Tally:
    """Counts, mean score, images by level, the worst, the first answers, and those that failed.

    `minimum`, `sure` and `limits` are the gate's.
    """

    def __init__(
        self, minimum: float | None = None, sure: float | None = None, limits: Mapping[str, str] | None = None
    ) -> None:
        self.minimum, self.sure, self._sum, self.limits = minimum, sure, 0.0, limits or {}
        self.counts: Counter[str] = Counter()
        """Images, scored, answered, degraded, failed, lm_calls; below, not sure and faulty by the gate; under
        the minimum."""
        self.levels: Counter[str] = Counter()
        self.cost_usd = 0.0
        self.worst: list[Row] = []
        """The rows with the lowest scores, lowest first; rows without a score are left out."""
        self.answers: list[Row] = []
        self.errors: list[Row] = []

    def add(self, row: Row) -> None:
        """Count a row."""
        failed = row.status in {"error", "failed"}
        answered = row.answer is not None and not failed
        # Whole numbers: an empty Counter takes over what it is given, and "False failed" is no count.
        self.counts.update(images=1, scored=int(row.score is not None), answered=int(answered), failed=int(failed))
        self.counts["degraded"] += row.status == "degraded"
        self.counts.update(lm_calls=row.lm_calls or 0, faulty=int(bool(faults_beyond(row, self.limits))))
        if row.level:
            self.levels[row.level] += 1
        self.cost_usd += row.cost_usd or 0.0
        if row.score is not None:
            self._sum += row.score
            self.worst = sorted([*self.worst, row], key=lambda r: (r.score, r.id))[:WORST]
            if row.not_judged is None and self.minimum is not None:
                self.counts[side_of_minimum(row, self.minimum, self.sure)] += 1
                self.counts["under"] += row.score < self.minimum
        if row.not_judged is not None and self.is_gate:
            self.counts["not sure"] += 1
        if answered and len(self.answers) < WORST:
            self.answers.append(row)
        if failed and len(self.errors) < _ERRORS:
            self.errors.append(row)

    @property
    def is_gate(self) -> bool:
        """Whether an image may pass or fail."""
        return self.minimum is not None or bool(self.limits)

    @property
    def mean_score(self) -> float | None:
        """Over the scored rows."""
        if self.counts["scored"]:
            return self._sum / self.counts["scored"]
        return None

    def summary(self) -> dict[str, Any]:
        """Return the batch in figures as JSON has them; of the errors the first thousand."""
        return {
            **{name: self.counts[name] for name in ("images", "scored", "answered", "degraded", "failed")},
            "mean_score": self.mean_score,
            "levels": dict(sorted(self.levels.items())),
            "below_minimum": None if self.minimum is None else self.counts["under"],
            "not_sure": self.counts["not sure"] if self.is_gate else None,
            "barred_faults": self.counts["faulty"] if self.limits else None,
            "worst": [row.model_dump() for row in self.worst],
            "errors": [{"id": row.id, "error": row.error} for row in self.errors],
        }


_REASON_CHARS = 140


def show(result: Assessment, *, sources: bool = False) -> None:
    """Print one assessment: the answer and why, what was found by region; or all readings."""
    console = Console()
    console.print(f"[bold]{_escaped(result.headline)}[/bold]")
    if reasons := result.quality_reasoning if sources else result.summary:
        console.print(_escaped(reasons))
    if result.advice:
        console.print(_escaped(result.advice))
    if result.notes:
        console.print(_escaped(f"note: {'; '.join(result.notes)}"))
    evidence = result.state.evidence
    if sources and (rows := list(_evidence_rows(evidence))):
        console.print(_table(("where", "distortion", "severity", "tool", "score"), rows))
    elif set(evidence.distortion_analysis or {}) - {GLOBAL}:
        console.print(_table(("where", "distortion", "severity"), [row[:3] for row in _evidence_rows(evidence)]))
    if result.rating is None and result.quality_score is not None:
        by_tools = "" if result.score is not None else " by the tools alone"
        chinese = is_chinese(result.state.query)
        line = score_line(result.quality_score, result.score_interval, chinese=chinese)
        console.print(f"{line}{by_tools}", highlight=False)
    if result.shortfall:
        console.print(f"[yellow]{_escaped(result.shortfall)}[/yellow]")


def comparison_text(result: Comparison, names: Sequence[str]) -> str:
    """Return a comparison of two named images as lines of text."""
    sure = max(result.probability_b_better, 1 - result.probability_b_better)
    percent = "over 99%" if sure > 0.99 else f"{sure:.0%}"  # nothing is certain, whatever the rounding says
    ahead = f", by {abs(result.difference):.2f} points, {percent} sure" if "better" in result.verdict else ""
    lines = [
        f"A {showable(names[0])}: {result.score_a:.2f} of 5", f"B {showable(names[1])}: {result.score_b:.2f} of 5",
        f"{result.verdict}{ahead}", *(f"- {reason}" for reason in result.reasons),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def show_summary(tally: Tally, out: str | None, left_out: str) -> None:
    """Print a batch's summary: the worst ten, ten answers, what failed or was left out."""
    console = Console()
    if tally.worst:
        lines = [(f"{row.score:.2f}", row.id, _faults(row)) for row in tally.worst]
        console.print(_table(("score", "image", "why"), lines, f"Worst {len(lines)}"))
    if tally.answers:
        lines = []
        for row in tally.answers:
            why = _short(row.reasoning or "") if row.option else _faults(row)
            lines.append((_answer(row), row.id, why))
        console.print(_table(("answer", "image", "why"), lines))
    if (more := tally.counts["answered"] - len(tally.answers)) > 0:
        console.print(f"and {more} more answers", highlight=False)
    for row in tally.errors[:WORST]:
        console.print(f"[red]{_escaped(row.id)}[/red]: {_escaped(row.error or 'no answer')}", highlight=False)
    if (more := tally.counts["failed"] - WORST) > 0:
        console.print(f"[red]and {more} more without an answer[/red]")
    if left_out:
        console.print(_escaped(left_out), highlight=False)
    parts = [f"{tally.counts['images']} image{'s' * (tally.counts['images'] != 1)}"]
    if tally.mean_score is not None:
        parts.append(f"mean score {tally.mean_score:.2f}")
        words = {letter: LEVEL_WORDS[LETTERS.index(letter)] for letter in sorted(tally.levels)}
        parts.append(", ".join(f"{word} {tally.levels[letter]}" for letter, word in words.items()))
    parts += _counts(tally)
    if out:
        parts.append(_escaped(out))
    console.print(" · ".join(parts), highlight=False)


def _counts(tally: Tally) -> Iterator[str]:
    if tally.counts["degraded"]:
        yield f"{tally.counts['degraded']} degraded"
    yield f"{tally.counts['failed']} failed"
    if tally.minimum is not None:
        surely = "" if tally.sure is None else f" ({tally.counts['below']} surely)"
        yield f"{tally.counts['under']} below {tally.minimum:g}{surely}"
    if tally.sure is not None or tally.counts["not sure"]:
        yield f"{tally.counts['not sure']} not sure"
    if tally.limits:
        yield f"{tally.counts['faulty']} with a fault of --fail-on"


def _answer(row: Row) -> str:
    return answer_line(row.answer or "", row.option, row.guess, chinese=is_chinese(row.query or ""))


def _escaped(text: str) -> str:
    """Return a foreign text for the console: it steers neither rich nor the terminal."""
    return markup.escape(showable(text))


def _faults(row: Row) -> str:
    """Say why in few words: the faults, else the distortions, else the start of the reasoning."""
    if row.not_judged:
        return f"not judged: {row.not_judged}"
    text = "; ".join(f"{fault}: {strength}" for fault, strength in row.faults)
    return _short(text or row.distortions or ("" if row.option else row.reasoning) or "")


def _short(text: str) -> str:
    if len(text) <= _REASON_CHARS:
        return text
    return f"{text[: _REASON_CHARS - 1]}…"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> Table:
    table = Table(*names, box=None, header_style="bold", title=title)
    for row in rows:
        table.add_row(*map(_escaped, row))
    return table


def _evidence_rows(evidence: ExecutorOutput) -> Iterator[tuple[str, ...]]:
    logs = {(log.region, log.distortion): log for log in evidence.tool_logs}
    findings = [(region, str(f.type), f.fault, str(f.severity)) for region, f in evidence.findings()]
    known = {(region, distortion) for region, distortion, *_ in findings}
    findings += [(region, distortion, "", "") for region, distortion in logs if (region, distortion) not in known]
    for region, distortion, fault, severity in findings:
        log = logs.get((region, distortion))
        tool = score = ""
        if log is not None:
            tool = log.tool
            score = f"failed: {log.error}" if log.score is None else f"{log.score:.2f}"
        name = fault or CATEGORY_WORDS.get(distortion, distortion.lower())  # type: ignore[call-overload]
        yield evidence.looked_at(region), name, severity, tool, score
