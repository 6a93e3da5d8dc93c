"""The matrices of a layer in the groups that read the same inputs."""

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from engine.compile.arguments import CompileArguments
from engine.compile.calibration.forward import DOWN, GATE_UP, OUTPUT, QKV
from engine.compile.quantisation.methods.blocks import BlockForm, Blocks
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
        return np.concatenate([self._bias(checkpoint, module) for module in self.modules])

    def parts(self, checkpoint: Checkpoint, codes: BlockCodes) -> dict[str, BlockCodes]:
        """The codes of each matrix, of those of the stack."""
        found, start = {}, 0
        for name in self.tensors:
            stop = start + checkpoint.shape(name)[0]
            found[name] = _rows(codes, start, stop)
            start = stop
        return found

    def _bias(self, checkpoint: Checkpoint, module: str) -> Float32:
        size = checkpoint.shape(f"{module}.weight")[:1]
        name = f"{module}.bias"
        return checkpoint.tensor(name, size) if name in checkpoint else np.zeros(size, np.float32)


def groups_of(network: Network, layer: int) -> tuple[MatrixGroup, MatrixGroup, MatrixGroup, MatrixGroup]:
    """In the order in which a layer multiplies with them."""
    gate_up_names, down_name = network.ffn_names(layer)
    ffn = gate_up_names, (down_name,) if down_name else ()
    stacks = (network.mixer_names(layer), network.output_names(layer), *ffn)
    kinds = (QKV, OUTPUT, GATE_UP, DOWN)
    qkv, output, gate_up, down = (
        MatrixGroup(kind, tuple(name.format(layer=layer) for name in stack))
        for kind, stack in zip(kinds, stacks, strict=True)
    )
    return qkv, output, gate_up, down


def kept_matrices(arguments: CompileArguments, checkpoint: Checkpoint, network: Network) -> frozenset[str]:
    """Those of the layers that a file has in the very form in which they are stored: there is nothing to choose."""
    choice = method_of(arguments).choice
    if choice is None or choice.has_multiples or choice.has_rows:
        return frozenset()
    form = BlockForm(4, arguments.block, arguments.asymmetric)
    groups = (group for layer in range(network.spec.layers) for group in groups_of(network, layer))
    found = set()
    for name in (name for group in groups for name in group.tensors):
        row = _row(checkpoint, name)
        if row is not None and kept_form(row, checkpoint.shape(name)[1], form, choice.has_offsets) is not None:
            found.add(name)
    return frozenset(found)


def _row(checkpoint: Checkpoint, name: str) -> Blocks | None:
    """The first row, if it is stored as blocks whose inputs stand in their own order."""
    form = checkpoint.form(name)
    return None if form is None or form.order else checkpoint.blocks(name, 0, 1)


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


def _rows(codes: BlockCodes, start: int, stop: int) -> BlockCodes:
    grid = codes.grid
    zeros = None if grid.zeros is None else grid.zeros[start:stop]
    return replace(
        codes, codes=codes.codes[start:stop], grid=replace(grid, scales=grid.scales[start:stop], zeros=zeros)
    )
