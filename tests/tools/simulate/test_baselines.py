"""Serial and fused serving against arithmetic by hand."""

import pytest

from tests.tools.simulate.playing import everyone, longest_gap, mean_first_token, play, prices, rate
from tools.simulate.baselines import Fusion, Serial

# mllm's published Qwen3-1.7B: 32 rows 42.2 ms, one row 38.7 ms; 2.1 ms for a second cache.
MLLM = prices({1: 38.7, 32: 42.2}, slot_ms=2.1)
LOADS = [(8, 256, 128), (8, 768, 32), (16, 128, 256)]


@pytest.mark.parametrize(("clients", "prompt", "output"), LOADS)
def test_serial_is_chunks_then_tokens_one_request_at_a_time(clients: int, prompt: int, output: int) -> None:
    run = play(Serial(MLLM), everyone(clients, prompt, output))
    one = prompt / 32 * 42.2 + (output - 1) * 38.7
    assert run.seconds == pytest.approx(clients * one / 1000)
    assert mean_first_token(run) == pytest.approx(((clients - 1) / 2 * one + prompt / 32 * 42.2) / 1000)
    assert longest_gap(run) == pytest.approx(0.0387)


@pytest.mark.parametrize(("clients", "prompt", "output"), LOADS)
def test_fusion_hides_prefill_behind_one_decode_row_and_starves_the_rest(
    clients: int, prompt: int, output: int
) -> None:
    run = play(Fusion(MLLM), everyone(clients, prompt, output))
    chunks = -(-prompt // 31)
    fused = (clients - 1) * chunks  # from the first finished prompt to the last
    alone = clients * (output - 1) - fused
    assert run.seconds == pytest.approx((chunks * 42.2 + fused * 44.3 + alone * 38.7) / 1000)
    assert mean_first_token(run) == pytest.approx(chunks * (42.2 + (clients - 1) / 2 * 44.3) / 1000)
    last = run.answers[clients - 1]
    waited = run.seconds - (output - 2) * 0.0387 - (chunks * 42.2 + fused * 44.3) / 1000
    assert longest_gap(run) == pytest.approx(waited)
    assert last.gaps_s[0] == pytest.approx(waited)


@pytest.mark.parametrize(
    ("policy", "load", "tokens_a_second", "first_token_s"),
    [
        (Serial, LOADS[0], 24.4, 18.7),
        (Serial, LOADS[1], 14.5, 8.8),
        (Serial, LOADS[2], 25.5, 75.4),
        (Fusion, LOADS[0], 25.6, 1.8),
        (Fusion, LOADS[1], 22.0, 4.9),
        (Fusion, LOADS[2], 25.8, 1.9),
    ],
)
def test_figures_of_an_earlier_model_of_both(
    policy: type[Serial | Fusion], load: tuple[int, int, int], tokens_a_second: float, first_token_s: float
) -> None:
    run = play(policy(MLLM), everyone(*load))
    assert rate(run) == pytest.approx(tokens_a_second, abs=0.05)
    assert mean_first_token(run) == pytest.approx(first_token_s, abs=0.05)


def test_a_short_rest_takes_the_fewest_rows_that_hold_it() -> None:
    table = prices({1: 10.0, 8: 11.0, 32: 20.0})
    run = play(Serial(table), everyone(1, 38, 2))
    assert run.seconds == pytest.approx((20 + 11 + 10) / 1000)  # 32 + 6, then one token
    assert (run.rows_run, run.rows_used) == (32 + 8 + 1, 32 + 6 + 1)
    fused = play(Fusion(table), everyone(1, 38, 2))  # 31 rows of prompt, 7 rows, then one token
    assert (fused.seconds, fused.rows_used) == (pytest.approx((20 + 11 + 10) / 1000), 39)


def test_the_host_is_paid_for_every_step() -> None:
    table = prices({1: 10.0, 32: 20.0})
    assert play(Serial(table), everyone(2, 32, 3), host_ms=1.5).seconds == pytest.approx(2 * (20 + 20 + 3 * 1.5) / 1000)
