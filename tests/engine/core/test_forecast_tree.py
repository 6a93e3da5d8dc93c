"""Trees by hand, and as libGenie lays them out for branches of 3 and 2."""

import pytest

from engine.bundle.specs import ForecastSpec
from engine.core.forecast_tree import ForecastTree, tree_of

GENIE = ForecastSpec("prefix", 16, 384, (3, 2))


def test_the_rows_of_genie() -> None:
    """Ids, what each row sees and how far behind the newest token it is, as recorded at its graphs."""
    tree = tree_of(GENIE, 240, ((279, 334, 237, 9), (298, 284, 5, 6)), 32)
    assert tree is not None
    nodes = (240, 279, 334, 237, 298, 284, 298, 284, 298, 284)
    assert tree.tokens == (*nodes, *(384, 385) * 10)
    assert tree.seen[:10] == ((0,), (0, 1), (0, 2), (0, 3), *((0, 1 + i // 2, 4 + i) for i in range(6)))
    assert tree.seen[10:14] == ((0, 10), (0, 10, 11), (0, 1, 12), (0, 1, 12, 13))
    assert tree.seen[28:] == ((0, 3, 9, 28), (0, 3, 9, 28, 29))
    assert tree.depths == (0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 1, 2, 2, 3, 2, 3, 2, 3, *(3, 4) * 6)
    assert (tree.nodes, tree.depth, tree.prefix) == (10, 2, 16)


def test_before_the_first_forecasts_there_is_the_newest_token_alone() -> None:
    tree = tree_of(GENIE, 106, (), 32)
    assert tree is not None
    assert (tree.tokens, tree.seen) == ((106, 384, 385), ((0,), (0, 1), (0, 1, 2)))
    assert tree_of(GENIE, 106, (), 2) is None


def test_no_guess_repeats_the_token_before_it() -> None:
    tree = tree_of(GENIE, 253, ((253, 230, 215, 188), (208, 230, 153)), 32)
    assert tree is not None
    assert tree.tokens[:10] == (253, 230, 215, 188, 208, 153, 208, 230, 208, 230)


@pytest.mark.parametrize(
    ("rows", "nodes"), [(30, 10), (29, 7), (21, 7), (20, 5), (15, 5), (14, 3), (9, 3), (8, 2), (6, 2), (5, 1), (3, 1)]
)
def test_a_tree_shrinks_to_the_rows_there_are(rows: int, nodes: int) -> None:
    tree = tree_of(GENIE, 1, ((2, 3, 4, 5), (6, 7, 8, 9)), rows)
    assert tree is not None
    assert (tree.nodes, len(tree.tokens)) == (nodes, 3 * nodes)


@pytest.mark.parametrize(
    ("sampled", "path"),
    [
        ({0: 9}, (0,)),
        ({0: 3, 2: 8}, (0, 2)),
        ({0: 3, 2: 6, 6: 1}, (0, 2, 6)),
        ({0: 4, 3: 7, 9: 1}, (0, 3, 9)),
    ],
)
def test_guesses_are_kept_along_the_path_that_was_sampled(sampled: dict[int, int], path: tuple[int, ...]) -> None:
    tree = tree_of(GENIE, 1, ((2, 3, 4), (6, 7, 5)), 32)
    assert tree is not None
    assert tree.accepted(sampled.__getitem__) == path


def test_the_guesses_that_lead_to_a_node() -> None:
    tree = ForecastTree((1, 2, 3, 4, 9, 9, 9, 9), (0, 1, 0), 1, 16, 4)
    assert [tree.before(node) for node in range(4)] == [[], [2], [2, 3], [4]]
    assert [list(tree.forecast_rows(node)) for node in range(4)] == [[4], [5], [6], [7]]
