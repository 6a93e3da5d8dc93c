"""langchain-openai judges with langchain's own standard tests: `standard_suite.py` run by pytest, a check per route."""

# servers: demo thinks embeds

import os
from pathlib import Path
from typing import Any

import openai
from checking import MODEL, base_url, check, run
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
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
    "images": {"test_image_inputs", "test_image_tool_message"},
    "PDF": {"test_pdf_inputs", "test_pdf_tool_message"},
    "audio": {"test_audio_inputs"},
    "messages in Anthropic's shape": {"test_anthropic_inputs"},
    "recordings of HTTP": {"test_stream_time"},
}


def standard(name: str) -> None:
    """Judge one class of the standard tests."""
    judge(SUITE, name, set().union(*DECLARED.values()), least=39)


@check
def standard_chat() -> None:
    standard("TestChat")


@check
def standard_chat_structured_by_calling() -> None:
    standard("TestChatByCalling")


@check
def standard_responses() -> None:
    standard("TestResponses")


@check
def standard_embeddings() -> None:
    judge(SUITE, "TestEmbeddings", set(), least=5)


def chat(server: str = "scripted", **given: Any) -> ChatOpenAI:
    """A model of langchain that does not retry."""
    return ChatOpenAI(model=MODEL, base_url=base_url(server), max_retries=0, **given)


@tool
def forecast(city: str) -> str:
    """Weather of a city."""
    return f"rain in {city}"


@check
def logprobs() -> None:
    answer = chat(logprobs=True, top_logprobs=2).invoke("Hello there")
    entries = answer.response_metadata["logprobs"]["content"]
    assert answer.usage_metadata and len(entries) == answer.usage_metadata["output_tokens"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode().startswith("Hello there")


@check
def thoughts_go_back() -> None:
    """A tool loop of a model that thinks, over both routes and every shape langchain gives the answers."""
    for given in ({}, *({"use_responses_api": True, "output_version": one} for one in ("v0", "responses/v1", "v1"))):
        model = chat("thinks", **given).bind_tools([forecast])
        messages: list[Any] = [HumanMessage('call: forecast {"city": "Oslo"}')]
        first = model.invoke(messages)
        [call] = first.tool_calls
        messages += [first, forecast.invoke(call)]
        second = model.invoke(messages)
        assert second.text == "rain in Oslo", given
        assert model.invoke([*messages, second, HumanMessage("say: fine")]).text == "fine", given
        thoughts = [block for block in second.content_blocks if block["type"] == "reasoning"]
        assert bool(thoughts) == bool(given)  # langchain drops reasoning_content of chat completions


@check
def schema_or_tool() -> None:
    schema = {"title": "trip", "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    schema |= {"additionalProperties": False}
    asked = chat().with_structured_output(schema, method="json_schema", tools=[forecast], strict=True, include_raw=True)
    assert asked.invoke('say: {"city": "Oslo"}')["parsed"] == {"city": "Oslo"}
    assert asked.invoke('call: forecast {"city": "Rome"}')["raw"].tool_calls[0]["args"] == {"city": "Rome"}


@check
def too_long_a_prompt_has_its_code() -> None:
    for responses in (False, True):
        try:
            chat(use_responses_api=responses).invoke("word " * 40_000)
        except openai.BadRequestError as error:
            assert error.code == "context_length_exceeded"
            continue
        raise AssertionError(responses)


@check
def completions() -> None:
    model = OpenAI(model="demo", base_url=base_url("demo"), max_tokens=8, temperature=0, max_retries=0)
    text = model.invoke("Once upon")
    assert text and "".join(model.stream("Once upon")) == text
    [first, second] = model.generate(["Once upon", "The cat"]).generations
    assert first[0].text == text and second[0].generation_info["finish_reason"] == "length"


if __name__ == "__main__":
    os.environ["LANGSMITH_TRACING"] = "false"
    run()
