"""Texts that run together have neighbouring slots; a sound finds the slot that has heard it."""

from engine.core.text_scheduler import SpeechSlots


def test_a_hole_among_the_taken_is_filled_first() -> None:
    slots = SpeechSlots(4)
    assert [slots.take(name, name.encode()) for name in "abc"] == [0, 1, 2]
    slots.release("b")
    assert slots.take("d", b"d") == 1


def test_what_was_heard_is_found_and_kept_longest() -> None:
    slots = SpeechSlots(3)
    for name in ("a", "b"):
        slots.take(name, name.encode())
        slots.release(name)
    assert slots.take("again", b"a") == 0
    slots.release("again")
    assert [slots.take(name, b"new") for name in "cd"] == [2, 1]
