"""Arguments that make no sense together are refused by the option's name."""

from pathlib import Path
from typing import Any

import pytest

from engine.compile.arguments import CompileArguments, KvType, Layout, Quant, Split, Target
from engine.compile.plan import check_arguments, fixed_shapes
from engine.errors import CompileError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 16}, "--block"),
        ({"quant": Quant.INT8, "block": 128}, "--block and --asymmetric are for --quant int4, not int8"),
        ({"quant": Quant.KEEP, "asymmetric": True}, "--block and --asymmetric are for --quant int4, not keep"),
        ({"quant": Quant.FP32, "amx": True}, "--target cpu with --quant int8, int4, keep, not for cpu with fp32"),
        ({"embedding_bits": 5}, "--embedding"),
        ({"rows": (1,)}, "--rows together"),
        ({"context": (64,)}, "--rows together"),
        ({"rows": (1,), "context": (64,), "same_past": (64,)}, "exclude each other"),
        ({"rows": (0,), "context": (64,)}, "--rows takes numbers from 1"),
        ({"rows": (1,), "context": (1 << 30,)}, "--context takes numbers"),
        ({"rows": (64,), "context": (32, 64)}, "larger than some --rows"),
        ({"max_context": -1}, "--max-context"),
        ({"parity_tokens": 1}, "--parity-tokens"),
        ({"quant": Quant.W8A16}, "w8a16 needs fixed variants"),
        ({"quant": Quant.W4A16, "rows": (1,), "context": (64,), "embedding_bits": 8}, "--embedding 16 only"),
        ({"quant": Quant.W8A16, "rows": (1,), "context": (64,), "head": Quant.INT8}, "--head w8a16 or w4a16"),
        ({"head": Quant.W8A16}, "needs --quant w8a16 or w4a16"),
        ({"calibration": Path("text.txt"), "quant": Quant.FP32}, "--calibration is for --quant w8a16 and w4a16, for "),
        ({"calibration": Path("text.txt"), "kv": KvType.FLOAT32}, "for segments with int8 caches: nothing of this bun"),
        ({"calibration": Path("no.txt")}, "--calibration no.txt cannot be read: there is no such file"),
        ({"layout": Layout.SEGMENTS, "rows": (1,), "context": (64,)}, "takes no --rows, --context or --same-past"),
        ({"layout": Layout.SEGMENTS, "rows": (1,), "context": (64,), "quant": Quant.W8A16}, "w8a16 has integers"),
        ({"layout": Layout.SEGMENTS, "split": Split.LMHEAD}, "--split is for --layout pool"),
        ({"layout": Layout.POOL, "kv": KvType.INT8}, "--kv int8 is for --layout segments"),
        ({"rows": (1,), "context": (64,), "kv": KvType.FLOAT32}, "--kv float32 is for --layout segments"),
        ({"rows": tuple(range(1, 65)), "same_past": (1, 2, 3, 4, 5)}, "320 variants"),
    ],
)
def test_options(options: dict[str, Any], message: str) -> None:
    """Checked before any file is opened."""
    arguments = CompileArguments(Path("nowhere"), Path("out"), **options)
    with pytest.raises(CompileError, match=message):
        check_arguments(arguments)
        fixed_shapes(arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quant": Quant.INT8}, "takes --quant fp16.*not int8"),
        ({"quant": Quant.FP16, "head": Quant.INT4}, "takes --head fp16.*not int4"),
        ({"rows": (), "context": ()}, "needs fixed variants: --rows with --context or --same-past"),
        ({"block": 128}, "symmetric blocks of 32"),
        ({"amx": False}, "--no-amx are for --target cpu.*, not for x-elite with w4"),
        ({"asymmetric": True}, "symmetric blocks of 32"),
        ({"embedding_bits": 8}, "--embedding 16 only, not 8"),
        ({"part_mb": 9000}, "--part-mb must be from 1 to 3500"),
        ({"quant": Quant.W8A16, "calibration": Path("no.txt")}, "--calibration no.txt cannot be read"),
        ({"layout": Layout.SEGMENTS}, "--layout segments is for --target cpu, not for x-elite"),
        ({"kv": KvType.INT8}, "--kv int8 is for --layout segments"),
        ({"target": Target.CPU}, "--target cpu takes --quant fp32.*not w4"),
    ],
)
def test_what_an_npu_cannot_do_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    fields = {"target": Target.X_ELITE, "quant": Quant.W4, "rows": (1,), "context": (64,), **changes}
    with pytest.raises(CompileError, match=message):
        check_arguments(CompileArguments(Path("s"), Path("o"), **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{"share_weights": False}, {"part_mb": 1000}])
def test_what_only_an_npu_has_is_refused_for_the_cpu(changes: dict[str, object]) -> None:
    with pytest.raises(CompileError, match="--part-mb are for NPUs, not for --target cpu"):
        check_arguments(CompileArguments(Path("s"), Path("o"), **changes))  # type: ignore[arg-type]
