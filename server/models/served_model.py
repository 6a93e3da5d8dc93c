"""One model of the server: its state, its engine while it is loaded, and the requests that keep it loaded."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from engine.adapters.named import named_adapters
from engine.bundle.manifest import Manifest
from engine.client.engine import Engine, EngineState
from engine.client.supervisor import add_stats
from engine.errors import HexserveError
from engine.messages import Stats
from server.models.eviction import Resident
from server.models.loader import BundleLoader
from server.settings import Settings


class ModelState(StrEnum):
    """Where a model is in its life. Only a ready one answers; a failed one is tried again."""

    UNLOADED = "unloaded"
    LOADING = "loading"  # from the first request on: compiling and waiting for memory count as well
    READY = "ready"  # also while its worker is being replaced
    UNLOADING = "unloading"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PendingMemory:
    size: int
    since_s: float


_STATES = {
    EngineState.LOADING: ModelState.LOADING,
    EngineState.DEAD: ModelState.FAILED,
    EngineState.STOPPED: ModelState.UNLOADED,
}


class ServedModel:
    """A model with settings of its own. Its owner, `Models` or a `ModelManager`, moves it; one event loop."""

    def __init__(self, settings: Settings, loader: BundleLoader | None = None, engine: Engine | None = None) -> None:
        self.settings = settings
        self.loader = loader
        self.engine = engine  # None while the model is not loaded
        self._state = ModelState.UNLOADED
        self.pins = 0  # requests that use it, or wait for it
        self.size = 0  # bytes that it holds, or that are reserved for it
        self.used_at_s = 0.0
        self.keep_s: float | None = None  # how long it stays without a request, as `Resident.keep_s`
        self.error: HexserveError | None = None  # why it could not be loaded, or died
        self.retry_at_s = 0.0
        self.pending: PendingMemory | None = None  # what memory it waits for
        self.task: asyncio.Task[None] | None = None  # loads or unloads it
        self.on_free: Callable[[], None] = lambda: None  # called when the last request has left
        self.loads = self.unloads = 0
        self._past_stats, self._past_restarts = Stats(), 0  # of the engines before

    @property
    def comes_and_goes(self) -> bool:
        """False for the one model that is loaded from the server's start to its end."""
        return self.loader is not None

    @property
    def state(self) -> ModelState:
        """Where it is in its life; for a model that does not come and go what its engine's state comes to."""
        if self.comes_and_goes or self.engine is None:
            return self._state
        return _STATES.get(self.engine.state, ModelState.READY)

    @property
    def name(self) -> str:
        """What requests call it; Busy while an only model loads that has the name of its bundle."""
        if self.settings.model_name or self.engine is None:
            return self.settings.model_name
        return self.engine.info.name

    @property
    def names(self) -> tuple[str, ...]:
        """Its own name and those of its adapters, each a model to callers."""
        adapters = named_adapters(self.settings.engine.lora) if self.engine is None else self.engine.info.adapters
        return (self.name, *adapters)

    @property
    def manifest(self) -> Manifest | None:
        """What its bundle says, as far as it is known."""
        if self.engine is not None:
            return self.engine.info.manifest
        return None if self.loader is None else self.loader.manifest

    @property
    def prefixes(self) -> int:
        """The bytes of its size that are for known prefixes only."""
        return 0 if self.loader is None else self.loader.prefixes

    @property
    def resident(self) -> Resident:
        may_go = self.state is ModelState.READY and not self.pins
        is_going = self.state is ModelState.UNLOADING
        return Resident(self.name, self.size, self.used_at_s, may_go, is_going, self.keep_s)

    @property
    def stats(self) -> Stats:
        return self._past_stats if self.engine is None else add_stats(self._past_stats, self.engine.stats)

    @property
    def restarts(self) -> int:
        return self._past_restarts + (0 if self.engine is None else self.engine.restarts)

    @property
    def unfinished(self) -> int:
        return 0 if self.engine is None else self.engine.unfinished

    @property
    def is_dead(self) -> bool:
        """True when its engine has given up: only another one would help."""
        return self.engine is not None and self.engine.state is EngineState.DEAD

    def move(self, target: ModelState) -> None:
        self._state = target

    def drop_engine(self) -> None:
        """Its engine has been closed: keep what it counted, and nothing else."""
        if self.engine is not None:
            self._past_stats = add_stats(self._past_stats, self.engine.stats, with_gauges=False)
            self._past_restarts = self.restarts
        self.engine, self.size, self.keep_s = None, 0, None

    @contextmanager
    def stepping_back(self) -> Iterator[None]:
        """In this block a request that has pinned the model does not keep it loaded."""
        self.pins -= 1
        if not self.pins:
            self.on_free()
        try:
            yield
        finally:
            self.pins += 1

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """In this block the model stays loaded once it is."""
        self.pins += 1
        try:
            yield
        finally:
            self.pins -= 1
            if not self.pins:
                self.on_free()
