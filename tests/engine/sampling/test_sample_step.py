"""When a step waits for a mask: only where nobody else is kept waiting."""

import pytest

from engine.bundle.variant import StepShape
from engine.core.plan import Segment, StepPlan
from engine.grammar.masks import GrammarMasks
from engine.sampling.sample_step import prepare, wait_alone
from tests.engine.worker.simulation import no_tokenizer, sequence_of


class Masks(GrammarMasks):
    """Of some sequences, some of them ready; notes what is waited for and guessed."""

    def __init__(self, *late: str, ready: tuple[str, ...] = ()) -> None:
        super().__init__(no_tokenizer)
        self.late_ids, self.ready_ids = late, ready
        self.waits: list[float] = []
        self.guesses: list[tuple[str, tuple[int, ...]]] = []

    def __contains__(self, sequence_id: str) -> bool:
        return sequence_id in (*self.late_ids, *self.ready_ids)

    def is_ready(self, sequence_id: str) -> bool:
        return sequence_id in self.ready_ids

    def wait(self, timeout_s: float) -> None:
        self.waits.append(timeout_s)

    def guess(self, sequence_id: str, guesses: tuple[int, ...]) -> None:
        self.guesses.append((sequence_id, guesses))


def plan(*segments: tuple[str, int, int]) -> StepPlan:
    """Of each sequence its id, its rows, and how many of them are sampled."""
    made = [Segment(sequence_of(name), (7,) * rows, 0, (), 0, (), sampled) for name, rows, sampled in segments]
    return StepPlan(StepShape(8, 64), tuple(made))


@pytest.mark.parametrize(
    ("segments", "masks", "waits"),
    [
        ([("a", 1, 1)], Masks("a"), True),
        ([("a", 1, 1), ("b", 1, 1)], Masks("a", "b"), True),
        ([("a", 1, 1)], Masks(ready=("a",)), False),
        ([("a", 1, 1), ("b", 1, 1)], Masks("a", ready=("b",)), False),
        ([("a", 1, 1), ("free", 1, 1)], Masks("a"), False),
        ([("a", 1, 1), ("prompt", 5, 0)], Masks("a", "prompt"), False),  # its rows are of use without a mask
        ([("free", 1, 1)], Masks(), False),
    ],
)
def test_who_is_waited_for(segments: list[tuple[str, int, int]], masks: Masks, waits: bool) -> None:
    wait_alone(plan(*segments), masks)
    assert bool(masks.waits) is waits


def test_masks_behind_guesses_are_asked_for_where_there_is_a_grammar() -> None:
    masks = Masks("bound", "plain")
    prepare(plan(("bound", 3, 3), ("plain", 1, 1), ("free", 3, 3)), masks)
    assert masks.guesses == [("bound", (7, 7))]
