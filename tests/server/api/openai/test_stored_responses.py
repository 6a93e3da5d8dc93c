"""Stored responses over HTTP: follow, read, list, cancel, delete, in the background and not; openai-python judges."""

import asyncio
import json
import socket
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvicorn
from fastapi import FastAPI

from engine.errors import StepFailed
from engine.request import Delta
from server.api.openai.response_answer import DeletedResponse, ResponseAnswer, ResponseItems
from server.api.openai.response_runs import StoredResponses
from server.generation.stream import RESUMABLE
from server.http.in_flight import InFlight
from server.middleware.auth import read_keys
from server.settings import Settings
from server.stored_responses.database import Database, StorageBounds
from server.stored_responses.store import DATABASE, ResponseStore
from tests.server.answers import check_answer
from tests.server.api.openai.test_responses import HELLO, KEYS, TOOL, events, types
from tests.server.api.test_images import INPUT_IMAGE, user
from tests.server.one_model import create_app
from tests.server.scripted_engine import NAME, ScriptedEngine, say
from tests.vision_facts import IDEFICS

PATH = "/v1/responses"
ANNA, BERT = {"authorization": "Bearer anna-key"}, {"authorization": "Bearer bert-key"}
RING = "anna:anna-key,bert:bert-key"
CALL = ('<tool_call>{"name": "f", "arguments": {"x": 1}}', "</tool_call>")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ResponseStore]:
    store = ResponseStore(tmp_path / "data", StorageBounds(64, 30.0))
    yield store
    store.close()


@pytest.fixture
def in_flight() -> InFlight:
    return InFlight()


@pytest.fixture
async def stored(store: ResponseStore) -> StoredResponses:
    return StoredResponses(store)


@pytest.fixture
async def app(settings: Settings, engine: ScriptedEngine, stored: StoredResponses, in_flight: InFlight) -> FastAPI:
    return create_app(settings, engine, read_keys(RING, ""), in_flight, stored)


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server", headers=ANNA) as client:
        yield client


@pytest.fixture
async def sdk(base_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="anna-key", max_retries=0) as client:
        yield client


async def respond(client: httpx.AsyncClient, **fields: Any) -> Any:
    answer = await client.post(PATH, json=HELLO | fields)
    assert answer.status_code == 200, answer.text
    if fields.get("stream"):
        return events(answer.text)
    check_answer(ResponseAnswer, answer.json())
    assert set(answer.json()) == KEYS
    return answer.json()


async def test_what_is_stored_is_what_was_answered(client: httpx.AsyncClient) -> None:
    said = await respond(client)
    assert said["store"] is True and said["status"] == "completed"
    assert (await client.get(f"{PATH}/{said['id']}")).json() == said
    streamed = (await respond(client, stream=True))[-1]["response"]
    assert (await client.get(f"{PATH}/{streamed['id']}")).json() == streamed


async def test_a_stream_that_is_stored_says_what_one_that_is_not_says(client: httpx.AsyncClient) -> None:
    kept, passing = await respond(client, stream=True), await respond(client, stream=True, store=False)
    assert types(kept) == types(passing) and kept[-1]["response"]["store"] != passing[-1]["response"]["store"]


async def test_what_is_not_to_be_stored_is_not(client: httpx.AsyncClient) -> None:
    said = await respond(client, store=False)
    assert said["store"] is False
    gone = await client.get(f"{PATH}/{said['id']}")
    assert (gone.status_code, gone.json()["error"]["message"]) == (404, f"Response with id '{said['id']}' not found.")


async def test_nobody_chooses_the_id_of_what_is_stored(client: httpx.AsyncClient, app: FastAPI) -> None:
    app.state.body_limits = replace(app.state.body_limits, takes_resumptions=True)
    resumption = {"id": "known-to-others", "created": 1, "seed": 7}
    for store, status in ((None, 400), (False, 200), (True, 400), (False, 200)):
        body = {"request": HELLO | {"store": store}, "resumption": resumption}
        answer = await client.post(PATH, content=json.dumps(body), headers={"content-type": RESUMABLE})
        assert answer.status_code == status, answer.text
        assert status == 200 or answer.json()["error"]["param"] == "store"


async def test_a_response_follows_another(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = lambda request: say(request, CALL)
    first = await respond(client, instructions="be brief", tools=[TOOL])
    call = first["output"][0]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "42"}
    engine.script = say
    second = await respond(client, input=[result], previous_response_id=first["id"], tools=[TOOL])
    third = await respond(client, input="and then?", previous_response_id=second["id"], store=False)
    assert (second["previous_response_id"], third["previous_response_id"]) == (first["id"], second["id"])
    called = {"id": call["call_id"], "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    conversation = [
        {"role": "user", "content": "say hello please"},
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "content": "42", "tool_call_id": call["call_id"]},
    ]
    assert engine.chats[1] == conversation
    assert engine.chats[2] == [
        *conversation,
        {"role": "assistant", "content": "Hello there, friend!"},
        {"role": "user", "content": "and then?"},
    ]


async def test_a_response_stored_under_an_older_kind_of_id_is_found_and_followed(
    client: httpx.AsyncClient, engine: ScriptedEngine, tmp_path: Path
) -> None:
    await respond(client)
    with closing(sqlite3.connect(tmp_path / "data" / DATABASE)) as other:
        other.execute("UPDATE response SET id = 'resp-1'")
        other.commit()
    assert (await client.get(f"{PATH}/resp-1")).status_code == 200
    assert (await respond(client, input="more", previous_response_id="resp-1"))["id"].startswith("resp_")
    assert len(engine.chats[1]) == 3


async def test_images_are_numbered_as_in_the_request_that_brings_them(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.see(IDEFICS)
    first = await respond(client, input=user(INPUT_IMAGE))
    second = await respond(client, input=user(INPUT_IMAGE), previous_response_id=first["id"])
    params = [turn["content"][0]["param"] for turn in engine.chats[-1] if turn["role"] == "user"]
    assert params == ["previous_response_id", "input[0].content[0].image_url"]
    for role in ("system", "assistant"):
        items = [{"role": "user", "content": "hi"}, {"role": role, "content": [INPUT_IMAGE]}]
        body = HELLO | {"input": items, "previous_response_id": second["id"]}
        assert (await client.post(PATH, json=body)).json()["error"]["param"] == "input[1].content"


async def test_the_items_a_response_answered(client: httpx.AsyncClient) -> None:
    first = await respond(client, input=[{"role": "user", "content": "one"}, {"role": "user", "content": "two"}])
    second = await respond(client, input="three", previous_response_id=first["id"])
    path = f"{PATH}/{second['id']}/input_items"
    everything = (await client.get(path, params={"order": "asc"})).json()
    check_answer(ResponseItems, everything)
    texts = [item["content"][0]["text"] for item in everything["data"]]
    assert texts == ["one", "two", "Hello there, friend!", "three"] and everything["has_more"] is False
    assert [item["role"] for item in everything["data"]] == ["user", "user", "assistant", "user"]
    newest = (await client.get(path, params={"limit": "2"})).json()
    assert [item["content"][0]["text"] for item in newest["data"]] == ["three", "Hello there, friend!"]
    assert newest["has_more"] is True and newest["last_id"] == newest["data"][-1]["id"]
    rest = (await client.get(path, params={"limit": "2", "after": newest["last_id"]})).json()
    assert [item["content"][0]["text"] for item in rest["data"]] == ["two", "one"] and rest["has_more"] is False


@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        ({"limit": "0"}, "integer_below_min_value", "limit"),
        ({"limit": "101"}, "integer_above_max_value", "limit"),
        ({"limit": "x"}, "invalid_type", "limit"),
        ({"order": "up"}, "unsupported_value", "order"),
        ({"after": "msg_x"}, "invalid_value", "after"),
        ({"before": "msg_x"}, "unknown_parameter", "before"),
    ],
)
async def test_a_page_that_cannot_be(client: httpx.AsyncClient, query: dict[str, str], code: str, param: str) -> None:
    said = await respond(client)
    answer = await client.get(f"{PATH}/{said['id']}/input_items", params=query)
    assert (answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["param"]) == (400, code, param)


async def test_delete(client: httpx.AsyncClient) -> None:
    said = await respond(client)
    gone = await client.delete(f"{PATH}/{said['id']}")
    check_answer(DeletedResponse, gone.json())
    assert gone.json() == {"id": said["id"], "object": "response", "deleted": True}
    for answer in (
        await client.get(f"{PATH}/{said['id']}"),
        await client.delete(f"{PATH}/{said['id']}"),
        await client.get(f"{PATH}/{said['id']}/input_items"),
        await client.post(f"{PATH}/{said['id']}/cancel"),
    ):
        assert answer.status_code == 404 and answer.json()["error"]["type"] == "invalid_request_error"
    follows = await client.post(PATH, json=HELLO | {"previous_response_id": said["id"]})
    error = follows.json()["error"]
    assert (follows.status_code, error["param"]) == (404, "previous_response_id")
    assert error["message"] == f"Previous response with id '{said['id']}' not found."
    assert error["code"] == "previous_response_not_found"


async def test_another_key_finds_nothing(client: httpx.AsyncClient) -> None:
    said = await respond(client)
    path = f"{PATH}/{said['id']}"
    for answer in (
        await client.get(path, headers=BERT),
        await client.delete(path, headers=BERT),
        await client.post(f"{path}/cancel", headers=BERT),
        await client.get(f"{path}/input_items", headers=BERT),
        await client.post(PATH, json=HELLO | {"previous_response_id": said["id"]}, headers=BERT),
    ):
        assert answer.status_code == 404
    assert (await client.get(path)).status_code == 200


async def test_another_key_of_the_same_name_is_somebody_else(
    client: httpx.AsyncClient, settings: Settings, engine: ScriptedEngine, stored: StoredResponses
) -> None:
    said = await respond(client)
    other = create_app(settings, engine, read_keys("anna:other-key", ""), None, stored)
    same = create_app(settings, engine, read_keys("bert:x,renamed:anna-key", ""), None, stored)
    for app, key, status in ((other, "other-key", 404), (same, "anna-key", 200)):
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://s", headers=headers) as one:
            assert (await one.get(f"{PATH}/{said['id']}")).status_code == status


async def test_the_background(client: httpx.AsyncClient, engine: ScriptedEngine, stored: StoredResponses) -> None:
    engine.hold()
    said = await respond(client, background=True)
    path = f"{PATH}/{said['id']}"
    assert (said["status"], said["background"], said["output"]) == ("queued", True, [])
    assert (await client.get(path)).json()["status"] == "queued"
    engine.release(1)
    while (now := (await client.get(path)).json())["status"] == "queued":
        await asyncio.sleep(0)
    assert now["status"] == "in_progress"
    engine.release(9)
    await stored.settle()
    done = (await client.get(path)).json()
    assert done["status"] == "completed" and done["output"][0]["content"][0]["text"] == "Hello there, friend!"


async def test_what_is_cancelled_ends_at_once_and_says_so(
    client: httpx.AsyncClient, engine: ScriptedEngine, stored: StoredResponses
) -> None:
    engine.hold(2)
    said = await respond(client, background=True)
    path = f"{PATH}/{said['id']}"
    while (await client.get(path)).json()["status"] == "queued":
        await asyncio.sleep(0)
    for _ in range(2):  # cancelling twice is cancelling once
        cancelled = (await client.post(f"{path}/cancel")).json()
        check_answer(ResponseAnswer, cancelled)
        assert cancelled["status"] == "cancelled"
    assert not engine.live and engine.aborted
    await stored.settle()
    assert (await client.get(path)).json() == cancelled
    follows = await client.post(PATH, json=HELLO | {"previous_response_id": said["id"]})
    assert follows.status_code == 400 and "it is cancelled" in follows.json()["error"]["message"]


async def test_who_waits_in_the_background_can_be_cancelled(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.hold()
    said = await respond(client, background=True)
    assert (await client.post(f"{PATH}/{said['id']}/cancel")).json()["status"] == "cancelled"


async def test_what_has_ended_is_not_cancelled(client: httpx.AsyncClient, stored: StoredResponses) -> None:
    said = await respond(client, background=True)
    await stored.settle()
    assert (await client.post(f"{PATH}/{said['id']}/cancel")).json()["status"] == "completed"
    plain = await respond(client)
    refused = await client.post(f"{PATH}/{plain['id']}/cancel")
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, "Cannot cancel a synchronous response.")


async def test_a_model_stays_loaded_for_what_runs_in_the_background(
    client: httpx.AsyncClient, app: FastAPI, engine: ScriptedEngine, stored: StoredResponses
) -> None:
    engine.hold()
    await respond(client, background=True)
    [model] = app.state.server.models.models
    assert model.pins == 1
    engine.release(9)
    await stored.settle()
    assert model.pins == 0


async def test_a_failure_in_the_background(
    client: httpx.AsyncClient, engine: ScriptedEngine, stored: StoredResponses
) -> None:
    engine.script = lambda _: [Delta("Hel", (1,)), StepFailed("it broke")]
    said = await respond(client, background=True)
    await stored.settle()
    failed = (await client.get(f"{PATH}/{said['id']}")).json()
    assert (failed["status"], failed["error"]) == ("failed", {"code": "server_error", "message": "it broke"})
    assert failed["output"][0]["content"][0]["text"] == "Hel"


async def test_a_failure_before_the_first_token_keeps_its_status(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.script = lambda _: [StepFailed("it broke")]
    for is_stream in (True, False):
        answer = await client.post(PATH, json=HELLO | {"stream": is_stream})
        assert (answer.status_code, answer.json()["error"]["message"]) == (500, "it broke")


async def test_a_cut_response_is_stored_as_one_and_can_be_followed(client: httpx.AsyncClient) -> None:
    cut = await respond(client, max_output_tokens=2, background=False)
    assert (await client.get(f"{PATH}/{cut['id']}")).json()["status"] == "incomplete"
    assert (await respond(client, previous_response_id=cut["id"]))["status"] == "completed"


async def test_a_stream_is_read_again_from_any_place(client: httpx.AsyncClient, stored: StoredResponses) -> None:
    said = await respond(client, background=True, stream=True)
    assert types(said)[:3] == ["created", "queued", "in_progress"] and types(said)[-1] == "completed"
    path = f"{PATH}/{said[0]['response']['id']}"
    await stored.settle()
    again = events((await client.get(path, params={"stream": "true"})).text)
    assert again == said
    for after in range(len(said)):
        rest = await client.get(path, params={"stream": "true", "starting_after": str(after)})
        found = [json.loads(line[6:]) for line in rest.text.split("\n") if line[:6] == "data: "]
        assert [event["sequence_number"] for event in found] == list(range(after + 1, len(said)))


async def test_a_stream_is_taken_up_while_it_runs(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.hold(2)
    said = await respond(client, background=True)
    path = f"{PATH}/{said['id']}"
    reading = asyncio.create_task(client.get(path, params={"stream": "true", "starting_after": "1"}))
    engine.release(9)
    found = [line for line in (await reading).text.split("\n") if line.startswith("event: ")]
    assert (found[0], found[-1]) == ("event: response.in_progress", "event: response.completed")


@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        ({"stream": "yes"}, "invalid_type", "stream"),
        ({"stream": "true", "starting_after": "x"}, "invalid_type", "starting_after"),
        ({"stream": "true"}, "invalid_value", "stream"),
        ({"starting_after": "1"}, "invalid_value", "starting_after"),
        ({"include[]": "file_search_call.results"}, "unsupported_value", "include[0]"),
        ({"include_obfuscation": "true"}, "unsupported_value", "include_obfuscation"),
        ({"wait": "1"}, "unknown_parameter", "wait"),
    ],
)
async def test_a_stream_that_cannot_be_read(
    client: httpx.AsyncClient, query: dict[str, str], code: str, param: str
) -> None:
    said = await respond(client)
    answer = await client.get(f"{PATH}/{said['id']}", params=query)
    assert (answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["param"]) == (400, code, param)


async def test_background_needs_store(client: httpx.AsyncClient) -> None:
    answer = await client.post(PATH, json=HELLO | {"background": True, "store": False})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "background")


async def test_deleting_what_runs_ends_it(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.hold(1)
    said = await respond(client, background=True)
    assert (await client.delete(f"{PATH}/{said['id']}")).status_code == 200
    assert not engine.live and (await client.get(f"{PATH}/{said['id']}")).status_code == 404


async def test_what_runs_when_the_server_ends_has_failed(
    client: httpx.AsyncClient, engine: ScriptedEngine, stored: StoredResponses, in_flight: InFlight
) -> None:
    engine.hold(1)
    said = await respond(client, background=True)
    in_flight.end()
    await stored.settle()
    failed = (await client.get(f"{PATH}/{said['id']}")).json()
    assert failed["status"] == "failed" and "shutting down" in failed["error"]["message"]


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"background": True}, {"background": True, "stream": True}])
async def test_what_cannot_be_stored_at_its_end_has_failed(
    client: httpx.AsyncClient,
    stored: StoredResponses,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Database, "update", full)
    answer = await client.post(PATH, json=HELLO | fields)
    await stored.settle()
    told = "Stored responses cannot be used now: database or disk is full."
    if fields == {}:
        assert (answer.status_code, answer.json()["error"]["message"]) == (500, told)
    elif fields.get("stream"):
        last = events(answer.text)[-1]
        assert (last["type"], last["response"]["error"]["message"]) == ("response.failed", told)
    else:
        path = f"{PATH}/{answer.json()['id']}"
        for known in (await client.get(path), await client.post(f"{path}/cancel")):
            assert (known.status_code, known.json()["status"]) == (200, "failed"), known.text
    assert (await client.post(PATH, json=HELLO | {"store": False})).status_code == 200


async def test_a_damaged_database_costs_an_error_not_the_server(
    client: httpx.AsyncClient, engine: ScriptedEngine, tmp_path: Path
) -> None:
    said = await respond(client, input="word " * 40)
    file = tmp_path / "data" / DATABASE
    with closing(sqlite3.connect(file)) as other:  # what was changed by others is read from the file again
        other.execute("UPDATE response SET used = used + 1")
        other.commit()
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    file.write_bytes(b"\x5a" * file.stat().st_size)
    broken = await client.get(f"{PATH}/{said['id']}")
    assert broken.status_code == 500
    assert broken.json()["error"]["message"].startswith("Stored responses cannot be used now: ")
    assert (await client.post(PATH, json=HELLO | {"store": False})).status_code == 200
    refused = await client.post(PATH, json=HELLO)
    assert refused.status_code == 500 and not engine.live


@pytest.fixture
async def base_url(app: FastAPI) -> AsyncIterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, lifespan="off"))
    serving = asyncio.create_task(server._serve([listener]))
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    await serving


async def test_a_client_that_leaves_ends_its_response_but_not_one_in_the_background(
    sdk: openai.AsyncOpenAI, engine: ScriptedEngine, stored: StoredResponses
) -> None:
    engine.hold()
    ids = []
    for is_background in (False, True):
        engine.release(1)
        stream = await sdk.responses.create(model=NAME, input="hi", stream=True, background=is_background)
        async for event in stream:
            if event.type == "response.in_progress":
                ids.append(event.response.id)
                break
        await stream.close()
        if not is_background:
            await engine.abort_seen.wait()
    engine.release(9)
    await stored.settle()
    assert [(await sdk.responses.retrieve(id)).status for id in ids] == ["cancelled", "completed"]


async def test_every_verb_of_the_sdk(sdk: openai.AsyncOpenAI, stored: StoredResponses) -> None:
    first = await sdk.responses.create(model=NAME, input="hi")
    second = await sdk.responses.create(model=NAME, input="more", previous_response_id=first.id)
    assert (await sdk.responses.retrieve(second.id)).output_text == "Hello there, friend!"
    items = [item async for item in sdk.responses.input_items.list(second.id, limit=1, order="asc")]
    assert [item.type for item in items] == ["message"] * 3 and len({item.id for item in items}) == 3
    waiting = await sdk.responses.create(model=NAME, input="hi", background=True)
    assert waiting.status == "queued"
    await stored.settle()
    assert (await sdk.responses.cancel(waiting.id)).status == "completed"
    kinds = [event.type async for event in await sdk.responses.retrieve(waiting.id, stream=True, starting_after=1)]
    assert kinds[0] == "response.in_progress" and kinds[-1] == "response.completed"
    await sdk.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.retrieve(second.id)
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.create(model=NAME, input="hi", previous_response_id=second.id)
