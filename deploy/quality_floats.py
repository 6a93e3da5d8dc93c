"""The floats that 4-bit codes stand for, as a checkpoint: `python deploy/quality_floats.py SOURCE -o DIR --quant w4`.

For scoring codes alone, in float arithmetic, whatever would multiply with them. The embedding table stays as it is; a
tied head gets weights of its own.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.compile.arguments import CompileArguments, QualityLevel, Quant
from engine.compile.calibrated.matrices import groups_of, head_tensor
from engine.compile.calibrated.settle import settle_quality
from engine.compile.calibrated.stages import choose_codes_stage, drop_codes_stage
from engine.compile.compilation import Compilation
from engine.compile.pipeline import CPU_FLOAT
from engine.compile.progress import SilentProgress
from engine.compile.quantization.blocks import Int4Blocks
from engine.compile.quantization.int4 import floats_of, int4_blocks, is_kept
from engine.compile.quantization.int8 import int8_blocks
from engine.compile.quantization.table import head_method, method_of
from engine.compile.random_checkpoint import write_shards
from engine.compile.source import open_source
from engine.compile.stages import text_stage
from engine.compile.task import names_in
from engine.errors import HexserveError
from engine.models.family import read_network
from engine.models.network import Network

Float32 = NDArray[np.float32]


def write_floats(arguments: CompileArguments) -> None:
    """Choose the codes as the compiler does and write what they stand for. HexserveError as from `compile_bundle`."""
    source = open_source(arguments.source)
    network = read_network(source.config, arguments.max_context)
    arguments = settle_quality(arguments, source, network, SilentProgress())
    arguments.output.mkdir(parents=True, exist_ok=True)
    with source.tensors() as checkpoint:
        everything = checkpoint.unused()  # nothing has been asked for yet
        network = names_in(checkpoint, network)
        work = Compilation(
            arguments, SilentProgress(), CPU_FLOAT, source, checkpoint, network, (), (), arguments.output
        )
        text_stage(work)
        choose_codes_stage(work)
        write_shards(arguments.output, tensors(work, everything))
        drop_codes_stage(work)
    config = source.config | {"tie_word_embeddings": False, "torch_dtype": "float32"}
    (arguments.output / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def tensors(work: Compilation, everything: list[str]) -> Iterator[tuple[str, Float32]]:
    """Every tensor under its name: matrices in the floats of their codes, the others as they are."""
    checkpoint, names = work.checkpoint, work.network.details.names
    matrices, head = matrix_names(work.network), f"{names.head}.weight"
    for name in everything:
        shape = checkpoint.shape(name)
        yield name, coded(work, name) if name in matrices else checkpoint.tensor(name, shape)
    if head not in everything:
        yield head, coded(work, f"{names.embedding}.weight" if work.network.spec.tied_head else head)


def coded(work: Compilation, name: str) -> Float32:
    """A matrix in the floats of its codes: those chosen for it or kept, else those nearest."""
    outputs, inputs = work.checkpoint.shape(name)
    arguments, choice, blocks = (
        work.arguments,
        method_of(work.arguments).choice,
        work.checkpoint.blocks(name, 0, outputs),
    )
    assert choice is not None
    if name == head_tensor(work.network) and head_method(arguments).choice is None:
        return int8_blocks(work.checkpoint.tensor(name, (outputs, inputs)) if blocks is None else blocks).floats()
    kept = arguments.block, arguments.asymmetric, choice.has_offsets
    if not isinstance(blocks, Int4Blocks) or not is_kept(blocks, *kept):
        blocks = int4_blocks(work.checkpoint.tensor(name, (outputs, inputs)), arguments.block, arguments.asymmetric)
    if choice.in_half:
        blocks = replace(blocks, scales=blocks.scales.astype(np.float16).astype(np.float32))
    return np.ascontiguousarray(floats_of(blocks, inputs))  # safetensors writes the bytes of a view as they lie


def matrix_names(network: Network) -> frozenset[str]:
    """Names of the tensors that are stored in codes."""
    groups = (group for layer in range(network.spec.layers) for group in groups_of(network, layer))
    found = {name for group in groups for name in group.tensors}
    return frozenset(found | (set() if network.spec.tied_head else {f"{network.details.names.head}.weight"}))


def main() -> int:
    """Read the command line and write the folder; 1 after one line on stderr."""
    parser = argparse.ArgumentParser(description="Write the floats that the codes of a checkpoint stand for.")
    parser.add_argument("source", type=Path, metavar="SOURCE")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--quant", choices=[Quant.INT4, Quant.W4], type=Quant, default=Quant.W4)
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--quality", type=QualityLevel, default=QualityLevel.FAST)
    parser.add_argument("--calibration", type=Path)
    given = parser.parse_args()
    arguments = CompileArguments(
        given.source,
        given.output,
        quant=given.quant,
        block=given.block,
        quality=given.quality,
        calibration=given.calibration,
    )
    try:
        write_floats(arguments)
    except HexserveError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
