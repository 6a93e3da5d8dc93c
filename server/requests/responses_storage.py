"""What a request of /v1/responses wants to be stored, and the items of those it follows."""

import uuid
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pydantic import TypeAdapter, ValidationError

from server.http.errors import StorageFailed, refuse
from server.protocol.fields import MAX_MESSAGES
from server.protocol.responses_request import InputItem, InputMessage, ResponsesRequest
from server.stored.record import Json, ResponseRecord
from server.stored.storing import Storing

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


def storing(body: ResponsesRequest, is_on: bool, is_from_front: bool = False) -> Storing:
    """What to store; Refusal naming the field. is_on: responses are stored, also where `store` is absent.

    is_from_front: the request comes with a resumption, whose id another response may have, perhaps of another caller.
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
    if is_from_front and body.store is not False:
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
        texts = [item.content] if isinstance(item.content, str) else [part.text for part in item.content]
        plain["content"] = [_part(item.role, text) for text in texts]
    return plain


def _part(role: str, text: str) -> Json:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}
