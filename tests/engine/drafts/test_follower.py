"""What a draft model has read, and its pages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.pages import PagePool
from engine.drafts.follower import Follower, Followers
from engine.request import Request, SamplingParams

PROMPT = tuple(range(40))


def asked(name: str = "a", prompt: tuple[int, ...] = PROMPT, salt: bytes = b"") -> Request:
    return Request(name, prompt, SamplingParams(max_tokens=100), cache_salt=salt)


def read(followers: Followers, follower: Follower, tokens: tuple[int, ...]) -> None:
    assert followers.grow(follower, len(follower.tokens) + len(tokens))
    follower.tokens += tokens


@pytest.fixture
def followers() -> Followers:
    return Followers(PagePool(128, 16))


def test_what_was_read_and_still_holds_is_not_read_again(followers: Followers) -> None:
    assert followers.unread("a", PROMPT) == 40
    follower = followers.follow(asked(), PROMPT)
    read(followers, follower, PROMPT)
    assert followers.unread("a", PROMPT) == 1  # logits come from the row of the last token
    read(followers, follower, (50, 51, 52))
    assert followers.unread("a", (*PROMPT, 50, 51, 99)) == 1
    assert followers.follow(asked(), (*PROMPT, 50, 51, 99)).tokens == [*PROMPT, 50, 51]
    assert followers.follow(asked(), (*PROMPT, 50, 51, 99)).confirmed == 42


def test_pages_of_wrong_guesses_go_back(followers: Followers) -> None:
    follower = followers.follow(asked(), PROMPT)
    read(followers, follower, (*PROMPT, *range(60, 70)))
    assert followers.pool.referenced == 4
    followers.follow(asked(), (*PROMPT, 99))
    assert (len(follower.tokens), followers.pool.referenced) == (40, 3)
    assert followers.columns(follower, 2) == [40, 41]


def test_a_beginning_that_another_one_has_read_is_shared_within_its_salt(followers: Followers) -> None:
    first = followers.follow(asked("a"), PROMPT)
    read(followers, first, PROMPT)
    waiting = followers.follow(asked("b"), PROMPT)
    assert waiting.tokens == []
    followers.follow(asked("a"), (*PROMPT, 1))  # what was read is now known to hold
    assert followers.follow(asked("b"), PROMPT).tokens == list(PROMPT[:32])
    assert followers.follow(asked("c", salt=b"other"), PROMPT).tokens == []
    assert followers.pool.referenced == 3


def test_who_was_not_asked_for_longest_gives_way(followers: Followers) -> None:
    for name in "abc":
        followers.begin_step()
        read(followers, followers.follow(asked(name, (ord(name), *PROMPT)), (ord(name), *PROMPT)), PROMPT)
    assert (len(followers), followers.pool.available) == (2, 8 - 2 * 3)
    assert [followers.unread(name, PROMPT) for name in "abc"] == [40, 1, 1]


def test_nobody_takes_the_pages_of_another_one_in_the_same_step(followers: Followers) -> None:
    followers.begin_step()
    for name in "ab":
        read(followers, followers.follow(asked(name, (ord(name),)), (ord(name),)), PROMPT)
    assert not followers.grow(followers.follow(asked("c", (9,)), (9,)), 40)
    followers.begin_step()
    assert followers.grow(followers.follow(asked("c", (9,)), (9,)), 40)
    assert followers.unread("a", PROMPT) == 40


def test_nobody_gives_way_for_more_than_there_is(followers: Followers) -> None:
    follower = followers.follow(asked(), PROMPT)
    read(followers, followers.follow(asked("b", (7,)), (7,)), (7,))
    assert not followers.grow(follower, 129)
    assert len(followers) == 2
    followers.forget("b")
    assert followers.grow(follower, 128)


def test_the_forgotten_hold_no_page(followers: Followers) -> None:
    for name in "ab":
        read(followers, followers.follow(asked(name, (ord(name),) * 20), ()), tuple(range(20)))
    followers.retain(("b",))
    assert (len(followers), followers.pool.referenced) == (1, 2)
    followers.retain(())
    assert followers.pool.referenced == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, 2), max_size=6)), max_size=30))
def test_tokens_and_pages_always_fit(steps: list[tuple[int, list[int]]]) -> None:
    """Each step some guesses are read, then the sequence turns out to go on with the first of them and a token."""
    followers = Followers(PagePool(512, 16))
    tokens = list(PROMPT)
    for right, guesses in steps:
        follower = followers.follow(asked(), tokens)
        assert follower.tokens == tokens[: len(follower.tokens)]
        assert len(follower.tokens) < len(tokens)
        read(followers, follower, (*tokens[len(follower.tokens) :], *guesses))
        assert len(follower.pages) == len(set(follower.pages)) == -(-len(follower.tokens) // 16)
        tokens += [*guesses[:right], 7]
    followers.retain(())
    assert followers.pool.referenced == 0
