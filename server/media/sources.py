"""Where images may come from besides the request itself: what the setting `media` lists, and which addresses. Pure."""

import os
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from pathlib import Path

ANY = "*"
# Addresses of IPv6 whose last four bytes are an IPv4 address that a gateway leads to: RFC 6052, RFC 8215.
TRANSLATED = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class MediaSources:
    """hosts: names and addresses in lower case, perhaps ANY. folders: absolute."""

    hosts: frozenset[str] = frozenset()
    folders: tuple[Path, ...] = ()

    @classmethod
    def of(cls, text: str) -> "MediaSources":
        """A comma-separated list. ValueError, a sentence, for a part that is neither a host nor an absolute folder."""
        hosts, folders = set(), []
        for part in filter(None, (each.strip() for each in text.split(","))):
            folder = Path(os.path.expanduser(part))  # noqa: PTH111 (pathlib's raises where there is no such home)
            if folder.is_absolute():
                folders.append(folder)
            elif part == ANY or (not set("/@?#[] ") & set(part) and (":" not in part or _address(part))):
                hosts.add(str(_address(part) or part.lower().rstrip(".")))
            else:
                raise ValueError(f"'{part}' is neither a host without scheme, port and path nor an absolute folder")
        return cls(frozenset(hosts), tuple(folders))

    def takes_host(self, host: str) -> bool:
        """Whether images of this host are fetched, if its addresses may be reached."""
        return ANY in self.hosts or host.lower().rstrip(".") in self.hosts

    def reaches(self, address: str) -> bool:
        """Whether a host may lead to this address: a public one, or one that the setting lists itself."""
        return is_public(address) or address in self.hosts


def is_public(address: str) -> bool:
    """Whether an address belongs to the open internet, also when IPv6 only wraps it. False for what is no address."""
    found = _address(address)
    if isinstance(found, IPv6Address):
        inner = _wrapped(found)
        if inner is not None:
            found = inner
    return found is not None and found.is_global and not found.is_multicast and not found.is_reserved


def _wrapped(address: IPv6Address) -> IPv4Address | None:
    if address in TRANSLATED:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None
