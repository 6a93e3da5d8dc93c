"""API keys and callers. Keys are read once, kept as SHA-256 digests and compared in constant time."""

import codecs
import hmac
import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path

from engine.files import TEXT_BYTES, read_bytes
from server.middleware.limits import Limiter

ADVICE = "save it as UTF-8 without a byte order mark"
MARKS = (
    (codecs.BOM_UTF8, "it begins with a UTF-8 byte order mark"),
    (codecs.BOM_UTF32_LE, "it is UTF-32"),  # begins like UTF-16, so it is asked first
    (codecs.BOM_UTF32_BE, "it is UTF-32"),
    (codecs.BOM_UTF16_LE, "it is UTF-16"),
    (codecs.BOM_UTF16_BE, "it is UTF-16"),
)


class NotUtf8(ValueError):
    """A text file in another encoding; the message says which one it seems to be."""


def read_text_file(path: Path) -> str:
    """The whole of a UTF-8 file. Raises NotUtf8, or OSError when it cannot be read."""
    content = read_bytes(path, TEXT_BYTES)
    for mark, finding in MARKS:
        if content.startswith(mark):
            raise NotUtf8(f"{finding}; {ADVICE}")
    if b"\0" in content:
        raise NotUtf8(f"it holds zero bytes, as UTF-16 does; {ADVICE}")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise NotUtf8(f"it is not UTF-8; {ADVICE}") from None


HASHED = "sha256:"
KEY_PROTOCOL = "openai-insecure-api-key."  # as OpenAI's SDK names the key in a browser
MAX_KEYS = 1000  # all of them are compared, for every request
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_KEY = re.compile(r"[\x21-\x7e]{1,512}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


class KeyFileError(Exception):
    """A key cannot be used; the message says where it stands and never what it is."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key: what the log calls its owner, and the SHA-256 of the key."""

    name: str
    digest: bytes


class KeyRing:
    """All keys. Empty = the server is open."""

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        """Raises KeyFileError for a name or a key that is there twice."""
        self._keys = tuple(keys)
        names = [key.name for key in self._keys]
        for name in names:
            if names.count(name) > 1:
                raise KeyFileError(f"the name {name!r} has two API keys")
        if len({key.digest for key in self._keys}) < len(self._keys):
            raise KeyFileError("an API key is there twice, under two names")

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
    """Keys of a comma-separated list and of a file with one per line; both may be empty. Raises KeyFileError.

    An entry is `name:key`, `name:sha256:<64 hex digits>` or a bare `key`, whose name is then its place.
    """
    entries = [(f"key-{number}", part.strip()) for number, part in enumerate(listed.split(","), 1)]
    keys = [_key(place, text, f"api_keys, entry {number}") for number, (place, text) in enumerate(entries, 1) if text]
    if listed and not keys:
        raise KeyFileError("api_keys is set but has no key in it; leave it empty to serve without keys")
    if file:
        try:
            lines = read_text_file(Path(file)).splitlines()
        except (OSError, NotUtf8) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise KeyFileError(f"the API key file {file} cannot be read: {reason}") from None
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if text and not text.startswith("#"):
                keys.append(_key(f"line-{number}", text, f"{file}, line {number}"))
        if not keys:
            raise KeyFileError(f"the API key file {file} has no key in it")
    if len(keys) > MAX_KEYS:
        raise KeyFileError(f"{len(keys)} API keys are given; {MAX_KEYS} are allowed")
    return KeyRing(keys)


def _key(place: str, text: str, origin: str) -> ApiKey:
    name, colon, key = text.partition(":")
    if not colon:
        name, key = place, text
    if f"{name}:" == HASHED:
        raise KeyFileError(f"{origin}: a digest needs a name before it, as in anna:{HASHED}...")
    if not _NAME.fullmatch(name):
        raise KeyFileError(f"{origin}: a name has 1 to 64 letters, digits and _ . @ -")
    if key.startswith(HASHED):
        digest = key.removeprefix(HASHED)
        if not _DIGEST.fullmatch(digest):
            raise KeyFileError(f"{origin}: 64 hexadecimal digits must follow {HASHED}")
        return ApiKey(name, bytes.fromhex(digest))
    if not _KEY.fullmatch(key):
        raise KeyFileError(f"{origin}: a key has 1 to 512 printable ASCII characters without spaces")
    return ApiKey(name, sha256(key.encode("ascii")).digest())


def offered_keys(headers: Mapping[str, str], subprotocols: Iterable[str] = ()) -> list[str]:
    """The keys a request shows: `Authorization: Bearer`, `x-api-key` (Anthropic's) or `api-key` (Azure's).

    subprotocols: of a WebSocket, for which browsers let nobody set a header.
    """
    scheme, _, token = headers.get("authorization", "").strip().partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    named = [name.removeprefix(KEY_PROTOCOL) for name in subprotocols if name.startswith(KEY_PROTOCOL)]
    return [key for key in (bearer, headers.get("x-api-key", ""), headers.get("api-key", ""), *named) if key]


@dataclass(frozen=True, slots=True)
class Caller:
    """One caller: `name` is the name of its key or its address; `cache_salt` keeps its cached prefixes apart.

    owner: who its stored responses belong to, the same after a restart. Another key of the same name is somebody else.
    """

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
