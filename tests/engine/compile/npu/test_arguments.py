"""What `--target x-elite` and its kin take."""

from pathlib import Path

import pytest

from engine.compile.__main__ import parse
from engine.compile.arguments import CompileArguments, Quant, Target, check_arguments
from engine.compile.npu.targets import NPU_TARGETS
from engine.errors import CompileError


def test_every_target_but_the_cpu_has_a_chip() -> None:
    assert set(NPU_TARGETS) == set(Target) - {Target.CPU}
    assert (NPU_TARGETS[Target.X_ELITE].soc_model, NPU_TARGETS[Target.X_ELITE].htp_arch) == (60, 73)
    assert NPU_TARGETS[Target.X2_ELITE].htp_arch == 81


def test_defaults_of_the_command_line() -> None:
    device = parse(["s", "-o", "o", "--target", "x-elite", "--rows", "1,32", "--context", "1024"])
    assert (device.quant, device.share_weights, device.part_mb) == (Quant.W4, True, 2000)
    check_arguments(device)
    emulator = parse(
        ["s", "-o", "o", "--target", "x-elite", "--rows", "1", "--same-past", "96", "--one-graph-per-binary"]
    )
    assert not emulator.share_weights
    assert parse(["s", "-o", "o"]).quant is Quant.INT4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quant": Quant.INT8}, "takes --quant fp16.*not int8"),
        ({"quant": Quant.FP16, "head": Quant.INT4}, "not int4"),
        ({"rows": (), "context": ()}, "needs fixed variants: --rows with --context or --same-past"),
        ({"block": 128}, "symmetric blocks of 32"),
        ({"asymmetric": True}, "symmetric blocks of 32"),
        ({"embedding_bits": 8}, "--embedding 16 only, not 8"),
        ({"part_mb": 9000}, "--part-mb must be from 1 to 3500"),
        ({"quant": Quant.W8A16, "calibration": Path("no.txt")}, "--calibration no.txt cannot be read"),
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
