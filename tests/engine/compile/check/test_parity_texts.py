"""How much text a finished bundle is checked with, and in which pieces."""

from pathlib import Path

import pytest

from engine.compile.check.parity import enough_tokens, parity_texts
from tests.bundles import Bundles


@pytest.mark.parametrize(
    ("parameters", "tokens"), [(0, 512), (135_000_000, 512), (250_000_000, 512), (1_000_000_000, 128), (10**11, 64)]
)
def test_large_models_get_fewer_tokens(parameters: int, tokens: int) -> None:
    assert enough_tokens(parameters) == tokens


@pytest.mark.parametrize(
    ("count", "longest", "lengths"),
    [(512, 481, [256, 256]), (512, 512, [512]), (10, 4, [4, 4, 2]), (9, 4, [3, 3, 3]), (5, 2, [2, 2])],
)
def test_pieces_are_even_and_none_is_a_lone_token(
    count: int, longest: int, lengths: list[int], bundles: Bundles, tmp_path: Path
) -> None:
    texts = parity_texts(tmp_path, bundles("free"), 200, count, longest)
    assert [len(text) for text in texts] == lengths
