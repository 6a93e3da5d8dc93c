"""The table and the rule between its points."""

import pytest

from engine.bundle.variant import StepShape
from engine.sources.names import FetchFailed
from tools.simulate.prices import Prices, fixed_table, lay_out
from tools.simulate.published import HUB_CHIPS, HubSpeed, ask_hub, find, price

MODEL = "llama_v3_2_1b_instruct"


def test_linear_in_rows_between_the_points_and_flat_in_slots() -> None:
    (llama,) = find(MODEL, "x-elite")
    priced = price(llama, [StepShape(1, 64), StepShape(1, 4095), StepShape(64, 512), StepShape(128, 3968)])
    one = 1000 / 39.857
    assert list(priced.values()) == pytest.approx([one, one, one + (58.198 - one) * 63 / 127, 58.198], abs=0.01)


@pytest.mark.parametrize("device", list(HUB_CHIPS))
def test_every_device_has_models_and_wide_steps_cost_more(device: str) -> None:
    found = find("all", device)
    assert len(found) >= 10 and len({row.model for row in found}) == len(found)
    assert all(row.one_row_ms < row.rows_ms and row.context == 4096 for row in found)
    assert all(row.source.startswith("AI Hub (qai-hub-models 0.") for row in found)


def test_a_rate_that_no_graph_can_have_prices_nothing() -> None:
    """Genie's 6 tokens a second of Qwen3 4B on X Elite: a step of one row would cost more than one of 128."""
    assert "qwen3_4b" not in {row.model for row in find("all", "x-elite")}
    assert "qwen3_4b" in {row.model for row in find("all", "x2-elite")}


def test_beyond_what_was_published_there_is_no_price() -> None:
    (llama,) = find(MODEL, "x-elite")
    with pytest.raises(ValueError, match="--rows must be at most 128, the most published, not 129"):
        price(llama, [StepShape(129, 64)])
    with pytest.raises(ValueError, match="wider than the 4096 KV slots"):
        price(llama, [StepShape(1, 4096)])


def test_layouts() -> None:
    assert lay_out((128, 1), 4096, same_context=True) == (StepShape(1, 4095), StepShape(128, 3968))
    assert lay_out((1, 128, 1), 4096, same_context=False) == (StepShape(1, 3968), StepShape(128, 3968))


def test_what_fits() -> None:
    times = dict.fromkeys(lay_out((1, 8, 32), 128, same_context=True), 1.0)
    table = Prices(fixed_table(times), times, 1)
    assert [table.fitting(rows, 0).rows for rows in (1, 2, 8, 9, 32, 33)] == [1, 8, 8, 32, 32, 32]
    assert table.fitting(32, 100) == StepShape(8, 120)  # a step of 32 rows spans 96 slots
    assert (table.tokens_per_request, table.shapes.max_rows) == (97, 32)


def test_what_ai_hub_publishes_today() -> None:
    """The widest context of the runtimes that are served counts; a first token is a step of 128 rows."""
    asked = []

    def ask(model: str, chip: str) -> list[HubSpeed]:
        asked.append((model, chip))
        return [
            HubSpeed("qwen3_4b", "CRD", "npu", "genie", "w4a16", 512, 80.0, 30.0),
            HubSpeed("qwen3_4b", "CRD", "npu", "geniex_qairt", "w4a16", 4096, 100.0, 20.0),
            HubSpeed("qwen3_4b", "CRD", "npu", "geniex_llamacpp", "q4_0", 8192, 900.0, 40.0),
        ]

    found = ask_hub("hub:qwen3_4b", "x-elite", 147_456, ask)
    assert asked == [("qwen3_4b", "qualcomm-snapdragon-x-elite")]
    assert (found.rows_ms, found.one_row_ms, found.context) == (100.0, 50.0, 4096)
    assert (found.kv_bytes, found.source) == (147_456, "AI Hub today (geniex_qairt, w4a16)")


def test_nothing_published_is_one_sentence() -> None:
    def silent(model: str, chip: str) -> list[HubSpeed]:
        raise FetchFailed("the catalogue of Qualcomm AI Hub cannot be reached: no route")

    with pytest.raises(ValueError, match="AI Hub has published no speeds of hub:nobody on x-elite"):
        ask_hub("hub:nobody", "x-elite", 1, lambda model, chip: [])
    with pytest.raises(ValueError, match="cannot be reached: no route"):
        ask_hub("hub:nobody", "x-elite", 1, silent)
