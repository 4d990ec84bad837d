"""Command lines of all commands: one line for what cannot be used, and the kinds of numbers that options take."""

import argparse
import math
from collections.abc import Callable
from difflib import get_close_matches
from typing import NoReturn

__all__ = ("Parser", "number", "whole_number")


class Parser(argparse.ArgumentParser):
    """A parser whose complaint is one line with the option, the value and what it takes."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        named = message.removeprefix("argument ")
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            first = unknown.split()[0]
            close = get_close_matches(first.partition("=")[0], self._option_string_actions, n=1)
            named = f"{first}: unknown; " + (f"did you mean {close[0]}?" if close else "--help shows what there is")
        self.exit(2, f"error: {' '.join(named.split())}\n")


def whole_number(least: int = 0, most: int | None = None) -> Callable[[str], int]:
    """Return what reads a whole number from `least` to `most` for an option."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
            limits = f"from {least}" + ("" if most is None else f" to {most}")
            raise argparse.ArgumentTypeError(f"{text!r}: give a whole number {limits}")
        return int(text)

    return read


def number(least: float, most: float = math.inf) -> Callable[[str], float]:
    """Return what reads a finite number from `least` to `most` for an option."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most or math.isinf(value):
            limits = f"from {least:g}" + (f" to {most:g}" if math.isfinite(most) else "")
            raise argparse.ArgumentTypeError(f"{text!r}: give a number {limits}")
        return value

    return read
