"""The one model of a server that has it loaded from its start to its end."""

from collections.abc import Sequence

from engine.client.engine import EngineState
from server.engine_seam import EngineLike
from server.http.errors import refuse
from server.http.metrics import MeasuredModel
from server.models.served_model import ServedModel
from server.settings import Settings


class OneModel:
    """One model; while it loads, requests are told so at once."""

    def __init__(self, settings: Settings, engine: EngineLike) -> None:
        self._engine = engine
        self.models = (ServedModel(settings, engine=engine),)

    @property
    def state(self) -> EngineState:
        """The engine's."""
        return self._engine.state

    def ready(self, model: ServedModel) -> EngineLike:
        """The model's engine; Busy while it loads."""
        assert model is self.models[0]
        self._engine.info  # noqa: B018 (Busy while it loads)
        return self._engine

    async def loaded(self, model: ServedModel) -> EngineLike:
        """The same: nobody waits."""
        return self.ready(model)

    @property
    def measured(self) -> Sequence[MeasuredModel]:
        """Counters of all models."""
        return [model.measured for model in self.models]

    async def unload(self, model: ServedModel) -> None:
        """Refusal: nothing would load it again."""
        message = f"The model '{model.name}' is loaded from the start of this server to its end; serve it with --lazy."
        raise refuse(message, "model", "model_not_unloadable")

    def left_s(self, model: ServedModel) -> float | None:
        """It stays."""
        assert model is self.models[0]
        return None

    async def start(self) -> None:
        """Load the model; HexserveError."""
        await self._engine.start()

    async def close(self) -> None:
        """End the engine; may be repeated."""
        await self._engine.close()
