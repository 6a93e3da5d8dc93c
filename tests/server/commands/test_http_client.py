"""The client of our own commands: addresses, streams cut anywhere, answers that fail."""

import json

import httpx
import pytest

from server.commands.http_client import (
    AnswerFailed,
    AnswerRefused,
    BrokenStream,
    NothingAnswers,
    Piece,
    ServerClient,
    StreamedUsage,
    Unreachable,
    UnusableAddress,
    error_message,
    headers_for,
    is_server,
    may_use_proxy,
    read_piece,
    root_address,
)
from tests.server.commands.scripted_server import WORDS, Script, serving


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://h:1", "http://h:1"),
        ("http://h:1/v1/", "http://h:1"),
        ("h:1/v1", "http://h:1"),
        ("https://h/api/v1", "https://h/api"),
    ],
)
def test_addresses(url: str, address: str) -> None:
    assert root_address(url) == address


@pytest.mark.parametrize(
    "url", ["http://", "", "ftp://h", "http://h:99999", "http://h:0", "http://[::1", "http://a b", "http://ä..b"]
)
def test_no_address(url: str) -> None:
    with pytest.raises(Unreachable, match="is not an http address"):
        root_address(url)


def test_what_is_a_server_and_what_a_model() -> None:
    servers = ("http://h", "https://h/api/v1", "h:1", "127.0.0.1:8000/v1", "[::1]:8", "ftp://h", "http://[::1")
    models = ("demo", "a/b", "a/b:Q8_0", "ms:a/b", "hub:a", "./a", "C:\\a", "http://h/m.gguf", "https://hf.co/a/b")
    assert [text for text in (*servers, *models) if is_server(text)] == list(servers)


def test_proxies_only_for_others() -> None:
    hosts = {"127.0.0.1:8": False, "localhost": False, "[::1]:8": False, "10.0.0.1": True, "h.org": True}
    assert {host: may_use_proxy(f"http://{host}") for host in hosts} == hosts


def test_keys_are_a_header() -> None:
    assert headers_for("k")["Authorization"] == "Bearer k"
    assert "Authorization" not in headers_for("")


@pytest.mark.parametrize("key", ["ké", "k\n", "k\udce9"])
def test_a_key_that_no_header_holds(key: str) -> None:
    with pytest.raises(UnusableAddress, match="printable ASCII"):
        headers_for(key)


def test_chat_and_text_chunks() -> None:
    chat = (
        '{"choices":[{"index":0,"delta":{"content":"hi","reasoning_content":"hm"},"finish_reason":null}],"usage":null}'
    )
    assert read_piece(chat) == Piece(text="hi", reasoning="hm")
    assert read_piece('{"choices":[{"index":0,"text":"hi","finish_reason":"stop"}]}') == Piece(
        "hi", finish_reason="stop"
    )
    assert read_piece('{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}') == Piece()


def test_usage() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    assert read_piece(json.dumps({"choices": [], "usage": usage})).usage == StreamedUsage(7, 3, 4)
    without_details = usage | {"prompt_tokens_details": None}
    assert read_piece(json.dumps({"choices": [], "usage": without_details})).usage == StreamedUsage(7, 3)


def test_error_events() -> None:
    assert read_piece('{"error":{"message":"gone","type":"server_error"}}').error == "gone"
    assert error_message({"detail": "Not Found"}) == "{'detail': 'Not Found'}"
    assert error_message({"error": "plain"}) == "plain"


@pytest.mark.parametrize("payload", ["{", "[]", "3", '{"object":"list"}', '{"choices":null}'])
def test_what_is_no_chunk(payload: str) -> None:
    with pytest.raises(BrokenStream):
        read_piece(payload)


QUESTION = [{"role": "user", "content": "Capital of France?"}]
TIMEOUT = httpx.Timeout(30)


async def pieces(address: str, **fields: object) -> list[Piece]:
    client = ServerClient(address, "", "scripted", TIMEOUT)
    try:
        arrivals = [arrival async for arrival in client.stream(QUESTION, fields)]
    finally:
        await client.close()
    assert [at for _, at in arrivals] == sorted(at for _, at in arrivals)
    return [piece for piece, _ in arrivals]


async def test_an_answer_comes_in_pieces_and_fields_are_sent() -> None:
    script = Script()
    with serving(script) as address:
        found = await pieces(f"{address}/v1/", max_tokens=7)
    assert [piece.text for piece in found if piece.text] == list(WORDS)
    assert [piece.finish_reason for piece in found if piece.finish_reason] == ["stop"]
    assert found[-1].usage == StreamedUsage(prompt=11, completion=5, cached=3)
    (body,) = script.bodies
    assert (body["model"], body["messages"], body["max_tokens"]) == ("scripted", QUESTION, 7)
    assert body["stream"] is True and body["stream_options"] == {"include_usage": True}


async def test_an_error_event_is_a_piece() -> None:
    with serving(Script(["midstream"])) as address:
        assert (await pieces(address))[-1].error == "the engine broke"


async def test_a_refusal_says_when_to_come_again() -> None:
    with serving(Script(["busy", "broken"], retry_after="7")) as address:
        with pytest.raises(AnswerRefused, match=r"^HTTP 503: answer 503$") as refusal:
            await pieces(address)
        assert (refusal.value.status, refusal.value.retry_after) == (503, "7")
        with pytest.raises(AnswerRefused, match=r"^HTTP 500: answer 500$") as refusal:
            await pieces(address)
        assert (refusal.value.status, refusal.value.retry_after) == (500, "")


@pytest.mark.parametrize(("behaviour", "message"), [("odd", "^BrokenStream: not JSON"), ("cut", "Error")])
async def test_a_stream_that_breaks(behaviour: str, message: str) -> None:
    with serving(Script([behaviour])) as address, pytest.raises(AnswerFailed, match=message) as failure:
        await pieces(address)
    assert failure.value.status == 200


async def test_nobody_there() -> None:
    with pytest.raises(AnswerFailed, match="ConnectError") as failure:
        await pieces("http://127.0.0.1:9")
    assert failure.value.status == 0
    client = ServerClient("http://127.0.0.1:9", "", "", TIMEOUT)
    with pytest.raises(NothingAnswers, match=r"^nothing answers at http://127.0.0.1:9: "):
        await client.find_model()
    assert await client.text_at("metrics") is None
    await client.close()


async def test_the_model_is_the_first_listed_unless_it_is_given() -> None:
    with serving(Script()) as address:
        found, given = ServerClient(address, "", "", TIMEOUT), ServerClient(address, "", "mine", TIMEOUT)
        lost = ServerClient(f"{address}/nowhere", "", "", TIMEOUT)
        await found.find_model()
        await given.find_model()
        assert (found.model, given.model) == ("scripted", "mine")
        with pytest.raises(Unreachable, match="is no list of models"):
            await lost.find_model()
        for client in (found, given, lost):
            await client.close()


def test_tokens_so_far_are_those_of_usage_or_of_timings() -> None:
    assert read_piece('{"choices":[],"usage":{},"timings":{"predicted_n":3}}').tokens == 3
    assert read_piece('{"choices":[],"usage":{"completion_tokens":2},"timings":{"predicted_n":3}}').tokens == 2
    assert read_piece('{"choices":[],"usage":null,"timings":{"predicted_n":"3"}}').tokens == 0
