"""Bodies in Ollama's format as the chat route's functions take them."""

import pytest

from server.api.ollama.requests import OllamaChatRequest
from server.api.ollama.translation import as_chat, chat_name, generate_name, think_options
from tests.server.scripted_engine import info


def test_fields_are_named_as_they_were_given() -> None:
    assert chat_name("temperature") == "options.temperature"
    assert chat_name("max_completion_tokens") == "options.num_predict"
    assert chat_name("repetition_penalty") == "options.repeat_penalty"
    assert chat_name("response_format.json_schema.schema") == "format"
    assert chat_name("messages[0].content") == "messages[0].content"
    assert generate_name("messages[0].content") == "prompt"
    assert generate_name("top_p") == "options.top_p"


def test_every_option_that_changes_an_answer_has_a_place_in_the_chat_body() -> None:
    given = {"num_predict": 7, "temperature": 0.1, "top_k": 3, "top_p": 0.2, "min_p": 0.3, "seed": 4, "stop": ["a"]}
    given |= {"repeat_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.6, "num_ctx": 50}
    body = OllamaChatRequest.model_validate({"model": "m", "messages": [], "options": given})
    chat = as_chat(body, info())
    found = {chat_name(field): value for field, value in chat if chat_name(field).startswith("options.")}
    assert found == {f"options.{name}": value for name, value in given.items() if name != "num_ctx"}


@pytest.mark.parametrize("think", [None, True, False, "high"])
def test_the_template_is_told_only_what_was_said(think: bool | str | None) -> None:
    options = think_options(think)
    assert options.get("enable_thinking") == (None if think is None else bool(think))
    assert options.get("reasoning_effort") == (think if isinstance(think, str) else None)
