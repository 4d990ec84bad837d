"""What the stages share and no optimizer touches: settings, tools, fusion and language models."""

import threading
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import dspy

from program.common.backends import RoleSettings
from program.common.cache import share
from program.common.errors import ModelError, keys_among
from program.common.files import place_of
from program.common.settings import Settings
from program.expert import MODEL, NAME
from program.fusion import ScoreFusion
from program.lms.build import build_lm, role_model
from program.lms.dspy_private import say_once_of_truncation
from program.lms.traits import ModelTraits, known_traits, traits_of
from program.running.request import QueryType, read_query
from program.tools.registry import ToolRegistry
from program.tools.runner import ToolRunner

if TYPE_CHECKING:
    from program.expert import Viewer

Role = Literal["planner", "executor", "summarizer"]
ROLES: tuple[Role, ...] = get_args(Role)


def lm_of(role: RoleSettings, *, cache_dir: Path | None) -> dspy.LM:
    """Return the LM that a role's settings name: the embedded expert, or a model behind a service.

    Raises ModelError for a name that stands for neither.
    """
    name = role_model(role)
    if name.partition("/")[0] != NAME.partition("/")[0]:
        return build_lm(role, cache_dir=cache_dir)
    from program.expert import make_perceptual_lm

    if name.partition("@")[0] != NAME:
        raise ModelError(f"model {name!r}: unknown (did you mean {NAME!r}?)")
    if name not in {NAME, MODEL}:
        raise ModelError(f"model {name!r}: this version holds {MODEL!r}; use that name or plain {NAME!r}")
    return make_perceptual_lm(cache_dir, temperature=role.temperature, max_tokens=role.max_tokens)


def portable_lm(lm: dspy.BaseLM | None) -> dspy.BaseLM | None:
    """Return a model as it may be pickled: without its keys, which the environment gives where it is loaded.

    Raises ModelError for one whose engine holds a connection.
    """
    if lm is None:
        return None
    engine = getattr(lm, "engine", "auto")
    if not isinstance(engine, str) and not hasattr(engine, "dump_state"):
        raise ModelError(
            f"model {lm.model!r}: its engine holds a connection, which no file can; name the model in the settings, "
            "or save without it (set_lm(None)) and give it again after loading"
        )
    secret = [name for name in lm.kwargs if name in keys_among(lm.kwargs) or name.endswith("headers")]
    return lm.copy(**dict.fromkeys(secret))


class Resources:
    """Shared by all copies of a program: copying a program copies its predictors, never these.

    Pickled, they are made again from the settings where they are loaded.
    """

    def __init__(self, settings: Settings, lm: dspy.BaseLM | None = None) -> None:
        if lm is not None and not isinstance(lm, dspy.BaseLM):
            raise ModelError(f"lm of type {type(lm).__name__}: give a dspy.LM, or a name through the settings")
        self.settings = settings
        say_once_of_truncation()
        share(settings.cache_dir, place_of(settings.shared_cache) if settings.shared_cache else None)
        self._given_lm = lm
        self._built: dict[Role, dspy.LM] = {}
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Resources":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Resources, (self.settings, portable_lm(self._given_lm))

    @cached_property
    def registry(self) -> ToolRegistry:
        """The tools known here."""
        return ToolRegistry.load()

    @cached_property
    def runner(self) -> ToolRunner:
        """What runs them."""
        return ToolRunner(self.settings, self.registry)

    @property
    def fusion(self) -> ScoreFusion:
        """How tool scores and level probabilities become one score, where no compile fitted it."""
        settings = self.settings.fusion
        is_calibrated = self.known("summarizer").is_calibrated
        weight, smoothing = (1.0, 0.0) if is_calibrated else (settings.model_weight, settings.smoothing)
        return ScoreFusion(
            settings.eta, normalize=settings.normalize, tool_weights=settings.tool_weights, model_weight=weight,
            smoothing=smoothing,
        )  # fmt: skip

    def known(self, role: Role) -> ModelTraits:
        """Return what is known of the model of a role; nothing is asked."""
        return known_traits(self.lm(role))

    def traits(self, role: Role) -> ModelTraits:
        """Return what the model of a role can do; its service is asked where it never was."""
        return traits_of(self.lm(role))

    @cached_property
    def expert(self) -> dspy.LM:
        """The embedded expert, whoever plays the roles."""
        return lm_of(RoleSettings(backend=NAME), cache_dir=self.settings.kept_dir)

    @cached_property
    def viewer(self) -> "Viewer":
        """What measures images for the embedded expert; each once."""
        from program.expert import Viewer

        return Viewer(self.settings.kept_dir)

    def eyes(self) -> dspy.BaseLM:
        """Return the model that looks for distortions: the Executor's, or the embedded expert where that one does not.

        It does not where it reads no images, and where only a score is asked of it, to save its calls.
        """
        lm, traits = self.lm("executor"), self.traits("executor")
        spared = self.settings.assessment.score_only and not traits.is_free
        return lm if traits.reads_images is not False and not spared else self.expert

    @property
    def sight_note(self) -> str | None:
        """Whose eyes judged, where they are not the model's own."""
        lm = self.lm("executor")
        if self.eyes() is lm:
            return None
        name = getattr(getattr(lm, "engine", None), "name", None) or lm.model
        reads = self.traits("executor").reads_images is not False
        why = "is asked for a score only" if reads else "reads no images"
        return f"{name} {why}: the embedded expert's findings are used"

    def scores_only(self, query: str, options: Any = None) -> bool:
        """Return whether a question costs a language model one word: a level or an option, with no reasons."""
        if not self.settings.assessment.score_only or self.known("summarizer").is_free:
            return False
        return read_query(query, options).type is not QueryType.EXPLANATION

    def lm(self, role: Role) -> dspy.BaseLM:
        """Return the language model of a role: the caller's, else DSPy's setting, else the one in the settings."""
        chosen = self._given_lm or dspy.settings.lm
        if chosen is not None:
            return chosen
        with self._lock:
            if role not in self._built:
                self._built[role] = lm_of(getattr(self.settings.models, role), cache_dir=self.settings.kept_dir)
            return self._built[role]
