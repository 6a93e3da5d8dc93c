"""Model names with tags: `demo:latest` is `demo`."""

from collections.abc import Collection, Iterable

from server.models.served_model import ServedModel

LATEST = ":latest"


def untagged(name: str, served: Collection[str]) -> str:
    """The served name that is meant; a name that nobody has stays as it is, for the refusal."""
    bare = name.removesuffix(LATEST)
    return bare if name not in served and bare in served else name


def served_name(models: Iterable[ServedModel], name: str) -> str:
    """The same over all models of a server and their adapters."""
    return untagged(name, [known for model in models for known in model.names])


def tagged(name: str) -> str:
    """A served name as Ollama lists it; clients add the tag themselves and then look for the result in the list."""
    return name if ":" in name else name + LATEST
