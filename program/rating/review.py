"""The page of disagreements: the worst misses of an evaluation, and who is right about each."""

import os
import threading
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from data.manifest import fault_of
from data.reviews import MISSES, SECOND_OPINION, Miss, Opinion, Who, read_lines
from program.common.errors import ImageError, InputError
from program.common.settings import Settings
from program.rating.pictures import Picture, Screen
from program.rating.server import body_of, page_app
from program.rating.store import OPINIONS, OpinionFile
from program.tracking.store import open_client, reason
from program.tracking.traces import log_opinion, traces_of

if TYPE_CHECKING:
    from mlflow import MlflowClient


class Reviewing:
    """The misses in a report's folder, and one rater's opinions on them; each is on disk before it is confirmed.

    Raises InputError where there are no misses, or another process writes the opinions.
    """

    def __init__(self, folder: Path, settings: Settings, rater: str) -> None:
        if not (folder / MISSES).exists():
            mend = "give the folder of agentic-iqa evaluate --report"
            raise InputError(f"--review {str(folder)!r}: holds no {MISSES}; {mend}")
        self.misses = read_lines(folder / MISSES, Miss)
        if not self.misses:
            raise InputError(f"folder {str(folder)!r}: its evaluation missed nothing; give the report of another one")
        self.rater, self._lock, self._file = rater, threading.Lock(), OpinionFile(folder)
        mine = [each for each in self._file.lines_before if each.rater == rater]
        self._opinions = {(each.id, each.sha256): each for each in mine}
        pictures = [Picture(miss.id, Path(miss.image), miss.id) for miss in self.misses]
        self._screen = Screen(pictures, settings.images.max_pixels)
        self._no_traces, self._client, self._traces = _open_traces(settings.mlruns_dir, self.misses[0].run_id)

    def rows(self) -> list[dict[str, Any]]:
        """Return the misses as the page shows them, each with this rater's opinion."""
        rows = []
        for miss in self.misses:
            opinion = self._opinions.get((miss.id, miss.sha256))
            given = opinion.model_dump(include={"who", "mos"}) if opinion else None
            rows.append({**miss.model_dump(exclude={"image", "sha256", "run_id"}), "opinion": given})
        return rows

    def png(self, number: int) -> bytes:
        """Return an image as it was judged. Raises InputError, and ImageError where it cannot be shown."""
        miss, shown = self._miss(number), self._screen.show(number)
        if shown.sha256 != miss.sha256:
            raise ImageError(f"image {miss.id!r}: has changed since it was judged; evaluate it again")
        return shown.png

    def answer(self, number: object, who: object, mos: object) -> str:
        """Keep an opinion, and return where it is kept. Raises InputError for none, or where it cannot be written."""
        miss, now = self._miss(number), datetime.now(UTC).isoformat(timespec="seconds")
        own = {"id": miss.id, "sha256": miss.sha256, "run_id": miss.run_id, "rater": self.rater, "at": now}
        try:
            opinion = Opinion.model_validate({**own, "who": who, "mos": mos})
        except ValidationError as error:
            raise InputError(f"answer: {fault_of(error)}; load the page again") from error
        with self._lock:
            self._file.add(opinion)
            self._opinions[miss.id, miss.sha256] = opinion
            return f"kept in {OPINIONS}{self._tracked(opinion)}"

    def close(self) -> None:
        """Let another process write the opinions."""
        self._file.close()

    def summary(self) -> str:
        """Return what a terminal says in the end."""
        opinions = self._opinions.values()
        counts = Counter(opinion.who for opinion in opinions)
        said = ", ".join(f"{who} {counts[who]}" for who in get_args(Who))
        own = sum(opinion.mos is not None and opinion.who != "people" for opinion in opinions)
        return (
            f"{len(opinions)} of {len(self.misses)} answered ({said}; {own} with an own score)\n"
            f"to learn from them: agentic-iqa compile --data MANIFEST --review {os.path.relpath(self._file.path)}\n"
        )

    def _miss(self, number: object) -> Miss:
        if not isinstance(number, int) or not 0 <= number < len(self.misses):
            raise InputError(f"miss {str(number)[:40]!r}: there are {len(self.misses)}; load the page again")
        return self.misses[number]

    def _tracked(self, opinion: Opinion) -> str:
        """Send an opinion to MLflow, and say whether that has it."""
        trace = self._traces.get(opinion.id)
        if self._client is None:
            return f"; {self._no_traces}"
        if trace is None:
            return "; MLflow has no trace of it"
        facts = {"at": opinion.at, "sha256": opinion.sha256}
        if opinion.mos is not None:
            facts |= {"mos": f"{opinion.mos:g}", "labels": SECOND_OPINION}
        try:
            log_opinion(self._client, trace, opinion.who, opinion.rater, facts)
        except Exception as error:  # border: MLflow, SQLAlchemy, the network and the disk each raise their own kinds
            return f"; not in MLflow ({reason(error)})"
        return " and in MLflow"


def _open_traces(mlruns_dir: Path, run_id: str | None) -> "tuple[str, MlflowClient | None, dict[str, str]]":
    """Return why MLflow has no traces, or its client and those of a run by their samples' ids."""
    if run_id is None:
        return "not in MLflow, where the evaluation has no run", None, {}
    try:
        client, uri = open_client(mlruns_dir)
        traces = traces_of(client, run_id)
        import mlflow

        mlflow.set_tracking_uri(uri)
    except Exception as error:  # border: as above
        return f"not in MLflow ({reason(error)})", None, {}
    return "", client, traces


def review_app(reviewing: Reviewing) -> ASGIApp:
    """Return the page of disagreements."""

    async def misses(_: Request) -> Response:
        return JSONResponse({"rater": reviewing.rater, "misses": reviewing.rows()})

    async def answer(request: Request) -> Response:
        asked = await body_of(request)
        given = asked.get("number"), asked.get("who"), asked.get("mos")
        return JSONResponse({"kept": await run_in_threadpool(reviewing.answer, *given)})

    async def picture(request: Request) -> Response:
        png = await run_in_threadpool(reviewing.png, request.path_params["number"])
        return Response(png, media_type="image/png")

    routes = [Route("/misses", misses), Route("/answer", answer, methods=["POST"])]
    return page_app("review.html", [*routes, Route("/picture/{number:int}", picture)])
