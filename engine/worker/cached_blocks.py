"""Blocks of known contents as bytes: out of the pool and the host memory of a worker, and in."""

from dataclasses import dataclass

from engine.core.kv_blocks import BlockKey
from engine.core.scheduler import Scheduler
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
