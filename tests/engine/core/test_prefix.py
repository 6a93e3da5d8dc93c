"""Keys of prefixes: what they cover and what keeps them apart."""

import pytest

from engine.core.kv_blocks import block_keys, blocks_at_once

TOKENS = list(range(64))


def test_a_key_covers_everything_before_it() -> None:
    keys = block_keys(TOKENS, 16)
    assert len(set(keys)) == 4
    assert block_keys(TOKENS[:63], 16) == keys[:3]
    assert block_keys([9, *TOKENS[1:]], 16)[3] != keys[3]
    assert block_keys(TOKENS, 16, keys[:2]) == keys


def test_salts_share_nothing() -> None:
    shared, mine, yours = (block_keys(TOKENS, 16, salt=salt) for salt in (b"", b"mine", b"yours"))
    assert len({*shared, *mine, *yours}) == 12
    assert block_keys(TOKENS, 16, mine[:1], b"mine") == mine


@pytest.mark.parametrize("block_length", [4, 16, 24, 32])
def test_a_key_covers_the_blocks_of_its_block(block_length: int) -> None:
    """Rows of a block see all of it, so what a block holds depends on the blocks that it has a part of."""
    tokens = list(range(100))
    keys = block_keys(tokens, 16, block_length=block_length)
    run = blocks_at_once(16, block_length)
    assert run == {4: 1, 16: 1, 24: 3, 32: 2}[block_length]
    assert len(keys) == 6 // run * run == len(set(keys))
    for place in range(len(keys) * 16):
        changed = block_keys([*tokens[:place], 999, *tokens[place + 1 :]], 16, block_length=block_length)
        first = place // (16 * run) * run
        assert changed[:first] == keys[:first]
        assert not set(changed[first:]) & set(keys)
    assert block_keys(tokens, 16, keys[:run], block_length=block_length) == keys


def test_causal_blocks_and_those_of_blocks_share_nothing() -> None:
    found = [block_keys(TOKENS, 16, block_length=block_length) for block_length in (0, 1, 4, 16, 32)]
    assert len({key for keys in found for key in keys}) == 5 * 4


def test_every_block_before_counts() -> None:
    """A key is as much about the blocks in the middle as about the first one: else others' contents would be used."""
    keys = block_keys(TOKENS, 16)
    for place in range(64):
        changed = block_keys([*TOKENS[:place], 999, *TOKENS[place + 1 :]], 16)
        block = place // 16
        assert changed[:block] == keys[:block]
        assert not set(changed[block:]) & set(keys)
