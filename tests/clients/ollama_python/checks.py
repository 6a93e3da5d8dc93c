"""The official `ollama` package judges: its own classes parse what comes, its own exceptions carry what is refused."""

# servers: demo embeds several thinks limited narrow

import contextlib
import json
import os
from typing import Any

import ollama
from checking import MODEL, base_url, check, run

TAGGED = f"{MODEL}:latest"
MESSAGES = [{"role": "user", "content": "Hello there"}]
PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}


def host(server: str = "scripted") -> str:
    """Address of a server, without /v1."""
    return base_url(server).removesuffix("/v1")


def client(server: str = "scripted", **given: Any) -> ollama.Client:
    """A client; the key comes from OLLAMA_API_KEY, as everybody's does."""
    return ollama.Client(host(server), **given)


def close(one: Any, other: Any) -> bool:
    """Whether two vectors of length 1 are the same but for rounding."""
    return sum(a * b for a, b in zip(one, other, strict=True)) > 0.99999


def forecast(city: str, days: int) -> str:
    """
    Weather of a city.

    Args:
        city: Name of the city
        days: How many days ahead

    Returns:
        str: The weather
    """
    return f"rain in {city} for {days} days"


def refused(call: Any, status: int, *words: str) -> ollama.ResponseError:
    """What a call raises; its status and its sentence are looked at."""
    try:
        call()
    except ollama.ResponseError as error:
        assert error.status_code == status, error
        assert isinstance(error.error, str) and all(word in error.error for word in words), error
        return error
    raise AssertionError("it was not refused")


@check
def chat() -> None:
    answer = client().chat(MODEL, MESSAGES, options={"temperature": 0, "num_predict": 50, "seed": 1})
    assert answer.message.content == answer["message"]["content"] == "Hello there"
    assert (answer.message.role, answer.model, answer.done, answer.done_reason) == ("assistant", MODEL, True, "stop")
    assert answer.message.thinking is None and answer.message.tool_calls is None
    assert answer.prompt_eval_count and answer.eval_count and answer.total_duration
    assert answer.total_duration >= (answer.prompt_eval_duration or 0) > 0 and answer.eval_duration
    assert answer.created_at and answer.created_at.endswith("Z")


@check
def chat_streamed() -> None:
    parts = list(client().chat(MODEL, MESSAGES, stream=True))
    assert "".join(part.message.content or "" for part in parts) == "Hello there"
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    plain = client().chat(MODEL, MESSAGES)
    assert (parts[-1].eval_count, parts[-1].prompt_eval_count) == (plain.eval_count, plain.prompt_eval_count)
    assert parts[-1].done_reason == "stop" and parts[0].eval_count is None


@check
def generate() -> None:
    answer = client().generate(MODEL, "Hello there", system="Be brief")
    assert (answer.response, answer.done_reason) == ("Hello there", "stop")
    assert (
        "".join(part.response or "" for part in client().generate(MODEL, "Hello there", stream=True)) == "Hello there"
    )
    raw = client().generate(MODEL, "Once upon", raw=True, options={"num_predict": 1})
    assert raw.done_reason == "length" and raw.eval_count == 1


@check
def stop_and_length() -> None:
    answer = client().chat(MODEL, MESSAGES, options={"stop": ["there"]})
    assert (answer.message.content, answer.done_reason) == ("Hello ", "stop")
    assert client().chat(MODEL, MESSAGES, options={"num_predict": 1}).done_reason == "length"


@check
def every_option_of_the_package() -> None:
    """Its class of options, with all that it has set to what is honoured."""
    options = ollama.Options(
        numa=False,
        num_ctx=2048,
        num_batch=512,
        num_gpu=1,
        main_gpu=0,
        low_vram=False,
        f16_kv=True,
        logits_all=False,
        vocab_only=False,
        use_mmap=True,
        use_mlock=False,
        embedding_only=False,
        num_thread=8,
        num_keep=24,
        seed=7,
        num_predict=100,
        top_k=5,
        top_p=0.9,
        tfs_z=1.0,
        typical_p=1.0,
        repeat_last_n=-1,
        temperature=0.5,
        repeat_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        mirostat=0,
        mirostat_tau=5.0,
        mirostat_eta=0.1,
        penalize_newline=True,
        stop=["\n\n"],
    )
    assert set(ollama.Options.model_fields) == options.model_fields_set
    assert client().chat(MODEL, MESSAGES, options=options, keep_alive="10m").message.content == "Hello there"


@check
def tools_round_trip() -> None:
    """Functions become tools, calls become arguments, and the package's own objects go back as history."""
    for server in ("scripted", "thinks"):
        messages: list[Any] = [{"role": "user", "content": 'call: forecast {"city": "Paris", "days": 3}'}]
        first = client(server).chat(MODEL, messages, tools=[forecast])
        [call] = first.message.tool_calls or []
        assert (call.function.name, call.function.arguments) == ("forecast", {"city": "Paris", "days": 3})
        messages += [
            first.message,
            {"role": "tool", "tool_name": call.function.name, "content": forecast(**call.function.arguments)},
        ]
        second = client(server).chat(MODEL, messages, tools=[forecast])
        assert second.message.content == "rain in Paris for 3 days" and not second.message.tool_calls


@check
def tools_streamed() -> None:
    ask = 'call: forecast {"city": "Oslo", "days": 1}\ncall: forecast {"city": "Rome", "days": 2}'
    parts = client().chat(MODEL, [{"role": "user", "content": ask}], tools=[forecast], stream=True)
    calls = [call.function.arguments for part in parts for call in part.message.tool_calls or []]
    assert calls == [{"city": "Oslo", "days": 1}, {"city": "Rome", "days": 2}]
    parts = client().chat(MODEL, [{"role": "user", "content": "say: no tools"}], tools=[forecast], stream=True)
    assert "".join(part.message.content or "" for part in parts) == "no tools"


@check
def structured_output() -> None:
    ask = [{"role": "user", "content": 'say: {"city": "Paris", "days": 3}'}]
    for temperature in (0.0, 2.0):
        answer = client().chat(MODEL, ask, format=PLACE, options={"temperature": temperature})
        assert json.loads(answer.message.content or "") == {"city": "Paris", "days": 3}
    text = client().generate(MODEL, "A joke as JSON with the keys 'setup' and 'punchline'", format="json").response
    assert json.loads(text or "") == {"setup": "", "punchline": ""}
    parts = client("thinks").chat(MODEL, ask, format=PLACE, stream=True)
    assert json.loads("".join(part.message.content or "" for part in parts)) == {"city": "Paris", "days": 3}


@check
def thinking() -> None:
    for think in (True, None):
        answer = client("thinks").chat(MODEL, MESSAGES, think=think)
        assert (answer.message.thinking, answer.message.content) == ("The user said something.", "Hello there")
    parts = list(client("thinks").chat(MODEL, MESSAGES, think=True, stream=True))
    assert "".join(part.message.thinking or "" for part in parts) == "The user said something."
    assert "".join(part.message.content or "" for part in parts) == "Hello there"
    generated = client("thinks").generate(MODEL, "Hello there", think=True)
    assert (generated.thinking, generated.response) == ("The user said something.", "Hello there")


@check
def thinking_off() -> None:
    answer = client("thinks").chat(MODEL, MESSAGES, think=False)
    assert (answer.message.thinking, answer.message.content) == (None, "Hello there")
    refused(lambda: client().chat(MODEL, MESSAGES, think=True), 400, "'think'")
    assert client().chat(MODEL, MESSAGES, think=False).message.content == "Hello there"


@check
def logprobs() -> None:
    answer = client().chat(MODEL, MESSAGES, logprobs=True, top_logprobs=2)
    assert answer.logprobs and len(answer.logprobs) == answer.eval_count
    assert "".join(entry.token for entry in answer.logprobs).startswith("Hello there")
    assert all(len(entry.top_logprobs or ()) == 2 and entry.logprob <= 0 for entry in answer.logprobs)


@check
def errors_have_a_status() -> None:
    refused(lambda: client().chat("nobody", MESSAGES), 404, "nobody")
    refused(lambda: list(client().chat("nobody", MESSAGES, stream=True)), 404, "nobody")
    refused(lambda: client().chat(MODEL, MESSAGES, options={"mirostat": 2}), 400, "options.mirostat")
    refused(lambda: client().chat(MODEL, MESSAGES, options={"num_ctx": 10**6}), 400, "options.num_ctx")
    refused(lambda: client().generate(MODEL, "a", suffix="b"), 400, "suffix")
    refused(lambda: client().generate(MODEL, "a", template="{{ .Prompt }}"), 400, "template")
    refused(lambda: client().chat(MODEL, [{"role": "user", "content": "a", "images": [b"png"]}]), 400, "images")
    refused(lambda: client().generate(MODEL, "word " * 40_000), 400, "context length")
    refused(lambda: client().show("nobody"), 404, "nobody")


@check
def errors_from_outside_the_routes() -> None:
    """The layers around the routes answer in the same format: keys and rates."""
    os.environ["OLLAMA_API_KEY"], kept = "wrong", os.environ["OLLAMA_API_KEY"]
    try:
        refused(lambda: client().chat(MODEL, MESSAGES), 401, "API key")
    finally:
        os.environ["OLLAMA_API_KEY"] = kept
    with contextlib.suppress(ollama.ResponseError):  # another client may have used this minute up
        client("limited").chat(MODEL, MESSAGES)
    refused(lambda: client("limited").chat(MODEL, MESSAGES), 429, "try again")


@check
def models_are_not_changed() -> None:
    refused(lambda: client().pull(MODEL), 501, "hexserve pull")
    refused(lambda: list(client().pull(MODEL, stream=True)), 501, "hexserve pull")
    refused(lambda: client().push(MODEL), 501)
    refused(lambda: client().create(MODEL, from_=MODEL), 501)
    refused(lambda: client().copy(MODEL, "other"), 501)
    refused(lambda: client().delete(MODEL), 501)


@check
def models_listed() -> None:
    [model] = client().list().models
    assert model.model == TAGGED and model.size and model.digest and model.modified_at
    assert model.details and model.details.quantization_level == "fp32" and model.details.family == "qwen3"
    [loaded] = client().ps().models
    assert (loaded.model, loaded.digest, loaded.context_length) == (TAGGED, model.digest, 16_384)
    assert loaded.expires_at and loaded.expires_at.year == 9999


@check
def model_shown() -> None:
    for name in (MODEL, TAGGED):
        shown = client("thinks").show(name)
        assert shown.capabilities == ["completion", "tools", "thinking"]
        assert shown.modelinfo and shown.modelinfo["qwen3.context_length"] == 16_384
        assert shown.template and "<|im_start|>" in shown.template
    assert client().show(MODEL).capabilities == ["completion", "tools"]


@check
def names_with_and_without_their_tag() -> None:
    for name in (MODEL, TAGGED):
        assert client().chat(name, MESSAGES).model == name
    refused(lambda: client().chat(f"{MODEL}:7b", MESSAGES), 404)


@check
def loaded_without_a_prompt() -> None:
    assert client().generate(MODEL, keep_alive=-1).done_reason == "load"
    assert client().chat(MODEL).done_reason == "load"


@check
def stream_closed_early() -> None:
    """One request runs at a time there: the second is answered only because the first was given up."""
    long = [{"role": "user", "content": "say: " + "word " * 3000}]
    stream = client("narrow").chat(MODEL, long, stream=True)
    next(stream)
    stream.close()
    assert client("narrow").chat(MODEL, MESSAGES).message.content == "Hello there"


@check
async def asynchronous() -> None:
    async with ollama.AsyncClient(host()) as asked:
        answer = await asked.chat(MODEL, MESSAGES)
        assert answer.message.content == "Hello there"
        parts = [part.response or "" async for part in await asked.generate(MODEL, "Hello there", stream=True)]
        assert "".join(parts) == "Hello there"
        assert [model.model for model in (await asked.list()).models] == [TAGGED]


@check
def a_real_model() -> None:
    ask = [{"role": "user", "content": "What is the capital of France?"}]
    answer = client("demo").chat("demo", ask, options={"temperature": 0})
    assert "Paris" in (answer.message.content or "")
    streamed = client("demo").chat("demo:latest", ask, options={"temperature": 0}, stream=True)
    assert "".join(part.message.content or "" for part in streamed) == answer.message.content


@check
def embeddings() -> None:
    asked = client("embeds")
    assert asked.show("embedder").capabilities == ["embedding"]
    answer = asked.embed("embedder:latest", ["The cat sat", "on the mat"], keep_alive="5m")
    assert [len(vector) for vector in answer.embeddings] == [64, 64] and answer.prompt_eval_count
    assert abs(sum(number * number for number in answer.embeddings[0]) - 1) < 1e-5
    assert close(asked.embed("embedder", "The cat sat").embeddings[0], answer.embeddings[0])
    assert close(asked.embeddings("embedder", "The cat sat").embedding, answer.embeddings[0])
    short = asked.embed("embedder", "The cat sat", dimensions=8)
    assert len(short.embeddings[0]) == 8
    assert asked.embed("embedder", "word " * 5_000).embeddings
    refused(lambda: asked.embed("embedder", "word " * 5_000, truncate=False), 400, "context length")
    refused(lambda: client().embed(MODEL, "The cat sat"), 400, "does not make embeddings")
    refused(lambda: asked.chat("embedder", MESSAGES), 400, "makes embeddings")


@check
def several_models() -> None:
    """Each is loaded at its first use, stays as long as it was said, and goes when it is told to."""
    asked, ask = client("several"), [{"role": "user", "content": "What is the capital of France?"}]
    assert [model.model for model in asked.list().models] == ["demo:latest", "second:latest"]
    assert not asked.ps().models
    first = asked.chat("demo", ask, options={"temperature": 0}, keep_alive="1h")
    second = asked.chat("second", ask, options={"temperature": 0}, keep_alive=-1)
    assert first.message.content == second.message.content and (first.load_duration or 0) > 0
    expiries = {model.model: model.expires_at for model in asked.ps().models}
    assert list(expiries) == ["demo:latest", "second:latest"]
    assert expiries["demo:latest"] and expiries["demo:latest"].year < 9999
    assert expiries["second:latest"] and expiries["second:latest"].year == 9999
    assert asked.generate("demo", keep_alive=0).done_reason == "unload"
    assert [model.model for model in asked.ps().models] == ["second:latest"]


if __name__ == "__main__":
    run()
