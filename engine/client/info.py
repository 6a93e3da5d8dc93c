"""What is being served: put together once the worker is ready."""

import hashlib
from dataclasses import asdict, dataclass, field
from enum import StrEnum

import msgspec

from engine.bundle.manifest import Manifest
from engine.config import EngineConfig
from engine.isolation.helper_pool import HelperLimits
from engine.messages import Ready
from engine.processes import installed_version

# Places and verbosity change no answer.
FREE_SETTINGS = ("bundle", "draft", "log_level", "cost_cache", "lora", "kv_file")


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What is being served. Counts are tokens; `created` is Unix seconds."""

    name: str
    created: int
    max_context: int
    vocab: int
    device: str
    fingerprint: str
    ready: Ready
    manifest: Manifest

    @property
    def max_input(self) -> int:
        """Most tokens of a text that becomes a vector or a score."""
        return self.ready.max_input_tokens or self.max_context

    @property
    def adapters(self) -> tuple[str, ...]:
        return tuple(self.ready.adapters)


def engine_info(manifest: Manifest, ready: Ready, config: EngineConfig) -> EngineInfo:
    """Put together what is served; the fingerprint changes when the bundle, the settings or this software do."""
    settings = {name: value for name, value in asdict(config).items() if name not in FREE_SETTINGS}
    adapters = (ready.adapters,) if ready.adapters else ()
    seen = msgspec.json.encode((msgspec.to_builtins(manifest), settings, *adapters))
    fingerprint = f"hexserve-{installed_version('hexserve', 'source')}-{hashlib.sha256(seen).hexdigest()[:8]}"
    most, vocab = ready.max_tokens_per_sequence, manifest.model.vocab
    return EngineInfo(
        name=manifest.name,
        created=manifest.created,
        max_context=most,
        vocab=vocab,
        device=ready.device,
        fingerprint=fingerprint,
        ready=ready,
        manifest=manifest,
    )


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Bounds on what is taken in. max_queued: unfinished requests at once, waiting and running. max_queued_tokens:
    prompt tokens whose request has no token yet, 0 = off. stream_buffer: deltas a reader may lag behind before its
    stream is dropped. helpers: how slow a chat template, or the compilation of an answer's form, may be."""

    max_queued: int = 256
    max_queued_tokens: int = 0
    stream_buffer: int = 1024
    helpers: HelperLimits = field(default_factory=HelperLimits)


class EngineState(StrEnum):
    """Where the engine is in its life."""

    LOADING = "loading"  # the first worker has not reported Ready yet
    READY = "ready"
    RESTARTING = "restarting"  # a worker died; requests wait and go on with the next one
    DRAINING = "draining"  # nothing new is taken, what runs may finish
    STOPPED = "stopped"
    DEAD = "dead"  # restarting would not help


LEGAL_MOVES: dict[EngineState, frozenset[EngineState]] = {
    EngineState.LOADING: frozenset({EngineState.READY, EngineState.STOPPED, EngineState.DEAD}),
    EngineState.READY: frozenset({EngineState.RESTARTING, EngineState.DRAINING, EngineState.STOPPED, EngineState.DEAD}),
    EngineState.RESTARTING: frozenset({EngineState.READY, EngineState.DRAINING, EngineState.STOPPED, EngineState.DEAD}),
    EngineState.DRAINING: frozenset({EngineState.STOPPED, EngineState.DEAD}),
    EngineState.DEAD: frozenset({EngineState.STOPPED}),
    EngineState.STOPPED: frozenset(),
}
