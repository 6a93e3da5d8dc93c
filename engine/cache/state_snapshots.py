"""Which prefixes have a snapshot of what recurrent layers carried at their end. The bytes are the runtime's."""

from collections import OrderedDict
from collections.abc import Collection

from engine.cache.prefix import PageKey


class StateSnapshots:
    """Keys of at most `limit` prefixes, least recently used first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._keys: OrderedDict[PageKey, None] = OrderedDict()

    def __contains__(self, key: PageKey) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def put(self, key: PageKey, needed: Collection[PageKey]) -> list[PageKey]:
        """Add a key. Returns what has to go, so that `limit` holds; nothing that is `needed`."""
        self._keys[key] = None
        self._keys.move_to_end(key)
        surplus = len(self._keys) - self.limit
        old = [other for other in self._keys if other not in needed and other != key][: max(0, surplus)]
        for other in old:
            del self._keys[other]
        return old

    def touch(self, key: PageKey) -> None:
        """Mark a key as just used."""
        self._keys.move_to_end(key)

    def discard(self, key: PageKey) -> bool:
        """Forget a key; whether it was there."""
        return key in self._keys and self._keys.pop(key) is None

    def clear(self, needed: Collection[PageKey]) -> list[PageKey]:
        """Forget all but what is needed. Returns what has gone."""
        old = [key for key in self._keys if key not in needed]
        for key in old:
            del self._keys[key]
        return old
