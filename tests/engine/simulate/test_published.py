"""The table and the rule between its points."""

import pytest

from engine.bundle.variant import PassShape
from engine.simulate.prices import Prices, fixed_table, lay_out
from engine.simulate.published import PUBLISHED, find, price


def test_linear_in_rows_between_the_points_and_flat_in_columns() -> None:
    (llama,) = find("llama-3.2-1b", "x-elite")
    priced = price(llama, [PassShape(1, 64), PassShape(1, 4095), PassShape(64, 512), PassShape(128, 3968)])
    one = 1000 / 23.7
    assert list(priced.values()) == pytest.approx([one, one, one + (69.3 - one) * 63 / 127, 69.3])


def test_mllm_has_its_own_points() -> None:
    (qwen,) = find("Qwen3-1.7B", "8-gen3")
    assert list(price(qwen, lay_out((1, 32), 1024, same_context=True)).values()) == pytest.approx(
        [38.7, 42.2], abs=0.01
    )


@pytest.mark.parametrize(
    ("device", "models", "least", "most"),
    [("x-elite", 7, 1.15, 2.37), ("x2-elite", 3, 2.7, 4.6), ("8-elite", 3, 2.0, 2.6), ("8-elite-gen5", 3, 1.7, 2.4)],
)
def test_wide_over_narrow_is_as_published(device: str, models: int, least: float, most: float) -> None:
    found = [row.rows_ms / row.one_row_ms for row in find("all", device)]
    assert len(found) == models
    assert least - 0.01 <= min(found) and max(found) <= most + 0.01


def test_every_row_is_one_model_on_one_device() -> None:
    assert len({(row.model, row.device) for row in PUBLISHED}) == len(PUBLISHED)
    assert all(row.one_row_ms < row.rows_ms for row in PUBLISHED)


def test_beyond_what_was_published_there_is_no_price() -> None:
    (llama,) = find("Llama-3.2-1B", "x-elite")
    with pytest.raises(ValueError, match="--rows must be at most 128, the most published, not 129"):
        price(llama, [PassShape(129, 64)])
    with pytest.raises(ValueError, match="wider than the 4096 columns"):
        price(llama, [PassShape(1, 4096)])


def test_layouts() -> None:
    assert lay_out((128, 1), 4096, same_context=True) == (PassShape(1, 4095), PassShape(128, 3968))
    assert lay_out((1, 128, 1), 4096, same_context=False) == (PassShape(1, 3968), PassShape(128, 3968))


def test_what_fits() -> None:
    times = dict.fromkeys(lay_out((1, 8, 32), 128, same_context=True), 1.0)
    table = Prices(fixed_table(times), times, 1)
    assert [table.fitting(rows, 0).rows for rows in (1, 2, 8, 9, 32, 33)] == [1, 8, 8, 32, 32, 32]
    assert table.fitting(32, 100) == PassShape(8, 120)  # a pass of 32 rows spans 96 columns
    assert (table.tokens_per_request, table.most_rows) == (97, 32)
