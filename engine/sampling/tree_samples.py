"""From the logits of a forecast tree to the tokens that are taken, and to the guesses for the next pass."""

from collections.abc import Sequence

from engine.graphs.logits import Logits
from engine.modes.forecast_tree import ForecastTree, TreeOutcome
from engine.sampling.candidates import top_ids
from engine.sampling.sampler import SampledToken


def take_tree(
    tree: ForecastTree, tokens: Sequence[SampledToken], logits: Logits, start: int
) -> tuple[tuple[SampledToken, ...], TreeOutcome]:
    """The tokens behind the accepted nodes, and those nodes with the likeliest ids of the forecasts behind the last.

    tokens: one for each node. The tree's rows of the logits [R, V] begin at `start`.
    """
    path = tree.accepted(lambda node: tokens[node].token_id)
    rows = (logits.codes[start + row] for row in tree.forecast_rows(path[-1]))
    guesses = tuple(tuple(int(token) for token in top_ids(row, tree.candidates)) for row in rows)
    return tuple(tokens[node] for node in path), TreeOutcome(path, guesses)
