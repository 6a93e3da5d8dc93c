"""langchain-ollama judges with langchain's own standard tests, `standard_suite.py`, and with what is Ollama's own."""

# servers: embeds thinks

import json
import os
from pathlib import Path
from typing import Any

import ollama
from checking import MODEL, base_url, check, run
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from standard_tests import judge

SUITE = Path(__file__).with_name("standard_suite.py")
# What is declared absent in `standard_suite.py`, and the tests that therefore skip themselves.
DECLARED = {
    "model override": {
        "test_invoke_with_model_override",
        "test_ainvoke_with_model_override",
        "test_stream_with_model_override",
        "test_astream_with_model_override",
    },
    "tool_choice, which Ollama's format has not": {"test_tool_choice"},
    "images": {"test_image_inputs", "test_image_tool_message"},
    "PDF": {"test_pdf_inputs", "test_pdf_tool_message"},
    "audio": {"test_audio_inputs"},
    "messages in Anthropic's shape": {"test_anthropic_inputs"},
    "recordings of HTTP": {"test_stream_time"},
}


def chat(server: str = "scripted", **given: Any) -> ChatOllama:
    """A model of langchain; its key comes from OLLAMA_API_KEY."""
    return ChatOllama(model=MODEL, base_url=base_url(server).removesuffix("/v1"), **given)


@tool
def forecast(city: str) -> str:
    """Weather of a city."""
    return f"rain in {city}"


@check
def standard_chat() -> None:
    os.environ["OLLAMA_HOST"] = base_url("scripted").removesuffix("/v1")
    judge(SUITE, "TestChat", set().union(*DECLARED.values()), least=30)


@check
def the_model_is_found() -> None:
    assert chat(validate_model_on_init=True).invoke("Hello there").text == "Hello there"


@check
def thoughts_go_back() -> None:
    """A tool loop of a model that thinks."""
    model = chat("thinks", reasoning=True).bind_tools([forecast])
    messages: list[Any] = [HumanMessage('call: forecast {"city": "Oslo"}')]
    first = model.invoke(messages)
    [call] = first.tool_calls
    assert first.additional_kwargs["reasoning_content"] == "The user said something."
    messages += [first, forecast.invoke(call)]
    assert model.invoke(messages).text == "rain in Oslo"


@check
def json_mode_and_schema() -> None:
    schema = {"title": "trip", "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    for method in ("json_schema", "json_mode"):
        asked = chat().with_structured_output(schema, method=method)
        assert asked.invoke('say: {"city": "Oslo"}') == {"city": "Oslo"}
    assert json.loads(chat(format="json").invoke('say: {"a": 1}').text) == {"a": 1}


@check
def embeddings() -> None:
    model = OllamaEmbeddings(model="embedder", base_url=base_url("embeds").removesuffix("/v1"))
    vectors = model.embed_documents(["The cat sat", "on the mat"])
    assert [len(vector) for vector in vectors] == [64, 64]
    query = model.embed_query("The cat sat")
    assert sum(a * b for a, b in zip(query, vectors[0], strict=True)) > 0.99999


@check
def completions() -> None:
    model = OllamaLLM(model=MODEL, base_url=base_url("scripted").removesuffix("/v1"), num_ctx=4096, keep_alive="5m")
    assert model.invoke("Hello there") == "".join(model.stream("Hello there")) == "Hello there"


@check
def what_is_refused_has_its_status() -> None:
    try:
        chat(mirostat=2).invoke("Hello there")
    except ollama.ResponseError as error:
        assert error.status_code == 400 and "options.mirostat" in error.error
        return
    raise AssertionError("it was not refused")


if __name__ == "__main__":
    os.environ["LANGSMITH_TRACING"] = "false"
    run()
