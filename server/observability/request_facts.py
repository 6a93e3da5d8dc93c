"""What the access log and traces tell of one HTTP request. Numbers and names only: no text of a prompt or an answer."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from engine.request import RequestTimings, SamplingParams

_KEY = "hexserve_facts"  # in the state of an ASGI scope


@dataclass(frozen=True, slots=True)
class Launched:
    """What was given to the engine. `at`: seconds of a monotonic clock.

    choices: sequences, of embeddings the inputs. params: of the first choice; None where vectors are wanted.
    """

    id: str
    model: str
    choices: int
    prompt_tokens: int
    params: SamplingParams | None
    at: float


@dataclass(frozen=True, slots=True)
class SequenceEnd:
    """One choice ended: stop, length, abort or error. `timings` are None when the engine did not end it."""

    reason: str
    timings: RequestTimings | None


@dataclass(slots=True)
class RequestFacts:
    """Filled while the request runs. Times are seconds of a monotonic clock."""

    started_at: float = field(default_factory=time.perf_counter)
    handler: str = "other"
    status: int = 0
    launched: Launched | None = None
    first_token_at: float | None = None
    ended: list[SequenceEnd] = field(default_factory=list)

    @property
    def timings(self) -> tuple[RequestTimings, ...]:
        return tuple(end.timings for end in self.ended if end.timings is not None)

    @property
    def guesses(self) -> tuple[int, int]:
        """Guessed tokens that were right, and all of them."""
        return sum(each.accepted_tokens for each in self.timings), sum(each.drafted_tokens for each in self.timings)

    def first_token(self) -> None:
        if self.first_token_at is None:
            self.first_token_at = time.perf_counter()


def facts_of(scope: Mapping[str, Any]) -> RequestFacts:
    """Those of the request with this ASGI scope; of one that nobody watches, new ones that nobody reads."""
    found = scope.get("state", {}).get(_KEY)
    return cast(RequestFacts, found) if found is not None else RequestFacts()


def watched(scope: Any) -> RequestFacts:
    """New facts of the request with this ASGI scope, where `facts_of` finds them."""
    facts = RequestFacts()
    scope.setdefault("state", {})[_KEY] = facts
    return facts
