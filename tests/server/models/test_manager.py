"""Loads and unloads of several models, with scripted engines and a clock that stands still."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable

import pytest

from engine.client.engine import EngineState
from engine.errors import BundleError, Busy, BusyReason, EngineFailure
from server.http.errors import Refusal
from server.models.manager import ManagerRules
from server.models.models import find
from tests.server.models.stage import Stage, settled

TWO_FIT = ManagerRules(budget=100)
MakeStage = Callable[..., Stage]


@pytest.fixture
async def stage() -> AsyncIterator[MakeStage]:
    made: list[Stage] = []

    def make(*arguments: object, **options: object) -> Stage:
        made.append(Stage(*arguments, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        for loader in one.loaders:
            loader.may_start.set()
            loader.may_close.set()
            loader.may_estimate.set()
        await one.manager.close()


async def test_a_model_is_loaded_at_its_first_use_and_then_stays(stage: MakeStage) -> None:
    one = stage()
    assert one.states == ["unloaded"] * 3
    await one.use(1, 1)
    assert one.states == ["unloaded", "ready", "unloaded"]
    assert [loader.starts for loader in one.loaders] == [0, 1, 0]


async def test_requests_that_come_together_share_one_load(stage: MakeStage) -> None:
    one = stage()
    one.loaders[0].may_start.clear()
    asked = [asyncio.create_task(one.manager.loaded(one.models[0])) for _ in range(5)]
    await one.loaders[0].starting.wait()
    assert one.states[0] == "loading"
    one.loaders[0].may_start.set()
    engines = await asyncio.gather(*asked)
    assert engines == one.loaders[0].engines * 5


async def test_the_least_recently_used_model_makes_room(stage: MakeStage) -> None:
    one = stage(rules=TWO_FIT)
    await one.use(0, 1, 0, 2)
    assert one.states == ["ready", "unloaded", "ready"]
    assert one.loaders[1].closes == 1
    await one.use(1)
    assert one.states == ["unloaded", "ready", "ready"]


async def test_memory_is_free_only_when_the_engine_has_closed(stage: MakeStage) -> None:
    one = stage(rules=TWO_FIT)
    await one.use(0, 1)
    one.loaders[0].may_close.clear()
    asked = asyncio.create_task(one.use(2))
    while one.states[0] != "unloading":
        await settled()
    assert one.states == ["unloading", "ready", "loading"]
    assert one.loaders[2].starts == 0
    one.loaders[0].may_close.set()
    await asked
    assert one.states == ["unloaded", "ready", "ready"]


async def test_a_busy_model_is_never_unloaded_and_the_request_is_told_the_budget(stage: MakeStage) -> None:
    one = stage(rules=TWO_FIT)
    with one.models[0].pinned(), one.models[1].pinned():
        await one.manager.loaded(one.models[0])
        await one.manager.loaded(one.models[1])
        one.loaders[2].prefixes = 1024**2
        one.manager.rules = dataclasses.replace(TWO_FIT, load_wait_s=1.0)  # enough to estimate when busy
        told = r"'c' cannot be loaded now: it takes 0 MiB \(1 MiB of it for prefixes: kv_offload_mb\) .* models_memory"
        with pytest.raises(Busy, match=told) as busy:
            await one.use(2)
    assert busy.value.reason is BusyReason.MODELS_MEMORY
    assert one.loaders[0].closes == one.loaders[1].closes == 0


async def test_it_waits_until_a_busy_model_is_free(stage: MakeStage) -> None:
    one = stage(rules=TWO_FIT)
    await one.use(1)
    with one.models[1].pinned():
        with one.models[0].pinned():
            await one.manager.loaded(one.models[0])
            asked = asyncio.create_task(one.use(2))
            while one.models[2].pending is None:
                await settled()
            assert one.states == ["ready", "ready", "loading"]
        await asked
    assert one.states == ["unloaded", "ready", "ready"]


async def test_a_model_that_is_never_without_a_request_yields_in_the_end(stage: MakeStage) -> None:
    one = stage(rules=TWO_FIT)
    a, b, c = one.models
    with a.pinned():
        with b.pinned():
            await one.manager.loaded(b)
            one.clock.now_s += 1
            await one.manager.loaded(a)
            wants_c = asyncio.create_task(one.use(2))
            while c.pending is None:
                await settled()
            assert one.manager.ready(b) is not None, "nobody has waited for long"
            one.clock.now_s += one.manager.rules.yield_s
            assert one.manager.ready(b) is None, "the one that was used least recently yields"
            assert one.manager.ready(a) is not None
            wants_b = asyncio.create_task(one.use(1))
            await settled()
            assert one.states == ["ready", "ready", "loading"]
        await wants_c
        await wants_b
        assert one.states == ["ready", "ready", "unloaded"]
    assert [loader.starts for loader in one.loaders] == [1, 2, 1]


async def test_who_had_to_yield_goes_on_when_the_other_request_has_left(stage: MakeStage) -> None:
    one = stage(rules=TWO_FIT)
    a, b, c = one.models
    with a.pinned(), b.pinned():
        await one.manager.loaded(b)
        one.clock.now_s += 1
        await one.manager.loaded(a)
        wants_c = asyncio.create_task(one.use(2))
        while c.pending is None:
            await settled()
        one.clock.now_s += one.manager.rules.yield_s
        wants_b = asyncio.create_task(one.use(1))
        await settled()
        assert not wants_b.done()
        wants_c.cancel()
        await asyncio.wait([wants_c])
        await wants_b
    assert one.states == ["ready", "ready", "unloaded"]
    assert a.pins == b.pins == c.pins == 0


async def test_nothing_is_unloaded_for_a_request_that_has_left(stage: MakeStage) -> None:
    one = stage(rules=TWO_FIT)
    await one.use(1)
    with one.models[1].pinned():
        with one.models[0].pinned():
            await one.manager.loaded(one.models[0])
            asked = asyncio.create_task(one.use(2))
            while one.models[2].pending is None:
                await settled()
            asked.cancel()
            await asyncio.wait([asked])
        await settled()
    assert one.states == ["ready", "ready", "unloaded"]
    assert one.loaders[2].starts == 0


async def test_a_load_goes_on_when_its_request_has_left_before_it_began_to_wait_for_memory(stage: MakeStage) -> None:
    one = stage()
    one.loaders[0].may_start.clear()
    asked = asyncio.create_task(one.use(0))
    await one.loaders[0].starting.wait()
    asked.cancel()
    await asyncio.wait([asked])
    one.loaders[0].may_start.set()
    await settled()
    assert one.states[0] == "ready"
    assert one.models[0].pins == 0


async def test_a_model_larger_than_the_budget_says_so(stage: MakeStage) -> None:
    one = stage(rules=ManagerRules(budget=30 * 1024**2))
    one.loaders[0].size = 40 * 1024**2
    with pytest.raises(EngineFailure, match=r"'a' could not be loaded: it takes 40 MiB, more than .* allows .30 MiB"):
        await one.use(0)
    assert one.states[0] == "failed"


@pytest.mark.parametrize("where", ["bundle", "start"])
async def test_a_failed_load_says_why_to_all_and_is_tried_again_after_a_pause(stage: MakeStage, where: str) -> None:
    one = stage()
    loader = one.loaders[0]
    loader.is_broken = where == "bundle"
    loader.failure = EngineFailure("its manifest is damaged") if where == "start" else None
    asked = [asyncio.create_task(one.use(0)) for _ in range(3)]
    await asyncio.wait(asked)
    for each in asked:
        with pytest.raises(EngineFailure, match="'a' could not be loaded: its manifest is damaged"):
            each.result()
    assert one.states[0] == "failed"
    loader.is_broken, loader.failure, starts = False, None, loader.starts
    with pytest.raises(EngineFailure, match="its manifest is damaged"):
        await one.use(0)
    assert loader.starts == starts
    one.clock.now_s += one.manager.rules.retry_s
    await one.use(0)
    assert (one.states[0], loader.starts) == ("ready", starts + 1)
    assert one.models[0].error is None


async def test_a_bug_in_a_load_is_a_failure_and_holds_nobody_up(stage: MakeStage) -> None:
    one = stage()
    one.loaders[0].open = None  # type: ignore[assignment,method-assign]
    with pytest.raises(EngineFailure, match="'a' could not be loaded: TypeError"):
        await one.use(0)
    assert (one.states[0], one.models[0].size) == ("failed", 0)


async def test_a_request_that_waits_too_long_for_the_load_is_told(stage: MakeStage) -> None:
    one = stage(rules=ManagerRules(load_wait_s=0.01))
    one.loaders[0].may_start.clear()
    with pytest.raises(Busy, match="'a' is still loading") as busy:
        await one.use(0)
    assert busy.value.reason is BusyReason.LOADING
    one.loaders[0].may_start.set()
    await settled()
    assert one.states[0] == "ready", "the load went on"


async def test_a_dead_engine_is_replaced_and_touches_no_other(stage: MakeStage) -> None:
    one = stage()
    await one.use(0, 1)
    first, other = one.loaders[0].engines[0], one.loaders[1].engines[0]
    first.state = EngineState.DEAD
    with pytest.raises(EngineFailure, match="its engine is not running any more"):
        await one.use(0)
    assert one.states == ["failed", "ready", "unloaded"]
    one.clock.now_s += one.manager.rules.retry_s
    await one.use(0, 1)
    assert (first.state, one.loaders[0].starts) == (EngineState.STOPPED, 2)
    assert one.loaders[1].engines == [other]


async def test_an_idle_model_is_unloaded_and_a_used_one_is_not(stage: MakeStage) -> None:
    one = stage(rules=ManagerRules(idle_s=0.02), clock=asyncio.get_running_loop().time)
    await one.use(0)
    with one.models[1].pinned():
        await one.manager.loaded(one.models[1])
        while one.states[0] != "unloaded":
            await asyncio.sleep(0.001)
        assert one.states[1] == "ready"
    while one.states[1] != "unloaded":
        await asyncio.sleep(0.001)
    await one.use(0)
    assert one.loaders[0].starts == 2


async def test_told_to_unload(stage: MakeStage) -> None:
    one = stage()
    await one.use(0)
    with one.models[0].pinned(), pytest.raises(Refusal) as refusal:
        await one.manager.unload(one.models[0])
    assert (refusal.value.error.status, refusal.value.error.code) == (409, "model_busy")
    await one.manager.unload(one.models[0])
    await one.manager.unload(one.models[0])
    assert (one.states[0], one.loaders[0].closes) == ("unloaded", 1)


@pytest.mark.parametrize("step", ["before its first step", "estimating", "starting"])
async def test_told_to_unload_what_loads(stage: MakeStage, step: str) -> None:
    one = stage()
    loader, model = one.loaders[0], one.models[0]
    if step == "estimating":
        loader.may_estimate.clear()
    loader.may_start.clear()
    asked = asyncio.create_task(one.use(0))
    await asyncio.sleep(0)
    if step == "starting":
        await loader.starting.wait()
    assert one.states[0] == "loading"
    asked.cancel()
    await asyncio.wait([asked])
    await one.manager.unload(model)
    loader.may_estimate.set()
    assert (one.states[0], model.size) == ("unloaded", 0)
    loader.may_start.set()
    await one.use(0)
    assert one.states[0] == "ready"


async def test_a_request_that_comes_while_its_model_is_unloaded_loads_it_again(stage: MakeStage) -> None:
    one = stage()
    await one.use(0)
    one.loaders[0].may_close.clear()
    unloading = asyncio.create_task(one.manager.unload(one.models[0]))
    await settled()
    asked = asyncio.create_task(one.use(0))
    await settled()
    assert one.states[0] == "unloading"
    one.loaders[0].may_close.set()
    await asyncio.gather(unloading, asked)
    assert (one.states[0], one.loaders[0].starts) == ("ready", 2)


async def test_closing_ends_everything_and_tells_who_waits(stage: MakeStage) -> None:
    one = stage()
    await one.use(0)
    one.loaders[1].may_start.clear()
    waiting = asyncio.create_task(one.use(1))
    await one.loaders[1].starting.wait()
    await one.manager.close()
    with pytest.raises(Busy, match="shutting down"):
        await waiting
    assert one.states == ["unloaded"] * 3
    assert one.manager.state is EngineState.STOPPED
    await one.manager.close()


async def test_an_only_model_loads_at_the_start_and_its_failure_is_the_servers(stage: MakeStage) -> None:
    one = stage(1, ManagerRules(preloads=True))
    await one.manager.start()
    assert one.states == ["ready"]
    broken = stage(1, ManagerRules(preloads=True))
    broken.loaders[0].is_broken = True
    with pytest.raises(BundleError, match="its manifest is damaged"):
        await broken.manager.start()


async def test_counters_go_on_over_loads(stage: MakeStage) -> None:
    one = stage()
    await one.use(0)
    assert (one.models[0].stats.steps, one.models[0].restarts) == (7, 2)
    await one.manager.unload(one.models[0])
    after = one.models[0]
    assert (after.stats.steps, after.stats.running, after.restarts, after.engine) == (7, 0, 2, None)
    await one.use(0)
    assert (one.models[0].stats.steps, one.models[0].restarts) == (14, 4)


async def test_a_model_is_found_by_its_name_or_an_adapters(stage: MakeStage) -> None:
    one = stage()
    settings = one.models[1].settings
    lora = dataclasses.replace(settings.engine, lora="poet=folder")
    one.models[1].settings = dataclasses.replace(settings, engine=lora)
    assert find(one.models, "b") is find(one.models, "poet") is one.models[1]
    with pytest.raises(Refusal) as refusal:
        find(one.models, "d")
    assert refusal.value.error.message.endswith("This server has 'a', 'b', 'poet', 'c'.")
