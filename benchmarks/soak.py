"""A service under clients of which some are hostile: `python -m benchmarks.soak STATE [--minutes N] [--clients N]`.

Each client asks again and again with another picture; for the first two thirds every tenth request is hostile:
an image made to take long, a body that never ends, a connection cut off while it is sent. Every good request must be
answered (a 503 is come back from), the service must stay up, and its memory may not grow. The service's own share is
the time of a request minus the assessment's own total.

STATE keeps a line for each run; what is printed adds up over all.
"""

import argparse
import io
import json
import os
import random
import re
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
HOSTILE = ("scans", "strips", "slow body", "cut off", "no image")


def main(argv: Sequence[str] | None = None) -> int:
    """Ask the service for some minutes; exit code 1 where it went down or a good request got no answer."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=str(__doc__).split("\n")[0])
    parser.add_argument("state", type=Path, metavar="STATE")
    parser.add_argument("--minutes", type=float, default=4.0, metavar="N")
    parser.add_argument("--clients", type=int, default=8, metavar="N")
    parser.add_argument("--share", type=float, default=0.1, metavar="P", help="of hostile requests")
    arguments = parser.parse_args(argv)
    state: Path = arguments.state
    lines = [json.loads(line) for line in state.read_text("utf-8").splitlines()] if state.is_file() else []
    run = soak(60 * arguments.minutes, arguments.clients, arguments.share, seed=len(lines))
    print(json.dumps(run, indent=1))
    lines.append(run)
    with state.open("a", encoding="utf-8") as file:
        file.write(json.dumps(run) + "\n")
    tried, failed = (sum(line[name] for line in lines) for name in ("tried", "failed"))
    down = sum(line["down"] for line in lines)
    print(f"tried {tried}, survived {tried - failed}, failed {failed}; service down {down} times")
    return 1 if failed or down else 0


def soak(seconds: float, clients: int, share: float, seed: int = 0) -> dict[str, Any]:
    """Serve and ask; return what was counted: good requests tried and failed, times, memory of the service."""
    with tempfile.TemporaryDirectory() as folder:
        service = subprocess.Popen(
            [sys.executable, "-m", "program.serve", "--port", "0"], cwd=ROOT, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "AGENTICIQA_CACHE_DIR": f"{folder}/cache", "AGENTICIQA_MLRUNS_DIR": f"{folder}/runs"},
        )  # fmt: skip
        try:
            url = service.stdout.readline().split()[4]
            hostile = _phase(url, service.pid, 2 * seconds / 3, clients, share, seed + 1000)
            calm = _phase(url, service.pid, seconds / 3, clients, 0.0, seed)
            down = service.poll() is not None
        finally:
            service.terminate()
            service.wait()
    return {
        "tried": calm["tried"] + hostile["tried"], "failed": calm["failed"] + hostile["failed"], "down": down,
        "calm": calm, "hostile": hostile,
    }  # fmt: skip


def _phase(url: str, pid: int, seconds: float, clients: int, share: float, seed: int) -> dict[str, Any]:
    end = time.monotonic() + seconds
    times: list[float] = []
    own: list[float] = []
    faults: list[str] = []
    attacks: list[str] = []
    memory: list[int] = []

    def ask(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        with httpx.Client(base_url=url, trust_env=False, timeout=120) as client:
            while time.monotonic() < end:
                if rng.random() < share:
                    attacks.append(rng.choice(HOSTILE))
                    _attack(attacks[-1], url, client)
                    continue
                begun = time.perf_counter()
                answer = _answer(client, _picture(rng.randrange(2**32)))
                times.append(time.perf_counter() - begun)
                if answer.status_code == 200:
                    own.append(times[-1] - answer.json()["usage"]["seconds"]["total"])
                else:
                    faults.append(f"{answer.status_code}: {answer.text[:200]}")

    def guarded(number: int) -> None:
        try:
            ask(number)
        except Exception as error:
            faults.append(repr(error)[:200])

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        memory.append(_resident_mib(pid))
        time.sleep(min(5.0, seconds / 10))
    ordered = sorted(times) or [0.0]
    return {
        "tried": len(times), "failed": len(faults), "faults": faults[:10], "attacks": len(attacks),
        "ms_median": round(1e3 * statistics.median(ordered)),
        "ms_p99": round(1e3 * ordered[int(0.99 * len(ordered))]),
        "waiting_ms_median": round(1e3 * statistics.median(own or [0.0])),
        "resident_mib": [memory[len(memory) * eighth // 8] for eighth in range(8)] + [memory[-1], max(memory)],
    }  # fmt: skip


def _answer(client: httpx.Client, picture: bytes) -> httpx.Response:
    """Ask, and come back as often as the service says that it is busy."""
    while True:
        answer = client.post("/assess", files={"image": ("x.png", picture)})
        if answer.status_code != 503:
            return answer
        time.sleep(0.2)


def _attack(kind: str, url: str, client: httpx.Client) -> None:
    if kind in {"scans", "strips", "no image"}:
        data = {"scans": scans, "strips": strips, "no image": lambda _: b"\x89PNG" + bytes(5000)}[kind](300_000)
        client.post("/assess", files={"image": (kind, data)})
        return
    address = urlsplit(url)
    head = (
        b"POST /assess HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9000000\r\n\r\n"
    )
    connection = socket.create_connection((address.hostname, address.port), timeout=60)
    connection.sendall(head + b" " * 100_000)
    if kind == "slow body":  # it is left open
        timer = threading.Timer(40, connection.close)
        timer.daemon = True
        timer.start()
    else:
        connection.close()


def scans(size: int) -> bytes:
    """Return a progressive JPEG of about so many bytes, made of scans that say nothing: each walks over all pixels."""
    file = io.BytesIO()
    Image.new("L", (1600, 1600), 128).save(file, "JPEG", progressive=True)
    whole, scan = file.getvalue(), b"\xff\xda" + struct.pack(">H6B", 8, 1, 1, 0, 1, 63, 0)
    return whole[:-2] + scan * (size // len(scan)) + whole[-2:]


def strips(count: int) -> bytes:
    """Return a TIFF of 16 x 16 grey pixels in so many strips, all of them the same 16 bytes."""
    at = 8 + 2 + 12 * 9 + 4
    entries = [
        (256, 3, 1, 16), (257, 3, 1, 16), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, count, at),
        (277, 3, 1, 1), (278, 3, 1, 1), (279, 4, count, at + 4 * count),
    ]  # fmt: skip
    directory = struct.pack("<H", 9) + b"".join(struct.pack("<HHII", *entry) for entry in entries) + bytes(4)
    return struct.pack("<2sHI", b"II", 42, 8) + directory + struct.pack("<I", 8) * count + struct.pack("<I", 16) * count


def _picture(seed: int) -> bytes:
    blocks = np.random.default_rng(seed).integers(0, 256, (24, 32, 3)).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(blocks).resize((320, 240), Image.Resampling.BICUBIC).save(buffer, "PNG")
    return buffer.getvalue()


def _resident_mib(pid: int) -> int:
    match = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text("utf-8"))
    return int(match[1]) // 1024 if match else 0


if __name__ == "__main__":
    sys.exit(main())
