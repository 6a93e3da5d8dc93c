"""langchain's standard integration tests of ChatOllama against a hexserve server, run in the client's own environment.

OLLAMA_HOST says which server, OPENAI_MODEL which model. What is declared absent is skipped by its tests; everything
else has to pass.
"""

import os
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_ollama import ChatOllama
from langchain_tests.integration_tests import ChatModelIntegrationTests


class TestChat(ChatModelIntegrationTests):
    """What a text model behind /api/chat can do. There is no tool_choice in this format."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOllama

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": os.environ["OPENAI_MODEL"], "temperature": 0, "num_predict": 300}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def has_tool_choice(self) -> bool:
        return False

    @property
    def supports_model_override(self) -> bool:
        return False
