"""A simulated student, and the writer of its instructions, for a loopback server. Both are simulations.

The student looks at the pixels (the embedded expert measures them for it), and its skill depends on what it is told:

- it overlooks some kinds of damage in a score or an answer, unless the instruction speaks of them;
- it keeps near the middle of the scale, unless the instruction tells it to use the whole scale, or demos show that;
- instructions of more than 150 words, and more than eight demos, distract it; it has noise of its own besides.

Which kinds it overlooks is drawn by seed; no optimizer is told. The writer reads feedback in a prompt and proposes
an instruction: kinds of damage that the feedback lays at the door of a score that was too high it speaks of in four of
five cases; without such feedback it guesses a kind. `Student(seed, obeys=False)` is the control: it reads no
instruction and no demo.
"""

import copy
import hashlib
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from program.common.text import options_shown
from program.expert.answer.findings import severity_word
from program.expert.answer.questions import answer_choice
from program.expert.judge.quality import level_probabilities
from program.expert.judge.views import View, Viewer
from program.images.store import IMAGES
from signatures.rubric import rubric_in
from signatures.schemas import CATEGORY_WORDS, DISTORTION_CATEGORIES, LEVEL_WORDS

_KINDS = {
    kind: re.compile(rf"\b(?:{stem})", re.IGNORECASE)
    for kind, stem in zip(
        DISTORTION_CATEGORIES,
        ("blur", "colou?r", "compress", "nois", "bright|expos", "sharpness|over-sharp", "contrast"), strict=True
    )
}  # fmt: skip
_OBJECTIVE, _INPUTS = "your objective is:", "\n\nGiven are\n"
"""What stands before an instruction in the prompts of DSPy's adapters, and behind it in those of the program's own."""
_SCALE = re.compile(r"\b(?:whole|full|entire|more of the) (?:scale|range)\b", re.IGNORECASE)
_TOO_HIGH = re.compile(r"too high: [a-z ]+ gave[^\n]*?Evidence: found ([^;.]*)")
_WRONG = re.compile(r"is wrong: [a-z ]+ chose[^\n]*?Evidence: found ([^;.]*)")
_OPINION = re.compile(r"The score [\d.]+ is [\d.]+ (too high|too low)")


class Student:
    """Answers of the student and of its writer, as rules of `tests.loopback.Loopback`."""

    def __init__(self, seed: int, *, obeys: bool = True, cache_dir: Path | None = None) -> None:
        """Draw what this student overlooks; measurements are kept under `cache_dir`."""
        self.seed, self.obeys = seed, obeys
        rng = random.Random(f"student {seed}")
        self.overlooks = frozenset(rng.sample(DISTORTION_CATEGORIES, 3))
        self._viewer = Viewer(cache_dir)

    @property
    def rules(self) -> list[tuple[Any, Any]]:
        """What to give to `Loopback(rules=...)`."""
        return [
            ("findings", self.findings),
            ("quality_probs", self.score),
            (lambda q: "final_answer" in q.fields and "options" in q.inputs, self.choose),
            (lambda q: any("instruction" in name for name in q.fields), self._written),
        ]

    # The student

    def findings(self, question: Any) -> Any:
        """Report what is there: finding damage is not what this student is bad at."""
        severities = self._view(question.last_images[0]).severities
        there = [(name, severity_word(value)) for name, value in severities.items()]
        found = [
            {"region": "Global", "type": name, "severity": word, "explanation": f"{word} {CATEGORY_WORDS[name]}"}
            for name, word in there
            if word != "none"
        ]
        nothing = {"region": "Global", "type": "Blurs", "severity": "none", "explanation": "nothing stands out"}
        return {"findings": found or [nothing]}

    def score(self, question: Any) -> Any:
        """Give the levels' probabilities."""
        perceived = self._perceived(question, self._view(question.last_images[0]))
        demos = self._demos(question) if self.obeys else []
        if len(demos) >= 2:
            own, truth = np.array(demos).T
            spread = max(float(np.std(own)), 0.3)
            slope = np.clip(np.cov(own, truth, bias=True)[0, 1] / spread**2, 0.3, 2.5) if np.ptp(own) > 0.3 else 1.0
            trust = len(demos) / (len(demos) + 3)
            perceived = (1 - trust) * perceived + trust * (truth.mean() + slope * (perceived - own.mean()))
        probabilities = dict(zip(LEVEL_WORDS, level_probabilities(float(np.clip(perceived, 1, 5)), 0.6), strict=True))
        return {"quality_probs": probabilities, "quality_reasoning": f"It looks like {perceived:.1f} of 5."}

    def choose(self, question: Any) -> Any:
        """Choose an option; what is overlooked is not there."""
        view = copy.copy(self._view(question.last_images[0]))
        blind = self._blind(question)
        vars(view)["severities"] = {name: 0.0 if name in blind else v for name, v in view.severities.items()}
        options = options_shown(question.inputs["options"]) or {}
        letter = answer_choice(view, question.inputs.get("query", ""), options).letter
        if self._draw(question, "slip").random() < 0.05 + 0.1 * self._distraction(question):
            letter = self._draw(question, "letter").choice(sorted(options))
        return {"final_answer": letter, "quality_reasoning": f"{letter} fits best."}

    def _perceived(self, question: Any, view: View, *, quietly: bool = False) -> float:
        instruction = self._instruction(question)
        quality = view.prior.mean
        for name in self._blind(question):
            quality += 0.9 * view.severities[name]
        rubric = rubric_in(instruction)
        quality = float(rubric.judged(min(quality, 5.0), view.severities, dict.fromkeys(rubric.likes, 0.5)))
        if not _SCALE.search(instruction):
            quality = 3.3 + 0.5 * (quality - 3.3)
        noise = 0.0 if quietly else 0.2 * (1 + self._distraction(question))
        return quality + noise * self._draw(question, "noise").gauss(0, 1)

    def _instruction(self, question: Any) -> str:
        if not self.obeys:
            return ""
        return question.system.partition(_OBJECTIVE)[2] or question.system.partition(_INPUTS)[0]

    def _blind(self, question: Any) -> set[Any]:
        """Return the kinds that are overlooked: those that no phrase of the instruction speaks of."""
        return set(self.overlooks) - kinds_in(self._instruction(question))

    def _distraction(self, question: Any) -> float:
        words = len(self._instruction(question).split())
        return max(0, words - 150) / 100 + max(0, len(self._demos(question)) - 8) / 8 if self.obeys else 0.0

    def _demos(self, question: Any) -> list[tuple[float, float]]:
        """Return what the student makes of each image shown before the question, and the score said of it."""
        demos, image = [], None
        for message in question.body.get("messages", ()):
            if message.get("role") == "user":
                image = next((p["image_url"]["url"] for p in _parts(message) if p.get("type") == "image_url"), None)
            elif message.get("role") == "assistant" and image is not None:
                level = _level(message.get("content"))
                if level is not None:
                    demos.append((self._perceived(question, self._view(image), quietly=True), level))
        return demos

    def _view(self, image: Any) -> View:
        data = image if isinstance(image, bytes) else _bytes(image)
        return self._viewer.view(IMAGES.add(data))

    def _draw(self, question: Any, what: str) -> random.Random:
        """Return draws that depend on the picture and on everything said, never on the order of requests."""
        said = json.dumps(question.body.get("messages"), sort_keys=True).encode() if self.obeys else b""
        shown = said or question.last_images[0] + question.inputs.get("query", "").encode()
        return random.Random(f"{self.seed} {what} {hashlib.sha256(shown).hexdigest()}")

    # The writer

    def instruction(self, question: Any) -> str:
        """Propose an instruction, from what the prompt says of earlier ones and of what went wrong."""
        rng = random.Random(f"{self.seed} writer {hashlib.sha256(question.text.encode()).hexdigest()}")
        blamed: Counter[Any] = Counter()
        for found in (*_TOO_HIGH.findall(question.text), *_WRONG.findall(question.text)):
            blamed.update(kinds_in(found))
        known = re.findall(r"Look for ([^.]*) before you answer", question.text)
        spoken = kinds_in(known[-1]) if known else set()
        learned = {kind for kind in sorted(blamed) if rng.random() < 0.8}
        if not learned:
            learned = {rng.choice(DISTORTION_CATEGORIES)}
        scaled = _SCALE.search(question.text) is not None
        if {"too high", "too low"} <= set(_OPINION.findall(question.text)):
            scaled = scaled or rng.random() < 0.8
        elif rng.random() < 0.1:
            scaled = True
        words = ", ".join(CATEGORY_WORDS[kind] for kind in DISTORTION_CATEGORIES if kind in spoken | learned)
        asked = "Judge the image's quality and give what is asked for in the form that is asked for."
        return " ".join(filter(None, (
            asked, f"Look for {words} before you answer, and let each of them count.",
            "Use the whole scale." if scaled else "",
        )))  # fmt: skip

    def _written(self, question: Any) -> Any:
        instruction = self.instruction(question)
        return {
            name: instruction if "instruction" in name else f"The {name.replace('_', ' ')}." for name in question.fields
        }


def kinds_in(text: str) -> set[Any]:
    """Return the kinds of damage that the phrases of a text name."""
    return {kind for kind, pattern in _KINDS.items() if pattern.search(text)}


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _bytes(url: str) -> bytes:
    import base64

    return base64.b64decode(url.partition("base64,")[2])


def _level(content: Any) -> float | None:
    text = content if isinstance(content, str) else "".join(p.get("text", "") for p in content or [])
    try:
        masses = json.loads(text)["quality_probs"]
    except (ValueError, KeyError, TypeError):
        return None
    levels = [float(masses.get(word) or 0.0) for word in LEVEL_WORDS]
    return sum(level * mass for level, mass in enumerate(levels, 1)) / sum(levels) if sum(levels) else None
