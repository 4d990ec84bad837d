"""Compiled programs in MLflow's model registry: logged from code, with their columns, without pickles or keys."""

import importlib.metadata
import logging
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

from program.common.errors import InputError
from program.common.keys import redact
from program.common.outputs import RECORD
from program.common.request import DEFAULT_QUERY
from program.tracking.store import open_client, reason, short_hash

if TYPE_CHECKING:
    from mlflow.models import ModelSignature

    from program.common.settings import Settings
    from program.tracking.runs import RunHandle, Tracker

SCHEME = "models:/"
CHAMPION = "champion"
_OF_THE_COMPILE = shutil.ignore_patterns("report.html", "candidates.jsonl", RECORD)
_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("program", "signatures", "optimizers", "data", "configs")
_URI = re.compile(r"models:/+(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>\d+))")


@dataclass(frozen=True)
class Version:
    """One version of a registered program."""

    name: str
    version: int

    @property
    def uri(self) -> str:
        """What `load` takes."""
        return f"{SCHEME}{self.name}/{self.version}"


def check_name(name: str) -> None:
    """Raise InputError for a name that a registered program could not be asked for by."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,99}", name):
        raise InputError(f"name {name!r}: cannot be registered; use letters, digits, spaces, '.', '-' and '_'")


def log_program(
    run: "RunHandle", folder: Path, sha256: str, columns: Mapping[str, type], name: str, learned: Mapping[str, Any]
) -> None:
    """Log a compiled program's folder as the served model of the run that made it; it answers in these `columns`.

    The model is this project's code with the folder as artifact: MLflow pickles nothing, and language models are
    attached where it is loaded, from the settings and the environment there.
    """
    import mlflow
    import pandas as pd

    def log(model_id: str) -> None:
        run.enter_experiment()
        # It tells every step of checking the example.
        logging.getLogger("mlflow.pyfunc").setLevel(logging.WARNING)
        # A model that is served needs the extra [serve]; without it, this one is logged all the same.
        logging.getLogger("mlflow.utils.requirements_utils").setLevel(logging.ERROR)
        with (
            tempfile.TemporaryDirectory() as copy,
            warnings.catch_warnings(action="ignore"),  # of its own types
            _no_bytecode(),
        ):
            # One name, whatever the folder's: the same program from another folder goes into the same model.
            program = shutil.copytree(folder, Path(copy) / "program", ignore=_OF_THE_COMPILE)
            mlflow.pyfunc.log_model(
                model_id=model_id,
                python_model=str(_ROOT / "program" / "service" / "model.py"),
                artifacts={"program": str(program)},
                code_paths=[str(_ROOT / package) for package in _PACKAGES],
                signature=interface(columns),
                # A path, as no artifact is to hold an image's bytes in text.
                input_example=pd.DataFrame([{"image_path": "photo.jpg", "query": DEFAULT_QUERY}]),
                pip_requirements=_requirements(),
            )

    run.link_model(sha256, name, learned, log)


@contextmanager
def _no_bytecode() -> Iterator[None]:
    """Keep compiled code out of a model's folder: MLflow runs the model's code there before it copies the folder."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def register(tracker: "Tracker", run: "RunHandle", name: str, tags: Mapping[str, str]) -> Version:
    """Return a new version, under a name, of the model that a run made.

    Raises InputError for a name that cannot be registered, and for a run that is not whole.
    """
    from mlflow.exceptions import MlflowException

    check_name(name)
    if run.run_id is None or run.model_id is None:
        raise InputError(f"model {name!r}: the run it comes from is not whole")
    with suppress(MlflowException):  # it is there
        tracker.client.create_registered_model(name, description="AgenticIQA: judges the quality of an image.")
    source = f"{SCHEME}{run.model_id}"
    version = tracker.client.create_model_version(
        name, source, run_id=run.run_id, tags=dict(tags), model_id=run.model_id
    )
    return Version(name, int(version.version))


def find_champion(tracker: "Tracker", name: str) -> Version | None:
    """Return the version with the alias `champion`; None where there is none yet.

    Raises InputError where the store does not say: a version must not lead because the champion could not be found.
    """
    from mlflow.exceptions import MlflowException

    try:
        return Version(name, int(tracker.client.get_model_version_by_alias(name, CHAMPION).version))
    except MlflowException as error:
        if error.error_code in {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"}:  # no such name, no such alias
            return None
        raise InputError(
            f"model {name!r}: the MLflow store does not say whether it is there ({reason(error)}); "
            "once it does, run the same command with --resume"
        ) from error


def promote(tracker: "Tracker", version: Version, run: "RunHandle | None" = None) -> None:
    """Give a version the alias `champion`, taking it from any other; and the prompts of the run it comes from."""
    tracker.client.set_registered_model_alias(version.name, CHAMPION, str(version.version))
    for prompt in run.prompts if run is not None else ():
        tracker.client.set_prompt_alias(prompt.name, CHAMPION, prompt.version)


def fetch(uri: str, settings: "Settings") -> Path:
    """Return the folder of a registered program, as models:/NAME@champion or models:/NAME/3.

    A version is copied once into the cache folder. Raises InputError where there is no such model or store.
    """
    from mlflow.exceptions import MlflowException

    # A command line's Path has lost what it took for a doubled slash.
    match = _URI.fullmatch(uri)
    if match is None:
        raise InputError(f"program {uri!r}: not a registered model; give models:/NAME@champion or models:/NAME/VERSION")
    name, alias, number = match["name"], match["alias"], match["version"]
    client, store = open_client(settings.mlruns_dir)
    try:
        version = client.get_model_version_by_alias(name, alias) if alias else client.get_model_version(name, number)
    except MlflowException as error:
        raise InputError(
            f"program {uri!r}: not in the MLflow store {redact(store)!r} ({reason(error)}); "
            "register one with `python -m program.compile --register NAME`"
        ) from error
    return _copy(version, store, settings.cache_dir / "models")


def _copy(version: Any, store: str, cache: Path) -> Path:
    import mlflow

    # A name and number mean something else in another store: the creation time tells them apart.
    copy = cache / f"{version.name}-{version.version}-{short_hash(f'{store} {version.creation_timestamp}')}"
    if not (copy / "program.json").is_file():
        cache.mkdir(parents=True, exist_ok=True)
        mlflow.set_tracking_uri(store)
        with tempfile.TemporaryDirectory(dir=cache) as partial:
            source = f"{SCHEME}{version.name}/{version.version}"
            try:
                model = Path(mlflow.artifacts.download_artifacts(artifact_uri=source, dst_path=partial))
                folder = min(path.parent for path in model.glob("artifacts/*/program.json"))
            except (OSError, ValueError, mlflow.exceptions.MlflowException) as error:
                raise InputError(
                    f"program {source!r}: its files cannot be read ({reason(error)}); register it again"
                ) from error
            shutil.rmtree(copy, ignore_errors=True)
            folder.rename(copy)
    return copy


def _requirements() -> list[str]:
    """Return what this project needs, at the versions installed here."""
    needs = [Requirement(line) for line in importlib.metadata.requires("agentic-iqa") or []]
    return [_pin(need.name) for need in needs if need.marker is None or need.marker.evaluate({"extra": "serve"})]


def _pin(name: str) -> str:
    try:
        return f"{name}=={importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return name


_TEXTS = (
    "image", "image_path", "image_url", "reference", "reference_path", "reference_url", "query", "options", "regions",
    "name",
)  # fmt: skip
BYTES = ("image_bytes", "reference_bytes")

WHOLE = "assessment"
"""A column of an answer beside those of a table: the whole of it as JSON, null for a row that got none."""
_KINDS = {str: "string", float: "double", int: "long"}


def interface(columns: Mapping[str, type]) -> "ModelSignature":
    """Return the typed columns of a request and of an answer, all of which may be left out or empty."""
    from mlflow.models import ModelSignature
    from mlflow.types.schema import ColSpec, Schema

    inputs = [ColSpec("string", name, required=False) for name in _TEXTS]
    inputs += [ColSpec("binary", name, required=False) for name in BYTES]
    outputs = [ColSpec(_KINDS[kind], name, required=False) for name, kind in {**columns, WHOLE: str}.items()]
    return ModelSignature(inputs=Schema(inputs), outputs=Schema(outputs))
