"""Which page contents lie in the host cache: copies outside the pools, so that a prefix in them costs no pass width."""

from collections import OrderedDict

from engine.cache.prefix import PageKey


class HostCache:
    """Keys of the copies, least recently used first. The runtime holds the bytes and follows what this says."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._keys: OrderedDict[PageKey, None] = OrderedDict()

    def __contains__(self, key: PageKey) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def put(self, key: PageKey) -> tuple[PageKey, ...]:
        """Add or refresh a key; the keys that must go so that `limit` holds."""
        self._keys[key] = None
        self._keys.move_to_end(key)
        dropped = []
        while len(self._keys) > self.limit:
            dropped.append(self._keys.popitem(last=False)[0])
        return tuple(dropped)

    def clear(self) -> tuple[PageKey, ...]:
        """Forget everything; the keys that were there."""
        keys = tuple(self._keys)
        self._keys.clear()
        return keys

    def touch(self, key: PageKey) -> None:
        """Mark a key as just used."""
        self._keys.move_to_end(key)
