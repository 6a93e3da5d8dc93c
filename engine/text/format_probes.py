"""The conversations that are rendered to see how a chat template writes an answer, and what became of them. Every text
of a caller in them is a word that no template has, so that it is found again in what was rendered."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine.text.rendering import Rendered, RenderRequest

USER, SAID, NEXT = "probeusermessage", "probecontent", "probefurthermessage"
NAMES, KEYS, VALUES = ("probecalla", "probecallb"), ("probekeya", "probekeyb"), ("probevaluea", "probevalueb")
THOUGHTS = {
    "reasoning_content": "probethoughta",
    "reasoning": "probethoughtb",
    "thinking": "probethoughtc",
    "thought": "probethoughtd",
}
BLOCK = "probethoughte"
AWKWARD = "probe<&\n'\"value"
INNER = "probeinner"
KINDS: Mapping[str, Any] = {
    "integer": 1742,
    "number": 3.25,
    "boolean": True,
    "false": False,
    "null": None,
    "object": {KEYS[1]: INNER},
    "array": [INNER],
}
IDS = (("call_probeidaprobeidaprobe", "call_probeidbprobeidbprobe"), ("probeidaa", "probeidbb"))
THINKS, DOES_NOT = ({"enable_thinking": on, "thinking": on} for on in (True, False))
MAX_CHARS = 1024 * 1024  # of one rendering; a template says a few thousand before the conversation


@dataclass(frozen=True, slots=True)
class Way:
    """How calls are given to a template: which of `IDS`, and arguments as JSON text or as an object."""

    ids: tuple[str, str]
    has_text_arguments: bool


WAYS = tuple(Way(ids, is_text) for is_text in (False, True) for ids in IDS)
Probe = tuple[str, Way | None]


class Renderings:
    """What was rendered behind the user's message, by probe; nothing for what the template refused."""

    def __init__(self, texts: Mapping[Probe, str]) -> None:
        self._texts = texts

    @classmethod
    def of(cls, rendered: Iterable[Rendered]) -> "Renderings":
        """Of answers in the order of `probe_requests`, of which the last may be missing."""
        return cls({probe: answer.text for probe, answer in zip(_probes(), rendered, strict=False) if not answer.error})

    def whole(self, name: str) -> str:
        """The whole prompt of a probe without calls, "" when it was refused."""
        return self._texts.get((name, None), "")

    def text(self, name: str, way: Way | None = None) -> str:
        """What follows the user's message, "" when the probe was refused or the message is not in it."""
        _, user, after = self._texts.get((name, way), "").rpartition(USER)
        return after if user else ""


def probe_requests(variables: Mapping[str, Any]) -> list[RenderRequest]:
    """Every conversation. variables: the special tokens' names."""
    return [
        RenderRequest(messages, [_tool(name) for name in NAMES], {"documents": None, **variables, **options}, MAX_CHARS)
        for messages, options in _probes().values()
    ]


def _probes() -> dict[Probe, tuple[list[dict[str, Any]], dict[str, Any]]]:
    user = {"role": "user", "content": USER}
    found: dict[Probe, tuple[list[dict[str, Any]], dict[str, Any]]] = {}
    for name, options in (("", {}), (" thinks", THINKS), (" does not", DOES_NOT)):
        found["prompt" + name, None] = [user], {"add_generation_prompt": True, **options}
    found["asked", None] = [user], {"add_generation_prompt": False}
    chat = [user, {"role": "assistant", "content": SAID}, {"role": "user", "content": NEXT}]
    found["said before", None] = chat, {"add_generation_prompt": False}
    blocks = [{"type": "thinking", "thinking": BLOCK}, {"type": "text", "text": SAID}]
    parts = {"blocks": [{"type": "thoughts", "text": BLOCK}, {"type": "response", "text": SAID}]}
    messages: list[tuple[str, dict[str, Any]]] = [
        ("said", {"content": SAID}),
        ("thought", {"content": SAID, **THOUGHTS}),
        ("blocks", {"content": blocks}),
        ("parts", {"content": parts}),
    ]
    for name, message in messages:
        found[name, None] = [user, {"role": "assistant", **message}], {"add_generation_prompt": False}
        found[name + " thinks", None] = found[name, None][0], {"add_generation_prompt": False, **THINKS}
    for way in WAYS:
        for name, message in _with_calls(way):
            chat = [user, {"role": "assistant", "content": "", **message}]
            found[name, way] = chat, {"add_generation_prompt": False}
            if name == "thought call":
                found[name + " thinks", way] = chat, {"add_generation_prompt": False, **THINKS}
    return found


def _with_calls(way: Way) -> Iterator[tuple[str, dict[str, Any]]]:
    one, other = ({key: value} for key, value in zip(KEYS, VALUES, strict=True))
    yield "one", {"tool_calls": _calls(way, one)}
    yield "two", {"tool_calls": _calls(way, one, other)}
    yield "arguments", {"tool_calls": _calls(way, one | other)}
    yield "reversed", {"tool_calls": _calls(way, other | one)}
    yield "said call", {"content": SAID, "tool_calls": _calls(way, one)}
    yield "thought call", {**THOUGHTS, "tool_calls": _calls(way, one)}
    yield "awkward", {"tool_calls": _calls(way, {KEYS[0]: AWKWARD})}
    for kind, value in KINDS.items():
        yield kind, {"tool_calls": _calls(way, {KEYS[0]: value})}


def _calls(way: Way, *arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "id": identifier,
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(given) if way.has_text_arguments else given},
        }
        for identifier, name, given in zip(way.ids, NAMES, arguments, strict=False)
    ]


def _tool(name: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": "A text."} for key in KEYS}
    parameters = {"type": "object", "properties": properties, "required": list(KEYS)}
    return {"type": "function", "function": {"name": name, "description": "A function.", "parameters": parameters}}
