"""The floats that the codes of w4 stand for, as a checkpoint: `python -m tools.quality.floats SOURCE -o DIR`.

For scoring codes alone, in float arithmetic. The embedding table stays as it is; a tied head gets weights of its own.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.compile.arguments import CompileArguments, QualityLevel, Quant
from engine.compile.compilation import Compilation, text_stage
from engine.compile.pipeline import CPU_FLOAT
from engine.compile.progress import SilentProgress
from engine.compile.quantisation.choose.matrices import groups_of, head_tensor
from engine.compile.quantisation.choose.quality import choose_codes_stage, drop_codes_stage, resolve_quality
from engine.compile.quantisation.methods.blocks import floats_of
from engine.compile.quantisation.methods.integer_blocks import W4_FORM, as_int4_blocks, int8_blocks
from engine.compile.quantisation.methods.table import head_method
from engine.compile.sources.checkpoint import Checkpoint
from engine.compile.sources.source import open_source
from engine.compile.sources.task import names_in
from engine.errors import HexserveError
from engine.models.family import read_network
from engine.models.network import Network
from tools.random_checkpoint import write_shards

Float32 = NDArray[np.float32]


def write_floats(arguments: CompileArguments) -> None:
    """Choose the codes as the compiler does and write what they stand for. HexserveError as from `compile_bundle`."""
    source = open_source(arguments.source)
    network = read_network(source.config, arguments.max_context)
    arguments = resolve_quality(arguments, source, network, SilentProgress())
    arguments.output.mkdir(parents=True, exist_ok=True)
    with source.tensors() as checkpoint:
        network = names_in(checkpoint, network)
        work = Compilation(
            arguments, SilentProgress(), CPU_FLOAT, source, checkpoint, network, (), (), arguments.output
        )
        text_stage(work)
        choose_codes_stage(work)
        write_shards(arguments.output, tensors(work))
        drop_codes_stage(work)
    config = source.config | {"tie_word_embeddings": False, "torch_dtype": "float32"}
    (arguments.output / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def tensors(work: Compilation) -> Iterator[tuple[str, Float32]]:
    """Every tensor under its name: matrices in the floats of their codes, the others as they are."""
    network, checkpoint = work.network, work.checkpoint
    groups = (group for layer in range(network.spec.layers) for group in groups_of(network, layer))
    head = f"{network.details.names.head}.weight"
    matrices = {head, *(name for group in groups for name in group.tensors)}
    for name in tensor_names(checkpoint, network):
        yield name, coded(work, name) if name in matrices else checkpoint.tensor(name, checkpoint.shape(name))
    if head not in checkpoint:
        yield head, coded(work, f"{network.details.names.embedding}.weight")


def coded(work: Compilation, name: str) -> Float32:
    """A matrix in the floats of its codes: those chosen or kept, of 8 bits where it gets these, else the nearest."""
    outputs, inputs = work.checkpoint.shape(name)
    form = work.checkpoint.form(name)
    blocks = None if form is None or form.order else work.checkpoint.blocks(name, 0, outputs)
    piece = work.checkpoint.tensor(name, (outputs, inputs)) if blocks is None else blocks
    is_head = name == head_tensor(work.network) and head_method(work.arguments).choice is None
    if is_head or name in work.wide:
        return int8_blocks(piece, inputs).floats()[:, :inputs]
    found = as_int4_blocks(piece, inputs, W4_FORM, has_offsets=True)
    offsets = None if found.offsets is None else halves(found.offsets)
    stored = replace(found, scales=halves(found.scales), offsets=offsets)
    return np.ascontiguousarray(floats_of(stored, inputs))  # safetensors writes the bytes of a view as they lie


def halves(values: Float32) -> Float32:
    """As half precision stores them."""
    return values.astype(np.float16).astype(np.float32)


def tensor_names(checkpoint: Checkpoint, network: Network) -> list[str]:
    """What a network without experts and recurrence reads: GGUF files list names of their own."""
    listed = [each if isinstance(each, tuple) else (each,) for each in astuple(network.details.names)]
    layers = range(network.spec.layers)
    modules = dict.fromkeys(name.format(layer=layer) for names in listed for name in names for layer in layers)
    found = [f"{module}.{part}" for module in modules for part in ("weight", "bias")]
    return [name for name in found if name in checkpoint]


def main() -> int:
    """Read the command line and write the folder; 1 after one line on stderr."""
    parser = argparse.ArgumentParser(description="Write the floats that the codes of a checkpoint stand for.")
    parser.add_argument("source", type=Path, metavar="SOURCE")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--quality", type=QualityLevel, default=QualityLevel.FAST)
    parser.add_argument("--calibration", type=Path)
    given = parser.parse_args()
    chosen = {"quality": given.quality, "calibration": given.calibration}
    try:
        write_floats(CompileArguments(given.source, given.output, quant=Quant.W4, **chosen))
    except HexserveError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
