"""One model of the server: its engine, and how many requests keep it from being unloaded."""

from collections.abc import Iterator
from contextlib import contextmanager

from server.engine_seam import EngineLike
from server.settings import Settings


class ServedModel:
    """A model with settings of its own. It owns its engine, and is owned by one event loop."""

    def __init__(self, settings: Settings, engine: EngineLike) -> None:
        self.settings = settings
        self.engine = engine
        self.pins = 0

    @property
    def name(self) -> str:
        """What requests call it; Busy while that is not known yet."""
        return self.settings.model_name or self.engine.info.name

    @property
    def names(self) -> tuple[str, ...]:
        """Its own name and those of its adapters, each a model to callers."""
        return (self.name, *self.engine.info.adapters)

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """In this block the model stays loaded once it is."""
        self.pins += 1
        try:
            yield
        finally:
            self.pins -= 1
