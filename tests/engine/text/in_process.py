"""Chats to token ids as the engine makes them, but the template renders right here, between the same frames."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.bundle.manifest import TextSpec
from engine.text.prompt import PromptMaker
from engine.text.renderer import ChatTemplate
from engine.text.rendering import Rendered, RenderRequest, decode, encode, encode_request
from engine.text.tokenizer import Tokenizer


class InProcess:
    """A prompt maker and its template."""

    def __init__(self, maker: PromptMaker) -> None:
        self.maker = maker
        self.template = ChatTemplate(maker.template_source) if maker.template_source is not None else None

    @classmethod
    def of(cls, tokenizer: Tokenizer, template: str) -> "InProcess":
        """One without names of special tokens."""
        return cls(PromptMaker(tokenizer, template, {}))

    @classmethod
    def load(cls, folder: Path, spec: TextSpec) -> "InProcess":
        """That of a bundle."""
        return cls(PromptMaker.load(folder, spec))

    def text(self, text: str, max_context: int) -> tuple[int, ...]:
        """Token ids of a plain prompt."""
        return self.maker.text(text, max_context)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        options: Mapping[str, Any],
        max_context: int,
        keep: int | None = None,
    ) -> tuple[int, ...]:
        """Token ids of a conversation."""
        prompt = self.maker.chat(messages, tools, options, max_context, keep)
        assert self.template is not None
        answer = encode(self.template.answer(decode(encode_request(prompt.request), RenderRequest)))
        return self.maker.chat_ids(prompt, decode(answer, Rendered))
