"""Which copies the host cache gives up."""

from engine.core.kv_blocks import RecentKeys


def test_the_least_recently_used_goes_first() -> None:
    cache = RecentKeys(3)
    assert [cache.put(key) for key in (b"a", b"b", b"c")] == [[], [], []]
    assert cache.put(b"a") == []  # is there: only used again
    cache.touch(b"b")
    assert cache.put(b"d") == [b"c"]
    assert cache.put(b"e") == [b"a"]
    assert (b"b" in cache, b"c" in cache, len(cache)) == (True, False, 3)
