"""What the service adds to a call, and whether its memory grows.

    python benchmarks/service_overhead.py [--requests 500]

Every request sends another picture. The service's own share is the time of a request minus the assessment's own total.
"""

import argparse
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Ask the service many times, and print its share and its memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=500)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        service = subprocess.Popen(
            [sys.executable, "-m", "program.serve", "--port", "0"], cwd=ROOT, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env={**os.environ, "AGENTICIQA_CACHE_DIR": folder},
        )  # fmt: skip
        try:
            url = re.search(r"http://\S+/", service.stdout.readline())[0]
            print(json.dumps(_measure(url, service.pid, arguments.requests), indent=2))
        finally:
            service.terminate()
            service.wait()


def _measure(url: str, pid: int, requests: int) -> dict[str, object]:
    whole, own, memory = [], [], {}
    with httpx.Client(base_url=url, trust_env=False, timeout=120) as client:
        for number in range(requests):
            picture = _picture(number)
            started = time.perf_counter()
            answer = client.post("/assess", files={"image": ("x.png", picture)})
            whole.append(time.perf_counter() - started)
            own.append(whole[-1] - answer.raise_for_status().json()["usage"]["seconds"]["total"])
            if number + 1 in {10, requests // 5, requests // 2, requests}:
                memory[number + 1] = _resident_mib(pid)
    return {
        "requests": requests,
        "request_ms_median": round(1e3 * statistics.median(whole), 1),
        "service_share_ms_median": round(1e3 * statistics.median(own), 1),
        "service_share_ms_p95": round(1e3 * sorted(own)[int(0.95 * len(own))], 1),
        "resident_mib_after": memory,
    }


def _picture(seed: int) -> bytes:
    blocks = np.random.default_rng(seed).integers(0, 256, (24, 32, 3)).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(blocks).resize((320, 240), Image.Resampling.BICUBIC).save(buffer, "PNG")
    return buffer.getvalue()


def _resident_mib(pid: int) -> int:
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text("utf-8"))[1]) // 1024


if __name__ == "__main__":
    main()
