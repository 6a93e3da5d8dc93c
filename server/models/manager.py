"""Several models, each loaded when a request names it and unloaded when it is idle or another one needs its memory.
What is unloaded is decided by pure functions. A model has one task at most, which loads or unloads it; requests wait
for that task, so a load is shared by all that want it."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial

from engine.client.engine import Engine, EngineState
from engine.errors import Busy, BusyReason, EngineFailure, HexserveError
from server.http.errors import refuse
from server.models.loader import in_background
from server.models.models import (
    Models,
    ModelState,
    PendingMemory,
    ServedModel,
    fits,
    idle,
    left_s,
    next_idle_s,
    to_unload,
    to_yield,
)

_log = logging.getLogger("hexserve")
RETRY_S = 10.0
YIELD_S = 5.0
BUSY_WAIT_S = 5.0  # after which a request that found no memory shall try again


@dataclass(frozen=True, slots=True)
class ManagerRules:
    """budget: bytes of all loaded models, 0 = no bound. idle_s: seconds until an unused model goes, 0 = never.
    load_wait_s: longest wait of a request for its model. retry_s: pause after a load that failed. yield_s: how long a
    model waits for memory until those who use it take no new requests. preloads: load the first one at the start."""

    budget: int = 0
    idle_s: float = 0.0
    load_wait_s: float = 120.0
    retry_s: float = RETRY_S
    yield_s: float = YIELD_S
    preloads: bool = False


class ModelManager(Models):
    """The models of a server and what each is doing. All methods belong to one event loop."""

    def __init__(
        self, models: Sequence[ServedModel], rules: ManagerRules, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(models)
        self.rules, self._clock = rules, clock
        self._changed = asyncio.Event()  # memory may have become free
        self._timer: asyncio.TimerHandle | None = None  # when the next model has been idle for long enough
        self._is_closing = False
        for model in self.models:
            model.on_free = partial(self._freed, model)

    @property
    def state(self) -> EngineState:
        """Ready as soon as it listens: requests for a model that is not loaded wait for it."""
        return EngineState.STOPPED if self._is_closing else EngineState.READY

    async def start(self) -> None:
        """Load the first model where that is wanted; HexserveError."""
        if self.rules.preloads:
            model = self.models[0]
            with model.pinned():
                await self._progress(model)
            if model.error is not None:
                raise model.error

    def ready(self, model: ServedModel) -> Engine | None:
        """The engine of a ready model that has not to yield. One that is dead is taken away, for another to come."""
        if model.state is not ModelState.READY:
            return None
        if model.engine is not None and model.engine.state is EngineState.DEAD:
            self._begin_unload(model, EngineFailure("its engine is not running any more"))
            return None
        return None if self._yields(model) else model.engine

    async def loaded(self, model: ServedModel) -> Engine:
        """The model's engine, loaded first if need be; the caller has pinned it. Busy when that takes longer than
        `load_wait_s` or the server ends, EngineFailure when it cannot be loaded."""
        try:
            async with asyncio.timeout(self.rules.load_wait_s):
                while (engine := self.ready(model)) is None:
                    await self._progress(model)
        except TimeoutError:
            raise self._too_late(model) from None
        return engine

    async def unload(self, model: ServedModel) -> None:
        """Unload a model that no request uses, or end its loading; Refusal 409 when there is a request."""
        if model.pins:
            message = f"The model '{model.name}' is in use: {model.pins} requests. Unload it when they have ended."
            raise refuse(message, "model", "model_busy", 409)
        match model.state:
            case ModelState.READY:
                self._begin_unload(model)
            case ModelState.LOADING if model.task is not None:
                model.task.cancel()
            case ModelState.FAILED:
                model.move(ModelState.UNLOADED)
        if model.task is not None:
            await asyncio.wait([model.task])

    def left_s(self, model: ServedModel) -> float | None:
        """Seconds until the model is unloaded if nobody uses it; None = it stays."""
        return left_s(model, self._clock(), self.rules.idle_s)

    async def close(self) -> None:
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        for model in self.models:
            if model.state is ModelState.LOADING and model.task is not None:
                model.task.cancel()
            elif model.state is ModelState.READY:
                self._begin_unload(model)
        tasks = [model.task for model in self.models if model.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    def _yields(self, model: ServedModel) -> bool:
        """Whether another one has waited long enough for the memory of this one, which always has requests."""
        now_s, budget = self._clock(), self.rules.budget
        lacks = [other.pending for other in self.models if other.pending is not None]
        lack = next((lack for lack in lacks if now_s - lack.since_s >= self.rules.yield_s), None)
        if lack is None:
            return False
        ready = [other for other in self.models if other.state is ModelState.READY]
        others = sum(other.size for other in self.models if other.state is ModelState.LOADING)
        return model in to_yield(ready, others, lack.size, budget)

    async def _progress(self, model: ServedModel) -> None:
        """Do what brings a model that is wanted nearer to being ready, and wait until something has changed."""
        if model.state is ModelState.READY:
            with model.stepping_back():
                self._changed.clear()
                await self._changed.wait()
            return
        self._advance(model)
        assert model.task is not None
        await asyncio.wait([model.task])

    def _advance(self, model: ServedModel) -> None:
        """See to it that something is done for a model that is wanted and not ready."""
        if self._is_closing:
            raise Busy.shutting_down()
        if model.state is ModelState.FAILED and self._clock() < model.retry_at_s:
            raise EngineFailure(f"The model '{model.name}' could not be loaded: {model.error}")
        if model.state in (ModelState.UNLOADED, ModelState.FAILED):
            model.move(ModelState.LOADING)
            self._run(model, self._load(model))

    def _run(self, model: ServedModel, work: Coroutine[None, None, None]) -> None:
        def ended(task: "asyncio.Task[None]") -> None:
            """Before anyone who waits for the task: it may have been cancelled before its first step, or have a bug."""
            if task.cancelled():
                self._end_task(model, ModelState.UNLOADED)
            elif (error := task.exception()) is not None:
                self._fail(model, error if isinstance(error, HexserveError) else EngineFailure(repr(error)))

        model.task = asyncio.create_task(work)
        model.task.add_done_callback(ended)

    async def _load(self, model: ServedModel) -> None:
        assert model.loader is not None
        started_at_s = self._clock()
        model.error = None
        needed = await in_background(model.loader.estimate)
        if not await self._has_room(model, needed):
            self._end_task(model, ModelState.UNLOADED)
            return
        engine = model.loader.open()
        await engine.start()
        model.engine = engine
        model.loads += 1
        model.used_at_s = self._clock()
        takes = _told(model.size, model)
        _log.info("loaded %s in %.1f s, it takes at most %s", model.name, model.used_at_s - started_at_s, takes)
        self._end_task(model, ModelState.READY)

    async def _has_room(self, model: ServedModel, needed: int) -> bool:
        budget = self.rules.budget
        if budget and needed > budget:
            raise EngineFailure(f"it takes {_told(needed, model)}, more than models_memory_mb allows ({_mib(budget)})")
        try:
            while not fits(self.models, needed, budget):
                if not model.pins:
                    return False
                model.pending = model.pending or PendingMemory(needed, self._clock())
                for other in to_unload(self.models, needed, budget) or ():
                    _log.info("unloading %s: %s needs its memory", other.name, model.name)
                    self._begin_unload(other)
                self._changed.clear()
                await self._changed.wait()
            model.size = needed
        finally:
            model.pending = None
            self._wake()
        return True

    def _end_task(self, model: ServedModel, state: ModelState) -> None:
        if state is not ModelState.READY:
            model.drop_engine()
        model.move(state)
        self._wake()

    def _fail(self, model: ServedModel, error: HexserveError) -> None:
        _log.error("the model %s is not loaded: %s", model.name, error)
        model.error = error
        model.retry_at_s = self._clock() + self.rules.retry_s
        self._end_task(model, ModelState.FAILED)

    def _begin_unload(self, model: ServedModel, error: HexserveError | None = None) -> None:
        model.move(ModelState.UNLOADING)
        self._run(model, self._unload(model, error))

    async def _unload(self, model: ServedModel, error: HexserveError | None) -> None:
        assert model.engine is not None
        await model.engine.close()
        model.unloads += 1
        if error is not None:
            raise error
        _log.info("unloaded %s", model.name)
        self._end_task(model, ModelState.UNLOADED)

    def _too_late(self, model: ServedModel) -> Busy:
        if model.pending is None:
            return Busy(f"The model '{model.name}' is still loading.", BusyReason.LOADING, BUSY_WAIT_S)
        of = f"{_told(model.pending.size, model)} of the {_mib(self.rules.budget)} that models_memory_mb allows"
        message = f"The model '{model.name}' cannot be loaded now: it takes {of}, and the loaded models are in use."
        return Busy(message, BusyReason.MODELS_MEMORY, BUSY_WAIT_S)

    def _freed(self, model: ServedModel) -> None:
        model.used_at_s = self._clock()
        self._wake()

    def _wake(self) -> None:
        """Memory or a model may have become free: look again who waits for it and who is idle."""
        self._changed.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = None if self._is_closing else next_idle_s(self.models, self._clock(), self.rules.idle_s)
        if due_s is not None:
            self._timer = asyncio.get_running_loop().call_later(due_s, self._unload_idle)

    def _unload_idle(self) -> None:
        self._timer = None
        for model in idle(self.models, self._clock(), self.rules.idle_s):
            _log.info("unloading %s: idle for %.1f s", model.name, self._clock() - model.used_at_s)
            self._begin_unload(model)
        self._wake()


def _told(size: int, model: ServedModel) -> str:
    of_which = f" ({_mib(model.prefixes)} of it for prefixes: kv_offload_mb)" if model.prefixes else ""
    return f"{_mib(size)}{of_which}"


def _mib(size: int) -> str:
    return f"{size / 1024**2:,.0f} MiB"
