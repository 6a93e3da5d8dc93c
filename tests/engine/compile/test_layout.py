"""Which layout a bundle gets when nobody says it, and when its weights are stored twice."""

from pathlib import Path

import pytest

from engine.compile import plan as layout
from engine.compile.arguments import CompileArguments, KvType, Layout, Quant, Target
from engine.compile.plan import kv_type, layout_of, resolve_layout
from engine.errors import CompileError


@pytest.fixture(autouse=True)
def segments_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "DEFAULT_LAYOUT", Layout.SEGMENTS)


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
