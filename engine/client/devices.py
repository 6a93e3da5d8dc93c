"""What computes for an engine: one worker, or for a model on several devices a worker for each, and one queue. Prompts
are read and tokens are written where `placement` says. A sequence takes its full blocks of keys and values along
(`engine/worker/kv_file.py`). A device that is lost leaves its sequences to the others, which compute them anew."""

import asyncio
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec

from engine.client import placement
from engine.client.info import EngineState
from engine.client.placement import GroupDevice, HandOverCheck, PlacedRequest, PlacedRequests
from engine.client.recovery import PendingRequest
from engine.client.step_feed import StepFeed
from engine.client.supervisor import Patience, Supervisor
from engine.client.worker_process import HangBounds, worker_command
from engine.config import BLOCK_SIZE, SAVER, EngineConfig
from engine.errors import BundleError, HexserveError
from engine.logs.handler import server_log
from engine.messages import Ready, Stats, summed
from engine.processes import process_is_alive
from engine.request import Request, TokenEvent

FOLDERS = "hexserve-caches-"  # with the process id of their server
OBSERVED_SHARE = 0.25  # of a hand-over in what is expected of the next one
MOST_LOOKS, LOOK_S = 400, 0.005
OPTIONAL_LOAD_S = 300.0  # a driver may hang for ever
MakeSupervisor = Callable[..., Supervisor]


class DeviceGroup:
    """What a `Supervisor` is to an engine, over several. All methods belong to one event loop. make: a supervisor for
    each device, given `deliver`, `fail`, `on_loss` and `on_handed`. saves_power: the CPU gets nothing while another
    device serves. is_optional: the first device serves alone where the others do not load and hand over in
    `optional_load_s`."""

    def __init__(
        self,
        make: Sequence[MakeSupervisor],
        deliver: Callable[[TokenEvent], None],
        fail: Callable[[str, HexserveError], None],
        label: str = "",
        saves_power: bool = False,
        is_optional: bool = False,
        optional_load_s: float = OPTIONAL_LOAD_S,
    ) -> None:
        self._log = server_log(label)
        self._is_optional, self._optional_load_s = is_optional, optional_load_s
        self._deliver, self._fail = deliver, fail
        self._folder = _own_folder()
        self._check = HandOverCheck()
        self.steps = StepFeed(self._tell_watched)
        self._devices: list[GroupDevice] = []
        for index, one in enumerate(make):
            deliver, on_loss = partial(self._on_event, index), partial(self._on_loss, index)
            supervisor = one(deliver=deliver, fail=self._on_failure, on_loss=on_loss, on_handed=self._on_handed)
            supervisor.steps = self.steps
            self._devices.append(GroupDevice(supervisor))
        self._placed = PlacedRequests(self._devices, saves_power)
        self.moves = 0  # streams that went to another device
        self._files = 0
        self._before: dict[str, float] = {}  # counters after the check, which is no client's
        self._token_ms = placement.MOVE_TOKEN_MS  # of a hand-over, as the last ones took

    @property
    def state(self) -> EngineState:
        states = {device.supervisor.state for device in self._devices}
        if EngineState.LOADING in states and any(device.ready is None for device in self._devices):
            return EngineState.LOADING
        return next(state for state in placement.BEST_FIRST if state in states)

    @property
    def pid(self) -> int | None:
        return next((pid for device in self._devices if (pid := device.supervisor.pid) is not None), None)

    @property
    def stats(self) -> Stats:
        all_stats = [device.supervisor.stats for device in self._devices]
        gauges = ("running", "waiting", "kv_slots_used", "kv_slots_total")
        stages = {
            f"{number} {device.ready.device if device.ready else ''}: {name}": seconds
            for number, (device, stats) in enumerate(zip(self._devices, all_stats, strict=True), 1)
            for name, seconds in stats.stages.items()
        }
        counters = {name: total - self._before.get(name, 0) for name, total in summed(*all_stats).items()}
        counters |= {name: sum(getattr(stats, name) for stats in all_stats) for name in gauges}
        return msgspec.structs.replace(Stats(), **counters | {"hand_overs": self.moves}, stages=stages)

    @property
    def device(self) -> str:
        """Of the devices that are not lost for good."""
        alive = [each for each in self._devices if each.supervisor.state is not EngineState.DEAD]
        return " and ".join(each.ready.device for each in alive if each.ready is not None)

    @property
    def restarts(self) -> int:
        return sum(device.supervisor.restarts for device in self._devices)

    @property
    def death_reason(self) -> str:
        return "; ".join(filter(None, (device.supervisor.death_reason for device in self._devices)))

    async def start(self) -> Ready:
        """Start all workers. EngineFailure or BundleError when one does not come up, or they do not fit together."""
        starting = [asyncio.create_task(self._start(device)) for device in self._devices]
        try:
            await asyncio.gather(*starting)
            if self._is_optional and (reason := next((r.keeps for r in self._readies() if r.keeps), "")):
                await self._go_on_alone(reason)
            elif len(self._devices) > 1 and any(device.costs is None for device in self._devices):
                first = self._readies()[0].device
                self._log.warning("streams stay on %s: step times are not measured (--deterministic)", first)
            return joined(self._readies())
        except BaseException:
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
            await self.close()
            raise

    async def _start(self, device: GroupDevice) -> None:
        may_lack = self._is_optional and device is not self._devices[0]
        try:
            async with asyncio.timeout(self._optional_load_s if may_lack else None):
                ready = device.ready = await device.supervisor.start()
            device.costs = placement.DeviceCosts(ready.costs, ready.variants == ("free",)) if ready.costs else None
        except (HexserveError, TimeoutError) as error:
            if not may_lack:
                raise
            await self._without_others(error, "load")

    async def _without_others(self, error: HexserveError | TimeoutError, what: str) -> None:
        """Go on, unless the first device is what has ended. what: the other did not do in time."""
        if self._devices[0].supervisor.state in (EngineState.DEAD, EngineState.STOPPED):
            raise error
        await self._go_on_alone(str(error) or f"the other did not {what} in {self._optional_load_s:g} s")

    async def _go_on_alone(self, reason: str) -> None:
        """Without all devices but the first one; nothing of theirs has been asked for yet."""
        self._log.warning("devices is auto, and one device serves alone: %s", reason)
        await asyncio.gather(*(device.supervisor.close() for device in self._devices[1:]))
        del self._devices[1:]

    def _readies(self) -> list[Ready]:
        return [device.ready for device in self._devices if device.ready is not None]

    def check_room(self, request: Request | None = None) -> None:
        """Busy when no worker that may get the request, or any request, reads what it was already sent."""
        places = [self._placed.first_serving()]
        if request is None or placement.can_move(request):
            places = self._placed.serving() or places
        if not any(self._devices[index].supervisor.has_room for index in places):
            self._devices[places[0]].supervisor.check_room()

    def submit(self, request: Request, emitted: Sequence[int] = ()) -> None:
        """Take a request; it goes to the device that reads its prompt first."""
        may_move = placement.can_move(request)
        placed = self._placed
        index = placed.reader(len(request.prompt_ids) + len(emitted)) if may_move else placed.first_serving()
        placed.requests[request.id] = PlacedRequest(index, may_move)
        self._devices[index].supervisor.submit(request, emitted)

    def abort(self, request_id: str) -> None:
        placed = self._placed.requests.pop(request_id, None)
        if placed is not None:
            self._devices[placed.at].supervisor.abort(request_id)

    def drain(self) -> None:
        for device in self._devices:
            device.supervisor.drain()

    async def close(self) -> None:
        await asyncio.gather(*(device.supervisor.close() for device in self._devices))
        self.steps.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def check(self, prompt: tuple[int, ...]) -> Ready:
        """Hand a prompt from each device to the next; what serves now. BundleError where caches do not fit."""
        try:
            if len(self._devices) > 1:
                async with asyncio.timeout(self._optional_load_s if self._is_optional else None):
                    await self._check_pairs(prompt)
        except (HexserveError, TimeoutError) as error:
            if not self._is_optional:
                raise
            await self._without_others(error, "hand over")
        self._before = await self._at_rest()
        return joined(self._readies())

    async def _check_pairs(self, prompt: tuple[int, ...]) -> None:
        for giver, taker in pairwise((*range(len(self._devices)), 0)):
            names = [ready.device for index in (giver, taker) if (ready := self._devices[index].ready) is not None]
            path = self._folder / f"check {giver}.caches"
            kl = await self._check.loss(self._devices[giver].supervisor, self._devices[taker].supervisor, prompt, path)
            if kl > placement.MOST_LOSS:
                why = f"KL {kl:.2f} nats" if kl < math.inf else "none of them could be read there"
                told = f"keys and values from {names[0]} do not fit the bundle on {names[1]} ({why})"
                raise BundleError(f"devices: {told}: compile both of the same checkpoint anew")
            self._log.info("sequences may go from %s to %s: KL %.4f over a check", *names, kl)

    async def _at_rest(self) -> dict[str, float]:
        """Counters when the workers have told that nothing of a check runs any more, or have not for long."""
        for _ in range(MOST_LOOKS):
            all_stats = [device.supervisor.stats for device in self._devices]
            if not any(stats.running or stats.waiting for stats in all_stats):
                break
            await asyncio.sleep(LOOK_S)
        return summed(*all_stats)

    def _tell_watched(self, is_on: bool) -> None:
        for device in self._devices:
            device.supervisor.tell_watched(is_on)

    def _on_event(self, index: int, event: TokenEvent) -> None:
        if self._check.settle(event.id, event):
            return
        placed = self._placed.requests.get(event.id)
        if placed is not None and event.finish is not None:
            del self._placed.requests[event.id]
        elif placed is not None and event.token_ids:
            is_first, placed.reads = placed.reads, False
            self._consider(index, event.id, placed, is_first, len(event.token_ids))
        self._deliver(event)

    def _consider(self, index: int, request_id: str, placed: PlacedRequest, is_first: bool, new: int) -> None:
        """Behind the first token, and where the new ones fill a block: whether the next ones come cheaper elsewhere."""
        device = self._devices[index]
        pending = device.supervisor.pending.get(request_id)
        if not placed.may_move or placed.target is not None or pending is None:
            return
        if (not is_first and pending.tokens % BLOCK_SIZE >= new) or index not in self._placed.serving():
            return
        left = pending.request.params.max_tokens - len(pending.emitted)
        there = self._placed.writer(index, pending.tokens, left, self._token_ms)
        if there == index:
            return
        try:
            self._folder.mkdir(exist_ok=True)  # systems clean up where it lies
        except OSError as error:
            self._log.warning("a stream stays where it is: %s", error)
            return
        placed.target = there
        self._files += 1
        device.supervisor.hand_over(request_id, str(self._folder / f"{self._files}.caches"))

    def _on_handed(self, pending: PendingRequest) -> None:
        """One device has let go of a request: another one goes on with it."""
        if pending.caches:  # reading takes about as long as writing
            self._token_ms += OBSERVED_SHARE * (2 * pending.caches_ms / pending.tokens - self._token_ms)
        if self._check.settle(pending.request.id, pending):
            return
        placed = self._placed.requests[pending.request.id]
        target = placed.target if placed.target is not None else placed.at
        if not self._devices[target].supervisor.is_up:
            up = [index for index, device in enumerate(self._devices) if device.supervisor.is_up]
            target = up[0] if up else self._placed.first_serving()
        self.moves += target != placed.at
        self._move(pending, target)

    def _on_loss(self, index: int, pendings: Sequence[PendingRequest]) -> None:
        """A worker died: what it had goes to a device that serves, if there is one."""
        others = [at for at, device in enumerate(self._devices) if at != index and device.supervisor.is_up]
        unfinished = self._devices[index].supervisor.pending
        for pending in pendings:
            placed = self._placed.requests.get(pending.request.id)
            if placed is not None:
                placed.target = None
                if others and placed.may_move and unfinished.pop(pending.request.id, None) is not None:
                    pending.was_moved = True
                    self._move(pending, others[0])

    def _move(self, pending: PendingRequest, target: int) -> None:
        """To another device, or to the same one anew; what it has computed goes along in its caches."""
        placed = self._placed.requests[pending.request.id]
        reads = placed.reads or not pending.caches
        self._placed.requests[pending.request.id] = PlacedRequest(target, placed.may_move, reads=reads)
        self._devices[target].supervisor.adopt(pending)

    def _on_failure(self, request_id: str, error: HexserveError) -> None:
        if not self._check.settle(request_id, error):
            self._placed.requests.pop(request_id, None)
            self._fail(request_id, error)


def _own_folder() -> Path:
    """For files of caches. Those of servers that were killed are removed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDERS}*"):
        owner = folder.name.removeprefix(FOLDERS).partition("-")[0]
        if owner.isdecimal() and not process_is_alive(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{FOLDERS}{os.getpid()}-"))


def joined(readies: Sequence[Ready]) -> Ready:
    """The least that one of the workers can do; BundleError where one of several cannot hand over."""
    for ready in readies:
        if ready.keeps and len(readies) > 1:
            raise BundleError(f"devices: {ready.keeps}")
    return msgspec.structs.replace(
        readies[0],
        device=" and ".join(ready.device for ready in readies),
        max_tokens_per_sequence=min(ready.max_tokens_per_sequence for ready in readies),
        variants=tuple(f"{ready.device}: {variant}" for ready in readies for variant in ready.variants),
    )


Workers = Supervisor | DeviceGroup


def open_workers(
    config: EngineConfig,
    command: Sequence[str] | None,
    label: str,
    deliver: Callable[[TokenEvent], None],
    fail: Callable[[str, HexserveError], None],
) -> Workers:
    """By the settings; of the first worker by `command`, if there is one. Nothing has been started. In the log a
    device's worker has the name of its bundle's folder."""
    patience = Patience(polite_s=max(Patience().polite_s, config.save_s))
    bounds = HangBounds(config.step_timeout_s)
    first = command or worker_command(replace(config, devices=""), label)
    if not config.devices:
        return Supervisor(first, deliver, fail, patience, hang_bounds=bounds, label=label)
    other = worker_command(replace(config, bundle=config.devices, devices=config.bundle), label)  # it compares tokens
    make = [
        partial(Supervisor, own, patience=patience, hang_bounds=bounds, label=label or Path(bundle).name)
        for own, bundle in ((first, config.bundle), (other, config.devices))
    ]
    return DeviceGroup(make, deliver, fail, label, config.power == SAVER, config.devices_optional)
