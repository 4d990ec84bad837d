"""What every command shares: one-line errors, exit codes, kinds of numbers, common flags."""

import argparse
import atexit
import codecs
import contextlib
import gc
import io
import logging
import math
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from program.common.errors import InputError, UnreadError, fault_and_mend, showable
from program.common.keys import redact, scrub, use_keys
from program.common.terminal import showable_output

if TYPE_CHECKING:
    from program.common.files import Place
    from program.common.settings import Settings

N = TypeVar("N", int, float)

EXIT_PROBLEMS = 1
"""The command ran, and some inputs failed or a check found faults."""
EXIT_UNUSABLE = 2
EXIT_INTERRUPTED = 130
WAITING = "stopping: waiting for what is in flight, which may be paid for\n"
MODEL_RECORDS = "models"
"""Folder of the cache that holds what models' servers can do."""

_ROLE_FLAGS = {
    "planner": "planner's model", "executor": "executor's model", "summarizer": "summarizer's model",
    "reflection": "model that rewrites instructions for optimizers",
}  # fmt: skip


def _claim(*names: str) -> None:
    """Give our packages their names before a `data.py` in the working folder gets one."""
    home = str(Path(__file__).resolve().parents[2])
    for name in names:
        spec = PathFinder.find_spec(name, [home])
        if name not in sys.modules and spec is not None and spec.loader is not None:
            sys.modules[name] = module = module_from_spec(spec)
            spec.loader.exec_module(module)


_claim("configs", "data", "optimizers", "signatures")


def as_started(text: str) -> str:
    """Return a text with the commands in it as they are installed: `agentic-iqa data check`."""
    words = re.sub(r"python -m program\.(\w+)(?!\.?\w)", r"agentic-iqa \1", text)
    return re.sub(r"python -m data\.(\w+)", r"agentic-iqa data \1", words)


def _write_what_can_be_written() -> None:
    r"""Let the output escape what its encoding (cp1252, ASCII) lacks, as JSON does: \u2265."""

    def escaped(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
        return re.sub("(....)", r"\\u\1", units), error.end

    codecs.register_error("agentic-iqa", escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="agentic-iqa")


class Parser(argparse.ArgumentParser):
    """A parser whose complaint is one line with the option, the value and what it takes."""

    def __init__(self, prog: str | None = None, **options: Any) -> None:
        _write_what_can_be_written()
        super().__init__(prog=prog and as_started(prog), **options)

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        named = message.removeprefix("argument ")
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            first = unknown.split()[0]
            close = get_close_matches(first.partition("=")[0], self._option_string_actions, n=1)
            mend = f"did you mean {close[0]}?" if close else "--help shows what there is"
            named = f"{first}: unknown; {mend}"
        self.exit(2, f"error: {showable(' '.join(named.split()))}\n")


def whole_number(least: int = 0, most: float = math.inf) -> Callable[[str], int]:
    """Return what reads a whole number from `least` to `most` for an option."""
    return _number(int, "a whole number", least, most)


def number(least: float, most: float = math.inf) -> Callable[[str], float]:
    """Return what reads a finite number from `least` to `most` for an option."""
    return _number(float, "a number", least, most)


def _number(kind: Callable[[str], N], noun: str, least: float, most: float) -> Callable[[str], N]:
    def read(text: str) -> N:
        with contextlib.suppress(ValueError):
            value = kind(text)
            if least <= value <= most and value < math.inf:
                return value
        limit = f" to {most:g}" if math.isfinite(most) else ""
        raise argparse.ArgumentTypeError(f"{text!r}: give {noun} from {least:g}{limit}")

    return read


def numbers(count: int) -> Callable[[str], tuple[float, ...]]:
    """Return what reads so many numbers with commas between for an option."""

    def read(text: str) -> tuple[float, ...]:
        with contextlib.suppress(ValueError):
            values = tuple(float(part) for part in text.split(","))
            if len(values) == count:
                return values
        raise argparse.ArgumentTypeError(f"{text!r}: give {count} numbers with commas between")

    return read


def column_names(text: str) -> dict[str, str]:
    """Read which column is which field, such as image=img,mos=score."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if not all(field.strip() and column.strip() for field, _, column in pairs):
        raise argparse.ArgumentTypeError(f"{text!r}: give FIELD=COLUMN with commas between, as image=img,mos=score")
    named = {field.strip(): column.strip() for field, _, column in pairs}
    if len(named) < len(pairs):
        raise argparse.ArgumentTypeError(f"{text!r}: names a field twice; give one column for each")
    return named


def _leave_objects() -> None:
    """Spare the end of a process half a second of looking through what the imports made."""
    if "torch" not in sys.modules:  # a library of its own complains of objects that are left
        gc.freeze()


@contextlib.contextmanager
def _ending_on_signals() -> Iterator[list[signal.Signals]]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does; yields those that came."""
    came: list[signal.Signals] = []

    def stop(number: int, frame: FrameType | None) -> None:
        came.append(signal.Signals(number))
        on_interrupt = signal.getsignal(signal.SIGINT)
        if callable(on_interrupt):  # DSPy's own begins no other of the runs that wait
            on_interrupt(signal.SIGINT, frame)
        raise KeyboardInterrupt

    names = ("SIGTERM", "SIGHUP") if threading.current_thread() is threading.main_thread() else ()
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    # Who ignores one (nohup), or handles it, goes on so.
    ours = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, stop)
    try:
        yield came
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@showable_output()
def run_command(body: Callable[[], int], *, kept: str = "") -> int:
    """Run a command's body and return its exit code: input errors become one line on stderr and 2.

    `kept` says what is left of a run that is stopped in the middle (Ctrl-C: exit code 130, SIGTERM:
    143), and how to go on.
    """
    from signatures import require_docstrings

    try:
        require_docstrings()
    except RuntimeError as error:
        return _complain(str(error))
    with _ending_on_signals() as came:
        try:
            return _run(body, kept)
        except KeyboardInterrupt as interrupt:
            cause = f"stopped by {came[0].name}" if came else "interrupted"
            with contextlib.suppress(OSError):  # the terminal may be gone
                if _calls_are_in_flight():
                    sys.stderr.write(WAITING)
                print("; ".join(filter(None, (cause, str(interrupt) or kept))), file=sys.stderr)
            if came:
                return 128 + came[0]
            return EXIT_INTERRUPTED


def _calls_are_in_flight() -> bool:
    """Return whether threads of DSPy's still wait for a model: the process ends after them."""
    threads = [each for each in threading.enumerate() if each.name.startswith("ThreadPoolExecutor")]
    for thread in threads:
        thread.join(0.05)  # what is idle ends by itself
    return any(thread.is_alive() for thread in threads)


def _run(body: Callable[[], int], kept: str) -> int:
    # Offline, LiteLLM would try to download a price list at first use; libraries' tqdm bars would tear our own.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("TQDM_DISABLE", "1")
    # Imports make half a million objects that stay: looking through them again and again takes a tenth of a start.
    gc.set_threshold(50_000, 20, 20)
    atexit.register(_leave_objects)
    try:
        code = body()
        sys.stdout.flush()
        return code
    except UnreadError as error:
        _complain("; ".join(filter(None, (str(error), kept))))
        return EXIT_PROBLEMS
    except InputError as error:
        return _complain(str(error))
    except BrokenPipeError:  # who read our output has stopped, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PROBLEMS
    except OSError as error:
        # What the system refuses (rights, space, a name too long) is no bug; who asks for logs gets the traceback.
        if error.strerror is None or logging.getLogger("program").isEnabledFor(logging.INFO):
            scrub(error)
            raise
        where = f"{str(error.filename)[:200]!r}: " if error.filename is not None else ""
        return _complain(f"{where}{error.strerror}; check the path, its permissions and the space left (-v: where)")
    except Exception as error:
        # A failing model service is an outside fault, told in one line; anything else is a bug and keeps its traceback.
        if type(error).__name__.startswith("LM") and type(error).__module__.startswith("dspy"):
            fault, mend = fault_and_mend(error)
            return _complain("; ".join(filter(None, (f"language model: {fault}", mend, kept))))
        scrub(error)
        raise


def _complain(message: str) -> int:
    # A path joins the slashes of a URL.
    typed = re.sub(r"\b(https?):/(?!/)", r"\1://", " ".join(message.split()))
    print(f"error: {showable(redact(as_started(typed)))}", file=sys.stderr)
    return EXIT_UNUSABLE


def add_settings_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that change the settings tree."""
    parser.add_argument(
        "--lm", metavar="MODEL", help="language model for every role, such as perceptual/expert or openai/gpt-4o"
    )
    for role, asks in _ROLE_FLAGS.items():
        parser.add_argument(f"--{role}-lm", metavar="MODEL", help=f"the {asks}")
    parser.add_argument("--api-base", metavar="URL", help="OpenAI-compatible server of the models named openai/NAME")
    parser.add_argument(
        "--scoring", choices=("auto", "logprobs", "probabilities", "classification"),
        help="how to ask a language model for a level (default: auto, the best way that the model can answer)",
    )  # fmt: skip
    parser.add_argument("--score-only", action="store_true", help="ask a language model for one word per image")
    parser.add_argument("--config", metavar="FILE", type=Path, help="YAML file with the settings to change")
    parser.add_argument("--seed", type=whole_number(), metavar="N", help="seed of everything random")
    parser.add_argument("--fresh", action="store_true", help="ask a model's server again what it can do")
    parser.add_argument("--no-cache", action="store_true", help="measure and ask everything again, and keep none of it")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="log what happens; twice: prompts too")


def add_intention_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what is meant in pictures, and what they are."""
    parser.add_argument(
        "--intended", metavar="EFFECT", action="append",
        help="an effect that is meant, so no fault: high-key, low-key, night, coloured-light, silhouette, monochrome, "
        "grade, shallow-depth, panning, long-exposure or mist; repeat for more",
    )  # fmt: skip
    parser.add_argument(
        "--kind", metavar="KIND", help="what the pictures are, whatever the pixels say: photograph, document, ..."
    )


def add_program_flags(parser: argparse.ArgumentParser, *, replaces: str = "") -> None:
    """Add the flags that name a compiled program; `replaces` says what --force replaces, too."""
    parser.add_argument("--program", metavar="DIR|URI", help="compiled program: its folder, or models:/NAME@champion")
    forced = "load a --program that was altered, or compiled with another revision of perceptual/expert"
    parser.add_argument("--force", action="store_true", help="; ".join(filter(None, (replaces, forced))))


def add_layout_flags(parser: argparse.ArgumentParser, *, columns: str = "", scale: str = "") -> None:
    """Add the flags that say how a table is read; `columns` and `scale` begin with which tables."""
    parser.add_argument("--columns", metavar="FIELD=COLUMN,...", type=column_names, default={},
                        help=f"{columns}which column is which field, such as image=img,mos=score")  # fmt: skip
    parser.add_argument("--mos-range", metavar="LOW,HIGH", type=numbers(2), help=f"{scale}scale of the scores "
                        "(default: what the rows say, else 1,5)")  # fmt: skip
    parser.add_argument("--lower-is-better", action="store_true", help=f"{scale}low scores are good")
    parser.add_argument(
        "--raters", metavar="NAME,NAME", nargs="?", const=(), type=_names, default=None,
        help=f"{scale}average several people's scores: the columns of these names, or, of no names, all rows of an "
        "image",
    )  # fmt: skip


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for each in text.split(",") if (name := each.strip()))


def add_remote_flag(
    parser: argparse._ActionsContainer, who: str = "rows of a table", usual: str = "only below the table's own address"
) -> None:
    """Add the flag that lets data name images elsewhere."""
    parser.add_argument("--remote", metavar="KIND,...", type=_kinds, default=(),
                        help=f"kinds of address that {who} may name, such as s3,gs (default: {usual})")  # fmt: skip


def _kinds(text: str) -> tuple[str, ...]:
    from program.common.addresses import kind_of_address

    try:
        return tuple(map(kind_of_address, filter(str.strip, text.split(","))))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_budget_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that limit what model calls may cost."""
    parser.add_argument("--max-calls", metavar="N", type=whole_number(), help="stop before more model calls than this")
    parser.add_argument("--max-cost", metavar="USD", type=number(0), help="stop before model calls cost more than this")
    parser.add_argument("--max-tokens", metavar="N", type=whole_number(), help="stop before more tokens than this")


def add_engine_flags(parser: argparse._ActionsContainer) -> None:
    """Add the flags that say where many images are judged."""
    parser.add_argument("--engine", choices=("threads", "ray"), default="threads",
                        help="ray: separate processes, on this machine or the cluster at RAY_ADDRESS")  # fmt: skip
    parser.add_argument("--threads", metavar="N", type=whole_number(1), default=1,
                        help="ray: images at a time in each worker (default: 1)")  # fmt: skip
    parser.add_argument(
        "--gpus", metavar="X", type=number(0), default=0.0, help="ray: share of a GPU for each worker, such as 0.25"
    )


def check_installed(extra: str, *modules: str) -> None:
    """Raise InputError where a module that one of our extras brings cannot be imported."""
    try:
        for module in modules:
            import_module(module)
    except ImportError as error:
        raise InputError(f"{extra}: {error.name} is not installed; pip install 'agentic-iqa[{extra}]'") from error


def check_outputs(
    arguments: argparse.Namespace, flag: str, *written: "Place", read: "Iterable[Place]" = (), begun: bool = False
) -> None:
    """Raise InputError where a file of `flag` is an input, or is there and without --force.

    An input is whatever file another argument names, or one of `read`. `begun` says that this work
    began the file.
    """
    from program.common.files import check_output

    own = flag.lstrip("-").replace("-", "_")
    inputs = [*_places(arguments, but=own), *read]
    for out in written:
        check_output(flag, out, inputs, force=arguments.force or begun)


def _places(arguments: argparse.Namespace, but: str = "") -> list[str | Path]:
    """Return what may name a file or a dataset among a command's arguments."""
    places: list[str | Path] = []
    for name, value in vars(arguments).items():
        if name != but:
            given = value if isinstance(value, list) else [value]
            places += [each for each in given if isinstance(each, str | Path)]
    return places


class ShowableLines(logging.Formatter):
    """Log lines without keys that steer no terminal: a model's answer stands in some."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return showable(redact(super().format(record)))


def _set_up_logging(verbose: int) -> None:
    level = {0: logging.ERROR, 1: logging.INFO}.get(verbose, logging.DEBUG)
    handler = logging.StreamHandler()
    handler.setFormatter(ShowableLines("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    levels = dict.fromkeys(("program", "optimizers", "data"), level)
    # What costs a run, time or comparability is always said: a broken store, a cache that cannot be used, a program
    # that is loaded by force.
    always = ("program.tracking", "optimizers.command", "program.common.cache", "program.evaluation")
    levels |= dict.fromkeys((*always, "program.agent.saving"), min(level, logging.WARNING))
    if level > logging.DEBUG:
        # Every repeat to a server that is down; what comes of them is told by who asked.
        levels["urllib3.connectionpool"] = logging.ERROR
        # A line for every candidate, between the progress bars.
        levels |= dict.fromkeys(("dspy.evaluate", "dspy.teleprompt"), logging.WARNING)
        # What ends a trial is told by who catches it.
        levels["optuna.study"] = logging.ERROR
        # MIPRO gives the signatures of its own more than they take, and is warned of each.
        levels["dspy.predict"] = logging.ERROR
    for name, value in levels.items():
        logging.getLogger(name).setLevel(value)


def settings_from(arguments: argparse.Namespace, **overrides: Any) -> "Settings":
    """Return the settings a command's flags ask for, and set up logging."""
    from program.common.settings import load_settings

    _set_up_logging(arguments.verbose)
    if any(str(place).startswith("hf:") for place in _places(arguments)):
        use_keys(["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
    if arguments.seed is not None:
        overrides["seed"] = arguments.seed
    asked = {
        "scoring": arguments.scoring, "score_only": arguments.score_only or None,
        "intended": getattr(arguments, "intended", None), "kind": getattr(arguments, "kind", None),
    }  # fmt: skip
    if given := {name: value for name, value in asked.items() if value is not None}:
        overrides["assessment"] = {**overrides.get("assessment", {}), **given}
    if arguments.no_cache:
        overrides["cache"] = False
    if remote := getattr(arguments, "remote", ()):
        overrides["images"] = {"remote": remote}
    settings = load_settings(arguments.config, overrides).with_model(
        arguments.lm, arguments.api_base, {role: getattr(arguments, f"{role}_lm") for role in _ROLE_FLAGS}
    )
    if arguments.fresh:
        for record in (settings.cache_dir / MODEL_RECORDS).glob("*.json"):
            if re.fullmatch("[0-9a-f]{16}", record.stem):  # registered programs are copied to the same folder
                record.unlink(missing_ok=True)
    return settings
