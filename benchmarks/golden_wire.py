"""The wire's golden records: what a server on the loopback is sent, under faults, budgets and caches."""

import hashlib
import importlib.util
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from benchmarks.golden import ROOT
from benchmarks.golden_section import Section

KEY = "sk-golden-0123456789"
PLAN = {
    "query_type": "IQA", "query_scope": ["Global"], "distortion_source": "inferred", "distortions": [],
    "reference_mode": "No-Reference", "required_tools": [], "distortion_detection": True, "distortion_analysis": True,
    "tool_selection": False, "tool_execute": False,
}  # fmt: skip
NO_TOOLS = ("plan", {"plan": PLAN})
FAULTS: Mapping[str, list[str | None]] = {
    "error 500": ["error_500"],
    "error 500 on the second question": [None, "error_500", "error_503"],
    "rate limit": ["rate_limit", "rate_limit_bare"],
    "connection lost": ["drop", None, "drop"],
    "truncated body": [None, "truncate"],
    "no JSON body": [None, None, "invalid_body"],
    "malformed JSON": ["invalid_json", None, "invalid_json", "invalid_json"],
    "malformed to the end": [None, None, "invalid_json", "invalid_json", "invalid_json"],
    "wrong schema": [None, "wrong_schema", "wrong_schema"],
    "refusal": [None, None, "refusal"],
    "no choices": [None, "empty_choices"],
    "faults and malformed JSON": ["error_500", "invalid_json", "rate_limit", "wrong_schema"],
    "nothing but faults": ["error_500"] * 20,
}
SETTINGS: Mapping[str, dict[str, Any]] = {
    "separate diagnosis": {"diagnosis": "separate"},
    "classification": {"scoring": "classification"},
    "log-probabilities": {"scoring": "logprobs"},
    "auto": {"scoring": "auto"},
}


def wire(section: Section) -> Iterator[tuple[str, Any]]:
    """Yield the traces. Every scenario has a question of its own, so none is answered by another's caches."""
    yield from clean(section)
    for number, (name, assessment) in enumerate(SETTINGS.items()):
        with served(section, assessment=assessment) as server:
            yield name, trace(server, asking(section, number, query=f"Rate the quality of this image ({name})."))
    for number, (name, schedule) in enumerate(FAULTS.items()):
        with served(section, rules=[NO_TOOLS], faults=schedule) as server:
            yield name, trace(server, asking(section, number, query=f"Rate the quality of this image ({name})."))
    yield "own model", own_model(section)
    yield from budgets(section)


def clean(section: Section) -> Iterator[tuple[str, Any]]:
    """Yield one question without faults in full; the same again; another image; reference, options, explanation."""
    with served(section) as server:
        first = asking(section, 0)
        yield "clean", trace(server, first)
        yield "bodies", [body(question) for question in server.asked]
        yield "the same again", trace(server, first)
        yield "another image", trace(server, asking(section, 1))
        options = {"query": "Is the image blurry?", "options": ["Yes", "No"]}
        yield "reference and options", trace(server, asking(section, 2, referred=True, **options))
        box = {"query": "中心区域有什么问题？", "regions": {"中心区域": (40, 40, 200, 180)}}
        yield "region, Chinese", trace(server, asking(section, 3, **box))
        yield "the key", sorted(value.replace(KEY, "KEY") for value in server.authorizations)


def own_model(section: Section) -> Any:
    """Return the trace of a `dspy.LM` that the caller made: it gets the images' bytes inlined."""
    import dspy

    with served(section, rules=[NO_TOOLS]) as server:
        lm = dspy.LM("openai/own-vlm", api_base=server.base, api_key=KEY, cache=False)
        return trace(server, asking(section, 5, query="Rate the quality of this image (own model).", lm=lm))


def budgets(section: Section) -> Iterator[tuple[str, Any]]:
    """Yield what commands send under `--max-calls`, and what a resumed evaluation sends after that."""
    with served(section, rules=[NO_TOOLS]) as server:
        model = ("--lm", "openai/small-vlm", "--api-base", server.base)
        image = section.image(section.samples[0])
        for limit in ("1", "2", "3"):
            before = len(server.asked)
            done = section.command("program.assess", image, "--max-calls", limit, "--json", *model)
            yield f"at most {limit} calls", {"code": done["code"], "requests": sent(server, before)}
        manifest = section.manifest("budget", {("test", "scoring"): 5})
        runs = {"budget": ("--max-calls", "6"), "resumed": ("--resume",), "resumed again": ("--resume",)}
        for name, flags in runs.items():
            before = len(server.asked)
            done = section.command("program.evaluate", manifest, "--workers", "1", "--json", *flags, *model)
            printed = done["printed"] if isinstance(done["printed"], dict) else {}
            figures = {key: printed.get(key) for key in ("scoring", "srcc", "lm_calls", "tokens")}
            requests = {"code": done["code"], "requests": sent(server, before)}
            yield f"evaluation: {name}", {**requests, **section.normal(figures)}


@contextmanager
def served(section: Section, *, assessment: Mapping[str, Any] | None = None, **server: Any) -> Iterator[Any]:
    """Run the loopback server, and let what is made inside ask it."""
    spec = importlib.util.spec_from_file_location("loopback", ROOT / "tests" / "loopback.py")
    if spec is None or spec.loader is None:
        raise ImportError("tests/loopback.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = section.folder / "wire.yaml"
    settings = {"wire": {"backoff_s": 0.01}, "assessment": dict(assessment or {})}
    config.write_text(json.dumps(settings), "utf-8")  # JSON is YAML
    with module.Loopback(retry_after_s=0.01, **server) as running:
        os.environ.update(
            AGENTICIQA_CONFIG=str(config), AGENTICIQA_LM="openai/small-vlm", AGENTICIQA_API_BASE=running.base,
            AGENTICIQA_API_KEY=KEY,
        )  # fmt: skip
        yield running


def asking(
    section: Section, number: int, *, referred: bool = False, lm: Any = None, **question: Any
) -> Callable[[], Any]:
    """Return a call that assesses one of the samples with the model in force."""
    from program import AgenticIQA

    iqa, sample = AgenticIQA(lm=lm), section.samples[number]
    reference = section.reference(sample) if referred else None

    def call() -> Any:
        result = iqa(image=section.image(sample), reference=reference, **question)
        names = ("final_answer", "status", "attempt", "level_probabilities", "level_probabilities_from",
                 "score_interval", "error", "usage")  # fmt: skip
        values = json.loads(result.model_dump_json())
        readings = [(log["tool"], log["score"]) for log in values["state"]["executor_evidence"]["tool_logs"]]
        return section.normal({**{name: values[name] for name in names}, "readings": readings})

    return call


def trace(server: Any, call: Callable[[], Any]) -> dict[str, Any]:
    """Return what a call sent and what became of it."""
    before = len(server.asked)
    try:
        result = call()
    except Exception as error:  # which error ends a call is part of the record
        result = {"error": [kind.__name__ for kind in type(error).__mro__ if kind.__module__ != "builtins"]}
    return {"requests": sent(server, before), "faults": server.stats()["faults"], "result": result}


def sent(server: Any, before: int) -> list[str]:
    """Return each request as its first output field, its size, its images' hashes and its own hash."""
    lines = []
    for question in server.asked[before:]:
        text = json.dumps(question.body, sort_keys=True).encode()
        images = ",".join(hashlib.sha256(image).hexdigest()[:8] for image in question.images)
        digest = hashlib.sha256(text).hexdigest()[:16]
        lines.append(f"{question.name or '-'} {len(text)} [{images}] {digest}")
    return lines


def body(question: Any) -> Any:
    """Return a request's body without its images' bytes."""

    def part(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: part(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [part(inner) for inner in value]
        if isinstance(value, str) and value.startswith("data:"):
            return f"{value.partition(',')[0]},{hashlib.sha256(value.encode()).hexdigest()[:16]}"
        return value

    return part(question.body)
