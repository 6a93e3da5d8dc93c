"""What a scripted model says next. Pure: a conversation in, the texts it would like to say out.

It echoes the last user message, or a tool's result. When tools are shown it calls the one whose name the message
says, or else the first. Where any JSON object will do, it gives the keys that the message quotes. Lines of the message
can direct it:

say: TEXT              answers TEXT, whatever tools there are
call: NAME {JSON}      calls the tool with these arguments; several lines are several calls
then                   what follows is for after the results of the calls so far

A line of the system message can give answers to whole messages: answers: {"MESSAGE": "ANSWER", ...}
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.bundle.answer_format import CallFormat
from tests.call_formats import written
from tests.clients.instances import Named, instance

TOOLS = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)
RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
SAY = re.compile(r"^say: (.*)$", re.MULTILINE)
CALL = re.compile(r"^call: (\S+)[ ]*(.*)$", re.MULTILINE)
ANSWERS = re.compile(r"^answers: (\{.*\})$", re.MULTILINE)
THEN = re.compile(r"^then$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn as the chat template wrote it."""

    role: str
    text: str


def wishes(turns: Sequence[Turn], calls: CallFormat) -> list[str]:
    """Texts it would like to say, the best first; what a grammar forbids of one leaves the others."""
    tools = _tools(turns)
    asked = max((place for place, turn in enumerate(turns) if _is_asked(turn)), default=0)
    message = turns[asked].text if turns else ""
    results = [result for turn in turns[asked + 1 :] for result in RESULT.findall(turn.text)]
    steps = THEN.split(message)
    done = sum(1 for turn in turns[asked + 1 :] if RESULT.search(turn.text))
    said = SAY.findall(steps[min(done, len(steps) - 1)])
    echo = "\n".join(results) if results else message
    plain = said[0] if said else _answers(turns).get(message.strip(), echo)
    directed = CALL.findall(steps[done]) if done < len(steps) else []
    chosen = [(name, _arguments(text, tools.get(name))) for name, text in directed]
    if not chosen and not said and not done and tools:
        named = sorted((name for name in tools if name in message), key=message.find) or [next(iter(tools))]
        chosen = [(name, instance(tools[name], Named.of(message))) for name in named]
    singles = [written(calls, [(name, instance(schema, Named.of(message)))]) for name, schema in tools.items()]
    firsts = [written(calls, chosen), *(written(calls, [one]) for one in chosen)] if chosen else []
    return [*firsts, plain, *singles, *_objects(message)]


def turn_of(text: str) -> Turn:
    """A turn from its text between the control tokens."""
    role, _, said = text.partition("\n")
    return Turn(role, said)


def _is_asked(turn: Turn) -> bool:
    return turn.role == "user" and not RESULT.search(turn.text)


def _objects(message: str) -> list[str]:
    """The object whose keys a message that asks for JSON quotes; for grammars that leave the keys free."""
    keys = Named.of(message).words if "JSON" in message else ()
    return [json.dumps(dict.fromkeys(keys, ""), ensure_ascii=False)] if keys else []


def _tools(turns: Sequence[Turn]) -> dict[str, Any]:
    """Schemas by name, as the template listed them."""
    found = TOOLS.search(turns[0].text) if turns and turns[0].role == "system" else None
    listed = [json.loads(line) for line in found[1].split("\n")] if found else []
    return {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in listed}


def _answers(turns: Sequence[Turn]) -> dict[str, str]:
    """What the system message says to answer, by message."""
    found = ANSWERS.search(turns[0].text) if turns and turns[0].role == "system" else None
    return json.loads(found[1]) if found else {}


def _arguments(text: str, schema: Any) -> Any:
    """Arguments as directed, in the order of the schema, which is the order a grammar wants."""
    given = json.loads(text) if text else {}
    order = list((schema or {}).get("properties", {}))
    return dict(sorted(given.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))
