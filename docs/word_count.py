"""Print words of prose and reading ease of the README and every page here: `python docs/word_count.py [SEED]`.

With a seed, 60 sentences drawn with it are printed instead, to be read aloud.

Prose is paragraphs and lists: no code, tables, headings, pictures or addresses. Reading ease is Flesch's (1948),
206.835 - 1.015 words per sentence - 84.6 syllables per word; 60 is plain English. A syllable is a group of vowels,
except a silent e.
"""

import random
import re
import statistics
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
LOGS = ("commands.md", "log.md", "test-looks.md")
"""Pages that no total includes: one is generated, the others are records."""


def files() -> list[Path]:
    """Return the README and every page here."""
    return [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]


def prose_of(text: str) -> list[str]:
    """Return a page's paragraphs and list items as plain text."""
    text = re.sub(r"^```[\s\S]*?^```$|^ {4,}\S.*$|^[|#].*$|^\$\$[\s\S]*?\$\$$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n\n", text, flags=re.MULTILINE).replace("*", "")
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def sentences_of(paragraph: str) -> list[str]:
    """Return a paragraph's sentences."""
    return [
        sentence for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`(\"])", paragraph) if re.search(r"[a-z]", sentence)
    ]


def syllables(word: str) -> int:
    """Return about how many syllables a word has.

    >>> [syllables(word) for word in ("score", "image", "quality", "table", "photographs")]
    [1, 2, 3, 2, 3]
    """
    word = re.sub(r"[^a-z]", "", word.lower())
    silent = word.endswith("e") and not word.endswith("le")
    return max(len(re.findall(r"[aeiouy]+", word)) - silent, 1)


def words_of(text: str) -> list[str]:
    """Return the words of a text; what is code or a number counts as one."""
    return [word for word in re.sub(r"`[^`]*`", "code", text).split() if re.search(r"\w", word)]


def reading_ease(paragraph: str) -> float:
    """Return the reading ease of a paragraph."""
    words = words_of(paragraph)
    spoken = sum(map(syllables, words)) / len(words)
    return 206.835 - 1.015 * len(words) / max(len(sentences_of(paragraph)), 1) - 84.6 * spoken


def counted(text: str) -> tuple[int, list[float]]:
    """Return a page's words of prose, and the reading ease of each paragraph of eight words or more."""
    paragraphs = [(len(words_of(part)), part) for part in prose_of(text)]
    return sum(count for count, _ in paragraphs), [reading_ease(part) for count, part in paragraphs if count >= 8]


def pages() -> dict[str, tuple[int, list[float]]]:
    """Return what `counted` says of the README and every page here."""
    return {file.name: counted(file.read_text("utf-8")) for file in files()}


def drawn(seed: str) -> list[str]:
    """Return 60 sentences of four words or more, each with its page."""
    kept = [file for file in files() if file.name not in LOGS]
    found = [
        f"{file.name}: {sentence}" for file in kept for part in prose_of(file.read_text("utf-8"))
        for sentence in sentences_of(part) if len(words_of(sentence)) >= 4
    ]  # fmt: skip
    return random.Random(seed).sample(found, 60)


def main() -> None:
    """Print a line per page and the total, or the drawn sentences."""
    if sys.argv[1:]:
        sys.stdout.write("\n".join(drawn(sys.argv[1])) + "\n")
        return
    found = pages()
    for name, (count, eases) in found.items():
        sys.stdout.write(f"{count:6} {statistics.median(eases):6.1f}  {name}\n")
    kept = [page for name, page in found.items() if name not in LOGS]
    ease = statistics.median(ease for _, eases in kept for ease in eases)
    sys.stdout.write(f"{sum(count for count, _ in kept):6} {ease:6.1f}  all but {', '.join(LOGS)}\n")


if __name__ == "__main__":
    main()
