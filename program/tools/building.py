"""How a library builds a metric: from files that are here, running no code that hides in them, or with a download."""

import io
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from program.common.errors import ToolError
from program.common.settings import variable
from program.tools.registry import ToolSpec
from program.tools.weights import HUGGING_FACE, needed_files

__all__ = ("building",)

_SAFE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""torch's own switch. pyiqa 0.1.16 opens its weights with weights_only=False, which runs whatever a pickle holds; under
this switch `torch.load` refuses anything but plain tensors, whoever calls it and however."""


@contextmanager
def building(spec: ToolSpec, parameters: Path | None, *, fetch: bool) -> Iterator[None]:
    """Hold the conditions under which a tool may be built, in its turn.

    `torch.load` reads plain tensors only. Files beside `parameters` are shown to pyiqa as if it had downloaded them.
    Unless `fetch`, a download is a ToolError that names the file.
    """
    with ExitStack() as stack:
        # pyiqa prints what it loads; standard output belongs to the commands.
        stack.enter_context(redirect_stdout(sys.stderr if fetch else io.StringIO()))
        stack.enter_context(variable(_SAFE, "1"))
        if not fetch:
            stack.enter_context(_refused_downloads(spec.name))
            found = needed_files(spec, [parameters.parent] if parameters is not None else [])
            files = {place: path for place, path in found.items() if path and not place.startswith(HUGGING_FACE)}
            if spec.needs == "weights" and files:
                stack.enter_context(_hub_of(files))
        yield


@contextmanager
def _refused_downloads(name: str) -> Iterator[None]:
    """Turn a download by torch, pyiqa or Hugging Face into a ToolError that names the file."""
    import huggingface_hub.constants
    import torch.hub
    from pyiqa.utils import download_util

    def refuse(url: str, *_: Any, **__: Any) -> None:
        file = url.split("?")[0].rsplit("/", 1)[-1]
        raise ToolError(
            f"weights {file!r} are not here; with a network `python -m program.tools --fetch {name}`, without put the "
            "file into tools.params_dir (AGENTICIQA_PARAMS_DIR)"
        )

    with ExitStack() as stack:
        for module, attribute, value in (
            (torch.hub, "download_url_to_file", refuse),
            (download_util, "download_url_to_file", refuse),
            (huggingface_hub.constants, "HF_HUB_OFFLINE", True),
        ):
            stack.callback(setattr, module, attribute, getattr(module, attribute))
            setattr(module, attribute, value)
        yield


@contextmanager
def _hub_of(files: Mapping[str, Path]) -> Iterator[None]:
    """Stand a folder of links to these files in for torch's hub folder, by their places below it."""
    import torch.hub
    from pyiqa.utils import download_util

    with tempfile.TemporaryDirectory(prefix="agentic-iqa-hub-") as folder, ExitStack() as stack:
        for place, path in files.items():
            target = Path(folder, place)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                target.symlink_to(path.resolve())
            except OSError:  # Windows without the privilege.
                shutil.copyfile(path, target)
        stack.callback(torch.hub.set_dir, torch.hub.get_dir())
        torch.hub.set_dir(folder)
        # pyiqa reads torch's hub folder once, when it is imported.
        stack.callback(setattr, download_util, "DEFAULT_CACHE_DIR", download_util.DEFAULT_CACHE_DIR)
        download_util.DEFAULT_CACHE_DIR = str(Path(folder, "pyiqa"))
        yield
