"""What every section of the golden records works with: a folder, images, questions, and values made comparable."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.golden import ROOT

BOX = {"centre": (40, 40, 200, 180)}
QUESTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"query": "请给这张图片的质量打分。"},
    {"query": "What is the most severe distortion?", "options": {"A": "Blur", "B": "Noise", "C": "Blocking"}},
    {"query": "这张图片清晰吗？", "options": ["清晰", "一般", "模糊"]},
    {"query": "Is the image noisy?"},
    {"query": "这张图片有噪声吗？"},
    {"query": "Is the image blurry?", "options": ["Yes", "No"]},
    {"query": "光线充足吗？", "options": {"A": "是", "B": "否"}},
    {"query": "Describe the quality of this image and explain what is wrong with it."},
    {"query": "为什么这张图片的质量不好？"},
    {"query": "Is the centre sharp?", "regions": BOX},
    {"query": "请评价中心区域的质量。", "regions": {"中心区域": BOX["centre"]}},
    {"query": "How severe is the compression? A. None B. Slight C. Moderate D. Severe E. Extreme"},
    {"query": "Which part is the darkest?", "options": ["Upper left", "Upper right", "Lower left", "Lower right"]},
    {"query": "What is she holding?"},
    {"query": "Rate the quality of this image with PIQE and SSIM."},
    {"query": "How would you rate the sharpness of the centre?", "regions": BOX},
    {"query": "¿Es borrosa la imagen?"},
    {"query": "How is the contrast of this image?", "options": ["Good", "Average", "Poor"]},
    {"query": "颜色有什么问题？"},
)

_LEFT_OUT = re.compile(r"seconds.*|.*_seconds|mlflow_run|environment|size_mb|entries|request_id")
_FIGURE = {"value", "low", "high", "n"}


class Section:
    """Where a section works, on which images, and how its values become comparable."""

    def __init__(self, folder: Path, images: Path) -> None:
        self.folder, self.images = folder, images
        with_reference = (json.loads(line) for line in (images / "manifest-fr.jsonl").open(encoding="utf-8"))
        self.lines: dict[str, dict[str, str]] = {line["id"]: line for line in with_reference}

    @property
    def samples(self) -> list[str]:
        """Twenty samples, spread over photographs, distortions and levels."""
        return sorted(self.lines)[7::52]

    def image(self, sample: str) -> str:
        """Return the path of a sample's image."""
        return str(self.images / self.lines[sample]["image"])

    def reference(self, sample: str) -> str:
        """Return the path of a sample's undistorted photograph."""
        return str(self.images / self.lines[sample]["reference"])

    def manifest(self, name: str, counts: Mapping[tuple[str, str], int], source: str = "manifest.jsonl") -> str:
        """Write the first lines of each split and task to a manifest beside the section's files; returns its path."""
        left, lines = dict(counts), []
        for text in (self.images / source).read_text("utf-8").splitlines():
            line = json.loads(text)
            part = line["split"], "scoring" if "mos" in line else "mcq"
            if left.get(part, 0):
                left[part] -= 1
                paths = {key: str(self.images / line[key]) for key in ("image", "reference") if key in line}
                lines.append(json.dumps({**line, **paths}) + "\n")
        file = self.folder / f"{name}.jsonl"
        file.write_text("".join(lines), "utf-8")
        return str(file)

    def normal(self, value: Any) -> Any:
        """Return JSON values without times, run names, addresses and folders."""
        if isinstance(value, Mapping) and _FIGURE <= set(value):
            return [value["value"], value["low"], value["high"], value["n"], value.get("method")]
        if isinstance(value, Mapping):
            return {str(k): self.normal(v) for k, v in value.items() if not _LEFT_OUT.fullmatch(str(k))}
        if isinstance(value, list | tuple):
            return [self.normal(item) for item in value]
        if not isinstance(value, str):
            return value
        for path, name in ((self.folder, "FOLDER"), (self.images, "IMAGES"), (ROOT, "HOUSE")):
            value = value.replace(str(path), name)
        return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", value)

    def assessment(self, result: Any) -> Any:
        """Return an assessment's values; the state's copy of the answer goes where it is equal."""
        values = result if isinstance(result, dict) else json.loads(result.model_dump_json())
        inner = values["state"]["summarizer_result"]
        if inner is not None and all(values[name] == part for name, part in inner.items()):
            values["state"]["summarizer_result"] = "the answer above"
        return self.normal(values)

    def command(self, module: str, *arguments: str, **variables: str) -> dict[str, Any]:
        """Run a command; returns its exit code and what it printed, read where that is JSON."""
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments], cwd=ROOT, env={**os.environ, **variables},
            capture_output=True, text=True, encoding="utf-8", check=False,
        )  # fmt: skip
        if "Traceback" in done.stderr:
            sys.stderr.write(done.stderr)
        try:
            printed = json.loads(done.stdout)
        except ValueError:
            printed = done.stdout
        return {"code": done.returncode, "printed": printed}
