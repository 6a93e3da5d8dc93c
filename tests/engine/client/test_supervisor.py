"""Life and death of workers: restarts, charged deaths, states, teardown. The workers are scripted processes."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.client.info import EngineState
from engine.client.recovery import FORGIVEN_AFTER_TOKENS, PendingRequest
from engine.client.supervisor import Patience, Supervisor, add_stats
from engine.errors import BundleError, Busy, BusyReason, EngineFailure, InvalidRequest, WorkerDied
from engine.messages import Stats
from engine.request import FinishReason, Request, RequestTimings, SamplingParams, TokenEvent
from tests.engine.client.supervisor_stage import GUARD_S, KILL, QUICK, SCRIPT, Scene, expected, request, scene

__all__ = ["scene"]


async def test_tokens_arrive_and_the_worker_ends_in_order(scene: Scene) -> None:
    supervisor = scene.supervisor()
    assert supervisor.state is EngineState.LOADING
    ready = await supervisor.start()
    assert (ready.device, supervisor.state) == ("scripted", EngineState.READY)
    assert supervisor.pid == scene.starts[0]
    supervisor.submit(request("a"))
    await scene.listener.when(lambda: "a" in scene.listener.finished)
    assert scene.listener.tokens["a"] == expected(request("a"))
    await supervisor.close()
    assert (supervisor.state, supervisor.pid) == (EngineState.STOPPED, None)
    await supervisor.close()


async def test_a_kill_from_outside_costs_no_token(scene: Scene) -> None:
    supervisor = scene.supervisor()
    await supervisor.start()
    requests = [request(f"r{i}", f"prompt {i} hold@{1 + i % 5}") for i in range(32)]
    for asked in requests:
        supervisor.submit(asked)
    await scene.listener.when(lambda: all(len(scene.listener.tokens.get(f"r{i}", ())) == 1 + i % 5 for i in range(32)))
    assert supervisor.pid is not None
    os.kill(supervisor.pid, KILL)
    await scene.listener.when(lambda: len(scene.listener.finished) == 32)
    assert all(scene.listener.tokens[asked.id] == expected(asked) for asked in requests)
    assert (supervisor.restarts, supervisor.state, scene.listener.errors) == (1, EngineState.READY, {})


@pytest.mark.parametrize("begun_by", ["a dead worker", "another one's death", "another server", ""])
async def test_timings_of_a_part_are_not_the_request_s(begun_by: str) -> None:
    told: list[TokenEvent] = []
    supervisor = Supervisor(["none"], told.append, lambda *_: None)
    timings = RequestTimings(1.0, 10.0, 100.0, 3, 0, 100)
    supervisor.submit(request("other"))
    supervisor.submit(request("a"), (1, 2) if begun_by == "another server" else ())
    pending, other = supervisor.pending.get("a"), supervisor.pending.get("other")
    assert pending is not None and other is not None
    pending.is_sent = other.is_sent = True
    other.deaths = 2 * (begun_by == "another one's death")  # then it is charged
    if "death" in begun_by or "dead" in begun_by:
        supervisor._after_death("died")
    supervisor._on_event(TokenEvent("a", tuple(range(FORGIVEN_AFTER_TOKENS))))
    supervisor._on_event(TokenEvent("a", (7,), finish=FinishReason.LENGTH, timings=timings))
    assert told[-1].timings == (None if begun_by else timings)


@pytest.mark.parametrize("is_sent", [True, False])
async def test_what_another_device_computed_is_removed_with_who_wanted_it(
    is_sent: bool, scene: Scene, tmp_path: Path
) -> None:
    supervisor = scene.supervisor()
    path = tmp_path / "caches"
    path.touch()
    supervisor.adopt(PendingRequest(request("a", "hold@0"), caches=str(path)))
    if is_sent:
        await supervisor.start()
        assert supervisor.pid is not None
        os.kill(supervisor.pid, KILL)
        await scene.listener.when(lambda: supervisor.restarts == 1)
    else:
        supervisor.abort("a")
    assert not path.exists()


@pytest.mark.parametrize("poison", ["die@0", "die@4", "garbage@3"])
async def test_a_poisonous_request_fails_after_three_deaths_and_the_others_go_on(scene: Scene, poison: str) -> None:
    supervisor = scene.supervisor()
    await supervisor.start()
    innocents = [request(f"r{i}", f"prompt {i}", tokens=40) for i in range(5)]
    for asked in (*innocents[:3], request("poison", poison), *innocents[3:]):
        supervisor.submit(asked)
    await scene.listener.when(lambda: len(scene.listener.finished) == 5 and "poison" in scene.listener.errors)
    error = scene.listener.errors.pop("poison")
    assert isinstance(error, WorkerDied)
    assert "3 times" in str(error)
    assert scene.listener.errors == {}
    assert scene.listener.tokens.get("poison", []) == expected(request("poison", poison))[: int(poison[-1])]
    assert all(scene.listener.tokens[asked.id] == expected(asked) for asked in innocents)
    assert (supervisor.restarts, len(scene.starts), supervisor.state) == (3, 4, EngineState.READY)


async def test_requests_taken_while_no_worker_is_there_wait_for_the_next(scene: Scene) -> None:
    supervisor = scene.supervisor()
    await supervisor.start()
    supervisor.submit(request("held", "hold@1"))
    await scene.listener.when(lambda: "held" in scene.listener.tokens)
    assert supervisor.pid is not None
    os.kill(supervisor.pid, KILL)
    while supervisor.state is not EngineState.RESTARTING:
        await asyncio.sleep(0)
    supervisor.submit(request("late"))
    supervisor.submit(request("gone"))
    supervisor.abort("gone")
    await scene.listener.when(lambda: scene.listener.finished == {"held", "late"})
    assert "gone" not in scene.listener.tokens


async def test_one_request_fails_alone(scene: Scene) -> None:
    supervisor = scene.supervisor()
    await supervisor.start()
    for name, text in (("engine", "fail@2"), ("invalid", "invalid@0"), ("fine", "ok")):
        supervisor.submit(request(name, text))
    await scene.listener.when(lambda: "fine" in scene.listener.finished and len(scene.listener.errors) == 2)
    assert type(scene.listener.errors["engine"]) is EngineFailure
    assert isinstance(scene.listener.errors["invalid"], InvalidRequest)
    assert supervisor.restarts == 0


async def test_workers_that_die_before_they_are_ready_are_replaced(scene: Scene) -> None:
    supervisor = scene.supervisor("exit", "exit", "ready")
    await supervisor.start()
    assert (supervisor.restarts, len(scene.starts), supervisor.state) == (0, 3, EngineState.READY)


async def test_three_failed_starts_are_the_end(scene: Scene) -> None:
    supervisor = scene.supervisor("exit")
    with pytest.raises(EngineFailure, match=r"not become ready 3 times in a row; last it exited with status 7"):
        await supervisor.start()
    assert len(scene.starts) == 3


async def test_what_was_wrong_with_the_starts_is_told(scene: Scene) -> None:
    supervisor = scene.supervisor("unwell")
    with pytest.raises(
        EngineFailure, match=r"3 times in a row; last it exited with status 3 \(graph ar1_cl64 failed\)"
    ):
        await supervisor.start()
    assert len(scene.starts) == 3  # an NPU that is being restarted may be well the next time


async def test_death_while_serving_and_no_way_back_fails_everything(scene: Scene) -> None:
    supervisor = scene.supervisor("ready", "exit")
    await supervisor.start()
    for name, text in (("a", "die@2"), ("b", "hold@3")):
        supervisor.submit(request(name, text))
    await scene.listener.when(lambda: len(scene.listener.errors) == 2)
    assert supervisor.state is EngineState.DEAD
    assert "not become ready" in str(scene.listener.errors["b"])
    assert "not become ready" in supervisor.death_reason


async def test_a_permanent_failure_is_not_tried_again(scene: Scene) -> None:
    supervisor = scene.supervisor("fatal")
    with pytest.raises(BundleError, match="the bundle is broken"):
        await supervisor.start()
    assert len(scene.starts) == 1


async def test_a_bug_of_ours_does_not_leave_callers_waiting(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = scene.supervisor()

    async def buggy() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(supervisor, "_run_worker", buggy)
    with pytest.raises(EngineFailure, match="ZeroDivisionError"):
        await supervisor.start()


async def test_a_program_that_cannot_start(scene: Scene) -> None:
    supervisor = Supervisor(["/no-such-program"], scene.listener.deliver, scene.listener.fail, QUICK)
    with pytest.raises(EngineFailure, match="could not be started"):
        await supervisor.start()
    assert supervisor.state is EngineState.STOPPED


@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_ending_while_it_loads_leaves_nothing(scene: Scene, how: str) -> None:
    supervisor = scene.supervisor("hang")
    starting = asyncio.create_task(supervisor.start())
    while supervisor.pid is None:
        await asyncio.sleep(0)
    if how == "cancel":
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    else:
        await supervisor.close()
        with pytest.raises(EngineFailure, match="shutting down"):
            await starting
    assert supervisor.state is EngineState.STOPPED


async def test_ending_at_the_very_first_moment(scene: Scene) -> None:
    for turns in range(6):
        supervisor = scene.supervisor("ready")
        starting = asyncio.create_task(supervisor.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await supervisor.close()
        assert supervisor.pid is None


async def test_a_worker_that_listens_to_nobody_is_killed_on_close(scene: Scene) -> None:
    supervisor = scene.supervisor("mute", patience=Patience(polite_s=0.05, terminate_s=0.05))
    await supervisor.start()
    supervisor.submit(request("a"))
    await supervisor.close()
    assert isinstance(scene.listener.errors["a"], EngineFailure)


async def test_what_a_deaf_worker_does_not_read_is_bounded(scene: Scene) -> None:
    supervisor = scene.supervisor("mute", patience=Patience(polite_s=0.05, terminate_s=0.05))
    await supervisor.start()
    big = Request("big", (1_000_000,) * 4_000_000, SamplingParams(1))
    with pytest.raises(Busy, match="does not keep up") as refused:
        for index in range(20):
            supervisor.check_room()
            supervisor.submit(Request(f"big{index}", big.prompt_ids, big.params))
    assert refused.value.reason is BusyReason.WORKER


async def test_draining_keeps_the_state_through_a_restart(scene: Scene) -> None:
    supervisor = scene.supervisor()
    await supervisor.start()
    supervisor.submit(request("a", "hold@2"))
    await scene.listener.when(lambda: len(scene.listener.tokens.get("a", ())) == 2)
    supervisor.drain()
    assert supervisor.pid is not None
    os.kill(supervisor.pid, KILL)
    await scene.listener.when(lambda: "a" in scene.listener.finished)
    assert (supervisor.state, supervisor.restarts) == (EngineState.DRAINING, 1)


async def test_counters_add_up_over_workers(scene: Scene) -> None:
    supervisor = scene.supervisor()
    await supervisor.start()
    supervisor.submit(request("a", "hold@5", tokens=9))
    await scene.listener.when(lambda: len(scene.listener.tokens.get("a", ())) == 5)
    assert (supervisor.stats.generated_tokens, supervisor.stats.running) == (5, 1)
    assert supervisor.pid is not None
    os.kill(supervisor.pid, KILL)
    await scene.listener.when(lambda: "a" in scene.listener.finished)
    assert supervisor.stats.generated_tokens == 9


async def test_steps_of_two_workers_have_numbers_of_their_own(scene: Scene) -> None:
    workers = [scene.supervisor(), scene.supervisor()]
    feed = workers[1].steps = workers[0].steps
    await asyncio.gather(*(supervisor.start() for supervisor in workers))
    watch, numbers = feed.open(), list[int]()
    for number, supervisor in enumerate(workers):
        supervisor.tell_watched(True)
        supervisor.submit(request(f"r{number}", "hello", tokens=3))
    while len(numbers) < 6:
        numbers += [record.number for record in (await watch.read())[0]]
    assert sorted(numbers) == [2, 3, 4, 5, 6, 7]


async def test_whoever_watches_the_steps_sees_those_of_the_next_worker_too(scene: Scene) -> None:
    supervisor = scene.supervisor()
    watch = supervisor.steps.open()  # before there is a worker
    await supervisor.start()
    supervisor.submit(request("a", "hold@5", tokens=9))
    numbers: list[int] = []
    while len(numbers) < 5:
        numbers += [record.number for record in (await watch.read())[0]]
    assert supervisor.pid is not None
    os.kill(supervisor.pid, KILL)
    await scene.listener.when(lambda: "a" in scene.listener.finished)
    while len(numbers) < 9:
        numbers += [record.number for record in (await watch.read())[0]]
    assert numbers == [1, 2, 3, 4, 5, 1, 2, 3, 4]
    watch.end()
    supervisor.submit(request("b", "hello", tokens=3))
    await scene.listener.when(lambda: "b" in scene.listener.finished)
    await supervisor.close()
    assert (await watch.read()) == ([], 0)


def test_gauges_are_not_added() -> None:
    total = add_stats(Stats(steps=3, running=4), Stats(steps=5, running=2, kv_slots_total=7))
    assert (total.steps, total.running, total.kv_slots_total) == (8, 2, 7)
    assert add_stats(Stats(), Stats(steps=5, running=2), with_gauges=False).running == 0


PARENT = """
import asyncio, sys
from engine.client.supervisor import Supervisor
from engine.request import Request, SamplingParams

async def main():
    supervisor = Supervisor(sys.argv[1:], lambda event: None, lambda request_id, error: None)
    await supervisor.start()
    supervisor.submit(Request("a", (1,), SamplingParams(10**9)))
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_no_orphan_outlives_a_parent_that_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), json.dumps({"folder": str(tmp_path), "starts": ["ready"]})]
    root = Path(__file__).parents[3]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *command], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert parent.stdout is not None
    assert parent.stdout.readline().strip() == b"ready"
    parent.kill()
    # The worker inherited standard error: the end of that pipe is the end of the worker.
    parent.communicate(timeout=GUARD_S)


async def test_only_failed_starts_in_a_row_are_counted(scene: Scene) -> None:
    """A worker that was ready begins the count anew."""
    supervisor = scene.supervisor("exit", "exit", "ready", "exit")
    await supervisor.start()
    supervisor.submit(request("a", "die@2"))
    await scene.listener.when(lambda: len(scene.listener.errors) == 1)
    assert len(scene.starts) == 6
    assert "3 times in a row" in supervisor.death_reason


def test_the_pause_between_workers_doubles_up_to_a_bound(scene: Scene) -> None:
    supervisor = scene.supervisor(patience=Patience(first_backoff_s=0.1, longest_backoff_s=5.0))
    pauses = []
    for deaths in (1, 2, 3, 6, 7, 10_000):
        supervisor._deaths_in_a_row = deaths
        pauses.append(supervisor._backoff_s())
    assert pauses == [0.1, 0.2, 0.4, 3.2, 5.0, 5.0]


async def test_log_lines_say_which_model(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        await scene.supervisor(label="qwen3").start()
    assert [record.name for record in caplog.records if "worker ready" in record.message] == ["hexserve[qwen3]"]
