"""When a step waits for a mask: only where nobody else is kept waiting."""

import numpy as np
import pytest

from engine.bundle.variant import StepShape
from engine.core.forecast_tree import ForecastTree, TreeOutcome
from engine.core.plan import Segment, StepPlan
from engine.grammar.masks import GrammarMasks
from engine.runtime.interface import Logits
from engine.sampling.sample_step import prepare, take_tree, wait_alone
from engine.sampling.sampler import SampledToken
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


def test_the_next_guesses_are_those_behind_the_last_accepted_node() -> None:
    """Nodes 5, then 6 or 7 behind it, then 8 behind the 7; one forecast row behind each of them."""
    tree = ForecastTree((5, 6, 7, 8, 90, 91, 92, 93), (0, 0, 2), forecasts=1, prefix=0, candidates=2)
    rows = np.zeros((9, 10), np.float32)  # the tree's begin at 1
    for node in range(4):
        rows[1 + tree.nodes + node, [node, node + 5]] = 2.0, 1.0
    for said, path in (((7, 0, 8, 1), (0, 2, 3)), ((7, 0, 9, 1), (0, 2)), ((9, 0, 0, 0), (0,))):
        sampled = tuple(SampledToken(token, None) for token in said)
        tokens, outcome = take_tree(tree, sampled, Logits.of(rows), 1)
        assert outcome == TreeOutcome(path, ((path[-1], path[-1] + 5),))
        assert [token.token_id for token in tokens] == [said[node] for node in path]


def test_masks_behind_guesses_are_asked_for_where_there_is_a_grammar() -> None:
    masks = Masks("bound", "plain")
    prepare(plan(("bound", 3, 3), ("plain", 1, 1), ("free", 3, 3)), masks)
    assert masks.guesses == [("bound", (7, 7))]
