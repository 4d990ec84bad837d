"""Numbering texts in little memory: what finds duplicate ids, groups and images among millions of lines."""

import hashlib
from array import array

__all__ = ("KeyTable",)

_FIRST_SLOTS = 1024


class KeyTable:
    """Distinct texts, numbered 0, 1, 2, ... in the order they come; of each, 8 bytes of hash are kept.

    Memory is 14 to 20 bytes a text (8 for the hash, 6 to 12 for the slots), however long the texts are; while it
    grows, up to 1.5 times that. Two different texts share a hash with probability n^2 / 2^65 (3e-8 at a million).
    Not thread-safe.

    >>> table = KeyTable()
    >>> table.number("a"), table.number("b"), table.number("a"), table.find("c"), len(table)
    ((0, True), (1, True), (0, False), None, 2)
    """

    def __init__(self) -> None:
        self._keys = array("Q")
        # 0 is an empty slot, n + 1 the text with number n. Linear probing; at most two thirds are full.
        self._slots = array("I", bytes(4 * _FIRST_SLOTS))

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def keys(self) -> "array[int]":
        """The texts' hashes in the order of their numbers, for reading only."""
        return self._keys

    def number(self, text: str | bytes) -> tuple[int, bool]:
        """Return the text's number, and whether it is new."""
        key = _hash(text)
        slot = self._slot(key)
        found = self._slots[slot]
        if found:
            return found - 1, False
        self._keys.append(key)
        self._slots[slot] = len(self._keys)
        if 3 * len(self._keys) > 2 * len(self._slots):
            self._grow()
        return len(self._keys) - 1, True

    def find(self, text: str | bytes) -> int | None:
        """Return the text's number, or None when it has none."""
        found = self._slots[self._slot(_hash(text))]
        return found - 1 if found else None

    def _slot(self, key: int) -> int:
        mask = len(self._slots) - 1
        slot = key & mask
        while (found := self._slots[slot]) and self._keys[found - 1] != key:
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        size = 2 * len(self._slots)
        self._slots = array("I", bytes(4 * size))
        slots, mask = self._slots, size - 1
        for number, key in enumerate(self._keys, start=1):
            slot = key & mask
            while slots[slot]:
                slot = (slot + 1) & mask
            slots[slot] = number


def _hash(text: str | bytes) -> int:
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
