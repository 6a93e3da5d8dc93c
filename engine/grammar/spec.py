"""What form an answer may be required to have, and the messages between the server and a grammar compiler. Imported by
the serving process: nothing here compiles anything."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from engine.bundle.answer_format import CallFormat


class JsonSchema(msgspec.Struct, frozen=True, tag=True):
    """A JSON value that a schema (JSON text) accepts."""

    schema: str
    is_lenient: bool = False  # keywords that cannot be enforced are ignored
    whitespace: str | None = None  # regular expression between tokens, "" = none; None = the usual bounded one


class Regex(msgspec.Struct, frozen=True, tag=True):
    """A text that a regular expression matches as a whole; `^` at its begin and `$` at its end add nothing."""

    pattern: str


class Choice(msgspec.Struct, frozen=True, tag=True):
    options: tuple[str, ...]


class Cfg(msgspec.Struct, frozen=True, tag=True):
    """A text of a context-free grammar, in Lark's notation or in GBNF (`::=`)."""

    text: str


TextForm = JsonSchema | Regex | Choice | Cfg


class CalledTool(msgspec.Struct, frozen=True):
    """A function that may be called; `parameters` is a JSON schema as text, None = any object."""

    name: str
    parameters: str | None = None
    is_lenient: bool = True


class ToolCalls(msgspec.Struct, frozen=True, tag=True):
    """Calls as a model writes them."""

    form: CallFormat
    tools: tuple[CalledTool, ...]
    is_forced: bool  # nothing but calls, at least one; otherwise text, in which calls have the right form
    most: int = 0  # 0 = any number
    otherwise: TextForm | None = None  # the form of an answer without calls, None = any text
    mark: str = ""  # what tells that calls begin
    around: tuple[str, ...] = ()  # texts besides that may hold control tokens
    prefilled: str = ""  # what the prompt has written of the answer
    id_chars: int = 0  # of the ids of calls, 0 for any


Form = TextForm | ToolCalls


class GrammarSpec(msgspec.Struct, frozen=True):
    """A form of an answer."""

    form: Form
    after: str = ""  # what ends the reasoning before it, "" = there is none
    opening: str = ""  # what begins reasoning that may be left out, "" = the prompt has begun it
    restart: str = ""  # what the model writes between both
    wrap: tuple[str, str] = ("", "")  # what it may write around a text


class CompilerOpening(msgspec.Struct, frozen=True):
    """The first message to a compiler. longest_s: for one spec, then it ends itself."""

    longest_s: float


class Compiled(msgspec.Struct, frozen=True):
    """llguidance's serialised grammar, or why there is none; empty: ready. tool: whose calls cannot have a form."""

    grammar: str = ""
    error: str = ""
    tool: str = ""


encode = msgspec.msgpack.Encoder().encode
decode_opening = msgspec.msgpack.Decoder(CompilerOpening).decode
decode_spec = msgspec.msgpack.Decoder(GrammarSpec).decode
decode_compiled = msgspec.msgpack.Decoder(Compiled).decode
DEEPEST = 16
Types = frozenset[str]


def resolved(schema: Any, root: Any) -> Any:
    """What a chain of local references (RFC 6901, a URI's fragment) leads to; `schema` itself where to nothing."""
    for _ in range(DEEPEST):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not f"{reference}/".startswith("#/"):
            return schema
        place = root
        for part in unquote(reference).split("/")[1:]:
            place = _below(place, part.replace("~1", "/").replace("~0", "~"))
        if place is None:
            return schema
        schema = place
    return schema


def _below(place: Any, part: str) -> Any:
    if isinstance(place, list):
        return place[int(part)] if part.isdecimal() and int(part) < len(place) else None
    return place.get(part) if isinstance(place, Mapping) else None


def types_of(schema: Any, root: Any, depth: int = 0) -> Types | None:
    """The types that a value may have, None when any may be."""
    schema = resolved(schema, root)
    if not isinstance(schema, Mapping) or depth > DEEPEST:
        return None
    named = schema.get("type")
    if isinstance(named, str | list):
        return frozenset(each for each in ([named] if isinstance(named, str) else named) if isinstance(each, str))
    if isinstance(values := schema.get("enum", [schema["const"]] if "const" in schema else None), list):
        return frozenset(map(type_of, values))
    return _combined(schema, root, depth)


def _combined(schema: Mapping[str, Any], root: Any, depth: int) -> Types | None:
    for key in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(key), list):
            allowed = [types_of(option, root, depth + 1) for option in options]
            known = [each for each in allowed if each is not None]
            return frozenset().union(*known) if len(known) == len(allowed) else None
    if isinstance(parts := schema.get("allOf"), list):
        return next((found for part in parts if (found := types_of(part, root, depth + 1)) is not None), None)
    return None


def type_of(value: Any) -> str:
    """JSON Schema's name for the type of a value."""
    if isinstance(value, bool):
        return "boolean"
    names = ((str, "string"), (int, "integer"), (float, "number"), (Mapping, "object"), (list, "array"))
    return next((name for kind, name in names if isinstance(value, kind)), "null")


def allows(types: Types | None, value: Any) -> bool:
    own = type_of(value)
    is_whole = isinstance(value, float) and value.is_integer() and types is not None and "integer" in types
    return types is None or own in types or is_whole or (own == "integer" and "number" in types)
