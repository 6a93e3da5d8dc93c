"""Which snapshots there are: at most so many, least recently used first, never one that is needed."""

from engine.core.kv_blocks import RecentKeys


def test_the_least_recently_used_goes_first() -> None:
    snapshots = RecentKeys(2)
    assert [snapshots.put(key, ()) for key in (b"a", b"b")] == [[], []]
    snapshots.touch(b"a")
    assert snapshots.put(b"c", ()) == [b"b"]
    assert (b"a" in snapshots, b"b" in snapshots, b"c" in snapshots, len(snapshots)) == (True, False, True, 2)


def test_what_is_needed_stays_although_there_are_too_many() -> None:
    snapshots = RecentKeys(1)
    snapshots.put(b"a", ())
    assert snapshots.put(b"b", {b"a"}) == []
    assert snapshots.put(b"c", ()) == [b"a", b"b"]
    assert len(snapshots) == 1


def test_putting_again_is_using() -> None:
    snapshots = RecentKeys(2)
    for key in (b"a", b"b", b"a"):
        snapshots.put(key, ())
    assert snapshots.put(b"c", ()) == [b"b"]


def test_discard() -> None:
    snapshots = RecentKeys(3)
    for key in (b"a", b"b", b"c"):
        snapshots.put(key, ())
    assert (snapshots.discard(b"a"), snapshots.discard(b"a")) == (True, False)
    assert b"c" in snapshots and len(snapshots) == 2
