"""Which layout a bundle gets when nobody says it, and when its weights are stored twice."""

from pathlib import Path

import pytest

from engine.bundle.specs import ModelTask
from engine.compile.arguments import CompileArguments, KvType, Layout, Quant, Target
from engine.compile.plan import float_kv, kv_type, layout_of, resolve_caches, resolve_layout
from engine.errors import CompileError
from engine.models.family import read_network


def arguments(**options: object) -> CompileArguments:
    return CompileArguments(Path("s"), Path("o"), **options)  # type: ignore[arg-type]


FIXED = {"rows": (1,), "context": (64,)}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Layout.SEGMENTS),
        ({"quant": Quant.FP32}, Layout.SEGMENTS),
        ({"layout": Layout.POOL}, Layout.POOL),
        (FIXED, Layout.POOL),
        (FIXED | {"quant": Quant.W8A16}, Layout.POOL),
        (FIXED | {"target": Target.X_ELITE, "quant": Quant.W4}, Layout.POOL),
    ],
)
def test_layouts(options: dict[str, object], expected: Layout) -> None:
    assert layout_of(arguments(**options)) is expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, KvType.FLOAT32),
        ({"quant": Quant.INT8}, KvType.FLOAT32),
        ({"quant": Quant.FP32}, KvType.FLOAT32),
        ({"quant": Quant.FP32, "kv": KvType.INT8}, KvType.INT8),
        ({"kv": KvType.FLOAT32}, KvType.FLOAT32),
    ],
)
def test_caches(options: dict[str, object], expected: KvType) -> None:
    """int8 only where it is asked for, or chosen once its loss is known."""
    assert kv_type(arguments(**options)) is expected


def test_heads_that_the_attention_operator_cannot_have() -> None:
    """By default the model gets pool graphs; who asks for segments is told why not."""
    assert resolve_layout(arguments(), 64).layout is Layout.SEGMENTS
    assert resolve_layout(arguments(), 20).layout is Layout.POOL
    for options in ({"layout": Layout.SEGMENTS}, {"kv": KvType.INT8}):
        with pytest.raises(CompileError, match="needs a head size that 8 divides, it is 20"):
            resolve_layout(arguments(**options), 20)


WIDE = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072}
NARROW = WIDE | {"num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32768}
PAIRS = WIDE | {"num_attention_heads": 16, "head_dim": 128}
SMALL = WIDE | {"max_position_embeddings": 128}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 64,
    "num_hidden_layers": 16,
    "vocab_size": 256,
    "rms_norm_eps": 1e-5,
}


@pytest.mark.parametrize(
    ("sizes", "options", "is_short", "expected"),
    [
        (WIDE, {}, False, KvType.FLOAT16),
        (WIDE, {"kv": KvType.FLOAT32}, True, KvType.FLOAT32),
        (WIDE, {"kv": KvType.INT8}, False, KvType.FLOAT16),  # what int8 ones are measured against
        (WIDE, {"quant": Quant.FP32}, True, KvType.FLOAT32),
        (WIDE, {"task": ModelTask.EMBED}, True, KvType.FLOAT32),
        (SMALL, {}, False, KvType.FLOAT32),
        (NARROW, {}, False, KvType.FLOAT32),
        (NARROW, {}, True, KvType.FLOAT16),
        (NARROW, {"kv": KvType.FLOAT16}, False, KvType.FLOAT16),
        (PAIRS, {}, False, KvType.FLOAT32),
        (WIDE | {"num_key_value_heads": 32}, {}, True, KvType.FLOAT32),  # no query heads share a key head
    ],
)
def test_caches_are_halves_where_that_is_faster_or_memory_short(
    sizes: dict[str, int], options: dict[str, object], is_short: bool, expected: KvType
) -> None:
    assert float_kv(arguments(**options), read_network(LLAMA | sizes), is_short) is expected


def test_halves_without_their_graph_are_refused() -> None:
    network = read_network(LLAMA | WIDE | {"num_key_value_heads": 32})
    with pytest.raises(CompileError, match="--kv float16 is refused for llama: their graph is for layers whose query"):
        resolve_caches(arguments(kv=KvType.FLOAT16), network)
