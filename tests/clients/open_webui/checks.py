"""Open WebUI's real server and page against live servers, with the settings of docs/how-to/clients/open-webui.md."""

# servers: embeds several hears

import io
import math
import os
import re
import struct
import sys
import time
import wave
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from checking import MODEL, base_url, check, run
from webui import KEY, PATIENCE_S, USER, WebUi, documented, webui

sys.path.insert(0, str(Path(__file__).parents[1] / "page"))
from chromium import find_chromium
from playwright.sync_api import Locator, Page, expect, sync_playwright

TAGGED = f"{MODEL}:latest"
LONG = "word " * 3000
ANSWER = "An answer of **hexserve**, which streamed here over `/v1/chat/completions`."
ASK = 'call: forecast {"city": "Oslo"}'
TOOL = {
    "type": "function",
    "function": {
        "name": "forecast",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
PATIENCE_MS = 1000 * PATIENCE_S
# The browser's microphone hears beeps, and nobody is asked whether it may be used.
BEEPS = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")


@cache
def one() -> tuple[Any, WebUi]:
    """One server for all checks: an OpenAI connection, an Ollama connection, and one for what documents become."""
    openai = documented("OPENAI_API_BASE_URL", "scripted") | {"OPENAI_API_KEY": KEY}
    ollama = documented("OLLAMA_BASE_URL", "scripted")
    vectors = documented("RAG_OPENAI_API_BASE_URL", "embeds") | {"RAG_EMBEDDING_MODEL": name_of("embeds")}
    speech = documented("AUDIO_STT_OPENAI_API_BASE_URL", "hears") | {"AUDIO_STT_MODEL": name_of("hears")}
    both = {"ENABLE_OPENAI_API": "true", "ENABLE_OLLAMA_API": "true"}
    starting = webui({**openai, **ollama, **vectors, **speech, **both})
    made = starting.__enter__()
    made.post(  # the key of an Ollama connection, as its dialogue sends it
        "/ollama/config/update",
        {
            "ENABLE_OLLAMA_API": True,
            "OLLAMA_BASE_URLS": [ollama["OLLAMA_BASE_URL"]],
            "OLLAMA_API_CONFIGS": {"0": {"enable": True, "key": KEY}},
        },
    )
    made.get("/api/models?refresh=true")
    return starting, made


def name_of(server: str) -> str:
    listed = httpx.get(f"{base_url(server)}/models", timeout=PATIENCE_S).json()["data"]
    return str(listed[0]["id"])


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def chunks(body: dict[str, Any]) -> list[Any]:
    with one()[1].streamed(body) as found:
        return list(found)


def text_of(found: list[Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for chunk in found for choice in chunk.get("choices", []))


def aborted() -> float:
    """Requests of the scripted server that ended because their client left."""
    text = httpx.get(f"{base_url('scripted').removesuffix('/v1')}/metrics", headers={"Authorization": f"Bearer {KEY}"})
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in text.text.splitlines()
        if line.startswith("vllm:request_success_total{") and 'finished_reason="abort"' in line
    )


def until_aborted(before: float) -> None:
    """Wait until the server has noticed that one more client left."""
    until_s = time.monotonic() + PATIENCE_S
    while aborted() <= before:
        assert time.monotonic() < until_s, "the answer went on"
        time.sleep(0.1)


@check
def models_of_both_connections_are_listed() -> None:
    listed = {model["id"]: model.get("owned_by") for model in one()[1].get("/api/models")["data"]}
    assert listed[TAGGED] == "ollama" and MODEL in listed, listed
    assert re.fullmatch(r"\d+\.\d+\.\d+", one()[1].get("/ollama/api/version")["version"])


@check
def a_chat_whole() -> None:
    for model in (MODEL, TAGGED):
        body = {"model": model, "messages": user("say: hello there"), "stream": False}
        said = one()[1].post("/api/chat/completions", body)["choices"][0]
        assert said["message"]["content"] == "hello there", said


@check
def a_chat_streamed() -> None:
    for model in (MODEL, TAGGED):
        found = chunks({"model": model, "messages": user("one two three four five"), "params": {"temperature": 0.2}})
        assert text_of(found) == "one two three four five", found
        assert sum(bool(text_of([chunk])) for chunk in found) > 2, found


@check
def a_stream_is_stopped_in_the_middle() -> None:
    for model in (MODEL, TAGGED):
        before = aborted()
        with one()[1].streamed({"model": model, "messages": user(LONG)}) as found:
            assert text_of([next(found), next(found), next(found)])
        until_aborted(before)


@check
def tools_are_called_and_answered() -> None:
    for model in (MODEL, TAGGED):
        body: dict[str, Any] = {"model": model, "messages": user(ASK), "tools": [TOOL], "stream": False}
        message = one()[1].post("/api/chat/completions", body)["choices"][0]["message"]
        [call] = message["tool_calls"]
        assert call["function"]["name"] == "forecast" and "Oslo" in call["function"]["arguments"], call
        answered = {"role": "tool", "tool_call_id": call["id"], "content": "rain"}
        body["messages"] += [{"role": "assistant", "content": "", "tool_calls": [call]}, answered]
        said = one()[1].post("/api/chat/completions", body)["choices"][0]["message"]["content"]
        assert said == "rain", said


@check
def errors_are_passed_on() -> None:
    unknown = one()[1].ask("/api/chat/completions", {"model": "nobody", "messages": user("a")})
    assert unknown.status_code in (400, 404), unknown.text
    for path, body in (
        ("/openai/chat/completions", {"model": MODEL, "messages": user("a"), "temperature": 9}),
        ("/ollama/api/chat", {"model": TAGGED, "messages": user("a"), "options": {"mirostat": 2}, "stream": False}),
    ):
        refused = one()[1].ask(path, body)
        assert refused.status_code == 400 and re.search("temperature|mirostat", refused.text), refused.text


@check
def documents_become_vectors_and_are_found() -> None:
    texts = {"cats": "The cat sat on the mat and purred.", "tax": "The tax office wants the form in March."}
    for name, text in texts.items():
        body = {"name": name, "content": text, "collection_name": f"notes-{name}"}
        assert one()[1].post("/api/v1/retrieval/process/text", body)["status"]
    asked = {"collection_names": [f"notes-{name}" for name in texts], "query": texts["tax"], "k": 1}
    found = one()[1].post("/api/v1/retrieval/query/collection", asked)
    assert found["documents"] == [[texts["tax"]]], found


def recorded() -> bytes:
    """A WAV file: two seconds of a tone that comes and goes."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 16_000, 0, "NONE", "none"))
        tones = (math.sin(index / 6) * math.sin(index / 5000) for index in range(32_000))
        out.writeframes(b"".join(struct.pack("<h", int(9_000 * tone)) for tone in tones))
    return file.getvalue()


@check
def speech_is_written_down() -> None:
    """As the microphone of its page sends it; the answer is hexserve's own."""
    sound = recorded()
    for given in ({}, {"language": "de"}):
        said = one()[1].send("/api/v1/audio/transcriptions", given, ("speech.wav", sound, "audio/wav"))
        asked = {"model": name_of("hears"), **given}
        url = f"{base_url('hears')}/audio/transcriptions"
        wanted = httpx.post(url, data=asked, files={"file": sound}, timeout=PATIENCE_S).json()
        assert said["text"] and said["text"] == wanted["text"], (said, wanted)


@check
def models_that_come_and_go_are_listed_and_loaded() -> None:
    """Another connection is added, as its dialogue does: two models of which none is loaded."""
    given = {
        "ENABLE_OPENAI_API": True,
        "OPENAI_API_BASE_URLS": [base_url("scripted"), base_url("several")],
        "OPENAI_API_KEYS": [KEY, ""],
        "OPENAI_API_CONFIGS": {"0": {"enable": True}, "1": {"enable": True}},
    }
    one()[1].post("/openai/config/update", given)
    listed = {model["id"] for model in one()[1].get("/api/models?refresh=true")["data"]}
    assert {MODEL, "demo", "second"} <= listed, listed
    body = {"model": "second", "messages": user("What is the capital of France?"), "stream": False}
    said = one()[1].post("/api/chat/completions", {**body, "temperature": 0})
    assert "Paris" in said["choices"][0]["message"]["content"], said


def log_in(page: Page) -> None:
    page.goto(f"{one()[1].url}/auth")
    page.locator('input[autocomplete="email"]').fill(USER["email"])
    page.locator('input[type="password"]').fill(USER["password"])
    page.locator('button[type="submit"]').click()
    news = page.get_by_role("button", name=re.compile("let's go", re.IGNORECASE))
    expect(news.or_(page.locator("#chat-input")).first).to_be_visible()
    if news.is_visible():
        news.click()


@check
def its_page_streams_an_answer_stops_one_and_takes_speech() -> None:
    found = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found.program,
            env={**os.environ, **found.variables},
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *BEEPS],
        )
        page = browser.new_page(viewport={"width": 1240, "height": 790})
        page.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        try:
            log_in(page)
            in_the_page(page)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{page.locator('body').inner_text()}") from error
        finally:
            browser.close()


def ask(page: Page, text: str, number: int) -> Locator:
    """Send a message and give the place of its answer, the one of that number."""
    page.locator("#chat-input").click()
    page.keyboard.insert_text(text)
    page.keyboard.press("Enter")
    expect(page.locator(".chat-assistant")).to_have_count(number)
    return page.locator(".chat-assistant").last


def in_the_page(page: Page) -> None:
    page.locator('[id^="model-selector"][id$="-button"]').first.click()
    page.locator("#model-selector-list").get_by_text(MODEL, exact=True).first.click()
    expect(ask(page, f"say: {ANSWER}", 1)).to_contain_text("which streamed here")
    called = ask(page, "call: get_current_timestamp {}", 2)  # a tool of its own, which its server runs
    expect(called).to_contain_text("View Result from get_current_timestamp")
    expect(called.locator("p").last).to_contain_text("current_iso")
    if folder := os.environ.get("SCREENSHOTS"):
        page.mouse.move(620, 20)
        page.screenshot(path=Path(folder) / "open-webui.png")
    before = aborted()
    expect(ask(page, f"say: {LONG}", 3)).to_contain_text("word word")
    page.get_by_role("button", name="Stop").click()
    until_aborted(before)
    page.locator("#voice-input-button").click()
    expect(page.get_by_text("0:02", exact=True).first).to_be_visible()  # so much was recorded
    page.locator("#confirm-recording-button").click()
    expect(page.locator("#chat-input")).to_have_text(re.compile(r"\S"))


if __name__ == "__main__":
    try:
        run()
    finally:
        if one.cache_info().currsize:
            one()[0].__exit__(None, None, None)
