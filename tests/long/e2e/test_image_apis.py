"""The same question about the same image in every API of a real server: one answer, one count, the same refusals."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.vision.judges import saved
from tests.engine.vision.test_pictures import HOSTILE
from tests.live import LiveServer, serving
from tools.demo_vision.exam import KINDS, MODEL, held_out
from tools.demo_vision.model import CLOSING, OPENING, PLACEHOLDER, TOKENS, tokenizer_with_images

MOST = 60
PLACEHOLDER_ID = tokenizer_with_images().token_to_id(PLACEHOLDER)
BLOCK = 16
KIND = "image/png"


@dataclass(frozen=True)
class Form:
    """How an API is asked. param: its name of the image. answer, counted, streamed: where these stand in what it says,
    the last one in the events of a stream. cached: what of the prompt is counted beside `counted`."""

    path: str
    param: str
    answer: str
    counted: str
    streamed: str
    cached: str = ""


FORMS = {
    "chat": Form(
        "/v1/chat/completions",
        "messages[0].content[0].image_url",
        "choices.0.message.content",
        "usage.prompt_tokens",
        "usage.prompt_tokens",
    ),
    "responses": Form(
        "/v1/responses",
        "input[0].content[0].image_url",
        "output.0.content.0.text",
        "usage.input_tokens",
        "response.usage.input_tokens",
    ),
    "messages": Form(
        "/v1/messages",
        "messages[0].content[0].source",
        "content.0.text",
        "usage.input_tokens",
        "message.usage.input_tokens",
        "cache_read_input_tokens",
    ),
    "ollama": Form("/api/chat", "messages[0].images[0]", "message.content", "prompt_eval_count", "prompt_eval_count"),
    "generate": Form("/api/generate", "images[0]", "response", "prompt_eval_count", "prompt_eval_count"),
}


def body_of(api: str, content: bytes, text: str, stream: bool = False) -> dict[str, Any]:
    """A greedy question about one image."""
    data = base64.b64encode(content).decode()
    url = f"data:{KIND};base64,{data}"
    of_ollama = {"stream": stream, "options": {"num_predict": MOST, "temperature": 0}}
    match api:
        case "chat":
            parts: Any = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
            own = {"max_tokens": MOST, "temperature": 0}
            own |= {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        case "responses":
            parts = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": text}]
            return {
                "input": [{"role": "user", "content": parts}],
                "max_output_tokens": MOST,
                "temperature": 0,
                "stream": stream,
            }
        case "messages":
            source = {"type": "base64", "media_type": KIND, "data": data}
            parts = [{"type": "image", "source": source}, {"type": "text", "text": text}]
            own = {"max_tokens": MOST, "temperature": 0, "stream": stream}
        case "ollama":
            return {"messages": [{"role": "user", "content": text, "images": [data]}]} | of_ollama
        case _:
            return {"prompt": text, "images": [data]} | of_ollama
    return {"messages": [{"role": "user", "content": parts}]} | own


def at(document: Any, path: str) -> Any:
    """What stands at a path of keys and indices; None where there is none."""

    def step(found: Any, key: str) -> Any:
        if isinstance(found, list):
            return found[int(key)] if int(key) < len(found) else None
        return found.get(key) if isinstance(found, dict) else None

    return reduce(step, path.split("."), document)


def counted(form: Form, document: Any, path: str) -> int:
    """Tokens of the prompt."""
    beside = at(document, f"{path.rpartition('.')[0]}.{form.cached}") if form.cached else 0
    return int(at(document, path)) + int(beside)


def events(answer: httpx.Response) -> list[Any]:
    """Of server-sent events or lines of JSON."""
    lines = [line.removeprefix("data:").strip() for line in answer.text.splitlines() if line[:1] in "d{" and line]
    return [json.loads(line) for line in lines if line.startswith("{")]


def prompt_ids(*turns: str) -> list[int]:
    """The prompt of questions and answers in turn, whose first question shows an image: by its definition."""
    image, text = f"{OPENING}{PLACEHOLDER * TOKENS}{CLOSING}\n", ""
    for index, said in enumerate(turns):
        role = ("user", "assistant")[index % 2]
        text += f"<|im_start|>{role}\n{image if index == 0 else ''}{said}<|im_end|>\n"
    return list(tokenizer_with_images().encode(f"{text}<|im_start|>assistant\n").ids)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving(MODEL) as live:
        yield live


def post(server: LiveServer, path: str, body: dict[str, Any], key: str = "none") -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}", "anthropic-version": "2023-06-01"}
    return httpx.post(f"{server.url}{path}", json={"model": MODEL} | body, headers=headers, timeout=120)


@pytest.mark.parametrize("number", range(len(KINDS)), ids=KINDS)
def test_every_api_gives_one_answer_and_counts_the_same_tokens(server: LiveServer, number: int) -> None:
    """Whole and as a stream; each token of the image is counted, as the tokenizer and the image's rows have it."""
    scene, question = held_out(number)
    wanted = len(prompt_ids(question.text))
    for api, form in FORMS.items():
        answer = post(server, form.path, body_of(api, saved(scene.image), question.text))
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert (api, at(told, form.answer)) == (api, question.answer)
        assert (api, counted(form, told, form.counted)) == (api, wanted)
        stream = events(post(server, form.path, body_of(api, saved(scene.image), question.text, stream=True)))
        of_stream = [counted(form, event, form.streamed) for event in stream if at(event, form.streamed)]
        assert (api, set(of_stream)) == (api, {wanted})


def test_tokens_are_counted_before_they_are_asked_for(server: LiveServer) -> None:
    scene, question = held_out(1)
    body = body_of("messages", saved(scene.image), question.text)
    asked = {"messages": body["messages"]}
    assert post(server, "/v1/messages/count_tokens", asked).json() == {"input_tokens": len(prompt_ids(question.text))}


@pytest.mark.parametrize(
    "name", ["bomb", "many pixels", "thin", "truncated", "truncated jpeg", "wrong type", "animated"]
)
def test_hostile_images_are_refused_by_the_name_of_their_part(server: LiveServer, name: str) -> None:
    content, sentence = HOSTILE[name]
    for api, form in FORMS.items():
        answer = post(server, form.path, body_of(api, content, "What do you see?"))
        assert (api, answer.status_code) == (api, 400)
        assert f"'{form.param}'" in answer.text and sentence in answer.text
    assert "Traceback" not in "\n".join(server.lines)


def cached_tokens(server: LiveServer, messages: list[dict[str, Any]], key: str = "none") -> int:
    """Of a chat that is answered."""
    body = {"messages": messages, "max_tokens": MOST, "temperature": 0}
    answer = post(server, FORMS["chat"].path, body, key)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def shared_blocks(first: list[int], second: list[int]) -> int:
    """Tokens of whole blocks that two prompts begin with; the last token is always computed."""
    same = next(
        (index for index, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), len(second) - 1
    )
    return same // BLOCK * BLOCK


def test_a_later_turn_and_another_user_find_the_image_cached(server: LiveServer) -> None:
    """Exactly the whole blocks of tokens that both prompts begin with; another image leaves none."""
    scene, question = held_out(100)
    turn = body_of("chat", saved(scene.image), question.text)["messages"]
    assert cached_tokens(server, turn) == 0
    answered = prompt_ids(question.text, question.answer)
    later = "How many shapes are there?"
    turns = [*turn, {"role": "assistant", "content": question.answer}, {"role": "user", "content": later}]
    expected = shared_blocks(answered, prompt_ids(question.text, question.answer, later))
    assert cached_tokens(server, turns) == expected > prompt_ids(question.text).index(PLACEHOLDER_ID) + TOKENS
    other = body_of("chat", saved(scene.image), "Is there a red square?")["messages"]
    expected = shared_blocks(prompt_ids(question.text), prompt_ids("Is there a red square?"))
    assert cached_tokens(server, other) == expected > prompt_ids(question.text).index(PLACEHOLDER_ID)
    unseen = body_of("chat", saved(held_out(108)[0].image), question.text)["messages"]
    assert cached_tokens(server, unseen) == 0


KEYS = {"anna": "sk-anna-0123456789", "ben": "sk-ben-0123456789"}


def test_with_caches_kept_apart_nobody_finds_another_ones_image(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("".join(f"{name}:{key}\n" for name, key in KEYS.items()), encoding="utf-8")
    scene, question = held_out(2)
    messages = body_of("chat", saved(scene.image), question.text)["messages"]
    with serving(MODEL, "--api-key-file", str(tmp_path / "keys"), "--isolate-prefix-cache") as live:
        found = [cached_tokens(live, messages, KEYS[name]) for name in ("anna", "anna", "ben", "ben")]
    whole = (len(prompt_ids(question.text)) - 1) // BLOCK * BLOCK
    assert found == [0, whole, 0, whole] and whole > TOKENS
