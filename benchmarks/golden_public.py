"""The golden records of the service's answers over HTTP, and of help texts, tools, names and signatures."""

import base64
import hashlib
import importlib
import json
import pkgutil
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.golden import ROOT
from benchmarks.golden_section import BOX, Section

COMMANDS = (
    "program.compile", "program.evaluate", "program.assess", "program.serve", "program.tools", "program.calibrate",
    "program.doctor", "data.prepare", "data.check",
)  # fmt: skip
EMBEDDED, PAID = (), ("--lm", "openai/small-vlm", "--api-base", "http://127.0.0.1:9/v1")
PLANS = (("finetune,fusion", EMBEDDED), ("rubric", EMBEDDED), ("gepa", PAID), ("mipro", PAID))
"""Optimizers whose dry run is recorded, with the model that they are planned for."""


# The service


def service(section: Section) -> Iterator[tuple[str, Any]]:
    """Yield the service's answers to JSON, forms, batches and requests that it refuses, and its routes."""
    with _process("program.serve", "--port", "0") as lines:
        base = re.search(r"http://[^/ ]+", next(lines))[0]  # type: ignore[index]
        image, other = (Path(section.image(section.samples[n])).read_bytes() for n in (0, 4))
        text, url = base64.b64encode(image).decode(), f"{base}/assess"
        options = {"A": "Yes", "B": "No"}
        yield "json", ask(section, url, {"image": text, "name": "a.png"})
        yield "json question", ask(section, url, {"image": text, "query": "Is it noisy?", "options": options})
        files = [("image", image)]
        yield "form", ask(section, url, form([*files, ("query", "Is the centre sharp?"), ("regions", json.dumps(BOX))]))
        chosen = [("query", "图片清晰吗？"), ("option", "是"), ("option", "否")]
        yield "form options", ask(section, url, form([*files, *chosen]))
        reference = Path(section.reference(section.samples[0])).read_bytes()
        yield "form reference", ask(section, url, form([*files, ("reference", reference)]))
        yield "batch", ask(section, f"{url}/batch", form([*files, ("image", other), ("image", b"no image")]))
        for name, refused in {
            "no image": {}, "two images": {"image": text, "image_path": "/x.png"}, "path": {"image_path": "/x.png"},
            "bad image": {"image": "AAAA"}, "bad box": {"image": text, "regions": {"x": [0, 0, 9999, 9999]}},
            "unknown field": {"image": text, "labels": 1}, "one option": {"image": text, "options": ["Yes"]},
        }.items():  # fmt: skip
            yield f"refused: {name}", ask(section, url, refused)["code"]
        yield "refused: origin", ask(section, url, {"image": text}, {"Origin": "http://elsewhere.example"})["code"]
        yield "refused: host", ask(section, f"{base}/health", None, {"Host": "elsewhere.example"})["code"]
        yield "refused: kind", ask(section, url, (b"x", "text/plain"))["code"]
        described = ask(section, f"{base}/openapi.json")["body"]
        yield "routes", {path: sorted(methods) for path, methods in described["paths"].items()}


@contextmanager
def _process(module: str, *arguments: str) -> Iterator[Iterator[str]]:
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield iter(process.stdout or ())
        finally:
            process.terminate()


def form(fields: Sequence[tuple[str, str | bytes]]) -> tuple[bytes, str]:
    """Return a multipart form's body and type; bytes are files."""
    parts = []
    for name, value in fields:
        kind = '; filename="a.png"\r\nContent-Type: image/png' if isinstance(value, bytes) else ""
        data = value if isinstance(value, bytes) else value.encode()
        parts.append(f'--golden\r\nContent-Disposition: form-data; name="{name}"{kind}\r\n\r\n'.encode() + data)
    return b"\r\n".join([*parts, b"--golden--\r\n"]), "multipart/form-data; boundary=golden"


def ask(section: Section, url: str, body: Any = None, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Send a request; returns its status and the answer's values."""
    data, kind = body if isinstance(body, tuple) else (json.dumps(body).encode(), "application/json")
    sent = {"Content-Type": kind, **(headers or {})}
    request = urllib.request.Request(url, None if body is None else data, sent)  # noqa: S310 (the loopback)
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:  # noqa: S310
            code, text = reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        code, text = error.code, error.read().decode()
    values = json.loads(text)
    return {"code": code, "body": section.assessment(values) if "state" in values else section.normal(values)}


# What is public


def surface(section: Section) -> Iterator[tuple[str, Any]]:
    """Yield help texts, tools, plans of calls, public names, predictors and what signatures ask."""
    import program

    for module in COMMANDS:
        yield f"help {module}", section.normal(section.command(module, "--help"))
    for tool in section.command("program.tools", "--json")["printed"]:
        yield f"tool {tool['name']}", section.normal({**tool, "reason": tool["reason"] is not None})
    for entry in section.command("data.prepare", "--list", "--json")["printed"]:
        yield f"dataset {entry['name']}", hashlib.sha256(json.dumps(entry).encode()).hexdigest()[:16]
    manifest = section.manifest("plans", {(s, "scoring"): 30 for s in ("train", "validation", "test")})
    for optimizer, model in PLANS:
        wanted = ("--data", manifest, "--optimizer", optimizer, "--dry-run", "--json")
        done = section.command("program.compile", *wanted, *model)
        yield f"plan {optimizer}", section.normal(done)
    yield "public names", sorted(program.__all__)
    for name, predictor in program.AgenticIQA().named_parameters():
        yield f"predictor {name}", [*predictor.signature.input_fields, "->", *predictor.signature.output_fields]
    yield from questions_asked()


def questions_asked() -> Iterator[tuple[str, Any]]:
    """Yield each signature's fields, their types and descriptions, and the hash of its instruction."""
    import dspy

    import signatures

    for module in pkgutil.iter_modules(signatures.__path__, "signatures."):
        for name, value in vars(importlib.import_module(module.name)).items():
            own = isinstance(value, type) and value.__module__ == module.name
            if own and not name.startswith("_") and issubclass(value, dspy.Signature):
                fields = {f: [str(i.annotation), i.json_schema_extra["desc"]] for f, i in value.fields.items()}
                text = hashlib.sha256(value.instructions.encode()).hexdigest()[:16]
                yield f"signature {module.name}.{name}", {"instruction": text, "fields": fields}
