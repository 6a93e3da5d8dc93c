"""The engine's counters as /metrics gives them."""

from prometheus_client.parser import text_string_to_metric_families

from engine.messages import Counters, Stats
from tests.server.one_model import metrics_of
from tests.server.scripted_engine import ScriptedEngine

TOLD_OTHERWISE = {"finished"}  # by reason, as vllm:request_success


def test_every_counter_of_the_engine_is_exported() -> None:
    engine = ScriptedEngine()
    values = {name: 1000.0 + number for number, name in enumerate(Counters.__struct_fields__)}
    engine.stats = Stats(**values)
    families = text_string_to_metric_families(metrics_of(engine).text().decode())
    shown = {sample.value for family in families for sample in family.samples if sample.name.endswith("_total")}
    assert {name for name, value in values.items() if value not in shown} == TOLD_OTHERWISE


def test_stages_of_a_step_are_exported_by_name() -> None:
    engine = ScriptedEngine()
    engine.stats = Stats(stages={"plan": 0.5, "graph: head": 2.0})
    families = text_string_to_metric_families(metrics_of(engine).text().decode())
    samples = [sample for family in families for sample in family.samples]
    shown = {each.labels["stage"]: each.value for each in samples if each.name == "hexserve:stage_seconds_total"}
    assert shown == {"plan": 0.5, "graph: head": 2.0}


def test_guesses_are_told_by_their_kind() -> None:
    engine = ScriptedEngine()
    engine.stats = Stats(
        drafted_rows=16,
        accepted_rows=8,
        lookup_rows=7,
        lookup_accepted=4,
        draft_rows=5,
        draft_accepted=2,
        forecast_rows=4,
        forecast_accepted=2,
    )
    families = text_string_to_metric_families(metrics_of(engine).text().decode())
    samples = [sample for family in families for sample in family.samples]
    for name, expected in (
        ("hexserve:guesses_total", {"lookup": 7.0, "prediction": 0.0, "draft": 5.0, "forecast": 4.0}),
        ("hexserve:guesses_accepted_total", {"lookup": 4.0, "prediction": 0.0, "draft": 2.0, "forecast": 2.0}),
    ):
        assert {each.labels["kind"]: each.value for each in samples if each.name == name} == expected
    values = {each.name: each.value for each in samples}
    assert values["vllm:spec_decode_num_draft_tokens_total"] == 16
    assert values["vllm:spec_decode_num_accepted_tokens_total"] == 8
