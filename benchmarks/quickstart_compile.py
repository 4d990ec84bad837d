"""Time and peak memory of the quickstart compile, cold and again with warm caches.

    python benchmarks/quickstart_compile.py [--seed N]

Cold means an empty cache folder; packages are installed already. Peak memory is the compiling process's own (maximum
resident set), figures as the command prints them. Processor seconds hardly depend on what else the machine does.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    """Run the compile twice in a fresh cache folder and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", default="0")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        environment = {**os.environ, "AGENTICIQA_CACHE_DIR": f"{work}/cache", "AGENTICIQA_MLRUNS_DIR": f"{work}/mlruns"}
        for label in ("cold", "warm"):
            started, spent = time.perf_counter(), _processor_seconds()
            command = [
                sys.executable,
                "-m",
                "program.compile",
                "--json",
                "--seed",
                arguments.seed,
                "--out",
                f"{work}/program",
            ]
            done = subprocess.run(
                command, cwd=Path(__file__).parents[1], env=environment, check=True, stdout=subprocess.PIPE, text=True
            )
            result = json.loads(done.stdout)
            # ru_maxrss of children is the largest of them so far; kilobytes on Linux.
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
            gain, wall = result["difference"]["srcc"], time.perf_counter() - started
            print(
                f"{label}: {wall:.0f} s ({_processor_seconds() - spent:.0f} s of processor), "
                f"peak {peak:.2f} GiB, test SRCC "
                f"{result['uncompiled']['srcc']['value']:.3f} -> {result['compiled']['srcc']['value']:.3f}, gain "
                f"{gain['value']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}] "
                f"(n = {gain['n']}), phases {result['seconds']}"
            )


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
