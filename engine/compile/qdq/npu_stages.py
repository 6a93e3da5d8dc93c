"""The compiler's stages for integer graphs on an NPU: those for the CPU, then the context binaries."""

from engine.compile.npu.stages import binaries_stage, genie_stage, quality_stage, sources
from engine.compile.pipeline import Compilation, Stage, hash_stage, pack_weights, text_stage
from engine.compile.qdq.stages import calibration_stage, integer_graphs


def _weights(work: Compilation) -> None:
    sources(work).mkdir()
    pack_weights(work, sources(work))


def _calibration(work: Compilation) -> None:
    calibration_stage(work, sources(work))


def _graphs(work: Compilation) -> None:
    integer_graphs(work, sources(work))


INTEGER_NPU_STAGES = (
    Stage("text", text_stage),
    Stage("weights", _weights),
    Stage("calibration", _calibration),
    Stage("graphs", _graphs),
    Stage("binaries", binaries_stage),
    Stage("quality", quality_stage),
    Stage("Genie files", genie_stage),
    Stage("hashes", hash_stage),
)
