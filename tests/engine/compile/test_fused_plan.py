"""Which fused graphs options make, and options that make none."""

from pathlib import Path
from typing import Any

import pytest

from engine.bundle.specs import FusedSpec
from engine.bundle.variant import StepShape
from engine.compile.arguments import CompileArguments, KvType, KvUpdate, Layout, Quant, Split, Target
from engine.compile.plan import check_arguments, fixed_shapes, fused_spec, kv_update, requested_context
from engine.errors import CompileError

FUSED: dict[str, Any] = {"layout": Layout.FUSED, "rows": (32, 64, 128), "context": (1024,)}


def arguments(**options: object) -> CompileArguments:
    return CompileArguments(Path("s"), Path("o"), **{**FUSED, **options})  # type: ignore[arg-type]


def test_the_graphs_of_one_slot() -> None:
    """All have the past that the widest leaves of the context."""
    assert fused_spec(arguments()) == FusedSpec((32, 64, 128), (31, 63, 127), 1, 896, True)
    assert fixed_shapes(arguments()) == tuple(StepShape(rows, 896) for rows in (1, 32, 64, 128))
    assert (
        requested_context(arguments(), fixed_shapes(arguments())) == 896
    )  # 895 columns hold tokens, the newest needs none


def test_slots_take_rows_from_prompts_and_make_a_graph_of_decodes() -> None:
    slots = arguments(decode_slots=4, context=(), same_past=(512,))
    assert fused_spec(slots) == FusedSpec((32, 64, 128), (28, 60, 124), 4, 512, True)
    assert [shape.rows for shape in fixed_shapes(slots)] == [1, 4, 32, 64, 128]


def test_who_writes_the_caches_unless_it_is_said() -> None:
    npu = {"target": Target.X_ELITE, "quant": Quant.FP16}
    assert kv_update(arguments()) is KvUpdate.GRAPH
    assert kv_update(arguments(**npu)) is KvUpdate.HOST
    assert kv_update(arguments(**npu, kv_update=KvUpdate.GRAPH)) is KvUpdate.GRAPH


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": (), "context": ()}, "--layout fused needs --rows"),
        ({"context": (512, 1024)}, "one number of --context or --same-past"),
        ({"rows": (1, 32)}, "--rows 1 leave none for a prompt beside --decode-slots 1"),
        ({"decode_slots": 32}, "--rows 32 leave none for a prompt beside --decode-slots 32"),
        ({"decode_slots": 0}, "--decode-slots must be from 1 to 64"),
        ({"context": (140,)}, "needs 17 past KV slots, 12 are left of --context 140 beside --rows 128"),
        ({"context": (64,)}, "needs 17 past KV slots, 0 are left of --context 64 beside --rows 128"),
        ({"context": (), "same_past": (8,)}, "needs 17 past KV slots, --same-past is 8"),
        ({"whole_context": (64,)}, "whole"),
        ({"lora": True}, "--lora is for --layout segments"),
        ({"split": Split.LMHEAD}, "takes no --split lmhead"),
        ({"kv": KvType.INT8}, "--kv int8 is for --layout segments"),
        ({"layout": Layout.POOL, "decode_slots": 2}, "--decode-slots and --kv-update are for --layout fused"),
        ({"layout": None, "kv_update": KvUpdate.HOST}, "--decode-slots and --kv-update are for --layout fused"),
    ],
)
def test_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        check_arguments(arguments(**options))
