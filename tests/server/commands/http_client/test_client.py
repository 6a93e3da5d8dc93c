"""One client for bench and chat, against scripted answers."""

import httpx
import pytest

from server.commands.http_client.address import Unreachable
from server.commands.http_client.client import AnswerFailed, AnswerRefused, NothingAnswers, ServerClient
from server.commands.http_client.event_stream import Piece, StreamedUsage
from tests.server.commands.scripted_server import WORDS, Script, serving

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
