"""Which keys are kept: at most so many, least recently used first, never one that is needed."""

from engine.core.kv_blocks import RecentKeys


def test_the_least_recently_used_goes_first() -> None:
    keys = RecentKeys(3)
    assert [keys.put(key) for key in (b"a", b"b", b"c")] == [[], [], []]
    assert keys.put(b"a") == []  # is there: only used again
    keys.touch(b"b")
    assert keys.put(b"d") == [b"c"]
    assert keys.put(b"e") == [b"a"]
    assert (b"b" in keys, b"c" in keys, len(keys)) == (True, False, 3)


def test_what_is_needed_stays_although_there_are_too_many() -> None:
    keys = RecentKeys(1)
    keys.put(b"a")
    assert keys.put(b"b", {b"a"}) == []
    assert keys.put(b"c") == [b"a", b"b"]
    assert len(keys) == 1


def test_discard() -> None:
    keys = RecentKeys(3)
    for key in (b"a", b"b", b"c"):
        keys.put(key)
    assert (keys.discard(b"a"), keys.discard(b"a")) == (True, False)
    assert b"c" in keys and len(keys) == 2
