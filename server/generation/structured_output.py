"""The form of an answer: response_format, vLLM's fields and tools, as one grammar to enforce."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from engine.bundle.answer_format import AnswerFormat
from engine.grammar.spec import CalledTool, Cfg, Choice, GrammarSpec, JsonSchema, Regex, TextForm, ToolCalls
from server.generation import chat_request as given
from server.generation.chat_request import ChatRequest, FunctionTool, GenerationBody
from server.generation.chat_template import Thinking
from server.http.errors import echo, refuse

ANY_OBJECT = '{"type":"object"}'


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What to enforce, and the field that asked for it."""

    spec: GrammarSpec
    param: str


def text_form(body: GenerationBody) -> AnswerForm | None:
    """The form of the text, None for any; raises Refusal when two fields give one."""
    found = _text_form(body)
    return AnswerForm(GrammarSpec(found[1]), found[0]) if found is not None else None


def chat_form(body: ChatRequest, calls: AnswerFormat | None) -> AnswerForm | None:
    """The form of a chat's answer; raises Refusal naming the field. calls: None when the model may make none."""
    text = _text_form(body)
    if calls is None or not body.tools:
        return text_form(body)
    tools = [tool.function for tool in body.tools]
    most = 0 if body.parallel_tool_calls is not False else 1
    if isinstance(body.tool_choice, given.NamedToolChoice):
        name = body.tool_choice.function.name
        tools = [tool for tool in tools if tool.name == name][:1]
        if not tools:
            message, param = f"The function {echo(name)} is not among the 'tools'.", "tool_choice.function.name"
            raise refuse(message, param, "invalid_value")
        return _calls(calls, tools, 1, is_forced=True)
    if body.tool_choice == "required":
        return _calls(calls, tools, most, is_forced=True)
    if text is None and most == 0 and not any(tool.strict for tool in tools):
        return None
    param, otherwise = text if text is not None else ("tools", None)
    return replace(_calls(calls, tools, most, is_forced=False, otherwise=otherwise), param=param)


def _text_form(body: GenerationBody) -> tuple[str, TextForm] | None:
    found = list(_forms(body))
    if len(found) > 1:
        first, second = found[0][0], found[1][0]
        raise refuse(f"Give '{first}' or '{second}', not both.", second, "invalid_value")
    return found[0] if found else None


def _calls(
    answer: AnswerFormat, tools: list[FunctionTool], most: int, is_forced: bool, otherwise: TextForm | None = None
) -> AnswerForm:
    called = tuple(
        CalledTool(tool.name, None if tool.parameters is None else _json(tool.parameters), not tool.strict)
        for tool in tools
    )
    assert answer.calls is not None  # otherwise the tools were refused
    form, around = answer.calls, answer.around
    calls = ToolCalls(form, called, is_forced, most, otherwise, answer.mark(form), around, "", answer.id_chars)
    return AnswerForm(GrammarSpec(calls), "tools")


def placed(spec: GrammarSpec, answer: AnswerFormat, thinking: Thinking) -> GrammarSpec:
    """The form where the model would write it: behind its reasoning, and inside of what is around a text."""
    if isinstance(spec.form, ToolCalls) and thinking.prefilled:
        spec = msgspec.structs.replace(spec, form=msgspec.structs.replace(spec.form, prefilled=thinking.prefilled))
    if answer.content is not None:
        opening = answer.content.opening.removeprefix(thinking.prefilled)
        spec = msgspec.structs.replace(spec, wrap=(opening, answer.content.closing))
    markers = thinking.markers
    if markers is None or thinking.is_over:
        return spec
    opening = "" if thinking.is_open else markers.opening
    return msgspec.structs.replace(spec, after=markers.closing, opening=opening, restart=answer.restart)


def _forms(body: GenerationBody) -> Iterator[tuple[str, TextForm]]:
    match body.response_format:
        case given.JsonObjectFormat():
            yield "response_format", JsonSchema(ANY_OBJECT)
        case given.JsonSchemaFormat(json_schema=named):
            schema = ANY_OBJECT if named.definition is None else _json(named.definition)
            yield "response_format.json_schema.schema", JsonSchema(schema, is_lenient=not named.strict)
    if body.structured_outputs is not None:
        yield _structured(body.structured_outputs)
    if body.guided_json is not None:
        yield "guided_json", JsonSchema(_json(body.guided_json))
    for name, form in _plain_forms(body.guided_regex, body.guided_choice, body.guided_grammar):
        yield f"guided_{name}", form


def _structured(asked: given.StructuredOutputs) -> tuple[str, TextForm]:
    found = list(_plain_forms(asked.regex, asked.choice, asked.grammar))
    whitespace = "" if asked.disable_any_whitespace else asked.whitespace_pattern
    if asked.json_schema is not None:
        found.append(("json", JsonSchema(_json(asked.json_schema), whitespace=whitespace)))
    if asked.json_object:
        found.append(("json_object", JsonSchema(ANY_OBJECT, whitespace=whitespace)))
    if len(found) != 1:
        message = "'structured_outputs' needs exactly one of 'json', 'json_object', 'regex', 'choice' and 'grammar'."
        raise refuse(message, "structured_outputs", "invalid_value")
    return f"structured_outputs.{found[0][0]}", found[0][1]


def _plain_forms(regex: str | None, choice: list[str] | None, grammar: str | None) -> Iterator[tuple[str, TextForm]]:
    if regex is not None:
        yield "regex", Regex(regex)
    if choice is not None:
        yield "choice", Choice(tuple(choice))
    if grammar is not None:
        yield "grammar", Cfg(grammar)


def _json(schema: str | dict[str, Any]) -> str:
    return schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()
