"""Which sequences of a pass guess their own next tokens, and how far, where rows would be padding."""

from collections.abc import Callable, Iterable

from engine.modes.forecast_tree import ForecastShape, ForecastTree
from engine.scheduling.admission import Capacity
from engine.scheduling.output_length import room
from engine.scheduling.sequence import Sequence
from engine.speculation.acceptance import GuessKind


def plan_trees(
    shape: ForecastShape | None,
    decodes: Iterable[Sequence],
    spare: int,
    past: int,
    capacity: Capacity,
    grow: Callable[[Sequence, int], bool],
) -> dict[str, ForecastTree]:
    """By id the tree of each sequence that gets one; they share the spare rows alike.

    shape: None where the model does not guess for itself. past: columns of the pass; forecast rows see the prefix in
    the first of them.

    grow(sequence, tokens) gives a sequence columns for so many tokens. A grammar's masks are for one text, not for a
    tree of them: such sequences decode one row at a time.
    """
    if shape is None or past < shape.prefix:
        return {}
    able = [sequence for sequence in decodes if sequence.request.params.grammar is None]
    trees: dict[str, ForecastTree] = {}
    for count, sequence in zip(range(len(able), 0, -1), able, strict=True):
        levels = max(0, room(sequence, capacity) - 1)
        tree = shape.tree(sequence.tokens[-1], sequence.forecasts[:levels], 1 + spare // count)
        if tree is not None and grow(sequence, sequence.computed + 1 + tree.depth):
            trees[sequence.id] = tree
            sequence.guesses.taken = GuessKind.FORECAST
            spare -= len(tree.tokens) - 1
    return trees
