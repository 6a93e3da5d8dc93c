"""Names with tags."""

import pytest

from server.api.ollama.translation import tagged, untagged

SERVED = ("demo", "org/model", "qwen3:0.6b", "odd:latest")


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("demo", "demo"),
        ("demo:latest", "demo"),
        ("org/model:latest", "org/model"),
        ("qwen3:0.6b", "qwen3:0.6b"),
        ("odd:latest", "odd:latest"),
        ("demo:7b", "demo:7b"),
        ("nobody:latest", "nobody:latest"),
        (":latest", ":latest"),
    ],
)
def test_latest_is_the_model_itself(asked: str, meant: str) -> None:
    assert untagged(asked, SERVED) == meant


def test_every_listed_name_finds_its_model() -> None:
    assert [tagged(name) for name in SERVED] == ["demo:latest", "org/model:latest", "qwen3:0.6b", "odd:latest"]
    assert [untagged(tagged(name), SERVED) for name in SERVED] == list(SERVED)
