"""API keys and callers, and what each may ask for in a minute and at once. Keys are read once, kept as SHA-256 digests
and compared in constant time; errors say where a key stands and never what it is. The limits are pure: time is an
argument."""

import codecs
import hmac
import ipaddress
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path

from engine.errors import UnusableInput
from engine.files import TEXT_BYTES, read_bytes

MINUTE_S = 60.0
LONGEST_WAIT_S = 60.0  # client libraries ignore a Retry-After that is much longer
MAX_REMEMBERED = 10_000
Headers = tuple[tuple[str, str], ...]
ADVICE = "save it as UTF-8 without a byte order mark"
MARKS = (
    ((codecs.BOM_UTF8,), "it begins with a UTF-8 byte order mark"),
    ((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "it is UTF-32"),  # begins like UTF-16, so it is asked first
    ((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "it is UTF-16"),
)
HASHED = "sha256:"
KEY_PROTOCOL = "openai-insecure-api-key."  # as OpenAI's SDK names the key in a browser
MAX_KEYS = 1000  # all of them are compared, for every request
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_KEY = re.compile(r"[\x21-\x7e]{1,512}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


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
        self._level = min(self.capacity, self._level + max(0.0, now - self._at) * self.capacity / MINUTE_S)
        self._at = max(self._at, now)
        return self._level

    def take(self, amount: float, now: float) -> None:
        self._level = self.level(now) - amount

    def wait_s(self, amount: float, now: float) -> float:
        return max(0.0, (amount - self.level(now)) * MINUTE_S / self.capacity)


class Account:
    def __init__(self, rates: Rates, now: float) -> None:
        self.inside = 0
        self._most = rates.max_concurrent
        limits = {"requests": rates.requests_per_minute, "tokens": rates.tokens_per_minute}
        self._buckets = {kind: Bucket(limit, now) for kind, limit in limits.items() if limit}

    def denial(self, now: float) -> Denial | None:
        """Why a request that came now must wait; None when it may go on."""
        if self._most and self.inside >= self._most:
            return Denial(f"You have {self.inside} requests running and {self._most} are allowed.", 1.0)
        for kind, bucket in self._buckets.items():
            if bucket.level(now) < 1:
                return Denial(f"Rate limit reached: {int(bucket.capacity)} {kind} per minute.", bucket.wait_s(1, now))
        return None

    def spend(self, kind: str, amount: int, now: float) -> None:
        """Count requests, or tokens of a prompt or an answer. What is beyond the limit is paid back by waiting."""
        if kind in self._buckets:
            self._buckets[kind].take(amount, now)

    def headers(self, now: float) -> Headers:
        """OpenAI's x-ratelimit-* headers for the limits there are."""
        shown: list[tuple[str, str]] = []
        for kind, bucket in self._buckets.items():
            left = max(0, math.floor(bucket.level(now)))
            shown.append((f"x-ratelimit-limit-{kind}", str(int(bucket.capacity))))
            shown.append((f"x-ratelimit-remaining-{kind}", str(left)))
            shown.append((f"x-ratelimit-reset-{kind}", f"{bucket.wait_s(bucket.capacity, now):.3f}s"))
        return tuple(shown)


class Limiter:
    """The accounts of all callers. Those with nothing running are forgotten, longest idle first, beyond `remembered`. A
    caller that is forgotten starts with full buckets again; with keys there are never more callers than keys."""

    def __init__(self, rates: Rates, clock: Callable[[], float], remembered: int = MAX_REMEMBERED) -> None:
        self.rates, self._clock, self._remembered = rates, clock, remembered
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
        account = self._busy.pop(caller, None) or self._idle.pop(caller, None) or Account(self.rates, now)
        denial = account.denial(now)
        if denial is None:
            account.inside += 1
            account.spend("requests", 1, now)
        self._put(caller, account)
        return denial

    def leave(self, caller: str) -> None:
        account = self._busy.pop(caller)
        account.inside -= 1
        self._put(caller, account)

    def spend(self, caller: str, tokens: int) -> None:
        """Count tokens; of a caller forgotten meanwhile nothing is counted."""
        account = self._busy.get(caller) or self._idle.get(caller)
        if account is not None:
            account.spend("tokens", tokens, self._clock())

    def headers(self, caller: str) -> Headers:
        """x-ratelimit-* headers of a caller; none when it is not known."""
        account = self._busy.get(caller) or self._idle.get(caller)
        return account.headers(self._clock()) if account is not None else ()

    def _put(self, caller: str, account: Account) -> None:
        (self._busy if account.inside else self._idle)[caller] = account
        while len(self._idle) > self._remembered:
            self._idle.popitem(last=False)


class NotUtf8(ValueError):
    """A text file in another encoding; the message says which one it seems to be."""


def read_text_file(path: Path) -> str:
    """The whole of a UTF-8 file. Raises NotUtf8, or OSError when it cannot be read."""
    content = read_bytes(path, TEXT_BYTES)
    for marks, finding in MARKS:
        if content.startswith(marks):
            raise NotUtf8(f"{finding}; {ADVICE}")
    if b"\0" in content:
        raise NotUtf8(f"it holds zero bytes, as UTF-16 does; {ADVICE}")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise NotUtf8(f"it is not UTF-8; {ADVICE}") from None


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key: what the log calls its owner, and the SHA-256 of the key."""

    name: str
    digest: bytes


class KeyRing:
    """All keys. Empty = the server is open."""

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        """Raises UnusableInput for a name or a key that is there twice."""
        self._keys = tuple(keys)
        names = [key.name for key in self._keys]
        for name in names:
            if names.count(name) > 1:
                raise UnusableInput(f"the name {name!r} has two API keys")
        if len({key.digest for key in self._keys}) < len(self._keys):
            raise UnusableInput("an API key is there twice, under two names")

    def __len__(self) -> int:
        return len(self._keys)

    def identity(self, name: str) -> str:
        """What tells the key of this name from every other one; it does not say what the key is."""
        digest = next(key.digest for key in self._keys if key.name == name)
        return blake2b(digest, digest_size=16, person=b"stored responses").hexdigest()

    def owner(self, offered: Iterable[str]) -> str | None:
        """Name of the first offered key that is ours. Every key is compared, whichever it is (CVE-2025-59425)."""
        found = None
        for text in offered:
            digest = sha256(text.encode("latin-1", "replace")).digest()
            for key in self._keys:
                if hmac.compare_digest(key.digest, digest) and found is None:
                    found = key.name
        return found


def read_keys(listed: str, file: str) -> KeyRing:
    """Keys of a comma-separated list and of a file with one per line; both may be empty. Raises UnusableInput. An entry
    is `name:key`, `name:sha256:<64 hex digits>` or a bare `key`, whose name is then its place."""
    entries = [(number, part.strip()) for number, part in enumerate(listed.split(","), 1)]
    keys = [_key(f"key-{number}", text, f"api_keys, entry {number}") for number, text in entries if text]
    if listed and not keys:
        raise UnusableInput("api_keys is set but has no key in it; leave it empty to serve without keys")
    if file:
        try:
            lines = read_text_file(Path(file)).splitlines()
        except (OSError, NotUtf8) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UnusableInput(f"the API key file {file} cannot be read: {reason}") from None
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if text and not text.startswith("#"):
                keys.append(_key(f"line-{number}", text, f"{file}, line {number}"))
        if not keys:
            raise UnusableInput(f"the API key file {file} has no key in it")
    if len(keys) > MAX_KEYS:
        raise UnusableInput(f"{len(keys)} API keys are given; {MAX_KEYS} are allowed")
    return KeyRing(keys)


def _key(place: str, text: str, origin: str) -> ApiKey:
    name, colon, key = text.partition(":")
    if not colon:
        name, key = place, text
    if f"{name}:" == HASHED:
        raise UnusableInput(f"{origin}: a digest needs a name before it, as in anna:{HASHED}...")
    if not _NAME.fullmatch(name):
        raise UnusableInput(f"{origin}: a name has 1 to 64 letters, digits and _ . @ -")
    if key.startswith(HASHED):
        digest = key.removeprefix(HASHED)
        if not _DIGEST.fullmatch(digest):
            raise UnusableInput(f"{origin}: 64 hexadecimal digits must follow {HASHED}")
        return ApiKey(name, bytes.fromhex(digest))
    if not _KEY.fullmatch(key):
        raise UnusableInput(f"{origin}: a key has 1 to 512 printable ASCII characters without spaces")
    return ApiKey(name, sha256(key.encode("ascii")).digest())


def offered_keys(headers: Mapping[str, str], subprotocols: Iterable[str] = ()) -> list[str]:
    """The keys a request shows: `Authorization: Bearer`, `x-api-key` (Anthropic's) or `api-key` (Azure's).
    subprotocols: of a WebSocket, for which browsers let nobody set a header."""
    scheme, _, token = headers.get("authorization", "").strip().partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    named = [name.removeprefix(KEY_PROTOCOL) for name in subprotocols if name.startswith(KEY_PROTOCOL)]
    return [key for key in (bearer, headers.get("x-api-key", ""), headers.get("api-key", ""), *named) if key]


@dataclass(frozen=True, slots=True)
class Caller:
    """One caller: `name` is the name of its key or its address; `cache_salt` keeps its cached prefixes apart. owner:
    who its stored responses belong to, the same after a restart. Another key of the same name is somebody else."""

    name: str
    limiter: Limiter
    cache_salt: bytes = b""
    owner: str = ""

    def spend(self, tokens: int) -> None:
        self.limiter.spend(self.name, tokens)


def address_name(client: tuple[str, int] | None) -> str:
    """What limits are counted for: an IPv4 address, or the /64 network of an IPv6 one (a host can take any in it)."""
    if client is None:
        return "unknown"
    try:
        address = ipaddress.ip_address(client[0].partition("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def salt_of(secret: bytes, name: str) -> bytes:
    """16 bytes that only this process can tell, different for each caller."""
    return blake2b(name.encode(), key=secret, digest_size=16).digest()
