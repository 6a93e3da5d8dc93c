"""What routes and the server's life need of its models, be it one or several."""

from collections.abc import Sequence
from typing import Protocol

from engine.client.engine import EngineState
from server.engine_seam import EngineLike
from server.http.errors import echo, refuse
from server.http.metrics import MeasuredModel
from server.models.served_model import ServedModel


class Models(Protocol):
    """The models of a server in the order in which they were named; the first one answers who names none."""

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """All of them."""

    @property
    def state(self) -> EngineState:
        """The state of the server as far as it depends on its models."""

    @property
    def measured(self) -> Sequence[MeasuredModel]:
        """Counters of all models; Busy while an only model loads."""

    def ready(self, model: ServedModel) -> EngineLike | None:
        """The model's engine if requests can run; None when `loaded` has to be waited for."""

    async def loaded(self, model: ServedModel) -> EngineLike:
        """The model's engine once requests can run. The caller has pinned the model. Busy, EngineFailure."""

    async def unload(self, model: ServedModel) -> None:
        """Unload a model that no request uses; Refusal."""

    def left_s(self, model: ServedModel) -> float | None:
        """Seconds until the model is unloaded if nobody uses it; None = it stays."""

    async def start(self) -> None:
        """Load what has to be there from the start; HexserveError when that fails."""

    async def close(self) -> None:
        """End every engine; may be repeated."""


def find(models: Sequence[ServedModel], name: str) -> ServedModel:
    """The model of that name, or of whose adapters one has it; Refusal 404 when there is none."""
    for model in models:
        if name in model.names:
            return model
    served = ", ".join(f"'{known}'" for model in models for known in model.names)
    raise refuse(f"The model {echo(name)} does not exist. This server has {served}.", "model", "model_not_found", 404)
