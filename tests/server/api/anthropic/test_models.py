"""The list of models in Anthropic's form."""

from collections.abc import Mapping

import msgspec
import pytest

from server.api.anthropic.models import anthropic_page
from server.api.openai.models import Model
from server.http.errors import Refusal


def model(name: str) -> Model:
    return Model(
        id=name,
        object="model",
        created=1_700_000_000,
        owned_by="hexserve",
        root=name,
        parent=None,
        max_model_len=100,
        context_length=100,
        meta={},
    )


MODELS = [model(name) for name in "abcde"]


@pytest.mark.parametrize(
    ("asked", "names", "has_more"),
    [
        ({}, "abcde", False),
        ({"limit": "2"}, "ab", True),
        ({"limit": "2", "after_id": "b"}, "cd", True),
        ({"limit": "2", "after_id": "c"}, "de", False),
        ({"after_id": "e"}, "", False),
        ({"limit": "2", "before_id": "d"}, "bc", True),
        ({"limit": "3", "before_id": "d"}, "abc", False),
    ],
)
def test_pages(asked: Mapping[str, str], names: str, has_more: bool) -> None:
    page = anthropic_page(MODELS, asked)
    assert ("".join(one.id for one in page.data), page.has_more) == (names, has_more)
    assert (page.first_id, page.last_id) == ((names[0], names[-1]) if names else (None, None))


def test_one_model() -> None:
    assert msgspec.to_builtins(anthropic_page(MODELS[:1], {}).data[0]) == {
        "id": "a",
        "type": "model",
        "display_name": "a",
        "created_at": "2023-11-14T22:13:20Z",
        "lifecycle": "active",
        "max_input_tokens": 100,
        "max_tokens": 100,
    }


@pytest.mark.parametrize("asked", [{"limit": "0"}, {"limit": "1001"}, {"limit": "x"}, {"after_id": "z"}])
def test_what_is_refused(asked: Mapping[str, str]) -> None:
    with pytest.raises(Refusal, match=f"Invalid '{next(iter(asked))}'"):
        anthropic_page(MODELS, asked)
