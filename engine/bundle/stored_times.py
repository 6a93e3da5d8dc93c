"""What was measured on a machine, in files of the cache: step times of a bundle, and how many threads are fastest."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from engine.bundle.manifest import MANIFEST_FILE
from engine.bundle.variant import StepShape
from engine.files import MANIFEST_BYTES, MARKER_BYTES, read_bytes, write_whole

Count = Annotated[int, msgspec.Meta(ge=0)]
Milliseconds = Annotated[float, msgspec.Meta(gt=0)]
Stored = TypeVar("Stored", bound=msgspec.Struct)


class StoredTimes(msgspec.Struct, frozen=True):
    """Step times of one bundle on one machine."""

    times: tuple[tuple[Count, Count, Milliseconds], ...]  # rows, past columns, milliseconds of undisturbed shapes
    processor: str = ""
    cores: int = 0  # of the machine
    threads: int = 0  # the setting
    how: str = ""  # what else changes a step, for people
    disturbed: tuple[tuple[Count, Count, Milliseconds], ...] = ()  # of the other shapes

    def of_shapes(self) -> dict[StepShape, float]:
        return of_rows(self.times)


class ThreadTimes(msgspec.Struct, frozen=True):
    """Milliseconds of some matrices with so many threads: one row, and 32. others: the share of all cores that other
    programs had meanwhile."""

    threads: Annotated[int, msgspec.Meta(ge=1)]
    spins: bool
    few_ms: Milliseconds
    many_ms: Milliseconds
    others: float = 0.0


class StoredThreads(msgspec.Struct, frozen=True):
    """What was tried on one machine, the usual choice first."""

    tried: tuple[ThreadTimes, ...]
    processor: str = ""
    cores: int = 0  # that may be used


def of_rows(rows: Iterable[tuple[int, int, float]]) -> dict[StepShape, float]:
    return {StepShape(count, past): milliseconds for count, past, milliseconds in rows}


def rows_of(times: Mapping[StepShape, float]) -> tuple[tuple[int, int, float], ...]:
    return tuple((shape.rows, shape.past, milliseconds) for shape, milliseconds in times.items())


def times_file(costs: Path, bundle: Path, *rest: object) -> Path:
    """Where in the folder `costs` the times of a bundle are kept. rest: whatever else they depend on."""
    return costs / f"costs-{_bundle_key(bundle)}-{_digest(repr(rest).encode())}.json"


def threads_file(costs: Path, *machine: object) -> Path:
    """Where in the folder `costs` it is kept which threads are fastest. machine: whatever that depends on."""
    return costs / f"threads-{_digest(repr(machine).encode())}.json"


def load_times(path: Path) -> StoredTimes | None:
    """What was saved before; None when there is nothing, or it cannot be read."""
    return _load(path, StoredTimes)


def load_threads(path: Path) -> StoredThreads | None:
    """As `load_times`."""
    return _load(path, StoredThreads)


def _load(path: Path, kind: type[Stored]) -> Stored | None:
    try:
        return msgspec.json.decode(read_bytes(path, MARKER_BYTES), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def save(path: Path, stored: StoredTimes | StoredThreads) -> None:
    """OSError when it cannot be saved."""
    write_whole(path, msgspec.json.encode(stored))


def all_times(costs: Path, bundle: Path) -> list[StoredTimes]:
    """All that is stored in the folder `costs` of one bundle."""
    found = sorted(costs.glob(f"costs-{_bundle_key(bundle)}-*.json"))
    return [stored for path in found if (stored := load_times(path)) is not None]


def all_threads(costs: Path) -> list[StoredThreads]:
    """Of every machine that used the folder `costs`."""
    return [stored for path in sorted(costs.glob("threads-*.json")) if (stored := load_threads(path)) is not None]


def _bundle_key(bundle: Path) -> str:
    return _digest(read_bytes(bundle / MANIFEST_FILE, MANIFEST_BYTES))


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=12).hexdigest()
