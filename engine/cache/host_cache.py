"""Which pages of computed prefixes have a copy in the host KV cache: main memory that no graph is bound to.

A prefix there need not be computed again, and it widens no pass, which the same prefix in a pool might.
"""

from collections import OrderedDict

from engine.cache.prefix import PageKey


class HostCache:
    """Keys of at most `limit` pages, least recently used first. The bytes are the runtime's."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._keys: OrderedDict[PageKey, None] = OrderedDict()

    def __contains__(self, key: PageKey) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def keys(self) -> tuple[PageKey, ...]:
        """What has a copy, least recently used first."""
        return tuple(self._keys)

    def put(self, key: PageKey) -> tuple[PageKey, ...]:
        """Add a key, or mark it as just used. Returns the keys to evict, so that `limit` holds."""
        self._keys[key] = None
        self._keys.move_to_end(key)
        evicted = []
        while len(self._keys) > self.limit:
            evicted.append(self._keys.popitem(last=False)[0])
        return tuple(evicted)

    def clear(self) -> tuple[PageKey, ...]:
        """Forget everything. Returns the keys that were there, to evict."""
        keys = tuple(self._keys)
        self._keys.clear()
        return keys

    def touch(self, key: PageKey) -> None:
        """Mark a key as just used."""
        self._keys.move_to_end(key)
