"""Which texts of an encoder share a step: as many as fit, the smallest variant that holds them, no request starved."""

from collections import Counter
from random import Random

import pytest

from engine.core.text_scheduler import TURNS_PER_STEP, TextQueue, caller_of

VARIANTS = (32, 128, 512)


def queue_of(requests: dict[str, list[int]]) -> TextQueue:
    queue = TextQueue(VARIANTS)
    for request, sizes in requests.items():
        for number, size in enumerate(sizes):
            queue.add(f"{request}-{number}", request, size)
    return queue


def test_the_smallest_variant_that_holds_the_texts() -> None:
    assert queue_of({"a": [20, 12]}).take() == (32, ("a-0", "a-1"))
    assert queue_of({"a": [20, 13]}).take() == (128, ("a-0", "a-1"))
    assert queue_of({"a": [500, 30, 12]}).take() == (512, ("a-0", "a-2"))
    assert queue_of({"a": [129]}).take() == (512, ("a-0",))


def test_texts_of_one_http_request_belong_together() -> None:
    assert caller_of("bulk-1-63#63") == "bulk-1"
    assert caller_of("plain") == "plain"


def test_nothing_waits() -> None:
    queue = TextQueue(VARIANTS)
    assert queue.take() == (0, ())
    assert len(queue) == 0


def test_what_fits_nowhere_is_refused() -> None:
    queue = TextQueue(VARIANTS)
    for size in (0, 513):
        with pytest.raises(ValueError, match=f"a text has {size} tokens"):
            queue.add("a", "a", size)


def test_rows_that_are_left_are_filled_by_texts_behind() -> None:
    """The first text of a request goes first all the same."""
    queue = queue_of({"a": [300, 300, 100, 100]})
    assert queue.take() == (512, ("a-0", "a-2", "a-3"))
    assert queue.take() == (512, ("a-1",))


def test_a_text_may_be_alone_in_its_step() -> None:
    queue = TextQueue(VARIANTS, alone=True)
    for name, size in (("a", 20), ("b", 5), ("c", 100)):
        queue.add(name, name, size)
    assert [queue.take() for _ in range(4)] == [(32, ("a",)), (32, ("b",)), (128, ("c",)), (0, ())]


def test_requests_take_turns_by_rows() -> None:
    """The one with long texts gets as many rows as the one with short ones."""
    queue = queue_of({"long": [128] * 8, "short": [32] * 64})
    rows: Counter[str] = Counter()
    for _ in range(4):
        for name in queue.take()[1]:
            rows[name.partition("-")[0]] += 128 if name.startswith("long") else 32
    assert rows == {"long": 1024, "short": 1024}


def test_a_text_longer_than_a_turn_waits_for_some_turns_only() -> None:
    """It saves the credit of four; meanwhile the others have four turns of a quarter of a step each."""
    queue = queue_of({"short": [32] * 40, "long": [512]})
    steps = [queue.take()[1] for _ in range(3)]
    assert [("long-0" in texts) for texts in steps] == [False, True, False]


def test_priority_goes_before_turns() -> None:
    queue = TextQueue((32,))
    queue.add("usual", "usual", 20)
    queue.add("urgent", "urgent", 20, priority=-1)
    assert queue.take() == (32, ("urgent",))


def test_a_text_that_is_removed_takes_no_rows() -> None:
    queue = queue_of({"a": [20, 20], "b": [20]})
    for name in ("a-0", "b-0", "nobody"):
        queue.remove(name)
    assert "a-0" not in queue and "a-1" in queue
    assert queue.take() == (32, ("a-1",))


def test_a_stream_of_new_requests_starves_none_that_waits() -> None:
    """Each of them would fill a step, and one comes every second step: the first has the other half."""
    queue = TextQueue((512,))
    for number in range(50):
        queue.add(f"first-{number}", "first", 512)
    done = 0
    for number in range(100):
        if number % 2:
            queue.add(f"late{number}", f"late{number}", 512)
        done += queue.take()[1][0].startswith("first")
    assert done == 50


@pytest.mark.parametrize("seed", range(60))
def test_the_bound_on_how_long_a_small_request_waits(seed: int) -> None:
    """The module's promise, for a small request that meets bulk requests which never run dry."""
    random = Random(seed)
    others, most, credit = random.choice([1, 1, 2, 5]), VARIANTS[-1], VARIANTS[-1] // TURNS_PER_STEP
    longest = random.choice([8, 60, 512])
    queue = TextQueue(VARIANTS)
    waiting = [0] * others
    names = iter(range(1_000_000))

    def feed() -> None:
        """Each bulk request has 64 texts waiting at all times."""
        for bulk in range(others):
            while waiting[bulk] < 64:
                queue.add(f"{bulk}-{next(names)}", f"bulk{bulk}", random.randint(1, longest))
                waiting[bulk] += 1

    def take() -> list[str]:
        """The texts of the small request in the next step."""
        feed()
        rows, texts = queue.take()
        assert rows in VARIANTS
        for text in texts:
            if not text.startswith("small"):
                waiting[int(text.partition("-")[0])] -= 1
        return [text for text in texts if text.startswith("small")]

    for _ in range(random.randint(0, 10)):
        take()
    feed()
    sizes = [random.randint(1, longest) for _ in range(random.choice([1, 3, 20]))]
    for number, size in enumerate(sizes):
        queue.add(f"small-{number}", "small", size)
    left, steps, total = len(sizes), 0, sum(sizes)
    turns = -(-total // credit)
    bound = 2 * (total + others * (turns * credit + longest)) / most + 1
    while left:
        left -= len(take())
        steps += 1
        assert steps <= bound


@pytest.mark.parametrize("seed", range(40))
def test_every_step_fits_and_leaves_no_row_that_a_text_could_have_had(seed: int) -> None:
    random = Random(seed)
    requests = {str(n): [random.randint(1, 512) for _ in range(5)] for n in range(random.randint(1, 6))}
    sizes = {f"{request}-{n}": size for request, found in requests.items() for n, size in enumerate(found)}
    queue = queue_of(requests)
    while len(queue):
        rows, texts = queue.take()
        used = sum(map(sizes.pop, texts))
        assert rows == min(variant for variant in VARIANTS if variant >= used)
        assert all(size > VARIANTS[-1] - used for size in sizes.values())
    assert not sizes
