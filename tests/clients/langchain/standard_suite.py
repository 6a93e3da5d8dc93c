"""langchain's standard integration tests of ChatOpenAI against a hexserve server, run in langchain's own environment.

OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL say which server, THINKS_URL one whose model thinks. Capabilities are
declared below in langchain's way: what is declared absent is skipped by its tests, everything else has to pass.
"""

import os
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests

# Several pages of the prefix cache, so that the second request finds the first one's.
LONG_PROMPT = "The cat sat on the mat and looked at the moon. " * 40


class Declared(ChatModelIntegrationTests):
    """What a text model behind hexserve can do, whichever route langchain takes."""

    __test__ = False

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": os.environ["OPENAI_MODEL"],
            "base_url": os.environ["OPENAI_BASE_URL"],  # also from the environment, but then without usage in streams
            "stream_usage": True,
            "max_retries": 0,
            "temperature": 0,
            "max_tokens": 300,
        }

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_model_override(self) -> bool:
        return False  # one server, one model

    @property
    def supported_usage_metadata_details(self) -> dict[str, list[str]]:  # type: ignore[override]
        details = ["cache_read_input", "reasoning_output"]
        return {"invoke": details, "stream": details}

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        model = self.chat_model_class(**self.chat_model_params)
        model.invoke(LONG_PROMPT)
        answer = _whole(model, LONG_PROMPT, stream)
        assert answer.usage_metadata and answer.usage_metadata["input_token_details"]["cache_read"] > 0
        return answer

    def invoke_with_reasoning_output(self, *, stream: bool = False) -> AIMessage:
        model = self.chat_model_class(**{**self.chat_model_params, "base_url": os.environ["THINKS_URL"]})
        answer = _whole(model, "Hello", stream)
        assert answer.usage_metadata and answer.usage_metadata["output_token_details"]["reasoning"] > 0
        return answer


class TestChat(Declared):
    """/v1/chat/completions; structured output as langchain-openai prefers it."""

    __test__ = True


class TestChatByCalling(Declared):
    """/v1/chat/completions; structured output by forced tool calls."""

    __test__ = True

    @property
    def structured_output_kwargs(self) -> dict[str, Any]:
        return {"method": "function_calling"}


class TestResponses(Declared):
    """/v1/responses."""

    __test__ = True

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "use_responses_api": True, "store": False}


class TestEmbeddings(EmbeddingsIntegrationTests):
    """/v1/embeddings."""

    @property
    def embeddings_class(self) -> type[OpenAIEmbeddings]:
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {
            "model": "embedder",
            "base_url": os.environ["EMBEDS_URL"],
            "max_retries": 0,
            "check_embedding_ctx_length": False,  # else it sends the token ids of another model
        }


def _whole(model: BaseChatModel, prompt: str, stream: bool) -> AIMessage:
    if not stream:
        answer = model.invoke(prompt)
        assert isinstance(answer, AIMessage)
        return answer
    full: AIMessageChunk | None = None
    for chunk in model.stream(prompt):
        full = chunk if full is None else full + chunk
    assert full is not None
    return full
