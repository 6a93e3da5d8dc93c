"""A manager over scripted engines whose loads go as the test says."""

import asyncio
import threading
from collections.abc import Callable, Sequence

from engine.bundle.manifest import Manifest
from engine.client.engine import EngineState
from engine.config import EngineConfig
from engine.errors import BundleError, HexserveError
from server.models.manager import ManagerRules, ModelManager
from server.models.models import ServedModel
from server.settings import Settings
from tests.server.scripted_engine import ScriptedEngine, manifest

DEFAULTS = ManagerRules()


class LoadedEngine(ScriptedEngine):
    """An engine of one load: starts and closes when its loader lets it."""

    def __init__(self, loader: "ScriptedLoader") -> None:
        super().__init__()
        self.state = EngineState.LOADING
        self.loader = loader

    async def start(self) -> None:
        self.loader.starts += 1
        self.loader.starting.set()
        await self.loader.may_start.wait()
        if self.loader.failure is not None:
            raise self.loader.failure
        self.state = EngineState.READY

    async def close(self) -> None:
        await self.loader.may_close.wait()
        self.loader.closes += 1
        self.state = EngineState.STOPPED


class ScriptedLoader:
    """Counts what happens to a model, and holds it up."""

    def __init__(self, size: int) -> None:
        self.size, self.prefixes = size, 0
        self.manifest: Manifest | None = manifest()
        self.engines: list[LoadedEngine] = []
        self.starts = self.closes = 0
        self.starting, self.may_start, self.may_close = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.may_start.set()
        self.may_close.set()
        self.may_estimate = threading.Event()
        self.may_estimate.set()
        self.failure: HexserveError | None = None
        self.is_broken = False

    def estimate(self) -> int:
        self.may_estimate.wait()
        if self.is_broken:
            raise BundleError("its manifest is damaged")
        return self.size

    def open(self) -> LoadedEngine:
        self.engines.append(LoadedEngine(self))
        return self.engines[-1]


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Stage:
    """Models a, b, c, ... of 40 bytes each."""

    def __init__(
        self, count: int = 3, rules: ManagerRules = DEFAULTS, clock: Callable[[], float] | None = None
    ) -> None:
        self.loaders = [ScriptedLoader(40) for _ in range(count)]
        self.clock = Clock()
        models = [
            ServedModel(Settings(EngineConfig("unused"), model_name=chr(ord("a") + number)), loader)
            for number, loader in enumerate(self.loaders)
        ]
        self.manager = ModelManager(models, rules, clock or self.clock)

    @property
    def models(self) -> Sequence[ServedModel]:
        return self.manager.models

    @property
    def states(self) -> list[str]:
        return [model.state.value for model in self.models]

    async def use(self, *numbers: int) -> None:
        """A request to each of these models, one after the other."""
        for number in numbers:
            with self.models[number].pinned():
                await self.manager.loaded(self.models[number])
            self.clock.now_s += 1


async def settled() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)
