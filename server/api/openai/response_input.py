"""Input items, tools and queries of /v1/responses, as the chat route's functions take them or as they are stored."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from pydantic import Field, TypeAdapter, ValidationError
from starlette.datastructures import QueryParams

from server.api.body import validated
from server.api.openai import response_request as given
from server.api.openai.response_answer import ResponseItems
from server.api.openai.response_request import CalledAs, InputItem, InputMessage, ResponsesRequest
from server.generation.chat_request import ChatRequest, JsonSchemaFormat, NamedToolChoice, Tool
from server.generation.chat_template import image_part, joined_text, template_options
from server.http.errors import StorageFailed, echo, refuse
from server.http.fields import MAX_TOOLS, Body
from server.stored_responses.database import Json, ResponseRecord

INPUT = "input"  # the only argument of the function that a custom tool is shown as
PlainTool = given.ResponseFunctionTool | given.CustomTool
AssistantItem = InputMessage | given.FunctionCallItem | given.CustomCallItem | given.ReasoningItem


def named_tools(body: ResponsesRequest) -> Iterator[tuple[CalledAs, PlainTool, str | None]]:
    """How each tool is called, and what the tools of its namespace are for."""
    for tool in body.tools or []:
        if isinstance(tool, given.NamespaceTool):
            for inner in tool.tools:
                is_custom = isinstance(inner, given.CustomTool)
                yield CalledAs(inner.name, tool.name, is_custom), inner, tool.description
        else:
            yield CalledAs(tool.name, None, isinstance(tool, given.CustomTool)), tool, None


def _function(who: CalledAs, tool: PlainTool, about: str | None) -> Tool:
    """A tool as a function. Inside a JSON string no grammar in Lark can be enforced, so the model is told."""
    grammar, text = "", {"type": "string"}
    form = tool.format if isinstance(tool, given.CustomTool) else None
    if isinstance(form, given.GrammarInput) and form.syntax == "regex":
        text["pattern"] = f"^(?:{form.definition})$"
    elif isinstance(form, given.GrammarInput):
        grammar = f"The input has the form of this Lark grammar:\n{form.definition}"
    told = "\n\n".join(filter(None, (about, tool.description, grammar)))
    if isinstance(tool, given.CustomTool):
        schema = {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
        return Tool.of(who.shown, told, schema, True)
    return Tool.of(who.shown, told if about else tool.description, tool.parameters, tool.strict)


LOGPROBS = "message.output_text.logprobs"
# Fields that the chat route's checks name, and what they are called here.
FIELD_ALIASES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema.schema": "text.format.schema",
    "tool_choice.function.name": "tool_choice.name",
}


def own_name(param: str) -> str:
    return FIELD_ALIASES.get(param, "input" if param.startswith("messages[") else param)


def as_chat(body: ResponsesRequest) -> ChatRequest:
    """The fields both routes have, under the chat route's names; they were validated already.
    Refusal when there are too many tools in all namespaces together."""
    tools = [_function(*named) for named in named_tools(body)]
    if len(tools) > MAX_TOOLS:
        message = f"Invalid 'tools': {len(tools)} tools in all namespaces. At most {MAX_TOOLS} are allowed."
        raise refuse(message, "tools", "array_above_max_length")
    form, choice = (body.text or given.TextSettings()).format, body.tool_choice
    if choice in ("auto", "none") and not tools:  # SDKs send "auto" without tools
        choice = None
    return ChatRequest.model_construct(
        **body.sampling,
        messages=[],
        max_completion_tokens=body.max_output_tokens,
        logprobs=body.top_logprobs is not None or LOGPROBS in (body.include or []),
        top_logprobs=body.top_logprobs,
        tools=tools,
        tool_choice=NamedToolChoice.of(choice.name) if isinstance(choice, given.NamedFunction) else choice,
        parallel_tool_calls=body.parallel_tool_calls if tools else None,
        thinking_token_budget=body.thinking_token_budget,
        response_format=(
            JsonSchemaFormat.of(form.definition, form.strict) if isinstance(form, given.TextSchemaFormat) else form
        ),
    )


def response_options(body: ResponsesRequest) -> dict[str, Any]:
    """Options for the chat template; a verbosity changes something where the template reads it."""
    text, reasoning = body.text or given.TextSettings(), body.reasoning or given.ReasoningSettings()
    told = {} if text.verbosity is None else {"verbosity": text.verbosity}
    return told | template_options(body.chat_template_kwargs, reasoning.effort)


def given_items(body: ResponsesRequest) -> list[InputItem]:
    return [InputMessage(role="user", content=body.input)] if isinstance(body.input, str) else list(body.input)


def template_items(instructions: str | None, items: Sequence[InputItem], own: int) -> list[dict[str, Any]]:
    """One dictionary per message, as a chat template reads it. own: how many of the last items are this request's.
    What the model thought and called between two other messages is one message of the assistant."""
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    for number, item in enumerate(items, own - len(items)):
        if isinstance(item, given.FunctionOutputItem | given.CustomOutputItem):
            messages.append({"role": "tool", "content": joined_text(item.output), "tool_call_id": item.call_id})
        elif isinstance(item, InputMessage) and item.role != "assistant":
            role = "system" if item.role == "developer" else item.role
            messages.append({"role": role, "content": _content(item, number)})
        else:
            _add_to_assistant(messages, item, number)
    return messages


def _add_to_assistant(messages: list[dict[str, Any]], item: AssistantItem, number: int) -> None:
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    has_spoken = last is not None and (last["content"] or "tool_calls" in last)
    if last is None or (isinstance(item, InputMessage | given.ReasoningItem) and has_spoken):
        last = {"role": "assistant", "content": ""}
        messages.append(last)
    if isinstance(item, InputMessage):
        last["content"] = _content(item, number)
    elif isinstance(item, given.ReasoningItem):
        thoughts = item.content or item.summary
        last["reasoning_content"] = last.get("reasoning_content", "") + "".join(part.text for part in thoughts)
    else:
        if isinstance(item, given.CustomCallItem):
            arguments = msgspec.json.encode({INPUT: item.input}).decode()
        else:
            arguments = item.arguments
        call = {"name": CalledAs(item.name, item.namespace).shown, "arguments": arguments}
        last.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": call})


def _content(item: InputMessage, number: int) -> str | list[dict[str, Any]]:
    """Text, or the parts in order where a user shows images; Refusal where somebody else does.
    number: below zero in an item of an earlier response."""
    if isinstance(item.content, str):
        return item.content
    texts = [part for part in item.content if isinstance(part, given.InputText)]
    if len(texts) == len(item.content):
        return joined_text(texts)
    path = f"input[{number}].content"
    if item.role != "user":
        raise refuse(f"'{path}' has an image: only a user's message may.", path, "unsupported_value")
    parts: list[dict[str, Any]] = []
    for index, part in enumerate(item.content):
        if isinstance(part, given.InputText):
            parts.append({"type": "text", "text": part.text})
        else:
            param = f"{path}[{index}].image_url" if number >= 0 else "previous_response_id"
            parts.append(image_part(part.image_url, param, part.detail))
    return parts


OFF = "this server stores no responses; its setting store_responses is off"
PREFIXES: Mapping[str, str] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
_ITEMS: TypeAdapter[list[InputItem]] = TypeAdapter(list[InputItem])


@dataclass(frozen=True, slots=True)
class Storing:
    """is_kept: the response is stored. is_background: it goes on without its client. previous: what it follows."""

    is_kept: bool = False
    is_background: bool = False
    previous: str | None = None


def storing(body: ResponsesRequest, is_on: bool, is_resumption: bool = False) -> Storing:
    """What to store; Refusal naming the field. is_on: responses are stored, also where `store` is absent.
    is_resumption: the request comes with one, whose id another response may have, perhaps of another caller."""
    if not is_on:
        if body.previous_response_id is not None:
            message = f"Unsupported parameter: 'previous_response_id' is not supported: {OFF}."
            raise refuse(message, "previous_response_id", "unsupported_parameter")
        for field in ("store", "background"):
            if getattr(body, field):
                message = f"Unsupported value: '{field}' does not support true: {OFF}."
                raise refuse(message, field, "unsupported_value")
        return Storing()
    if body.background and body.store is False:
        raise refuse("'background' needs 'store' to be true.", "background", "invalid_value")
    if is_resumption and body.store is not False:
        message = "A response that comes with a 'resumption' cannot be stored: 'store' must be false."
        raise refuse(message, "store", "invalid_value")
    return Storing(body.store is not False, bool(body.background), body.previous_response_id)


def items_of(records: Sequence[ResponseRecord]) -> list[InputItem]:
    """The items of a conversation, its first response first. StorageFailed for what another version wrote."""
    try:
        return _ITEMS.validate_python(listed_items(records))
    except ValidationError as error:
        message = f"The stored response {records[-1].key.id} cannot be read: {error.error_count()} errors."
        raise StorageFailed(message) from None


def listed_items(records: Sequence[ResponseRecord]) -> list[Json]:
    return [item for record in records for item in (*record.input, *record.response["output"])]


def stored_item(item: InputItem) -> Json:
    """An item of a request as it is stored and listed: with an id, a type and a status."""
    plain = item.model_dump(exclude_none=True, exclude={"parsed_arguments"})
    kind = plain.setdefault("type", "message")
    plain.setdefault("id", f"{PREFIXES[kind]}_{uuid.uuid4().hex}")
    plain.setdefault("status", "completed")
    if isinstance(item, InputMessage):
        parts = [item.content] if isinstance(item.content, str) else item.content
        plain["content"] = [_part(item.role, part) for part in parts]
    return plain


def _part(role: str, part: str | given.InputText | given.InputImage) -> Json:
    if isinstance(part, given.InputImage):
        return part.model_dump(exclude_none=True)
    text = part if isinstance(part, str) else part.text
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


class StoredQuery(Body):
    """Base of queries. include: it changes nothing here, as what was answered has it, or never had."""

    include: list[given.Include] | None = None


class EventsQuery(StoredQuery):
    """How to read a response: as it is now, or the events behind one of this number."""

    stream: bool = False
    starting_after: Annotated[int, Field(ge=0, le=999_999_999)] | None = None
    include_obfuscation: Literal[False] | None = None


class ItemsQuery(StoredQuery):
    """Which items: at most `limit` behind the one named `after`."""

    limit: Annotated[int, Field(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None


Query = TypeVar("Query", bound=StoredQuery)


def read_query(kind: type[Query], query: QueryParams) -> Query:
    """What a query says, checked as a body is. SDKs write a list as include[]=a&include[]=b."""
    fields: dict[str, Any] = {}
    for name, value in query.multi_items():
        if name.removesuffix("[]") == "include":
            fields.setdefault("include", []).append(value)
        elif value in ("true", "false"):
            fields[name] = value == "true"
        else:
            fields[name] = int(value) if value.isascii() and value.isdigit() and len(value) <= 18 else value
    return validated(kind, fields)


def item_page(items: Sequence[Json], page: ItemsQuery) -> ResponseItems:
    """OpenAI's list of these items, which are in the order of the conversation. Refusal for an unknown `after`."""
    ordered = list(items) if page.order == "asc" else list(reversed(items))
    if page.after is not None:
        place = next((number for number, item in enumerate(ordered) if item["id"] == page.after), None)
        if place is None:
            raise refuse(f"No item with id {echo(page.after)} is in this response.", "after", "invalid_value")
        ordered = ordered[place + 1 :]
    shown = ordered[: page.limit]
    first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    return ResponseItems(data=shown, first_id=first, last_id=last, has_more=len(ordered) > len(shown))
