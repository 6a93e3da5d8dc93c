"""Answers that another server can go on with: what a gateway gives with a request, and what it notes while it streams.

A gateway sends `{"request": body, "resumption": {...}}` as RESUMABLE. Behind the chunks of each group of tokens a
stream then has a comment `: delivered [...]` with those tokens, which readers of events ignore. When the server is
lost, the gateway sends the same again with all that was delivered: the tokens are computed as part of the prompt, not
said again.
"""

import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from engine.request import Delivered, FinishReason
from server.generation.stream import ChoiceDelta
from server.http.errors import refuse

RESUMABLE = "application/vnd.hexserve.resumable+json"
PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})  # whose streams have the comments
COMMENT = b": delivered "
MOST_CHOICES, MOST_TOKENS = 1024, 1 << 20
Word = Annotated[str, Meta(min_length=8, max_length=64, pattern="^[0-9a-zA-Z_-]+$")]
TokenId = Annotated[int, Meta(ge=0, lt=1 << 31)]


class DeliveredChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Tokens of one choice, in order; finish and stopped_by of the last of them, if it was the last of the answer.

    events: of the whole stream so far, where its format numbers them.
    """

    choice: Annotated[int, Meta(ge=0, lt=MOST_CHOICES)]
    token_ids: Annotated[tuple[TokenId, ...], Meta(max_length=MOST_TOKENS)]
    finish: FinishReason | None = None
    stopped_by: str | int | None = None
    events: Annotated[int, Meta(ge=0, lt=1 << 31)] = 0


class Resumption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What must be the same on every server that works at an answer, and what its client has of it already.

    seed: for requests that bring none. created: Unix seconds.
    """

    id: Word
    created: Annotated[int, Meta(ge=0, lt=1 << 40)]
    seed: Annotated[int, Meta(ge=0, lt=1 << 32)]
    delivered: Annotated[tuple[DeliveredChoice, ...], Meta(max_length=MOST_CHOICES)] = ()

    @classmethod
    def new(cls) -> "Resumption":
        """Of an answer that begins now."""
        return cls(secrets.token_hex(16), int(time.time()), secrets.randbits(32))

    def of(self, choice: int) -> Delivered | None:
        """What was delivered of a choice; None when nothing was."""
        for each in self.delivered:
            if each.choice == choice:
                return Delivered(each.token_ids, each.finish, each.stopped_by)
        return None

    @property
    def events(self) -> int:
        """Events that the client has of a stream which numbers them."""
        return max((each.events for each in self.delivered), default=0)

    def with_more(self, groups: Iterable[DeliveredChoice]) -> "Resumption":
        """The same answer when these groups have been delivered too, in order."""
        known = {each.choice: each for each in self.delivered}
        for group in groups:
            before = known.get(group.choice)
            ids = group.token_ids if before is None else before.token_ids + group.token_ids
            known[group.choice] = msgspec.structs.replace(group, token_ids=ids)
        return msgspec.structs.replace(self, delivered=tuple(known.values()))


def unwrapped(body: dict[str, Any]) -> tuple[dict[str, Any], Resumption]:
    """The request inside, and its resumption; Refusal 400 naming what is wrong with it."""
    if set(body) != {"request", "resumption"} or not isinstance(body["request"], dict):
        raise refuse(f"A body of the type {RESUMABLE} has the objects 'request' and 'resumption', nothing else.")
    try:
        resumption = msgspec.convert(body["resumption"], Resumption)
    except msgspec.ValidationError as error:
        raise refuse(f"'resumption' is not valid: {error}", "resumption", "invalid_value") from None
    choices = [each.choice for each in resumption.delivered]
    if len(set(choices)) < len(choices):
        raise refuse("'resumption.delivered' names a choice twice.", "resumption", "invalid_value")
    return body["request"], resumption


def comment(deltas: Sequence[ChoiceDelta], events: int = 0) -> bytes:
    """What a gateway has to note once it has passed on the chunks of these deltas: one line and an empty one.

    events: of the stream so far, where its format numbers them.
    """
    told = [
        DeliveredChoice(number, delta.token_ids, delta.finish, delta.stopped_by, events) for number, delta in deltas
    ]
    return COMMENT + msgspec.json.encode(told) + b"\n\n"


def noted(line: bytes) -> tuple[DeliveredChoice, ...] | None:
    """What a comment line says; None for any other line."""
    if not line.startswith(COMMENT):
        return None
    return msgspec.json.decode(line[len(COMMENT) :], type=tuple[DeliveredChoice, ...])
