"""What models have counted, as the families of /metrics: their engines, and which of them are loaded."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.client.engine import EngineState
from server.models.models import Models, ModelState, ServedModel

Family = CounterMetricFamily | GaugeMetricFamily
# Kind, name, text, labels beside the model's name, and for each number the values of these labels.
Row = tuple[type[Family], str, str, tuple[str, ...], Sequence[tuple[tuple[str, ...], float]]]
GUESSES = ("lookup", "prediction", "draft", "forecast")


class ModelCollector(Collector):
    """Turns the counters of models into metric families at scrape time."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """All families; those that need a loaded model are left out while an only one loads."""
        state, models = self._models.state, self._models.models
        ready = GaugeMetricFamily("hexserve:ready", "1 when requests are taken and answered.", labels=["state"])
        ready.add_metric([state.value], float(state is EngineState.READY))
        yield ready
        rows = [(model, row) for model in models if state is not EngineState.LOADING for row in _engine_rows(model)]
        rows += [(model, row) for model in models if model.comes_and_goes for row in _residence_rows(model)]
        found: dict[str, Family] = {}
        for model, (kind, name, text, labels, samples) in rows:
            family = found.setdefault(name, kind(name, text, labels=["model_name", *labels]))
            for values, number in samples:
                family.add_metric([model.name, *values], number)
        yield from found.values()


def _engine_rows(model: ServedModel) -> Iterator[Row]:
    stats = model.stats
    for name, text, number in _counters(model):
        yield CounterMetricFamily, name, text, (), [((), number)]
    text = "Time of engine steps by stage; 'graph: ...' are parts of 'graph'."
    stages = [((stage,), seconds) for stage, seconds in stats.stages.items()]
    yield CounterMetricFamily, "hexserve:stage_seconds", text, ("stage",), stages
    for name, text, field in (
        ("hexserve:guesses", "Guessed tokens by their source.", "rows"),
        ("hexserve:guesses_accepted", "Those that were right.", "accepted"),
    ):
        yield CounterMetricFamily, name, text, ("kind",), [((k,), getattr(stats, f"{k}_{field}")) for k in GUESSES]
    for name, text, number in _gauges(model):
        yield GaugeMetricFamily, name, text, (), [((), number)]
    if (engine := model.engine) is not None:
        device = [((engine.device, engine.info.fingerprint), 1.0)]
        yield GaugeMetricFamily, "hexserve:device_info", "What really computes.", ("device", "fingerprint"), device


def _counters(model: ServedModel) -> tuple[tuple[str, str, float], ...]:
    stats = model.stats
    return (
        ("vllm:prompt_tokens", "Prompt tokens taken in.", stats.prompt_tokens),
        ("vllm:generation_tokens", "Tokens generated.", stats.generated_tokens),
        ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_queries),
        ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.prefix_hits),
        ("vllm:num_preemptions", "Sequences that gave their KV slots back.", stats.preemptions),
        ("hexserve:hand_overs", "Sequences that went to another device.", stats.hand_overs),
        ("hexserve:steps", "Graph steps run.", stats.steps),
        ("hexserve:rows_used", "Useful rows of all steps.", stats.rows_used),
        ("hexserve:rows_run", "Rows of all steps, padding included.", stats.rows_run),
        ("hexserve:decode_rows", "Rows that decoded.", stats.decode_rows),
        ("hexserve:prefill_rows", "Rows that prefilled.", stats.prefill_rows),
        ("vllm:spec_decode_num_draft_tokens", "Guessed tokens.", stats.drafted_rows),
        ("vllm:spec_decode_num_accepted_tokens", "Guessed tokens that were right.", stats.accepted_rows),
        ("hexserve:drafted_rows", "Rows with a guessed token.", stats.drafted_rows),
        ("hexserve:accepted_rows", "Guessed tokens that were right.", stats.accepted_rows),
        ("hexserve:graph_switches", "Steps with another variant than the one before.", stats.variant_switches),
        ("hexserve:relayouts", "Times the pool was laid out anew for another variant.", stats.relayouts),
        ("hexserve:experts_chosen", "Experts that rows chose, over all layers.", stats.experts_chosen),
        ("hexserve:experts_read", "Different experts that steps read, over all layers.", stats.experts_read),
        ("hexserve:draft_seconds", "Time in the draft model.", stats.draft_s),
        ("hexserve:run_seconds", "Time inside the graphs.", stats.run_s),
        ("hexserve:relayout_seconds", "Time re-laying the pool for variants of another width.", stats.relayout_s),
        ("hexserve:copy_seconds", "Time copying KV blocks to and from the host KV cache.", stats.copy_s),
        ("hexserve:step_seconds", "Time of whole engine steps.", stats.step_s),
        ("hexserve:worker_restarts", "Workers that died and were replaced.", model.restarts),
    )


def _gauges(model: ServedModel) -> tuple[tuple[str, str, float], ...]:
    stats, unfinished = model.stats, model.engine.unfinished if model.engine is not None else 0
    used = stats.kv_slots_used / stats.kv_slots_total if stats.kv_slots_total else 0.0
    occupancy = stats.rows_used / stats.rows_run if stats.rows_run else 0.0
    return (
        ("vllm:num_requests_running", "Sequences that run.", stats.running),
        ("vllm:num_requests_waiting", "Sequences that wait.", stats.waiting),
        ("vllm:kv_cache_usage_perc", "Share of the pool's KV slots in use, 0 to 1.", used),
        ("hexserve:batch_occupancy", "Useful rows over rows run since the start, 0 to 1.", occupancy),
        ("hexserve:kv_slots_used", "KV slots in use.", stats.kv_slots_used),
        ("hexserve:kv_slots", "KV slots of the pool.", stats.kv_slots_total),
        ("hexserve:requests_unfinished", "Sequences the server has not finished.", unfinished),
    )


def _residence_rows(model: ServedModel) -> Iterator[Row]:
    states = [((state.value,), float(model.state is state)) for state in ModelState]
    yield GaugeMetricFamily, "hexserve:model_state", "1 for the state of a model.", ("state",), states
    for kind, name, text, number in (
        (CounterMetricFamily, "hexserve:model_loads", "Times a model was loaded.", model.loads),
        (CounterMetricFamily, "hexserve:model_unloads", "Times a model was unloaded.", model.unloads),
        (GaugeMetricFamily, "hexserve:model_memory_bytes", "Memory estimated for a loaded model.", model.size),
        (GaugeMetricFamily, "hexserve:model_requests", "Requests that use a model.", model.pins),
    ):
        yield kind, name, text, (), [((), number)]
