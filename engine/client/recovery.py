"""Requests between submission and their last token, and which of them a dead worker is charged to. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.errors import InvalidRequest
from engine.request import Delivered, Request

MOST_DEATHS = 3
FORGIVEN_AFTER_TOKENS = 64


@dataclass(slots=True)
class PendingRequest:
    """Progress of one unfinished request, as the server process knows it. `is_sent` is about the current worker.
    caches: file of what another device computed of it, "" = none, or it is used up; writing it took `caches_ms`.
    was_moved: whether it began there. is_resumed: whether the current worker has not computed all of it."""

    request: Request
    emitted: list[int] = field(default_factory=list)
    caches: str = ""
    caches_ms: float = 0.0
    was_moved: bool = False
    is_resumed: bool = False
    deaths: int = 0
    is_sent: bool = False
    has_progressed: bool = False  # with the current worker
    tokens_since_death: int = 0

    def progress(self, token_ids: Iterable[int]) -> None:
        """Take in new tokens. After enough of them since a death, that death was not its doing and no longer counts."""
        before = len(self.emitted)
        self.emitted.extend(token_ids)
        self.has_progressed = True
        self.tokens_since_death += len(self.emitted) - before
        if self.tokens_since_death >= FORGIVEN_AFTER_TOKENS:
            self.deaths = 0

    @property
    def tokens(self) -> int:
        """Of the prompt and of the answer so far."""
        return len(self.request.prompt_ids) + len(self.emitted)

    @property
    def is_suspect(self) -> bool:
        """True when one more death would fail it and it has no token yet from the worker that runs now."""
        return self.deaths == MOST_DEATHS - 1 and not self.has_progressed


def check_delivered(delivered: Delivered, max_tokens: int, vocabulary: int) -> None:
    """InvalidRequest unless an answer of at most so many tokens can go on behind what was delivered of it."""
    count = len(delivered.token_ids)
    if count > max_tokens or (count == max_tokens and delivered.finish is None):
        raise InvalidRequest(f"{count} tokens were delivered, the answer has at most {max_tokens}.", "resumption")
    if max(delivered.token_ids, default=0) >= vocabulary:
        raise InvalidRequest("A token that was delivered is not of this model.", "resumption")


def next_to_send(pendings: Iterable[PendingRequest]) -> list[PendingRequest]:
    """Requests to give to the worker now: all unsent ones, unless there are suspects. Requests that were charged twice
    are tried one by one, each until its next token and before anything else is sent: so the third death is charged to
    the request that kills the worker, and to no other."""
    unfinished = list(pendings)
    suspects = [pending for pending in unfinished if pending.is_suspect]
    if not suspects:
        return [pending for pending in unfinished if not pending.is_sent]
    return [] if any(suspect.is_sent for suspect in suspects) else suspects[:1]


def charge_death(pendings: Iterable[PendingRequest]) -> list[PendingRequest]:
    """Count a death of the worker and make all requests unsent; returns those that died too often. It counts against
    the suspect that the worker had, if there was one, else against every request that it had."""
    unfinished = list(pendings)
    sent = [pending for pending in unfinished if pending.is_sent]
    charged = [pending for pending in sent if pending.is_suspect] or sent
    for pending in charged:
        pending.deaths += 1
        pending.tokens_since_death = 0
    for pending in unfinished:
        pending.caches = "" if pending.is_sent else pending.caches
        pending.is_resumed |= pending.is_sent
        pending.is_sent = pending.has_progressed = False
    return [pending for pending in charged if pending.deaths >= MOST_DEATHS]
