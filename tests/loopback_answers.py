"""What the loopback server answers: every output field of a request, plausibly and always the same for one image.

An answer depends on the images, the names of the fields asked for and the user's inputs, never on instructions or
demos, so that a question asked again in other words gets the same answer.
"""

import hashlib
import json
import math
import re
from typing import Any

CATEGORIES = ("Blurs", "Color distortions", "Compression", "Noise", "Brightness change", "Sharpness", "Contrast")
SEVERITIES = ("slight", "moderate", "severe", "extreme")
LEVELS = ("bad", "poor", "fair", "good", "excellent")
LETTERS = "EDCBA"
_INPUT = re.compile(r"\[\[ ## (\w+) ## \]\]\n(.*?)(?=\n*\[\[ ## |\Z)", re.DOTALL)
_LISTED_OUTPUT = re.compile(r"^\d+\. `(\w+)` \((.*?)\):", re.MULTILINE)
"""As DSPy's adapters list them; the program's own list is shorter, with a shape where a field is not text."""
_SHORT_LIST = "Respond with a JSON object of these fields, in this order:\n"
_SHORT_OUTPUT = re.compile(r"^(\w+)(?:: .*?)?(?: \(([\[{\"].*|true \| false|number)\))?$", re.MULTILINE)


class Question:
    """A chat completion request, read: fields asked for, inputs, text and images (original bytes)."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        self.model = str(body.get("model"))
        self.system, self.text, self.last = "", "", ""
        self.images: list[bytes] = []
        self.image_urls: list[str] = []
        for message in body.get("messages", ()):
            self._read(message)
        form = body.get("response_format") or {}
        self.schema: dict[str, Any] = (form.get("json_schema") or {}).get("schema") or {}
        self.wants_json = form.get("type") in {"json_schema", "json_object"} or "JSON object" in self.text
        self.most_tokens = body.get("max_tokens") or body.get("max_completion_tokens")
        question, _, request = self.last.partition("\n\nRespond with")
        self.is_word = request.startswith((" one word", " the letter"))
        self.properties: dict[str, Any] = self.schema.get("properties") or self._listed_fields()
        self.fields = list(self.properties)
        self.inputs = dict(_INPUT.findall(question))

    def _listed_fields(self) -> dict[str, Any]:
        if self.is_word:
            chosen = "\n\nRespond with the letter" in self.last
            return {"final_answer": {"type": "string"}} if chosen else {"quality_level": {"enum": list(LEVELS)}}
        short = self.system.partition(_SHORT_LIST)[2].partition("\n\n")[0]
        if short:
            return {name: _schema_of_shape(shape) for name, shape in _SHORT_OUTPUT.findall(short)}
        listed = self.system.partition("Your output fields are:")[2].partition("All interactions")[0]
        return {name: _schema_of(kind) for name, kind in _LISTED_OUTPUT.findall(listed)}

    def _read(self, message: dict[str, Any]) -> None:
        import base64

        content = message.get("content") or ""
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        shown, said = [], []
        for part in parts:
            if part.get("type") == "text":
                said.append(part["text"])
            elif part.get("type") == "image_url":
                url = part["image_url"]["url"]
                self.image_urls.append(url[:200])
                shown.append(base64.b64decode(url.partition("base64,")[2]) if url.startswith("data:") else url.encode())
        text = "\n".join(said)
        self.text += text + "\n"
        if message.get("role") in {"system", "developer"}:
            self.system += text
        elif message.get("role") == "user":
            self.last, self.last_images = text, shown
        self.images += shown

    @property
    def name(self) -> str:
        """The field that a question is known by: the first one that is no reasons."""
        return next((field for field in self.fields if field != "quality_reasoning"), "")

    @property
    def digest(self) -> bytes:
        """What an answer depends on: the images of the last message and the question's inputs."""
        inputs = {name: text for name, text in self.inputs.items() if name in {"query", "options", "regions"}}
        seen = [hashlib.sha256(image).hexdigest() for image in getattr(self, "last_images", ())]
        known = json.dumps([seen, inputs or self.last[:2000]], sort_keys=True)
        return hashlib.sha256(known.encode()).digest()

    @property
    def quality(self) -> float:
        """The first image's quality on 1..5, from its bytes alone."""
        images = getattr(self, "last_images", ())
        data = hashlib.sha256(images[0]).digest() if images else self.digest
        return 1 + 4 * int.from_bytes(data[:4], "big") / 2**32

    def listed(self, name: str) -> list[str]:
        """Return an input that holds a JSON list of texts (or numbered lines)."""
        text = self.inputs.get(name, "")
        try:
            value = json.loads(text)
        except ValueError:
            return re.findall(r"^\s*(?:\[?\d+\]?[.:)]?|-)\s*[«'\"]?(.*?)[»'\"]?$", text, re.MULTILINE)
        return [str(v) for v in value] if isinstance(value, list | dict) else [str(value)]


def plausible(question: Question) -> str:
    """Return the text a good model would answer."""
    if question.is_word:
        return str(next(iter(fields_of(question).values())))
    if question.fields and (question.wants_json or question.schema):
        return json.dumps(fields_of(question), ensure_ascii=False)
    if question.fields:
        values = {n: v if isinstance(v, str) else json.dumps(v) for n, v in fields_of(question).items()}
        if f"<{question.fields[0]}>" in question.system:
            return "".join(f"<{n}>\n{v}\n</{n}>\n\n" for n, v in values.items())
        return "".join(f"[[ ## {n} ## ]]\n{v}\n\n" for n, v in values.items()) + "[[ ## completed ## ]]"
    if "```" in question.last:
        return f"```\n{instruction(question)}\n```"
    return f"A picture of quality {question.quality:.2f}." if question.images else "pong"


def fields_of(question: Question) -> dict[str, Any]:
    """Return a value for each output field that is asked for."""
    return {
        name: _KNOWN[name](question) if name in _KNOWN else _filled(name, question.properties[name], question)
        for name in question.fields
    }


def level_belief(quality: float) -> dict[str, float]:
    """Return a probability per level word around a quality on 1..5."""
    masses = [math.exp(-((level - quality) ** 2)) for level in range(1, 6)]
    return {word: round(mass / sum(masses), 6) for word, mass in zip(LEVELS, masses, strict=True)}


def instruction(question: Question) -> str:
    """Return an instruction as a proposer would write it; another one for another prompt."""
    variant = hashlib.sha256(question.text.encode()).hexdigest()[:6]
    return f"Look closely at fine detail and flat areas, then answer each asked field exactly. (variant {variant})"


_CUT = 4000
"""Characters that are cut into tokens; of a text without end, what follows is one."""


def tokens(question: Any, text: str, most: int, bad: float | None) -> list[dict[str, Any]]:
    """Return the text's tokens with log-probabilities; a level's word or letter carries the belief over all of them."""
    belief = level_belief(question.quality)
    by_letter = dict(zip(LETTERS, belief.values(), strict=True))
    # A draft may stand before the answer: its letter is as certain as any other token.
    *_, level = None, *re.finditer(r'"quality_level"\s*:\s*"', text)
    listed, place = [], 0
    for token in filter(None, [*re.findall(r"[^\W\d_]+|\d+|\s+|[^\s\w]|_", text[:_CUT]), text[_CUT:]]):
        table = {token: -0.01}
        if token in by_letter and (place == (level.end() if level else 0)):
            table = {letter: _log(p) for letter, p in by_letter.items()}
        elif token.casefold() in belief:
            table = {word if token.islower() else word.capitalize(): _log(p) for word, p in belief.items()}
        ranked = sorted(table.items(), key=lambda item: -item[1])
        if len(ranked) > 1:  # beside a level as many as a server gives; elsewhere they only cost time
            ranked += [(f"x{n}", -20.0) for n in range(most - len(ranked))]
        listed.append({
            **_scored(token, table.get(token, -0.01) if bad is None else bad),
            "top_logprobs": [_scored(t, p if bad is None else bad) for t, p in ranked[:most]],
        })  # fmt: skip
        place += len(token)
    return listed


def _log(probability: float) -> float:
    return round(math.log(max(probability, 1e-9)), 6)


def _scored(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}


def _plan(question: Question) -> dict[str, Any]:
    explicit = [c for c in CATEGORIES if c.rstrip("s").casefold() in question.inputs.get("query", "").casefold()]
    named = [{"region": "Global", "distortions": explicit}] if explicit else []
    return {"query_type": "IQA", "query_scope": ["Global"], "distortions": named, "required_tools": []}


def _level(question: Question) -> str:
    """Return the level's word, or its letter where a schema wants one."""
    place = min(4, max(0, round(question.quality) - 1))
    return LETTERS[place] if "A" in question.properties["quality_level"].get("enum", ()) else LEVELS[place]


def _regions(question: Question) -> list[str]:
    return question.listed("regions") or ["Global"]


def _seen(question: Question) -> list[str]:
    """One or two categories, by the image: the same for detection, analysis and diagnosis."""
    first = hashlib.sha256(b"".join(getattr(question, "last_images", ()))).digest()
    return [CATEGORIES[first[0] % 7], CATEGORIES[first[1] % 7]][: 1 + (first[0] % 7 != first[1] % 7)]


def _findings(question: Question) -> list[dict[str, str]]:
    severity = SEVERITIES[min(3, int(5 - question.quality))]
    given = _mapping(question.inputs.get("distortion_set"))
    wanted = given or {region: _seen(question) for region in _regions(question)}
    return [
        {"region": region, "type": name, "severity": severity, "fault": name, "explanation": f"{name} is {severity}."}
        for region, names in wanted.items()
        for name in names
    ]


def _chosen(question: Question) -> list[dict[str, str]]:
    tools = json.loads(question.inputs.get("tools", "[]"))
    names = [tool["name"] if isinstance(tool, dict) else str(tool) for tool in tools]
    names = names or re.findall(r'"name":\s*"([^"]+)"', question.last)
    wanted = _mapping(question.inputs.get("distortion_set"))
    return [
        {"region": region, "distortion": distortion, "tool": names[len(distortion) % len(names)]}
        for region, distortions in wanted.items()
        for distortion in distortions or ["Overall"]
        if names
    ]


def _answer(question: Question) -> str:
    letters = re.findall(r"^([A-H])\. ", question.inputs.get("options", ""), re.MULTILINE)
    return letters[question.digest[0] % len(letters)] if letters else f"The quality is {question.quality:.1f} of 5."


def _mapping(text: str | None) -> dict[str, list[str]]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


_KNOWN: dict[str, Any] = {
    "plan": _plan,
    "findings": _findings,
    "distortion_analysis": _findings,
    "distortion_set": lambda q: [{"region": region, "distortions": _seen(q)} for region in _regions(q)],
    "selected_tools": _chosen,
    "region_boxes": lambda q: [{"region": r, "x0": 0.1, "y0": 0.1, "x1": 0.8, "y1": 0.9} for r in _regions(q)],
    "quality_probs": lambda q: level_belief(q.quality),
    "quality_level": _level,
    "quality_reasoning": lambda q: f"The picture looks like {q.quality:.1f} of 5.",
    "final_answer": _answer,
}


def _schema_of(kind: str) -> dict[str, Any]:
    """Return the JSON schema of a field's type as DSPy words it in a prompt."""
    if kind.startswith("Literal["):
        return {"enum": re.findall(r"'([^']*)'", kind)}
    names = {"int": "integer", "float": "number", "bool": "boolean", "dict": "object", "list": "array"}
    return {"type": names.get(kind.partition("[")[0], "string")}


def _schema_of_shape(shape: str) -> dict[str, Any]:
    """Return the JSON schema of a field's type as the program words it in a prompt."""
    if shape.startswith('"'):
        return {"enum": re.findall(r'"([^"]*)"', shape)}
    kinds = {"[": "array", "{": "object", "t": "boolean", "n": "number"}
    return {"type": kinds.get(shape[:1], "string")}


def _filled(name: str, schema: dict[str, Any], question: Question) -> Any:
    """Return a value that a JSON schema accepts, chosen by the question's digest."""
    pick = hashlib.sha256(question.digest + name.encode()).digest()
    schema = _resolved(schema, question.schema)
    if "enum" in schema or "const" in schema:
        values = schema.get("enum") or [schema["const"]]
        return values[pick[0] % len(values)]
    kind = schema.get("type", "string")
    if kind == "object" and schema.get("properties"):
        return {key: _filled(key, inner, question) for key, inner in schema["properties"].items()}
    if kind == "object":  # free keys: advice per module, where the modules are named
        return dict.fromkeys(question.listed("module_names"), instruction(question))
    if kind == "array":
        return [_filled(name, schema.get("items", {}), question)]
    if kind in {"number", "integer"}:
        low, high = schema.get("minimum", 0), schema.get("maximum", 1 if kind == "number" else 10)
        value = low + (high - low) * pick[0] / 255
        return round(value, 3) if kind == "number" else int(value)
    if kind in {"boolean", "null"}:
        return pick[0] % 2 == 0 if kind == "boolean" else None
    return instruction(question) if "instruction" in name or "rules" in name else f"The {name.replace('_', ' ')}."


def _resolved(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return _resolved(root.get("$defs", {})[schema["$ref"].rpartition("/")[2]], root)
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return _resolved(next((s for s in schema[union] if s.get("type") != "null"), schema[union][0]), root)
    return schema
