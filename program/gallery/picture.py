"""One picture of a gallery: its row, what tells it from others, and its copies."""

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import imagehash
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field

from data.decisions import Suggested
from program.agent.loop import AgenticIQA
from program.common.errors import ImageError
from program.common.files import write_whole
from program.common.request import Request
from program.expert import View, appearance, fault_map
from program.images.decode_worker import tags_bounded
from program.images.packets import Stated
from program.images.stated import stated_by, taken_at
from program.images.store import IMAGES, LARGEST, ImageRef, jpeg_of
from program.running.row import Row
from program.running.runner import Asking

Verdict = Literal["keep", "alternate", "reject", "look"]
_HASH_SIDE = 16
"""A hash of 256 bits."""
_HASHED_PX = 320
_FRAME = (24, 24)
_APERTURE, _SHUTTER, _ISO, _FOCAL = 33437, 33434, 34855, 37386
"""EXIF's tags of how a picture was taken."""


class Entry(Row):
    """A line of the gallery's table: an assessment's row, and what culling adds."""

    file: str | None = None
    """Name below the folder."""
    sha256: str | None = None
    taken_at: str | None = None
    """Camera's local time, as its EXIF says."""
    rank: int | None = None
    """Place in its group, 1 the best."""
    best_of_group: bool | None = None
    verdict: Verdict | None = None
    reason: str | None = None
    clipped_high: float | None = None
    clipped_low: float | None = None
    """Share of pixels that are clipped, 0..1."""
    user_rating: int | None = None
    """A person's stars, or -1 for a rejected picture: from the page, the file or a sidecar."""
    user_rating_confirms: bool | None = None
    """Whether the rating in the file or a sidecar only confirms what an earlier gallery suggested."""
    suggested_rating: int | None = None
    xmp_state: str | None = None


class Picture(Entry):
    """An entry with what it is compared by; what the journal keeps."""

    width: int = 0
    height: int = 0
    hash: str | None = None
    """Of how it looks, in hex."""
    look: str | None = None
    """`appearance` in base64, half precision."""
    grey: str | None = None
    """The picture in 24 x 24 grey pixels, in base64."""
    sharp: tuple[float, ...] = ()
    noise: float = 0.0
    light: float = 0.0
    focus: tuple[float, float] = (0.5, 0.5)
    """Where to look first, as shares of width and height."""
    subject: float | None = None
    """How probably people call its subject sharp."""
    suggested: Suggested | None = None
    """What the program says of it, whatever a person decided of its group."""
    program_said: tuple[Verdict | None, str | None] | None = None
    """The program's verdict and reason, where a person decided otherwise."""
    stored_rating: int | None = None
    """The rating in the file or a sidecar, whatever was decided on the page."""
    severities: dict[str, float] = Field(default_factory=dict)
    """The expert's, by category: 0 .. 4."""
    camera: str | None = None
    """Aperture, shutter, ISO and focal length, as `shot_with` says them."""
    where: tuple[tuple[int, ...], ...] = ()
    """How much of each of `faults` is in each of 3 x 3 cells, row by row: percent of the most."""

    @property
    def bits(self) -> NDArray[np.uint64]:
        """The hash as four words."""
        return np.frombuffer(bytes.fromhex(self.hash or ""), ">u8").astype(np.uint64)

    @property
    def vector(self) -> NDArray[np.float32]:
        """How it looks to the network."""
        return np.frombuffer(base64.b64decode(self.look or ""), "<f2").astype(np.float32)

    @property
    def frame(self) -> NDArray[np.uint8]:
        """The picture in 24 x 24 grey pixels, all 0 where they are not known."""
        grey = base64.b64decode(self.grey) if self.grey else bytes(_FRAME[0] * _FRAME[1])
        return np.frombuffer(grey, np.uint8).reshape(_FRAME)

    @property
    def time(self) -> datetime | None:
        """When it was taken."""
        if self.taken_at is None:
            return None
        return datetime.fromisoformat(self.taken_at)

    @property
    def moment(self) -> tuple[bool, str, str]:
        """What pictures are put in order of time by, those without one last."""
        return self.taken_at is None, self.taken_at or "", self.id


class Taking(Asking[Picture]):
    """From a request to its picture, with small copies named by the file's hash."""

    def __init__(self, program: AgenticIQA, copies: Path, sizes: Mapping[str, int]) -> None:
        """Take the folder of the copies, and each kind's longer side in pixels."""
        super().__init__(program)
        self._copies, self._sizes = copies, {kind: px for kind, px in sizes.items() if px}

    def row(self, request: Request) -> Picture:
        """Judge, measure and copy."""
        before = request.stamp()
        most = self.program.resources.settings.images.max_pixels
        image = IMAGES.add(request.image, max_pixels=most, detailed=True)  # decoded once for all that follows
        result = self.program(**{**request.arguments(), "image": image})
        from_file = _facts_of_file(IMAGES.read(image), image)
        row = Row.of(request, result)
        facts = self._facts(image, [fault for fault, _ in row.faults])
        if request.stamp() != before:
            raise ImageError(f"image {request.id!r}: changed while it was judged; run the command again")
        return Picture(
            **{**row.model_dump(), "group": None}, **facts, **from_file, file=request.id, sha256=image.sha256,
            subject=result.state.subject_sharp,
        )  # fmt: skip

    def failed_row(self, request: Request, error: str) -> Picture:
        """Return the entry of a picture that could not be judged."""
        return Picture(**{**Row.failed_row(request, error).model_dump(), "group": None}, file=request.id)

    def _facts(self, image: ImageRef, faults: Sequence[str]) -> dict[str, Any]:
        shown = Image.fromarray(IMAGES.pixels(image, at_most=LARGEST))
        for kind, side in sorted(self._sizes.items(), key=lambda each: -each[1]):
            shown.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
            path = self._copies / copy_name(kind, image.sha256)
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, jpeg_of(shown))
        shown.thumbnail((_HASHED_PX, _HASHED_PX), Image.Resampling.LANCZOS)
        view = self.program.resources.viewer.view(image)
        return {
            "width": image.width, "height": image.height, **IMAGES.detail(image)._asdict(),
            "hash": str(imagehash.phash(shown, hash_size=_HASH_SIDE)),
            "grey": base64.b64encode(shown.convert("L").resize(_FRAME, Image.Resampling.BOX).tobytes()).decode("ascii"),
            "look": base64.b64encode(appearance(view).astype("<f2").tobytes()).decode("ascii"),
            "severities": {str(name): round(value, 3) for name, value in view.severities.items()},
            "where": [_cells_of(view, fault) for fault in faults],
        }  # fmt: skip


def copy_name(kind: str, sha256: str) -> str:
    """Return where a picture's small copy lies below the gallery's folder."""
    return f"{kind}/{sha256[:24]}.jpg"


def shot_with(tags: Mapping[int, object]) -> str | None:
    """Return aperture, shutter, ISO and focal length, as EXIF's tags say.

    What no camera has is left out.

    >>> shot_with({33437: 2.8, 33434: 0.004, 34855: 400, 37386: 50.0})
    'f/2.8, 1/250 s, ISO 400, 50 mm'
    >>> shot_with({33437: float("nan"), 33434: "<b>", 34855: -1, 37386: 1e300})
    """
    parts = []
    if aperture := _number_in(tags, _APERTURE, 0.5, 100):
        parts.append(f"f/{round(aperture, 1):g}")
    if seconds := _number_in(tags, _SHUTTER, 1e-5, 1e5):
        shutter = f"{round(seconds, 1):g}"
        if seconds < 0.3:
            shutter = f"1/{1 / seconds:.0f}"
        parts.append(f"{shutter} s")
    if iso := _number_in(tags, _ISO, 1, 1e7):
        parts.append(f"ISO {iso:.0f}")
    if focal := _number_in(tags, _FOCAL, 1, 1e4):
        parts.append(f"{round(focal, 1):g} mm")
    return ", ".join(parts) or None


def _number_in(tags: Mapping[int, object], tag: int, least: float, most: float) -> float | None:
    value = tags.get(tag)
    if isinstance(value, int | float) and least <= value <= most:
        return value
    return None


def _cells_of(view: View, fault: str) -> tuple[int, ...]:
    lost = 4 - fault_map(view, fault)
    return tuple(np.rint(100 * lost / max(lost.max(), 1e-9)).astype(int).ravel().tolist())


def _facts_of_file(data: bytes, image: ImageRef) -> dict[str, Any]:
    """Return when and how a file's picture was taken, and the rating that the file holds."""
    tags, packet = tags_bounded(data, image.width * image.height)
    return {"taken_at": taken_at(tags), "camera": shot_with(tags), **rating_fields(stated_by(tags, packet))}


def rating_fields(stated: Stated) -> dict[str, Any]:
    """Return the fields of a person's rating in a file or a sidecar."""
    rating = stated.rating or None  # 0 is none
    return {"user_rating": rating, "user_rating_confirms": stated.is_suggested if rating else None}
