"""The sentences of `phrases.yaml` in one language: the rest of the expert says what it means by their names."""

import functools
from collections.abc import Mapping
from typing import Any

from program.common.questions import is_chinese
from program.expert.store import stored_table

__all__ = ("CHINESE", "ENGLISH", "Phrases", "capitalised", "phrases_for", "uncapitalised")


class Phrases:
    """Sentences, templates and words by name ("section.name"), in one language."""

    def __init__(self, column: int) -> None:
        """Take the column of the file: 0 English, 1 Chinese."""
        self._column = column

    def __call__(self, name: str, /, **values: Any) -> str:
        """Return a phrase with its values filled in."""
        return _table()[name][self._column].format(**values)

    def join(self, *sentences: str) -> str:
        """Join sentences that follow each other; empty ones are left out."""
        return self("sentence.gap").join(sentence for sentence in sentences if sentence)


@functools.cache
def _table() -> Mapping[str, tuple[str, str]]:
    sections = stored_table("phrases.yaml").items()
    return {f"{section}.{name}": tuple(pair) for section, pairs in sections for name, pair in pairs.items()}


ENGLISH, CHINESE = Phrases(0), Phrases(1)


def phrases_for(query: str) -> Phrases:
    """Return the phrases of a question's language: Chinese, or else English."""
    return CHINESE if is_chinese(query) else ENGLISH


def capitalised(sentence: str) -> str:
    """Return a sentence with its first letter large; Chinese stays as it is."""
    return sentence[:1].upper() + sentence[1:]


def uncapitalised(sentence: str) -> str:
    """Return a sentence with its first letter small."""
    return sentence[:1].lower() + sentence[1:]
