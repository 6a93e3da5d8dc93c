"""A conversation survives a restart of the real server: its beginning is not computed again, its answer is the same."""

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live import LiveServer, serving

FIRST = [{"role": "user", "content": "What is the capital of France? Say it in one short sentence, please."}]


def chat(server: LiveServer, messages: list[dict[str, str]]) -> tuple[str, int]:
    """The answer, and how many tokens of the prompt were cached."""
    body: dict[str, Any] = {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 24}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def stop(server: LiveServer) -> int:
    server.process.send_signal(signal.SIGTERM)
    return server.process.wait(40)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("arguments", [(), ("--deterministic",)], ids=["default", "deterministic"])
def test_a_conversation_goes_on(tmp_path: Path, cache: Path, arguments: tuple[str, ...]) -> None:
    options = ("--bundle", "demo", "--kv-file", str(tmp_path / "pages"), *arguments)
    with serving(*options, cache=cache) as server:
        said, cached = chat(server, FIRST)
        assert cached == 0
        second = [*FIRST, {"role": "assistant", "content": said}, {"role": "user", "content": "And of Italy?"}]
        assert stop(server) == 0
    assert (tmp_path / "pages").stat().st_mode & 0o777 == 0o600
    with serving(*options, cache=cache) as server:
        answer, cached = chat(server, second)
        assert cached >= 16
        assert chat(server, FIRST)[0] == said
        assert stop(server) == 0
    with serving("--bundle", "demo", *arguments, cache=cache) as server:
        assert chat(server, second) == (answer, 0)


def test_a_file_of_something_else_is_told_in_a_sentence(tmp_path: Path) -> None:
    precious = tmp_path / "thesis.txt"
    precious.write_text("Chapter 1")
    with (
        pytest.raises(AssertionError, match=r"kv_file .*thesis\.txt is not used: it is no file of cached blocks"),
        serving("--bundle", "demo", "--kv-file", str(precious)),
    ):
        pass
    assert precious.read_text() == "Chapter 1"
