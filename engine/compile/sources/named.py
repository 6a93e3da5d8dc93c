"""What `hexserve compile` is given a name of: the files, and what differs for a shipped model."""

from dataclasses import dataclass
from pathlib import Path

from engine.demo.location import SHIPPED
from engine.sources.fetched import locate

DEMO_PARITY_TOKENS = 800


@dataclass(frozen=True, slots=True)
class NamedSource:
    """What a source on the command line stands for. name: of the model, "" = the folder's."""

    folder: Path
    name: str
    parity_tokens: int


def named_source(text: str, cache: Path) -> NamedSource:
    """A checkpoint of any name that `locate` knows, or a shipped model, which is small enough for a check on much text.

    Raises BundleError for what cannot be fetched.
    """
    if text in SHIPPED:
        return NamedSource(SHIPPED[text](), text, DEMO_PARITY_TOKENS)
    found = locate(text, cache)
    return NamedSource(found.path, found.name, 0)
