"""Requests and tokens per minute and requests at once, per caller. Pure: time comes in as an argument."""

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MINUTE_S = 60.0
LONGEST_WAIT_S = 60.0  # client libraries ignore a Retry-After that is much longer
MAX_REMEMBERED = 10_000
Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Rates:
    """Limits of one caller; 0 = none. A full minute's worth may come at once."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    max_concurrent: int = 0

    @property
    def any(self) -> bool:
        return bool(self.requests_per_minute or self.tokens_per_minute or self.max_concurrent)


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a caller must wait, and for how many seconds."""

    message: str
    wait_s: float


class Bucket:
    """A token bucket: holds at most a minute's worth and fills at a steady rate. It may go into debt."""

    def __init__(self, per_minute: int, now: float) -> None:
        self.capacity = float(per_minute)
        self._level = self.capacity
        self._at = now

    def level(self, now: float) -> float:
        """What is in it at `now` (seconds of one monotonic clock)."""
        elapsed = max(0.0, now - self._at)
        self._level = min(self.capacity, self._level + elapsed * self.capacity / MINUTE_S)
        self._at = max(self._at, now)
        return self._level

    def take(self, amount: float, now: float) -> None:
        """Take `amount` out, also below zero."""
        self._level = self.level(now) - amount

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until `amount` is in it."""
        return max(0.0, (amount - self.level(now)) * MINUTE_S / self.capacity)


class Account:
    def __init__(self, rates: Rates, now: float) -> None:
        self.inside = 0
        self._rates = rates
        self._requests = Bucket(rates.requests_per_minute, now) if rates.requests_per_minute else None
        self._tokens = Bucket(rates.tokens_per_minute, now) if rates.tokens_per_minute else None

    def denial(self, now: float) -> Denial | None:
        """Why a request that came now must wait; None when it may go on."""
        rates = self._rates
        if rates.max_concurrent and self.inside >= rates.max_concurrent:
            return Denial(f"You have {self.inside} requests running and {rates.max_concurrent} are allowed.", 1.0)
        if self._requests is not None and self._requests.level(now) < 1:
            text = f"Rate limit reached: {rates.requests_per_minute} requests per minute."
            return Denial(text, self._requests.wait_s(1, now))
        if self._tokens is not None and self._tokens.level(now) < 1:
            text = f"Rate limit reached: {rates.tokens_per_minute} tokens per minute."
            return Denial(text, self._tokens.wait_s(1, now))
        return None

    def enter(self, now: float) -> None:
        self.inside += 1
        if self._requests is not None:
            self._requests.take(1, now)

    def spend(self, tokens: int, now: float) -> None:
        """Count tokens of a prompt or an answer. What is spent beyond the limit is paid back by waiting."""
        if self._tokens is not None:
            self._tokens.take(tokens, now)

    def headers(self, now: float) -> Headers:
        """OpenAI's x-ratelimit-* headers for the limits there are."""
        shown: list[tuple[str, str]] = []
        for kind, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                left = max(0, math.floor(bucket.level(now)))
                shown.append((f"x-ratelimit-limit-{kind}", str(int(bucket.capacity))))
                shown.append((f"x-ratelimit-remaining-{kind}", str(left)))
                shown.append((f"x-ratelimit-reset-{kind}", f"{bucket.wait_s(bucket.capacity, now):.3f}s"))
        return tuple(shown)


class Limiter:
    """The accounts of all callers. Those with nothing running are forgotten, longest idle first, beyond `remembered`.

    A caller that is forgotten starts with full buckets again; with keys there are never more callers than keys.
    """

    def __init__(self, rates: Rates, clock: Callable[[], float], remembered: int = MAX_REMEMBERED) -> None:
        self.rates = rates
        self._clock = clock
        self._remembered = remembered
        self._busy: dict[str, Account] = {}
        self._idle: OrderedDict[str, Account] = OrderedDict()

    def __len__(self) -> int:
        return len(self._busy) + len(self._idle)

    @property
    def busy(self) -> int:
        return len(self._busy)

    def enter(self, caller: str) -> Denial | None:
        """Let a request of `caller` in, or say why not; each that was let in must `leave`."""
        now = self._clock()
        account = self._busy.get(caller) or self._idle.pop(caller, None) or Account(self.rates, now)
        denial = account.denial(now)
        if denial is None:
            account.enter(now)
        if account.inside:
            self._busy[caller] = account
        else:
            self._rest(caller, account)
        return denial

    def leave(self, caller: str) -> None:
        account = self._busy[caller]
        account.inside -= 1
        if not account.inside:
            del self._busy[caller]
            self._rest(caller, account)

    def spend(self, caller: str, tokens: int) -> None:
        """Count tokens; of a caller forgotten meanwhile nothing is counted."""
        account = self._busy.get(caller) or self._idle.get(caller)
        if account is not None:
            account.spend(tokens, self._clock())

    def headers(self, caller: str) -> Headers:
        """x-ratelimit-* headers of a caller; none when it is not known."""
        account = self._busy.get(caller) or self._idle.get(caller)
        return account.headers(self._clock()) if account is not None else ()

    def _rest(self, caller: str, account: Account) -> None:
        self._idle[caller] = account
        self._idle.move_to_end(caller)
        while len(self._idle) > self._remembered:
            self._idle.popitem(last=False)
