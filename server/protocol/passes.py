"""The events of GET /v1/passes."""

from typing import Literal

from server.protocol.fields import Answer


class WatchedSegment(Answer):
    """Consecutive rows of one sequence in a pass.

    `sequence` is the number of its arrival, `guesses` how many of the rows are guessed tokens, `accepted` how many of
    these were right, `tokens` how many new ones came of it.
    """

    sequence: int
    kind: Literal["prefill", "decode", "denoise"]
    rows: int
    guesses: int
    accepted: int
    tokens: int


class WatchedPass(Answer):
    """One pass. Its segments stand in the order of their rows, behind `rows` minus theirs rows of padding.

    `began_ms` counts from when somebody began to watch; `run_ms` is inside the graphs, `step_ms` the whole step.
    `columns` is the width of its key axis. The gauges are those after it.
    """

    number: int
    began_ms: float
    run_ms: float
    step_ms: float
    pool: int
    rows: int
    columns: int
    running: int
    waiting: int
    columns_used: int
    segments: list[WatchedSegment]


class PassesEvent(Answer):
    """The passes since the last event, oldest first, and gauges of now; `dropped` passes before them are not told."""

    type: Literal["passes"]
    dropped: int
    passes: list[WatchedPass]
    running: int
    waiting: int
    columns_used: int
    columns_total: int
