"""The matrices of a layer in the groups that read the same inputs."""

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from engine.compile.arguments import CompileArguments
from engine.compile.calibration.forward import DOWN, GATE_UP, OUTPUT, QKV
from engine.compile.quantisation.methods.blocks import BlockForm
from engine.compile.quantisation.methods.integer_blocks import kept_form
from engine.compile.quantisation.methods.table import keeps_codes, method_of
from engine.compile.quantisation.rounding.codes import BlockCodes
from engine.compile.sources.checkpoint import Checkpoint, Float32
from engine.compile.sources.experts import ExpertTensors
from engine.models.network import Network

HEAD = "head"


@dataclass(frozen=True, slots=True)
class MatrixGroup:
    """kind: "head" or a name that `layer_output` taps. modules: in the order in which they are stacked."""

    kind: str
    modules: tuple[str, ...]

    @property
    def tensors(self) -> tuple[str, ...]:
        return tuple(f"{module}.weight" for module in self.modules)

    def without(self, names: Collection[str]) -> "MatrixGroup":
        """The group of the other matrices."""
        return MatrixGroup(self.kind, tuple(module for module in self.modules if f"{module}.weight" not in names))

    def weight(self, checkpoint: Checkpoint) -> Float32:
        """[outputs of all, inputs]."""
        return np.concatenate([checkpoint.tensor(name, checkpoint.shape(name)) for name in self.tensors])

    def bias(self, checkpoint: Checkpoint) -> Float32:
        """[outputs of all], 0 where a module has none."""
        sizes = [(f"{module}.bias", checkpoint.shape(f"{module}.weight")[:1]) for module in self.modules]
        found = [checkpoint.tensor(*each) if each[0] in checkpoint else np.zeros(each[1], np.float32) for each in sizes]
        return np.concatenate(found)

    def parts(self, checkpoint: Checkpoint, codes: BlockCodes) -> dict[str, BlockCodes]:
        """The codes of each matrix, of those of the stack."""
        found, start, zeros = {}, 0, codes.grid.zeros
        for name in self.tensors:
            part = slice(start, start := start + checkpoint.shape(name)[0])
            grid = replace(codes.grid, scales=codes.grid.scales[part], zeros=None if zeros is None else zeros[part])
            found[name] = replace(codes, codes=codes.codes[part], grid=grid)
        return found


def groups_of(network: Network, layer: int) -> tuple[MatrixGroup, MatrixGroup, MatrixGroup, MatrixGroup]:
    """In the order in which a layer multiplies with them."""
    gate_up_names, down_name = network.ffn_names(layer)
    ffn = gate_up_names, (down_name,) if down_name else ()
    stacks = (network.mixer_names(layer), network.output_names(layer), *ffn)
    qkv, output, gate_up, down = (tuple(name.format(layer=layer) for name in stack) for stack in stacks)
    attention = MatrixGroup(QKV, qkv), MatrixGroup(OUTPUT, output)
    return *attention, MatrixGroup(GATE_UP, gate_up), MatrixGroup(DOWN, down)


def all_tensors(network: Network) -> list[str]:
    """Of all groups of all layers."""
    groups = (group for layer in range(network.spec.layers) for group in groups_of(network, layer))
    return [name for group in groups for name in group.tensors]


def kept_matrices(arguments: CompileArguments, checkpoint: Checkpoint, network: Network) -> frozenset[str]:
    """Those of the layers that a file has in the very form in which they are stored: there is nothing to choose."""
    choice = method_of(arguments).choice
    if choice is None or choice.has_multiples or choice.has_rows:
        return frozenset()
    form = BlockForm(4, arguments.block, arguments.asymmetric)
    found = set()
    for name in all_tensors(network):
        stored = checkpoint.form(name)
        row = None if stored is None or stored.order else checkpoint.blocks(name, 0, 1)
        if row is not None and kept_form(row, checkpoint.shape(name)[1], form, choice.has_offsets) is not None:
            found.add(name)
    return frozenset(found)


def codes_told(name: str, checkpoint: Checkpoint, network: Network, arguments: CompileArguments) -> str:
    """What becomes of weights that come quantised, in a sentence. name: of their format."""
    if not keeps_codes(arguments):
        return f"weights come as {name}: they are read as the floats they mean and stored as {arguments.quant}"
    groups = [group for layer in range(network.spec.layers) for group in groups_of(network, layer) if group.modules]
    forms = [{checkpoint.form(tensor) for tensor in group.tensors} for group in groups]
    kept = [len(found) == 1 and None not in found for found in forms]
    for layer in network.expert_layers:
        kept += ExpertTensors(checkpoint, network, layer).keep_codes()
    rest = "" if all(kept) else "; the others are rounded to 8 bits from the floats they mean"
    return f"weights come as {name}: {sum(kept)} of {len(kept)} matrices keep their codes{rest}"


def head_tensor(network: Network) -> str:
    """The matrix of the LM head."""
    names = network.details.names
    return f"{names.embedding if network.spec.tied_head else names.head}.weight"
