"""Images in every format: what the engine is shown, and what is refused by name."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.config import EngineConfig
from engine.request import ImagePrompt, PromptImage
from server.generation import launch
from server.middleware.auth import KeyRing
from server.settings import Settings
from tests.server.one_model import create_app
from tests.server.scripted_engine import NAME, ScriptedEngine
from tests.vision_facts import IDEFICS

DATA = "aGk="
URL = f"data:image/png;base64,{DATA}"
CLAUDE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
IMAGE_URL = {"type": "image_url", "image_url": {"url": URL, "detail": "low"}}
INPUT_IMAGE = {"type": "input_image", "image_url": URL, "detail": "low"}


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def text(said: str, kind: str = "text") -> dict[str, str]:
    return {"type": kind, "text": said}


# path, body, the field of the image, what the engine is told of it
FORMS: list[tuple[str, dict[str, Any], str, str | None]] = [
    ("/v1/chat/completions", {"messages": user(text("a"), IMAGE_URL, text("b"))}, "messages[0].content[1].type", "low"),
    (
        "/v1/responses",
        {"input": user(text("a", "input_text"), INPUT_IMAGE, text("b", "input_text"))},
        "input[0].content[1].type",
        "low",
    ),
    (
        "/v1/messages",
        {"max_tokens": 9, "messages": user(text("a"), CLAUDE, text("b"))},
        "messages[0].content[1].source",
        None,
    ),
    ("/api/chat", {"messages": [{"role": "user", "content": "b", "images": [DATA]}]}, "messages[0].images[0]", None),
    ("/api/generate", {"prompt": "b", "images": [DATA]}, "images[0]", None),
]


@pytest.mark.parametrize(("path", "body", "param", "detail"), FORMS, ids=[form[0] for form in FORMS])
async def test_an_image_reaches_the_engine(
    client: httpx.AsyncClient, engine: ScriptedEngine, path: str, body: dict[str, Any], param: str, detail: str | None
) -> None:
    engine.see(IDEFICS)
    answer = await client.post(path, json={"model": NAME, "stream": False} | body)
    assert answer.status_code == 200, answer.text
    *before, image, after = engine.chats[-1][-1]["content"]
    assert [part["text"] for part in before] == (["a"] if path.startswith("/v1") else [])
    assert image["type"] == "image"
    assert image["url"].endswith(f";base64,{DATA}")
    assert image["detail"] == detail
    assert image["param"] == param.replace(".type", ".image_url")
    assert after == text("b")


@pytest.mark.parametrize(("path", "body", "param", "detail"), FORMS, ids=[form[0] for form in FORMS])
async def test_a_model_of_text_refuses_it_by_name(
    client: httpx.AsyncClient, engine: ScriptedEngine, path: str, body: dict[str, Any], param: str, detail: str | None
) -> None:
    answer = await client.post(path, json={"model": NAME} | body)
    assert answer.status_code == 400
    assert f"'{param}'" in answer.text
    assert "reads text only" in answer.text
    assert not engine.chats


@pytest.mark.parametrize("detail", ["original", "LOW", 1])
async def test_a_detail_that_is_not_honoured_is_refused_by_name(
    client: httpx.AsyncClient, engine: ScriptedEngine, detail: object
) -> None:
    engine.see(IDEFICS)
    image = {"type": "image_url", "image_url": {"url": URL, "detail": detail}}
    bodies: list[tuple[str, dict[str, Any], str]] = [
        ("/v1/chat/completions", {"messages": user(image)}, "messages[0].content[0].image_url.detail"),
        ("/v1/responses", {"input": user(INPUT_IMAGE | {"detail": detail})}, "input[0].content[0].detail"),
    ]
    for path, body, param in bodies:
        answer = await client.post(path, json={"model": NAME} | body)
        assert answer.status_code == 400, path
        assert answer.json()["error"]["param"] == param
        assert "'auto', 'low' or 'high'" in answer.json()["error"]["message"]
    assert not engine.chats


async def test_images_by_url_are_fetched_before_the_engine_sees_them(
    client: httpx.AsyncClient, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """Where the setting allows a folder; without it the URL stays, and is refused where images are read."""
    engine.see(IDEFICS)
    (tmp_path / "a.png").write_bytes(b"hi")
    url = (tmp_path / "a.png").as_uri()
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": user({"type": "image_url", "image_url": {"url": url}})}),
        ("/v1/responses", {"input": user({"type": "input_image", "image_url": url})}),
        ("/v1/messages", {"max_tokens": 9, "messages": user({"type": "image", "source": {"type": "url", "url": url}})}),
    ]
    for path, body in bodies:
        answer = await client.post(path, json={"model": NAME} | body)
        assert answer.status_code == 200, answer.text
        assert engine.chats[-1][-1]["content"][0]["url"] == url
        app = create_app(Settings(EngineConfig("unused"), media=str(tmp_path)), engine, KeyRing())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as allowed:
            answer = await allowed.post(path, json={"model": NAME} | body)
        assert answer.status_code == 200, answer.text
        assert engine.chats[-1][-1]["content"][0]["url"].endswith(f";base64,{DATA}")


@pytest.mark.parametrize(("path", "body", "param", "detail"), FORMS[:2], ids=[form[0] for form in FORMS[:2]])
async def test_too_many_pixels_are_the_fault_of_what_has_the_images(
    client: httpx.AsyncClient,
    engine: ScriptedEngine,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, Any],
    param: str,
    detail: str | None,
) -> None:
    async def prompt(*_: object) -> ImagePrompt:
        return ImagePrompt((1, 2), (PromptImage(0, 1, b"digest", bytes(9)),))

    engine.see(IDEFICS)
    monkeypatch.setattr(engine, "chat_prompt", prompt)
    monkeypatch.setattr(launch, "MOST_PIXELS_BYTES", 8)
    error = (await client.post(path, json={"model": NAME} | body)).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", param.partition("[")[0])
    assert "9 bytes of pixels, the limit is 8" in error["message"]


async def test_only_a_user_shows_images(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.see(IDEFICS)
    items = [{"role": "assistant", "content": [INPUT_IMAGE]}, {"role": "user", "content": "x"}]
    for path, body in (("/v1/responses", {"input": items}), ("/api/generate", FORMS[-1][1] | {"raw": True})):
        answer = await client.post(path, json={"model": NAME} | body)
        assert answer.status_code == 400, path


async def test_models_say_that_they_see(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.see(IDEFICS)
    listed = (await client.get("/v1/models")).json()["data"][0]
    assert "vision" in listed["meta"]["capabilities"]
    shown = (await client.post("/api/show", json={"model": NAME})).json()
    assert "vision" in shown["capabilities"]
