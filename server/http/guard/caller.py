"""The caller of a request: its name, its rate limits and the salt of its cached prefixes."""

import ipaddress
from dataclasses import dataclass
from hashlib import blake2b

from server.http.guard.rates import Limiter


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
        """Count tokens against its limit."""
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
