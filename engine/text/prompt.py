"""From what the caller wrote to prompt token ids: normalise, bound, guard; then what was rendered is tokenised.

Runs in a thread. Between the two halves of a chat the template renders, in a process of its own (`template_pool.py`).
Special tokens written by the caller must not become control tokens, which a template mixes with the caller's text. So
before rendering, a separator (a short run of private-use characters that the request does not contain) is put behind
the first character of every special token inside the caller's strings, and inside every part of a special token at
either end of a string, because a template may join strings. What is still whole after rendering came from the template.
The tokenizer then removes the separator (`Tokenizer.encode_guarded`). Texts without such strings are not changed.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.bundle.answer_format import AnswerFormat, CallFormat, LiteralArguments
from engine.bundle.manifest import TextSpec
from engine.errors import ContextLengthExceeded, InvalidRequest
from engine.text.rendering import Rendered, RenderRequest, RenderTooLong, read_template
from engine.text.tokenizer import Tokenizer

_POST, _FILLER = "\ue000", "\ue001"  # private use: no vocabulary and no template gives them a meaning
DEEPEST_MESSAGE = 64
# The keys that lead to texts the server validates. Inside arguments and parameters every text is the caller's.
OWN_PLACES = frozenset({("role",), ("type",), ("content", "type"), ("tool_calls", "type")})


class SpecialTokenGuard:
    """The special tokens of one vocabulary, and how to break them apart in text of the caller."""

    def __init__(self, special_tokens: Collection[str]) -> None:
        ordered = sorted((token for token in special_tokens if token), key=len, reverse=True)
        self._whole = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._prefixes = frozenset(token[:end] for token in ordered for end in range(1, len(token)))
        self._suffixes = frozenset(token[start:] for token in ordered for start in range(1, len(token)))
        self._longest = len(ordered[0]) if ordered else 0

    def protect(self, value: Any, separator: str) -> Any:
        """A copy of messages or tools with every special token in it broken apart; validated roles and types stay."""
        return _map_strings(value, lambda text, is_key: self._protect_text(text, separator, is_key))

    def _protect_text(self, text: str, separator: str, is_key: bool) -> str:
        if self._whole is None:
            return text
        text = self._whole.sub(lambda match: match.group()[0] + separator + match.group()[1:], text)
        # A template looks keys up by name; it does not join them to a control token.
        return text if is_key else self._protect_ends(text, separator)

    def _protect_ends(self, text: str, separator: str) -> str:
        """Break an end that could be part of a special token; white space beside it may be trimmed."""
        body = text.rstrip()
        for length in range(min(len(body), self._longest - 1), 0, -1):
            if body[-length:] in self._prefixes:
                text = body + separator + text[len(body) :]
                break
        body = text.lstrip()
        for length in range(min(len(body), self._longest - 1), 0, -1):
            if body[:length] in self._suffixes:
                return text[: len(text) - len(body)] + separator + body
        return text


def choose_separator(value: Any) -> str:
    """A string that no string of `value` contains: A, then one more B than any run of Bs in it, then A."""
    runs: list[str] = []

    def look(text: str, _is_key: bool) -> str:
        if _FILLER in text:  # found in no time, also in a text of megabytes
            runs.extend(re.findall(f"{_FILLER}+", text))
        return text

    _map_strings(value, look)
    return _POST + _FILLER * (max(map(len, runs), default=0) + 1) + _POST


def _map_strings(value: Any, change: Callable[[str, bool], str], depth: int = 0, keys: tuple[Any, ...] = ()) -> Any:
    """keys: that lead to the value, without the places in lists."""
    if depth > DEEPEST_MESSAGE:
        raise InvalidRequest(f"The messages are nested deeper than {DEEPEST_MESSAGE} levels.", "messages")
    if isinstance(value, str):
        return value if keys in OWN_PLACES else change(value, False)
    if isinstance(value, Mapping):
        return {
            change(key, True) if isinstance(key, str) else key: _map_strings(item, change, depth + 1, (*keys, key))
            for key, item in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_map_strings(item, change, depth + 1, keys) for item in value]
    return value


ALLOWED_OPTIONS: dict[str, tuple[type, ...]] = {
    "add_generation_prompt": (bool,),
    "enable_thinking": (bool,),
    "thinking": (bool,),
    "preserve_thinking": (bool,),
    "reasoning_effort": (str,),
    "verbosity": (str,),
    "date_string": (str,),
}
LONGEST_OPTION_CHARS = 64


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of one request; InvalidRequest for a name that is not in the list or a wrong type."""
    for name, value in options.items():
        param = f"chat_template_kwargs.{name[:64]}"
        if name not in ALLOWED_OPTIONS:
            known = ", ".join(sorted(ALLOWED_OPTIONS))
            raise InvalidRequest(f"'{param}' is not supported; supported are {known}.", param)
        kinds = ALLOWED_OPTIONS[name]
        if not isinstance(value, kinds):
            raise InvalidRequest(f"'{param}' must be {kinds[0].__name__}, not {type(value).__name__}.", param)
        if isinstance(value, str) and len(value) > LONGEST_OPTION_CHARS:
            raise InvalidRequest(f"'{param}' is longer than {LONGEST_OPTION_CHARS} characters.", param)
    return dict(options)


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
    """What a template reads in a message."""

    thoughts: str = ""  # the field of reasoning, "" = none
    has_text_arguments: bool = False
    hides_calls: bool = False  # text beside calls hides them, so it is left out
    calls: CallFormat | None = None  # how they are written behind the text, where the template renders none
    has_parts: bool = False  # content is a list
    image_text: str = ""  # what stands for an image in the text, "" = the template says so itself

    @classmethod
    def of(cls, writes: AnswerFormat) -> "MessageForm":
        calls = writes.calls if writes.renders_none else None
        return cls(writes.thoughts, writes.has_text_arguments, writes.hides_calls, calls)


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
        self.form = form
        self.tokenizer = tokenizer
        self.template_source = template
        self._special_names = dict(special_names)
        self._guard = SpecialTokenGuard(tokenizer.special_tokens)

    @classmethod
    def load(cls, folder: Path, spec: TextSpec, placeholder: str = "") -> "PromptMaker":
        """Read tokenizer and template of a bundle; BundleError says what is wrong with them. placeholder: what stands
        for an image in a rendered prompt, "" = the model reads none."""
        template = read_template(folder / spec.chat_template) if spec.chat_template else None
        image_text = placeholder if placeholder not in (template or "") else ""
        given = replace(MessageForm.of(spec.writes), has_parts=bool(placeholder), image_text=image_text)
        names = {"bos_token": spec.bos_token or "", "eos_token": spec.eos_token or ""}
        return cls(Tokenizer.load(folder, spec), template, names, given)

    def text(self, text: str, max_context: int, keep: int | None = None) -> tuple[int, ...]:
        """Token ids of a plain prompt, with BOS where the model wants it. Special tokens in it are control tokens: a
        client that sends plain prompts has applied the template itself. Raises ContextLengthExceeded by characters
        before tokenising. With `keep` only the last tokens are used, the BOS among them."""
        if keep is not None:
            ids = self.tokenizer.encode(self._ending(text, keep), allow_special=True)
            room = max(0, keep - len(self.tokenizer.with_bos(())))
            return self.tokenizer.with_bos(ids if len(ids) <= room else ids[len(ids) - room :])[:keep]
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
        """What the template has to render for a conversation of which the last `keep` tokens are used. Raises
        InvalidRequest and ContextLengthExceeded (by characters)."""
        if self.template_source is None:
            raise InvalidRequest("This model has no chat template; use plain completions.", "messages")
        if not messages:
            raise InvalidRequest("'messages' is empty: at least one message is needed.", "messages")
        chosen = {"add_generation_prompt": True, **check_options(options)}
        if keep is None:
            self._check_chars(_count_chars(messages) + _count_chars(tools), max_context, "messages")
        spoken = [normalise_message(message, f"messages[{index}]", self.form) for index, message in enumerate(messages)]
        separator = choose_separator([spoken, tools, chosen])
        guarded = self._guard.protect(spoken, separator)
        if self.form.calls is not None:
            guarded = [with_written_calls(message, self.form.calls) for message in guarded]
        if self.form.image_text:
            guarded = [_with_text_content(message, self.form.image_text) for message in guarded]
        request = RenderRequest(
            guarded,
            self._guard.protect(tools, separator) if tools else None,
            {"documents": None, **self._special_names, **self._guard.protect(chosen, separator)},
            MOST_CUT_CHARS if keep is not None else max_context * self.tokenizer.longest_token_chars,
        )
        return ChatPrompt(request, separator, max_context, keep)

    def chat_ids(
        self, prompt: ChatPrompt, rendered: Rendered, placed: Callable[[str], str] | None = None
    ) -> tuple[int, ...]:
        """Token ids of a rendered conversation. No BOS is added: a template writes its own.

        placed: what stands for images in the text, put where the template has their placeholders.

        Raises InvalidRequest for what the template refused, ContextLengthExceeded (by characters, before tokenising).
        """
        max_context, keep = prompt.max_context, prompt.keep
        try:
            text = rendered.checked()
        except RenderTooLong:
            raise ContextLengthExceeded(max_context, max_context + 1, 0, at_least=True) from None
        if placed is not None:
            text = placed(text)
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
    """One OpenAI message as templates expect it: content is a string, tool call arguments are an object. Text parts are
    joined by line breaks, a missing content is empty; arguments that are not a JSON object stay text."""
    spoken = dict(message)
    content = None if form.hides_calls and message.get("tool_calls") else message.get("content")
    spoken["content"] = _content_parts(content, param) if form.has_parts else _content_text(content, param)
    if message.get("tool_calls") and not form.has_text_arguments:
        spoken["tool_calls"] = [_normalise_call(call, param) for call in message["tool_calls"]]
    if form.thoughts and spoken.get("reasoning_content"):
        spoken[form.thoughts] = spoken["reasoning_content"]
    return spoken


def _content_parts(content: Any, param: str) -> list[dict[str, str]]:
    """A list of texts and images in their order, as templates of models that read images want every content."""
    if content is None or isinstance(content, str) or not isinstance(content, Sequence):
        return [{"type": "text", "text": _content_text(content, param)}]
    return [
        {"type": "image"}
        if isinstance(part, Mapping) and part.get("type") == "image"
        else {"type": "text", "text": _part_text(part, f"{param}.content[{index}]")}
        for index, part in enumerate(content)
    ]


def _with_text_content(message: Mapping[str, Any], image_text: str) -> dict[str, Any]:
    """The message with its parts as one text, an image on a line of its own (as the processor of InternVL has it)."""
    texts: list[str] = []
    for part in message["content"]:
        is_behind_text = bool(texts) and not texts[-1].endswith("\n")
        texts.append("\n" * is_behind_text + (f"{image_text}\n" if part["type"] == "image" else part["text"]))
    return {**message, "content": "".join(texts)}


def _content_text(content: Any, param: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise InvalidRequest(f"'{param}.content' must be a string or a list of text parts.", f"{param}.content")
    return "\n".join(_part_text(part, f"{param}.content[{index}]") for index, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    text = part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        raise InvalidRequest(f"'{where}' is not a text part; this model reads text only.", where)
    return text


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


def with_written_calls(message: Mapping[str, Any], form: CallFormat) -> Mapping[str, Any]:
    """The message with its calls behind its text, for templates that show tools and render no calls."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    written = (form.between or "").join(_written_call(call["function"], form) for call in calls)
    text, content = f"{form.opening}{written}{form.closing}", message["content"]
    return {**message, "content": content + (text if isinstance(content, str) else [{"type": "text", "text": text}])}


def _written_call(function: Mapping[str, Any], form: CallFormat) -> str:
    given = function.get("arguments") or {}
    if not isinstance(given, Mapping):
        arguments = str(given)
    elif isinstance(style := form.arguments, LiteralArguments):
        pairs = (f"{key}{style.assign}{_literal(value, style)}" for key, value in given.items())
        arguments = style.between.join(pairs)
    else:
        arguments = json.dumps(given, ensure_ascii=False)
    return f"{form.begin}{function.get('name', '')}{form.named}{arguments}{form.end}"


def _literal(value: Any, style: LiteralArguments) -> str:
    """As the template of LFM2.5-8B-A1B writes it, which renders calls: objects are JSON."""
    if isinstance(value, str) and style.is_raw:
        return f"{style.quote}{value}{style.quote}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping) else repr(value)


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
