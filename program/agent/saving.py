"""A compiled program's folder, and what a program's answers depend on."""

import argparse
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any, Literal

import dspy
from pydantic import Field, ValidationError
from pydantic_core import from_json

from program.agent.labels import Corrections, FittedOn, Neighbours
from program.agent.loop import AgenticIQA
from program.agent.module import StrictPart, digest, predictors_in
from program.agent.resources import Role
from program.common.errors import ImageError, InputError, first_fault
from program.common.files import CONFIGS, remove_leftovers, write_whole
from program.common.outputs import PROGRAM, check_outputs_in, names_of, replacing
from program.common.settings import PLACES, Settings, load_settings
from program.expert import MODEL, NAME
from program.fusion.scores import FIELDS, FittedFusion
from program.images.store import HOST, IMAGES, parse_url
from program.lms.ask import with_references
from program.lms.dspy_private import CUSTOM_TYPE_END_IDENTIFIER, CUSTOM_TYPE_START_IDENTIFIER
from program.lms.traits import known_traits
from program.tools.calibration import PAPER
from program.tools.registry import file_sha256, library_label, parameter_path
from program.tracking.models import SCHEME, fetch

logger = logging.getLogger(__name__)

_PROGRAM = "program.json"
_LEARNED = ("neighbours", "corrections")
"""What a Summarizer keeps of labels."""
_REFERENCE = re.compile(re.escape(HOST) + r"[0-9a-f]{64}\.[a-z]+")
_SHOWN = re.compile(
    re.escape(CUSTOM_TYPE_START_IDENTIFIER)
    + re.escape(r"[{\"type\": \"image_url\", \"image_url\": {\"url\": \"")
    + _REFERENCE.pattern
    + re.escape(r"\"}}]" + CUSTOM_TYPE_END_IDENTIFIER)
)
"""A demo's image as DSPy writes it, inside JSON."""


class ProgramFile(StrictPart):
    """The content of `program.json`."""

    format: Literal[1] = 1
    schema_sha256: str
    program_sha256: str
    rest_sha256: str | None = None
    """Of all but the instructions, which a person may edit."""
    engine: str | None = Field(default=None, pattern=rf"^{NAME}@[\w.]{{1,20}}$")
    """The embedded engine that played a role, as perceptual/expert@r8."""
    record: dict[str, Any] = Field(default_factory=dict)
    """How it was made; nothing is read from it."""
    fusion: dict[str, Any] | None = None
    state: dict[str, Any]
    """Predictors by name; `load_state` looks into it."""
    neighbours: Neighbours | None = None
    corrections: Corrections | None = None
    fitted_on: FittedOn | None = None

    @property
    def learned(self) -> list[Any]:
        """What no predictor holds."""
        return [self.fusion, *(part.sha256 for part in (self.neighbours, self.corrections) if part)]


def save(
    program: AgenticIQA,
    folder: Path,
    record: Mapping[str, Any] | None = None,
    *,
    files: Mapping[str, str] | None = None,
    keep: Iterable[str] = (),
) -> Path:
    """Write a program to `folder`: state without LMs, demo images, and a record of its making.

    Replaces an earlier program of the same folder, which can be loaded until the new one can.
    Refuses a folder that holds anything else. `files` are further texts to write there by name.
    `keep` names files of the earlier one that stay, of a compile that goes on: what came to lie
    there since it began stays, too. Raises InputError where it cannot be written.
    """
    kept = set(keep)
    if not kept:
        check_folder(folder)
    try:
        state, learned = _state(program), _learned(program)
        document: dict[str, Any] = {
            "format": 1,
            "schema_sha256": schema_sha256(program),
            "program_sha256": digest([state, *learned]),
            "rest_sha256": rest_sha256(state, learned),
        }
        engine = _engine(program)
        if engine is not None:
            document["engine"] = engine
        document |= {"record": dict(record or {}), "fusion": _fusion(program), "state": state}
        document |= {name: part.saved for name, part in _arrays(program).items()}
        if program.fitted_on is not None:
            document["fitted_on"] = program.fitted_on.saved
        texts = {_PROGRAM: json.dumps(document, ensure_ascii=False, indent=1), **(files or {})}
        content = {name: text.encode() for name, text in texts.items()}
        for url in _references_in(json.dumps(state)):
            content[_image_file(url)] = IMAGES.read(url)
        _write(folder, content, kept)
    except OSError as error:
        mend = "check its permissions, free space, or give another"
        fault = f"cannot be written ({error.strerror}); {mend}"
        raise InputError(f"folder {str(folder)!r}: {fault}") from error
    return folder


def _references_in(state: str) -> list[str]:
    return sorted(set(_REFERENCE.findall(state)))


def _image_file(url: str) -> str:
    digest, suffix = parse_url(url)
    return f"images/{digest}{suffix}"


def _write(folder: Path, content: Mapping[str, bytes], kept: Set[str]) -> None:
    """Write a program's files by name, and remove those of the earlier program that it has no more.

    Whatever ends the process meanwhile, one of the two can be loaded: images have names of their
    own, and `program.json` turns the one into the other.
    """
    images = [name for name in content if name.startswith("images/")]
    others = content.keys() - set(images) - {_PROGRAM}
    folder.mkdir(parents=True, exist_ok=True)
    stale = set(names_of(folder, PROGRAM)) - set(content) - kept
    with replacing(folder, PROGRAM, {*content, *stale}):
        (folder / "images").mkdir(exist_ok=True)
        for name in (*images, _PROGRAM, *others):
            write_whole(folder / name, content[name])
        for name in stale:
            (folder / name).unlink(missing_ok=True)
    for each in (folder, folder / "images"):
        remove_leftovers(each)


def check_folder(folder: Path) -> None:
    """Raise InputError for a folder that a program must not take: a link, or with foreign files."""
    own = folder
    if ".." in folder.parts:  # new/../data is data, even where new does not exist
        own = Path(os.path.realpath(folder.parent), folder.name)
    if own.is_symlink():
        raise InputError(f"folder {str(folder)!r}: is a link; give the folder that it leads to")
    there = next((path for path in (own, *own.parents) if path.exists()), own)
    if there.exists() and not there.is_dir():
        fault = "is a file; give a new or empty folder"
        if there != own:
            fault = f"{str(there)!r} {fault}"
        raise InputError(f"folder {str(folder)!r}: {fault}")
    check_outputs_in(own, PROGRAM)


def load(
    folder: str | os.PathLike[str],
    settings: Settings | None = None,
    lm: dspy.BaseLM | None = None,
    *,
    force: bool = False,
) -> AgenticIQA:
    """Return the compiled program of a folder, with the LMs of `settings` (or `lm`).

    A registered program is named as models:/NAME@champion or models:/NAME/VERSION. Instructions
    edited in the file are taken, with a warning. `force` takes other alterations, too; of another
    revision of the embedded engine the instructions alone; and leaves out demos for the expert,
    which reads none. Raises InputError for these without `force`, and for what is no compiled
    program, was made for other signatures or names a language model; ImageError for a demo's image
    that is missing or altered.
    """
    is_registered = str(folder).startswith(SCHEME)
    path = fetch(str(folder), settings or load_settings()) if is_registered else Path(folder)
    name = f"program {str(path)!r}"
    file = _read(path, name)
    program = AgenticIQA(settings=settings, lm=lm)
    if file.fusion is not None:
        try:
            fitted = FittedFusion.from_json(program.resources.fusion, file.fusion)
        except (OverflowError, TypeError, ValueError) as error:
            raise InputError(f"{name}: its fusion does not fit ({error}); compile again") from error
        program.summarizer.fitted = fitted
    if file.schema_sha256 != schema_sha256(program):
        fault = "was compiled for other signatures than this version's"
        raise InputError(f"{name}: {fault}; compile again")
    try:
        program.load_state(file.state)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    _add_images(path, json.dumps(file.state), name)
    for predictor in program.parameters():
        predictor.demos = [_with_images(demo) for demo in predictor.demos]
    program.fitted_on = file.fitted_on
    for part in _LEARNED:
        setattr(program.summarizer, part, getattr(file, part))
    if _is_foreign(file, name, force=force):
        for part in ("fitted", *_LEARNED):
            setattr(program.summarizer, part, None)
    _check_demos(program, name, force=force)
    return program


def _read(path: Path, name: str) -> ProgramFile:
    try:
        return ProgramFile.model_validate(from_json((path / _PROGRAM).read_bytes()))
    except (FileNotFoundError, NotADirectoryError) as error:
        fault = "no program.json in it" if path.is_dir() else "no such folder"
        raise InputError(f"{name}: {fault}; give a folder that compile wrote") from error
    except ValidationError as error:
        fault = first_fault(error, "the file")
        raise InputError(f"{name}: program.json cannot be read ({fault}); compile again") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{name}: program.json cannot be read ({error}); compile again") from error


def _is_foreign(file: ProgramFile, name: str, *, force: bool) -> bool:
    """Return whether the engine was of another revision; InputError for what needs `force`."""
    faults = []
    is_altered = digest([file.state, *file.learned]) != file.program_sha256
    if is_altered and file.rest_sha256 == rest_sha256(file.state, file.learned):
        logger.warning("%s: its instructions were edited since it was saved", name)
    elif is_altered:
        faults.append("was altered since it was saved; compile again, or load it as it is with --force (force=True)")
    is_foreign = file.engine is not None and file.engine != MODEL
    if is_foreign:
        faults.append(
            f"was compiled with {file.engine!r}, and this version holds {MODEL!r}; compile again, "
            "or take its instructions without a fitted fusion with --force (force=True)"
        )
    for fault in faults:
        if not force:
            raise InputError(f"{name}: {fault}")
        logger.warning("%s: %s", name, fault.partition(";")[0])
    return is_foreign


def _check_demos(program: AgenticIQA, name: str, *, force: bool) -> None:
    """Raise InputError for demos of a model that reads none; with `force` they are left out."""
    for predictor_name, predictor in program.named_parameters():
        lm = predictor.lm or program.resources.lm(predictor_name.partition(".")[0])
        if not predictor.demos or not known_traits(lm).embedded:
            continue
        fault = f"{name}: holds demos, which the embedded expert does not read"
        if not force:
            mend = "compile again, or give the language model it was compiled for (--lm)"
            raise InputError(f"{fault}; {mend}")
        logger.warning("%s; they are left out", fault)
        predictor.demos = []


def _engine(program: AgenticIQA) -> str | None:
    """Return the embedded engine where it plays a role or what was learned rests on it."""
    if _arrays(program):
        return MODEL
    for name, predictor in program.named_parameters():
        lm = predictor.lm or program.resources.lm(name.partition(".")[0])
        if known_traits(lm).embedded:
            return MODEL
    return None


def program_from(arguments: argparse.Namespace, settings: Settings) -> AgenticIQA:
    """Return the compiled program that a command's flags name, or the uncompiled one."""
    if arguments.program is None:
        return AgenticIQA(settings)
    return load(arguments.program, settings, force=arguments.force)


def schema_sha256(program: AgenticIQA) -> str:
    """Return the hash of predictors' names and fields, and of a fitted fusion's; of no instructions."""
    fields: dict[str, Any] = {}
    for name, predictor in program.named_parameters():
        own = predictor.signature.fields
        fields[name] = [(field, str(info.annotation)) for field, info in own.items()]
    if program.summarizer.fitted is not None:
        fields["fusion"] = list(FIELDS)
    return digest(fields)


def rest_sha256(state: Mapping[str, Any], learned: list[Any]) -> str:
    """Return the hash of what predictors hold but for instructions, and of what else was `learned`."""
    kept = {}
    for name, part in predictors_in(state).items():
        kept[name] = {**part, "signature": part["signature"]["fields"]}
    return digest([kept, *learned])


def program_sha256(program: AgenticIQA) -> str:
    """Return the hash of what a program has learned: instructions, demos, fusion and arrays."""
    return digest([_state(program), *_learned(program)])


def context_of(program: AgenticIQA) -> dict[str, Any]:
    """Return what an answer depends on besides the sample."""
    resources, settings = program.resources, program.resources.settings
    roles: tuple[Role, ...] = ("planner", "executor", "summarizer")
    elsewhere = dict.fromkeys((*PLACES, "compile", "optimizers", "serve", "seed", "wire"), True)
    values = settings.model_dump(mode="json", exclude={**elsewhere, "images": {"remote"}})
    influences = {"device", "threads", "reduce_above_px", "resize_reference"}
    values["tools"] = settings.tools.model_dump(include=influences)
    values["tools"]["calibration_sha256"] = file_sha256(_calibration_file(settings))
    return {
        "distortion_model": str(resources.distortion_model.model),
        "model_weight": program.summarizer.fusion.model_weight,
        "program_sha256": program_sha256(program),
        "settings_sha256": digest(values),
        "models": {role: resources.lm(role).model for role in roles},
        "scoring_mode": settings.assessment.scoring,
        "tools": tool_versions(program),
        "settings": values,
    }


def _calibration_file(settings: Settings) -> Path:
    chosen = settings.tools.calibration
    if not chosen:
        return CONFIGS / "calibration.json"
    if str(chosen) == PAPER:
        return CONFIGS / "paper_calibration.yaml"
    return Path(str(chosen))


def tool_versions(program: AgenticIQA) -> dict[str, Any]:
    """Return what each ready tool runs on: library, version and parameter file."""
    runner = program.resources.runner
    versions = {}
    for spec in (*runner.ready("FR"), *runner.ready("NR")):
        version = f"{spec.key}, {library_label(spec)}"
        if spec.needs != "none":
            parameters = parameter_path(spec, runner.settings.params_dir)
            if parameters:
                version += f", parameters {file_sha256(parameters)[:12]}"
        versions[spec.name] = version
    return versions


def _learned(program: AgenticIQA) -> list[Any]:
    return [_fusion(program), *(array.sha256 for array in _arrays(program).values())]


def _arrays(program: AgenticIQA) -> dict[str, Neighbours | Corrections]:
    """Return what a program keeps of labels, by name."""
    arrays = {name: getattr(program.summarizer, name) for name in _LEARNED}
    return {name: array for name, array in arrays.items() if array is not None}


def _fusion(program: AgenticIQA) -> dict[str, Any] | None:
    fitted: FittedFusion | None = program.summarizer.fitted
    return None if fitted is None else fitted.to_json()


def _state(program: AgenticIQA) -> dict[str, Any]:
    bare = program.deepcopy()
    for predictor in bare.parameters():
        predictor.lm = None
        predictor.traces, predictor.train = [], []
        predictor.demos = [with_references(demo) for demo in predictor.demos]
    state: dict[str, Any] = json.loads(json.dumps(bare.dump_state(), default=str))
    if "data:image/" in json.dumps(state):
        mend = "give images as references (see program.images.store)"
        raise InputError(f"program: a demo holds image bytes; {mend}")
    return state


def _add_images(path: Path, state: str, name: str) -> None:
    if state.count(CUSTOM_TYPE_START_IDENTIFIER) != len(_SHOWN.findall(state)):
        # A model's server would fetch it, wherever that is.
        raise ImageError(f"{name}: a demo shows an image that is not in the folder; compile again")
    for url in _references_in(state):
        file = path / _image_file(url)
        fault = ""
        if not file.is_file():
            fault = "is missing"
        elif hashlib.sha256(file.read_bytes()).hexdigest() != parse_url(url)[0]:
            fault = "was altered"
        if fault:
            mend = "copy the whole folder again"
            raise ImageError(f"{name}: demo image {file.name} {fault}; {mend}")
        IMAGES.add(file)


def _with_images(demo: dict[str, Any]) -> dict[str, Any]:
    """Return a demo whose images are references again, of which loading left a text."""
    images = {}
    for name in ("image", "reference"):
        value = demo.get(name)
        if isinstance(value, dict):
            value = value.get("url")
        if isinstance(value, str) and (match := _REFERENCE.search(value)):
            images[name] = dspy.Image(match[0])
    return {**demo, **images}
