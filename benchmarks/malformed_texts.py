"""Malformed manifests, settings and programs: seeded mutations of whole ones, and a command run on each in a fork."""

import contextlib
import io
import json
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

LIMIT_S = 20.0
_LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)
VALUES: tuple[Any, ...] = (
    None, True, "", " ", "x" * 100_000, "\x00", "\ud800", "../../../etc/passwd", "/dev/zero", "file:///etc/passwd",
    "http://127.0.0.1:9/x", "=cmd()", "<script>alert(1)</script>", "{0.__class__}", "%s%n", -1, 0, 1e308, -1e308,
    float("nan"), float("inf"), 2**63, 10**400, [], {}, [[]], {"": None}, [None], {"a": {"b": {}}},
)  # fmt: skip
TEXTS: tuple[bytes, ...] = (
    b"", b"\n", b"\x00" * 100, b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}", b"null", b"[]", b"1", b'"x"', b"{",
    b"[" * 100_000, b'{"a":' * 50_000, b"- " * 20_000, _LAUGHS.encode(), b"!!python/object/apply:os.system ['true']",
    b"a: b: c", b"<<: *x", b"? [a]\n: b", b"%YAML 9.9\n---\n", b"a: 2020-99-99", b"{}\n" * 10_000, b"\xff" * 1000,
)  # fmt: skip


def mutated_text(whole: bytes, rng: random.Random, *, lines: bool, as_yaml: bool) -> bytes:
    """Return a text after a mutation: of its bytes, of one value in it, or another text altogether."""
    way = rng.randrange(8)
    if way == 0:
        return rng.choice(TEXTS) if rng.random() < 0.5 else whole + rng.choice(TEXTS)
    if way == 1:
        return whole[: rng.randrange(len(whole))]
    if way == 2:
        changed = bytearray(whole)
        for _ in range(rng.choice((1, 4, 32))):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        return bytes(changed)
    parts = whole.splitlines() if lines else [whole]
    place = rng.randrange(len(parts))
    tree = yaml.safe_load(parts[place]) if as_yaml else json.loads(parts[place])
    for _ in range(rng.choice((1, 1, 3))):
        tree = _with_another_value(tree, rng)
    text = yaml.safe_dump(tree) if as_yaml else json.dumps(tree)
    parts[place] = text.encode("utf-8", "surrogatepass")
    return b"\n".join(parts) + b"\n"


def _with_another_value(tree: Any, rng: random.Random) -> Any:
    """Replace, remove or add one value somewhere in a tree."""
    holder, key, here = None, None, tree
    while isinstance(here, dict | list) and here and (holder is None or rng.random() < 0.75):
        holder, key = here, rng.choice(list(here) if isinstance(here, dict) else range(len(here)))
        here = here[key]
    value = rng.choice(VALUES)
    if holder is None:
        return value
    if isinstance(holder, dict) and rng.random() < 0.15:
        holder.pop(key)
    elif isinstance(holder, dict) and rng.random() < 0.15:
        holder[str(value)[:50]] = value
    else:
        holder[key] = value
    return tree


def fault_of(main: Callable[[list[str]], int], argv: list[str], table: Path | None = None) -> tuple[str | None, float]:
    """Run a command in a fork; return what is wrong with how it ended, if anything, and its peak memory in MB."""
    read, write = os.pipe()
    begun = time.monotonic()
    if not (child := os.fork()):
        os.close(read)
        _run(main, argv, write)
    os.close(write)
    while True:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() - begun > 6 * LIMIT_S:  # other work may keep it waiting
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(read)
            return f"over {6 * LIMIT_S:g} s", 0.0
        time.sleep(0.01)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode("utf-8", "replace")
    code = os.waitstatus_to_exitcode(status)
    fault = f"{spent:.0f} s" if (spent := usage.ru_utime + usage.ru_stime) > LIMIT_S else None
    return fault or _judgement(code, said, table), usage.ru_maxrss / 1024


def _run(main: Callable[[list[str]], int], argv: list[str], write: int) -> None:
    code, told = 70, io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(told):
            code = main(argv)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 70
    except BaseException:
        told.write(traceback.format_exc())
    finally:
        with contextlib.suppress(BaseException):
            os.write(write, told.getvalue()[-3000:].encode("utf-8", "replace"))
        os._exit(code)


def _judgement(code: int, said: str, table: Path | None) -> str | None:
    if "Traceback" in said or code not in {0, 1, 2, 3, 4}:
        return f"exit code {code}: {said[-800:]}"
    errors = [line for line in said.splitlines() if line.startswith("error")]
    if code == 2 and len(errors) != 1:
        return f"{len(errors)} lines of error: {said[-400:]}"
    if any(len(line) > 2000 for line in errors):
        return f"a line of {max(map(len, errors))} characters"
    if table is not None and table.is_file():
        for line in table.read_text("utf-8").splitlines():
            row = json.loads(line)
            if row["status"] in {"error", "failed"} and row["score"] is not None:
                return f"a score for {row['id']!r}, which {row['status']}"
    return None
