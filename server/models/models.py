"""The models of a server: what routes and the server's life need of them, and how one that is always there is."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from engine.adapters.named import named_adapters
from engine.bundle.manifest import Manifest
from engine.client.engine import Engine, EngineState
from engine.client.supervisor import add_stats
from engine.errors import HexserveError
from engine.messages import Stats
from server.http.errors import echo, refuse
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
        self.settings, self.loader = settings, loader
        self.engine = engine  # None while the model is not loaded
        self._state = ModelState.UNLOADED
        self.pins = 0  # requests that use it, or wait for it
        self.size = 0  # bytes that it holds, or that are reserved for it
        self.used_at_s = 0.0  # when it was last used, in seconds of a monotonic clock
        self.keep_s: float | None = None  # without a request, below 0 for ever; None = as long as the server says
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
        adapters = named_adapters(self.settings.engine.lora) if self.engine is None else self.engine.info.adapters
        return (self.name, *adapters)

    @property
    def manifest(self) -> Manifest | None:
        if self.engine is not None:
            return self.engine.info.manifest
        return None if self.loader is None else self.loader.manifest

    @property
    def prefixes(self) -> int:
        """The bytes of its size that are for known prefixes only."""
        return 0 if self.loader is None else self.loader.prefixes

    @property
    def may_go(self) -> bool:
        """It is loaded, and no request uses it."""
        return self.state is ModelState.READY and not self.pins

    @property
    def stats(self) -> Stats:
        return self._past_stats if self.engine is None else add_stats(self._past_stats, self.engine.stats)

    @property
    def restarts(self) -> int:
        return self._past_restarts + (0 if self.engine is None else self.engine.restarts)

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
        self._unpin()
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
            self._unpin()

    def _unpin(self) -> None:
        self.pins -= 1
        if not self.pins:
            self.on_free()


def fits(models: Iterable[ServedModel], needed: int, budget: int) -> bool:
    return not budget or needed + sum(model.size for model in models) <= budget


def to_unload(models: Sequence[ServedModel], needed: int, budget: int) -> list[ServedModel] | None:
    """The models to unload so that `needed` bytes fit, those used least recently first. Empty when what is free or
    about to be is enough; None when requests use too much: then nothing is unloaded in vain."""
    staying = sum(model.size for model in models if model.state is not ModelState.UNLOADING)
    chosen, missing = _freeing(needed + staying - budget if budget else 0, _oldest_first(models))
    return chosen if missing <= 0 else None


def to_yield(ready: Iterable[ServedModel], others: int, needed: int, budget: int) -> list[ServedModel]:
    """The ready models that would have to go if no request used them, for a model that has waited long enough. They
    take no new requests until it has its memory. others: bytes that other models keep."""
    found = sorted(ready, key=lambda model: model.used_at_s)
    return _freeing(needed + others + sum(model.size for model in found) - budget, found)[0]


def _freeing(over: int, models: Iterable[ServedModel]) -> tuple[list[ServedModel], int]:
    """The first ones that together hold as much as is too much, and what is missing when all do not."""
    chosen: list[ServedModel] = []
    for model in models:
        if over <= 0:
            break
        chosen.append(model)
        over -= model.size
    return chosen, over


def idle(models: Iterable[ServedModel], now_s: float, idle_s: float) -> list[ServedModel]:
    """The models that nobody has used for as long as they stay. idle_s: of those that do not say, 0 = for ever."""
    left = [(model, left_s(model, now_s, idle_s)) for model in _oldest_first(models)]
    return [model for model, due_s in left if due_s is not None and due_s <= 0]


def next_idle_s(models: Iterable[ServedModel], now_s: float, idle_s: float) -> float | None:
    """Seconds until the next model has been idle for long enough; None while none may go."""
    due = [left_s(model, now_s, idle_s) for model in _oldest_first(models)]
    return min((max(0.0, due_s) for due_s in due if due_s is not None), default=None)


def left_s(model: ServedModel, now_s: float, idle_s: float) -> float | None:
    """Seconds until a model has been idle for long enough if nobody uses it; None = it stays."""
    keep_s = (idle_s or None) if model.keep_s is None else model.keep_s
    if keep_s is None or keep_s < 0:
        return None
    return keep_s + (model.used_at_s - now_s if model.may_go else 0.0)


def _oldest_first(models: Iterable[ServedModel]) -> list[ServedModel]:
    return sorted((model for model in models if model.may_go), key=lambda model: model.used_at_s)


def find(models: Sequence[ServedModel], name: str) -> ServedModel:
    """The model of that name, or of whose adapters one has it; Refusal 404 when there is none."""
    for model in models:
        if name in model.names:
            return model
    served = ", ".join(f"'{known}'" for model in models for known in model.names)
    raise refuse(f"The model {echo(name)} does not exist. This server has {served}.", "model", "model_not_found", 404)


class Models:
    """The models of a server in the order in which they were named; the first one answers who names none. Here it is
    one, with an engine from the start to the end; while that loads, requests are told so at once."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.models = tuple(models)

    @property
    def state(self) -> EngineState:
        return self._only.state

    @property
    def _only(self) -> Engine:
        [model] = self.models
        assert model.engine is not None
        return model.engine

    def ready(self, model: ServedModel) -> Engine | None:
        """The engine if requests can run, None when `loaded` has to be waited for; Busy while an only model loads."""
        assert model is self.models[0]
        self._only.info  # noqa: B018 (Busy while it loads)
        return self._only

    async def loaded(self, model: ServedModel) -> Engine:
        """The model's engine once requests can run. The caller has pinned the model. Busy, EngineFailure."""
        engine = self.ready(model)
        assert engine is not None
        return engine

    async def unload(self, model: ServedModel) -> None:
        """Unload a model that no request uses; Refusal for one that is in use, or that nothing would load again."""
        text = "is loaded from the start of this server to its end; serve it with --idle-unload"
        raise refuse(f"The model '{model.name}' {text}.", "model", "model_not_unloadable")

    def left_s(self, model: ServedModel) -> float | None:
        """Seconds until the model is unloaded if nobody uses it; None = it stays."""
        return None

    async def start(self) -> None:
        """Load what has to be there from the start; HexserveError when that fails."""
        await self._only.start()

    async def close(self) -> None:
        await self._only.close()
