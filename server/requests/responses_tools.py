"""Tools of /v1/responses -> functions, the one kind that models know, and back to what their calls are called."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from server.http.errors import refuse
from server.protocol.chat_request import FunctionTool, Tool
from server.protocol.fields import MAX_TOOLS
from server.protocol.responses_request import ResponsesRequest
from server.protocol.responses_tools import CalledAs, CustomTool, GrammarInput, NamespaceTool, ResponseFunctionTool

INPUT = "input"  # the only argument of the function that a custom tool is shown as


def shown_tools(body: ResponsesRequest) -> list[Tool]:
    """Every tool as a function; Refusal when there are too many in all namespaces together."""
    found = [
        Tool.model_construct(type="function", function=_function(who, tool, about)) for who, tool, about in _all(body)
    ]
    if len(found) > MAX_TOOLS:
        message = f"Invalid 'tools': {len(found)} tools in all namespaces. At most {MAX_TOOLS} are allowed."
        raise refuse(message, "tools", "array_above_max_length")
    return found


def tool_identities(body: ResponsesRequest) -> Mapping[str, CalledAs]:
    """Tools by the name that the model calls them by."""
    return {who.shown: who for who, _, _ in _all(body)}


def custom_arguments(text: str) -> str:
    """The arguments of the function that a custom tool is shown as."""
    return msgspec.json.encode({INPUT: text}).decode()


def _all(body: ResponsesRequest) -> Iterator[tuple[CalledAs, ResponseFunctionTool | CustomTool, str | None]]:
    for tool in body.tools or []:
        if isinstance(tool, NamespaceTool):
            for inner in tool.tools:
                yield CalledAs(inner.name, tool.name, isinstance(inner, CustomTool)), inner, tool.description
        else:
            yield CalledAs(tool.name, None, isinstance(tool, CustomTool)), tool, None


def _function(who: CalledAs, tool: ResponseFunctionTool | CustomTool, about: str | None) -> FunctionTool:
    """about: what the tools of its namespace are for."""
    told = "\n\n".join(text for text in (about, tool.description, _grammar(tool)) if text)
    if isinstance(tool, CustomTool):
        schema = _input_schema(tool)
        return FunctionTool.model_construct(name=who.shown, description=told, parameters=schema, strict=True)
    return FunctionTool.model_construct(
        name=who.shown, description=told if about else tool.description, parameters=tool.parameters, strict=tool.strict
    )


def _input_schema(tool: CustomTool) -> dict[str, Any]:
    text: dict[str, Any] = {"type": "string"}
    if isinstance(tool.format, GrammarInput) and tool.format.syntax == "regex":
        text["pattern"] = f"^(?:{tool.format.definition})$"
    return {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}


def _grammar(tool: ResponseFunctionTool | CustomTool) -> str | None:
    """Inside a JSON string no grammar can be enforced, so the model is told."""
    if isinstance(tool, CustomTool) and isinstance(tool.format, GrammarInput) and tool.format.syntax == "lark":
        return f"The input has the form of this Lark grammar:\n{tool.format.definition}"
    return None
