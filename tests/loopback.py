"""A loopback OpenAI-compatible server: answers well by the request's JSON schema, with faults on demand, and counts.

    python tests/loopback.py --port 0 --latency-ms 200 --faults 0.2 --seed 0

prints its base URL (http://127.0.0.1:PORT/v1) and serves until it is stopped; GET /stats returns the counts,
POST /reset clears them. In a test it is the fixture `loopback`: `server = loopback(latency_s=0.2)`.
"""

import argparse
import asyncio
import hashlib
import importlib.util
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def _sibling(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


answers, flavours = _sibling("loopback_answers"), _sibling("loopback_flavours")
Question = answers.Question

TRANSPORT_FAULTS = ("slow", "rate_limit", "rate_limit_bare", "error_500", "error_503", "drop", "truncate")
"""What a server or the network does; asking again is the mend."""
ANSWER_FAULTS = ("invalid_body", "invalid_json", "wrong_schema", "refusal", "empty_choices", "huge")
"""What comes as status 200 and holds no usable answer (`huge` is a right answer with megabytes of text)."""
LOGPROB_FAULTS = ("nan_logprobs", "no_logprobs")
FAULTS = (*TRANSPORT_FAULTS, *ANSWER_FAULTS, *LOGPROB_FAULTS)

Rule = tuple["str | Callable[[Any], bool]", Any]


class Reply:
    """A status other than 200, or a body as it is, for a rule to answer with."""

    def __init__(self, status: int = 200, body: Any = "", headers: Mapping[str, str] | None = None) -> None:
        self.status, self.headers = status, dict(headers or {})
        self.body = body if isinstance(body, str) else json.dumps(body)


class Faults:
    """Which request meets which fault: a list by order, a function, or a seeded probability per request.

    The probable ones depend on the request's content and on how often it was sent, never on the order of arrival.
    """

    def __init__(
        self,
        schedule: "Sequence[str | None] | Callable[[int, Any], str | None] | None" = None,
        *,
        rate: float = 0.0,
        kinds: Sequence[str] = FAULTS[:-2],
        seed: int = 0,
    ) -> None:
        self.schedule, self.rate, self.kinds, self.seed = schedule, rate, tuple(kinds), seed
        self._sent: Counter[str] = Counter()

    def of(self, number: int, raw: bytes, question: Any) -> str | None:
        """Return the fault of request `number` (from 1), or None."""
        if callable(self.schedule):
            return self.schedule(number, question)
        if self.schedule is not None:
            return self.schedule[number - 1] if number <= len(self.schedule) else None
        if not self.rate:
            return None
        content = hashlib.sha256(raw).hexdigest()
        self._sent[content] += 1
        draw = hashlib.sha256(f"{self.seed} {content} {self._sent[content]}".encode()).digest()
        if int.from_bytes(draw[:4], "big") / 2**32 >= self.rate:
            return None
        return self.kinds[int.from_bytes(draw[4:8], "big") % len(self.kinds)]


class Loopback:
    """The server, in a thread of its own. `asked` keeps the questions read, `stats()` the counts.

    `flavour` names the server whose ways it has (see loopback_flavours.py), `modalities` what its list of models says
    that they read, `sees` whether they do, `token_probabilities` how many alternatives come with a token, `refuses`
    fields of a request that it does not know, and `loading` how many probes find the model not loaded. Questions of one
    token, which ask what a model can do, are no questions: they stand in `probes`, meet no fault and no rule, and count
    nowhere else; with `rules_for_probes` the rules hold for them too.

    `first` goes before everything, of every kind of request: a function of method, path and question (None where the
    request is none) that returns a Reply, or None. `spoils` gets every completion, and returns what is sent instead.

    `rules` go before the general answer: (output field or predicate on the question, answer), the answer a text,
    a JSON value, a Reply, a list used up in order, or a function of the question that returns one of these.
    """

    def __init__(
        self,
        *,
        rules: Sequence[Rule] = (),
        faults: "Faults | Sequence[str | None] | Callable[[int, Any], str | None] | None" = None,
        latency_s: float = 0.0,
        slow_s: float = 0.5,
        retry_after_s: float = 0.05,
        huge_bytes: int = 2 << 20,
        models: Sequence[str] = ("small-vlm",),
        flavour: str = "",
        modalities: Sequence[str] | None = None,
        sees: bool | None = None,
        token_probabilities: int | None = None,
        refuses: Sequence[str] = (),
        context_tokens: int | None = None,
        loading: int = 0,
        rules_for_probes: bool = False,
        key: str | None = None,
        keep: bool = True,
        port: int = 0,
        first: "Callable[[str, str, Any], Reply | None]" = lambda *_: None,
        spoils: "Callable[[dict[str, Any]], Any]" = lambda completion: completion,
    ) -> None:
        self.rules, self.first, self.spoils = list(rules), first, spoils
        self.faults = faults if isinstance(faults, Faults) else Faults(faults)
        self.latency_s, self.slow_s, self.retry_after_s = latency_s, slow_s, retry_after_s
        self.huge_bytes, self.models, self.key, self.keep = huge_bytes, list(models), key, keep
        self.flavour, self.modalities, self.context_tokens = flavours.FLAVOURS[flavour], modalities, context_tokens
        self.sees = (modalities is None or "image" in modalities) if sees is None else sees
        self.refuses, self.loading, self.rules_for_probes = list(refuses), loading, rules_for_probes
        most = self.flavour.most_alternatives
        self.most_alternatives = most if token_probabilities is None else token_probabilities
        self.asked: list[Any] = []
        self.probes: list[Any] = []
        self.authorizations: set[str] = set()
        self.headers: list[dict[str, str]] = []
        self._port = port
        self._in_flight = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self.reset()

    def reset(self) -> None:
        """Forget the counts."""
        self.counts: Counter[str] = Counter()
        self.met: Counter[str] = Counter()
        self.by_field: Counter[str] = Counter()
        self.repeats: Counter[str] = Counter()
        self.first_at = self.last_at = 0.0

    def stats(self) -> dict[str, Any]:
        """Return the counts: requests, answered, tokens, images, bytes, connections, faults met, most in flight."""
        return {
            **{name: self.counts[name] for name in (
                "requests", "answered", "prompt_tokens", "completion_tokens", "images", "bytes_received",
                "connections", "most_in_flight",
            )},
            "faults": dict(self.met), "by_field": dict(self.by_field), "authorizations": sorted(self.authorizations),
            "most_repeats": max(self.repeats.values(), default=0), "seconds": round(self.last_at - self.first_at, 6),
            "cpu_seconds": time.process_time(),
        }  # fmt: skip

    # Life

    def start(self) -> "Loopback":
        """Listen; returns when connections are accepted."""
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self.serve(ready)), daemon=True, name="loopback")
        self._thread.start()
        if not ready.wait(10):
            raise RuntimeError("the loopback server did not start")
        return self

    def stop(self) -> None:
        """Close every connection and stop listening."""
        if not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(5)

    def __enter__(self) -> "Loopback":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def serve(self, ready: threading.Event | None = None) -> None:
        """Listen until stopped."""
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", self._port, limit=1 << 20, backlog=512)
        self.port = server.sockets[0].getsockname()[1]
        self.base = f"http://127.0.0.1:{self.port}/v1"
        if ready is None:
            print(self.base, flush=True)  # noqa: T201 (what starts the process reads it)
        else:
            ready.set()
        try:
            await self._stopped.wait()
        finally:
            # A connection that is accepted while its server closes is never closed (`Server._attach` asserts first).
            for listener in server.sockets:
                self._loop.remove_reader(listener.fileno())
            for _ in range(3):  # those accepted already become transports
                await asyncio.sleep(0)
            server.close()
            for writer in list(self._writers):
                writer.transport.abort()

    # HTTP

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts["connections"] += 1
        self._writers.add(writer)
        try:
            while await self._exchange(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; returns whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ", 2)
        headers = {k.strip().casefold(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
        body = await _body(reader, headers)
        reply = await self._reply(method, path, headers, body)
        if reply is None:
            writer.transport.abort()
            return False
        whole = reply.body.encode()
        cut = reply.headers.pop("-truncate", None)
        sent = {"Content-Type": "application/json", "Content-Length": len(whole)} | reply.headers
        lines = [f"HTTP/1.1 {reply.status} X", *(f"{k}: {v}" for k, v in sent.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode() + (whole[: len(whole) // 2] if cut else whole))
        await writer.drain()
        return not cut and headers.get("connection", "").casefold() != "close"

    async def _reply(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Reply | None:
        if path == "/stats":
            return Reply(body=self.stats())
        if path == "/reset":
            self.reset()
            return Reply(body={})
        if self.key is not None and headers.get("authorization") != f"Bearer {self.key}":
            return _error(401, "the key is wrong", "invalid_api_key")
        if (reply := self.first(method, path, _question(body))) is not None:
            return reply
        path = path.partition("?")[0]
        if (page := flavours.page(self, method, path)) is not None:
            return Reply(body=page)
        if method != "POST" or path != "/v1/chat/completions":
            return _error(404, f"{method} {path}: not served here", "not_found")
        self.counts["most_in_flight"] = max(self.counts["most_in_flight"], self._in_flight + 1)
        self._in_flight += 1
        try:
            return await self._completion(headers, body)
        finally:
            self._in_flight -= 1
            self.last_at = time.perf_counter()

    async def _completion(self, headers: dict[str, str], raw: bytes) -> Reply | None:
        try:
            question = Question(json.loads(raw))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self.counts["requests"] += 1
            return _error(400, f"the request cannot be read: {error}")
        self.authorizations.add(headers.get("authorization", ""))
        refused = flavours.refusal(self, question)
        if question.most_tokens == 1:
            self.probes.append(question)
            if len(self.probes) <= self.loading:
                return _error(503, "Loading model", "unavailable_error")
            if self.rules_for_probes:
                return self._answered(question, None)
            return _error(*refused) if refused else Reply(body=self._completed(question, "good", "length"))
        self.first_at = self.first_at or time.perf_counter()
        self.counts["requests"] += 1
        self.counts["bytes_received"] += len(raw)
        self.repeats[hashlib.sha256(raw).hexdigest()] += 1
        number = self.counts["requests"]
        self.counts["images"] += len(question.images)
        self.by_field[question.name] += 1
        if self.keep:
            self.asked.append(question)
            self.headers.append(headers)
        if question.body.get("stream"):
            return _error(400, "streaming is off on this server; send stream=false")
        if refused:
            return _error(*refused)
        fault = self.faults.of(number, raw, question)
        if fault is not None:
            self.met[fault] += 1
        await asyncio.sleep(self.latency_s + (self.slow_s if fault == "slow" else 0))
        failed = self._failed(fault)
        return self._answered(question, fault) if failed is False else failed

    def _answered(self, question: Any, fault: str | None) -> Reply:
        try:
            answered = self._ruled(question)
        except Exception as error:  # whoever wrote the rule sees it in the client's error
            return _error(500, f"the loopback server has no answer: {type(error).__name__}: {error}")
        if isinstance(answered, Reply):
            return answered
        text = answered if isinstance(answered, str) else json.dumps(answered, ensure_ascii=False)
        reply = Reply(body=json.dumps(self._spoilt(fault, question, text), ensure_ascii=False))
        self.counts["answered"] += fault is None or fault in {"slow", "huge"}
        if fault == "truncate":
            reply.headers["-truncate"] = "1"
        if fault == "invalid_body":
            reply.body = "<html>upstream</html>"
        return reply

    def _ruled(self, question: Any) -> Any:
        for match, answer in self.rules:
            if match(question) if callable(match) else match in question.fields:
                value = answer
                if isinstance(value, list):
                    value = value.pop(0) if value else answers.plausible(question)
                return value(question) if callable(value) else value
        return answers.plausible(question)

    # Faults

    def _failed(self, fault: str | None) -> "Reply | bool | None":
        """Return the reply of a fault before any answer (None: the connection drops), or False."""
        match fault:
            case "drop":
                return None
            case "rate_limit":
                wait = {"Retry-After": f"{self.retry_after_s:g}"}
                return Reply(429, {"error": {"message": "too many requests", "type": "rate_limit"}}, wait)
            case "rate_limit_bare":
                return _error(429, "too many requests", "rate_limit")
            case "error_500" | "error_503":
                return _error(int(fault[-3:]), "the server failed", "server_error")
        return False

    def _spoilt(self, fault: str | None, question: Any, text: str) -> dict[str, Any]:
        """Return a completion that holds the text, or what the fault makes of it."""
        # A token has four characters, as in `_used`.
        whole, text = text, text[: 4 * question.most_tokens if question.most_tokens else None]
        reason = "stop" if text == whole else "length"
        if fault == "invalid_json":
            text = text[: len(text) // 2]
        elif fault == "wrong_schema":
            text = '{"unasked": [1, 2, 3]}'
        elif fault == "huge":
            text = _stretched(text, self.huge_bytes)
        self.counts.update(_used(question, text))
        completion = self._completed(question, text, reason, fault)
        if fault == "empty_choices":
            completion["choices"] = []
        return completion

    def _completed(
        self, question: Any, text: str, finish_reason: str = "stop", fault: str | None = None
    ) -> dict[str, Any]:
        refusal = "I cannot help with that." if fault == "refusal" else None
        message = {"role": "assistant", "content": None if refusal else text, "refusal": refusal}
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish_reason, "message": message, "logprobs": None}
        most = min(self.most_alternatives, int(question.body.get("top_logprobs") or 0))
        if question.body.get("logprobs") and self.most_alternatives and fault != "no_logprobs" and not refusal:
            bad = float("nan") if fault == "nan_logprobs" else None
            choice["logprobs"] = {"content": answers.tokens(question, text, most, bad), "refusal": None}
        used = _used(question, text)
        return self.spoils({
            "id": f"chatcmpl-{self.counts['requests']}", "object": "chat.completion", "created": 1,
            "model": question.model, "choices": [choice], "usage": {**used, "total_tokens": sum(used.values())},
        })  # fmt: skip


def _question(body: bytes) -> Any:
    try:
        return Question(json.loads(body))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _used(question: Any, text: str) -> dict[str, int]:
    """Return the tokens of a question and its answer."""
    return {
        "prompt_tokens": len(question.text) // 4 + 85 * len(question.images),
        "completion_tokens": max(1, len(text) // 4),
    }


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "chunked" not in headers.get("transfer-encoding", ""):
        return await reader.readexactly(int(headers.get("content-length", 0)))
    whole = b""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        whole += (await reader.readexactly(size + 2))[:-2]
    await reader.readuntil(b"\r\n")
    return whole


def _error(status: int, message: str, kind: str = "invalid_request_error") -> Reply:
    return Reply(status, {"error": {"message": message, "type": kind, "code": kind, "param": None}})


def _stretched(text: str, size: int) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        return text + " and so on" * (size // 10)
    for name, field in reversed(value.items()) if isinstance(value, dict) else ():
        if isinstance(field, str) and len(field) > 1:
            value[name] = field + " and so on" * (size // 10)
            return json.dumps(value)
    return text + " " * size


def main(argv: Sequence[str] | None = None) -> int:
    """Serve as a process of its own."""
    parser = argparse.ArgumentParser(description="A loopback OpenAI-compatible server with faults on demand.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--slow-ms", type=float, default=500.0, help="what a slow answer takes on top")
    parser.add_argument("--retry-after-ms", type=float, default=50.0)
    parser.add_argument("--faults", type=float, default=0.0, metavar="P", help="probability of a fault per request")
    parser.add_argument("--kinds", default=",".join(FAULTS[:-2]), help="faults to draw from")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--key", help="demand this key")
    arguments = parser.parse_args(argv)
    server = Loopback(
        faults=Faults(rate=arguments.faults, kinds=arguments.kinds.split(","), seed=arguments.seed),
        latency_s=arguments.latency_ms / 1000, slow_s=arguments.slow_ms / 1000,
        retry_after_s=arguments.retry_after_ms / 1000, key=arguments.key, keep=False, port=arguments.port,
    )  # fmt: skip
    try:
        asyncio.run(server.serve())
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
