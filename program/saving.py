"""A compiled program's folder: `program.json`, and the original bytes of the images its demos show."""

import hashlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dspy

from program.agent import AgenticIQA
from program.errors import ImageError, InputError
from program.fitted_fusion import FIELDS, FittedFusion
from program.images import HOST, IMAGES, parse_url
from program.settings import Settings, load_settings
from program.tracking.models import SCHEME, fetch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ("FORMAT", "check_folder", "load", "program_sha256", "save", "schema_sha256")

FORMAT = 1
_REFERENCE = re.compile(re.escape(HOST) + r"[0-9a-f]{64}\.[a-z]+")


def save(
    program: AgenticIQA,
    folder: Path,
    record: "Mapping[str, Any] | None" = None,
    *,
    files: "Mapping[str, str] | None" = None,
    keep: "Iterable[str]" = (),
) -> Path:
    """Write a program to `folder`, whole or not at all: state without LMs, demo images, and a record of its making.

    Replaces an earlier program of the same folder; refuses a folder that holds anything else. `files` are further
    texts to write there by name, `keep` names files of the earlier one that stay.
    """
    check_folder(folder)
    state = _state(program)
    document = {
        "format": FORMAT,
        "schema_sha256": schema_sha256(program),
        "program_sha256": program_sha256(program),
        "record": dict(record or {}),
        "fusion": _fusion(program),
        "state": state,
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        (partial / "images").mkdir()
        for url in sorted(set(_REFERENCE.findall(json.dumps(state)))):
            digest, suffix = parse_url(url)
            (partial / "images" / f"{digest}{suffix}").write_bytes(IMAGES.read(url))
        (partial / "program.json").write_text(json.dumps(document, ensure_ascii=False, indent=1), "utf-8")
        for name in keep:
            if (folder / name).is_file():
                shutil.copy2(folder / name, partial / name)
        for name, text in (files or {}).items():
            (partial / name).write_text(text, "utf-8")
        partial.chmod(0o755)
        _replace(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return folder


def check_folder(folder: Path) -> None:
    """Raise InputError for a folder that holds something other than a program."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"folder {str(folder)!r}: is a file; give a new or empty folder")
    if folder.exists() and any(folder.iterdir()) and not (folder / "program.json").is_file():
        raise InputError(f"folder {str(folder)!r}: holds other files; give a new or empty folder")


def load(
    folder: "str | os.PathLike[str]", settings: Settings | None = None, lm: dspy.BaseLM | None = None
) -> AgenticIQA:
    """Return the compiled program of a folder, with the LMs of `settings` (or `lm`); none is stored inside.

    A registered program is named as models:/NAME@champion or models:/NAME/VERSION. Raises InputError when the folder is
    no compiled program or was made for other signatures, and ImageError when a demo's image is missing or altered.
    """
    path = _local(folder, settings)
    try:
        document = json.loads((path / "program.json").read_text("utf-8"))
        state, schema = document["state"], document["schema_sha256"]
    except FileNotFoundError as error:
        raise InputError(f"program {str(path)!r}: no program.json in it; give a folder that compile wrote") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"program {str(path)!r}: program.json cannot be read ({error}); compile again") from error
    program = AgenticIQA(settings=settings, lm=lm)
    if document.get("fusion") is not None:
        try:
            program.summarizer.fitted = FittedFusion.from_json(program.resources.fusion, document["fusion"])
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(f"program {str(path)!r}: its fusion does not fit ({error}); compile again") from error
    if schema != schema_sha256(program):
        raise InputError(f"program {str(path)!r}: was compiled for other signatures than this version's; compile again")
    _add_images(path, json.dumps(state))
    try:
        program.load_state(state)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"program {str(path)!r}: its state does not fit ({error}); compile again") from error
    for predictor in program.predictors():
        predictor.demos = [_with_images(demo) for demo in predictor.demos]
    return program


def _local(folder: "str | os.PathLike[str]", settings: Settings | None) -> Path:
    if not str(folder).startswith(SCHEME):
        return Path(folder)
    return fetch(str(folder), settings or load_settings())


def schema_sha256(program: AgenticIQA) -> str:
    """Return the hash of every predictor's name and fields (not of instructions, which optimizers rewrite).

    A fitted fusion adds its own fields.
    """
    fields: dict[str, Any] = {
        name: [(f, str(info.annotation)) for f, info in predictor.signature.fields.items()]
        for name, predictor in program.named_predictors()
    }
    if program.summarizer.fitted is not None:
        fields["fusion"] = list(FIELDS)
    return _digest(fields)


def program_sha256(program: AgenticIQA) -> str:
    """Return the hash of what a program has learned: instructions, demos and fusion."""
    return _digest([_state(program), _fusion(program)])


def _fusion(program: AgenticIQA) -> dict[str, Any] | None:
    fitted: FittedFusion | None = program.summarizer.fitted
    return fitted.to_json() if fitted is not None else None


def _state(program: AgenticIQA) -> dict[str, Any]:
    bare = program.deepcopy()
    for predictor in bare.predictors():
        predictor.lm = None
        predictor.traces, predictor.train = [], []
    state: dict[str, Any] = json.loads(json.dumps(bare.dump_state(), default=str))
    if "data:image/" in json.dumps(state):
        raise InputError("program: a demo holds image bytes; give images as references (see program.images)")
    return state


def _add_images(path: Path, state: str) -> None:
    for url in sorted(set(_REFERENCE.findall(state))):
        digest, suffix = parse_url(url)
        file = path / "images" / f"{digest}{suffix}"
        if not file.is_file():
            raise ImageError(f"program {str(path)!r}: demo image {file.name} is missing; copy the whole folder again")
        if hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            raise ImageError(f"program {str(path)!r}: demo image {file.name} was altered; copy the whole folder again")
        IMAGES.add(file)


def _with_images(demo: Any) -> Any:
    """Turn the text that stands for a demo's image after loading back into a reference."""
    for name in ("image", "reference"):
        value = demo.get(name)
        url = value.get("url") if isinstance(value, dict) else value
        match = _REFERENCE.search(url) if isinstance(url, str) else None
        if match:
            demo[name] = dspy.Image(match[0])
    return demo


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _replace(partial: Path, folder: Path) -> None:
    if not folder.exists():
        partial.rename(folder)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
    old.rmdir()
    folder.rename(old)
    partial.rename(folder)
    shutil.rmtree(old)
