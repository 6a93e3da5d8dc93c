"""Other names for the graphs of a context binary, in place.

The provider names graphs by a hash; Genie wants `ar<rows>_cl<columns>_<part>_of_<parts>` as soon as there are several
parts. A name is stored as text without a checksum, so one of equal length can take its place (read back by QnnSystem
and run by the HTP emulator, QNN 2.51).
"""

import mmap
from collections.abc import Mapping
from pathlib import Path

from engine.errors import BundleError

FILLER = "hexserve"


def padded(name: str, length: int) -> str:
    """A graph name with letters in front so that it has `length` characters. BundleError when it is too long."""
    room = length - len(name) - 1
    if room < 1:
        raise BundleError(f"graph name {name} does not fit into {length} characters")
    return f"{(FILLER * room)[:room]}_{name}"


def rename_graphs(path: Path, names: Mapping[str, str]) -> None:
    """Replace names, old to new, wherever they stand in a binary or a wrapper. BundleError when one is not there."""
    for old, new in names.items():
        if len(old.encode()) != len(new.encode()):
            raise BundleError(f"graph name {new} must be as long as {old}")
    with path.open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as content:
        for old, new in names.items():
            position = content.find(old.encode())
            if position < 0:
                raise BundleError(f"{path.name} has no graph named {old}")
            while position >= 0:
                content[position : position + len(old)] = new.encode()
                position = content.find(old.encode(), position)
