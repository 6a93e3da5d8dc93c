"""Where facts are hidden, how long prompts are, and what counts as found."""

import pytest

from tools.needles import QUESTION, NeedleAnswer, needles, prompt


def counted(text: str) -> int:
    """A server whose tokens are words."""
    return len(text.split())


def reader(text: str, most: int) -> NeedleAnswer:
    """A model that has read all of it."""
    number = next(word.strip(".") for word in text.split() if len(word.strip(".")) == 5 and word.strip(".").isdigit())
    return NeedleAnswer(f"It is {int(number):,}.", counted(text))


def forgetful(text: str, most: int) -> NeedleAnswer:
    """One that has read the second half only."""
    return (
        reader(text, most)
        if "blue door is" in text[len(text) // 2 : -len(QUESTION)]
        else NeedleAnswer("17", counted(text))
    )


@pytest.mark.parametrize("tokens", [1000, 8000])
def test_prompts_are_as_long_as_asked_and_every_number_is_another(tokens: int) -> None:
    found = list(needles(reader, tokens, (0.0, 0.5, 1.0)))
    assert all(one.is_found and tokens * 0.85 < one.prompt_tokens <= tokens for one in found)
    assert len({one.answer for one in found}) == 3


@pytest.mark.parametrize("tokens", [700, 1000, 8000])
def test_no_prompt_is_longer_than_asked(tokens: int) -> None:
    """Those whose tokens are counted first neither: a server refuses what does not fit."""
    lengths = []

    def ask(text: str, most: int) -> NeedleAnswer:
        lengths.append(counted(text))
        return reader(text, most)

    assert len(list(needles(ask, tokens, (0.5,)))) == 1 and max(lengths) <= tokens


def test_a_fact_that_was_not_read_is_missed() -> None:
    assert [one.is_found for one in needles(forgetful, 2000, (0.1, 0.9))] == [False, True]


def test_the_fact_stands_at_its_depth() -> None:
    assert prompt(10, 0.0, 12_345).startswith("The secret number of the blue door is 12345.")
    assert prompt(10, 1.0, 12_345).removesuffix(f"\n\n{QUESTION}").endswith("is 12345.")


def test_too_few_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="--tokens 120 leaves no room beside 120"):
        list(needles(reader, 120, (0.5,)))
