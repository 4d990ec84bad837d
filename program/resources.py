"""What the stages share and no optimizer touches: settings, tools, fusion and language models."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Literal

import dspy

from program.errors import ModelError
from program.fusion import ScoreFusion
from program.lms.build import build_lm
from program.lms.reference_engine import share_what_is_refused
from program.settings import Settings
from program.tools.registry import ToolRegistry
from program.tools.runner import ToolRunner

__all__ = ("Resources", "Role")

Role = Literal["planner", "executor", "summarizer"]


class Resources:
    """Shared by all copies of a program: copying a program copies its predictors, never these."""

    def __init__(self, settings: Settings, lm: dspy.BaseLM | None = None) -> None:
        if lm is not None and not isinstance(lm, dspy.BaseLM):
            raise ModelError(f"lm of type {type(lm).__name__}: give a dspy.LM, or a name through the settings")
        self.settings = settings
        self.fusion = ScoreFusion(
            eta=settings.fusion.eta, normalize=settings.fusion.normalize, tool_weights=settings.fusion.tool_weights
        )
        self.without_logprobs: set[str] = set()
        """Models that turned out to give no log-probabilities."""
        self._given_lm = lm
        self._built: dict[Role, dspy.LM] = {}
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Resources":
        return self

    @cached_property
    def registry(self) -> ToolRegistry:
        """The tools known here."""
        return ToolRegistry.load()

    @cached_property
    def runner(self) -> ToolRunner:
        """What runs them."""
        return ToolRunner.of(self.settings, self.registry)

    @cached_property
    def threads(self) -> ThreadPoolExecutor:
        """Where asynchronous calls run: as many at once as one host may be asked."""
        return ThreadPoolExecutor(self.settings.wire.concurrency, thread_name_prefix="acall")

    def lm(self, role: Role) -> dspy.BaseLM:
        """Return the language model of a role: the caller's, else DSPy's setting, else the one in the settings."""
        chosen = self._given_lm or dspy.settings.lm
        if chosen is not None:
            return chosen
        with self._lock:
            if role not in self._built:
                lm = build_lm(getattr(self.settings.models, role), cache_dir=self.settings.cache_dir)
                share_what_is_refused([*self._built.values(), lm])
                self._built[role] = lm
            return self._built[role]
