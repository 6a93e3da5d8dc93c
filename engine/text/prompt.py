"""From what the caller wrote to prompt token ids: normalise, bound, guard; then what was rendered is tokenised.

Runs in a thread. Between the two halves of a chat the template renders, in a process of its own (`template_pool.py`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.bundle.manifest import TextSpec
from engine.errors import ContextLengthExceeded, InvalidRequest
from engine.text.rendering import Rendered, RenderRequest, RenderTooLong, read_template
from engine.text.special_token_guard import SpecialTokenGuard, choose_separator
from engine.text.template_options import check_options
from engine.text.tokenizer import Tokenizer

USUAL_TOKEN_CHARS = 8  # of ordinary text it is about 4
CUT_SLACK_TOKENS = 64
MOST_CUT_CHARS = 32 * 1024 * 1024  # of a rendered prompt of which only the end is used


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat whose template has yet to render `request`. Counts in tokens; `separator` guards its special tokens."""

    request: RenderRequest
    separator: str
    max_context: int
    keep: int | None


@dataclass(frozen=True, slots=True)
class MessageForm:
    """What a template reads in a message. thoughts: the field of reasoning, "" = none."""

    thoughts: str = ""
    has_text_arguments: bool = False


class PromptMaker:
    """Tokenizer and template of one bundle. Immutable, shared by threads."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str | None,
        special_names: Mapping[str, str],
        form: MessageForm = MessageForm(),
    ) -> None:
        """`template` is its source. `special_names` are template variables such as bos_token."""
        self._form = form
        self.tokenizer = tokenizer
        self.template_source = template
        self._special_names = dict(special_names)
        self._guard = SpecialTokenGuard(tokenizer.special_tokens)

    @classmethod
    def load(cls, folder: Path, spec: TextSpec) -> "PromptMaker":
        """Read tokenizer and template of a bundle; BundleError says what is wrong with them."""
        template = read_template(folder / spec.chat_template) if spec.chat_template else None
        given = MessageForm(spec.writes.thoughts, spec.writes.has_text_arguments)
        names = {"bos_token": spec.bos_token or "", "eos_token": spec.eos_token or ""}
        return cls(Tokenizer.load(folder, spec), template, names, given)

    def text(self, text: str, max_context: int, keep: int | None = None) -> tuple[int, ...]:
        """Token ids of a plain prompt, with BOS where the model wants it.

        Special tokens in it are control tokens: a client that sends plain prompts has applied the template itself.
        Raises ContextLengthExceeded by characters before tokenising. With `keep` only the last tokens are used, the
        BOS among them.
        """
        if keep is not None:
            ids = self.tokenizer.encode(self._ending(text, keep), allow_special=True)
            room = keep - len(self.tokenizer.with_bos(()))
            return self.tokenizer.with_bos(ids if len(ids) <= room else ids[len(ids) - room :])
        self._check_chars(len(text), max_context, "prompt")
        self._check_beginning(text, max_context, "prompt")
        return self.tokenizer.with_bos(self.tokenizer.encode(text, allow_special=True))

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        options: Mapping[str, Any],
        max_context: int,
        keep: int | None = None,
    ) -> ChatPrompt:
        """What the template has to render for a conversation of which the last `keep` tokens are used.

        Raises InvalidRequest and ContextLengthExceeded (by characters).
        """
        if self.template_source is None:
            raise InvalidRequest("This model has no chat template; use plain completions.", "messages")
        if not messages:
            raise InvalidRequest("'messages' is empty: at least one message is needed.", "messages")
        chosen = {"add_generation_prompt": True, **check_options(options)}
        if keep is None:
            self._check_chars(_count_chars(messages) + _count_chars(tools), max_context, "messages")
        spoken = [
            normalise_message(message, f"messages[{index}]", self._form) for index, message in enumerate(messages)
        ]
        separator = choose_separator([spoken, tools, chosen])
        request = RenderRequest(
            self._guard.protect(spoken, separator),
            self._guard.protect(tools, separator) if tools else None,
            {"documents": None, **self._special_names, **self._guard.protect(chosen, separator)},
            MOST_CUT_CHARS if keep is not None else max_context * self.tokenizer.longest_token_chars,
        )
        return ChatPrompt(request, separator, max_context, keep)

    def chat_ids(self, prompt: ChatPrompt, rendered: Rendered) -> tuple[int, ...]:
        """Token ids of a rendered conversation. No BOS is added: a template writes its own.

        Raises InvalidRequest for what the template refused, ContextLengthExceeded (by characters, before tokenising).
        """
        max_context, keep = prompt.max_context, prompt.keep
        try:
            text = rendered.checked()
        except RenderTooLong:
            raise ContextLengthExceeded(max_context, max_context + 1, 0, at_least=True) from None
        if keep is None:
            self._check_beginning(text, max_context, "messages")
        else:
            text = self._ending(text, keep)
        if prompt.separator in text:
            ids = self.tokenizer.encode_guarded(text, prompt.separator)
        else:
            ids = self.tokenizer.encode(text, allow_special=True)
        return ids if keep is None else ids[-keep:]

    def _ending(self, text: str, keep: int) -> str:
        """An end of the text that surely has `keep` tokens, and some more: the cut changes the first few of them."""
        return text[-(keep + CUT_SLACK_TOKENS) * self.tokenizer.longest_token_chars :]

    def _check_chars(self, chars: int, max_context: int, param: str) -> None:
        """So many characters cannot be fewer tokens than this: refuse without tokenising (a cheap flood otherwise)."""
        fewest_tokens = -(-chars // self.tokenizer.longest_token_chars)
        if fewest_tokens > max_context:
            raise ContextLengthExceeded(max_context, fewest_tokens, 0, param, at_least=True)

    def _check_beginning(self, text: str, max_context: int, param: str) -> None:
        """Refuse a text whose beginning alone is too long; the cut can change a token or two, never so many."""
        beginning = max_context * USUAL_TOKEN_CHARS
        if len(text) > beginning:
            tokens = len(self.tokenizer.encode(text[:beginning], allow_special=True))
            if tokens > max_context + CUT_SLACK_TOKENS:
                raise ContextLengthExceeded(max_context, tokens, 0, param, at_least=True)


def normalise_message(message: Mapping[str, Any], param: str, form: MessageForm = MessageForm()) -> dict[str, Any]:
    """One OpenAI message as templates expect it: content is a string, tool call arguments are an object.

    Text parts are joined by line breaks, a missing content is empty; arguments that are not a JSON object stay text.
    """
    spoken = dict(message)
    spoken["content"] = _content_text(message.get("content"), param)
    if message.get("tool_calls") and not form.has_text_arguments:
        spoken["tool_calls"] = [_normalise_call(call, param) for call in message["tool_calls"]]
    if form.thoughts and spoken.get("reasoning_content"):
        spoken[form.thoughts] = spoken["reasoning_content"]
    return spoken


def _content_text(content: Any, param: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise InvalidRequest(f"'{param}.content' must be a string or a list of text parts.", f"{param}.content")
    texts = []
    for index, part in enumerate(content):
        text = part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            where = f"{param}.content[{index}]"
            raise InvalidRequest(f"'{where}' is not a text part; this model reads text only.", where)
        texts.append(text)
    return "\n".join(texts)


def _normalise_call(call: Any, param: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise InvalidRequest(f"'{param}.tool_calls' has an entry without a function.", f"{param}.tool_calls")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            parsed = None  # a model's own broken call, sent back as history
        if isinstance(parsed, dict):
            function = {**function, "arguments": parsed}
    return {**call, "function": dict(function)}


def _count_chars(value: Any, depth: int = 0) -> int:
    """Characters of all strings in a nested value; too deep nesting is refused later, by the guard."""
    if isinstance(value, str):
        return len(value)
    if depth > 64:
        return 0
    if isinstance(value, Mapping):
        return sum(_count_chars(key, depth + 1) + _count_chars(item, depth + 1) for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return sum(_count_chars(item, depth + 1) for item in value)
    return 0
