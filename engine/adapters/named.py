"""The adapters that a setting names, and what tells their contents apart."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from engine.errors import BundleError
from engine.files import expanded, open_regular, reading
from engine.request import Request

CONFIG_FILE, TENSOR_FILE = "adapter_config.json", "adapter_model.safetensors"
MOST_ADAPTERS = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}", re.ASCII)


def named_adapters(setting: str) -> dict[str, Path]:
    """The folder of each adapter of `NAME=FOLDER,...`. ValueError says what is wrong with it."""
    found: dict[str, Path] = {}
    for part in filter(None, (part.strip() for part in setting.split(","))):
        name, separator, folder = (text.strip() for text in part.partition("="))
        if not (separator and folder):
            raise ValueError(f"{part!r} is not NAME=FOLDER")
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name for a model: letters, digits and . _ : / - only")
        if name in found:
            raise ValueError(f"two adapters are called {name}")
        try:
            found[name] = expanded(folder)
        except BundleError as error:
            raise ValueError(str(error)) from None
    if len(found) > MOST_ADAPTERS:
        raise ValueError(f"{len(found)} adapters were named, {MOST_ADAPTERS} is the most")
    return found


@dataclass(frozen=True, slots=True)
class AdapterSalts:
    """For each adapter bytes that change with its contents: keys and values of a prompt depend on them."""

    salts: Mapping[str, bytes]

    def salted(self, request: Request) -> Request:
        """The request, sharing cached prefixes with those of its adapter only. ValueError for an unknown one."""
        if not request.adapter:
            return request
        if request.adapter not in self.salts:
            raise ValueError(f"there is no adapter {request.adapter}")
        salt = hashlib.blake2b(self.salts[request.adapter], digest_size=32, key=request.cache_salt).digest()
        return replace(request, cache_salt=salt)


def read_salts(adapters: Mapping[str, Path]) -> AdapterSalts:
    """Of the adapters' files as they are now. BundleError names a file that cannot be read."""
    return AdapterSalts({name: _digest(name, folder) for name, folder in adapters.items()})


def _digest(name: str, folder: Path) -> bytes:
    seen = hashlib.sha256(name.encode())
    for file in (CONFIG_FILE, TENSOR_FILE):
        with reading(f"adapter {name}: {folder / file}"), open_regular(folder / file) as stream:
            seen.update(hashlib.file_digest(stream, "sha256").digest())
    return seen.digest()
