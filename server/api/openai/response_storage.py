"""What a request of /v1/responses wants to be stored, the items it follows, and queries of stored responses."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError
from starlette.datastructures import QueryParams

from server.api.body import validated
from server.api.openai.response_answer import ResponseItems
from server.api.openai.response_request import Include, InputImage, InputItem, InputMessage, InputText, ResponsesRequest
from server.http.errors import StorageFailed, echo, refuse
from server.http.fields import MAX_MESSAGES, Body
from server.stored_responses.database import Json, ResponseRecord

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


@dataclass(frozen=True, slots=True)
class Storing:
    """is_kept: the response is stored. is_background: it goes on without its client. previous: what it follows."""

    is_kept: bool = False
    is_background: bool = False
    previous: str | None = None


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


class StoredQuery(Body):
    """Base of queries. include: it changes nothing here, as what was answered has it, or never had."""

    include: list[Include] | None = None


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
