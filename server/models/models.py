"""The models of a server: what routes and the server's life need of them, and how one that is always there is."""

from collections.abc import Sequence

from engine.client.engine import Engine, EngineState
from server.http.errors import echo, refuse
from server.models.served_model import ServedModel


def find(models: Sequence[ServedModel], name: str) -> ServedModel:
    """The model of that name, or of whose adapters one has it; Refusal 404 when there is none."""
    for model in models:
        if name in model.names:
            return model
    served = ", ".join(f"'{known}'" for model in models for known in model.names)
    raise refuse(f"The model {echo(name)} does not exist. This server has {served}.", "model", "model_not_found", 404)


class Models:
    """The models of a server in the order in which they were named; the first one answers who names none.

    Here it is one, with an engine from the start to the end; while that loads, requests are told so at once.
    """

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.models = tuple(models)

    @property
    def state(self) -> EngineState:
        """The state of the server as far as it depends on its models."""
        return self._only.state

    @property
    def _only(self) -> Engine:
        [model] = self.models
        assert model.engine is not None
        return model.engine

    def ready(self, model: ServedModel) -> Engine | None:
        """The engine if requests can run, None when `loaded` has to be waited for; Busy while an only model loads."""
        assert model is self.models[0]
        self._only.info  # noqa: B018 (Busy while it loads)
        return self._only

    async def loaded(self, model: ServedModel) -> Engine:
        """The model's engine once requests can run. The caller has pinned the model. Busy, EngineFailure."""
        engine = self.ready(model)
        assert engine is not None
        return engine

    async def unload(self, model: ServedModel) -> None:
        """Unload a model that no request uses; Refusal for one that is in use, or that nothing would load again."""
        message = (
            f"The model '{model.name}' is loaded from the start of this server to its end; serve it with --idle-unload."
        )
        raise refuse(message, "model", "model_not_unloadable")

    def left_s(self, model: ServedModel) -> float | None:
        """Seconds until the model is unloaded if nobody uses it; None = it stays."""
        return None

    async def start(self) -> None:
        """Load what has to be there from the start; HexserveError when that fails."""
        await self._only.start()

    async def close(self) -> None:
        await self._only.close()
