"""Prompts: repeatable, distinct, as long as asked."""

from pathlib import Path

import pytest

from engine.errors import UnusableInput
from server.commands.bench.measured import PromptSource, WordLength, read_prompts


def test_the_place_decides_the_prompt() -> None:
    source = PromptSource(seed=1, prompt_tokens=40)
    places = [(clients, number, client) for clients in (1, 2) for number in range(3) for client in range(2)]
    prompts = [source.prompt(*place)[0]["content"] for place in places]
    assert len(set(prompts)) == len(places)
    assert prompts == [PromptSource(1, 40).prompt(*place)[0]["content"] for place in places]
    assert prompts != [PromptSource(2, 40).prompt(*place)[0]["content"] for place in places]


def test_length_from_two_measurements() -> None:
    length = WordLength.fitted((8, 21), (48, 101))
    assert (length.fixed, length.per_word) == (5.0, 2.0)
    assert length.words(105) == 50
    assert length.words(1) == 1
    assert len(PromptSource(0, 105, length).prompt("x")[0]["content"].split()) == 50


def test_prefix_is_shared_and_tails_are_not() -> None:
    source = PromptSource(0, 10, WordLength())
    first, second, other = (source.prefixed(30, prefix, tail) for prefix, tail in ((0, 0), (0, 1), (1, 0)))
    assert first[0] == second[0] != other[0]
    assert first[1] != second[1]
    assert len(first[0]["content"].split()) == 30


def test_token_ids_instead_of_texts() -> None:
    source = PromptSource(0, 40, vocabulary=500)
    first, second = source.prompt(1, 0), source.prompt(1, 1)
    assert len(first) == len(second) == 40 and first != second == source.prompt(1, 1)
    assert all(0 <= token < 500 for token in (*first, *second))
    shared, other = source.prefixed(30, 0, "cold"), source.prefixed(30, 0, 1)
    assert shared[:30] == other[:30] and shared[30:] != other[30:]


def test_file_of_prompts(tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text('Hello?\n\n{"prompt": "Hi"}\n{"messages": [{"role": "system", "content": "Be brief."}]}\n')
    texts = read_prompts(path)
    assert texts == (
        ({"role": "user", "content": "Hello?"},),
        ({"role": "user", "content": "Hi"},),
        ({"role": "system", "content": "Be brief."},),
    )
    source = PromptSource(0, 1, texts=texts)
    assert {tuple(map(str, source.prompt(n))) for n in range(50)} == {tuple(map(str, text)) for text in texts}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no prompt"),
        ('hi\n{"prompt": 3}', "line 2: needs"),
        ('{"messages": []}', "needs"),
        ('{"messages": [{"role": "user"}]}', "needs"),
        ('{"prompt"', "line 1"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "prompts"
    path.write_text(content)
    with pytest.raises(UnusableInput, match=message):
        read_prompts(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UnusableInput, match="cannot be read"):
        read_prompts(tmp_path / "none")
