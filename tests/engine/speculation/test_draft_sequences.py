"""What a draft model has read, and its blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.kv_blocks import BlockPool
from engine.request import Request, SamplingParams
from engine.speculation.draft_steps import DraftSequence, DraftSequences

PROMPT = tuple(range(40))


def asked(name: str = "a", prompt: tuple[int, ...] = PROMPT, salt: bytes = b"") -> Request:
    return Request(name, prompt, SamplingParams(max_tokens=100), cache_salt=salt)


def read(sequences: DraftSequences, drafted: DraftSequence, tokens: tuple[int, ...]) -> None:
    assert sequences.grow(drafted, len(drafted.tokens) + len(tokens))
    drafted.tokens += tokens


@pytest.fixture
def sequences() -> DraftSequences:
    return DraftSequences(BlockPool(128, 16))


def test_what_was_read_and_still_holds_is_not_read_again(sequences: DraftSequences) -> None:
    assert sequences.unread("a", PROMPT) == 40
    drafted = sequences.follow(asked(), PROMPT)
    read(sequences, drafted, PROMPT)
    assert sequences.unread("a", PROMPT) == 1  # logits come from the row of the last token
    read(sequences, drafted, (50, 51, 52))
    assert sequences.unread("a", (*PROMPT, 50, 51, 99)) == 1
    assert sequences.follow(asked(), (*PROMPT, 50, 51, 99)).tokens == [*PROMPT, 50, 51]
    assert sequences.follow(asked(), (*PROMPT, 50, 51, 99)).confirmed == 42


def test_blocks_of_wrong_guesses_go_back(sequences: DraftSequences) -> None:
    drafted = sequences.follow(asked(), PROMPT)
    read(sequences, drafted, (*PROMPT, *range(60, 70)))
    assert sequences.pool.referenced == 4
    sequences.follow(asked(), (*PROMPT, 99))
    assert (len(drafted.tokens), sequences.pool.referenced) == (40, 3)
    assert sequences.columns(drafted, 2) == [40, 41]


def test_a_beginning_that_another_one_has_read_is_shared_within_its_salt(sequences: DraftSequences) -> None:
    first = sequences.follow(asked("a"), PROMPT)
    read(sequences, first, PROMPT)
    waiting = sequences.follow(asked("b"), PROMPT)
    assert waiting.tokens == []
    sequences.follow(asked("a"), (*PROMPT, 1))  # what was read is now known to hold
    assert sequences.follow(asked("b"), PROMPT).tokens == list(PROMPT[:32])
    assert sequences.follow(asked("c", salt=b"other"), PROMPT).tokens == []
    assert sequences.pool.referenced == 3


def test_who_was_not_asked_for_longest_gives_way(sequences: DraftSequences) -> None:
    for name in "abc":
        sequences.begin_step()
        read(sequences, sequences.follow(asked(name, (ord(name), *PROMPT)), (ord(name), *PROMPT)), PROMPT)
    assert (len(sequences), sequences.pool.available) == (2, 8 - 2 * 3)
    assert [sequences.unread(name, PROMPT) for name in "abc"] == [40, 1, 1]


def test_nobody_takes_the_blocks_of_another_one_in_the_same_step(sequences: DraftSequences) -> None:
    sequences.begin_step()
    for name in "ab":
        read(sequences, sequences.follow(asked(name, (ord(name),)), (ord(name),)), PROMPT)
    assert not sequences.grow(sequences.follow(asked("c", (9,)), (9,)), 40)
    sequences.begin_step()
    assert sequences.grow(sequences.follow(asked("c", (9,)), (9,)), 40)
    assert sequences.unread("a", PROMPT) == 40


def test_nobody_gives_way_for_more_than_there_is(sequences: DraftSequences) -> None:
    drafted = sequences.follow(asked(), PROMPT)
    read(sequences, sequences.follow(asked("b", (7,)), (7,)), (7,))
    assert not sequences.grow(drafted, 129)
    assert len(sequences) == 2
    sequences.forget("b")
    assert sequences.grow(drafted, 128)


def test_the_forgotten_hold_no_block(sequences: DraftSequences) -> None:
    for name in "ab":
        read(sequences, sequences.follow(asked(name, (ord(name),) * 20), ()), tuple(range(20)))
    sequences.retain(("b",))
    assert (len(sequences), sequences.pool.referenced) == (1, 2)
    sequences.retain(())
    assert sequences.pool.referenced == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, 2), max_size=6)), max_size=30))
def test_tokens_and_blocks_always_fit(steps: list[tuple[int, list[int]]]) -> None:
    """Each step some guesses are read, then the sequence turns out to go on with the first of them and a token."""
    sequences = DraftSequences(BlockPool(512, 16))
    tokens = list(PROMPT)
    for right, guesses in steps:
        drafted = sequences.follow(asked(), tokens)
        assert drafted.tokens == tokens[: len(drafted.tokens)]
        assert len(drafted.tokens) < len(tokens)
        read(sequences, drafted, (*tokens[len(drafted.tokens) :], *guesses))
        assert len(drafted.blocks) == len(set(drafted.blocks)) == -(-len(drafted.tokens) // 16)
        tokens += [*guesses[:right], 7]
    sequences.retain(())
    assert sequences.pool.referenced == 0
