"""Which caches a bundle gets, by the figures of published models and by memory."""

import pytest

from engine.compile.arguments import KvType
from engine.compile.check.parity import Interval
from engine.compile.targets.cpu import CacheMemory, choose_kv, settled_kv

ROOM, SHORT, UNKNOWN = CacheMemory(10, 10, 1000), CacheMemory(400, 200, 1000), CacheMemory(400, 200, 0)


@pytest.mark.parametrize(
    ("loss", "memory", "kv", "told"),
    [
        (
            (1e-3, 4e-3),
            ROOM,
            KvType.FLOAT32,
            "int8 ones lose KL 4.0e-03 (2.0e-03 to 8.0e-03), 400 % of what the weights lose",
        ),
        (
            (1e-1, 5e-3),
            ROOM,
            KvType.INT8,
            "keys and values are int8: int8 ones lose KL 5.0e-03 (2.5e-03 to 1.0e-02), 5 %",
        ),
        ((1e-1, 5.1e-3), ROOM, KvType.FLOAT32, "--kv int8 takes less memory"),
        ((1e-3, 4e-3), SHORT, KvType.INT8, "although int8 ones lose KL 4.0e-03"),
        ((1e-3, 4e-3), UNKNOWN, KvType.FLOAT32, "keys and values are float32"),
        ((0.0, 1e-9), ROOM, KvType.FLOAT32, "keys and values are float32"),
    ],
)
def test_choice(loss: tuple[float, float], memory: CacheMemory, kv: KvType, told: str) -> None:
    found, reason = choose_kv(loss[0], Interval(loss[1], loss[1] / 2, loss[1] * 2), memory, KvType.FLOAT32)
    assert found is kv and told in reason


@pytest.mark.parametrize(
    ("weights", "memory", "is_settled"),
    [
        (6.4e-4, ROOM, True),  # Qwen2.5-Coder 0.5B, Q4_K_M as it is
        (6.4e-4, UNKNOWN, True),
        (6.4e-4, SHORT, False),
        (3.2e-3, ROOM, True),  # SmolLM2 135M, Q4_1
        (5e-3, ROOM, False),
        (0.0, ROOM, True),
    ],
)
def test_what_weights_lose_may_leave_nothing_to_measure(weights: float, memory: CacheMemory, is_settled: bool) -> None:
    assert bool(settled_kv(weights, memory, KvType.FLOAT32)) == is_settled
