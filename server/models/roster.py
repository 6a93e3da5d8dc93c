"""Which models the server has."""

from collections.abc import Sequence

from server.engine_seam import EngineLike
from server.http.errors import echo, refuse
from server.models.served_model import ServedModel
from server.settings import Settings


class Roster:
    """The models of a server in the order in which they were named; the first one answers who names none."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.models = tuple(models)

    @classmethod
    def of(cls, engine: EngineLike, settings: Settings) -> "Roster":
        """The roster of a server with one model, loaded from its start to its end."""
        return cls([ServedModel(settings, engine)])

    @property
    def first(self) -> ServedModel:
        """The model of a request that names none."""
        return self.models[0]

    def find(self, name: str) -> ServedModel:
        """The model of that name, or of whose adapters one has it; Refusal 404 when there is none."""
        for model in self.models:
            if name in model.names:
                return model
        served = ", ".join(f"'{known}'" for model in self.models for known in model.names)
        message = f"The model {echo(name)} does not exist. This server has {served}."
        raise refuse(message, "model", "model_not_found", 404)

    async def loaded(self, model: ServedModel) -> None:
        """Return when requests to the model can run; Busy when that is not to be waited for."""
        model.engine.info  # noqa: B018 (Busy while it loads)

    async def start(self) -> None:
        """Load what has to be there from the start; HexserveError when that fails."""
        await self.first.engine.start()

    async def close(self) -> None:
        """End every engine; may be repeated."""
        for model in self.models:
            await model.engine.close()
