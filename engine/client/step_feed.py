"""What every step was, for whoever watches. Nobody waits for a watcher: one that reads too slowly misses steps."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

import msgspec

from engine.errors import Busy, BusyReason
from engine.messages import StepRecord

MOST_WATCHERS = 16
KEPT_RECORDS = 512  # for a watcher that reads slowly; half a second of a very small model


class StepWatch:
    """The steps since it was opened. One reader, on the engine's event loop."""

    def __init__(self, leave: Callable[["StepWatch"], None]) -> None:
        self._leave = leave
        self._records: deque[StepRecord] = deque()
        self._dropped = 0
        self._ended = False
        self._filled = asyncio.Event()

    async def read(self) -> tuple[list[StepRecord], int]:
        """What has come, at least one record, and how many the reader missed before; nothing when it has ended."""
        while not (self._records or self._ended):
            self._filled.clear()
            await self._filled.wait()
        records, dropped = list(self._records), self._dropped
        self._records.clear()
        self._dropped = 0
        return records, dropped

    def give(self, record: StepRecord) -> None:
        if len(self._records) >= KEPT_RECORDS:
            self._records.popleft()
            self._dropped += 1
        self._records.append(record)
        self._filled.set()

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self._leave(self)
            self._filled.set()


class StepFeed:
    """Hands records to all watchers; their times begin when somebody began to watch, by the `clock` of all workers.
    `tell` says to the worker whether anybody watches; called when that changes."""

    def __init__(self, tell: Callable[[bool], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._clock = tell, clock
        self._since_ms = 0.0
        self._watches: set[StepWatch] = set()
        self._is_closed = False
        self._workers = 0

    def join(self) -> int:
        """The place of another worker that will give records; all join before the first one does."""
        self._workers += 1
        return self._workers - 1

    @property
    def is_watched(self) -> bool:
        return bool(self._watches)

    def open(self) -> StepWatch:
        """A new watch, which whoever opened it ends; Busy when there are too many or no step will come any more."""
        if self._is_closed:
            raise Busy.shutting_down()
        if len(self._watches) >= MOST_WATCHERS:
            raise Busy(f"The steps are watched {MOST_WATCHERS} times already.", BusyReason.WATCHERS, retry_after_s=5.0)
        watch = StepWatch(self._left)
        self._watches.add(watch)
        if len(self._watches) == 1:
            self._since_ms = 1000.0 * self._clock()
            self._tell(True)
        return watch

    def give(self, record: StepRecord, place: int = 0) -> None:
        """A record of the worker at that place. Of several workers no two steps or sequences keep the same number."""
        changed, several = msgspec.structs.replace, max(1, self._workers)
        segments = [changed(each, sequence=each.sequence * several + place) for each in record.segments]
        began_ms, number = round(record.began_ms - self._since_ms, 3), record.number * several + place
        record = changed(record, began_ms=began_ms, number=number, segments=tuple(segments))
        for watch in self._watches:
            watch.give(record)

    def close(self) -> None:
        self._is_closed = True
        for watch in list(self._watches):
            watch.end()

    def _left(self, watch: StepWatch) -> None:
        self._watches.discard(watch)
        if not self._watches:
            self._tell(False)
