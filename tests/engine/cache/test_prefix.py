"""Keys of prefixes: what they cover and what keeps them apart."""

from engine.cache.prefix import page_keys

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


def test_every_page_before_counts() -> None:
    """A key is as much about the pages in the middle as about the first one: else others' contents would be used."""
    keys = page_keys(TOKENS, 16)
    for place in range(64):
        changed = page_keys([*TOKENS[:place], 999, *TOKENS[place + 1 :]], 16)
        page = place // 16
        assert changed[:page] == keys[:page]
        assert not set(changed[page:]) & set(keys)
