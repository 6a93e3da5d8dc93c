"""Where a server is, and what every request to it carries."""

import ipaddress
from urllib.parse import urlsplit


class Unreachable(Exception):
    """Nothing usable answers at an address; the message says what came instead."""


class UnusableAddress(Unreachable):
    """No request can be made of the address, or of the key that goes with it."""


def root_address(url: str) -> str:
    """The address without a trailing slash or /v1. Raises UnusableAddress when it is no http address."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that do not close, a port that is no port
        is_usable = False
    if not is_usable or not url.isprintable() or " " in url:
        raise UnusableAddress(f"{url!r} is not an http address")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def may_use_proxy(url: str) -> bool:
    """False for this machine's own addresses, which no proxy of the environment can reach."""
    host = urlsplit(url).hostname or ""
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def headers_for(api_key: str) -> dict[str, str]:
    """Headers of every request; no compression, which would delay small chunks. Raises UnusableAddress."""
    if not (api_key.isascii() and api_key.isprintable()):
        raise UnusableAddress("the API key must be printable ASCII characters")
    return {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
