"""Tool calls in Hermes form, and answers after a tool's response."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tools.demo_model.corpus.conversation import Sample, SampleCall, Turn
from tools.demo_model.corpus.held_out import reserved
from tools.demo_model.corpus.intents import FIELDS, INTENTS, Field, Intent, value
from tools.demo_model.corpus.words import NOUNS, invented, word

_EXPLICIT = (
    "Call {} with {}.", "Use {} with {}.", "Call the function {} with {}.", "Run {}: {}", "Use the tool {} with {}",
    "Please call {} with {}.",
)  # fmt: skip
_PAIRS = ("{} {}", "{} = {}", "{}={}", "{}: {}", "{} set to {}")
_SORTS = (("string", "thing"), ("string", "invented"), ("string", "city"), ("integer", "number"), ("string", "person"))


@dataclass(frozen=True)
class Task:
    """A request, the tool that fits it and the right arguments."""

    request: str
    schema: Mapping[str, Any]
    call: SampleCall
    reply: tuple[tuple[str, str], ...]


def tools(rng: Random) -> Sample:
    """Offer tools, ask for one or for each in turn, and now and then give its response."""
    if rng.random() < 0.05:
        return _parallel(rng)
    offered = _offer(rng, task(rng), (0, 0, 1, 1, 1, 2))
    turns: list[Turn] = []
    for each in rng.sample(offered, len(offered)):
        if reserved(each.request):
            continue
        turns += [Turn("user", each.request), Turn("assistant", calls=(each.call,))]
        if rng.random() < 0.5:
            turns += _response(rng, (each,))
        if rng.random() < 0.15:
            break
    return Sample(tuple(turns), tuple(each.schema for each in offered)) if turns else tools(rng)


def fitting(rng: Random) -> Sample:
    """Make a conversation of one call whose request is kept out of training."""
    while True:
        chosen = task(rng)
        if reserved(chosen.request):
            turns = (Turn("user", chosen.request), Turn("assistant", calls=(chosen.call,)))
            return Sample(turns, tuple(each.schema for each in _offer(rng, chosen, (0, 0, 0, 1, 1, 2))))


def unrelated(rng: Random) -> tuple[Mapping[str, Any], ...]:
    """Offer tools that fit no question about facts or numbers."""
    return tuple(_made_up(rng).schema for _ in range(rng.randint(1, 2)))


def task(rng: Random) -> Task:
    """Draw an everyday request or one for an invented tool."""
    return _everyday(rng, rng.choice(INTENTS)) if rng.random() < 0.6 else _made_up(rng)


def _everyday(rng: Random, intent: Intent) -> Task:
    fields = {rng.choice(field.names): field for field in (FIELDS[key] for key in intent.fields)}
    arguments = {name: value(rng, field.values) for name, field in fields.items() if field.required}
    request = rng.choice(intent.requests).format(*arguments.values())
    if rng.random() < 0.15:
        request = rng.choice(("Please help me. ", "Hello! ", "Hi, ", "I have a question. ")) + request
    name = rng.choice(intent.names)
    return Task(request, _schema(rng, name, intent.about, fields), SampleCall(name, arguments), intent.reply)


def _made_up(rng: Random) -> Task:
    verb, noun = invented(rng), rng.choice((rng.choice(NOUNS), invented(rng)))
    name = rng.choice((f"{verb}_{noun}", f"{verb}_{noun}", verb, f"{verb}{noun.capitalize()}", f"{verb}-{noun}"))
    fields: dict[str, Field] = {}
    for index in range(rng.randint(1, 4)):
        sort, values = rng.choice(_SORTS)
        parameter = word(rng).lower() if rng.random() < 0.7 else f"{invented(rng)}_{rng.choice(NOUNS)}"
        fields[parameter] = Field((parameter,), sort, values, f"The {parameter}", index < 3 and rng.random() < 0.85)
    arguments = {key: value(rng, field.values) for key, field in fields.items() if field.required}
    pair = rng.choice(_PAIRS)
    described = [pair.format(key, text) for key, text in arguments.items()]
    request = f"{verb.capitalize()} the {noun}" + (" with " if described else "") + _enumeration(described) + "."
    if rng.random() < 0.7 and described:
        request = rng.choice(_EXPLICIT).format(name, _enumeration(described))
    reply = (("result", rng.choice(_SORTS)[1]), (invented(rng), rng.choice(_SORTS)[1]))
    schema = _schema(rng, name, f"{verb.capitalize()} the {noun}", fields)
    return Task(request, schema, SampleCall(name, arguments), reply[: rng.randint(1, 2)])


def _enumeration(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1] if parts else ""


def _schema(rng: Random, name: str, about: str, fields: Mapping[str, Field]) -> Mapping[str, Any]:
    properties: dict[str, Any] = {}
    described = rng.random() < 0.5
    for key, field in fields.items():
        properties[key] = {"type": field.type} | ({"description": field.about} if described else {})
        if "|" in field.values and rng.random() < 0.5:
            properties[key]["enum"] = field.values.split("|")
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    required = [key for key, field in fields.items() if field.required]
    if required and rng.random() < 0.85:
        parameters["required"] = required
    if rng.random() < 0.1:
        parameters["additionalProperties"] = False
    function: dict[str, Any] = {"name": name}
    if rng.random() < 0.9:
        function["description"] = about + rng.choice(("", "", "."))
    function["parameters"] = parameters
    return {"type": "function", "function": function}


def _offer(rng: Random, chosen: Task, others: Sequence[int]) -> list[Task]:
    offered = {chosen.call.name: chosen}
    intents = [intent for intent in INTENTS if chosen.call.name not in intent.names]
    for _ in range(rng.choice(others)):
        other = _everyday(rng, rng.choice(intents)) if rng.random() < 0.5 else _made_up(rng)
        offered.setdefault(other.call.name, other)
    return rng.sample(list(offered.values()), len(offered))


def _parallel(rng: Random) -> Sample:
    intent = rng.choice(INTENTS[:2])
    first = _everyday(rng, intent)
    (key, left), right = next(iter(first.call.arguments.items())), value(rng, "city")
    second = SampleCall(first.call.name, {key: right})
    subject = "weather" if intent is INTENTS[0] else "time"
    request = rng.choice(
        (f"What is the {subject} in {left} and {right}?", f"Tell me the {subject} in {left} and in {right}.")
    )
    turns = [Turn("user", request), Turn("assistant", calls=(first.call, second))]
    if rng.random() < 0.4:
        turns.extend(_response(rng, (first, first)))
    return Sample(tuple(turns), (first.schema,))


def _response(rng: Random, done: Sequence[Task]) -> list[Turn]:
    turns: list[Turn] = []
    sentences: list[str] = []
    for each in done:
        result = {key: value(rng, sort) for key, sort in each.reply}
        if rng.random() < 0.25:
            text = str(next(iter(result.values())))
            turns.append(Turn("tool", text))
            sentences.append(f"The result is {text}.")
        else:
            turns.append(Turn("tool", json.dumps(result)))
            stated = [f"the {key} is {content}" for key, content in result.items()]
            sentences.append(_sentence(stated))
    return [*turns, Turn("assistant", " ".join(sentences))]


def _sentence(stated: Sequence[str]) -> str:
    text = " and ".join(stated)
    return text[0].upper() + text[1:] + "."
