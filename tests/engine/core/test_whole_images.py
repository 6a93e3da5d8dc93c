"""Images whose rows see each other both ways: each is one segment of one step, and no prefix ends in one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bundle.variant import StepShape, pin
from engine.core.policy import CostTable, Demand, Extent, PromptPiece, share_rows
from engine.core.rows import open_rows
from engine.core.sequence import Sequence
from engine.request import PromptImage, Request, SamplingParams
from tests.engine.worker.simulation import Simulation, by_hand, segmented, sequence_of, simulate

ROWS = 40
WHITE, BLACK = b"w" * 32, b"b" * 32
Places = tuple[tuple[int, int], ...]  # first row and rows of each image


def asked(name: str, places: Places, tokens: int, answer: int = 3, digest: bytes = WHITE, last: int = 7) -> Request:
    """A prompt whose tokens count up, but for the last one."""
    images = tuple(
        PromptImage(first, count, digest, b"", np.zeros((count, 2), "<f4").tobytes(), both_ways=True)
        for first, count in places
    )
    ids = (*(index % 50 for index in range(tokens - 1)), last)
    return Request(name, ids, SamplingParams(max_tokens=answer, temperature=0.0), images=images)


def add(world: Simulation, request: Request) -> None:
    world.outputs[request.id] = []
    world.scheduler.add(request, (), 1, 0.0)


def segments_of(world: Simulation, name: str) -> list[tuple[int, int, int]]:
    """First position, rows, and rows that see each other of every segment of a prompt."""
    found = [part for batch in world.runtime.steps for part in batch.segments if part.owner == name]
    return [(part.past, part.count, part.block_rows) for part in found]


def test_an_image_is_scored_whole_and_leaves_no_row_to_the_next() -> None:
    """Even where log-probabilities of fewer rows are read in a step."""
    whole, after = (
        Sequence(replace(asked(name, ((0, 20),), 24), params=SamplingParams(3, prompt_logprobs=0)), order, 0, [1] * 24)
        for order, name in enumerate(("whole", "after"))
    )
    assert [rows for _, rows in open_rows([whole, after], (), 16)] == [20, 0]


@st.composite
def prompts(draw: st.DrawFn) -> tuple[Places, int]:
    """Images with texts between them, some of none, and text behind."""
    places, row = [], 0
    for gap, count in draw(st.lists(st.tuples(st.integers(0, 60), st.integers(2, ROWS)), max_size=4)):
        places.append((row + gap, count))
        row += gap + count
    return tuple(places), row + draw(st.integers(1, 50))


@settings(deadline=None, max_examples=60)
@given(st.lists(prompts(), min_size=1, max_size=4), st.integers(0, 5), st.sampled_from([ROWS, 64]), st.booleans())
def test_an_image_is_one_segment_and_text_stops_before_it(
    given_prompts: list[tuple[Places, int]], decodes: int, rows: int, is_pinned: bool
) -> None:
    shapes = segmented(rows, 4096)
    world = simulate(pin(shapes, rows) if is_pinned else shapes)
    for index in range(decodes):
        world.submit(f"d{index}", (index + 1, 2, 3), 60)
    world.step()
    for index, (places, tokens) in enumerate(given_prompts):
        add(world, asked(f"p{index}", places, tokens, digest=bytes([index]) * 32))
    world.run()
    for index, (places, tokens) in enumerate(given_prompts):
        request = asked(f"p{index}", places, tokens)
        assert world.outputs[request.id] == by_hand(request.prompt_ids, 3)
        found = segments_of(world, request.id)
        images = [part for part in found if (part[0], part[1]) in places]
        assert [(first, count) for first, count, _ in images] == list(places)
        assert all(together == count for _, count, together in images)
        for first, count, together in set(found) - set(images):
            assert together == 1
            assert not any(first < start + size and start < first + count for start, size in places)
    assert all(world.outputs[f"d{index}"] == by_hand((index + 1, 2, 3), 60) for index in range(decodes))


@pytest.mark.parametrize(("first", "cached"), [(20, 16), (16, 16), (10, 0), (34, 32)])
def test_a_known_prefix_that_ends_in_an_image_ends_before_it(first: int, cached: int) -> None:
    """Of 55 rows three blocks are full, of which the last ends in the image."""
    world, places = simulate(segmented(64, 512)), ((first, 50 - first),)
    for name, last in (("a", 7), ("b", 8)):
        add(world, asked(name, places, 55, last=last))
        world.run()
    assert world.cached["b"] == cached
    assert segments_of(world, "b")[:1] == [(cached, first - cached, 1)] or first == cached
    assert (first, 50 - first, 50 - first) in segments_of(world, "b")


def test_a_prefix_goes_on_behind_the_same_image_and_not_behind_another() -> None:
    world, places = simulate(segmented(64, 512)), ((8, 30),)
    for name, digest in (("a", WHITE), ("b", WHITE), ("c", BLACK)):
        add(world, asked(name, places, 80, digest=digest))
        world.run()
    assert (world.cached["b"], world.cached["c"]) == (64, 0)


def test_before_an_image_is_another_that_a_block_ends_in() -> None:
    sequence = sequence_of("a")
    images = asked("a", ((5, 30), (40, 30)), 100).images
    sequence.request = Request("a", (1,) * 100, SamplingParams(max_tokens=1), images=images)
    # 64 lies in the second image, which begins at 40: block 2 ends there, at 32 in the first, which begins at 5.
    assert [sequence.shareable_blocks(blocks, 16) for blocks in range(7)] == [0, 0, 0, 0, 0, 5, 6]


@pytest.mark.parametrize(("window_blocks", "cached"), [(6, 0), (40, 32)])
def test_a_prefix_that_is_cut_before_an_image_needs_a_window_there(window_blocks: int, cached: int) -> None:
    """The image is longer than the window: what its first rows saw has been given back where there was no room."""
    world = simulate(segmented(64, 512), window=20, window_blocks=window_blocks)
    for name, last in (("a", 7), ("b", 8)):
        add(world, asked(name, ((36, 62),), 100, answer=40, last=last))
        world.run()
    assert world.cached["b"] == cached
    assert world.outputs["b"] == by_hand(asked("b", (), 100, last=8).prompt_ids, 40)


def test_log_probabilities_of_a_prompt_do_not_cut_an_image() -> None:
    world = simulate(segmented(64, 512))
    world.submit("d", (1, 2, 3), 40)
    world.step()
    request = asked("a", ((10, 50),), 70)
    params = SamplingParams(max_tokens=2, temperature=0.0, prompt_logprobs=0)
    add(world, Request("a", request.prompt_ids, params, images=request.images))
    world.run()
    assert segments_of(world, "a")[:2] == [(0, 10, 1), (10, 50, 50)]
    assert len(world.prompt_logprobs["a"]) == 69


COSTS = CostTable({StepShape(rows, 64): 200.0 + rows for rows in (1, 8, 64, 256)})
IMAGE = PromptPiece(200, 200)


@pytest.mark.parametrize(
    ("demand", "gap", "expected"),
    [
        (Demand(0, 200, pieces=(IMAGE,)), 1.0, (200, 0, 200)),
        (Demand(4, 200, pieces=(IMAGE,)), 1e9, (204, 4, 200)),  # exactly as wide as it has to be
        (Demand(4, 200, pieces=(IMAGE,)), 50.0, (4, 4, 0)),  # its gap is too long now
        (Demand(4, 200, True, pieces=(IMAGE,)), 50.0, (200, 0, 200)),  # and has a turn of its own
        (Demand(4, 230, pieces=(PromptPiece(30), IMAGE)), 1e9, (234, 4, 230)),
        (Demand(0, 260, pieces=(PromptPiece(60), IMAGE)), 1e9, (60, 0, 60)),  # no padding where the image does not fit
        (Demand(4, 230, pieces=(IMAGE, PromptPiece(30))), 50.0, (4, 4, 0)),  # nobody overtakes an image
        (Demand(4, 400, pieces=(IMAGE, IMAGE)), 1e9, (204, 4, 200)),
    ],
)
def test_a_step_is_as_wide_as_an_image_or_goes_without(
    demand: Demand, gap: float, expected: tuple[int, int, int]
) -> None:
    share = share_rows(segmented(256, 512), COSTS, demand, Extent(64, 64, 64), gap)
    assert (share.shape.rows, share.decodes, share.prefill_rows) == expected
