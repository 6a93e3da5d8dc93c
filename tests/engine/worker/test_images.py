"""The queue of requests that wait for their images: once for each digest, beside everything else."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from engine.bundle.variant import StepShape
from engine.errors import StepFailed
from engine.request import PromptImage, Request, SamplingParams
from engine.worker.images import ImageQueue
from tests.engine.worker.simulation import by_hand, fixed, simulate

ROWS = 64
GUARD_S = 30.0


def request(name: str, *digests: bytes) -> Request:
    images = tuple(PromptImage(index * 4, 4, digest, b"pixels") for index, digest in enumerate(digests))
    return Request(name, (7,) * 16, SamplingParams(4, temperature=0.0), images=images)


class Bench:
    """A queue whose encoder waits until it may go on."""

    def __init__(self, kept_bytes: int = 1 << 20) -> None:
        self.encoded: list[bytes] = []
        self.added: list[Request] = []
        self.has_begun = threading.Event()
        self.may_go_on = threading.Event()
        self.queue = ImageQueue(self.encode, kept_bytes)

    def encode(self, image: PromptImage) -> bytes:
        self.has_begun.set()
        self.may_go_on.wait(GUARD_S)
        self.encoded.append(image.digest)
        if image.digest == b"bad":
            raise StepFailed("the vision graph failed")
        return image.digest.ljust(ROWS, b".")

    def add(self, *requests: Request) -> None:
        for each in requests:
            self.queue.add(each, self.added.append)

    def settle(self) -> list[str]:
        """Let everything be encoded; the ids of those that failed."""
        self.may_go_on.set()
        failed = []
        while self.queue.has_waiting:
            self.queue.wait(1.0)
            ready, failures = self.queue.take_ready()
            failed += [failure.id for failure in failures]
            for each, add in ready:
                add(each)
        return failed


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.may_go_on.set()
    made.queue.close()


def test_an_image_is_encoded_once_for_all_who_show_it(bench: Bench) -> None:
    bench.add(request("a", b"x", b"y"), request("b", b"x"))
    assert bench.queue.take_ready() == ([], [])
    bench.settle()
    bench.add(request("c", b"y", b"x"))
    bench.settle()
    assert bench.encoded == [b"x", b"y"]
    rows = {each.id: [image.features[:1] for image in each.images] for each in bench.added}
    assert rows == {"a": [b"x", b"y"], "b": [b"x"], "c": [b"y", b"x"]}
    assert all(image.pixels == b"" for each in bench.added for image in each.images)


def test_who_has_left_is_not_encoded_for(bench: Bench) -> None:
    bench.add(request("a", b"x"), request("b", b"y"), request("c", b"z", b"y"))
    bench.queue.forget("b")
    bench.queue.forget("c")
    bench.queue.forget("unknown")
    assert bench.settle() == []
    assert bench.encoded == [b"x"]
    assert [each.id for each in bench.added] == ["a"]


def test_nobody_waits_for_the_image_of_one_who_has_left(bench: Bench) -> None:
    """It is at the encoder, so it is encoded; that there are its rows keeps no idle loop busy."""
    bench.add(request("a", b"x"))
    assert bench.has_begun.wait(GUARD_S) and bench.queue.wait(0.0)
    bench.queue.forget("a")
    assert not bench.queue.wait(GUARD_S)
    bench.may_go_on.set()
    bench.add(request("b", b"x"))
    bench.settle()
    assert bench.encoded == [b"x"] and [each.id for each in bench.added] == ["b"]
    assert not bench.queue.wait(GUARD_S)


def test_a_failure_is_its_own_requests_alone(bench: Bench) -> None:
    bench.add(request("a", b"bad", b"x"), request("b", b"x"))
    assert bench.settle() == ["a"]
    assert [each.id for each in bench.added] == ["b"]


def test_the_least_recently_used_rows_go_first(bench: Bench) -> None:
    bench.queue = ImageQueue(bench.encode, kept_bytes=2 * ROWS)
    for digest in (b"x", b"y", b"x", b"z", b"x", b"y"):
        bench.add(request("a", digest))
        bench.settle()
    assert bench.encoded == [b"x", b"y", b"z", b"y"]
    bench.queue.close()


def test_decodes_go_on_while_an_image_is_encoded(bench: Bench) -> None:
    """Every step gives a token of those that decode and a new prompt is read, however long the encoder takes."""
    world = simulate(fixed((32, 480)), images=bench.queue)
    world.submit("decoding", (1, 2, 3), 60)
    world.step()
    seeing = request("seeing", b"x")
    world.loop.add(seeing, (), 1, now_s=0.0)
    assert bench.has_begun.wait(GUARD_S)
    world.submit("later", (4, 5, 6), 5)
    for tokens in range(2, 42):
        world.step()
        assert len(world.outputs["decoding"]) == tokens
    assert world.outputs["later"] == by_hand((4, 5, 6), 5)
    assert bench.encoded == [] and "seeing" not in world.outputs
    bench.may_go_on.set()
    while world.loop.has_work:
        world.step()
    assert world.outputs["decoding"] == by_hand((1, 2, 3), 60)
    assert world.outputs["seeing"] == by_hand(seeing.prompt_ids, seeing.params.max_tokens)
    assert world.failures == {}


def test_a_loop_waits_for_its_images_alone(bench: Bench) -> None:
    """It has work but no step; who leaves meanwhile is heard of no more, and a failure is told of."""
    world = simulate(fixed((32, 480)), images=bench.queue)
    world.loop.add(request("seeing", b"x"), (), 1, now_s=0.0)
    world.loop.add(request("bad", b"bad"), (), 1, now_s=0.0)
    world.loop.add(request("gone", b"y"), (), 1, now_s=0.0)
    assert bench.has_begun.wait(GUARD_S) and world.loop.has_work
    world.step()
    assert not world.runtime.steps and world.outputs == {}
    world.loop.abort("gone")
    bench.may_go_on.set()
    while world.loop.has_work:
        world.step()
    assert list(world.outputs) == ["seeing"] and list(world.failures) == ["bad"]
    assert bench.encoded == [b"x", b"bad"]


def test_a_prompt_that_cannot_run_is_the_clients_fault_once_its_image_is_encoded(bench: Bench) -> None:
    world = simulate(fixed((8, 56)), images=bench.queue)
    long = replace(request("long", b"x"), prompt_ids=(7,) * 100)
    world.loop.add(long, (), 1, now_s=0.0)
    bench.may_go_on.set()
    failures = []
    while world.loop.has_work:
        failures += world.loop.step().failures
    assert [(failure.id, failure.kind) for failure in failures] == [("long", "invalid")]
    assert "100 tokens leave no room" in failures[0].message


def test_each_image_that_alone_is_read_is_told_of_as_a_step_of_unknown_length() -> None:
    """So that nobody takes a worker that reads image after image for one that hangs in the step before."""
    turns = threading.Semaphore(0)
    images = ImageQueue(lambda _: b"." * ROWS * turns.acquire(timeout=GUARD_S))
    world, told = simulate(fixed((32, 480)), images=images, costs={StepShape(32, 480): 40.0}), list[float]()
    world.submit("text", (1, 2, 3), 1)
    world.loop.step(told.append)
    world.loop.add(request("a", b"x", b"y", b"z"), (), 1, now_s=0.0)
    for encoded in range(3):
        while images.encoded < encoded:
            world.loop.step(told.append)
        for _ in range(3):
            world.loop.step(told.append)
        assert told == [40.0, *[0.0] * (encoded + 1)]
        turns.release()
    while world.loop.has_work:
        world.loop.step(told.append)
    assert len(told) == 8 and all(told[4:])  # the steps of its tokens, as long as steps were seen to be
    images.close()
