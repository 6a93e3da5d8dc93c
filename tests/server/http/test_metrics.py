"""The engine's counters as /metrics gives them."""

from prometheus_client.parser import text_string_to_metric_families

from engine.messages import Counters, Stats
from server.http.metrics import Metrics
from tests.server.scripted_engine import ScriptedEngine

TOLD_OTHERWISE = {"finished"}  # by reason, as vllm:request_success


def test_every_counter_of_the_engine_is_exported() -> None:
    engine = ScriptedEngine()
    values = {name: 1000.0 + number for number, name in enumerate(Counters.__struct_fields__)}
    engine.stats = Stats(**values)
    families = text_string_to_metric_families(Metrics(engine).text().decode())
    shown = {sample.value for family in families for sample in family.samples if sample.name.endswith("_total")}
    assert {name for name, value in values.items() if value not in shown} == TOLD_OTHERWISE


def test_stages_of_a_step_are_exported_by_name() -> None:
    engine = ScriptedEngine()
    engine.stats = Stats(stages={"plan": 0.5, "graph: head": 2.0})
    families = text_string_to_metric_families(Metrics(engine).text().decode())
    samples = [sample for family in families for sample in family.samples]
    shown = {each.labels["stage"]: each.value for each in samples if each.name == "hexserve:stage_seconds_total"}
    assert shown == {"plan": 0.5, "graph: head": 2.0}
