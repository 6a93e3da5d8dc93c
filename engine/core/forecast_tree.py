"""Rows by which a model guesses its own next tokens, and which of the guesses are right.
A tree: the newest token, guesses behind it, guesses behind those. Behind each of these nodes come forecast rows, whose
logits are guesses for the next step. Nodes see their ancestors and what is cached, forecast rows the forecast prefix as
well. Method as observed of Genie's dialogs of type ssd-q1. Lossless: a guess is kept only where the sampler chose the
same token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import mul

from engine.bundle.specs import ForecastSpec


@dataclass(frozen=True)
class ForecastTree:
    """tokens: of the nodes level by level, the newest token first, then of `forecasts` rows behind each node, in order.
    parents: of each node but the first, by index. prefix: slots of the pool, from the first, that forecast rows see.
    candidates: how many guesses to note of a forecast row."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    forecasts: int
    prefix: int
    candidates: int

    @cached_property
    def nodes(self) -> int:
        """How many rows are nodes: they come first, and only they may be kept."""
        return len(self.parents) + 1

    @cached_property
    def seen(self) -> tuple[tuple[int, ...], ...]:
        """For each row the rows of the tree that it sees, itself last."""
        seen: list[tuple[int, ...]] = [(0,)]
        for node, parent in enumerate(self.parents, 1):
            seen.append((*seen[parent], node))
        for node in range(self.nodes):
            rows = self.forecast_rows(node)
            seen += [(*seen[node], *rows[:count]) for count in range(1, len(rows) + 1)]
        return tuple(seen)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """How many places each row lies behind the newest token."""
        return tuple(len(rows) - 1 for rows in self.seen)

    @property
    def depth(self) -> int:
        return self.depths[self.nodes - 1]

    def forecast_rows(self, node: int) -> range:
        """The rows behind a node that guess for the next step."""
        first = self.nodes + node * self.forecasts
        return range(first, first + self.forecasts)

    def before(self, node: int) -> list[int]:
        """The guesses that lead to a node, and its own; the newest token is not among them."""
        return [self.tokens[row] for row in self.seen[node][1:]]

    def accepted(self, sampled: Callable[[int], int]) -> tuple[int, ...]:
        """The nodes, from the first on, whose tokens are what was sampled after the node before."""
        path, right = list[int](), [0]
        while right:
            path.append(right[0])
            chosen = sampled(path[-1])
            following = (node for node, parent in enumerate(self.parents, 1) if parent == path[-1])
            right = [node for node in following if self.tokens[node] == chosen]
        return tuple(path)


@dataclass(frozen=True, slots=True)
class TreeOutcome:
    """path: the accepted nodes, the first always. candidates: for each level behind the last of them, likely tokens."""

    path: tuple[int, ...]
    candidates: tuple[tuple[int, ...], ...]


def tree_of(spec: ForecastSpec, newest: int, candidates: Sequence[Sequence[int]], rows: int) -> ForecastTree | None:
    """The largest tree of at most so many rows; None where not even the forecasts of the newest token fit.
    candidates: for each level the guesses, likeliest first; none before the first forecasts of a sequence."""
    forecasts = len(spec.branches)
    branches = spec.branches[: len(candidates)]
    while sum(accumulate(branches, mul, initial=1)) * (1 + forecasts) > rows:
        if not branches:
            return None
        branches = _smaller(branches)
    tokens, parents, level = [newest], list[int](), [0]
    for width, guesses in zip(branches, candidates, strict=False):
        following = []
        for parent in level:
            # As Genie does it: no guess repeats the token before it.
            for guess in [guess for guess in guesses if guess != tokens[parent]][:width]:
                following.append(len(tokens))
                tokens.append(guess)
                parents.append(parent)
        level = following
    behind = tuple(range(spec.first_id, spec.first_id + forecasts))
    noted = max(spec.branches) + 1  # one of the guesses of a row may be the token that it follows
    return ForecastTree((*tokens, *behind * len(tokens)), tuple(parents), forecasts, spec.columns, noted)


def _smaller(branches: tuple[int, ...]) -> tuple[int, ...]:
    """The next smaller tree: the widest level, the deepest of such, loses a guess; a tree without width a level."""
    widest = max(range(len(branches)), key=lambda level: (branches[level], level))
    if branches[widest] == 1:
        return branches[:-1]
    return (*branches[:widest], branches[widest] - 1, *branches[widest + 1 :])
