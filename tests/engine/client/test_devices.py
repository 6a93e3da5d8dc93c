"""The group of two devices over supervisors without processes: who gets a request, also when one of them is missing."""

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.client import placement
from engine.client.devices import FOLDERS, DeviceGroup, open_workers
from engine.client.info import EngineState
from engine.client.recovery import PendingRequest
from engine.client.supervisor import CLOSING, Patience, Supervisor
from engine.config import EngineConfig
from engine.errors import BundleError, Busy, BusyReason, EngineFailure, HexserveError
from engine.messages import Ready, Stats
from engine.request import FinishReason, Request, SamplingParams, TokenEvent
from server.settings import load_settings

STEPS = ((1, 64, 10.0), (8, 64, 20.0))


@dataclass
class PlainWorker:
    """A supervisor that notes what it is told. error: of its start."""

    deliver: Callable[[TokenEvent], None]
    fail: Callable[[str, HexserveError], None]
    on_loss: Callable[[Sequence[PendingRequest]], None]
    on_handed: Callable[[PendingRequest], None]
    name: str = "CPU"
    error: HexserveError | None = None
    hangs: bool = False
    keeps: str = ""
    state: EngineState = EngineState.LOADING
    is_up: bool = False
    has_room: bool = True
    stats: Stats = field(default_factory=Stats)
    steps: object = None
    restarts: int = 0
    pid: int | None = None
    death_reason: str = ""
    pending: dict[str, PendingRequest] = field(default_factory=dict)
    leaving: dict[str, str] = field(default_factory=dict)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> Ready:
        if self.error is not None:
            await self.close()
            raise self.error
        if self.hangs:
            await self.closed.wait()
            raise EngineFailure(CLOSING)
        self.state, self.is_up = EngineState.READY, True
        return Ready("model", self.name, 4096, ("free",), costs=STEPS, keeps=self.keeps)

    async def close(self) -> None:
        self.state, self.is_up = EngineState.STOPPED, False
        self.closed.set()
        for request_id in [each for each in self.pending if each.startswith("check ")]:
            del self.pending[request_id]
            self.fail(request_id, EngineFailure(CLOSING))

    def check_room(self, request: Request | None = None) -> None:
        if not self.has_room:
            raise Busy("full", BusyReason.WORKER, retry_after_s=5.0)

    def submit(self, request: Request, emitted: Sequence[int] = ()) -> None:
        self.adopt(PendingRequest(request, list(emitted)))

    def adopt(self, pending: PendingRequest) -> None:
        self.pending[pending.request.id] = pending

    def abort(self, request_id: str) -> None:
        self.pending.pop(request_id, None)

    def hand_over(self, request_id: str, caches: str) -> None:
        self.leaving[request_id] = caches

    def tell_watched(self, is_on: bool) -> None:
        """It has no steps to tell of."""

    def drain(self) -> None:
        self.state = EngineState.DRAINING

    def lose(self) -> None:
        """As one whose worker has died; while nothing new is taken the state stays."""
        self.is_up = False
        if self.state is not EngineState.DRAINING:
            self.state = EngineState.RESTARTING
        self.on_loss(list(self.pending.values()))

    def token(self, request_id: str, finish: FinishReason | None = None) -> None:
        self.pending[request_id].progress((7,))
        if finish is not None:
            del self.pending[request_id]
        self.deliver(TokenEvent(request_id, (7,), (), finish))

    def let_go(self, request_id: str) -> None:
        pending = self.pending.pop(request_id)
        pending.caches = self.leaving.pop(request_id)
        self.on_handed(pending)


@dataclass
class Pair:
    """A group of two, and what clients were told."""

    group: DeviceGroup
    workers: list[PlainWorker]
    tokens: list[TokenEvent]

    @property
    def placed(self) -> list[list[str]]:
        return [sorted(worker.pending) for worker in self.workers]


def plain(made: list[PlainWorker], **more: Any) -> Callable[..., Supervisor]:
    def make(**listeners: Any) -> Supervisor:
        made.append(PlainWorker(**listeners, **more))
        return cast("Supervisor", made[-1])

    return make


def missing(**listeners: Any) -> Supervisor:
    """A supervisor whose worker cannot be started."""
    return Supervisor(("/no/such/worker",), patience=Patience(start_attempts=1), **listeners)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0)


async def pair(is_optional: bool = False, **of_second: Any) -> Pair:
    workers: list[PlainWorker] = []
    tokens: list[TokenEvent] = []
    make = [plain(workers), plain(workers, name="NPU", **of_second)]
    group = DeviceGroup(make, tokens.append, _no_failure, is_optional=is_optional, optional_load_s=0.1)
    await group.start()
    return Pair(group, workers, tokens)


def _no_failure(request_id: str, error: HexserveError) -> None:
    pytest.fail(f"{request_id}: {error}")


def asked(name: str, **more: Any) -> Request:
    return Request(name, (1, 2, 3), SamplingParams(500), **more)


async def test_one_device_that_is_busy_refuses_nothing() -> None:
    two = await pair()
    for busy, other in ((0, 1), (1, 0)):
        two.workers[busy].has_room, two.workers[other].has_room = False, True
        two.group.check_room()
        two.group.check_room(asked("a"))
        two.group.submit(asked(f"to {other}"))
        assert f"to {other}" in two.workers[other].pending
    two.workers[0].has_room = False
    for request in (None, asked("a")):
        with pytest.raises(Busy):
            two.group.check_room(request)
    await two.group.close()


async def test_what_cannot_move_is_refused_where_its_own_device_is_busy() -> None:
    two = await pair()
    two.workers[0].has_room = False
    with pytest.raises(Busy):
        two.group.check_room(asked("a", pooling=cast("Any", object())))
    await two.group.close()


async def test_a_device_that_is_not_there_has_no_room() -> None:
    two = await pair()
    two.workers[1].state = EngineState.DEAD
    two.workers[0].has_room = False
    with pytest.raises(Busy):
        two.group.check_room()
    await two.group.close()


@pytest.mark.parametrize("drains", [False, True])
@pytest.mark.parametrize("lost", [0, 1])
async def test_streams_of_a_lost_device_go_on_at_once(lost: int, drains: bool) -> None:
    """Also while the server waits for them to end: they need no new worker."""
    two = await pair()
    for name in ("a", "b", "c", "d"):
        two.group.submit(asked(name))
    if drains:
        two.group.drain()
    two.workers[lost].lose()
    assert two.placed[lost] == [] and two.placed[1 - lost] == ["a", "b", "c", "d"]
    for name in ("a", "b", "c", "d"):
        two.workers[1 - lost].token(name, FinishReason.LENGTH)
    assert [event.finish for event in two.tokens] == [FinishReason.LENGTH] * 4
    await two.group.close()


@pytest.mark.parametrize("lost", [None, "giver", "taker"])
async def test_a_hand_over_that_is_under_way_when_the_server_ends(
    lost: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "reader", lambda prompt, loads: 0)
    monkeypatch.setattr(placement, "writer", lambda here, *rest: 1 - here)
    two = await pair()
    giver, taker = two.workers
    two.group.submit(asked("a"))
    giver.token("a")
    assert list(giver.leaving) == ["a"]
    two.group.drain()
    if lost == "giver":
        giver.lose()
    elif lost == "taker":
        taker.lose()
    if lost != "giver":
        giver.let_go("a")
    at = 1 if lost != "taker" else 0
    assert two.placed == [["a"] * (1 - at), ["a"] * at]
    two.workers[at].token("a")
    assert not two.workers[at].leaving  # nothing moves for its own sake any more
    two.workers[at].token("a", FinishReason.LENGTH)
    assert [len(event.token_ids) for event in two.tokens] == [1, 1, 1] and not two.group._placed.requests
    await two.group.close()


ALONE = "one device serves alone"


async def test_with_auto_a_model_that_cannot_be_handed_over_is_served(caplog: pytest.LogCaptureFixture) -> None:
    """Both say so, for it is the model's or the settings' doing."""
    group = DeviceGroup([plain([], keeps="windows")] * 2, lambda _: None, _no_failure, is_optional=True)
    with caplog.at_level(logging.WARNING):
        assert (await group.start()).device == "CPU"
    assert f"{ALONE}: windows" in caplog.text
    await group.close()


async def test_steps_of_the_device_that_serves_alone_can_be_watched() -> None:
    group = DeviceGroup([plain([]), missing], lambda _: None, _no_failure, is_optional=True)
    await group.start()
    watch = group.steps.open()
    watch.end()
    await group.close()


@pytest.mark.parametrize("first_is_dead", [False, True])
async def test_a_device_that_is_dead_when_it_is_checked(first_is_dead: bool) -> None:
    """Its part of the check fails at once. The first device is what serves alone, so its loss is the group's."""
    two = await pair(is_optional=True)
    dead = missing(deliver=lambda _: None, fail=two.group._on_failure)
    with pytest.raises(EngineFailure):
        await dead.start()
    dead.state = EngineState.DEAD  # a start that failed is closed as well
    two.group._devices[0 if first_is_dead else 1].supervisor = dead
    if first_is_dead:
        with pytest.raises(EngineFailure, match="is not running"):
            await two.group.check((1, 2, 3))
    else:
        checking = asyncio.create_task(two.group.check((1, 2, 3)))
        await until(lambda: bool(two.workers[0].pending))
        [own] = two.workers[0].pending
        two.workers[0].token(own)
        await until(lambda: bool(two.workers[0].leaving))
        two.workers[0].let_go(own)
        assert (await checking).device == "CPU" and not two.workers[0].pending
    await two.group.close()


async def test_with_auto_a_check_that_hangs_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    two = await pair(is_optional=True)
    with caplog.at_level(logging.WARNING):
        assert (await two.group.check((1, 2, 3))).device == "CPU"
    assert f"{ALONE}: the other did not hand over in 0.1 s" in caplog.text
    assert two.placed == [[], []]
    await two.group.close()


@pytest.mark.parametrize("checks", [False, True])
async def test_a_close_while_devices_start_is_no_device_s_failure(
    checks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    workers: list[PlainWorker] = []
    make = [plain(workers, hangs=not checks)] * 2
    group = DeviceGroup(make, lambda _: None, _no_failure, is_optional=True)
    starting = asyncio.create_task(group.start())
    if checks:
        await starting
        starting = asyncio.create_task(group.check((1, 2, 3)))
    await until(lambda: len(workers) == 2 and (not checks or bool(workers[0].pending)))
    await group.close()
    with pytest.raises(EngineFailure):
        await starting
    assert ALONE not in caplog.text


async def test_a_stream_stays_where_its_caches_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "reader", lambda prompt, loads: 0)
    monkeypatch.setattr(placement, "writer", lambda here, *rest: 1 - here)
    (tmp_path / "gone").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    two = await pair()
    shutil.rmtree(tmp_path / "gone")
    two.group.submit(asked("a"))
    two.workers[0].token("a")
    assert len(two.tokens) == 1 and not two.workers[0].leaving
    await two.group.close()


@pytest.mark.parametrize(
    "failure",
    [
        {"error": BundleError("the driver does not load it")},
        {"error": EngineFailure("the worker did not become ready 3 times in a row")},
        {"keeps": "it has layers with windows"},
    ],
)
async def test_with_auto_the_first_device_goes_on_alone(
    failure: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        two = await pair(is_optional=True, **failure)
    reason = failure.get("keeps") or str(failure["error"])
    assert f"devices is auto, and one device serves alone: {reason}" in caplog.text
    assert (two.group.device, two.group.state) == ("CPU", EngineState.READY)
    assert (await two.group.check((1, 2, 3))).device == "CPU"
    two.group.submit(asked("a"))
    assert two.placed == [["a"], []] and two.workers[1].state is EngineState.STOPPED
    await two.group.close()
    with pytest.raises(HexserveError, match=reason):
        await pair(**failure)


async def test_with_auto_a_device_that_hangs_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        two = await pair(is_optional=True, hangs=True)
    assert "one device serves alone: the other did not load in 0.1 s" in caplog.text
    assert two.group.device == "CPU" and two.workers[1].state is EngineState.STOPPED
    await two.group.close()


async def test_with_auto_a_bundle_that_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def misfit(*_: object) -> float:
        return 9.0

    for is_optional in (True, False):
        two = await pair(is_optional)
        monkeypatch.setattr(two.group._check, "loss", misfit)
        if is_optional:
            assert (await two.group.check((1, 2, 3))).device == two.group.device == "CPU"
        else:
            with pytest.raises(BundleError, match="do not fit the bundle on NPU"):
                await two.group.check((1, 2, 3))
        await two.group.close()


async def test_the_first_device_is_never_left_out() -> None:
    workers = [SimpleNamespace(start=_refused, close=_nothing), SimpleNamespace(start=_nothing, close=_nothing)]
    make = [lambda worker=worker, **_: worker for worker in workers]
    group = DeviceGroup(cast("Any", make), lambda _: None, _no_failure, is_optional=True)
    with pytest.raises(BundleError, match="refused"):
        await group.start()


async def _refused() -> None:
    raise BundleError("refused")


async def _nothing() -> Ready:
    return Ready("model", "CPU", 4096, ("free",))


@pytest.mark.parametrize(("setting", "optional"), [("auto", True), (" AUTO", True), ("npu,cpu", False)])
def test_only_auto_may_do_without(setting: str, optional: bool, tmp_path: Path) -> None:
    settings = load_settings({"devices": setting}, {}, None)
    both = settings.with_bundle(tmp_path, tmp_path, None, tmp_path / "other")
    assert both.engine.devices_optional is optional
    assert both.with_bundle(tmp_path, tmp_path, None, tmp_path / "other").engine.devices_optional is optional
    assert not settings.with_bundle(tmp_path, tmp_path).engine.devices_optional


async def test_the_second_worker_compares_the_tokens() -> None:
    """So that a bundle that cannot be read keeps no other device from serving."""
    group = open_workers(EngineConfig("one", devices="two"), None, "", lambda _: None, _no_failure)
    assert isinstance(group, DeviceGroup)
    told = [" ".join(device.supervisor._command) for device in group._devices]
    assert '"bundle":"one"' in told[0] and '"devices":""' in told[0]
    assert '"bundle":"two"' in told[1] and '"devices":"one"' in told[1]
    await group.close()


async def test_caches_of_a_server_that_was_killed_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    owners = (999_999_999, 10**20, os.getpid(), os.getppid())  # two that no process has
    names = [*(f"{FOLDERS}{owner}-x" for owner in owners), f"{FOLDERS}mine", "other"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.caches").touch()
    two = await pair()
    left = {path.name for path in tmp_path.iterdir()}
    assert set(names[2:]) <= left and not left & set(names[:2])
    (own,) = left - set(names)
    assert own.startswith(f"{FOLDERS}{os.getpid()}-")
    await two.group.close()
    assert not (tmp_path / own).exists()
