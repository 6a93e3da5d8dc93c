"""Where prompts are read and streams are written, at the published speeds of a 4B model on an X Elite."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.client.placement import DeviceCosts, DeviceLoad, candidates, reader, writer

# Rows, past columns, milliseconds. NPU: 20.9 tokens/s alone, 1,361 read; CPU: 28.3 and 184.
NPU = DeviceCosts(((1, 512, 47.8), (32, 512, 62.0), (128, 512, 94.0), (1, 4096, 76.3), (128, 4096, 136.6)), False)
CPU = DeviceCosts(((1, 64, 35.3), (8, 64, 120.0), (32, 64, 240.0), (128, 64, 695.0)), True)


def loads(npu: int = 0, cpu: int = 0, unread: int = 0, context: int = 512) -> list[DeviceLoad]:
    return [DeviceLoad(NPU, npu, context, unread), DeviceLoad(CPU, cpu, context)]


@pytest.mark.parametrize("prompt", [64, 512, 4000])
def test_a_prompt_is_read_on_the_npu(prompt: int) -> None:
    assert reader(prompt, loads()) == 0


def test_a_prompt_of_a_few_tokens_is_read_by_the_cpu() -> None:
    assert reader(1, loads()) == 1


def test_prompts_that_wait_send_the_next_one_elsewhere() -> None:
    assert reader(64, loads(unread=20_000)) == 1


def test_a_lone_stream_is_written_by_the_cpu() -> None:
    assert writer(0, 512, 200, loads(npu=1)) == 1
    assert writer(1, 512, 200, loads(cpu=1)) == 1


def test_many_streams_stay_in_the_rows_of_the_npu() -> None:
    assert writer(0, 512, 200, loads(npu=12, cpu=4)) == 0
    assert writer(1, 512, 200, loads(npu=3, cpu=8)) == 0


@pytest.mark.parametrize(
    ("names", "serving", "usual", "saving"),
    [
        (("CPU", "NPU"), [0, 1], [0, 1], [1]),
        (("HTP emulator", "CPU"), [0, 1], [0, 1], [0]),
        (("CPU", "NPU"), [0], [0], [0]),  # the other one is being replaced
        (("CPU", "CPU"), [0, 1], [0, 1], [0, 1]),
        (("CPU", "NPU"), [], [], []),
    ],
)
def test_to_save_power_the_cpu_gets_nothing_that_another_could_do(
    names: tuple[str, ...], serving: list[int], usual: list[int], saving: list[int]
) -> None:
    assert candidates(serving, names, saves_power=False) == usual
    assert candidates(serving, names, saves_power=True) == saving


def test_the_last_tokens_do_not_pay_for_the_way() -> None:
    assert writer(0, 512, 1, loads(npu=1)) == 0


def test_a_long_way_is_not_worth_it() -> None:
    assert writer(0, 512, 200, loads(npu=1), token_ms=10.0) == 0


def test_equal_devices_keep_what_they_have() -> None:
    """Two streams, one on each: neither moves, whichever of them is asked."""
    same = [DeviceLoad(CPU, 1, 64), DeviceLoad(CPU, 1, 64)]
    assert [writer(index, 64, 500, same) for index in (0, 1)] == [0, 1]


@given(st.integers(1, 24), st.integers(0, 24), st.integers(0, 8000), st.integers(1, 4000), st.integers(1, 2000))
def test_nobody_is_sent_to_and_fro(npu: int, cpu: int, unread: int, context: int, left: int) -> None:
    """A stream that has moved would not move back at once."""
    if writer(0, context, left, loads(npu, cpu, unread, context)) == 1:
        assert writer(1, context, left, loads(npu - 1, cpu + 1, unread, context)) == 1


def test_costs_between_and_beyond_the_measured_ones() -> None:
    assert NPU.step_ms(2, 100) == 62.0 and NPU.step_ms(200, 100) == pytest.approx(94.0 * 200 / 128)
    assert CPU.step_ms(4, 100) == pytest.approx(35.3 + 3 / 7 * (120.0 - 35.3))
    assert NPU.step_ms(1, 2000) == 76.3 and NPU.step_ms(1, 9000) == 76.3
    assert NPU.prompt_ms(0) == 0.0 and NPU.prompt_ms(512) == pytest.approx(4 * 94.0)
