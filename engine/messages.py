"""Every message between the server process and the worker: MessagePack in frames (`engine/isolation/framing.py`). The
worker reads commands from standard input and writes reports to standard output; end of input means the parent is
gone."""

from typing import Any, BinaryIO

import msgspec

from engine.isolation.framing import framed, read_frame
from engine.request import Request, TokenEvent


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Generate `request`."""

    request: Request
    emitted: tuple[int, ...] = ()  # tokens an earlier worker delivered: they are prefilled, not repeated
    caches: str = ""  # file of keys and values that another worker has computed, "" = none


class HandOver(msgspec.Struct, frozen=True, tag=True):
    """Forget a request, write its keys and values into the file `caches` and say so. Unknown ids are ignored."""

    id: str
    caches: str


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Forget a request; free its rows and KV slots before the next step. Unknown ids are ignored."""

    id: str


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """End now. Draining is the server's business: it stops submitting and waits first."""


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Answer with a Heartbeat, also in the middle of a step."""


class Watch(msgspec.Struct, frozen=True, tag=True):
    """Report what every step was from now on, or no longer. A worker begins unwatched and then pays nothing for it."""

    is_on: bool


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The graphs are loaded; sent once."""

    bundle: str
    device: str
    max_tokens_per_sequence: int  # prompt plus completion
    variants: tuple[str, ...]
    adapters: dict[str, str] = {}  # what tells the contents of each apart, hexadecimal, by name
    max_input_tokens: int = 0  # of a text that becomes a vector, 0 = as many as a sequence has
    costs: tuple[tuple[int, int, float], ...] = ()  # milliseconds of steps by rows and past KV slots, if measured
    keeps: str = ""  # why it cannot hand a request over, "" where it can


class Counters(msgspec.Struct):
    """What a worker counts since it started; times in seconds. Every counter is declared here and nowhere else."""

    steps: int = 0
    rows_used: int = 0
    rows_run: int = 0
    decode_rows: int = 0
    prefill_rows: int = 0
    drafted_rows: int = 0  # guesses in rows of steps; then the same by their kind
    accepted_rows: int = 0  # those that were right
    lookup_rows: int = 0
    lookup_accepted: int = 0
    prediction_rows: int = 0
    prediction_accepted: int = 0
    draft_rows: int = 0
    draft_accepted: int = 0
    forecast_rows: int = 0
    forecast_accepted: int = 0
    variant_switches: int = 0
    relayouts: int = 0
    experts_chosen: int = 0  # by rows, over all layers
    experts_read: int = 0  # different ones by steps, over all layers
    preemptions: int = 0
    hand_overs: int = 0  # sequences that went to another device; the server counts them
    prefix_queries: int = 0
    prefix_hits: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    draft_s: float = 0.0  # in the draft model
    run_s: float = 0.0  # inside the graphs
    relayout_s: float = 0.0  # re-laying the pool for variants of another width
    copy_s: float = 0.0  # blocks to and from the host KV cache
    step_s: float = 0.0  # whole steps, all of these included


class Stats(Counters, tag=True):
    """Counters, and gauges of now. stages: seconds of steps by stage; "graph: NAME" is a part of "graph"."""

    running: int = 0
    waiting: int = 0
    kv_slots_used: int = 0
    kv_slots_total: int = 0
    stages: dict[str, float] = {}


def summed(*parts: Counters) -> dict[str, Any]:
    """Every counter by name, added up over `parts`; gauges are left out."""
    return {name: sum(getattr(part, name) for part in parts) for name in Counters.__struct_fields__}


class Tokens(msgspec.Struct, frozen=True, tag=True):
    """What one step produced, for all sequences."""

    events: tuple[TokenEvent, ...]
    stats: Stats


class Failed(msgspec.Struct, frozen=True, tag=True):
    """One request cannot go on. `kind` is 'invalid' (caller's fault) or 'engine'."""

    id: str
    message: str
    kind: str = "engine"


class HandedOver(msgspec.Struct, frozen=True, tag=True):
    """A request is forgotten here; so many blocks of its keys and values lie in the file `caches`, written in `ms`."""

    id: str
    caches: str
    blocks: int
    ms: float


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """The answer to a Ping. `steps` have begun, the last of them should take `expected_ms` (0 = not known). A worker
    that is busy and begins no new step may hang; one that does not answer hangs altogether."""

    is_busy: bool
    steps: int
    expected_ms: float


class Fatal(msgspec.Struct, frozen=True, tag=True):
    """The worker cannot start or go on; it exits after this. Restarting will not help when `permanent`."""

    message: str
    permanent: bool


class StepSegment(msgspec.Struct, frozen=True):
    """The rows of one sequence in a step."""

    sequence: int  # the number of its arrival in this worker, no id
    kind: str  # "prefill", "decode" or "denoise"
    rows: int
    guesses: int  # rows of guessed tokens
    accepted: int  # those that were right
    tokens: int  # new ones that came of it


class StepRecord(msgspec.Struct, frozen=True, tag=True):
    """What one step was, for a worker that is watched."""

    number: int
    began_ms: float  # by the monotonic clock that all processes share
    run_ms: float  # inside the graphs
    step_ms: float  # with all else
    rows: int  # of the graph, padding included
    context: int  # of its key axis
    segments: tuple[StepSegment, ...]  # in the order of their rows, behind padding
    running: int  # this and the following are gauges after the step
    waiting: int
    kv_slots_used: int
    kv_slots_total: int


Command = Submit | Abort | HandOver | Shutdown | Ping | Watch
Report = Ready | Tokens | Failed | HandedOver | Fatal | Heartbeat | StepRecord

_encoder = msgspec.msgpack.Encoder()
_command_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_report_decoder: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)


def frame(message: Command | Report) -> bytes:
    return framed(_encoder.encode(message))


def decode_report(body: bytes) -> Report:
    """Decode one report body; msgspec.DecodeError when it is not one."""
    return _report_decoder.decode(body)


def read_command(stream: BinaryIO) -> Command | None:
    """Block for the next command; None at end of input."""
    body = read_frame(stream)
    return None if body is None else _command_decoder.decode(body)
