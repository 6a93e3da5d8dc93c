"""What the writer of keys and values does, as events."""

from collections.abc import Callable
from typing import Any

from engine.runtime.pools import KvWrites


def watch_writes(writes: KvWrites, observe: Callable[[str], None]) -> None:
    """Tell which layers it begins to write, and which it has written."""
    run = writes._run

    def told(write: Any) -> None:
        name = f"layers {write.layers.start} to {write.layers.stop - 1}"
        observe(f"writing {name}")
        run(write)
        observe(f"wrote {name}")

    writes._run = told  # type: ignore[method-assign]
