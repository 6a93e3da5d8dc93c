"""Which Host a request may name, and which origins a browser may ask from."""

import ipaddress
import re
from collections.abc import Collection

ANY = "*"
METHODS = ("GET", "HEAD", "POST", "DELETE")
EXPOSED = (
    *("x-request-id", "request-id", "openai-processing-ms", "retry-after", "retry-after-ms"),
    *(f"x-ratelimit-{part}-{kind}" for part in ("limit", "remaining", "reset") for kind in ("requests", "tokens")),
)
_ORIGIN = re.compile(r"https?://[^\s/?#@,*]+|[a-z][a-z0-9+.-]*-extension://[^\s/?#@,*]+|null")


def is_loopback(host: str) -> bool:
    """True for localhost, names under it, and loopback addresses (IPv6 with or without brackets)."""
    bare = host.removeprefix("[").removesuffix("]")
    if bare == "localhost" or bare.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return False
    return bool((getattr(address, "ipv4_mapped", None) or address).is_loopback)


def host_name(header: str) -> str:
    """The name of a Host header: lower case, without port and trailing dot."""
    text = header.strip().lower()
    return text.partition("]")[0] + "]" if text.startswith("[") else text.partition(":")[0].removesuffix(".")


def host_is_allowed(header: str | None, allowed: Collection[str], arrived_on_loopback: bool) -> bool:
    """Whether to serve a request with this Host. allowed: names without ports, or `*`; empty = only requests on a
    loopback listener are checked. A loopback name is always allowed. No Host at all (HTTP/1.0) comes from no
    browser."""
    if header is None or ANY in allowed or not (allowed or arrived_on_loopback):
        return True
    name = host_name(header)
    return is_loopback(name) or name in allowed


def same_origin(origin: str, host: str | None) -> bool:
    """Whether a page of this origin comes from the Host that it asks."""
    return host is not None and origin.partition("://")[2].lower() == host.strip().lower()


def is_origin(text: str) -> bool:
    """Whether `text` is an origin as a browser sends it: scheme and host, no path."""
    return text == ANY or _ORIGIN.fullmatch(text) is not None
