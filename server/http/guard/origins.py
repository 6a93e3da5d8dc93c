"""Cross-origin requests: closed unless an origin is listed; never with credentials."""

import re
from collections.abc import Collection, Mapping

ANY = "*"
METHODS = "GET, HEAD, POST, DELETE"
EXPOSED = (
    "x-request-id, request-id, openai-processing-ms, retry-after, retry-after-ms, x-ratelimit-limit-requests, "
    "x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, "
    "x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)
MAX_AGE_S = 600
_HEADER_NAMES = re.compile(r"[\w!#$%&'*+.^`|~-]+( *, *[\w!#$%&'*+.^`|~-]+)*", re.ASCII)
_ORIGIN = re.compile(r"https?://[^\s/?#@,*]+|[a-z][a-z0-9+.-]*-extension://[^\s/?#@,*]+|null")
MAX_ASKED_CHARACTERS = 2048

Headers = tuple[tuple[str, str], ...]


def is_origin(text: str) -> bool:
    """Whether `text` is an origin as a browser sends it: scheme and host, no path."""
    return text == ANY or _ORIGIN.fullmatch(text) is not None


def answer_headers(origin: str | None, allowed: Collection[str]) -> Headers:
    """Headers of an answer to a request from `origin`; none for an origin that is not allowed."""
    if not allowed:
        return ()
    vary: Headers = () if ANY in allowed else (("Vary", "Origin"),)
    if origin is None or not (ANY in allowed or origin in allowed):
        return vary
    shown = ANY if ANY in allowed else origin
    return (("Access-Control-Allow-Origin", shown), ("Access-Control-Expose-Headers", EXPOSED), *vary)


def preflight_headers(method: str, headers: Mapping[str, str], allowed: Collection[str]) -> Headers | None:
    """Headers of the 204 that answers a preflight of an allowed origin; None when the request is anything else."""
    origin = headers.get("origin")
    if method != "OPTIONS" or origin is None or "access-control-request-method" not in headers:
        return None
    if not (ANY in allowed or origin in allowed):
        return None
    shown = answer_headers(origin, allowed)
    asked = headers.get("access-control-request-headers", "").strip()
    # Named one by one: the wildcard does not cover Authorization.
    if len(asked) <= MAX_ASKED_CHARACTERS and _HEADER_NAMES.fullmatch(asked):
        shown += (("Access-Control-Allow-Headers", asked),)
    return (*shown, ("Access-Control-Allow-Methods", METHODS), ("Access-Control-Max-Age", str(MAX_AGE_S)))
