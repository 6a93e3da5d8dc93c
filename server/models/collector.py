"""What /metrics says of models that come and go."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.models.models import Models
from server.models.states import ModelState


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
        memory = GaugeMetricFamily("hexserve:model_memory_bytes", "Memory reckoned for a loaded model.", labels=labels)
        requests = GaugeMetricFamily("hexserve:model_requests", "Requests that use a model.", labels=labels)
        for model in models:
            for each in ModelState:
                state.add_metric([model.name, each.value], float(model.state is each))
            loads.add_metric([model.name], model.loads)
            unloads.add_metric([model.name], model.unloads)
            memory.add_metric([model.name], model.size)
            requests.add_metric([model.name], model.pins)
        yield from (state, loads, unloads, memory, requests)
