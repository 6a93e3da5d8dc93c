"""GET /v1/steps: what each step of the engine was, as it happens. The worker records steps only while one is open."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Literal

import msgspec
from fastapi import APIRouter, Request, Response

from engine.client.engine import Engine
from engine.client.step_feed import StepWatch
from engine.messages import Stats, StepRecord
from server.api.openapi import answers
from server.generation.framing import DONE, HEADERS, EventStream, frame
from server.generation.launch import server_of
from server.http.fields import Answer
from server.models.models import find


class WatchedSegment(Answer):
    """Consecutive rows of one sequence in a step.

    `sequence` is the number of its arrival, `guesses` how many of the rows are guessed tokens, `accepted` how many of
    these were right, `tokens` how many new ones came of it.
    """

    sequence: int
    kind: Literal["prefill", "decode", "denoise"]
    rows: int
    guesses: int
    accepted: int
    tokens: int


class WatchedStep(Answer):
    """One step. Its segments stand in the order of their rows, behind `rows` minus theirs rows of padding.

    `began_ms` counts from when somebody began to watch; `run_ms` is inside the graphs, `step_ms` the whole step.
    `context` is the width of its key axis. The gauges are those of its device after it.
    """

    number: int
    began_ms: float
    run_ms: float
    step_ms: float
    rows: int
    context: int
    running: int
    waiting: int
    kv_slots_used: int
    segments: list[WatchedSegment]


class StepsEvent(Answer, kw_only=True):
    """The steps since the last event, oldest first, and gauges of now; `dropped` steps before them are not told."""

    type: Literal["steps"] = "steps"
    dropped: int = 0
    steps: list[WatchedStep]
    running: int
    waiting: int
    kv_slots_used: int
    kv_slots_total: int


def steps_event(gauges: Stats, records: Sequence[StepRecord] = (), dropped: int = 0) -> StepsEvent:
    """The steps since the last event, of which `dropped` before these were not kept, and the engine's gauges."""
    steps = [msgspec.convert(record, WatchedStep, from_attributes=True) for record in records]
    now = {name: getattr(gauges, name) for name in ("running", "waiting", "kv_slots_used", "kv_slots_total")}
    return StepsEvent(dropped=dropped, steps=steps, **now)


router = APIRouter()
INTERVAL_S = 0.05  # between two events: twenty a second look alive, and one for each step of a small model is many


@router.get("/v1/steps", response_class=Response, responses=answers(None, StepsEvent, statuses=(404, 503)))
async def watch_steps(request: Request, model: str | None = None) -> Response:
    """Stream what each step was: its rows by sequence and kind, its time, the queue and the KV slots in use.

    Watching neither loads a model nor keeps one loaded: the stream ends when the model is not there, or goes.
    """
    server = server_of(request)
    known = server.models.models
    engine = (known[0] if model is None else find(known, model)).engine
    if engine is None:
        return Response(frame(steps_event(Stats())) + DONE, headers=HEADERS, media_type="text/event-stream")
    watch = engine.watch_steps()
    return EventStream(_frames(watch, engine), server.settings.keep_alive_s, watch.end)


async def _frames(watch: StepWatch, engine: Engine) -> AsyncIterator[bytes]:
    yield frame(steps_event(engine.stats))
    while True:
        records, dropped = await watch.read()
        if not records:
            break
        yield frame(steps_event(engine.stats, records, dropped))
        await asyncio.sleep(INTERVAL_S)
    yield DONE
