"""Chat templates of llama.cpp with how they were found to write, and calls as their models write them."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from engine.bundle.answer_format import ID, KEY, NAME, NUMBER, AnswerFormat, LiteralArguments, TaggedArguments
from engine.text.answer_finding import find_answer
from engine.text.format_probes import USER, Renderings, probe_requests
from engine.text.format_table import atoms, common_start, is_tag
from engine.text.prompt import MessageForm, normalise_message, with_written_calls
from engine.text.renderer import ChatTemplate
from server.generation.argument_reading import CallArguments
from server.generation.call_reading import CallBegin
from server.generation.parsing import AnswerParser, Part

# Templates that show tools and render no calls: the way is told by a table.
UNRENDERED = {"LFM2-8B-A1B", "LFM2.5-Instruct", "ibm-granite-granite-3.3-2B-Instruct"}
RENDERS_LFM2 = "LFM2.5-8B-A1B"  # of the same family
PLACES = re.compile(f"{NAME}|{ID}|{NUMBER}|{KEY}")
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "documents": None}
PARAMETERS: dict[str, Any] = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "flag": {"type": "boolean"},
    "options": {"type": "object", "additionalProperties": {"type": "string"}},
    "items": {"type": "array", "items": {"type": "string"}},
    "nested": {
        "type": "array",
        "items": {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "string"}}},
    },
    "nothing": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
}
SCHEMA = {
    "type": "object",
    "properties": {key: value | {"description": "What it is."} for key, value in PARAMETERS.items()},
    "required": ["text"],
}
FUNCTIONS = {
    "get_weather": SCHEMA,
    "send-mail": SCHEMA | {"required": []},
    "tell_time": {"type": "object", "properties": {}},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "A function.", "parameters": schema}}
    for name, schema in FUNCTIONS.items()
]
AWKWARD = "a \"q\" 's' {[(]})\n<b>é 日本 \\n ]"
INSIDE, OUTSIDE = " inside ", " outside "
Called = tuple[str, dict[str, Any]]


def marks(answer: AnswerFormat) -> list[str]:
    """What opens and closes in this model's answers, to stand inside of a string: whole and tag by tag."""
    form = answer.calls
    assert form is not None
    quote = form.arguments.quote if isinstance(form.arguments, LiteralArguments) else ""
    texts = [PLACES.sub("text", text).strip() for text in answer.literals if text != quote]
    found = dict.fromkeys(text for whole in texts for text in (whole, *filter(is_tag, atoms(whole))))
    return [text for text in found if text]


def calls_of(answer: AnswerFormat, inside: Sequence[str]) -> list[Called]:
    """Calls with arguments of every type, and with none. inside: what stands inside of strings."""
    every = {
        "text": AWKWARD + " x ".join([INSIDE, *inside, OUTSIDE]),
        "count": 17,
        "ratio": 2.5,
        "flag": True,
        "options": {"x": "y z", "q": "\"'"},
        "items": ["é", "b, c"],
        "nested": [{"x": 1, "y": "日本"}, {}],
        "nothing": None,
    }
    if isinstance(form := answer.calls and answer.calls.arguments, TaggedArguments) and "null" not in form.assign:
        del every["nothing"]  # the template leaves it out
    calls: list[Called] = [("get_weather", every), ("send-mail", {"text": "17", "flag": False})]
    calls += [("send-mail", {"text": mark}) for mark in inside]
    return [*calls, ("send-mail", {}), ("tell_time", {})]


class Template:
    """A template and how it was found to write."""

    def __init__(self, path: Path) -> None:
        source = path.read_text(encoding="utf-8")
        self._chat = ChatTemplate(source)
        rendered = [self._chat.answer(request) for request in probe_requests({"bos_token": "<s>", "eos_token": "</s>"})]
        self.answer: AnswerFormat = find_answer(Renderings.of(rendered), source)

    def turn(self, called: list[Called]) -> str:
        """What a template writes behind the user's message for an answer that is these calls."""
        return self.rendered([self.calling(called)])

    def body(self, called: list[Called]) -> str:
        """What the model writes of it: without the turn's head, and reasoning that was left empty."""
        text, prompt = self.turn(called), self.rendered([], add_generation_prompt=True)
        form = self.answer.calls
        assert form is not None
        first = (form.opening + form.begin).split("⟨")[0]
        start = text.find(first) if first.strip() else -1
        return text[len(common_start(text, prompt)) if start < 0 or self.answer.prefill else start :]

    def calling(self, called: list[Called], **more: str) -> dict[str, Any]:
        """A message of the assistant with these calls."""
        calls = []
        for number, (name, given) in enumerate(called):
            function = {"name": name, "arguments": json.dumps(given, ensure_ascii=False)}
            identifier = f"call_{number:024}"[-self.answer.id_chars :]
            calls.append({"id": identifier, "type": "function", "function": function})
        return {"role": "assistant", "content": "", "tool_calls": calls, **more}

    def rendered(self, more: list[dict[str, Any]], **options: bool) -> str:
        """What stands behind the user's message with more messages as a client sends them, by the server's way."""
        form = MessageForm.of(self.answer)
        sent = [{"role": "user", "content": USER}, *more]
        messages: list[Mapping[str, Any]] = [normalise_message(message, "messages", form) for message in sent]
        if form.calls is not None:
            messages = [with_written_calls(message, form.calls) for message in messages]
        variables = {**TOKENS, "add_generation_prompt": False, **options}
        return self._chat.render(messages, TOOLS, variables, 1 << 20).rpartition(USER)[2]


def written(folder: Path, name: str, called: list[Called]) -> str:
    """The calls as the model writes them: as its template renders them or, where it renders none, as its card says.

    The server writes those behind the text.
    """
    if name.startswith("ibm-granite-granite-3.3"):
        listed = [{"name": function, "arguments": given} for function, given in called]
        return f"<|tool_call|>{json.dumps(listed, ensure_ascii=False)}"
    return loaded(folder, RENDERS_LFM2 if name in UNRENDERED else name).body(called)


@lru_cache
def loaded(folder: Path, name: str) -> Template:
    return Template(folder / "templates" / f"{name}.jinja")


def read(answer: AnswerFormat, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    splitter = AnswerParser(answer, schemas=FUNCTIONS, prefilled=answer.prefill)
    parts = [part for piece in pieces for part in splitter.feed(piece)] + splitter.feed("", is_last=True)
    return told(parts)


def told(parts: list[Part]) -> tuple[str, list[tuple[str, str]]]:
    """The text in the parts of an answer, and its calls: names and arguments."""
    calls: dict[int, list[str]] = {}
    for part in parts:
        if isinstance(part, CallBegin):
            calls[part.index] = [part.name, ""]
        elif isinstance(part, CallArguments):
            calls[part.index][1] += part.text
    said = "".join(part for part in parts if isinstance(part, str))
    return said, [(name, arguments) for name, arguments in calls.values()]


def spoken(answer: AnswerFormat, body: str) -> str:
    """Calls without what ends a turn: the text that a grammar has to accept."""
    assert answer.calls is not None
    body = body.partition("<|START_OF_TURN_TOKEN|>")[0]  # a turn that one template puts behind all
    end = (answer.calls.closing or answer.calls.end).split("⟩")[-1].rstrip() or "}"
    stop = body.rindex(end) + len(end)
    spaces = answer.calls.end[len(answer.calls.end.rstrip()) :]
    return body[:stop] + ("" if answer.calls.closing else spaces)
