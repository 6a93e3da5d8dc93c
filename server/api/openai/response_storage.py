"""What a request of /v1/responses wants to be stored, the items it follows, and queries of stored responses."""

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import get_args

from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import QueryParams

from server.api.openai.response_answer import ResponseItems
from server.api.openai.response_request import Include, InputImage, InputItem, InputMessage, InputText, ResponsesRequest
from server.http.errors import StorageFailed, echo, refuse
from server.http.fields import MAX_MESSAGES
from server.stored_responses.record import Json, ResponseRecord, Storing

OFF = "this server stores no responses; its setting store_responses is off"
PREFIXES: Mapping[str, str] = MappingProxyType(
    {
        "message": "msg",
        "reasoning": "rs",
        "function_call": "fc",
        "function_call_output": "fco",
        "custom_tool_call": "ctc",
        "custom_tool_call_output": "ctco",
    }
)
_ITEMS: TypeAdapter[list[InputItem]] = TypeAdapter(list[InputItem])


def storing(body: ResponsesRequest, is_on: bool, is_resumption: bool = False) -> Storing:
    """What to store; Refusal naming the field. is_on: responses are stored, also where `store` is absent.

    is_resumption: the request comes with one, whose id another response may have, perhaps of another caller.
    """
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
        raise StorageFailed(
            f"The stored response {records[-1].key.id} cannot be read: {error.error_count()} errors."
        ) from None


def listed_items(records: Sequence[ResponseRecord]) -> list[Json]:
    """Inputs and outputs of responses that follow each other, as they are stored."""
    return [item for record in records for item in (*record.input, *record.response["output"])]


def check_count(items: Sequence[InputItem]) -> None:
    """Refusal when a conversation has more items than one request may bring."""
    if len(items) > MAX_MESSAGES:
        message = f"The conversation has {len(items)} items; {MAX_MESSAGES} are allowed."
        raise refuse(message, "input", "array_above_max_length")


def stored_items(items: Sequence[InputItem]) -> list[Json]:
    """The items of a request as they are stored and listed: each with an id, a type and a status."""
    return [_stored(item) for item in items]


def _stored(item: InputItem) -> Json:
    plain = item.model_dump(exclude_none=True, exclude={"parsed_arguments"})
    kind = plain.setdefault("type", "message")
    plain.setdefault("id", f"{PREFIXES[kind]}_{uuid.uuid4().hex}")
    plain.setdefault("status", "completed")
    if isinstance(item, InputMessage):
        parts = [item.content] if isinstance(item.content, str) else item.content
        plain["content"] = [_part(item.role, part) for part in parts]
    return plain


def _part(role: str, part: str | InputText | InputImage) -> Json:
    if isinstance(part, InputImage):
        return part.model_dump(exclude_none=True)
    text = part if isinstance(part, str) else part.text
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


PAGE, MOST_OF_A_PAGE = 20, 100
INCLUDED = get_args(Include)  # they change nothing here: what was answered has them, or never had


@dataclass(frozen=True, slots=True)
class EventsQuery:
    """How to read a response: as it is now, or the events behind one of this number."""

    is_stream: bool
    after: int


def reading_of(query: QueryParams) -> EventsQuery:
    """What a query asks for; Refusal naming the parameter."""
    _check_names(query, ("stream", "starting_after", "include", "include_obfuscation"))
    if _is_true(query, "include_obfuscation"):
        message = "Unsupported value: 'include_obfuscation' does not support true. Supported values are: false."
        raise refuse(message, "include_obfuscation", "unsupported_value")
    is_stream = _is_true(query, "stream")
    if "starting_after" in query and not is_stream:
        raise refuse("'starting_after' is only allowed when 'stream' is true.", "starting_after", "invalid_value")
    return EventsQuery(is_stream, _whole_number(query, "starting_after", -1))


@dataclass(frozen=True, slots=True)
class ItemsQuery:
    """Which items: at most `limit` behind the one named `after`."""

    limit: int
    is_ascending: bool
    after: str | None


def page_of(query: QueryParams) -> ItemsQuery:
    """The page that a query asks for; Refusal naming the parameter."""
    _check_names(query, ("limit", "order", "after", "include"))
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        message = f"Unsupported value: 'order' does not support {echo(order)}. Supported values are: 'asc' and 'desc'."
        raise refuse(message, "order", "unsupported_value")
    limit = _whole_number(query, "limit", PAGE)
    if not 1 <= limit <= MOST_OF_A_PAGE:
        side = "above the maximum of 100" if limit > 1 else "below the minimum of 1"
        code = f"integer_{'above_max' if limit > 1 else 'below_min'}_value"
        raise refuse(f"Invalid 'limit': {limit} is {side}.", "limit", code)
    return ItemsQuery(limit, order == "asc", query.get("after"))


def _check_names(query: QueryParams, known: Collection[str]) -> None:
    """SDKs write a list as include[]=a&include[]=b."""
    for name, value in query.multi_items():
        plain = name.removesuffix("[]")
        if plain not in known:
            raise refuse(f"Unknown parameter: {echo(name)}.", name[:64], "unknown_parameter")
        if plain == "include" and value not in INCLUDED:
            message = f"Unsupported value: 'include' does not support {echo(value)}."
            raise refuse(message, "include", "unsupported_value")


def _whole_number(query: QueryParams, name: str, default: int) -> int:
    """A parameter of the query that is a number of at most nine digits; Refusal naming it."""
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise refuse(
            f"Invalid type for '{name}': expected an integer, but got {echo(text)} instead.", name, "invalid_type"
        )
    return int(text)


def _is_true(query: QueryParams, name: str) -> bool:
    """A parameter of the query that is true or false; Refusal naming it."""
    text = query.get(name, "false")
    if text not in ("true", "false"):
        message = f"Invalid type for '{name}': expected a boolean, but got {echo(text)} instead."
        raise refuse(message, name, "invalid_type")
    return text == "true"


def item_page(items: Sequence[Json], page: ItemsQuery) -> ResponseItems:
    """OpenAI's list of these items, which are in the order of the conversation. Refusal for an unknown `after`."""
    ordered = list(items) if page.is_ascending else list(reversed(items))
    if page.after is not None:
        place = next((number for number, item in enumerate(ordered) if item["id"] == page.after), None)
        if place is None:
            raise refuse(f"No item with id {echo(page.after)} is in this response.", "after", "invalid_value")
        ordered = ordered[place + 1 :]
    shown = ordered[: page.limit]
    first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    return ResponseItems(data=shown, first_id=first, last_id=last, has_more=len(ordered) > len(shown))
