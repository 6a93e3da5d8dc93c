"""The queries of /v1/responses/{id}: which events, which page of items. What is not honoured is refused by name."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from starlette.datastructures import QueryParams

from server.http.errors import echo, refuse
from server.protocol.responses_request import Include
from server.stored.record import Json

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


def item_page(items: Sequence[Json], page: ItemsQuery) -> dict[str, Any]:
    """OpenAI's list of these items, which are in the order of the conversation. Refusal for an unknown `after`."""
    ordered = list(items) if page.is_ascending else list(reversed(items))
    if page.after is not None:
        place = next((number for number, item in enumerate(ordered) if item["id"] == page.after), None)
        if place is None:
            raise refuse(f"No item with id {echo(page.after)} is in this response.", "after", "invalid_value")
        ordered = ordered[place + 1 :]
    shown = ordered[: page.limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(ordered) > len(shown),
    }
