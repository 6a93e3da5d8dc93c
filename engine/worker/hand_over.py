"""A sequence leaves for another worker of the same model, or comes from one: its full blocks lie in a file between.

The file: keys of the blocks, uint8 [blocks, 16], then what `BlockValues` reads of them, [blocks, 2, L, K, n, D]; two
arrays in NumPy's format. The other worker finds the blocks as it finds any prefix that it has computed itself.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.bundle.manifest import Manifest
from engine.core.kv_blocks import BlockKey
from engine.core.scheduler import Scheduler
from engine.runtime.block_values import BlockValues, why_not
from engine.runtime.interface import Runtime, block_slots


@dataclass(frozen=True, slots=True)
class CachedBlocks:
    """Of one worker. Nothing else may run meanwhile."""

    scheduler: Scheduler
    runtime: Runtime

    def content(self, block: int, key: BlockKey) -> bytes:
        """What lies in a block of the pool, or in host memory under its key."""
        is_there = key in self.scheduler.host_cache
        if not is_there:
            self.runtime.offload(block_slots(block), key)
        content = self.runtime.offloaded(key)
        if not is_there:
            self.runtime.evict(key)
        return content

    def put(self, key: BlockKey, content: bytes) -> bool:
        """Let the content be found under its key; whether there is room for it."""
        self.runtime.put_offloaded(key, content)
        host = self.scheduler.host_cache
        if host.limit:
            for evicted in host.put(key):
                self.runtime.evict(evicted)
            return True
        blocks = self.scheduler.blocks
        fresh = blocks.allocate(1)
        if fresh is not None:
            self.runtime.load(block_slots(fresh[0]), key)
            blocks.register(fresh[0], key)
            blocks.release(fresh)
        self.runtime.evict(key)
        return fresh is not None

    def is_known(self, key: BlockKey) -> bool:
        """Whether its contents are there already."""
        return key in self.scheduler.host_cache or bool(self.scheduler.blocks.lookup((key,)))


log = logging.getLogger("hexserve.worker")

KEY_BYTES = 16


class SequenceMover:
    """Of one worker, between two steps."""

    def __init__(self, folder: Path, manifest: Manifest, scheduler: Scheduler, runtime: Runtime) -> None:
        self._values = BlockValues(folder, manifest)
        self._scheduler = scheduler
        self._runtime = runtime
        self._blocks = CachedBlocks(scheduler, runtime)

    def give(self, sequence_id: str, path: Path) -> int:
        """Write the full blocks of a sequence that runs; how many. Without them it will be computed again."""
        found = self._scheduler.computed_blocks(sequence_id)
        if not found:
            return 0
        self._runtime.move(self._scheduler.take_moves())
        contents = (self._blocks.content(block, key) for block, key in found)
        values = np.stack([self._values.read(content).astype(self._values.dtype) for content in contents])
        try:
            with path.open("wb") as stream:
                np.save(stream, np.frombuffer(b"".join(key for _, key in found), np.uint8).reshape(-1, KEY_BYTES))
                np.save(stream, values)
        except OSError as error:
            log.warning("what was computed cannot be handed over: %s", error)
            path.unlink(missing_ok=True)
            return 0
        return len(found)

    def take(self, path: Path) -> int:
        """Take in the blocks of a file and remove it; how many are new. What is missing will be computed."""
        taken = 0
        try:
            with path.open("rb") as stream:
                keys, values = (np.load(stream, allow_pickle=False) for _ in range(2))
            self._runtime.move(self._scheduler.take_moves())
            for key, pair in zip(keys, values, strict=True):
                name = key.tobytes()
                if self._blocks.is_known(name):
                    continue
                if not self._blocks.put(name, self._values.write(pair)):
                    break
                taken += 1
        except (OSError, ValueError, EOFError) as error:
            log.warning("what another device computed cannot be read: %s", error)
        path.unlink(missing_ok=True)
        return taken


def reason_to_keep(manifest: Manifest, scheduler: object, runtime: Runtime, prefix_cache: bool) -> str:
    """Why sequences of a bundle cannot be handed over as it is run here; "" where they can."""
    if not isinstance(scheduler, Scheduler) or not runtime.stores_blocks:
        return f"{manifest.name} has no cached blocks that could be handed over"
    if not prefix_cache:
        return "prefix_cache, which finds what is handed over, is off"
    reason = why_not(manifest)
    return "" if reason is None else f"{manifest.name} {reason}"
