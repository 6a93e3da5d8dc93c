"""Step times of a bundle as they were measured on a machine, in a file of the cache."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from engine.bundle.manifest import MANIFEST_FILE
from engine.bundle.variant import StepShape
from engine.files import MANIFEST_BYTES, MARKER_BYTES, read_bytes, write_whole

Count = Annotated[int, msgspec.Meta(ge=0)]
Milliseconds = Annotated[float, msgspec.Meta(gt=0)]


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


def of_rows(rows: Iterable[tuple[int, int, float]]) -> dict[StepShape, float]:
    return {StepShape(count, past): milliseconds for count, past, milliseconds in rows}


def rows_of(times: Mapping[StepShape, float]) -> tuple[tuple[int, int, float], ...]:
    return tuple((shape.rows, shape.past, milliseconds) for shape, milliseconds in times.items())


def times_file(costs: Path, bundle: Path, *rest: object) -> Path:
    """Where in the folder `costs` the times of a bundle are kept. rest: whatever else they depend on."""
    return costs / f"costs-{_bundle_key(bundle)}-{_digest(repr(rest).encode())}.json"


def load_times(path: Path) -> StoredTimes | None:
    """What was saved before; None when there is nothing, or it cannot be read."""
    try:
        return msgspec.json.decode(read_bytes(path, MARKER_BYTES), type=StoredTimes)
    except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def save_times(path: Path, stored: StoredTimes) -> None:
    """Save times. OSError."""
    write_whole(path, msgspec.json.encode(stored))


def all_times(costs: Path, bundle: Path) -> list[StoredTimes]:
    """All that is stored in the folder `costs` of one bundle."""
    found = sorted(costs.glob(f"costs-{_bundle_key(bundle)}-*.json"))
    return [stored for path in found if (stored := load_times(path)) is not None]


def _bundle_key(bundle: Path) -> str:
    return _digest(read_bytes(bundle / MANIFEST_FILE, MANIFEST_BYTES))


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=12).hexdigest()
