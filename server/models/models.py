"""What routes and the server's life need of its models, be it one or several."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.client.engine import Engine, EngineState
from server.http.errors import echo, refuse
from server.models.served_model import ModelState, ServedModel
from server.observability.metrics import MeasuredModel
from server.settings import Settings


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

    def ready(self, model: ServedModel) -> Engine | None:
        """The model's engine if requests can run; None when `loaded` has to be waited for."""

    async def loaded(self, model: ServedModel) -> Engine:
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


class OneModel:
    """One model; while it loads, requests are told so at once."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self._engine = engine
        self.models = (ServedModel(settings, engine=engine),)

    @property
    def state(self) -> EngineState:
        return self._engine.state

    def ready(self, model: ServedModel) -> Engine:
        """The model's engine; Busy while it loads."""
        assert model is self.models[0]
        self._engine.info  # noqa: B018 (Busy while it loads)
        return self._engine

    async def loaded(self, model: ServedModel) -> Engine:
        """The same: nobody waits."""
        return self.ready(model)

    @property
    def measured(self) -> Sequence[MeasuredModel]:
        return [model.measured for model in self.models]

    async def unload(self, model: ServedModel) -> None:
        """Refusal: nothing would load it again."""
        message = (
            f"The model '{model.name}' is loaded from the start of this server to its end; serve it with --idle-unload."
        )
        raise refuse(message, "model", "model_not_unloadable")

    def left_s(self, model: ServedModel) -> float | None:
        """It stays."""
        assert model is self.models[0]
        return None

    async def start(self) -> None:
        await self._engine.start()

    async def close(self) -> None:
        await self._engine.close()


class ResidenceCollector(Collector):
    """State, loads, unloads and memory of each model."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """Nothing for the one model that is there from the start to the end."""
        models = [model for model in self._models.models if model.comes_and_goes]
        if not models:
            return
        labels = ["model_name"]
        state = GaugeMetricFamily("hexserve:model_state", "1 for the state of a model.", labels=[*labels, "state"])
        loads = CounterMetricFamily("hexserve:model_loads", "Times a model was loaded.", labels=labels)
        unloads = CounterMetricFamily("hexserve:model_unloads", "Times a model was unloaded.", labels=labels)
        memory = GaugeMetricFamily("hexserve:model_memory_bytes", "Memory estimated for a loaded model.", labels=labels)
        requests = GaugeMetricFamily("hexserve:model_requests", "Requests that use a model.", labels=labels)
        for model in models:
            for each in ModelState:
                state.add_metric([model.name, each.value], float(model.state is each))
            loads.add_metric([model.name], model.loads)
            unloads.add_metric([model.name], model.unloads)
            memory.add_metric([model.name], model.size)
            requests.add_metric([model.name], model.pins)
        yield from (state, loads, unloads, memory, requests)
