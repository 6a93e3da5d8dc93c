"""Keys of prefixes: what they cover and what keeps them apart."""

import pytest

from engine.cache.prefix import page_keys, pages_at_once

TOKENS = list(range(64))


def test_a_key_covers_everything_before_it() -> None:
    keys = page_keys(TOKENS, 16)
    assert len(set(keys)) == 4
    assert page_keys(TOKENS[:63], 16) == keys[:3]
    assert page_keys([9, *TOKENS[1:]], 16)[3] != keys[3]
    assert page_keys(TOKENS, 16, keys[:2]) == keys


def test_salts_share_nothing() -> None:
    shared, mine, yours = (page_keys(TOKENS, 16, salt=salt) for salt in (b"", b"mine", b"yours"))
    assert len({*shared, *mine, *yours}) == 12
    assert page_keys(TOKENS, 16, mine[:1], b"mine") == mine


@pytest.mark.parametrize("block_length", [4, 16, 24, 32])
def test_a_key_covers_the_blocks_of_its_page(block_length: int) -> None:
    """Rows of a block see all of it, so what a page holds depends on the blocks that it has a part of."""
    tokens = list(range(100))
    keys = page_keys(tokens, 16, block_length=block_length)
    run = pages_at_once(16, block_length)
    assert run == {4: 1, 16: 1, 24: 3, 32: 2}[block_length]
    assert len(keys) == 6 // run * run == len(set(keys))
    for place in range(len(keys) * 16):
        changed = page_keys([*tokens[:place], 999, *tokens[place + 1 :]], 16, block_length=block_length)
        first = place // (16 * run) * run
        assert changed[:first] == keys[:first]
        assert not set(changed[first:]) & set(keys)
    assert page_keys(tokens, 16, keys[:run], block_length=block_length) == keys


def test_causal_pages_and_those_of_blocks_share_nothing() -> None:
    found = [page_keys(TOKENS, 16, block_length=block_length) for block_length in (0, 1, 4, 16, 32)]
    assert len({key for keys in found for key in keys}) == 5 * 4


def test_every_page_before_counts() -> None:
    """A key is as much about the pages in the middle as about the first one: else others' contents would be used."""
    keys = page_keys(TOKENS, 16)
    for place in range(64):
        changed = page_keys([*TOKENS[:place], 999, *TOKENS[place + 1 :]], 16)
        page = place // 16
        assert changed[:page] == keys[:page]
        assert not set(changed[page:]) & set(keys)
